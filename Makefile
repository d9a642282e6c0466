# Shortcuts; each recipe is a line or two that you can type as well. `make` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

cargo_deny := 0.20.2
cargo_machete := 0.9.2
cargo_cyclonedx := 0.5.9
cargo_llvm_cov := 0.9.1
cargo_bloat := 0.12.1
cargo_mutants := 27.1.0
mdbook := 0.5.4
# Not optimised: building that takes minutes, running these takes seconds. What several of them are built from is compiled once.
install_tool = cargo install --locked --debug --config profile.dev.debug=0 --target-dir $(target_dir)/tools

target_dir := $(or $(CARGO_TARGET_DIR),target)
ifneq ($(words $(target_dir)),1)
$(error CARGO_TARGET_DIR is "$(target_dir)": name a directory without spaces)
endif
# Where `cargo install` puts what lint and book need.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
control_plane := tests/control-plane/build.sh
helm := tests/helm/build.sh
krew := tests/krew/build.sh
azure_clients := tests/azure-clients/build.sh
cloud_controller_manager := tests/cloud-controller-manager/build.sh
autoscalers := tests/autoscalers/build.sh
cluster_api := tests/cluster-api/build.sh
# What is measured, for results to state; empty outside of a repository.
commit = $$(git describe --always --dirty --exclude '*' 2>/dev/null)
picture := docs/pictures/propagation
# With the tests that need network namespaces or a browser; the one with Cluster API's controllers has a target.
include_ignored := --include-ignored --skip real_machine_controller
# The failed share over the time of an operation. Where nothing depends on that time, one is enough.
drill_propagation = drill --runs $(or $(DRILL_RUNS),20) --strategy node-port,kube-proxy,healthz; \
	for delay in 0s 1s 2s 3s 4s 5s 7s 10s 15s; do drill --runs $(or $(DRILL_RUNS),20) --strategy admin-state,exclude-label --operation-delay $$delay; done

# Of the property tests, which draw from it.
with_seed = export PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-$$(date +%s)}; echo "PROPTEST_RNG_SEED=$$PROPTEST_RNG_SEED repeats the property tests"

# What the chart sets in the pods of agents and controllers, for what is measured of their memory.
as_in_pods = MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072

# What the admin state alone depends on. Faults and settings are in real time, of which the drill makes five times as much.
drill_arm_assumptions = '--pool-members nic' '--other-writer 1s' '--operation-delay-per-member 250ms' '--azure-settings {"readLag":"400ms"}' \
	'--azure-settings {"adminStateNone":"shown"}' '--other-writer 1s --azure-settings {"deviations":["ifMatchIgnored"]}' \
	'--other-writer 1s --azure-settings {"deviations":["supersededChangesLost"]}' \
	'--arm-fault {"match":{"method":"PUT"},"times":1,"action":{"answer":{"status":429,"retryAfter":1}}}' \
	'--arm-fault {"match":{"method":"PUT"},"times":1,"action":{"answer":{"status":503}}}'

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'sandbox, drill, drill-acceptance, test, stories, fuzz and the benchmarks pass ARGS on: make sandbox ARGS=--help'

.PHONY: sandbox
sandbox: build-tools ## build everything that headgate-lab sandbox needs, then run it: a cluster on this machine
	directory=$$(mktemp); $(control_plane) $(if $(findstring --workloads,$(ARGS)),,sandbox) >"$$directory" & cargo build --locked; \
	wait $$!; assets=$$(<"$$directory"); rm "$$directory"; exec $(target_dir)/debug/headgate-lab sandbox --assets "$$assets" $(ARGS)

.PHONY: drill
drill: build-tools namespace-tools ## what connections lose while nodes go away: the whole table, or make drill ARGS='--scenario scale-down'
	assets=$$($(control_plane)); cargo build --locked; drill() { HEADGATE_COMMIT=$(commit) $(target_dir)/debug/headgate-lab drill --assets "$$assets" "$$@"; }; \
	$(if $(ARGS),drill $(ARGS),$(drill_table))

