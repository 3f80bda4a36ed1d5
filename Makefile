# The commands people type. Everything real is in CMakePresets.json and scripts/.

JOBS ?= $(shell nproc)
PRESET = release
MINUTES = 6
BIN = build/$(PRESET)/bin
# Builds in any folder and in any clone share compiled objects: ccache keeps them in the user's cache folder.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR = 1
LAUNCHER = $$(command -v ccache >/dev/null && echo -DCMAKE_CXX_COMPILER_LAUNCHER=$$(command -v ccache))
# Where there is no GPU, code for it is compiled and not run by tests and linting: it need not be optimised there.
CUDA_QUICK = OFF
NO_GPU = $$(nvidia-smi -L >/dev/null 2>&1 && echo OFF || echo ON)
CUDA_HERE = $$(nvidia-smi -L >/dev/null 2>&1 && echo -DSLUICE_CUDA=AUTO -DCMAKE_CUDA_ARCHITECTURES=native)
# A configured release build has the program too.
DEMO = $(if $(wildcard build/release/build.ninja),release,demo)
SOURCES = $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

.PHONY: help deps test-deps build program test demo install deb asan tsan python fuzz nightly coverage bench golden \
  format format-check lint clean

help:
	@echo "make demo     the program, for this machine, and the whole story on the model that comes along"
	@echo "make test     build everything, and run every test"
	@echo "make build    program, tests and benchmarks; CUDA where nvcc is found"
	@echo "make install  program, library, man page and completions below PREFIX=/usr/local"
	@echo "make deb      the same as a Debian package, in build/demo"
	@echo "make asan     the tests under the address and undefined-behaviour sanitizers"
	@echo "make tsan     what runs in threads under ThreadSanitizer"
	@echo "make python   install the Python package into a fresh environment, and run its tests"
	@echo "make fuzz     fuzzing of the file parsers, MINUTES=6 in all; INPUTS=FOLDER goes on where it ended"
	@echo "make coverage lines of the file parsers that tests and fuzzing corpus run; fails below 95%"
	@echo "make nightly  what CI has no time for: an hour or two of sanitizers, fuzzing, long tables, path analysis"
	@echo "make bench    speed of prefill and decode against the machine's limits"
	@echo "make golden   make the golden files anew (downloads Python packages)"
	@echo "make format   clang-format over the tree;  make lint: clang-tidy"

deps:
	@scripts/install-deps

build: deps
	@cmake --preset $(PRESET) --log-level=WARNING $(LAUNCHER) -DSLUICE_CUDA_QUICK=$(CUDA_QUICK) $(CMAKE_FLAGS)
	cmake --build --preset $(PRESET) -j $(JOBS)

# Before the build, which makes what it finds the packages for.
test-deps:
	@scripts/install-deps build test
	@scripts/install-deps browser || echo "no Chromium; the tests of pages will be skipped"

test: test-deps
	$(MAKE) build CUDA_QUICK="$(NO_GPU)"
	ctest --preset $(PRESET)

# Neither tests nor code for GPUs that are not here: the first demo should not take long.
program: deps
	@cmake --preset demo --log-level=WARNING $(LAUNCHER) $(CUDA_HERE) $(CMAKE_FLAGS)
	cmake --build --preset demo -j $(JOBS)

demo: deps
	$(if $(filter release,$(DEMO)),cmake --build --preset release -j $(JOBS) --target sluice,$(MAKE) program)
	build/$(DEMO)/bin/sluice demo

PREFIX = /usr/local
install: program
	cmake --install build/demo --prefix $(PREFIX)

deb: program
	@scripts/install-deps package
	cd build/demo && cpack -G DEB

asan:
	$(MAKE) PRESET=asan test

# TSAN=threads_test leaves out whole models, and with them most of the building.
TSAN = threads_test threads_models_test
tsan:
	@scripts/install-deps build fuzz
	@cmake --preset tsan --log-level=WARNING $(LAUNCHER)
	cmake --build --preset tsan -j $(JOBS) --target $(TSAN)
	ctest --preset tsan -R '^($(subst $(eval) ,|,$(strip $(TSAN))))$$'

# scripts/python-test --hf has the tests with transformers too.
python:
	@scripts/python-test

fuzz:
	@scripts/install-deps build fuzz
	@cmake --preset fuzz --log-level=WARNING $(LAUNCHER)
	cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	ctest --preset fuzz -R '_corpus$$'
	@scripts/fuzz build/fuzz/bin $(MINUTES) $(INPUTS)

nightly:
	@scripts/nightly

coverage:
	@scripts/install-deps build coverage
	@cmake --preset coverage --log-level=WARNING $(LAUNCHER)
	@scripts/coverage $(JOBS)

bench:
	@scripts/install-deps bench
	$(MAKE) build
	$(BIN)/sluice_bench bench/cases/*.json

golden:
	@scripts/install-deps golden
	build/golden-venv/bin/python tools/make_golden.py

format:
	@scripts/install-deps lint
	@clang-format -i $(SOURCES)

format-check:
	@scripts/install-deps lint
	@clang-format --dry-run --Werror $(SOURCES)

# CHECKS=-clang-analyzer-* leaves out the path analysis, which takes half of the time and more. FOLDERS of src.
FOLDERS = .*
lint: format-check
	$(MAKE) build CUDA_QUICK="$(NO_GPU)"
	run-clang-tidy -quiet -p build/$(PRESET) -j $(JOBS) $(if $(CHECKS),-checks='$(CHECKS)') \
	  -extra-arg=-Wno-unknown-warning-option -extra-arg=-Wno-ignored-optimization-argument \
	  -extra-arg=-Wno-string-conversion -extra-arg=-Wno-unused-command-line-argument '/src/$(FOLDERS)/.*\.cpp$$'

clean:
	rm -rf build
