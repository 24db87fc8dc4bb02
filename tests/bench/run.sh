#!/usr/bin/env bash
# Measures the figures on an otherwise idle machine and regenerates the tables of docs/performance.md. The reference
# package runs in the same run, before and after, so that the ratio is of one machine at one time.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release --locked -p gateway --example figures
REFERENCE_PYTHON=${REFERENCE_PYTHON:-$PWD/target/parity-venv/bin/python}
[ -x "$REFERENCE_PYTHON" ] || bash tests/parity/setup.sh
export REFERENCE_PYTHON VOXLANE_BINARY=$PWD/target/release/voxlane FIGURES=$PWD/target/release/examples/figures
PYTHONDONTWRITEBYTECODE=1 python3 tests/bench/measure.py "$@"
python3 tests/bench/render.py
