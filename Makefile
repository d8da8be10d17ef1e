TARGET := $(or $(CARGO_TARGET_DIR),target)
MODULE := $(TARGET)/release/liblockmod.so
COMMAND := $(TARGET)/release/lockmod
PREFIX ?= /usr/local
PACKAGES := $(TARGET)/packages

PROVER = $(TARGET)/languages/proof/bin/python -B proof/check.py

MUTANTS = cargo mutants --config .ci/mutants.toml --no-shuffle --timeout 300

.DEFAULT_GOAL := help
.PHONY: help deps build install uninstall deb packages release run nodes test proof model sim storm failovers servers versions fuzz mutants valgrind check bench picture clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' Makefile
deps: ## Install what the build and the tests lack (as root, on Debian), or list it
	@.ci/install
build: ## Build the module, the client and the command line tool (release); installs what that needs
	@.ci/install build
	cargo build --release
install: ## Install the result of `make build` under PREFIX, within DESTDIR (PREFIX=/usr/local DESTDIR=)
	@test -e $(MODULE) || { echo "there is no $(MODULE): run 'make build' first" >&2; exit 1; }
	install -D -m 755 $(MODULE) $(DESTDIR)$(PREFIX)/lib/redis/modules/liblockmod.so
	install -D -m 755 $(COMMAND) $(DESTDIR)$(PREFIX)/bin/lockmod
	packaging/share $(COMMAND) $(DESTDIR)$(PREFIX)/share
uninstall: ## Remove the files of `make install`, with the same PREFIX and DESTDIR
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/, lib/redis/modules/liblockmod.so bin/lockmod)
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/, man/man1/lockmod.1 man/man1/lockmod-*.1 \
		bash-completion/completions/lockmod zsh/site-functions/_lockmod fish/vendor_completions.d/lockmod.fish)
deb: ## Make a Debian package from the result of `make build`, in target/packages
	@test -e $(MODULE) || { echo "there is no $(MODULE): run 'make build' first" >&2; exit 1; }
	packaging/deb $(MODULE) $(COMMAND) $(PACKAGES)
packages: deps ## Make the packages for other languages, in target/packages: a wheel and sources for Python, a tarball for Node.js
	CARGO_TARGET_DIR=$(abspath $(TARGET))/packages-build $(TARGET)/languages/python/bin/maturin build --release --sdist \
		--manifest-path packages/python/Cargo.toml --out $(PACKAGES)
	CARGO_TARGET_DIR=$(abspath $(TARGET))/packages-build node packages/node/build.js
	npm pack ./packages/node --pack-destination $(PACKAGES) --loglevel=error
release: build packages ## Collect and check all files of a release, in target/release-files; nothing is uploaded
	packaging/release $(TARGET)/release-files
run: build ## The demo: five nodes on loopback, a lock over their quorum, lost nodes, rising fences; then all ends
	$(COMMAND) demo --module $(MODULE)
nodes: build ## Five nodes on loopback that stay until Ctrl-C, to play with
	$(COMMAND) nodes --module $(MODULE)
test: deps ## All tests, including those with real servers; skipped tests are listed at the end
	@rm -f $(TARGET)/tmp/skipped
	@# What runs in the background ignores Ctrl-C, and so would the commands that are tested.
	@# Most tests wait for leases and servers most of the time, so twice as many run at once.
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} \
		env --default-signal cargo test --no-fail-fast; status=$$?; \
		if [ -s $(TARGET)/tmp/skipped ]; then \
			echo "== skipped: $$(wc -l < $(TARGET)/tmp/skipped)"; cat $(TARGET)/tmp/skipped; \
		else echo "== skipped: 0"; fi; exit $$status
proof: deps ## Check the proof of the protocol, for any number of nodes and clients: with Z3 in seconds, then with cvc5
	$(PROVER)
	$(PROVER) --second
model: ## Check the model of the protocol with large bounds: half an hour or more, 4 GB of memory
	cargo test --release --no-default-features --features codec --test model -- --include-ignored --nocapture --test-threads 1
sim: deps ## The client over simulated nodes, network and clocks: 10 000 seeds in minutes; LOCKMOD_SEED replays one
	cargo test --release --test sim -- --include-ignored --nocapture
storm: deps ## Five nodes under faults for LOCKMOD_STORM_SECONDS (180), and a thousand crashes; LOCKMOD_SEED repeats a storm
	cargo test --release --test storm --test durability -- --ignored --nocapture --test-threads=1
failovers: deps ## Fifty failovers by real Sentinels, fifty each in Clusters of nine and of six, with clients at every server: half an hour
	cargo test --release --test durability -- --ignored --nocapture --test-threads 1 fifty_failovers
