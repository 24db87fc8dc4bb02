#!/usr/bin/env bash
# Everything CI runs, in order, each step named and timed. A step that cannot run fails by name; nothing is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS

step() { # NAME COMMAND...
    local name=$1 from=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if ! "$@"; then
        printf '\nFAILED: %s (%s)\n' "$name" "$*"
        exit 1
    fi
    printf -- '-- %s: %d s\n' "$name" $((SECONDS - from))
}

step "what this needs" bash tests/needs.sh
step "formatting and lints" make lint
step "rust tests" make rust-test
step "release build" make build
step "python client" make client-test
step "deployment examples" make deploy-test
step "browser" make browser-test
step "intelligibility" make wer

printf '\nall steps passed in %d s\n' $((SECONDS - started))
