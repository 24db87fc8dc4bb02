"""Runs the figures of docs/performance.md and writes docs/performance.json. Standard library only.

Environment: VOXLANE_BINARY, FIGURES (the load driver), REFERENCE_PYTHON (with the reference package).
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
sys.path.append(str(ROOT / "tests/clients"))
from server import answers, free_port  # noqa: E402

RUNS = int(os.environ.get("VOXLANE_BENCH_RUNS", "3"))
SENTENCES = os.environ.get("VOXLANE_BENCH_SENTENCES", "8")


class Server:
    """The binary under test, and how long it took to become ready."""

    def __init__(self, *extra):
        self.port, self.admin = free_port(), free_port()
        command = [os.environ["VOXLANE_BINARY"], "serve", "--listen", f"127.0.0.1:{self.port}"]
        started = time.monotonic()
        self.process = subprocess.Popen([*command, "--admin", f"127.0.0.1:{self.admin}", *extra],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not answers(f"http://127.0.0.1:{self.admin}/readyz"):
            assert self.process.poll() is None and time.monotonic() < started + 30, "the server did not become ready"
            time.sleep(0.01)
        self.ready_s = time.monotonic() - started

    def figures(self, *what, token=None):
        what = [*(["--token", token] if token else []), *what]
        command = [os.environ["FIGURES"], "--server", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}",
                   "--pid", str(self.process.pid), *what]
        before = stolen()
        printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        taken, passed = (after - earlier for after, earlier in zip(stolen(), before))
        return printed | {"stolen_percent": round(100 * taken / passed, 2)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=20)


def stolen():
    """Time the host of a virtual machine took from all cores, and all time, in ticks (proc(5), /proc/stat)."""
    ticks = [int(field) for field in open("/proc/stat").readline().split()[1:]]
    return ticks[7], sum(ticks[:8])


def reference_speed():
    command = [os.environ["REFERENCE_PYTHON"], "tests/parity/speed.py", "--tiny", "config/models/tiny", "--sentences", SENTENCES]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return json.loads(printed.strip().splitlines()[-1])  # the package prints a banner of its own first


def median(values):
    return statistics.median(values)


def measure():
    raw = {"reference": [reference_speed()], "model": [], "share": []}
    for _ in range(RUNS):
        with Server() as server:
            raw["model"].append({"ready_s": server.ready_s, **server.figures("alone", "concurrent", "throughput")})
    for _ in range(RUNS):
        with Server("--engine", "scripted") as server:
            raw["share"].append(server.figures("share"))
    raw |= {"voices": voices(), "guarded": guarded()}
    raw["reference"].append(reference_speed())
    return raw


def voices():
    with Server() as server:
        return server.figures("voices")["voices"]


def guarded():
    """A server with keys: its share of first audio, and what an idle session of a token's takes."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "keys.toml")
        secret = "a secret that is used for this measurement only"
        pathlib.Path(folder, "secret").write_text(secret)
        config.write_text(f'[server]\nsessions_max = 6000\nconnections_max = 8000\n[auth]\nsecret_file = "{folder}/secret"\n')
        command = [os.environ["VOXLANE_BINARY"], "token", "--subject", "bench", "--ttl", "1h", "--key", f"{folder}/secret"]
        token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        with Server("--engine", "scripted", "--config", str(config)) as server:
            measured = server.figures("share", token=token)
        # A fresh one: what sessions that spoke have left behind is not an idle session's.
        with Server("--engine", "scripted", "--config", str(config)) as server:
            return measured | server.figures("idle", token=token)


def figure(name, goal, met, measured, limit=""):
    return {"name": name, "goal": goal, "met": bool(met), "measured": measured, "limit": limit}


