"""Writes config/workloads/*.jsonl: our own sentences, composed to the published shapes. Standard library only.

LibriTTS-like: 1 to 71 words, 18.7 on average, 7.8 s. Seed-TTS-like: 4.7 s on average. agent-turns: what a voice agent
says in one turn. read-out: paragraphs read aloud. `seconds` is what --exact-frames and the simulator go by; readers differ
in pace, so it does too (15% either way).

    python3 tests/bench/workloads.py
"""

import json
import pathlib
import random

OUT = pathlib.Path(__file__).resolve().parents[2] / "config/workloads"
SECONDS_PER_WORD = 7.8 / 18.7

OPENINGS = [
    "the ferry left before sunrise", "nobody in the village had seen such a winter", "my grandmother kept the letters in a tin box",
    "the carpenter measured the door twice", "two herons stood at the edge of the reeds", "the station clock was four minutes slow",
    "he sold the boat to a man from the islands", "a thin rain fell on the tiled roofs", "the orchard had been planted by her uncle",
    "we climbed until the path ended at a wall", "the baker whistled as he carried the trays", "every lamp along the quay was lit",
    "she read the notice aloud to the others", "the old map showed a road that no longer existed", "they had walked all day without speaking",
    "the kitchen smelled of oranges and smoke", "our neighbour keeps bees behind the chapel", "the river rose a hand's breadth each hour",
    "a boy with a red kite ran past the window", "the judge closed the book with great care", "snow lay in the furrows until April",
    "the engine coughed twice and was still", "her brother had gone to sea at sixteen", "the market opened with the ringing of a bell",
    "three strangers asked the way to the mill", "the garden gate had come off its hinge", "he counted the coins by the light of the stove",
    "the choir practised in the empty school", "a fox crossed the yard without hurry", "the tide had turned by the time we came down",
]
TURNS = [
    "and nobody thought to ask why", "because the bridge was being mended", "while the others slept in the hay", "but the answer never came",
    "so we waited under the eaves", "which surprised all of us", "as it had every year since the war", "until the lamps burned low",
    "though he would not admit it", "and the dog followed at a distance", "when the wind came round to the north", "for there was little else to do",
    "and by evening the whole street knew", "although the doctor had advised against it", "before the first guests arrived",
    "with a basket of plums on her arm", "and that was the end of the matter", "where the road bends towards the lake",
    "as if nothing had happened", "and the children laughed at the sight of it", "so that even the miller came out to look",
    "because no one could remember the tune", "while the kettle sang on the stove", "and she never spoke of it again",
    "in the hope of better weather", "though the ground was still hard", "and the bells began to ring across the water",
]
SHORT = ["Listen.", "Not yet.", "Come in, please.", "He shook his head.", "It was already late.", "What did she say?", "Nobody answered him.", "Good night, then."]
AGENT_OPEN = [
    "Sure, let me check that for you.", "Thanks for waiting.", "Good news, I found your booking.", "I'm sorry to hear that.", "Of course.",
    "One moment, please.", "That makes sense.", "All right, I have it here.", "Happy to help with that.", "Let me read that back to you.",
]
AGENT_BODY = [
    "Your train leaves at nine forty from platform six.", "The parcel was handed to a neighbour yesterday afternoon.",
    "I can move the appointment to Thursday morning if that suits you better.", "Your new card should arrive within three working days.",
    "The technician will call half an hour before the visit.", "There are two tables free at half past seven.",
    "I have changed the address on your account.", "The refund usually takes about a week to appear.",
    "It looks like the router lost its connection around noon.", "The museum is closed on Mondays, but the garden stays open.",
    "You have one suitcase of up to twenty kilos included.", "The pharmacy on the corner keeps that one in stock.",
]
AGENT_CLOSE = ["Is there anything else I can do?", "Would you like me to send a confirmation?", "Shall I go ahead?", "Does that work for you?", "", "", ""]


def sentence(rng, words):
    parts = [rng.choice(OPENINGS)]
    while sum(len(p.split()) for p in parts) < words:
        parts.append(rng.choice([t for t in TURNS + OPENINGS if t not in parts]))
    text = parts[0]
    for part in parts[1:]:
        text += ("; " if part in OPENINGS else ", ") + part
    return text[0].upper() + text[1:] + "."


def spoken(rng, text):
    seconds = len(text.split()) * SECONDS_PER_WORD * rng.uniform(0.85, 1.15)
    return {"text": text, "seconds": round(max(seconds, 0.48), 2)}


def nearest(rng, pool, count, mean, value, keep):
    """`count` lines of the pool, `keep` among them, exchanged one by one until their mean is the wanted one."""
    chosen = keep + rng.sample([line for line in pool if line not in keep], count - len(keep))
    for _ in range(20_000):
        off = mean * count - sum(map(value, chosen))
        at, new = rng.randrange(len(keep), count), rng.choice(pool)
        if new not in chosen and abs(off - (value(new) - value(chosen[at]))) < abs(off):
            chosen[at] = new
    rng.shuffle(chosen)
    return chosen


def scaled(lines, mean):
    factor = mean * len(lines) / sum(line["seconds"] for line in lines)
    return [{**line, "seconds": round(line["seconds"] * factor, 2)} for line in lines]


def write(name, lines):
    (OUT / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [len(line["text"].split()) for line in lines]
    seconds = sum(line["seconds"] for line in lines) / len(lines)
    print(f"{name}: {len(lines)} utterances, {min(words)} to {max(words)} words, mean {sum(words) / len(words):.1f}, {seconds:.2f} s")


def main():
    rng = random.Random(20)
    words = lambda line: len(line["text"].split())
    pool = [spoken(rng, text) for text in SHORT]
    pool += [spoken(rng, sentence(rng, min(rng.lognormvariate(2.75, 0.6), 64))) for _ in range(600)]
    longest = next(line for line in iter(lambda: spoken(rng, sentence(rng, 66)), None) if words(line) == 71)
    pool = [line for line in pool if words(line) <= 71]
    write("libritts", scaled(nearest(rng, pool, 120, 18.7, words, [pool[0], longest]), 7.8))
    brief = [line for line in pool if 4 <= words(line) <= 24]
    write("seed-tts", scaled(nearest(rng, brief, 100, 4.7 / SECONDS_PER_WORD, words, []), 4.7))
    turns = []
    for _ in range(80):
        body = rng.sample(AGENT_BODY, rng.choice([0, 1, 1, 1, 2]))
        turns.append(spoken(rng, " ".join(filter(None, [rng.choice(AGENT_OPEN), *body, rng.choice(AGENT_CLOSE)]))))
    write("agent-turns", turns)
    write("read-out", [spoken(rng, " ".join(sentence(rng, rng.uniform(6, 30)) for _ in range(rng.randint(6, 9)))) for _ in range(24)])


if __name__ == "__main__":
    main()
