# The commands people type. Everything real is in CMakePresets.json and scripts/.

JOBS ?= $(shell nproc)
PRESET = release

.PHONY: help deps build test demo asan fuzz bench golden format lint clean

help:
	@echo "make build    the program, at build/release/bin/sluice"
	@echo "make test     build, and run every test"
	@echo "make demo     inspect, generate and eval on a tiny model made on the spot"
	@echo "make bench    speed of prefill and decode against the machine's limits"
	@echo "make asan     the tests under the address and undefined-behaviour sanitizers"
	@echo "make fuzz     a minute of fuzzing for each file parser"
	@echo "make golden   make the golden files anew (needs Python packages, see tools/)"
	@echo "make format   clang-format over the tree;  make lint: clang-tidy"

deps:
	@scripts/install-deps

build: deps
	@cmake --preset $(PRESET) > build-$(PRESET).log 2>&1 || { cat build-$(PRESET).log; exit 1; }
	@rm -f build-$(PRESET).log
	cmake --build --preset $(PRESET) -j $(JOBS)

test: build
	ctest --preset $(PRESET)

asan: PRESET = asan
asan: build
	ctest --preset asan