def summary(raw):
    runs = raw["model"]
    alone = median(r["alone"]["first_sound_ms"]["p50"] for r in runs)
    streams = [r["concurrent"]["results"][0] for r in runs]
    stalled = max(s["stalled_streams"] for s in streams)
    peak = median(r["concurrent"]["resident_mib"]["peak"] for r in runs)
    ready = median(r["ready_s"] for r in runs)
    ours = median(r["throughput"]["audio_seconds_per_second"] for r in runs)
    reference = median(r["audio_per_wall"] for r in raw["reference"])
    share = median(r["share"]["first_packet_ms"]["p99"] for r in raw["share"])
    return [
        figure("first audio alone, p50", "150 ms", alone <= 150, f"{alone:.0f} ms",
               "one prefill and two decode steps on the lm cores, one codec call of two frames on all of them"),
        figure(f"{streams[0]['streams']} real-time streams, those with a stall", "0", stalled == 0, f"{stalled} (worst of {RUNS} runs)",
               "the lm core: one decode step of all streams must fit into 80 ms beside prefills and urgent work"),
        figure("audio seconds a second, 8 contexts, against the reference package one at a time", "10 times",
               ours >= 10 * reference, f"{ours:.1f} against {reference:.2f}: {ours / reference:.1f} times",
               "arithmetic of decode and codec in f32; see the floors below"),
        figure("resident memory with these streams, peak", "400 MiB", peak <= 400, f"{peak:.0f} MiB",
               "weights in f32, and the embedded checkpoint's own pages while it is read"),
        figure("start to ready", "2 s", ready <= 2, f"{ready:.2f} s", "widening and packing weights, four voices encoded, stages measured"),
        figure("gateway's share of first audio, 200 sessions, p99", "5 ms", share <= 5, f"{share:.1f} ms",
               f"two cores shared with the load driver, and with whoever else uses the machine: its host took "
               f"{median(r['stolen_percent'] for r in raw['share']):.1f}% of their time"),
    ]


def clients(raw):
    """What clients' voices, tokens and idle sessions cost, each measured once."""
    clips, guarded = raw["voices"], raw["guarded"]
    with_keys, idle = guarded["share"]["first_packet_ms"]["p99"], guarded["idle"]["kib_per_socket"]
    speaker, context = (clips[mode]["encodes_per_second"] for mode in ("speaker", "in_context"))
    kept = clips["in_context"]["answer_again_ms"]["p50"]
    # A clip that is kept makes no encode: the driver refuses any other answer.
    per_second = f"{speaker:.1f} by speaker, {context:.1f} in context"
    return [
        figure("the same with tokens checked", "5 ms", with_keys <= 5, f"{with_keys:.1f} ms", "as above; a token is checked once a session"),
        figure("memory of an idle session with a token, 5,000 sockets", "12 KiB", idle <= 12, f"{idle:.1f} KiB",
               "three tasks, their queues, and the buffers of HTTP and WebSocket"),
        figure("clips encoded a second, one after the other", "1", min(speaker, context) >= 1, per_second,
               "one lm core; other streams' steps go before an encode's"),
        figure("answer with a clip that is kept: encodes, and p50 of a one-word answer", "0 encodes", True, f"0, {kept:.0f} ms",
               "reading the upload, its hash, and the speech itself"),
    ]


def main():
    path = ROOT / "docs/performance.json"
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    if "--clients" in sys.argv[1:]:
        # The rest stays as it was measured, where it was measured.
        data = json.loads(path.read_text())
        raw = {"voices": voices(), "guarded": guarded()}
        data["raw"] |= raw
    else:
        raw = measure()
        data = {
            "command": "make bench",
            "commit": commit,
            "date": datetime.date.today().isoformat(),
            "host": {"cores": len(os.sched_getaffinity(0)), "cpu": cpu},
            "runs": RUNS,
            "figures": summary(raw),
            "raw": raw,
        }
    data["clients"] = {"commit": commit, "date": datetime.date.today().isoformat(), "figures": clients(raw)}
    path.write_text(json.dumps(data, indent=1) + "\n")
    for row in data["figures"] + data["clients"]["figures"]:
        print(f"{'met   ' if row['met'] else 'MISSED'} {row['name']}: {row['measured']} (goal {row['goal']})")


if __name__ == "__main__":
    main()
