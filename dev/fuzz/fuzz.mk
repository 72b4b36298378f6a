# How the fuzz targets are compiled and started. The Makefile includes this file.
#   build/fuzz/NAME           dev/fuzz/fuzz_NAME.c with clang's libFuzzer, AddressSanitizer and UBSan
#   build/sanitize/replay     every target in one program, which runs files of inputs; any compiler, no libFuzzer
# FUZZ="flags model" runs only these targets, FUZZ_SECONDS=600 each of them for ten minutes, FUZZ_JOBS=2 two at a time.

CLANG ?= clang
FUZZ_SECONDS ?= 30
FUZZ_JOBS ?= 1
FUZZERS := $(patsubst dev/fuzz/fuzz_%.c,build/fuzz/%,$(wildcard dev/fuzz/fuzz_*.c))
# clang may have no OpenMP: gcc's omp.h and library, searched last
GCC_FOLDER = $(dir $(shell gcc -print-file-name=libgomp.so))

build/fuzz/%: compiler = $(CLANG) -x c -std=gnu11
build/fuzz/%: LANGUAGE := $(filter-out -fopenmp,$(LANGUAGE)) -Wno-unknown-pragmas
build/fuzz/%: CFLAGS = -O1 -g -fno-omit-frame-pointer -idirafter $(GCC_FOLDER)include
build/fuzz/%: options = -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
build/fuzz/%: libraries = -L$(GCC_FOLDER) -lgomp

build/fuzz/%: dev/fuzz/fuzz_%.c build/flags
	$(compile)
build/sanitize/replay: dev/fuzz/replay.c build/flags
	$(compile)

fuzz: ## test: fuzz every reader of files, half a minute each; FUZZ_SECONDS=600, FUZZ="flags model"
	@scripts/setup.sh fuzz
	$(build_parallel) $(if $(FUZZ),$(addprefix build/fuzz/,$(FUZZ)),$(FUZZERS))
	@FUZZ_JOBS='$(FUZZ_JOBS)' dev/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ)

.PHONY: fuzz
