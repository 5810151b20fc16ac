# Everything that a developer, a newcomer or CI runs. `make` alone lists it.
#
# Each target works on a fresh Debian 12 with root and rustup: what it needs and does not find, scripts/tools installs,
# saying so. Variables: SEEDS (sim), CASES (interop, a part of their names), SECONDS (fuzz, per target; churn; chaos), SEED (chaos),
# COORDINATORS (chaos), RUNS (bench, compare, compare-siw), TESTS (bench), FRESH (fresh), PREFIX and DESTDIR (install).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
MAKEFLAGS += --no-print-directory
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

SEEDS ?= 1000
# Bash counts in SECONDS itself, so only a value from the command line or from here counts, never the environment's.
SECONDS = 60
RUNS ?= 5
PREFIX ?= /usr/local
FRESH ?= demo test
TESTS ?= baseline echo sessions read-write read-throughput loaded idle

CORE := -p sprat-proto -p sprat-store
BARE := x86_64-unknown-none

# The stages of `make test`, in order: what fails fastest comes first.
STAGES := fmt clippy doc api bare package unit sim chaos-short interop fuzz-short instructions demo

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

.PHONY: demo
demo: release ## Build, start a cluster, import a real file, compare, measure: what Sprat is, in one run
	target_dir="$$(scripts/target-dir)"
	"$$target_dir/release/sprat" demo

.PHONY: test
test: tools ## Everything that must pass: all stages below, one after the other
	@for stage in $(STAGES); do
	    echo "== $$stage"
	    $(MAKE) $$stage
	done

.PHONY: fresh
fresh: tools ## README's commands on a fresh machine, FRESH="demo test": a minimal Debian in a folder that is gone with it; root
	scripts/fresh $(FRESH)

.PHONY: check
check: fmt clippy doc bare ## The stages that compile but run nothing
	cargo test -q -p sprat-tidy

.PHONY: fmt
fmt: tools ## Formatting
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo fmt --manifest-path outside/Cargo.toml --check
	cargo fmt --manifest-path interop/packetdrill/Cargo.toml --check

.PHONY: clippy
clippy: tools ## Lints, for every target of the workspace
	cargo clippy --workspace --all-targets -- -D warnings

.PHONY: doc
doc: export RUSTDOCFLAGS := -D warnings -A rustdoc::private-intra-doc-links
doc: tools ## Rustdoc, private items too
	# The program and the library are both called sprat and share target/doc/sprat: one run of both
	# removes files that the other is writing. The library's pages come last and stay.
	cargo doc -p sprat-cli --no-deps --document-private-items
	cargo doc --workspace --exclude sprat-cli --no-deps --document-private-items

.PHONY: bare
bare: tools ## proto and store for a machine without an operating system: proof that they name no clock, socket or thread
	if scripts/tools --target $(BARE); then
	    cargo build $(CORE) --target $(BARE)
	else
	    echo "the target $(BARE) cannot be had here: the list of allowed dependencies must do"
	    cargo test -p sprat-tidy pure_crates
	fi

.PHONY: api
api: tools ## The public API of the crates that programs use, compared with docs/api
	scripts/api

.PHONY: package
package: tools ## The published crates as packages, each built from its package alone; nothing is uploaded
	scripts/package

.PHONY: unit
unit: tools ## Unit, integration and documentation tests, the house rules among them; the simulator's are `sim`
	scripts/tools --devices
	scripts/tools --cxx
	# The stores of others that `sprat bench ycsb` measures beside ours.
	scripts/tools --stores
	# Those of `abi` too: with a selection of its own, cargo would compile most crates once more.
	scripts/tools --verbs
	cargo test --workspace --exclude sprat-sim --no-fail-fast
	# The driver and the program with it, and coordinators on a real etcd: one build for both.
	scripts/tools --etcd
	cargo test -p sprat -p sprat-cli --features sprat/dpdk,sprat-cli/dpdk,sprat-cli/etcd --test devices --test commands -- dpdk etcd

.PHONY: abi
abi: tools ## libibverbs and librdmacm of our own: symbols and layouts beside Debian's, Debian's programs on them
	scripts/tools --verbs
	cargo test -p sprat-verbs --no-fail-fast

.PHONY: sim
# A thousand seeds run for so much longer than the compiler that more optimisation pays; all checks stay.
sim: export CARGO_PROFILE_TEST_OPT_LEVEL := 2
sim: tools ## The simulated cluster: SEEDS=1000 runs, each from its own seed
	SPRAT_SEEDS=$(SEEDS) cargo test -p sprat-sim --no-fail-fast

.PHONY: chaos
chaos: $(if $(filter-out 1,$(COORDINATORS)),tools,release) ## Real clusters under load and faults for SECONDS=3600, SEED= repeats a run's, COORDINATORS=3 on etcd: no wrong answer
	COORDINATORS="$(COORDINATORS)" scripts/chaos "$(if $(filter command line,$(origin SECONDS)),$(SECONDS),3600)" $(SEED)

