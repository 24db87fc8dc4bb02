"""How fast the reference package speaks, one request at a time: audio seconds per wall second, as JSON.

    python speed.py --tiny ../../config/models/tiny [--threads 2] [--sentences 8] [--voice clara]

Sampling is on with the checkpoint's own parameters, weights in float32, text in the whole-text layout. The voice's
features are made once, outside the clock, and one sentence is spoken before it starts.
"""

import argparse
import json
import os
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--voice", default="clara")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa", help="sdpa is the package's default")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)

    import torch
    from parity_reference import load

    torch.set_num_threads(args.threads)
    wrapper = load(args.tiny, attention=args.attention)
    voices = json.loads((args.tiny / "voices/voices.json").read_text())["voices"]
    prompt = wrapper.create_voice_clone_prompt(ref_audio=str(args.tiny / "voices" / voices[args.voice]["file"]),
                                               x_vector_only_mode=True)
    texts = (HERE.parent / "wer/sentences.txt").read_text().splitlines()

    def speak(text):
        waves, rate = wrapper.generate_voice_clone(text=text, language="English", voice_clone_prompt=prompt,
                                                   non_streaming_mode=True)
        return len(waves[0]) / rate

    torch.manual_seed(0)
    speak(texts[0])
    load_before, started, cpu_started = os.getloadavg()[0], time.monotonic(), time.process_time()
    audio = sum(speak(t) for t in texts[: args.sentences])
    wall, cpu = time.monotonic() - started, time.process_time() - cpu_started
    print(json.dumps({
        "audio_seconds": round(audio, 3), "wall_seconds": round(wall, 3), "cpu_seconds": round(cpu, 3),
        "audio_per_wall": round(audio / wall, 4), "audio_per_cpu": round(audio / cpu, 4), "threads": args.threads,
        "attention": args.attention, "dtype": "float32", "sentences": args.sentences, "voice": args.voice,
        "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)], "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
