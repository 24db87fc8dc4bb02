#!/usr/bin/env bash
# Python clients against the release binary, decoding with a decoder that is not the one that encoded. Clients that cannot
# live in one environment have folders of their own.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
export VOXLANE_BINARY=${VOXLANE_BINARY:-$root/target/release/voxlane} PYTHONDONTWRITEBYTECODE=1
for folder in . with_*/; do
    name=${folder%/}
    venv=$root/target/client-venv
    [ "$name" = . ] || venv=$venv-$name
    [ -x "$venv/bin/pytest" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$folder/requirements.txt"; }
    "$venv/bin/pytest" -q -p no:cacheprovider "$@" "$folder"
done