.PHONY: chaos-short
chaos-short: release
	scripts/chaos 60 1

.PHONY: instructions
instructions: release outside ## The instructions of an echo and a read, one and 64 in progress, against their limits
	scripts/tools --valgrind
	target_dir="$$(scripts/target-dir)"
	scripts/instructions "$$target_dir/release/sprat" "$$target_dir/outside/release/sprat-outside"

.PHONY: outside
outside: tools
	target_dir="$$(scripts/target-dir)"
	cargo build --release --locked --manifest-path outside/Cargo.toml --target-dir "$$target_dir/outside"

.PHONY: packetdrill
packetdrill: tools ## Google's packetdrill on our TCP, in virtual time: upstream's scripts and ours; root, PACKETDRILL= a clone of it
	interop/packetdrill/run

.PHONY: interop
interop: tools ## iWARP with a real peer: the Linux driver siw in an emulated machine, in a network namespace of its own
	interop/run $(CASES)

.PHONY: fuzz
fuzz: tools ## Every fuzz target for SECONDS=60 each
	scripts/fuzz $(SECONDS)

.PHONY: fuzz-short
fuzz-short:
	@$(MAKE) fuzz SECONDS=5

.PHONY: bench
bench: release ## Medians of RUNS=5 runs of `sprat bench`: a table, and JSON lines in bench/
	scripts/bench $(RUNS) $(TESTS)

.PHONY: bench-devices
bench-devices: release ## Every packet device in one table, medians of RUNS=5 runs: all as root, what needs no root as a user
	scripts/bench-devices $(RUNS)

.PHONY: compare
compare: release ## `sprat rdma` beside libfabric and UCX over loopback TCP: latency and throughput, RUNS=5 rounds in turns
	scripts/compare-rdma $(RUNS)

.PHONY: compare-siw
compare-siw: verbs ## Debian's perftest on Linux's siw and on our libraries, in one guest of two processors, RUNS=5 rounds in turns
	interop/compare $(RUNS)

.PHONY: bench-verbs
bench-verbs: verbs ## Debian's perftest on our libibverbs beside raw TCP over loopback, as nobody: latency and throughput, RUNS=5 rounds
	scripts/tools --verbs
	scripts/bench-verbs $(RUNS)

.PHONY: release
release: tools ## The release build of the binary `sprat`
	cargo build --release -p sprat-cli

.PHONY: verbs
verbs: release ## libibverbs.so.1 and librdmacm.so.1 beside the binary, for `sprat exec`
	scripts/verbs

.PHONY: c
c: tools ## libsprat.so.0 and libsprat.a, the store's C API, beside the binary
	scripts/c

.PHONY: install
install: verbs c ## The binary, the libraries, sprat.h and pkg-config files below PREFIX=/usr/local (and DESTDIR, for packagers)
	DESTDIR="$(DESTDIR)" scripts/install "$(PREFIX)"

.PHONY: uninstall
uninstall: ## Take away what `install` put below PREFIX
	to="$(DESTDIR)$(PREFIX)"
	rm -f "$$to/bin/sprat" "$$to/include/sprat.h" "$$to"/lib/libsprat.{so,so.0,a}
	rm -f "$$to"/lib/pkgconfig/sprat{,-verbs}.pc "$$to"/lib/sprat/lib{ibverbs,rdmacm}.so{,.1}
	rm -f "$$to"/share/man/man1/sprat{,-*}.1 "$$to/share/bash-completion/completions/sprat"
	rm -f "$$to/share/zsh/site-functions/_sprat" "$$to/share/fish/vendor_completions.d/sprat.fish"
	if [ -d "$$to/lib/sprat" ]; then rmdir "$$to/lib/sprat"; fi

.PHONY: churn
churn: verbs ## Connections made and ended one after the other for SECONDS=60: 1,000 a second at least, and nothing left behind
	scripts/tools --verbs
	target_dir="$$(scripts/target-dir)"
	cc -O1 -o "$$target_dir/release/churn" crates/verbs/tests/clean/churn.c -lrdmacm -libverbs
	LD_LIBRARY_PATH="$$target_dir/release/verbs" "$$target_dir/release/churn" seconds $(SECONDS) 1000

.PHONY: tools
tools:
	@scripts/tools

.PHONY: stages
stages: # The stages' names, for .ci/run
	@echo $(STAGES)

# What the later stages install, download and build, in the order of the stages, all of it into folders that
# the stages before `chaos-short` do not use. .ci/run has it done beside those.
.PHONY: ahead
ahead: install-ahead release guest-ahead fuzz-ahead outside

.PHONY: install-ahead guest-ahead fuzz-ahead
install-ahead: tools
	for option in devices cxx stores verbs etcd interop valgrind; do
	    scripts/tools --$$option
	done
guest-ahead: tools
	interop/build
fuzz-ahead: tools
	scripts/fuzz --build

.PHONY: clean
clean: ## Forget all that was built
	cargo clean
	if [ -d fuzz ]; then cargo clean --manifest-path fuzz/Cargo.toml; fi
	rm -rf bench
