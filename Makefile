# Voxlane. `make run` and `make test` are the two commands; the rest is for people who work on it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
TOOLS := $(CURDIR)/target/tools
NVRTC := $(TOOLS)/nvrtc/nvidia/cu13/lib
export PATH := $(TOOLS)/cmake/data/bin:$(PATH)
export CARGO_TERM_COLOR ?= auto

.PHONY: help run build test rust-test device-test device-memcheck stages card browser-test client-test deploy-test wer bench generator longtext parity sim validate fmt lint clean-tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: build ## build the release binary, serve the embedded model on 127.0.0.1:8080 and print the address
	./target/release/voxlane serve

build: $(TOOLS)/cmake.ok ## build the release binary
	cargo build --release --locked -p gateway --bin voxlane

test: ## everything CI runs: lints, Rust tests, browser, Python clients, intelligibility
	bash tests/all.sh

rust-test: $(TOOLS)/cmake.ok $(TOOLS)/nvrtc.ok ## the Rust tests alone
	LD_LIBRARY_PATH=$(NVRTC):$$LD_LIBRARY_PATH cargo test --workspace --locked
	cargo test --locked -p codecs -p proto --features codecs/mp3 --lib --test mp3

device-test: $(TOOLS)/cmake.ok ## on a machine with a GPU: every op against its reference, the goldens in f32, codes led along the CPU's in both
	VOXLANE_TEST_DEVICE=cuda:0 cargo test --locked -p cpu --test dense --test attention --test layers --test convolution --test invariance -- --test-threads=1
	VOXLANE_TEST_DEVICE=cuda:0 VOXLANE_TEST_PRECISION=bf16 cargo test --locked -p cpu --test dense --test attention --test layers --test convolution -- --test-threads=1
	VOXLANE_TEST_DEVICE=cuda:0 VOXLANE_TEST_PRECISION=bf16 VOXLANE_TEST_LIBRARY=off cargo test --locked -p cpu --test dense --test layers -- --test-threads=1
	VOXLANE_TEST_DEVICE=cuda:0 cargo test --locked -p models --test parity tiny:: -- --test-threads=1
	VOXLANE_TEST_DEVICE=cuda:0 cargo test --locked -p models --test parity forced:: -- --nocapture --test-threads=1
	VOXLANE_TEST_DEVICE=cuda:0 VOXLANE_TEST_PRECISION=bf16 cargo test --locked -p models --test parity forced:: -- --nocapture --test-threads=1

device-memcheck: $(TOOLS)/cmake.ok ## on a machine with a GPU and compute-sanitizer: what kernels read and write outside their memory
	VOXLANE_TEST_DEVICE=cuda:0 compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all \
	  cargo test --locked -p cpu --test dense --test attention --test convolution -- --test-threads=1
	VOXLANE_TEST_DEVICE=cuda:0 VOXLANE_TEST_PRECISION=bf16 compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all \
	  cargo test --locked -p cpu --test dense --test attention --test convolution -- --test-threads=1

stages: ## on a machine with a GPU: time every stage of a published size with random weights
	cargo run --release --locked -p cuda --example stages -- 1.7b

card: ## on a machine with a GPU: the figures of POINTS ("capacity:*", "split:*"...; `card.py --list` says which) into docs/h200.json
	python3 tests/bench/card.py $(POINTS)
	python3 tests/bench/render.py

lint: $(TOOLS)/cmake.ok ## formatting and clippy, as CI does
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

fmt: ## format every crate
	cargo fmt --all

browser-test: build ## Playwright in real Chromium against the release binary
	bash tests/browser/run.sh

client-test: build ## the Python client that streams word by word, with an independent decoder
	bash tests/clients/run.sh

deploy-test: build ## the Dockerfile and the examples of config/deploy: schemas, each other, and the binary serving as each asks
	bash tests/deploy/run.sh

wer: build ## 40 sentences in each layout judged by Whisper base
	bash tests/wer/run.sh

bench: build ## measure the figures of docs/performance.md, write JSON, regenerate its tables
	bash tests/bench/run.sh

sim: build ## answer the questions of docs/performance.md by simulation, regenerate its tables
	VOXLANE_BINARY=target/release/voxlane python3 tests/bench/simulate.py
	python3 tests/bench/render.py

generator: build ## how many streams the load generator carries, alone and beside a server; the machine must be idle
	VOXLANE_BINARY=$(CURDIR)/target/release/voxlane python3 tests/bench/generator.py
	python3 tests/bench/render.py

validate: build ## compare simulated with measured capacity on this machine, which must be idle
	VOXLANE_BINARY=target/release/voxlane python3 tests/bench/validate.py; \
	  status=$$?; python3 tests/bench/render.py && exit $$status

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

# The kernels are compiled without a GPU by NVRTC's wheel, fetched with pip: python3's own, else that of a venv.
NVRTC_WHEEL := --quiet --disable-pip-version-check --target $(TOOLS)/nvrtc 'nvidia-cuda-nvrtc==13.0.*'
$(TOOLS)/nvrtc.ok:
	@mkdir -p $(TOOLS)
	@python3 -m pip install $(NVRTC_WHEEL) 2>/dev/null \
	  || { python3 -m venv $(TOOLS)/venv && $(TOOLS)/venv/bin/pip install $(NVRTC_WHEEL); } \
	  || { echo "the kernels' tests need NVRTC: python3 with pip or venv must be able to fetch nvidia-cuda-nvrtc"; exit 1; }
	@touch $@

clean-tools: ## forget the tools fetched into target/tools
	rm -rf $(TOOLS)
