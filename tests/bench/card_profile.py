"""The stage costs of docs/h200.json as a profile to simulate with. Standard library only; render.py writes and checks it.

What that file does not hold (host costs, sharing, prompt shape, and how decode grows with its position) is kept from the profile as
it stands, and said in its guesses.
"""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILE = ROOT / "config/profiles/h200-1.7b.json"
# Where decode stands in the stages that docs/h200.json times (engine/cuda/examples/stages.rs).
POSITION = 100
GUESSES = [
    "host: 25 us a packet beside its encoding, 2500 us a request, 150 us between launches and 1500 us from a chunk to the listener",
    "decode: its growth with the position was measured with an earlier version's kernels",
    "sharing: beside urgent work the lanes keep half of their speed; what else they cost each other is what launches took inside a full window beside what they take alone",
    "decode of more than 256 rows goes on with the slope from 192 to 256, with prompts too; numbers of rows and prompts that were not timed lie on straight lines between those that were",
]
# As the serving runs of docs/h200.json had them.
LIMITS = {"slots": 1024, "open_max": 2048, "pages": 8192, "first_audio_limit_ms": 150, "ride_rows_max": 512, "ride_tokens_max": 256, "lm_depth": 2, "lm_ahead_us": 1500}


def between(xs: list[int], ys: list[float], x: int) -> float:
    """On straight lines between the points; flat beyond the first and the last."""
    if x <= xs[0]:
        return ys[0]
    for (x0, y0), (x1, y1) in zip(zip(xs, ys), zip(xs[1:], ys[1:])):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[-1]


def row_buckets(least: int, most: int) -> list[int]:
    """As engine/device has them: doubling up to 8, then by a quarter of the power below."""
    found, rows = [], least
    while rows < most:
        found.append(rows)
        rows += rows if rows < 8 else (1 << (rows.bit_length() - 1)) // 4
    return [*found, most]


def decode(data: dict, old: dict, partition: str) -> dict | None:
    timed = sorted((row["batch"], row["micros"]) for row in data["stages"] if row["stage"] == "decode" and row["partition"] == partition)
    if not timed:
        return None
    rows, lengths = [batch for batch, _ in timed], old["lengths"]
    grid = [old["micros"][at * len(lengths):(at + 1) * len(lengths)] for at in range(len(old["rows"]))]
    micros = []
    for batch, took in timed:
        growth = [round(between(old["rows"], [line[at] - line[0] for line in grid], batch)) for at in range(len(lengths))]
        first = round(took - between(lengths, growth, POSITION))
        micros += [first + more for more in growth]
    return {"stage": "decode", "partition": partition, "rows": rows, "lengths": lengths, "micros": micros}


def codec(data: dict, partition: str) -> dict:
    timed = {(row["batch"], row["length"]): row["micros"] for row in data["stages"] if row["stage"] == "codec" and row["partition"] == partition}
    rows, lengths = sorted({batch for batch, _ in timed}), sorted({length for _, length in timed})
    return {"stage": "codec", "partition": partition, "rows": rows, "lengths": lengths,
            "micros": [timed[batch, length] for batch in rows for length in lengths]}


def prefill(data: dict) -> dict:
    timed = sorted((row["batch"] * row["length"], row["micros"]) for row in data["stages"] if row["stage"] == "prefill" and row["partition"] == "whole")
    return {"stage": "prefill", "partition": "whole", "rows": [1], "lengths": [positions for positions, _ in timed], "micros": [took for _, took in timed]}


def rides(data: dict) -> dict | None:
    """Prompts with riders: each number of prompts adds to a step what it was timed to add, between numbers of rows on straight lines."""
    timed = {(row["batch"], row["prompts"]): (row["micros"], row["length"]) for row in data["stages"] if "prompts" in row}
    if not timed:
        return None
    each = next(iter(timed.values()))[1]
    step = sorted((row["batch"], row["micros"]) for row in data["stages"] if row["stage"] == "decode" and row["partition"] == "lm")
    rows, prompts = sorted({batch for batch, _ in timed}), sorted({count for _, count in timed})
    alone = {batch: between([at for at, _ in step], [took for _, took in step], batch) for batch in rows}
    micros = []
    for batch in rows:
        added = 0
        for count in prompts:
            known = [(at, timed[at, count][0] - alone[at]) for at in rows if (at, count) in timed]
            added = max(added, between([at for at, _ in known], [more for _, more in known], batch))
            micros.append(round(alone[batch] + added))
    return {"stage": "prefill", "partition": "lm", "rows": rows, "lengths": [count * each for count in prompts], "micros": micros}


def parts(data: dict, old: dict) -> dict:
    lm, background = map(int, re.findall(r"\d+", data["split"])[:2])
    return {**old, "lm": lm, "background": background}


def sharing(data: dict, old: dict) -> dict:
    """What lanes keep beside each other: the largest launches alone against the same inside the busiest full window under the same split."""
    split = "/".join(re.findall(r"\d+", data["split"])[:2])
    runs = [run for run in data["runs"] if run["split"] == split and run["window_s"] >= 60 and run.get("launches")]
    busiest = max(runs, key=lambda run: run["rate"] * (run["workload"] == "libritts"), default=None)
    if not busiest:
        return old

    def kept(stage: str, partition: str, rows: int, length: int | None) -> float:
        alone = next(row["micros"] for row in data["stages"] if (row["stage"], row["partition"], row["batch"], row.get("length")) == (stage, partition, rows, length))
        served = next(row["p50"] for row in busiest["launches"] if (row["stage"], row["lane"], row["rows"], row["frames"]) == (stage, partition, rows, length or 0))
        return round(min(1.0, alone / 1000 / served), 3)

    lm, background = kept("decode", "lm", 256, None), kept("codec", "background", 64, 10)
    return {**old, "lm_beside_background": lm, "background_beside_lm": background, "whole_beside_background": lm, "background_beside_whole": background}


def made(data: dict, profile: dict) -> dict:
    """`profile` with the stages of docs/h200.json."""
    old = next(stage for stage in profile["stages"] if stage["stage"] == "decode" and stage["partition"] == "lm")
    stages = [decode(data, old, "lm"), decode(data, old, "whole"), prefill(data), rides(data), codec(data, "background"), codec(data, "whole")]
    return {**profile, "device": f"{data['card']}, bf16, random weights: {data['split']}; stages of commit {data['commit_stages']}",
            "guesses": GUESSES, "sharing": sharing(data, profile["sharing"]), "parts": parts(data, profile["parts"]), "limits": {**profile["limits"], **LIMITS},
            "decode_buckets": row_buckets(1, LIMITS["slots"]), "codec_buckets": row_buckets(1, 64), "stages": [stage for stage in stages if stage]}


def text() -> str:
    data = json.loads((ROOT / "docs/h200.json").read_text())
    return json.dumps(made(data, json.loads(PROFILE.read_text())), indent=2) + "\n"
