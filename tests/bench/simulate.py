"""Answers the questions of docs/performance.md by simulation and writes docs/simulated.json. Standard library only.

    VOXLANE_BINARY=target/release/voxlane python3 tests/bench/simulate.py [PROFILE...|fresh|card|speed]

Each profile (a name or a file of voxlane profile) is simulated alike: capacity first, then everything at parts of it. The other words are
the comparisons of comparisons.py.
"""

import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import comparisons

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("VOXLANE_BINARY", str(ROOT / "target/release/voxlane"))
# What every run has in common: seconds of a window, seeds, seeds of the paired comparison.
SHAPE = (60, 3, 10)
MIXES = {
    "steady": [],
    "half jittery": ["jitter=0.5"],
    "a third paused": ["paused=0.33"],
    "mixed": ["jitter=0.3", "paused=0.2", "slow-start=0.1", "barge-in=0.1"],
}
# Student's t for 95% on both sides, by degrees of freedom.
T95 = {9: 2.262, 10: 2.228, 11: 2.201, 14: 2.145, 19: 2.093}


class Simulator:
    def __init__(self, profile):
        self.profile = profile
        self.window, self.seeds, self.pairs = SHAPE
        self.virtual = self.wall = 0.0

    def run(self, variants, rates, *, moods=(), seeds=None, first=0, search=False):
        """The report's targets by name, and the decisions."""
        seeds = seeds or self.seeds
        with tempfile.TemporaryDirectory() as folder:
            out, log = f"{folder}/report.json", f"{folder}/decisions.json"
            command = [BINARY, "simulate", "--profile", self.profile, "--workload", "libritts", "--search" if search else "--rate", rates,
                       "--window", f"{self.window}s", "--seeds", str(seeds), "--first-seed", str(first), "--json", out, "--decisions", log]
            for variant in variants:
                command += ["--variant", variant]
            for mood in moods:
                command += ["--mood", mood]
            begun = time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            self.wall += time.monotonic() - begun
            report = json.loads(pathlib.Path(out).read_text())
            targets = {target["name"]: target for target in report["targets"]}
            for target in targets.values():
                self.virtual += sum(comparisons.virtual_s(rate["window_s"]) * seeds for rate in target["rates"])
            return targets, json.loads(pathlib.Path(log).read_text())

    def rate(self, variants, rate, **more):
        targets, log = self.run(variants, f"{rate:.4g}", **more)
        return {name: (target["rates"][0], log[name][0]) for name, target in targets.items()}


def past_capacity(sim, capacity):
    """Goodput and first audio of those let in, at parts of capacity, by admission policy and limit."""
    variants = {
        "automatic, limit 2000 ms": "policy=automatic,first_audio_limit_ms=2000",
        "deadline-aware, limit 2000 ms": "policy=deadline-aware,first_audio_limit_ms=2000",
        "prefill-first, limit 2000 ms": "policy=prefill-first,first_audio_limit_ms=2000",
        "automatic, limit 200 ms": "first_audio_limit_ms=200",
        "automatic, limit 150 ms": "first_audio_limit_ms=150",
        "two steps between prefills, limit 150 ms": "first_audio_limit_ms=150,steps_between_prefills=2",
        "prefill-first, limit 150 ms": "policy=prefill-first,first_audio_limit_ms=150",
    }
    rows = []
    for part in (0.9, 1.0, 1.1, 1.3, 1.6):
        results = sim.rate([f"{name}:{keys}" for name, keys in variants.items()], capacity * part)
        for name, (rate, _) in results.items():
            rows.append({"policy": name, "part": part, "rate": rate["rate"], "goodput": rate["goodput"], "attained": rate["attainment"]["200"],
                         "ttfa_p99_ms": rate["ttfa_ms"]["p99"], "refused": round(comparisons.refused([rate]), 4), "no_stall": rate["no_stall"]})
    for name in variants:
        own = [row for row in rows if row["policy"] == name]
        peak = max(row["goodput"] for row in own)
        for row in own:
            row["of_peak"] = round(row["goodput"] / peak, 3) if peak else 0.0
    return rows


def interval(values):
    """Mean and half of a 95% interval."""
    mean = statistics.fmean(values)
    half = T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return round(mean, 5), round(half, 5)