servers: deps ## The tests that start servers, on newer versions of Redis and Valkey from Debian's releases: ten minutes each
	@servers=$$(.ci/servers target/servers) || exit 1; for server in $$servers; do \
		echo "== $$($$server --version)"; \
		RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} \
		LOCKMOD_REDIS_SERVER=$$server env --default-signal cargo test --no-fail-fast --test node --test durability \
			--test client --test storm --test docs || exit 1; done
versions: deps ## Test this build together with that of commit OLD: master and replica, the same folder, client and nodes
	@test -n "$(OLD)" || { echo "give a commit: make versions OLD=..." >&2; exit 1; }
	@test -e target/versions/$(OLD) || git clone -q . target/versions/$(OLD)
	cd target/versions/$(OLD) && git checkout -q $(OLD) && env -u CARGO_TARGET_DIR cargo build
	LOCKMOD_OLD_MODULE=$(CURDIR)/target/versions/$(OLD)/target/debug/liblockmod.so \
		LOCKMOD_OLD_COMMAND=$(CURDIR)/target/versions/$(OLD)/target/debug/lockmod \
		cargo test --test durability -- --ignored versions
fuzz: ## Fuzz each reader of bytes for LOCKMOD_FUZZ_SECONDS (60), on a stable toolchain; needs `cargo install cargo-fuzz`
	for target in lock state request reply operations; do \
		mkdir -p fuzz/target/corpus/$$target && \
		cargo fuzz run --sanitizer none $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- \
			-max_total_time=$${LOCKMOD_FUZZ_SECONDS:-60} -timeout=10 || exit 1; done
# .ci/mutants.toml excludes changes that no test can notice, with the reasons.
mutants: deps ## Change engine, state file and client in one place at a time; a test must fail each time: a day; needs `cargo install cargo-mutants`
	@mkdir -p target/mutants
	$(MUTANTS) -o target/mutants/engine -f 'src/engine/**' -f 'src/codec/**' --no-default-features --features codec \
		-C --lib -C --test=engine -C --test=line || status=$$?; \
	$(MUTANTS) -o target/mutants/state -f src/module/state_file.rs -C --lib -C --test=durability || status=$$?; \
	$(MUTANTS) -o target/mutants/client -f 'src/client/**' --no-default-features --features client,codec \
		-C --lib -C --test=sim || status=$$?; \
	exit $${status:-0}
# The skipped tests depend on short times, which valgrind stretches; all those of a Cluster do.
valgrind: deps ## The tests of one node with every server under valgrind: ten minutes
	@command -v valgrind > /dev/null || apt-get install -q -y --no-install-recommends valgrind
	LOCKMOD_VALGRIND=1 cargo test --test node -- --test-threads 2 --skip names_that_are_used_once \
		--skip locks_are_keys_of_the_type_fencelock --skip locks_come_back_from \
		--skip replicas_and_the_append_only_file_are_told --skip a_failover_sends_everybody_away \
		--skip a_grant_waits_for_as_many_replicas --skip whatever_frees_the_lock_grants_it \
		--skip who_gets_a_slot_from_a_node_that_waits --skip many_leases_that_have_lapsed \
		--skip a_crash_soon_after_many_long_leases --skip cluster::
check: deps ## What CI runs before the tests: format, style, unit tests, lints, docs, each feature alone
	cargo fmt --check
	cargo test --test tidy
	cargo test --lib --quiet
	cargo clippy --all-targets -- -D warnings
	for crate in host python node; do \
		cargo fmt --check --manifest-path packages/$$crate/Cargo.toml && \
		cargo clippy --manifest-path packages/$$crate/Cargo.toml --target-dir $(TARGET)/packages-build -- -D warnings || exit 1; done
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items
	RUSTFLAGS="-D warnings" cargo check --target-dir $(TARGET)/alone --no-default-features
	RUSTFLAGS="-D warnings" cargo check --target-dir $(TARGET)/alone --no-default-features --features codec
	RUSTFLAGS="-D warnings" cargo check --target-dir $(TARGET)/alone --no-default-features --features module
	RUSTFLAGS="-D warnings" cargo check --target-dir $(TARGET)/alone --no-default-features --features client
	RUSTFLAGS="-D warnings" cargo check --target-dir $(TARGET)/alone --no-default-features --features cli
bench: build ## Benchmarks of lockmod and of what it replaces, with machine and versions printed
	cargo bench --bench node
	cargo bench --bench line
	cargo bench --bench client
	cargo bench --bench durability
	cargo bench --bench packages
picture: deps ## Regenerate docs/top.svg, the picture of `lockmod top`, from a real run
	cargo test --test client picture_of_top -- --ignored
clean: ## Remove build output
	cargo clean
