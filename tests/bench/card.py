"""Runs the figures of a card and writes each, as it comes, into docs/h200.json (or --out). Standard library only.

    VOXLANE_BINARY=target/release/voxlane python3 tests/bench/card.py --list
    VOXLANE_BINARY=... python3 tests/bench/card.py capacity seed-tts ablation:*

A point is one server, and one rate after another on it; after each, what launches have taken since the start is read from its metrics. Server and
generator get cores of their own (--server-cores, --generator-cores). One that fails is said and left out; the others go on.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/clients"))
import render  # noqa: E402
from server import answers, free_port  # noqa: E402

LARGE, SMALL = "qwen3-tts-1.7b", "qwen3-tts-0.6b"
LIBRI, SEED = "libritts", "seed-tts"
# SMs of the lm and the background lane that are compared with the default, 76/56.
SPLITS = ["116/16", "100/32", "84/48", "68/64", "60/72", "44/88"]
PARTS = ["partition", "urgent", "async", "deadlines", "riders", "ahead"]


def point(workload, rates, window, *, model=LARGE, without="", devices=1, engine=None):
    return {"workload": workload, "rates": rates, "window": window, "model": model, "without": without, "devices": devices,
            "engine": engine or {}}


POINTS = {
    **{f"low:{rate}": point(LIBRI, [rate], 20) for rate in (1, 10)},
    **{f"capacity:{rate}": point(LIBRI, [rate], 60) for rate in (256, 264, 288, 304)},
    **{f"seed-tts:{rate}": point(SEED, [rate], 60) for rate in (320, 400)},
    "overload": point(LIBRI, [376], 60),
    "small": point(LIBRI, [288, 320], 60, model=SMALL),
    "two": point(LIBRI, [544, 576], 60, devices=2),
    # Contexts gather for half a minute: windows of 12 s had shown all well where 60 s refused.
    **{f"ablation:{part}": point(LIBRI, [240, 288], 40, without=part) for part in PARTS},
    **{f"split:{split}": point(LIBRI, [240, 288], 40, engine={"split": split}) for split in SPLITS},
}


def seconds(one):
    """About how long a point takes: a start, and for each rate its window, the burst before it and the stragglers."""
    return 15 + len(one["rates"]) * (one["window"] + 20)


def serve(one, options, folder):
    config = pathlib.Path(folder, "card.toml")
    lines = [f"{name} = {json.dumps(value)}" for name, value in one["engine"].items()]
    config.write_text("\n".join(["[engine]", *lines]) + "\n")
    port, admin = free_port(), free_port()
    device = options.device if one["devices"] == 1 else ",".join(f"cuda:{n}" for n in range(one["devices"]))
    # A CPU speaks the embedded model: for trying this script.
    weights = [] if options.device.startswith("cpu") else ["--random-weights", one["model"], "--max-contexts", "1024"]
    without = ["--without", one["without"]] if one["without"] else []
    command = [*options.pin(options.server_cores), options.binary, "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
               "--config", str(config), "--device", device, *weights, *without, "--bench"]
    log = open(pathlib.Path(folder, "serve.log"), "w")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    began = time.monotonic()
    while not answers(f"http://127.0.0.1:{admin}/readyz"):
        if process.poll() is not None or time.monotonic() > began + 120:
            process.kill()
            raise RuntimeError(f"the server did not become ready:\n{pathlib.Path(folder, 'serve.log').read_text()[-2000:]}")
        time.sleep(0.05)
    return process, port, admin, time.monotonic() - began


def launches(metrics):
    """What launches took, from the server's own metrics: rows of stage, lane, frames, rows, count, p50 and p99 in ms."""
    found = {}
    for line in metrics.splitlines():
        name, _, rest = line.partition("{")
        if name not in ("voxlane_engine_launch_seconds", "voxlane_engine_launch_seconds_count"):
            continue
        labels, _, value = rest.partition("} ")
        labels = dict(pair.split("=", 1) for pair in labels.replace('"', "").split(","))
        quantile = labels.pop("quantile", None)
        key = {"0.5": "p50", "0.99": "p99", None: "count"}[quantile]
        shape = (labels["stage"], labels["lane"], int(labels["frames"]), int(labels["rows"]))
        found.setdefault(shape, {})[key] = int(value) if quantile is None else round(float(value) * 1000, 3)
    return [dict(zip(("stage", "lane", "frames", "rows"), shape)) | figures for shape, figures in sorted(found.items())]


