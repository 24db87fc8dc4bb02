"""Holds our word error rate against the reference package's on the same sentences (reference.json, made by
reference.py and judge.py): at most 1.5 points more in each layout.

    python tests/wer/compare.py target/wer/ours.json
"""

import json
import sys
from pathlib import Path

POINTS_MAX = 1.5


def main():
    ours = json.loads(Path(sys.argv[1]).read_text())
    reference = json.loads((Path(__file__).resolve().parent / "reference.json").read_text())
    failed = False
    for layout, known in reference["by_layout"].items():
        found, limit = ours["by_layout"][layout]["wer_percent"], known["wer_percent"] + POINTS_MAX
        failed |= found > limit
        print(f"{layout:>14}  ours {found:5.2f} %  reference {known['wer_percent']:5.2f} %  limit {limit:5.2f} %")
    for row in ours["files"]:
        if row["errors"]:
            print(f"  {row['file']}: {row['text']!r} was heard as {row['heard']!r}")
    sys.exit("word error rate is over its limit" if failed else 0)


if __name__ == "__main__":
    main()
