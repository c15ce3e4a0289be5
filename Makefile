# The one door: people and CI call these targets and nothing else.
CARGO ?= cargo
OUT ?= out
PROFILE ?= quick

.PHONY: help guide test bench lint build gen tools test-tools

help:
	@echo 'make guide   measure no mesh, sidecar, ambient L4 and ambient L7 on this machine (OUT=folder, PROFILE=quick|full)'
	@echo 'make test    everything that must hold, as root also for an unprivileged user'
	@echo 'make lint    format, clippy, generated files, layout'
	@echo 'make bench   ratios of throughput and latency, with their spread'
	@echo 'make gen     generated files anew'

# What is needed beside the repository itself: Rust and nft. A missing nft is installed where that is possible.
tools:
	@command -v $(CARGO) >/dev/null || { echo 'cargo is not installed: install Rust with rustup, see rust-toolchain.toml for the version' >&2; exit 1; }
	@command -v cc >/dev/null || { echo 'a C compiler is not installed: install gcc or clang' >&2; exit 1; }
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v nft >/dev/null || scripts/install nft nftables

# What the tests need besides: programs in Python stand for what users run in their pods.
test-tools: tools
	@test -x /usr/bin/python3 || test -x /usr/local/bin/python3 || scripts/install python3 python3

build: tools
	@$(CARGO) build --release --package trysail

guide: build
	@target/release/trysail guide --profile $(PROFILE) --out $(OUT)

lint: tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	$(CARGO) xtask gen-check
	$(CARGO) xtask check

test: test-tools lint
	$(CARGO) test --workspace

bench: build
	@target/release/trysail bench --out $(OUT)

gen:
	$(CARGO) xtask gen
