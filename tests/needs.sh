#!/usr/bin/env bash
# Lists what the tests need beyond a Rust toolchain, installs it where it may (root on a Debian-like
# machine), and otherwise names what is missing.
set -euo pipefail

missing=()
need() { # COMMAND DEBIAN_PACKAGE WHY
    if command -v "$1" >/dev/null; then
        printf '%-10s %s\n' "$1" "found ($3)"
    else
        printf '%-10s %s\n' "$1" "missing ($3)"
        missing+=("$2")
    fi
}

need cargo "a Rust toolchain, 1.95 or later (rustup.rs)" "builds everything"
need cc gcc "builds libopus"
need python3 python3 "clients, parity and the intelligibility judge"
need node nodejs "drives the browser, runs clients"
need npm npm "installs the browser driver and clients"
need curl curl "types what the pages say"
need openssl openssl "certificates for clients that insist on TLS"
need systemd-analyze systemd "reads the systemd unit"
need chromium chromium "the browser tests"
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)

((${#missing[@]} == 0)) && exit 0
for package in "${missing[@]}"; do
    if [[ $package == *" "* ]]; then
        echo "install $package, then run this again"
        exit 1
    fi
done
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "install these and run this again: ${missing[*]}"
    exit 1
fi
