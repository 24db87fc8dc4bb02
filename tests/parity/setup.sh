#!/usr/bin/env bash
# Makes the environment of the reference package in target/parity-venv, again whenever its pins change.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$root/target/parity-venv
python=${PYTHON:-python3}

stamp=$venv/requirements.sha256
wanted=$(sha256sum "$root/tests/parity/requirements.txt" | cut -d' ' -f1)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$root/tests/parity/requirements.txt"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps qwen-tts==0.1.1
  echo "$wanted" >"$stamp"
fi
