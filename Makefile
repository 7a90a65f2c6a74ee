# Everything a machine with Go needs. `make demo` and `make test` are the two
# commands of the README; the others are for developers.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# One static binary: gVisor's systrap platform and cgo do not mix. The race
# detector, which needs cgo, is switched on by tools/test.sh where it is used.
export CGO_ENABLED := 0

# -trimpath everywhere, tests too: a second set of flags would compile all of
# gVisor a second time.
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: build demo test lint fuzz bench mutants soak clean help

build: ## Build bin/warder
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o bin/warder ./cmd/warder

demo: build ## Show the whole story on this machine, with nothing but Go
	bin/warder demo

test: ## Run every test: units, real gVisor, a real Vault
	tools/test.sh

lint: ## golangci-lint and gofumpt, as pinned in tools/lint
	tools/lint/run.sh

fuzz: ## Fuzz every target for FUZZTIME each (default 30s)
	tools/fuzz.sh

bench: build ## Side by side: the start of a sandbox, the proxy, and the log
	tools/bench/run.sh

mutants: ## Take guards away, one by one: a mutant that survives names a missing test
	tools/mutants.sh

soak: build ## Verify a log of SOAKRECORDS (1000000), load the proxy for SOAKPROXYTIME (20m), start and kill runs for SOAKTIME (30m)
	tools/soak.sh

clean: ## Remove what was built here; caches outside the clone stay
	rm -rf bin bench-result.json

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
