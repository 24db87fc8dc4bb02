"""OpenAI's Python SDK and agents SDK, unmodified, pointed at us by URL alone."""

import asyncio
import base64
import io
import json
import time
import urllib.request

import av
import numpy as np
import openai
import pytest
from agents.realtime.openai_realtime import get_server_event_type_adapter
from openai import AsyncOpenAI, OpenAI

from server import running

TEXT = "The morning train was late again, so we walked along the river."
LONG = " ".join([TEXT] * 12)
KEY = "key-of-the-sdk-tests-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f'[[key]]\nname = "sdk"\nkey = "{KEY}"\ntenant = "acme"\nscopes = ["speak"]\n')
    config = keys.with_name("voxlane.toml")
    config.write_text(f'[auth]\napi_keys_file = "{keys}"\n')
    with running("--config", str(config)) as urls:
        yield urls


def client(server, key=KEY, **options):
    return AsyncOpenAI(api_key=key, base_url=server[0] + "/v1", max_retries=0, **options)


def speech(server, text=TEXT, **fields) -> bytes:
    """What the plain endpoint gives, asked without any SDK."""
    body = json.dumps({"model": "tts-tiny", "input": text, "response_format": "pcm", **fields}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(server[0] + "/v1/audio/speech", body, headers)) as answer:
        return answer.read()


def snr_db(reference: bytes, other: bytes) -> float:
    a, b = (np.frombuffer(pcm, "<i2").astype(np.float64) for pcm in (reference, other))
    assert len(a) == len(b)
    return 10 * np.log10(np.sum(a**2) / max(np.sum((a - b) ** 2), 1e-9))


def metric(server, name: str) -> float:
    with urllib.request.urlopen(server[2] + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + " ") or line.startswith(name + "{")]
    return sum(map(float, values))


def assert_freed(server):
    """The engine has let go of every context: within a few of its steps."""
    deadline = time.monotonic() + 5
    while metric(server, "voxlane_engine_contexts_open") > 0:
        assert time.monotonic() < deadline, "the engine keeps a context that nobody hears"
        time.sleep(0.02)


async def turn(connection, adapter=get_server_event_type_adapter(), stop="response.done"):
    """Every event up to one of type `stop`, each held against the strict parser of the agents SDK."""
    events = []
    async for event in connection:
        adapter.validate_python(event.model_dump(exclude_unset=True))
        events.append(event)
        if event.type == stop:
            return events
    raise AssertionError([event.type for event in events])


def sound(events) -> bytes:
    return b"".join(base64.b64decode(event.delta) for event in events if event.type == "response.output_audio.delta")


async def say(connection, text, **response):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await connection.conversation.item.create(item=item)
    await connection.response.create(response=response)


def test_a_sentence_over_realtime_is_the_sentence_of_the_speech_endpoint(server):
    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "june"}}, "voxlane": {"seed": 7}})
            await say(connection, TEXT, metadata={"client_event_id": "m"})
            return await turn(connection)

    events = asyncio.run(go())
    pcm = sound(events)
    assert snr_db(speech(server, voice="june", seed=7), pcm) >= 40
    assert events[-1].response.metadata == {"client_event_id": "m"}
    assert events[-1].response.output[0].content[0].transcript == TEXT
    assert len(pcm) == events[-1].response.usage.output_tokens * 1920 * 2


def test_g711_is_the_same_sentence_at_8_khz(server):
    async def go(kind):
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"format": {"type": kind}, "voice": "june"}}, "voxlane": {"seed": 7}})
            await say(connection, TEXT)
            return sound(await turn(connection))

    for kind, name in [("audio/pcmu", "mulaw"), ("audio/pcma", "alaw")]:
        assert asyncio.run(go(kind)) == speech(server, voice="june", seed=7, response_format=name)


def test_an_interruption_stops_the_engine_and_leaves_what_was_heard(server):
    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await say(connection, LONG)
            item = None
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    item = event.item_id
                    break
            await asyncio.sleep(1.0)
            await connection.response.cancel()
            ended = await turn(connection)
            await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=700)
            await connection.conversation.item.retrieve(item_id=item)
            kept = await turn(connection, stop="conversation.item.retrieved")
            # Harmless mistakes, and then a session that goes on.
            await connection.response.cancel()
            await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=10**9)
            await say(connection, "Good night.")
            return ended[-1].response, kept[-1].item, await turn(connection)

    response, item, last = asyncio.run(go())
    assert (response.status, response.status_details.reason) == ("cancelled", "client_cancelled")
    heard = item.content[0].transcript
    assert LONG.startswith(heard) and len(heard) < 40, heard
    assert last[-1].response.status == "completed" and len(sound(last)) > 10_000
    assert "response_cancel_not_active" in [event.error.code for event in last if event.type == "error"]
    assert_freed(server)


