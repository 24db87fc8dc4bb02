#!/usr/bin/env bash
# Drives the page in real Chromium against the release binary. Screenshots land in target/browser.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
work=$root/target/browser
mkdir -p "$work"
cp package.json page.test.mjs server.mjs "$work/"
cd "$work"
npm install --silent --no-audit --no-fund --no-package-lock
VOXLANE_BINARY=${VOXLANE_BINARY:-$root/target/release/voxlane} node --test --test-concurrency=1 page.test.mjs
