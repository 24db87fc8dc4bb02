#!/usr/bin/env bash
# The examples of config/deploy and the Dockerfile against the schemas of what reads them, each other, and the release
# binary, which serves with the very environment that each of them sets.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
venv=$root/target/deploy-venv
export VOXLANE_BINARY=${VOXLANE_BINARY:-$root/target/release/voxlane} PYTHONDONTWRITEBYTECODE=1
[ -x "$venv/bin/pytest" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt; }
"$venv/bin/pytest" -q -p no:cacheprovider "$@"
