"""Writes the tables of docs/{performance,h200,simulated}.md from their JSON files, or checks that they are what those say.

    python3 tests/bench/render.py           rewrite the pages
    python3 tests/bench/render.py --check   exit 1 when a page and its JSON differ (a test runs this)
"""

import json
import pathlib
import statistics
import sys


ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("performance.md", "h200.md", "simulated.md")]


def table(data: dict) -> str:
    host = data["host"]
    clients = data["clients"]
    lines = [
        f"Measured by `{data['command']}` at commit {data['commit']} on {host['cores']} cores ({host['cpu']}), {data['date']}; "
        f"medians of {data['runs']} runs unless said.",
        "",
        *figures(data["figures"]),
        "",
        f"What clients' voices, tokens and idle sessions cost, each measured once, at commit {clients['commit']}, {clients['date']}:",
        "",
        *figures(clients["figures"]),
        "",
        "What limits each:",
        "",
        *[f"- {row['name']}: {row['limit']}" for row in data["figures"] + clients["figures"] if row.get("limit")],
    ]
    return "\n".join(lines)


def figures(rows: list[dict]) -> list[str]:
    met = {True: "met", False: "**missed**"}
    return ["| figure | goal | measured | |", "|---|---|---|---|",
            *[f"| {row['name']} | {row['goal']} | {row['measured']} | {met[row['met']]} |" for row in rows]]


def percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def past_capacity(answer: dict) -> list[str]:
    rows = [[row["policy"], f"{row['part']:.1f}", f"{row['goodput']:.2f}", percent(row["of_peak"]), ms(row["ttfa_p99_ms"]), percent(row["refused"]),
             percent(row["no_stall"])] for row in sorted(answer["past_capacity"], key=lambda row: row["policy"])]
    return grid(["admission", "of capacity", "goodput/s", "of its peak", "TTFA p99 of those let in, ms", "refused", "no stall"], rows)


def reports(answer: dict) -> list[str]:
    rows = []
    for row in answer["reports"]:
        (attained, a), (stall, s) = row["attained_difference"], row["stall_ms_difference"]
        on, off = row["decisions"]["on"], row["decisions"]["off"]
        sure = "yes" if abs(attained) > a or abs(stall) > s else "no"
        rows.append([row["mix"], f"{row['part']:.2f}", f"{100 * attained:+.2f} ± {100 * a:.2f}", f"{stall:+.1f} ± {s:.1f}", sure,
                     f"{on['chunks_late']} / {off['chunks_late']}", f"{on['urgent_launches']} / {off['urgent_launches']}"])
    return grid(["listeners", "of capacity", "attained, points", "stall a request, ms", "beyond chance", "late chunks on / off", "urgent launches on / off"], rows)


def settings(answer: dict) -> list[str]:
    rows = [[row["setting"], row["value"], f"{row['part']:.1f}", ms(row["ttfa_p50_ms"]), ms(row["ttfa_p99_ms"]), percent(row["no_stall"]),
             percent(row["attained"]), str(row["chunks_late"])] for row in sorted(answer["settings"], key=lambda row: (row["setting"], row["part"]))]
    return grid(["setting", "value", "of capacity", "TTFA p50, ms", "p99, ms", "no stall", "attained", "late chunks"], rows)


def validation(data: dict) -> str:
    capacity, each = data["capacity"], data["capacity_each"]
    off = "no rate held" if data["off"] is None else f"{100 * data['off']:+.1f}%"
    lines = [
        f"`{data['command']}`, {data['date']}, at commit {data['commit']} on {data['machine']}. Capacity at 90% ({data['how']}): measured "
        f"{', '.join(map(str, each['measured']))}, median {capacity['measured']:.2f} requests/s; predicted with profile `{data['profile']}` "
        f"{capacity['predicted']:.2f}: {off} (goal: within {100 * data['goal']:.0f}%, {'met' if data['met'] else '**missed**'}).",
        "",
    ]
    columns = [*data["measured"], *data["predicted"]]
    rows = []
    for rate in sorted({rate["rate"] for target in columns for rate in target["rates"]}):
        cells = []
        for target in columns:
            found = next((row for row in target["rates"] if row["rate"] == rate), None)
            cells.append("-" if found is None else f"{percent(found['attainment']['200'])}, {ms(found['ttfa_ms']['p50'])}, {ms(found['ttfa_ms']['p99'])}")
        rows.append([str(rate), *cells])
    head = ["rate/s", *(f"{kind} {n + 1}" for kind in ("measured", "predicted") for n in range(len(data[kind])))]
    return "\n".join([*lines, *grid(head, rows), "(attained, TTFA p50 and p99 in ms)"])