# More than 20 minutes on two cores. In mass half of the nodes go at once: three, and two. Agents poll for notices once a second at any speed, so spot is shortened less.
drill_table = for scenario in scale-down maintenance mass; do drill --scenario $$scenario --runs 2; done; \
	drill --scenario mass --nodes 4 --runs 2; drill --scenario local --runs 2; \
	drill --scenario api-outage --strategy kube-proxy,healthz,admin-state,headgate; \
	drill --scenario spot --speed 3; drill --scenario spot --speed 2 --notice 10s; \
	drill --scenario scale-down --delete-delay 30s --runs 2; \
	drill --scenario scale-down --delete-delay 30s --runs 2 --strategy none,kube-proxy,deregistration --provider gcp; \
	drill --scenario scale-down --delete-delay 150s --speed 20 --strategy none,kube-proxy,deregistration --provider aws-cluster; \
	drill --scenario rolling-update --nodes 4 --speed 15; \
	drill --scenario rolling-update --speed 20 --pre-stop 305s --strategy none,kube-proxy,healthcheck-fail,pre-stop-sleep; \
	drill --scenario rolling-update --speed 20 --shutdown 310s --restart 0s --strategy none --provider aws-local --probe-interval 5s --probe-threshold 62

.PHONY: drill-acceptance
drill-acceptance: build-tools namespace-tools ## what must lose nothing in DRILL_RUNS (20) runs each: admin-state alone in maintenance and scale-down, ARM at 0.1 s, 1 s and 5 s; connections
	assets=$$($(control_plane)); cargo build --locked; \
	drill() { HEADGATE_COMMIT=$(commit) $(target_dir)/debug/headgate-lab drill --assets "$$assets" --runs $(or $(DRILL_RUNS),20) "$$@" $(ARGS); }; \
	for scenario in maintenance scale-down; do for delay in 100ms 5s; do \
	  drill --scenario $$scenario --strategy kube-proxy,admin-state --expect-no-loss admin-state --delete-delay 30s --operation-delay $$delay; \
	done; done; \
	drill --scenario scale-down --strategy node-port,kube-proxy,healthz,admin-state --expect-no-loss admin-state --speed 5; \
	drill --scenario scale-down --strategy none,admin-state,connections --nodes 4 --connections 900 --connection-lifetime mix --delete-delay 5s \
	  --expect-no-loss connections; \
	drill --scenario scale-down --strategy connections --nodes 4 --connections 0 --delete-delay 5s --speed 1 \
	  --expect-no-loss connections --expect-gone-within 15s

.PHONY: drill-assumptions
drill-assumptions: build-tools namespace-tools ## compare strategies over the time of an operation, and with each assumption the other way: tables and a picture in target/drill; takes three hours, with nothing else running
	assets=$$($(control_plane)); cargo build --locked; results=$(target_dir)/drill; mkdir -p $$results; \
	drill() { HEADGATE_COMMIT=$(commit) $(target_dir)/debug/headgate-lab drill --assets "$$assets" --scenario scale-down --nodes 4 --speed 5 --rate 60 "$$@" -o json $(ARGS); }; \
	{ $(drill_propagation); } > $$results/propagation.json; \
	{ for flags in '' '--probe-rule threshold' '--probe-threshold 1' '--probe-interval 15s' '--probers 2' '--power-off reset' --admin-down-resets \
	  '--propagation-delay 5s' '--poll-retry-after 10s' '--operation-delay 2s --operation-spread 1' '--pool-members nic --deleted-machines leave'; do \
	  drill --runs $(or $(DRILL_RUNS),10) --strategy node-port,kube-proxy,healthz,admin-state,headgate $$flags; \
	done; \
	for flags in $(drill_arm_assumptions); do drill --runs $(or $(DRILL_RUNS),10) --strategy admin-state $$flags; done; } > $$results/assumptions.json; \
	for name in propagation assumptions; do \
	  $(target_dir)/debug/headgate-lab drill-report $$results/$$name.json --comparison $$results/$$name.md --propagation-svg $$results/$$name.svg; \
	done

.PHONY: drill-picture
drill-picture: ## draw the README's picture from the results of drill-assumptions; what it does not show is left out of its file
	tests/integration/drill_report/totals.py < $(target_dir)/drill/propagation.json > $(picture).json.new
	mv $(picture).json.new $(picture).json
	$(target_dir)/debug/headgate-lab drill-report $(picture).json --propagation-svg $(picture).svg

