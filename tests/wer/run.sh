#!/usr/bin/env bash
# 40 sentences in each layout, spoken by the release binary, judged by Whisper base, held against reference.json.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
venv=$root/target/wer-venv
work=$root/target/wer
[ -x "$venv/bin/python" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt; }
mkdir -p "$work"
export VOXLANE_BINARY=${VOXLANE_BINARY:-$root/target/release/voxlane} PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" speak.py --out "$work/ours"
"$venv/bin/python" judge.py "$work/ours" --json "$work/ours.json"
"$venv/bin/python" compare.py "$work/ours.json"