def carried(rate: float | None) -> str:
    return f"{rate} requests/s" if rate else "below any rate that was tried"


def simulated(data: dict) -> str:
    lines = []
    for answer in data["answers"]:
        capacity = answer["capacity"]
        lines += [
            f"## Profile `{answer['profile']}`",
            "",
            f"`{data['command']}` at commit {answer['commit']}: LibriTTS-like requests, windows of {answer['window_s']} s, {answer['seeds']} seeds a rate, "
            f"{answer['pairs']} pairs where two systems are compared; {answer['times_faster_than_real_time']} times faster than real time. "
            f"Capacity {carried(capacity['90'])} at 90%, {carried(capacity['99'])} at 99%.",
            "",
            "Past capacity:",
            "",
            *past_capacity(answer),
            "Reports on against off (difference, 95% interval; listeners' moods as `bench --mood`):",
            "",
            *reports(answer),
            "One setting at a time:",
            "",
            *settings(answer),
        ]
    return "\n".join(lines).rstrip()


def fresh(data: dict) -> str:
    data, command = data["fresh"], data["command"]
    (first, many), judged = data["chosen"], data["fresh"]
    rows = [[f"`{row['profile']}`", row["setting"], f"{row['capacity']:.1f}/s", f"{100 * row['refused_at_0.9']:.2f}%",
             " and ".join(f"{100 * part:.2f}%" for part in row["refused_each"]), percent(row["of_peak_at_1.3"]), ms(row["ttfa_p99_ms_at_1.3"]),
             f"{100 * row['no_stall_at_1.3']:.2f}%"] for row in data["rows"]]
    seeds = " and ".join(f"{begin} to {begin + count - 1}" for begin, count in judged)
    lines = [f"`{command} fresh` at commit {data['commit']}: LibriTTS-like, windows of {data['window_s']} s. Capacity searched with seeds {first} to "
             f"{first + many - 1}, each setting then judged at parts of its own capacity with seeds {seeds}, pooled (p99 is the later of the two groups'):", ""]
    head = ["profile", "setting", "capacity at 90%", "refused at 0.9 of it", "by group of seeds", "goodput at 1.3 times, of the peak", "TTFA p99, ms", "no stall"]
    return "\n".join([*lines, *grid(head, rows)]).rstrip()


def card(data: dict) -> str:
    data, command = data["card"], data["command"]

    def cell(run: dict | None) -> str:
        if run is None:
            return "-"
        stalls = f"; {percent(1 - run['no_stall'])} stall" if run["no_stall"] < 0.9995 else ""
        window = f" ({run['window_s']:.0f} s)" if run.get("window_s") not in (None, data["window_s"]) else ""
        return f"{percent(run['attained'])}, {ms(run['ttfa_p50_ms'])}, {ms(run['ttfa_p99_ms'])}{stalls}{window}"

    rates = list(data["rows"][0]["simulated"])
    rows = [[", ".join([row["without"] or "nothing", *(f"{key} {value}" for key, value in row["set"].items())]), row["split"], *(cell(row[kind].get(rate)) for rate in rates for kind in ("simulated", "measured"))] for row in data["rows"]]
    head = ["without", "split", *(f"{kind} at {rate}/s" for rate in rates for kind in ("simulated", "measured"))]
    lines = [f"`{command} card` at commit {data['commit']}, with `config/profiles/h200-1.7b.json` and the seed and arrivals of the card's own runs: attained, TTFA p50 "
             f"and p99 in ms, in windows of {data['window_s']} s unless said:", ""]
    return "\n".join([*lines, *grid(head, rows)]).rstrip()


