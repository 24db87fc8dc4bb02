"""Events of `/v1/realtime` for the strict parsers of its clients: those of the recorded transcripts, and one of every type that
there is, said by a server."""

import base64
import json
import wave
from pathlib import Path

from websockets.sync.client import connect

from server import read_json
from speaking import KEY

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT / "gateway" / "proto" / "tests" / "transcripts"
CLIP = ROOT / "config" / "models" / "tiny" / "voices" / "clara.wav"


def recorded() -> list[dict]:
    """What servers said in every transcript of this protocol. Sound is recorded as its length."""
    events = []
    for path in sorted(TRANSCRIPTS.glob("*.jsonl")):
        first, *lines = map(json.loads, path.read_text().splitlines())
        if not first["path"].startswith("/v1/realtime"):
            continue
        said = [line["server"] for line in lines if "server" in line]
        assert said, path
        for event in said:
            if isinstance(event.get("delta"), int):
                event["delta"] = base64.b64encode(bytes(event["delta"] // 4 * 3)).decode()
        events += said
    return events


class Client:
    def __init__(self, server):
        url = server[0].replace("http", "ws") + "/v1/realtime?model=tts-scripted"
        self.socket = connect(url, additional_headers={"authorization": f"Bearer {KEY}"}, compression=None, max_size=None)
        self.events = []
        self.until("session.created")

    def send(self, kind, **fields):
        self.socket.send(json.dumps({"type": kind, **fields}))

    def until(self, kind):
        while True:
            self.events.append(json.loads(self.socket.recv(timeout=30)))
            if self.events[-1]["type"] == kind:
                return self.events[-1]

    def ask(self, text, voice="instant", **response):
        self.send("session.update", session={"type": "realtime", "audio": {"output": {"voice": voice}}})
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        self.send("conversation.item.create", item=item)
        self.send("response.create", response=response)

    def append(self, pcm: bytes):
        for at in range(0, len(pcm), 48_000):
            self.send("input_audio_buffer.append", audio=base64.b64encode(pcm[at : at + 48_000]).decode())


def every(server) -> list[dict]:
    """Events of every type that the reference of the sockets tells of, each way a response ends among them."""
    client = Client(server)
    detection = {"type": "server_vad", "idle_timeout_ms": 5_000}
    client.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    client.until("session.updated")
    for voice in ("failing", "capped", "overloaded", "instant"):
        client.ask("Good evening, and welcome.", voice)
        done = client.until("response.done")
    spoken = done["response"]["output"][0]["id"]
    client.ask("In writing.", output_modalities=["text"])
    client.until("response.done")
    client.ask("One two three four five six seven eight nine ten. " * 9, "steady", conversation="auto")
    client.until("response.output_audio.delta")
    client.send("response.cancel")
    client.until("response.done")
    client.send("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=200)
    client.send("conversation.item.retrieve", item_id=spoken)
    client.send("conversation.item.delete", item_id=spoken)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    client.send("conversation.item.create", item=call)
    client.send("conversation.item.create", item={"type": "function_call_output", "call_id": "c", "output": "7"})
    client.send("response.cancel")
    client.until("error")
    # Somebody speaks, and breaks a response off.
    client.ask("One two three four five six seven eight nine ten. " * 9, "steady")
    client.until("response.output_audio.delta")
    with wave.open(str(CLIP)) as file:
        client.append(file.readframes(file.getnframes()) + bytes(48_000))
    client.until("input_audio_buffer.speech_stopped")
    client.append(bytes(4_800))
    client.send("input_audio_buffer.commit")
    client.send("input_audio_buffer.clear")
    client.until("input_audio_buffer.cleared")
    # And then nobody.
    client.ask("Hi.")
    client.until("input_audio_buffer.timeout_triggered")
    client.until("conversation.item.done")
    client.socket.close()
    reference = read_json(server[0] + "/asyncapi.json")["components"]["messages"]["realtimeServer"]["payload"]
    assert {event["type"] for event in client.events} == set(reference["properties"]["type"]["enum"])
    return client.events