def test_out_of_band_responses_run_beside_the_conversation_and_leave_no_item(server):
    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Beside it."}]}
            await connection.response.create(response={"conversation": "none", "input": [item], "metadata": {"n": "1"}})
            return await turn(connection)

    events = asyncio.run(go())
    assert not [event for event in events if event.type.startswith("conversation.")]
    assert events[-1].response.conversation_id is None and events[-1].response.status == "completed"


def test_mistakes_are_told_in_the_protocols_own_words(server):
    async def refused(model, key=KEY):
        async with client(server, key).realtime.connect(model=model) as connection:
            await turn(connection)

    for model, key, status in [("tts-tiny", "wrong", 401), ("gpt-realtime", KEY, 404)]:
        with pytest.raises(Exception) as caught:
            asyncio.run(refused(model, key))
        assert str(status) in str(caught.value), caught.value

    async def voice():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "nobody"}}})
            await say(connection, TEXT)
            return (await turn(connection, stop="error"))[-1].error

    error = asyncio.run(voice())
    assert error.code == "unknown_voice" and "clara" in error.message


def test_a_client_secret_opens_a_session_with_its_settings(server):
    secret = OpenAI(api_key=KEY, base_url=server[0] + "/v1").realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "audio": {"output": {"voice": "marcus"}}, "voxlane": {"seed": 3}},
    )
    assert secret.value.startswith("ek_")

    async def go():
        async with client(server, secret.value).realtime.connect(model="tts-tiny") as connection:
            await say(connection, TEXT)
            return await turn(connection)

    assert snr_db(speech(server, voice="marcus", seed=3), sound(asyncio.run(go()))) >= 40


def test_an_overload_is_a_failed_response_and_the_sdk_may_come_again():
    async def go(urls):
        connections = []
        async with client(urls, "none").realtime.connect(model="tts-tiny") as connection:
            await say(connection, LONG)
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    break
            async with client(urls, "none").realtime.connect(model="tts-tiny") as second:
                await say(second, TEXT)
                return (await turn(second))[-1].response

    with running("--max-contexts", "1") as urls:
        response = asyncio.run(go(urls))
        assert response.status == "failed"
        assert response.status_details.error.code == "overloaded", response.status_details


def decoded(data: bytes) -> np.ndarray:
    """The file's samples at 24 kHz, by FFmpeg."""
    resampler = av.AudioResampler("s16", "mono", 24_000)
    with av.open(io.BytesIO(data)) as container:
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)] + resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


def test_the_speech_endpoint_speaks_every_format_of_the_sdk(server):
    sdk = OpenAI(api_key=KEY, base_url=server[0] + "/v1", max_retries=0)
    plain = np.frombuffer(speech(server, voice="june", seed=7), "<i2")
    for name in ["wav", "pcm", "flac", "opus", "mp3"]:
        with sdk.audio.speech.with_streaming_response.create(
            model="tts-1", voice="june", input=TEXT, response_format=name, extra_body={"seed": 7}
        ) as answer:
            data, media_type = answer.read(), answer.headers["content-type"]
        if name == "mp3":
            assert media_type == "audio/ogg; codecs=opus", "it says what it is"
        heard = np.frombuffer(data, "<i2") if name == "pcm" else decoded(data)
        if name in ("wav", "pcm", "flac"):
            assert np.array_equal(heard, plain), name
        else:
            assert abs(len(heard) - len(plain)) <= 2
    for speed in (0.5, 2.0):
        pcm = sdk.audio.speech.create(model="tts-1", voice="june", input=TEXT, response_format="pcm", speed=speed, extra_body={"seed": 7}).read()
        assert len(pcm) // 2 == round(len(plain) / speed)


def test_the_speech_endpoint_streams_events_and_refuses_by_name(server):
    sdk = OpenAI(api_key=KEY, base_url=server[0] + "/v1", max_retries=0)
    pcm, done = b"", None
    with sdk.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse", extra_body={"seed": 7}
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                pcm += base64.b64decode(event.get("audio", ""))
                done = event
    assert pcm == speech(server, voice="clara", seed=7), "alloy is the first voice"
    assert done["type"] == "speech.audio.done" and done["finish_reason"] == "stop"
    with pytest.raises(openai.NotFoundError, match="clara"):
        sdk.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.speech.create(model="tts-1", voice="june", input=TEXT, response_format="aac")
    assert (caught.value.code, caught.value.param) == ("unsupported", "response_format") and caught.value.request_id
    with pytest.raises(openai.AuthenticationError):
        OpenAI(api_key="wrong", base_url=server[0] + "/v1").audio.speech.create(model="tts-1", voice="june", input=TEXT)
