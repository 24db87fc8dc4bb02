"""Speaks ten minutes of text offline and writes docs/longtext.json: memory over time, and what is heard at the seams.

A seam is where one segment of the text ends and the next begins; the model starts afresh there. What joining adds is the
step between the last sample before it and the first after it. It is judged against the codec's own pauses: stretches of
20 ms within segments, as quiet as nobody speaks. Levels around the seams are told beside it: what is loud there was made
by the codec before the seam. Standard library only.

Environment: VOXLANE_BINARY.
"""

import array
import datetime
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MINUTES = float(os.environ.get("VOXLANE_LONGTEXT_MINUTES", "10"))
RATE = 24_000
WINDOW = RATE // 50
# The embedded model speaks 17 to 18 characters a second: a tenth more than the minutes asked for.
CHARACTERS = int(MINUTES * 60 * 20)
# A window counts as a pause below this part of the speech's own level.
PAUSE_BELOW = 0.02


def long_text():
    sentences = (ROOT / "tests/wer/sentences.txt").read_text().split("\n")
    sentences = [line.strip() for line in sentences if line.strip()]
    text, at = "", 0
    while len(text) < CHARACTERS:
        text += (" " if text else "") + sentences[at % len(sentences)]
        at += 1
    return text


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return None


def speak(text, out):
    """Gives what `speak` printed, its segments' ends, and (bytes written, MiB) every 200 ms."""
    command = [os.environ["VOXLANE_BINARY"], "speak", text, "--seed", "1", "--out", str(out)]
    log = tempfile.TemporaryFile("w+")
    environment = {**os.environ, "VOXLANE_LOG_FILTER": "gateway::utterance=debug"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    part = out.with_name(f".{out.name}.{process.pid}.part")
    samples = []
    while process.poll() is None:
        try:
            samples.append((part.stat().st_size, resident_mib(process.pid)))
        except FileNotFoundError:
            pass
        time.sleep(0.2)
    assert process.returncode == 0, "speak failed"
    printed = dict(re.findall(r"^(\S+(?: audio)?) +(.*)$", process.stdout.read(), re.M))
    log.seek(0)
    ends = [int(end) for end in re.findall(r"segment spoken.*end_sample=(\d+)", log.read())]
    return printed, ends, [(size, mib) for size, mib in samples if mib]


def level_db(window):
    power = sum(sample * sample for sample in window) / len(window)
    return 10 * math.log10(max(power, 1e-12))


def steps(window):
    return [abs(b - a) for a, b in zip(window, window[1:])]


def around(sound, seam):
    """Levels of 10 ms each: the five before a seam, and the two after it."""
    part = WINDOW // 2
    return [round(level_db(sound[seam + at * part:seam + (at + 1) * part]), 1) for at in range(-5, 2)]


def growth(samples):
    """MiB at the first minute of sound and at the end, and the slope between them, in MiB a minute of sound."""
    points = [(size / 2 / RATE / 60, mib) for size, mib in samples if size > 2 * RATE * 60]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return {"after_a_minute": points[0][1], "end": points[-1][1], "growth_per_minute": slope, "samples": len(points)}


def main():
    load = os.getloadavg()[0]
    text = long_text()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "long.pcm"
        started = time.monotonic()
        printed, ends, memory = speak(text, out)
        wall = time.monotonic() - started
        pcm = array.array("h", out.read_bytes())
    sound = [sample / 32_768 for sample in pcm]
    seams = [end for end in ends if WINDOW <= end <= len(sound) - WINDOW]
    near = lambda at: any(abs(at + WINDOW // 2 - seam) < 2 * WINDOW for seam in seams)
    speech = 10 ** (level_db(sound) / 20)
    windows = [(at, level_db(sound[at:at + WINDOW])) for at in range(0, len(sound) - WINDOW, WINDOW)]
    pauses = [(at, level) for at, level in windows if 10 ** (level / 20) < PAUSE_BELOW * speech and not near(at)]
    pause_levels = sorted(level for _, level in pauses)
    pause_steps = sorted(step for at, _ in pauses for step in steps(sound[at:at + WINDOW]))
    seam_levels = [level_db(sound[seam - WINDOW // 2:seam + WINDOW // 2]) for seam in seams]
    seam_steps = [abs(sound[seam] - sound[seam - 1]) for seam in seams]
    loud = [around(sound, seam) for seam, level in zip(seams, seam_levels) if level > pause_levels[-1]]
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT)
    data = {
        "command": "make longtext",
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "host": {"cores": len(os.sched_getaffinity(0)), "cpu": cpu, "load": f"{load:.1f}"},
        "audio_s": len(sound) / RATE,
        "wall_s": wall,
        "rtf": float(printed["RTF"]),
        "reason": printed["reason"],
        "characters_given": len(text),
        "characters_spoken": int(printed["characters"]),
        # One blank stands between sentences, and goes with neither segment.
        "characters_between": len(ends) - 1,
        "segments": len(ends),
        "resident_mib": growth(memory),
        "pauses_db": {"count": len(pauses), "median": statistics.median(pause_levels), "p90": pause_levels[len(pauses) * 9 // 10],
                      "max": pause_levels[-1]},
        "pause_steps": {"median": statistics.median(pause_steps), "p999": pause_steps[len(pause_steps) * 999 // 1000], "max": pause_steps[-1]},
        "seams": {
            "count": len(seams),
            "level_db": {"median": statistics.median(seam_levels), "max": max(seam_levels)},
            "step": {"median": statistics.median(seam_steps), "max": max(seam_steps)},
            "louder_than_pauses": len(loud),
            "levels_around_the_louder_db": loud,
            "levels_db": [round(level, 1) for level in seam_levels],
            "steps": [round(step, 6) for step in seam_steps],
        },
    }
    print(json.dumps(data, indent=1))
    checks = {
        "the text was spoken whole": data["reason"] == "done",
        "no character is lost or doubled": data["characters_given"] == data["characters_spoken"] + data["characters_between"],
        "it is as long as asked for": data["audio_s"] >= MINUTES * 60,
        "memory is flat": abs(data["resident_mib"]["growth_per_minute"]) < 1,
        "no seam steps further than one in a thousand steps of the codec's own pauses":
            data["seams"]["step"]["max"] <= data["pause_steps"]["p999"],
    }
    for what, holds in checks.items():
        print(f"{'met   ' if holds else 'MISSED'} {what}")
    (ROOT / "docs/longtext.json").write_text(json.dumps(data, indent=1) + "\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
