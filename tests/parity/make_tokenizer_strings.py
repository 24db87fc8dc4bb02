"""10,000 random strings and the reference tokenizer's ids for them, in one compact safetensors file.

    python make_tokenizer_strings.py --tiny ../../config/models/tiny --out ../golden/parity/tokenizer_10000.safetensors

The ids are those of `AutoTokenizer` built from vocab.json + merges.txt and again from tokenizer.json; the script
stops when the two differ. Letters, digits and marks are drawn from characters that Unicode 3.2 already assigned
(emoji are newer, but are "other" to the split pattern in every version): regex engines of different Unicode
versions must agree on all of them.
"""

import argparse
import random
import shutil
import tempfile
import unicodedata
from pathlib import Path

import numpy
from safetensors.numpy import save_file
from transformers import AutoTokenizer

OLD = unicodedata.ucd_3_2_0
WORDS = (
    "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word "
    "but not what all were we when your can said there use an each which she do how their if will up other about out "
    "many then them these so some her would make like him into time has look two more write go see number no way "
    "could people my than first water been call who oil its now find long down day did get come made may part "
    "don't I'll we've they're HE'S can't Y'all it's o'clock rock'n'roll"
).split()
CODE = ["fn main() {", "let x = 5;", "}\n", "  return a[i] + b;\n", "if (x != y) {\t", "#include <stdio.h>\n",
        "SELECT * FROM t;", "x += 1\n\n", "http://a.example/b?c=d&e=f", "C:\\dir\\file.txt", "{\"k\": [1, 2.5e-3]}",
        "// note\r\n", "&amp;", "==>", "a->b", "::<T>()", "0xFF", "s/\\s+/ /g"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", " \n", "\n ", "\n\n", "\u00a0", "\u2003", "\u3000", "\u2028",
          "\u0085", "\u000b", "\u000c", "\u200b", "\ufeff"]
EMOJI = ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f",
         "\U0001f1eb\U0001f1f7", "\U0001f9d1\u200d\U0001f680", "1\ufe0f\u20e3"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "\u2026", "\u2014", "\u201c", "\u201d", "\u2019", "\u00bf", "\u3002"]


def pool(ranges, wanted):
    return [chr(c) for lo, hi in ranges for c in range(lo, hi)
            if OLD.category(chr(c))[0] in wanted and unicodedata.category(chr(c)) == OLD.category(chr(c))]


LETTERS = pool([(0xC0, 0x250), (0x370, 0x530), (0x5D0, 0x5F0), (0x621, 0x64B), (0x904, 0x93A), (0xE01, 0xE31),
                (0x1100, 0x1160), (0x1E00, 0x1F00), (0x3041, 0x30FB), (0x4E00, 0x5200), (0xAC00, 0xAD00),
                (0xFF21, 0xFF5B)], "L")
DIGITS = pool([(0x30, 0x3A), (0xB2, 0xBF), (0x660, 0x66A), (0x966, 0x970), (0x2150, 0x2190), (0x2460, 0x2474),
               (0xFF10, 0xFF1A)], "N")
MARKS = pool([(0x300, 0x34F), (0x591, 0x5BE), (0x64B, 0x653), (0x93E, 0x94E), (0x3099, 0x309B)], "M")
CONTROL = [chr(c) for c in (*range(0, 9), *range(14, 32), 127, *range(0x80, 0x85), *range(0x86, 0xA0))]
ANY = [chr(c) for c in range(0x21, 0xFFFE) if not 0xD800 <= c < 0xE000 and OLD.category(chr(c)) not in ("Cn", "Co")
       and unicodedata.category(chr(c)) == OLD.category(chr(c))]


def piece(r):
    kind = r.randrange(16)
    if kind < 5:
        word = r.choice(WORDS)
        return r.choice([word, word.capitalize(), word.upper(), word + r.choice(PUNCTUATION)])
    if kind == 5:
        return "".join(chr(r.randrange(32, 127)) for _ in range(r.randrange(1, 9)))
    if kind == 6:
        return "".join(r.choice(LETTERS) for _ in range(r.randrange(1, 5)))
    if kind == 7:
        return "".join(r.choice(DIGITS) for _ in range(r.randrange(1, 4)))
    if kind == 8:
        return r.choice([f"{r.randrange(10**6)}", f"{r.random() * 1000:.2f}", f"1{r.randrange(10)}:0{r.randrange(10)}",
                         f"{r.randrange(1, 32)}/{r.randrange(1, 13)}/20{r.randrange(10, 99)}"])
    if kind == 9:  # a base with combining marks, composable or not, now and then the marks alone
        base = "" if r.random() < 0.15 else r.choice("aeiouncszAEOy\u03b1\u0438\u304b\u0928")
        return base + "".join(r.choice(MARKS[:60] if r.random() < 0.7 else MARKS) for _ in range(r.randrange(1, 4)))
    if kind == 10:
        return "".join(r.choice(SPACES) for _ in range(r.randrange(1, 5)))
    if kind == 11:
        return r.choice(EMOJI)
    if kind == 12:
        return "".join(r.choice(PUNCTUATION) for _ in range(r.randrange(1, 4)))
    if kind == 13:
        return r.choice(CODE)
    if kind == 14:
        return "".join(r.choice(CONTROL) for _ in range(r.randrange(1, 3)))
    return "".join(r.choice(ANY) for _ in range(r.randrange(1, 4)))


def strings(count, seed):
    """`count` distinct strings; the first ones are the awkward single cases."""
    r = random.Random(seed)
    out = ["", " ", "\n", "\r\n", "\n\n \n", "  a", "a  ", "\u0301", "e\u0301", "\u1100\u1161\u11a8", "'S", "'s", "I'LL",
           "\u017fs", "'\u017f", "K'\u212a", "a\u0000b", "\ufb01", "\u1e9b\u0323", "\U0001d11e", "<|im_end|>",
           "<|im_start|>assistant\nhi<|im_end|>", "<tts_pad>x<tts_text_eod>", "<|endoftext|> <|audio_start|>", "<|im_end"]
    seen = set(out)
    while len(out) < count:
        joint = r.choice([" ", " ", " ", "", "\n"])
        s = joint.join(piece(r) for _ in range(r.randrange(1, 9)))
        if s not in seen:
            seen.add(s)
            out.append(s)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    texts = strings(10_000, seed=2024)
    whole = AutoTokenizer.from_pretrained(str(args.tiny))
    with tempfile.TemporaryDirectory() as folder:
        for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
            shutil.copyfile(args.tiny / file, Path(folder) / file)
        parts = AutoTokenizer.from_pretrained(folder)
        ids, other = ([t(s)["input_ids"] for s in texts] for t in (whole, parts))
    different = [(s, a, b) for s, a, b in zip(texts, ids, other) if a != b]
    if different:
        raise SystemExit(f"{len(different)} strings differ between tokenizer.json and vocab+merges: {different[:3]!r}")
    raw = [s.encode() for s in texts]
    save_file({
        "text.bytes": numpy.frombuffer(b"".join(raw), dtype=numpy.uint8),
        "text.ends": numpy.cumsum([len(b) for b in raw]).astype(numpy.int32),
        "ids": numpy.concatenate([numpy.array(i, dtype=numpy.int16) for i in ids]),
        "ids.ends": numpy.cumsum([len(i) for i in ids]).astype(numpy.int32),
    }, str(args.out))
    print(f"{len(texts)} strings, {sum(map(len, raw))} bytes, {sum(map(len, ids))} ids, {len(set(sum(ids, [])))} distinct")


if __name__ == "__main__":
    main()