def host_us(metrics, part="round"):
    """Median and 99th percentile of the engine thread's rounds, or of their part in the device's driver, in us."""
    wanted = {f'voxlane_engine_{part}_seconds{{quantile="{q}"}}': name for q, name in (("0.5", "p50"), ("0.99", "p99"))}
    lines = (line.rpartition(" ") for line in metrics.splitlines())
    return {wanted[name]: round(float(value) * 1e6, 1) for name, _, value in lines if name in wanted}


def bench(one, rate, port, options, folder):
    report = pathlib.Path(folder, "report.json")
    command = [*options.pin(options.generator_cores), options.binary, "bench", "--target", f"voxlane=native,http://127.0.0.1:{port}", "--exact-frames",
               "--workload", one["workload"], "--rate", f"{rate}:1:{rate}", "--window", f"{options.window or one['window']}s", "--seeds", str(options.seeds),
               "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    row = json.loads(report.read_text())["targets"][0]["rates"][0]
    kept = ("rate", "window_s", "offered", "completed", "refused_by", "failed", "ttfa_ms", "no_stall", "attainment", "goodput", "audio_s_per_s",
            "frames_sent", "frames_made", "generator_cpu")
    return {key: row[key] for key in kept}


def run(name, one, options, write):
    commit = options.commit
    with tempfile.TemporaryDirectory() as folder:
        process, port, admin, ready = serve(one, options, folder)
        try:
            for rate in one["rates"]:
                row = {"point": name, "workload": one["workload"], "model": one["model"], "commit": commit, "seeds": options.seeds,
                       "split": one["engine"].get("split", "76/56"), "without": one["without"], "devices": one["devices"],
                       "ready_s": round(ready, 1), **bench(one, rate, port, options, folder)}
                with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as answer:
                    metrics = answer.read().decode()
                row |= {"launches": list(filter(render.shown, launches(metrics))), "host_us": host_us(metrics), "host_device_us": host_us(metrics, "round_device")}
                write(row)
                ttfa = row["ttfa_ms"]
                print(f"{name} {one['workload']} {rate}/s: attained {row['attainment']['200']:.4f}, no stall {row['no_stall']:.4f}, refused "
                      f"{sum(row['refused_by'].values())} of {row['offered']}, first audio p50 {ttfa['p50']} p99 {ttfa['p99']} ms", flush=True)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                # The next server needs the card.
                process.kill()
                process.wait()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", nargs="*", help="names, * allowed")
    parser.add_argument("--list", action="store_true", help="the points, and about how many seconds each takes")
    parser.add_argument("--out", default=str(ROOT / "docs/h200.json"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--binary", default=os.environ.get("VOXLANE_BINARY", str(ROOT / "target/release/voxlane")))
    parser.add_argument("--server-cores", default="", help="as taskset takes them, such as 0-9")
    parser.add_argument("--generator-cores", default="")
    parser.add_argument("--window", type=int, default=0, help="seconds of every window, in place of each point's own")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of [engine], for every point")
    parser.add_argument("--commit", default="", help="what the binary was built from [default: this tree]")
    options = parser.parse_args()
    options.pin = lambda cores: ["taskset", "-c", cores] if cores else []
    options.commit = options.commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True,
                                                      cwd=ROOT).stdout.strip()
    return options


def toml(value):
    """A number or a truth as it is; everything else is text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def main():
    options = parse()
    chosen = {name: one for name, one in POINTS.items() if any(fnmatch.fnmatch(name, pattern) for pattern in options.points)}
    if options.list or not chosen:
        for name, one in POINTS.items():
            print(f"{name:22} {one['workload']} at {one['rates']} for {one['window']} s, {one['model']}: {seconds(one)} s")
        return 0 if options.list else 2
    extra = dict(pair.split("=", 1) for pair in options.set)
    out = pathlib.Path(options.out)

    def write(row):
        data = json.loads(out.read_text()) if out.exists() else {"runs": []}
        same = ("workload", "rate", "window_s", "seeds", "commit", "split", "without", "devices", "model", "set")
        row |= {"set": extra}
        data["runs"] = [other for other in data["runs"] if [other.get(key) for key in same] != [row.get(key) for key in same]] + [row]
        out.write_text(render.compact(data) + "\n")

    failed = 0
    for name, one in chosen.items():
        one = one | {"engine": one["engine"] | {key: toml(value) for key, value in extra.items()}}
        try:
            run(name, one, options, write)
        except (RuntimeError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            failed += 1
            print(f"{name} failed: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
