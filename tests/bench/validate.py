"""Compares simulated with measured capacity on this machine's CPU and writes docs/validation.json. Standard library only.

    VOXLANE_BINARY=target/release/voxlane python3 tests/bench/validate.py [RUNS]

The machine must be otherwise idle: the profile is of undisturbed stages, and so must the run be. Some 11 minutes with three
runs: the prediction comes first and says between which rates capacity is searched. What was found is written after every run.
"""

import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/bench"))
from measure import Server  # noqa: E402

BINARY = os.environ.setdefault("VOXLANE_BINARY", str(ROOT / "target/release/voxlane"))
WORKLOAD, WINDOW = "seed-tts", os.environ.get("VOXLANE_VALIDATE_WINDOW", "20s")
# Where the prediction is searched, and what part of it the measurement is searched between: a search goes on below or
# above by itself where capacity is not between them.
BOUNDS, AROUND = "0.5:16", (0.7, 1.3)
GOAL = 0.15


def search(command, seed, bounds):
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/report.json"
        command = [BINARY, *command, "--workload", WORKLOAD, "--search", bounds, "--window", WINDOW, "--first-seed", str(seed),
                   "--exact-frames", "--json", out]
        run = subprocess.run(command, stdout=subprocess.DEVNULL)
        # A run that lost something says so and is shown, but is no measurement.
        text = pathlib.Path(out).read_text() if pathlib.Path(out).exists() else ""
        report = json.loads(text) if text.strip() else {}
        assert run.returncode == 0, f"{' '.join(command)} ended with {run.returncode}: {report.get('notes', 'no report')}"
        return report["targets"][0] | {"notes": report.get("notes", [])}


def busy_cores(before, after):
    """Cores that everything on this machine kept busy between two readings."""
    (at, busy), (then, later) = before, after
    return (later - busy) / os.sysconf("SC_CLK_TCK") / (then - at)


def reading():
    ticks = [int(field) for field in open("/proc/stat").readline().split()[1:9]]
    return time.monotonic(), sum(ticks) - ticks[3] - ticks[4]


def page(measured, predicted, profile, idle):
    each = {name: [target["capacity"]["90"] for target in targets] for name, targets in (("measured", measured), ("predicted", predicted))}
    middle = {name: statistics.median(values) for name, values in each.items()}
    off = middle["predicted"] / middle["measured"] - 1 if middle["measured"] else None
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    return {
        "command": "make validate",
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "machine": f"{len(os.sched_getaffinity(0))} cores ({cpu}), shared by server and generator; {idle:.2f} cores busy before",
        "how": f"searched with windows of {WINDOW}, {WORKLOAD}, median of {len(measured)}",
        "capacity_each": each,
        "capacity": middle,
        "off": off,
        "goal": GOAL,
        "met": off is not None and abs(off) <= GOAL,
        "measured": measured,
        "predicted": predicted,
        "profile": "of this very run",
        "profile_file": json.loads(profile.read_text()),
    }


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    before = reading()
    time.sleep(3)
    idle = busy_cores(before, reading())
    begun = time.monotonic()
    profile = ROOT / "target/validated-profile.json"
    subprocess.run([BINARY, "profile", "--out", str(profile)], check=True)
    print(f"profiled in {time.monotonic() - begun:.0f} s", flush=True)
    predicted = [search(["simulate", "--profile", str(profile)], seed, BOUNDS) for seed in range(runs)]
    middle = statistics.median(target["capacity"]["90"] for target in predicted)
    print(f"predicted: {[target['capacity'] for target in predicted]} after {time.monotonic() - begun:.0f} s", flush=True)
    assert middle > 0, "the simulation found no rate that holds: was the machine idle while it was profiled?"
    bounds = ":".join(f"{middle * part:.3g}" for part in AROUND)
    measured = []
    with Server("--bench") as server:
        for seed in range(runs):
            measured.append(search(["bench", "--target", f"voxlane=native,ws://127.0.0.1:{server.port}"], seed, bounds))
            found = page(measured, predicted, profile, idle)
            (ROOT / "docs/validation.json").write_text(json.dumps(found, indent=1) + "\n")
            print(f"measured: {measured[-1]['capacity']} after {time.monotonic() - begun:.0f} s", flush=True)
    capacity, off = found["capacity"], found["off"]
    print(f"capacity at 90%: measured {capacity['measured']}, predicted {capacity['predicted']}, "
          + (f"off by {100 * off:+.1f}% (goal {100 * GOAL:.0f}%)" if off is not None else "nothing held"))
    if not found["met"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