.PHONY: test
test: build-tools namespace-tools browser prometheus-tools azure-clients helm krew static-binary ## run all tests, with the real control plane and the static binary
	assets=$$($(control_plane)); export KUBEBUILDER_ASSETS=$$assets; $(with_seed); $(if $(ARGS),cargo test --locked --workspace $(ARGS),tests/all.sh)

.PHONY: clippy
clippy: build-tools ## run clippy on all targets, with and without spans, with warnings denied
	cargo clippy --locked --workspace --all-targets -- -D warnings
	# --all-targets leaves out benchmarks that run by name only, also where they are named beside it.
	cargo clippy --locked --workspace --bench leader --bench scale -- -D warnings
	cargo clippy --locked -p headgate --no-default-features -- -D warnings

.PHONY: lint
lint: build-tools lint-tools client-tools clippy ## check formatting, clippy, licences, banned and unused dependencies, Go, Python, what the chart renders, workflows, the book
	cargo fmt --all --check
	cargo fetch --locked
	cargo deny --locked --offline --workspace check --hide-inclusion-graph bans licenses sources
	cargo machete
	$(control_plane) lint
	$(azure_clients) lint
	$(helm) lint
	tests/scans/build.sh kube-score
	tests/workflows/build.sh
	tests/book/build.sh $(target_dir)/book

.PHONY: advisories
advisories: build-tools deny-tools ## compare the dependencies with the RustSec database, which it fetches; scheduled, not part of lint
	cargo deny --locked --workspace check advisories

.PHONY: bench
bench: build-tools namespace-tools static-binary ## run the agent's benchmarks, with the real control plane and the image's program
	assets=$$($(control_plane)); $(as_in_pods) KUBEBUILDER_ASSETS=$$assets cargo bench --locked $(ARGS)

.PHONY: bench-leader
bench-leader: build-tools ## run the leader's benchmarks, with the real control plane and the emulator
	assets=$$($(control_plane)); $(as_in_pods) KUBEBUILDER_ASSETS=$$assets cargo bench --locked --bench leader $(ARGS)

.PHONY: scale
scale: build-tools ## measure what headgate costs a large cluster, and write a report with plots: make scale NODES=10000 AGENTS=300 MINUTES=10 (lab/scale/README.md)
	assets=$$($(control_plane)); HEADGATE_COMMIT=$(commit) $(as_in_pods) KUBEBUILDER_ASSETS=$$assets cargo bench --locked --bench scale

.PHONY: bench-table
bench-table: build-tools namespace-tools static-binary ## run all benchmarks BENCH_RUNS (5) times at a commit without changes, and write their table into benches/README.md; takes hours, with nothing else running
	[[ $(commit) =~ ^[0-9a-f]+$$ ]] || { echo 'bench-table: commit first, in a git checkout' >&2; exit 1; }
	assets=$$($(control_plane)); export $(as_in_pods) KUBEBUILDER_ASSETS=$$assets; runs=$(or $(BENCH_RUNS),5); \
	for run in $$(seq "$$runs"); do cargo bench --locked $(ARGS); cargo bench --locked --bench leader $(ARGS); done; \
	python3 benches/table.py "$(target_dir)/headgate-bench/$(commit)" --runs "$$runs" --write benches/README.md

.PHONY: fuzz
fuzz: build-tools ## run all fuzz targets in parallel for HEADGATE_FUZZ_SECONDS (600)
	HEADGATE_FUZZ_SECONDS=$${HEADGATE_FUZZ_SECONDS:-600} cargo test --locked --profile fuzz --test fuzz $(ARGS) -- --nocapture --test-threads 16

.PHONY: stories
stories: build-tools ## run the randomised stories of leaders, each with assumptions about Azure from its seed, and of the marker by probes, 20,000 sequences of the guard of rules, and 100,000 cases of each property of maintenances, optimised: make stories ARGS=5000, or some of the seeds: ARGS=1000..2000
	HEADGATE_STORIES=$(or $(ARGS),5000) cargo test --locked --profile fuzz -p headgate-controller -p headgate-agent --test stories --test probes_marker random_events -- --nocapture
	HEADGATE_SEQUENCES=$${HEADGATE_SEQUENCES:-20000} cargo test --locked --profile fuzz -p headgate-controller --lib sequences -- --nocapture
	$(with_seed); PROPTEST_CASES=$${PROPTEST_CASES:-100000} cargo test --locked --profile fuzz -p headgate-maintenance --lib --test plan --test rollout

