"""Writes the tables of docs/performance.md from docs/performance.json, or checks that they are what it says.

    python3 tests/bench/render.py           rewrite the page
    python3 tests/bench/render.py --check   exit 1 when page and JSON differ (a test runs this)
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, DATA = ROOT / "docs/performance.md", ROOT / "docs/performance.json"
BEGIN, END = "<!-- figures: made by tests/bench/render.py -->", "<!-- end of figures -->"


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


def main() -> int:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    made = f"{before}{BEGIN}\n{table(json.loads(DATA.read_text()))}\n{END}{after}"
    if "--check" in sys.argv:
        if made != page:
            print("docs/performance.md is not what docs/performance.json says: run python3 tests/bench/render.py")
            return 1
        return 0
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
