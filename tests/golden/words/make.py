"""Word times of the embedded voices' clips, heard by Whisper base: the truth that `heard` is measured against.

    python tests/golden/words/make.py > tests/golden/words/words.json

Needs what tests/wer needs. Whisper's own borders are good to some 50 ms.
"""

import json
import sys
import tempfile
from pathlib import Path

from faster_whisper import WhisperModel

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "wer"))

import judge  # noqa: E402

VOICES = ROOT / "config" / "models" / "tiny" / "voices"


def main():
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        judge.assemble_model(Path(folder))
        model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=2)
        for name, voice in json.loads((VOICES / "voices.json").read_text())["voices"].items():
            sound = judge.load_wav(VOICES / voice["file"])
            segments, _ = model.transcribe(sound, language="en", word_timestamps=True, beam_size=5, temperature=0)
            heard = [word for segment in segments for word in segment.words]
            words = voice["text"].split()
            if len(heard) != len(words):
                sys.exit(f"{name}: {len(heard)} words heard, {len(words)} said")
            starts = [round(word.start * 1000) for word in heard]
            ends = [round(word.end * 1000) for word in heard]
            lines.append(json.dumps({"file": voice["file"], "text": voice["text"], "starts_ms": starts, "ends_ms": ends}))
    print("[\n" + ",\n".join(lines) + "\n]")


main()