.PHONY: model
model: build-tools ## explore the models of the protocol and of the election, optimised
	HEADGATE_PROVE=all cargo test --locked --profile fuzz -p headgate-controller -p headgate-kubernetes --lib -- protocol candidate::model --nocapture

.PHONY: fault-points
fault-points: build-tools ## disturb short stories at every fault point, optimised
	HEADGATE_FAULT_POINTS=$${HEADGATE_FAULT_POINTS:-all} HEADGATE_FAULT_PAIRS=$${HEADGATE_FAULT_PAIRS:-1000} \
	  cargo test --locked --profile fuzz -p headgate-controller -p headgate-maintenance --test stories $(ARGS) -- fault_points --nocapture

.PHONY: prove
prove: ## run all proofs one after the other, and print a table of them (docs/dev/proof.md); takes hours: make prove STORIES=5000 CHAOS_MINUTES=30 MUTANTS_MINUTES=60 SEED=1
	tests/prove.sh $(prove_parts)

prove_parts := model fault-points stories campaign mutants chaos coverage

.PHONY: campaign
campaign: build-tools ## generate HEADGATE_CAMPAIGN (2400) objects and as many settings files from their schemas, for the real API server with a controller, and for the program
	assets=$$($(control_plane)); export HEADGATE_CAMPAIGN_SEED=$${HEADGATE_CAMPAIGN_SEED:-$$(date +%s)}; echo "HEADGATE_CAMPAIGN_SEED=$$HEADGATE_CAMPAIGN_SEED repeats this campaign"; \
	HEADGATE_CAMPAIGN=$${HEADGATE_CAMPAIGN:-2400} KUBEBUILDER_ASSETS=$$assets \
	  cargo test --locked -p headgate -p headgate-lab -p headgate-maintenance --test integration --test lab $(ARGS) -- campaign_of --nocapture

.PHONY: static-binary
static-binary: build-tools ## build target/static/headgate, the program of the image and of a release
	host=$$(rustc -vV | sed -n 's/^host: //p'); static=$(target_dir)/static; \
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --release -p headgate --target "$$host" --target-dir "$$static"; \
	install -D -m 755 "$$static/$$host/release/headgate" "$$static/headgate"

.PHONY: size
size: build-tools size-tools ## print the size of the image's program by crate, as cargo-bloat estimates it
	host=$$(rustc -vV | sed -n 's/^host: //p'); \
	RUSTFLAGS='-C target-feature=+crt-static' CARGO_PROFILE_RELEASE_STRIP=none cargo bloat --locked --release --crates -n 40 \
	  -p headgate --target "$$host" --target-dir $(target_dir)/static $(ARGS)

.PHONY: control-plane
control-plane: ## build etcd, kube-apiserver, kube-proxy and the others; print their directory
	@$(control_plane)

.PHONY: azure-clients
azure-clients: client-tools ## fetch or build Microsoft's Python and Go clients for the emulator's tests; print their paths
	@$(azure_clients)

.PHONY: helm
helm: ## build the real helm for the chart's tests; print its directory
	@$(helm)

.PHONY: krew
krew: ## build the real krew for the check of the plugin manifest; print its directory
	@$(krew)

.PHONY: chart
chart: ## package the Helm chart, also as an OCI artefact in a layout on disk, in target/chart
	tools=$$($(helm)); rm -rf $(target_dir)/chart; mkdir -p $(target_dir)/chart; \
	"$$tools/helm" package charts/headgate --destination $(target_dir)/chart; \
	"$$tools/chart-oci-layout" $(target_dir)/chart/headgate-*.tgz $(target_dir)/chart/oci