def reports(sim, capacity):
    """Reports on against off, same seeds, near capacity."""
    rows = []
    for name, moods in MIXES.items():
        for part in (0.9, 1.05):
            attained, stalls, counters = [], [], {"on": {}, "off": {}}
            for seed in range(sim.pairs):
                both = sim.rate(["on", "off:reports=off"], capacity * part, moods=moods, seeds=1, first=seed)
                (on, log_on), (off, log_off) = both["on"], both["off"]
                attained.append(on["attainment"]["200"] - off["attainment"]["200"])
                stalls.append(1000 * (on["stall_s"] / on["offered"] - off["stall_s"] / off["offered"]))
                for side, log in (("on", log_on), ("off", log_off)):
                    for key in ("chunks_late", "promotions", "deferrals_to_cap"):
                        counters[side][key] = counters[side].get(key, 0) + log[key]
                    urgent = sum(count for reason, count in log["launches_by_reason"].items() if reason.startswith("urgent"))
                    counters[side]["urgent_launches"] = counters[side].get("urgent_launches", 0) + urgent
            rows.append({"mix": name, "part": part, "attained_difference": interval(attained), "stall_ms_difference": interval(stalls),
                         "decisions": counters})
    return rows


def settings(sim, capacity):
    """One setting at a time, at parts of capacity."""
    groups = {
        "ladder": {"2, 4, 10": "shortest_chunk=2", "4, 10": "shortest_chunk=4", "10": "shortest_chunk=10"},
        "urgent lane": {"on": "urgent=on", "off": "urgent=off"},
        "background batch (B)": {str(b): f"background_batch={b}" for b in (1, 2, 4, 8, 16)},
        "urgent margin": {f"{ms} ms": f"urgent_margin_ms={ms}" for ms in (25, 50, 100, 200)},
    }
    rows = []
    for group, variants in groups.items():
        for part in (0.7, 0.9, 1.0, 1.1):
            results = sim.rate([f"{name}:{keys}" for name, keys in variants.items()], capacity * part)
            for name, (rate, log) in results.items():
                rows.append({"setting": group, "value": name, "part": part, "ttfa_p50_ms": rate["ttfa_ms"]["p50"], "ttfa_p99_ms": rate["ttfa_ms"]["p99"],
                             "no_stall": rate["no_stall"], "attained": rate["attainment"]["200"], "goodput": rate["goodput"],
                             "chunks_late": log["chunks_late"]})
    return rows


def answers(profile):
    sim = Simulator(profile)
    high = 90 if pathlib.Path(profile).stem == "h100-published" else 12
    searched, _ = sim.run(["plain"], f"{high / 16}:{high}", search=True)
    capacity = searched["plain"]["capacity"]
    print(f"{profile}: capacity {capacity}", flush=True)
    at = max(capacity["90"], 0.1)
    answer = {"profile": pathlib.Path(profile).stem, "window_s": sim.window, "seeds": sim.seeds, "pairs": sim.pairs, "capacity": capacity}
    for name, question in (("past_capacity", past_capacity), ("reports", reports), ("settings", settings)):
        answer[name] = question(sim, at)
        print(f"{profile}: {name}, {sim.wall:.0f} s", flush=True)
    answer["times_faster_than_real_time"] = round(sim.virtual / sim.wall)
    return answer


def main():
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return
    wanted = sys.argv[1:] or ["speed", "fresh", "card", "h100-published", "config/profiles/tiny-2-cores.json"]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    page = ROOT / "docs/simulated.json"
    for name in wanted:
        begun = time.monotonic()
        kept = json.loads(page.read_text()) if page.exists() else {"answers": []}
        if name == "speed":
            kept["speed"] = {"commit": commit, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "rows": comparisons.speed(BINARY)}
        elif name == "fresh":
            profiles = (("h100-published", "20:90"), (comparisons.CARD, "150:400"))
            made = [comparisons.fresh_seeds(Simulator, profile, search) for profile, search in profiles]
            kept["fresh"] = {"commit": commit, **made[0], "rows": [row for one in made for row in one["rows"]]}
        elif name == "card":
            kept["card"] = {"commit": commit, **comparisons.card(Simulator)}
        else:
            answer = {"commit": commit, **answers(name)}
            kept["answers"] = [other for other in kept["answers"] if other["profile"] != answer["profile"]] + [answer]
        page.write_text(json.dumps({**kept, "command": "python3 tests/bench/simulate.py"}, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