def speed(data: dict) -> str:
    data, command = data["speed"], data["command"]
    rows = [[f"`{row['command']}`", f"{row['virtual_s']:.0f} s", f"{row['wall_s']:.2f} s", f"{row['times']}", f"{row['times_most']}"] for row in data["rows"]]
    lines = [f"`{command} speed` at commit {data['commit']} on {data['cores']} cores, load {data['load']} when it began; windows and lead-ins, against the whole "
             "process's time (one seed runs on one core, several on all):", ""]
    return "\n".join([*lines, *grid(["command", "virtual", "wall, median", "times real time", "at best"], rows)]).rstrip()


def generator(data: dict) -> str:
    def row(streams: str, rows: list[dict]) -> list[str]:
        def middle(key: str) -> float:
            return statistics.median(row[key] for row in rows)

        return [streams, f"{middle('cores'):.2f}", f"{middle('late_ms_p99'):.1f} ms, at worst {max(row['late_ms_p99'] for row in rows):.1f}",
                f"{100 * min(row['no_stall'] for row in rows):.2f}%", f"{sum(row['completed'] for row in rows)} of {sum(row['offered'] for row in rows)}",
                "yes" if any(row["is_the_limit"] for row in rows) else "no"]

    tape, served = data["tape"], data["server"]
    counts = sorted({row["streams"] for row in tape["rows"]})
    lines = [
        f"Alone, on {tape['machine_cores']} cores shared with a process that plays a tape to each stream (20 s of PCM in packets of 20 ms, a lead of 3 s at once): "
        f"`{tape['command']}` at commit {tape['commit']}, {len(tape['rows']) // len(counts)} runs, load {min(row['load'] for row in tape['rows'])} to "
        f"{max(row['load'] for row in tape['rows'])} when each began:", "",
        *grid(["streams", "generator's cores, median", "late, p99", "no stall, least", "completed", "warns that it is the limit"],
              [row(str(count), [it for it in tape["rows"] if it["streams"] == count]) for count in counts]),
        f"Beside a whole server with the scripted engine on the same {served['machine_cores']} cores (`python3 tests/bench/generator.py server` at commit "
        f"{served['commit']}, a run each):", "",
        *grid(["streams", "wire", "generator's cores", "server's", "others'", "late, p99", "no stall", "completed", "refused", "TTFA p99", "warns that it is the limit"],
              [[str(it["streams"]), it["codec"], f"{it['cores']:.2f}", f"{it['server_cores']:.2f}", f"{it['others_cores']:.2f}",
                f"{it['late_ms_p99']:.1f} ms", f"{100 * it['no_stall']:.2f}%", f"{it['completed']} of {it['offered']}", str(it["refused"]), f"{it['ttfa_p99_ms']:.0f} ms", "yes" if it["is_the_limit"] else "no"] for it in served["rows"]]),
    ]
    return "\n".join(lines).rstrip()


