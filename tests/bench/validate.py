"""Compares simulated with measured capacity on this machine's CPU and writes docs/validation.json. Standard library only.

    VOXLANE_BINARY=target/release/voxlane python3 tests/bench/validate.py [RUNS]

The machine must be otherwise idle: the profile is of undisturbed stages, and so must the run be.
"""

import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/bench"))
from measure import Server  # noqa: E402

BINARY = os.environ.setdefault("VOXLANE_BINARY", str(ROOT / "target/release/voxlane"))
WORKLOAD, WINDOW, BOUNDS = "seed-tts", os.environ.get("VOXLANE_VALIDATE_WINDOW", "30s"), os.environ.get("VOXLANE_VALIDATE_BOUNDS", "0.5:8")
GOAL = 0.15


def search(command, seed):
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/report.json"
        command = [BINARY, *command, "--workload", WORKLOAD, "--search", BOUNDS, "--window", WINDOW, "--first-seed", str(seed),
                   "--exact-frames", "--json", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(pathlib.Path(out).read_text())["targets"][0]


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    load_before = os.getloadavg()[0]
    profile = ROOT / "target/validated-profile.json"
    subprocess.run([BINARY, "profile", "--out", str(profile)], check=True)
    measured = []
    with Server("--bench") as server:
        for seed in range(runs):
            measured.append(search(["bench", "--target", f"voxlane=native,ws://127.0.0.1:{server.port}"], seed))
            print(f"measured: {measured[-1]['capacity']}", flush=True)
    predicted = [search(["simulate", "--profile", str(profile)], seed) for seed in range(runs)]
    each = {name: [target["capacity"]["90"] for target in targets] for name, targets in (("measured", measured), ("predicted", predicted))}
    middle = {name: statistics.median(values) for name, values in each.items()}
    off = middle["predicted"] / middle["measured"] - 1 if middle["measured"] else None
    page = {
        "command": "python3 tests/bench/validate.py",
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "machine": f"{len(os.sched_getaffinity(0))} cores, load average {load_before:.1f} before",
        "how": f"searched with windows of {WINDOW}, {WORKLOAD}",
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
    (ROOT / "docs/validation.json").write_text(json.dumps(page, indent=1) + "\n")
    print(f"capacity at 90%: measured {middle['measured']}, predicted {middle['predicted']}, off by {off}")


if __name__ == "__main__":
    main()
