"""Speaks sentences.txt with the reference package: the baseline that the engine's word error rate is held against.

    python reference.py --tiny ../../config/models/tiny --out ../../target/wer/reference

Temperatures and the rest come from the checkpoint's generation_config.json. Voices take turns over the sentences,
and every sentence is spoken in both text layouts. A voice's sentences are one batch of the package: it answers each as it
would alone, several times sooner.
"""

import argparse
import json
import sys
import wave
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "parity"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, default=HERE / "sentences.txt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    import torch
    from parity_reference import load

    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    wrapper = load(args.tiny)
    voices = json.loads((args.tiny / "voices/voices.json").read_text())["voices"]
    prompts = {v: wrapper.create_voice_clone_prompt(ref_audio=str(args.tiny / "voices" / facts["file"]),
                                                    x_vector_only_mode=True) for v, facts in voices.items()}
    texts, listed = args.sentences.read_text().splitlines(), []
    for turn, voice in enumerate(voices):
        numbers = range(turn, len(texts), len(voices))
        for layout in ("nonstreaming", "streaming"):
            names = [f"{i + 1:02}_{voice}_{layout}.wav" for i in numbers]
            if not all((args.out / name).is_file() for name in names):  # a run that was cut off goes on here
                torch.manual_seed(args.seed)
                waves, rate = wrapper.generate_voice_clone(
                    text=[texts[i] for i in numbers], language="English", voice_clone_prompt=prompts[voice],
                    non_streaming_mode=layout == "nonstreaming")
                for name, samples in zip(names, waves):
                    with wave.open(str(args.out / name), "wb") as f:
                        f.setnchannels(1)
                        f.setsampwidth(2)
                        f.setframerate(rate)
                        f.writeframes((samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
            for i, name in zip(numbers, names):
                with wave.open(str(args.out / name)) as f:
                    seconds = round(f.getnframes() / f.getframerate(), 2)
                listed.append({"file": name, "voice": voice, "layout": layout, "text": texts[i], "seconds": seconds})
            print(voice, layout, f"{sum(e['seconds'] for e in listed):.1f} s so far", flush=True)
    (args.out / "manifest.json").write_text(json.dumps(listed, indent=1) + "\n")


if __name__ == "__main__":
    main()
