"""How many streams the load generator carries, into docs/generator.json: alone against a tape, and beside a whole server with the
scripted engine on the same cores. The machine must be idle. Standard library only.

    VOXLANE_BINARY=target/release/voxlane python3 tests/bench/generator.py [tape] [server]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/generator.json"
BINARY = os.environ.get("VOXLANE_BINARY", str(ROOT / "target/release/voxlane"))
RUNS = 1
STREAMS = (500, 1000, 2000)
# Utterances of this many seconds arrive so fast that on average as many are under way as are asked for.
SECONDS = 20
CHARACTERS = 250
SERVED = ((500, "pcm"), (1000, "pcm"), (1500, "pcm"), (2000, "pcm"))


def tape():
    command = ["cargo", "bench", "--locked", "-p", "load", "--bench", "generator", "--", *map(str, STREAMS)]
    rows = []
    for _ in range(RUNS):
        load = os.getloadavg()[0]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        rows += [{**json.loads(line), "load": round(load, 1)} for line in done.stdout.splitlines() if line.startswith("{")]
    return {"command": " ".join(command[:7]), "rows": rows}


def served(streams, codec):
    """A server with the scripted engine and the generator on the same cores."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("script.toml", "tape.jsonl", "voxlane.toml", "report.json", "log")
        script, workload, config, report, log = (pathlib.Path(folder) / name for name in names)
        frames = SECONDS * 1000 / 80 / CHARACTERS
        script.write_text(f'frames_per_character = {frames}\nopen_max = 10000\n\n[[voices]]\nname = "tape"\nframe_ms = 8.0\n')
        workload.write_text(json.dumps({"text": ("la " * CHARACTERS)[:CHARACTERS - 1] + ".", "seconds": SECONDS}) + "\n")
        config.write_text("[server]\nsessions_max = 10000\n")
        # A pipe that nobody reads on would stop the server.
        with log.open("w") as written:
            server = subprocess.Popen([BINARY, "serve", "--config", str(config), "--engine", f"scripted:{script}", "--listen", "127.0.0.1:0", "--admin",
                                       "127.0.0.1:0"], stdout=written, stderr=subprocess.STDOUT)
        try:
            time.sleep(2)
            address = re.search(r"http://(127\.0\.0\.1:\d+)", log.read_text()).group(1)
            adapter = "native" if codec == "opus" else f"native+{codec}"
            begun, bench, busy, at = server_seconds(server.pid), ended_seconds(), machine_seconds(), time.monotonic()
            done = subprocess.run([BINARY, "bench", "--target", f"tape={adapter},http://{address}", "--workload", str(workload), "--rate", str(streams / SECONDS),
                                   "--window", "30s", "--json", str(report)], capture_output=True, text=True, timeout=300)
            took, busy, bench = time.monotonic() - at, machine_seconds() - busy, ended_seconds() - bench
            server_s = server_seconds(server.pid) - begun
            others = round(max(0, busy - server_s - bench) / took, 2)
            rate = json.loads(report.read_text())["targets"][0]["rates"][0]
            return {"streams": streams, "codec": codec, "cores": rate["generator_cpu"], "late_ms_p99": rate["generator_late_ms"], "no_stall": rate["no_stall"],
                    "completed": rate["completed"], "offered": rate["offered"], "ttfa_p99_ms": rate["ttfa_ms"]["p99"], "refused": sum(rate["refused_by"].values()),
                    "server_core_s": round(server_s, 2), "server_cores": round(server_s / took, 2), "others_cores": others, "is_the_limit": "is the limit" in done.stdout + done.stderr}
        finally:
            server.terminate()
            server.wait()


def server_seconds(pid):
    """Processor time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ended_seconds():
    """Processor time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def machine_seconds():
    """Processor time of everything on this machine so far."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def main():
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    for name in sys.argv[1:] or ["tape", "server"]:
        kept = json.loads(PAGE.read_text()) if PAGE.exists() else {}
        made = tape() if name == "tape" else {"rows": [served(*point) for point in SERVED]}
        kept[name] = {"commit": commit, "machine_cores": os.cpu_count(), **made}
        PAGE.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
