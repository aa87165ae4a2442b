# Everything that can be done with this tree; `make` alone lists it.
#
# A target installs what it needs on a Debian machine when it is missing and make runs as root
# (scripts/need): `make run` needs Go and git, `make test` a C compiler besides, for -race.

GO          ?= go
FUZZTIME    ?= 30s
BENCHSTAT   ?= golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
PREFIX      ?= /usr/local
DESTDIR     ?=

# The commit is stamped into the binary where git can tell it: a tarball has none, and git refuses
# a tree that belongs to another user.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)

# VERSION names a release where no tag of git does: make build VERSION=v0.3.0.
STAMP := $(if $(VERSION),-X main.release=$(VERSION))

export GO

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## compile bin/roxie
	$(GO) build -trimpath -buildvcs=$(VCS) -ldflags '$(STAMP)' -o bin/roxie ./cmd/roxie

.PHONY: run
run: build ## as root: two endpoints move verified data, with rates beside raw AF_XDP's
	@mkdir -p build
	bin/roxie perf send_bw --lab --verify -s 65536 -m 4096 -D 2
	bin/roxie perf write_bw --lab --verify -s 65536 -m 4096 -D 2
	bin/roxie perf read_bw --lab --verify -s 65536 -m 4096 -D 2
	bin/roxie bench --only raw,write,read,send,send_lat --json build/run.json

.PHONY: serve
serve: build ## as root: an endpoint and clients move SIZE (1G), with both ends killed on the way
	@scripts/serve-session $(SIZE)

.PHONY: unit-session
unit-session: build ## as root: dist/roxie.service under a systemd of its own, sandbox and all
	@scripts/unit-session

.PHONY: soak
soak: ## as root: `roxie serve` for MINUTES (10) while links flap, peers are killed, files are read again
	ROXIE_SOAK=$(or $(MINUTES),10) $(GO) test -count=1 -timeout 0 -run '^TestSoak$$' -v ./cmd/roxie

.PHONY: interop
interop: build ## as root: against Linux's rdma_rxe and stock tools in a guest (JSON=FILE)
	@scripts/need interop
	ROXIE_GUEST=1 $(GO) test -count=1 ./internal/qemu/...
	$(GO) build -trimpath -buildvcs=false -o bin/interop ./interop
	bin/interop -roxie bin/roxie $(if $(JSON),-json $(JSON))

.PHONY: interop-full
interop-full: build ## the same with the cross product, for an hour or two (JSON=, FOR=30m); goes on where it was
	@scripts/need interop
	$(GO) build -trimpath -buildvcs=false -o bin/interop ./interop
	bin/interop -roxie bin/roxie -full -resume -json $(or $(JSON),build/interop-full.json) $(if $(FOR),-for $(FOR))

.PHONY: interop-doc
interop-doc: ## write docs/interop.md from what interop-full has (JSON=FILE)
	$(GO) run ./interop -doc docs/interop.md -json $(or $(JSON),build/interop-full.json)

.PHONY: bench-guest
bench-guest: ## as root: roxie and rxe over one veth inside the guest, in turns (JSON=FILE)
	@scripts/need interop
	$(GO) build -trimpath -buildvcs=false -o bin/interop ./interop
	bin/interop -bench $(if $(JSON),-json $(JSON))

.PHONY: keys-guest
keys-guest: ## as root: the rules of docs/keys.md on Linux in that guest, and on roxie (UPDATE=1 records)
	@scripts/need interop module
	$(GO) run ./interop/keys $(if $(UPDATE),-update)

.PHONY: guest
guest: build ## as root: boot that guest and read commands for it
	@scripts/need interop
	$(GO) build -trimpath -buildvcs=false -o bin/interop ./interop
	bin/interop -shell

# The second run is of what the race detector is too slow for, or blind to: allocations, most of the
# rounds of the soak tests, memory that is written by way of a veth.
.PHONY: test
test: ## unit, simulation and veth tests with the race detector (root, or the veth tests skip)
	@scripts/need race
	CGO_ENABLED=1 $(GO) test -race -timeout 8m ./...
	$(GO) test -timeout 10m ./xdp ./verbs ./rxe/...
	$(GO) test -tags xdpdebug ./xdp

.PHONY: generate
generate: ## compile the eBPF program again (its output is committed)
	@scripts/need bpf
	$(GO) generate ./...

.PHONY: generate-check
generate-check: ## fail if the committed eBPF objects are not what the source gives
	@scripts/need bpf
	@scripts/generate-check

.PHONY: bench
bench: build ## as root: raw AF_XDP, roxie and TCP in turns, crowds, losses: tables, JSON, plots (≤ 10 min)
	@scripts/need iperf
	@mkdir -p build/bench
	bin/roxie bench --full --json build/bench/bench.json | tee build/bench/bench.txt
	@test -s build/bench/bench.txt
	$(GO) run ./bench/plot -json build/bench/bench.json -o build/bench

