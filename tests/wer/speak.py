"""Speaks sentences.txt with the binary under test: over the socket word by word (streamed) and as whole text, and
a few with `voxlane speak`. Voices take the turns that reference.py gives them.

    VOXLANE_BINARY=target/release/voxlane python tests/wer/speak.py --out target/wer/ours
"""

import argparse
import json
import os
import subprocess
import sys
import time
import wave
from pathlib import Path

from websockets.sync.client import connect

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "clients"))
VOICES = ["clara", "marcus", "nora", "june"]
LAYOUTS = {"streamed": "streaming", "whole": "nonstreaming"}
SPOKEN_BY_COMMAND = 4


def speak(url: str, text: str, voice: str, layout: str, seed: int) -> bytes:
    """16-bit PCM at 24 kHz."""
    with connect(url, subprotocols=["voxlane.v1"], compression=None) as socket:
        def say(**message):
            socket.send(json.dumps({"context": 1, **message}))

        say(type="open", voice=voice, layout=layout, language="english", seed=seed, audio={"codec": "pcm"})
        pieces = [word + " " for word in text.split()] if layout == "streamed" else [text]
        for sequence, piece in enumerate(pieces, 1):
            say(type="text.append", sequence=sequence, text=piece)
            if layout == "streamed":
                time.sleep(0.01)
        say(type="text.end")
        audio = bytearray()
        for message in socket:
            if isinstance(message, bytes):
                audio += message[16:]
            elif json.loads(message)["type"] == "end":
                assert json.loads(message)["reason"] == "done", message
                return bytes(audio)
            else:
                assert json.loads(message)["type"] != "error", message
    raise AssertionError("the socket closed before the end")


def main():
    from server import running

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    texts, listed = (HERE / "sentences.txt").read_text().splitlines(), []
    with running() as (_, url, _, _):
        for layout, name in LAYOUTS.items():
            for number, text in enumerate(texts):
                voice = VOICES[number % len(VOICES)]
                file = f"{number + 1:02}_{voice}_{name}.wav"
                with wave.open(str(args.out / file), "wb") as out:
                    out.setparams((1, 2, 24000, 0, "NONE", ""))
                    out.writeframes(speak(url, text, voice, layout, args.seed))
                listed.append({"file": file, "voice": voice, "layout": name, "text": text})
    for number, text in enumerate(texts[:SPOKEN_BY_COMMAND]):
        voice = VOICES[number]
        file = f"{number + 1:02}_{voice}_command.wav"
        command = [os.environ["VOXLANE_BINARY"], "speak", text, "--voice", voice, "--seed", str(args.seed)]
        subprocess.run([*command, "--out", str(args.out / file)], check=True, capture_output=True)
        listed.append({"file": file, "voice": voice, "layout": "command", "text": text})
    (args.out / "manifest.json").write_text(json.dumps(listed, indent=1) + "\n")


if __name__ == "__main__":
    main()
