"""Writes the tables of docs/performance.md from docs/performance.json and docs/longtext.json, or checks that they are
what those say.

    python3 tests/bench/render.py           rewrite the page
    python3 tests/bench/render.py --check   exit 1 when page and JSON differ (a test runs this)
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"


def table(data: dict) -> str:
    host = data["host"]
    lines = [
        f"Measured by `{data['command']}` at commit {data['commit']} on {host['cores']} cores ({host['cpu']}), {data['date']}; "
        f"medians of {data['runs']} runs unless said.",
        "",
        "| figure | goal | measured | |",
        "|---|---|---|---|",
    ]
    for figure in data["figures"]:
        met = "met" if figure["met"] else "**missed**"
        lines.append(f"| {figure['name']} | {figure['goal']} | {figure['measured']} | {met} |")
    lines += ["", "What limits each:", ""]
    lines += [f"- {figure['name']}: {figure['limit']}" for figure in data["figures"] if figure.get("limit")]
    return "\n".join(lines)


def long_text(data: dict) -> str:
    host, memory, seams = data["host"], data["resident_mib"], data["seams"]
    rows = [
        ("spoken", f"{data['audio_s'] / 60:.1f} minutes in {data['wall_s']:.0f} s, real-time factor {data['rtf']:.3f}, ended as `{data['reason']}`"),
        ("text", f"{data['characters_given']} characters in {data['segments']} segments; "
                 f"{data['characters_spoken']} spoken and {data['characters_between']} blanks between segments: "
                 f"{data['characters_given'] - data['characters_spoken'] - data['characters_between']} lost or doubled"),
        ("resident memory", f"{memory['after_a_minute']:.0f} MiB after the first minute of sound, {memory['end']:.0f} MiB at the end, "
                            f"{memory['growth_per_minute']:.2f} MiB a minute between (least squares over {memory['samples']} samples)"),
        ("level in 20 ms around a seam", f"median {seams['level_db']['median']:.0f} dBFS, loudest {seams['level_db']['max']:.0f}"),
        ("level of the codec's pauses within segments", f"median {data['pauses_db']['median']:.0f} dBFS, loudest tenth from {data['pauses_db']['p90']:.0f}"),
        ("step between the two samples of a seam", f"median {seams['step']['median']:.5f}, largest {seams['step']['max']:.5f} of full scale"),
        ("step between neighbouring samples in the same pauses", f"median {data['pause_steps']['median']:.5f}, 99.9th percentile {data['pause_steps']['p999']:.5f}, largest {data['pause_steps']['max']:.5f}"),
        ("seams louder than any pause", f"{seams['louder_than_pauses']} of {seams['count']}" + (
            ", made by the codec before the seam: "
            + "; ".join(" ".join(f"{level:.0f}" for level in levels) for levels in seams["levels_around_the_louder_db"])
            + " dBFS in the five 10 ms before and the two after" if seams["louder_than_pauses"] else "")),
    ]
    lines = [f"Measured by `{data['command']}` at commit {data['commit']} on {host['cores']} cores ({host['cpu']}), "
             f"{data['date']}, load {host['load']} when it began.", "", "| what | measured |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {value} |" for name, value in rows])


TABLES = [
    ("docs/performance.json", "<!-- figures: made by tests/bench/render.py -->", "<!-- end of figures -->", table),
    ("docs/longtext.json", "<!-- long text: made by tests/bench/render.py -->", "<!-- end of long text -->", long_text),
]


def main() -> int:
    page = made = PAGE.read_text()
    for name, begin, end, rows in TABLES:
        before, rest = made.split(begin)
        _, after = rest.split(end)
        made = f"{before}{begin}\n{rows(json.loads((ROOT / name).read_text()))}\n{end}{after}"
    if "--check" in sys.argv:
        if made != page:
            print("docs/performance.md is not what its JSON files say: run python3 tests/bench/render.py")
            return 1
        return 0
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