.PHONY: bench-doc
bench-doc: ## put the results of the last make bench into docs/performance.md
	$(GO) run ./bench/plot -json build/bench/bench.json -o docs/performance \
		-doc docs/performance.md -text build/bench/bench.txt

.PHONY: bench-engine
bench-engine: ## the engine in memory: ns a message and packet, allocations (BENCH=regexp COUNT=n)
	$(GO) test -run '^$$' -bench '$(or $(BENCH),Engine|Responder|ICRC|QPs)' -benchmem \
		-count $(or $(COUNT),1) ./rxe

.PHONY: bench-packages
bench-packages: ## the benchmarks of all packages: ns, bytes and allocations
	$(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-compare
bench-compare: ## two outputs of bench-engine: make bench-compare OLD=old.txt NEW=new.txt
	@[ -n "$(OLD)" ] && [ -n "$(NEW)" ] || { echo 'make bench-compare OLD=old.txt NEW=new.txt,' \
		'each from make bench-engine COUNT=6 > FILE' >&2; exit 2; }
	$(GO) run $(BENCHSTAT) $(OLD) $(NEW)

.PHONY: bench-guard
bench-guard: build ## as root: fail if something became much slower, or allocates (ratios only)
	$(GO) test -count=1 -run 'NoAlloc|IdleQPMemory|Guard' ./rxe ./xdp ./bench
	bin/roxie bench --guard

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || \
		{ echo "not gofmt-clean:" $$unformatted >&2; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME each (FUZZ= picks some by name)
	@scripts/fuzz $(FUZZTIME) $(FUZZ)

.PHONY: sim
sim: build ## simulate the engine under every fault (RUNS= from SEED=, one a core at a time)
	bin/roxie sim --seed $(or $(SEED),1) --runs $(or $(RUNS),40) --jobs 0

.PHONY: soak-sim
soak-sim: build ## the same for HOURS= (fractions too), from a seed that nobody has chosen
	@mkdir -p build
	bin/roxie sim --seed $(or $(SEED),$$(date +%s)000) --jobs 0 --json build/soak-sim.json \
		--duration $$(awk 'BEGIN { print 3600 * $(or $(HOURS),1) }')

.PHONY: mutants
mutants: ## plant each known bug in the engine: the simulation must find it
	$(GO) test -tags mutants -count=1 -timeout 10m -run TestMutants ./rxe/sim/soak

.PHONY: vet-arm64
vet-arm64: ## go vet as an arm64 machine would see the tree
	GOARCH=arm64 $(GO) vet ./...

.PHONY: test-arm64
test-arm64: ## the ring tests as arm64 code in an emulator: memory order, alignment
	@scripts/need arm64
	@scripts/test-arm64

.PHONY: check
check: ## what CI runs: all gates of .ci/run
	@.ci/run

.PHONY: man
man: build ## write the manual pages and the completions of three shells below build
	@rm -rf build/man build/completions
	@mkdir -p build/completions
	bin/roxie manual build/man
	@for shell in bash zsh fish; do \
		bin/roxie completion $$shell >build/completions/$$shell || exit 1; done

.PHONY: commands-doc
commands-doc: ## write docs/commands again from what --help says
	$(GO) test -count=1 -run '^TestCommandDocs$$' ./cmd/roxie -update-manual

.PHONY: install
install: man ## copy the binary, its manual pages and completions below PREFIX (/usr/local)
	@scripts/install $(DESTDIR)$(PREFIX)

.PHONY: uninstall
uninstall: ## remove what install put there
	@scripts/install --remove $(DESTDIR)$(PREFIX)

.PHONY: deb
deb: ## build/roxie_VERSION_ARCH.deb, a Debian package (VERSION=0.3.0)
	@scripts/need deb
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -ldflags '-s -w $(STAMP)' -o build/roxie ./cmd/roxie
	VERSION=$(VERSION) LEVEL=$(LEVEL) scripts/deb build/roxie

.PHONY: deb-test
deb-test: LEVEL = 1 # a package to try is a tenth larger and packed in a sixth of the time
deb-test: deb ## as root: install that package in a root of its own, use it, purge it: nothing may stay
	@scripts/need deb-test
	scripts/deb-test build/roxie_*.deb

.PHONY: deb-lint
deb-lint: deb ## what lintian has to say about that package (half a minute)
	@scripts/need lintian
	lintian --allow-root --fail-on error,warning build/roxie_*.deb

.PHONY: clean
clean: ## remove what was built
	rm -rf bin build
