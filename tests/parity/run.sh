#!/usr/bin/env bash
# Makes every parity case with the reference package. `make parity` calls this and then runs the Rust comparison
# with VOXLANE_PARITY_DIR naming the folder it filled.
#
#   tests/parity/run.sh [FULL_DIR]     default: target/parity; the environment lives in target/parity-venv
#
# The committed cases of tests/golden/parity are rewritten only with VOXLANE_PARITY_COMMIT=1: another machine's
# rounding would change their last digits for nothing.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
full=${1:-$root/target/parity}
venv=$root/target/parity-venv
bash "$root/tests/parity/setup.sh"

mkdir -p "$full"
if [ "${VOXLANE_PARITY_COMMIT:-0}" = 1 ]; then
  committed=$root/tests/golden/parity
else
  committed=$full/thinned
fi
cd "$root/tests/parity"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"$venv/bin/python" make_cases.py --tiny "$root/config/models/tiny" --committed "$committed" --full "$full"
"$venv/bin/python" make_tokenizer_strings.py --tiny "$root/config/models/tiny" --out "$full/tokenizer_10000.safetensors"
if [ "${VOXLANE_PARITY_COMMIT:-0}" = 1 ]; then
  cp "$full/tokenizer_10000.safetensors" "$committed/"
fi