def long_text(data: dict) -> str:
    host, memory, seams = data["host"], data["resident_mib"], data["seams"]
    rows = [
        ("spoken", f"{data['audio_s'] / 60:.1f} minutes by a process of {data['wall_s']:.0f} s, its start among them; real-time factor of the speaking {data['rtf']:.3f}; ended as `{data['reason']}`"),
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


def h200(data: dict) -> str:
    stages = data["stages"]

    def took(stage: str, partition: str, batch: int, length: int | None = None) -> str:
        found = [row for row in stages if (row["stage"], row["partition"], row["batch"]) == (stage, partition, batch) and row.get("length") == length]
        return f"{found[0]['micros'] / 1000:.1f}" if found else "-"

    batches = [1, 8, 16, 32, 64, 96, 128, 192, 256]

    def riding(prompts: int, batch: int) -> str:
        found = [row for row in stages if (row["batch"], row.get("prompts")) == (batch, prompts)]
        return f"{found[0]['micros'] / 1000:.1f}" if found else "-"

    lines = [
        f"One {data['card']}, driver {data['driver']}, {data['date']}; bf16, weights drawn from a seed. Stages, with {data['split']}: `{data['commands']['stages']}` at "
        f"commit {data['commit_stages']}, medians of 15 launches of the served graphs, ms, nothing else running:",
        "",
        *grid(["stage", *(f"batch {n}" for n in batches)],
              [["decode, lm lane's SMs", *(took("decode", "lm", n) for n in batches)],
               *[[f"the same, {prompts} of its rows a prompt of 28 positions", *(riding(prompts, n) for n in batches)] for prompts in (1, 4, 9)],
               ["decode, whole card", *(took("decode", "whole", n) for n in batches)],
               *[[f"codec, {length} frames, {where}", *(took("codec", partition, n, length) for n in batches)]
                 for length in (2, 10) for partition, where in (("whole", "whole card"), ("background", "background lane's SMs"))],
               ["prefill of 28 positions each, whole card", *(took("prefill", "whole", n, 28) for n in batches)]]),
        "What urgent chunks cost a decode step of 256 rows, all launched at once, a hundred turns (ms, median and 99th percentile; a hundred in a row take a step longer than fifteen do):",
        "",
        *grid(["a step of 256 rows", "the step", "the urgent chunks"], [[row["what"], both(row["decode"]), both(row.get("urgent"))] for row in data["beside"]]),
        "Where that goes: each kernel launched by itself on the same inputs, which takes 5 to 8 us more a launch than within a graph (us, launches); the largest 32 of each:",
        "",
        *kernels(data["kernels"]),
        f"Serving: `{data['commands']['serve']}` ({data['settings']}) and `{data['commands']['bench']}`, {data['host']}; one seed; every frame sent was "
        "decoded. Windows of 60 s confirm; shorter ones only show the way:",
        "",
        *grid(["workload", "rate/s", "window", "commit", "SMs of lm/background", "what else", "offered", "refused", "TTFA p50", "p99, ms", "no stall", "attained", "goodput/s", "generator's cores"],
              [[run["workload"], f"{run['rate']:.0f}", f"{run['window_s']:.0f} s", run["commit"], run["split"], otherwise(run), str(run["offered"]), str(sum(run["refused_by"].values())),
                ms(run["ttfa_ms"]["p50"]), ms(run["ttfa_ms"]["p99"]), percent(run["no_stall"]), percent(run["attainment"]["200"]), f"{run['goodput']:.1f}",
                f"{run['generator_cpu']:.2f}"] for run in data["runs"]]),
        *served_launches(data["runs"]),
    ]
    return "\n".join(lines).rstrip()


def kernels(stages: list) -> list[str]:
    """Kinds of kernels by stage: what they take one by one, and what the stage takes as a graph."""
    def name(it: dict) -> str:
        where = {"lm": "lm lane", "whole": "whole card", "background": "background lane"}[it["partition"]]
        frames = f" of {it['length']} frames" if it["length"] else ""
        return f"{it['stage']}, {it['batch']}{frames}, {where}"

    families = list(dict.fromkeys(family for it in stages for family in it["families"]))
    families.sort(key=lambda family: family.startswith("other"))
    rows = [[family, *("{}, {}".format(*it["families"][family]) if family in it["families"] else "-" for it in stages)] for family in families]
    rows += [["all, one by one", *(str(it["alone"]) for it in stages)], ["all, as one graph", *(str(it["micros"]) for it in stages)]]
    return grid(["kernels", *map(name, stages)], rows)


def otherwise(run: dict) -> str:
    """How a run differs from one card serving the 1.7B with the defaults."""
    said = [f"without {run['without']}" if run.get("without") else "", f"{run['devices']} cards" if run.get("devices", 1) > 1 else "",
            "0.6B" if run.get("model", "").endswith("0.6b") else "", *(f"{key} {value}" for key, value in run.get("set", {}).items())]
    return ", ".join(filter(None, said)) or "-"


# Stage, lane and captured frames of the launches shown, and the rows of each.
SHOWN = [("decode", "lm", 0, (32, 64, 128, 256, 320)), ("prefill", "lm", 0, (1, 8, 64, 128, 256, 320)), ("codec", "background", 10, (1, 16, 64)),
         ("codec", "urgent", 2, (1, 8)), ("codec", "urgent", 10, (1, 8))]


def shown(launch: dict) -> bool:
    """Whether a kind of launch stands in the tables: of the others nothing is kept."""
    return any((launch["stage"], launch["lane"], launch["frames"]) == (stage, lane, frames) and launch["rows"] in each for stage, lane, frames, each in SHOWN)


def compact(value, indent: int = 0) -> str:
    """JSON with what fits on a line: people read it too."""
    flat = json.dumps(value)
    if len(flat) <= 150 or not isinstance(value, (dict, list)):
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{pad}{json.dumps(key)}: {compact(one, indent + 1)}" for key, one in value.items()) + f"\n{' ' * indent}}}"
    return "[\n" + ",\n".join(f"{pad}{compact(one, indent + 1)}" for one in value) + f"\n{' ' * indent}]"