.PHONY: cloud-controller-manager
cloud-controller-manager: build-tools ## test the emulator, and headgate's controllers beside it, with Azure's real cloud-controller-manager, which make test does not build
	assets=$$($(control_plane)); ccm=$$($(cloud_controller_manager)); \
	KUBEBUILDER_ASSETS=$$assets CLOUD_CONTROLLER_MANAGER=$$ccm cargo test --locked --test cloud_controller_manager --test lab $(ARGS) -- real_cloud_controller_manager \
	  beside_cloud_controller_manager::controllers --nocapture

.PHONY: chaos
chaos: build-tools clock-tools namespace-tools ## disturb three controllers beside the real cloud-controller-manager for MINUTES (30) by SEED (1), and check the history of all writes; reports in target/chaos
	assets=$$($(control_plane)); ccm=$$($(cloud_controller_manager)); \
	CHAOS_MINUTES=$(or $(MINUTES),30) CHAOS_SEED=$(or $(SEED),1) KUBEBUILDER_ASSETS=$$assets CLOUD_CONTROLLER_MANAGER=$$ccm \
	  cargo test --locked --test cloud_controller_manager --test lab $(ARGS) -- beside_cloud_controller_manager::chaos --nocapture

.PHONY: test-oldest
test-oldest: build-tools namespace-tools browser ## run the tests of manifests, agents and leaders with the oldest supported kube-apiserver, which make test does not build
	assets=$$(tests/oldest-control-plane/build.sh); \
	KUBEBUILDER_ASSETS=$$assets cargo test --locked --test integration --test lab $(ARGS) -- $(include_ignored) manifests:: node:: process:: leading::access leading::roles status:: why:: spot:: rollover:: fake_api:: maintenance::

.PHONY: maintenance
maintenance: build-tools ## run maintenances with the real controller-manager and scheduler, and kill the leader 12 times (make test: 3)
	assets=$$($(control_plane)); HEADGATE_MAINTENANCE_KILLS=$${HEADGATE_MAINTENANCE_KILLS:-12} KUBEBUILDER_ASSETS=$$assets \
	  cargo test --locked --test maintenance --test lab $(ARGS) -- --nocapture

.PHONY: autoscalers
autoscalers: build-tools ## test headgate with the real Karpenter and the cluster-autoscaler in CLUSTER_AUTOSCALER_DIR, which make test does not
	@[[ -x $${CLUSTER_AUTOSCALER_DIR:-}/cluster-autoscaler ]] || { echo 'autoscalers: set CLUSTER_AUTOSCALER_DIR to the directory cluster-autoscaler of a checkout of' \
	  'kubernetes/autoscaler, in which its program was built with the build tag kwok' >&2; exit 1; }
	assets=$$($(control_plane)); programs=$$($(autoscalers)); \
	KUBEBUILDER_ASSETS=$$assets AUTOSCALERS=$$programs cargo test --locked --test autoscalers --test lab $(ARGS) -- --nocapture --test-threads 1

.PHONY: cluster-api
cluster-api: build-tools ## test the hooks of Machines with Cluster API's own controllers, which make test does not build
	assets=$$($(control_plane)); cluster_api=$$($(cluster_api)); \
	KUBEBUILDER_ASSETS=$$assets CLUSTER_API=$$cluster_api cargo test --locked --test integration --test lab $(ARGS) -- --ignored real_machine_controller

.PHONY: measure-holds
measure-holds: build-tools ## measure how often headgate's holds of the shared Lease make reconciles of the real cloud-controller-manager fail
	assets=$$($(control_plane)); ccm=$$($(cloud_controller_manager)); \
	KUBEBUILDER_ASSETS=$$assets CLOUD_CONTROLLER_MANAGER=$$ccm cargo test --locked --test cloud_controller_manager --test lab $(ARGS) -- holds --nocapture

.PHONY: dashboards
dashboards: build-tools prometheus-tools ## run the queries of the dashboards on a Prometheus that scrapes a sandbox, and draw the charts of docs/guides/monitoring.md
	assets=$$($(control_plane)); HEADGATE_CHARTS=1 KUBEBUILDER_ASSETS=$$assets cargo test --locked --test integration --test lab every_query_runs

.PHONY: count
count: ## print the lines of code of the product, of the lab, and of tests and benchmarks
	@python3 tests/count.py

