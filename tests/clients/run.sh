#!/usr/bin/env bash
# Python clients against the release binary, decoding with a decoder that is not the one that encoded.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
venv=$root/target/client-venv
[ -x "$venv/bin/pytest" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt; }
VOXLANE_BINARY=${VOXLANE_BINARY:-$root/target/release/voxlane} PYTHONDONTWRITEBYTECODE=1 \
  "$venv/bin/pytest" -q -p no:cacheprovider "$@" .
