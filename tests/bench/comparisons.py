"""What simulate.py compares beside its answers: settings on seeds they were not chosen on, the card's profile with the card's own
runs, and how fast the simulator is. Standard library only."""

import json
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARD = "config/profiles/h200-1.7b.json"
# Searched with these seeds (first, how many), judged with those.
CHOSEN, FRESH = (100, 2), ((200, 5), (300, 5))
SETTINGS = {
    "limit 150 ms": "first_audio_limit_ms=150,steps_between_prefills=0",
    "limit 150 ms, two steps between prefills": "first_audio_limit_ms=150,steps_between_prefills=2",
    "limit 140 ms, two steps between prefills": "first_audio_limit_ms=140,steps_between_prefills=2",
}
PARTS = (0.9, 1.0, 1.3)
WITHOUT = {"partition": "partition=off", "urgent": "urgent=off", "async": "async=off", "deadlines": "policy=prefill-first", "riders": "ride_rows_max=0", "ahead": "lm_depth=1"}
RATES = (208, 240, 256, 264, 288, 304, 376)
# What some runs were served with before these became the profile's own limits: 140 ms, two steps.
THEN = {"first_audio_limit_ms": 150, "steps_between_prefills": 0}


def refused(rates):
    return sum(sum(rate["refused_by"].values()) for rate in rates) / max(sum(rate["offered"] for rate in rates), 1)


def fresh_seeds(simulator, profile, search):
    """Each setting at parts of its own capacity, on seeds that were not there when it was chosen."""
    sim = simulator(profile)
    rows = []
    for name, keys in SETTINGS.items():
        variant = f"{name}:{keys}"
        searched, _ = sim.run([variant], search, first=CHOSEN[0], seeds=CHOSEN[1], search=True)
        capacity = searched[name]["capacity"]["90"]
        parts = {part: [sim.rate([variant], capacity * part, first=first, seeds=seeds)[name][0] for first, seeds in FRESH] for part in PARTS}
        goodput = {part: statistics.fmean(rate["goodput"] for rate in rates) for part, rates in parts.items()}
        rows.append({
            "profile": pathlib.Path(profile).stem, "setting": name, "capacity": capacity,
            "refused_at_0.9": round(refused(parts[0.9]), 5), "refused_each": [round(refused([rate]), 5) for rate in parts[0.9]],
            "of_peak_at_1.3": round(goodput[1.3] / max(goodput.values()), 4),
            "ttfa_p99_ms_at_1.3": max(rate["ttfa_ms"]["p99"] for rate in parts[1.3]),
            "no_stall_at_1.3": round(statistics.fmean(rate["no_stall"] for rate in parts[1.3]), 5),
        })
    return {"window_s": sim.window, "chosen": CHOSEN, "fresh": FRESH, "rows": rows}


def under(profile, split):
    """The profile under another split that was measured with it."""
    whole = [stage for stage in profile["stages"] if stage["partition"] == "whole"]
    parts = {**profile["parts"], "lm": split["lm"], "background": split["background"]}
    return {**profile, "parts": parts, "stages": whole + split["stages"], "sharing": split["sharing"], "splits": [], "choice": None}


def brief(rate):
    return {"attained": rate["attainment"]["200"], "ttfa_p50_ms": rate["ttfa_ms"]["p50"], "ttfa_p99_ms": rate["ttfa_ms"]["p99"], "no_stall": rate["no_stall"]}


def card(simulator):
    """The card's own runs beside the same simulated, and what it loses without each part or under another split."""
    sim = simulator(CARD)
    measured = json.loads((ROOT / "docs/h200.json").read_text())["runs"]
    plain = [run for run in measured if run["workload"] == "libritts" and run["rate"] in RATES and (run.get("devices") or 1) == 1
             and not run.get("model", "").endswith("0.6b")]
    rows = []

    def add(profile_sim, name, keys, split, without, limits=None):
        limits = limits or {}
        variant = ":".join(filter(None, (name, ",".join([*(f"{key}={value}" for key, value in limits.items()), *([keys] if keys else [])]))))
        row = {"name": name, "split": split, "without": without, "set": limits, "simulated": {}, "measured": {}}
        for rate in RATES:
            row["simulated"][str(rate)] = brief(profile_sim.rate([variant], rate, seeds=1)[name][0])
            runs = [run for run in plain if run["rate"] == rate and run["split"] == split and (run.get("without") or "") == without
                    and (run.get("set") or {}) == limits]
            if runs:
                best = max(runs, key=lambda run: run["window_s"])
                row["measured"][str(rate)] = {**brief(best), "window_s": best["window_s"]}
        rows.append(row)

    profile = json.loads((ROOT / CARD).read_text())
    served = (profile["parts"]["lm"], profile["parts"]["background"])
    for limits in ({}, THEN):
        add(sim, "nothing", "", "/".join(map(str, served)), "", limits)
    for name, keys in WITHOUT.items():
        add(sim, name, keys, "/".join(map(str, served)), name)
    with tempfile.TemporaryDirectory() as folder:
        for split in profile["splits"]:
            lm, background = split["lm"], split["background"]
            if (lm, background) != served:
                other = pathlib.Path(folder) / f"{lm}-{background}.json"
                other.write_text(json.dumps(under(profile, split)))
                for limits in ({}, THEN) if (lm, background) == (84, 48) else ({},):
                    add(simulator(str(other)), "nothing", "", f"{lm}/{background}", "", limits)
    return {"window_s": sim.window, "rows": rows}


def speed(binary):
    """Virtual against wall time, the process's start and its reading of the workload included."""
    points = [("h100-published", "libritts", "48", 1), (CARD, "libritts", "112", 1), ("config/profiles/tiny-2-cores.json", "seed-tts", "7", 1),
              ("h100-published", "libritts", "40:4:56", 8)]
    rows = []
    for profile, workload, rates, seeds in points:
        command = ["voxlane", "simulate", "--profile", profile, "--workload", workload, "--rate", rates, "--window", "60s", "--seeds", str(seeds)]
        walls = []
        for _ in range(5 if seeds == 1 else 3):
            with tempfile.TemporaryDirectory() as folder:
                begun = time.monotonic()
                subprocess.run([binary, *command[1:], "--json", f"{folder}/report.json"], check=True, capture_output=True, cwd=ROOT)
                walls.append(time.monotonic() - begun)
                made = json.loads(pathlib.Path(f"{folder}/report.json").read_text())["targets"][0]["rates"]
        virtual = len(made) * seeds * virtual_s(60)
        wall = statistics.median(walls)
        rows.append({"command": " ".join(command), "virtual_s": virtual, "wall_s": round(wall, 3), "wall_s_least": round(min(walls), 3),
                     "times": round(virtual / wall), "times_most": round(virtual / min(walls))})
    return rows


def virtual_s(window):
    """A window and its lead-in."""
    return window + min(window / 3, 10)