.PHONY: coverage
coverage: build-tools coverage-tools namespace-tools ## print how much of each product crate the tests of these crates run, without integration tests: make coverage, or make coverage CRATES='-p headgate-core'
	llvm=$$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p'); \
	export LLVM_COV=$$(command -v llvm-cov-$$llvm) LLVM_PROFDATA=$$(command -v llvm-profdata-$$llvm); \
	crates='$(or $(CRATES),$(patsubst crates/%,-p headgate-%,$(wildcard crates/*)))'; $(with_seed); cargo llvm-cov clean --workspace; \
	cargo llvm-cov --locked --no-report $$crates --lib --tests $(ARGS) -- --include-ignored; \
	cargo llvm-cov report $$crates --lcov --output-path $(target_dir)/coverage.info; \
	cargo llvm-cov report $$crates --json --output-path $(target_dir)/coverage.json; \
	python3 tests/count.py coverage $(target_dir)/coverage.info $(target_dir)/coverage.json

.PHONY: mutants
mutants: build-tools mutants-tools ## change decisions one at a time, and count the changes that no test notices: a share of them that SEED (1) chooses and that MINUTES (60) suffice for (tests/mutants/README.md)
	python3 tests/mutants/run.py $(or $(MINUTES),60) $(or $(SEED),1) $(CRATES)

.PHONY: docs
docs: build-tools ## regenerate the generated parts of the documentation
	UPDATE_EXPECT=1 cargo test --locked generated

.PHONY: book
book: book-tools ## build the documentation as a book, target/book/html, and check its links
	tests/book/build.sh $(target_dir)/book

.PHONY: release
release: build-tools release-tools ## build what a release consists of, target/dist/VERSION: make release VERSION=0.1.0
	release/build.sh "$(or $(VERSION),$(error set VERSION))" "$(target_dir)/dist/$(VERSION)"

.PHONY: clean
clean: ## remove target; the control plane stays in its cache
	cargo clean

.PHONY: build-tools
build-tools:
	@tests/prerequisites.sh build

.PHONY: namespace-tools
namespace-tools:
	@tests/prerequisites.sh namespaces

.PHONY: prometheus-tools
prometheus-tools:
	@tests/prerequisites.sh prometheus
.PHONY: browser
browser:
	@tests/prerequisites.sh browser

.PHONY: client-tools
client-tools:
	@tests/prerequisites.sh clients

.PHONY: clock-tools
clock-tools:
	@tests/prerequisites.sh clocks

.PHONY: book-tools
book-tools: build-tools
	@[[ $$(mdbook --version 2>&1) == 'mdbook v$(mdbook)' ]] || $(install_tool) --no-default-features --features search mdbook@$(mdbook)

.PHONY: release-tools
release-tools: build-tools
	@tests/prerequisites.sh release
	@[[ $$(cargo cyclonedx --version 2>&1) == *' $(cargo_cyclonedx)' ]] || $(install_tool) cargo-cyclonedx@$(cargo_cyclonedx)

.PHONY: deny-tools
deny-tools:
	@[[ $$(cargo deny --version 2>&1) == *' $(cargo_deny)' ]] || $(install_tool) cargo-deny@$(cargo_deny)

.PHONY: size-tools
size-tools:
	@[[ $$(cargo bloat --version 2>&1) == '$(cargo_bloat)' ]] || $(install_tool) cargo-bloat@$(cargo_bloat)

.PHONY: coverage-tools
coverage-tools: build-tools
	@tests/prerequisites.sh coverage
	@[[ $$(cargo llvm-cov --version 2>&1) == 'cargo-llvm-cov $(cargo_llvm_cov)' ]] || $(install_tool) cargo-llvm-cov@$(cargo_llvm_cov)

.PHONY: mutants-tools
mutants-tools: build-tools
	@[[ $$(cargo mutants --version 2>&1) == 'cargo-mutants $(cargo_mutants)' ]] || $(install_tool) cargo-mutants@$(cargo_mutants)

.PHONY: lint-tools
lint-tools: build-tools book-tools deny-tools
	@tests/prerequisites.sh lint
	@[[ $$(cargo machete --version 2>&1) == '$(cargo_machete)' ]] || $(install_tool) cargo-machete@$(cargo_machete)
