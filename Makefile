# make help tells what there is. GNU make 4.3 and Go are enough for all but
# docker; race needs a C compiler, as Go's race detector does.

GO          ?= go
DOCKER      ?= docker
IMAGE       ?= smss
FUZZTIME    ?= 1m
SEEDS       ?= 1000
STATICCHECK ?= $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
BENCHFLAGS  ?=

# Everything but the black-box suite, which runs the server as a process of
# its own.
INPROCESS = $$($(GO) list ./... | grep -v '/test$$')

.DEFAULT_GOAL := help
.PHONY: help build check test race single fuzz bench docker soak long sim readme clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the static binary ./smss
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o smss .

check: ## formatting, vet, staticcheck
	@unformatted=$$(git ls-files -z '*.go' | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w is due for:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(STATICCHECK) ./...

test: ## all tests
	$(GO) test ./...

race: ## all tests, tests and server under the race detector
	$(GO) test -race -count=1 ./...

single: ## the tests inside the process on one processor
	GOMAXPROCS=1 $(GO) test -count=1 $(INPROCESS)

fuzz: ## every fuzzer for FUZZTIME (1m) each
	@set -eu; found=0; \
	packages=$$($(GO) list ./...); \
	for package in $$packages; do \
		listed=$$($(GO) test -list '^Fuzz' $$package); \
		names=$$(echo "$$listed" | grep '^Fuzz' || :); \
		for name in $$names; do \
			found=$$((found + 1)); \
			echo "== $$package $$name, $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done; \
	echo "$$found fuzzers ran for $(FUZZTIME) each"

bench: ## smss and the bare server alternately; BENCHFLAGS for more
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o smss .
	./smss bench limit -compare $(BENCHFLAGS)

docker: ## the image IMAGE (smss)
	$(DOCKER) build -t $(IMAGE) .

soak: long ## the same as long

long: ## all tests with the big numbers; up to two hours
	SMSS_TEST_LONG=1 $(GO) test -count=1 -timeout 120m ./...

sim: ## the simulator over SEEDS (1000) seeds
	SMSS_SIM_SEEDS=$(SEEDS) $(GO) test -count=1 -timeout 120m -run Sim ./engine/...

readme: ## the configuration table of README.md, from package conf
	$(GO) test -count=1 -run '^TestReadmeSettings$$' . -update

clean: ## what make and go test have left
	rm -f smss *.test *.prof
