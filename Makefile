# Voxlane. `make run` and `make test` are the two commands; the rest is for people who work on it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
TOOLS := $(CURDIR)/target/tools
export PATH := $(TOOLS)/cmake/data/bin:$(PATH)
export CARGO_TERM_COLOR ?= auto

.PHONY: help run build test rust-test browser-test client-test wer bench longtext parity sim fmt lint clean-tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: build ## build the release binary, serve the embedded model on 127.0.0.1:8080 and print the address
	./target/release/voxlane serve

build: $(TOOLS)/cmake.ok ## build the release binary
	cargo build --release --locked -p gateway --bin voxlane

test: ## everything CI runs: lints, Rust tests, browser, Python clients, intelligibility
	bash tests/all.sh

rust-test: $(TOOLS)/cmake.ok ## the Rust tests alone
	cargo test --workspace --locked

lint: $(TOOLS)/cmake.ok ## formatting and clippy, as CI does
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

fmt: ## format every crate
	cargo fmt --all

browser-test: build ## Playwright in real Chromium against the release binary
	bash tests/browser/run.sh

client-test: build ## the Python client that streams word by word, with an independent decoder
	bash tests/clients/run.sh

wer: build ## 40 sentences in each layout judged by Whisper base
	bash tests/wer/run.sh

bench: build ## measure the figures of docs/performance.md, write JSON, regenerate its tables
	bash tests/bench/run.sh

longtext: build ## speak ten minutes of text; memory over time and the seams between segments
	VOXLANE_BINARY=$(CURDIR)/target/release/voxlane PYTHONDONTWRITEBYTECODE=1 python3 tests/bench/longtext.py; \
	  status=$$?; python3 tests/bench/render.py && exit $$status

parity: $(TOOLS)/cmake.ok ## make the larger parity cases with the reference package and compare
	bash tests/parity/run.sh
	VOXLANE_PARITY_DIR=$(CURDIR)/target/parity cargo test --release --locked -p models --test parity

# libopus is built by cmake: from PATH, else the cmake wheel into target/tools, else apt.
$(TOOLS)/cmake.ok:
	@mkdir -p $(TOOLS)
	@command -v cmake >/dev/null \
	  || python3 -m pip install --quiet --disable-pip-version-check --target $(TOOLS) cmake \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq cmake; } \
	  || { echo "voxlane needs cmake to build libopus: install cmake, or python3 with pip"; exit 1; }
	@command -v cc >/dev/null || { echo "voxlane needs a C compiler (cc) to build libopus"; exit 1; }
	@touch $@

clean-tools: ## forget the tools fetched into target/tools
	rm -rf $(TOOLS)