def both(micros: list | None) -> str:
    return " / ".join(f"{took / 1000:.2f}" for took in micros) if micros else "-"


def served_launches(runs: list) -> list[str]:
    """What launches took inside the served graphs, for runs that recorded it (tests/bench/card.py)."""
    runs = [run for run in runs if run.get("launches")]
    if not runs:
        return []
    names = [f"{stage}{f' of {frames} frames' if frames else ''}, {lane}, {rows}" for stage, lane, frames, each in SHOWN for rows in each]
    table = []
    for run in runs:
        took = {(row["stage"], row["lane"], row["frames"], row["rows"]): f"{row['p50']:.1f} / {row['p99']:.1f}" for row in run["launches"]}
        table.append([run["workload"], f"{run['rate']:.0f}", run["commit"], run["split"], otherwise(run), f"{run['host_us']['p50']:.0f} / {run['host_us']['p99']:.0f}",
                      f"{run['host_device_us']['p50']:.0f} / {run['host_device_us']['p99']:.0f}" if run.get("host_device_us") else "-",
                      *(took.get((stage, lane, frames, rows), "-") for stage, lane, frames, each in SHOWN for rows in each)])
    return ["Inside those runs, median and 99th percentile since the server's start: the engine thread's rounds and what of them was calls to the driver in us, then launches of so many live "
            "rows (rounded up as buckets are) in ms; rows of a prefill are its prompts and the steps that ride along:", "", *grid(["workload", "rate/s", "commit", "SMs", "what else", "rounds", "in the driver", *names], table)]


TABLES = [
    ("docs/performance.json", "<!-- figures: made by tests/bench/render.py -->", "<!-- end of figures -->", table),
    ("docs/validation.json", "<!-- validation: made by tests/bench/render.py -->", "<!-- end of validation -->", validation),
    ("docs/simulated.json", "<!-- fresh seeds: made by tests/bench/render.py -->", "<!-- end of fresh seeds -->", fresh),
    ("docs/simulated.json", "<!-- speed: made by tests/bench/render.py -->", "<!-- end of speed -->", speed),
    ("docs/simulated.json", "<!-- card, simulated: made by tests/bench/render.py -->", "<!-- end of card, simulated -->", card),
    ("docs/simulated.json", "<!-- simulated: made by tests/bench/render.py -->", "<!-- end of simulated -->", simulated),
    ("docs/h200.json", "<!-- h200: made by tests/bench/render.py -->", "<!-- end of h200 -->", h200),
    ("docs/generator.json", "<!-- generator: made by tests/bench/render.py -->", "<!-- end of generator -->", generator),
    ("docs/longtext.json", "<!-- long text: made by tests/bench/render.py -->", "<!-- end of long text -->", long_text),
]


def filled(page: str) -> str:
    """A page with each table it has room for made anew."""
    for name, begin, end, rows in TABLES:
        if begin in page:
            before, rest = page.split(begin)
            _, after = rest.split(end)
            page = f"{before}{begin}\n{rows(json.loads((ROOT / name).read_text()))}\n{end}{after}"
    return page


def main() -> int:
    texts = {page: page.read_text() for page in PAGES}
    for _, begin, _, _ in TABLES:
        if sum(begin in text for text in texts.values()) != 1:
            print(f"{begin} must stand on one page of docs")
            return 1
    made = {page: filled(text) for page, text in texts.items()}
    for path, text in made.items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif text != path.read_text():
            print(f"{path.relative_to(ROOT)} is not what its JSON files say: run python3 tests/bench/render.py")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
