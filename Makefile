# train_gpt2. `make help` lists the targets. All code is in headers: one compiler command builds a program.
#   DEVICE=auto|cpu|cuda  PRECISION=fp32|bf16  ARCH=native|portable  HARDENING=1|0  CC=gcc  CXX=g++
#   NVCC=nvcc  MARCH=native  CFLAGS='-O3 -march=native -g'
# Without nvcc in PATH, NVCC is that of CUDA_HOME or /usr/local/cuda.
# DEVICE=auto is cuda if nvcc and a GPU are found. A cuda build also runs on CPUs; it is bf16, or fp32 before sm_80.
# CUDA_FLAGS=-lcublasLt may also name folders of CUDA's headers and libraries that nvcc does not search.
# build/ holds files that make can rebuild: programs, header dependencies, the last flags. data/ and runs/ are yours.

# train_gpt2cu is llm.c's name for the CUDA build
DEVICE ?= $(if $(filter train_gpt2cu,$(MAKECMDGOALS)),cuda,auto)
NVCC ?= $(eval NVCC := $(firstword $(shell command -v nvcc) \
	$(wildcard $(CUDA_HOME:%=%/bin/nvcc) /usr/local/cuda/bin/nvcc) nvcc))$(NVCC)
CUDA_FLAGS ?= -lcublasLt
CFLAGS ?= -O3 -march=$(MARCH) $(cpu_options) -g
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

ifeq ($(filter $(DEVICE),auto cpu cuda),)
$(error DEVICE=$(DEVICE): expected auto, cpu or cuda)
endif
# "NVIDIA H100, 9.0"; without a working driver nvidia-smi prints an error to stdout
gpu := $(if $(filter cpu,$(DEVICE)),,$(shell nvidia-smi -i 0 --query-gpu=name,compute_cap --format=csv,noheader 2>&- | \
	sed -n '/, [0-9]*\.[0-9]$$/p'))
device := $(if $(filter auto,$(DEVICE)),$(if $(and $(gpu),$(shell command -v $(NVCC))),cuda,cpu),$(DEVICE))
PRECISION ?= $(if $(filter cuda,$(device)),$(if $(filter 7.%,$(lastword $(gpu))),fp32,bf16),fp32)
override PRECISION := $(subst FP,fp,$(subst BF,bf,$(PRECISION)))
ifeq ($(filter $(PRECISION),fp32 bf16),)
$(error PRECISION=$(PRECISION): expected fp32 or bf16)
endif

# ---- how one program is compiled. A target may set compiler, precision, comm, options, libraries, CFLAGS

compiler = $(CC) -x c -std=gnu11
precision = $(PRECISION)
# comm = yes: the program communicates between ranks, through MPI, and through NCCL in a cuda build
mpi = $(and $(comm),$(HAVE_MPI))
mpi_libraries = $(if $(mpi),$(MPI_LIBS))
nccl = $(and $(comm),$(HAVE_NCCL))
# a field that an initializer leaves out is 0; compilers differ in when they warn of it
LANGUAGE := -D_GNU_SOURCE -I. -Wall -Wextra -Wno-missing-field-initializers -Werror -fopenmp -fno-math-errno \
	-fno-trapping-math
defines = -DPRECISION_$(subst fp,FP,$(subst bf,BF,$(precision))) $(if $(mpi),-DHAVE_MPI $(MPI_CFLAGS))
dependencies = -MMD -MP -MT $@ -MF build/depend/$(subst /,-,$@).d
# llm.c's GPU_COMPUTE_CAPABILITY=90, the GPU of this machine, or every architecture that nvcc and the kernels know
ARCHITECTURES = $(or $(GPU_COMPUTE_CAPABILITY:%=-arch=sm_%),$(if $(gpu),-arch=sm_$(subst .,,$(lastword \
	$(gpu)))),$(foreach sm,$(filter $(if $(filter fp32,$(precision)),sm_75) sm_80 sm_90 sm_100 sm_120,$(shell \
	$(NVCC) --list-gpu-code)),-gencode arch=$(sm:sm_%=compute_%),code=$(sm)))
links_with = -lcjson -lm -lpthread $(mpi_libraries) $(libraries)

define begin
$(announce)
@mkdir -p $(@D) build/depend
@echo 'compile    $@'
endef

# nvcc passes the host code to the C++ compiler without some of the source's parentheses
define compile_cuda
$(begin)
@$(NVCC) -x cu -std=c++20 -O3 -lineinfo $(ARCHITECTURES) \
	$(call for_nvcc,$(filter-out -Werror,$(LANGUAGE)) -march=$(MARCH) -Wno-parentheses $(options) $(defines)) \
	-DHAVE_CUDA $(nccl:yes=-DHAVE_NCCL) $(hardening_cuda) \
	$(dependencies) $< -o $@ $(CUDA_FLAGS) $(cuda_rpath) -lcjson -lgomp \
	$(call for_nvcc,$(mpi_libraries)) $(nccl:yes=-lnccl) $(libraries)
endef

define compile
$(begin)
@$(compiler) $(LANGUAGE) $(CFLAGS) $(options) $(defines) $(hardening) $(hardening_link) $(dependencies) $< -o $@ \
	$(links_with)
endef
compile_for_device = $(if $(filter cuda,$(device)),$(compile_cuda),$(compile))
# describes this machine before the first command of a build, and stops if a requirement is missing
announce = $(if $(announced),,$(eval announced := yes)$(shell CC='$(CC)' PRECISION='$(PRECISION)' \
	HAVE_CMOCKA='$(HAVE_CMOCKA)' HAVE_MPI='$(HAVE_MPI)' DEVICE='$(device)' \
	HAVE_NCCL='$(if $(filter cuda,$(device)),$(HAVE_NCCL))' \
	HARDENED='$(HARDENED)' NVCC='$(NVCC)' GPU='$(gpu)' scripts/found.sh >&2)\
	$(if $(filter-out 0,$(.SHELLSTATUS)),$(error nothing was built)))

include scripts/libraries.mk scripts/hardening.mk scripts/portable.mk

# ---- what programs depend on

# remember FILE,TEXT writes TEXT to FILE, unless FILE already holds it. Under `make -n` nothing is written, and
# FILE counts as changed.
dry_run := $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
remember = $(eval $(shell echo '$(2)' | cmp -s - $(1) || \
	$(if $(dry_run),echo .PHONY: $(1),{ mkdir -p $(dir $(1)) && echo '$(2)' > $(1); })))
# drop nvcc's # lines: they name temporary files
cuda_compiler = $(NVCC) $(MARCH) $(ARCHITECTURES) $(CUDA_FLAGS) $(shell { $(NVCC) --version; $(CXX) --version; \
	grep -m 1 'model name' /proc/cpuinfo; echo | $(NVCC) -x cu -E -include nccl.h $(CUDA_FLAGS) - | grep -v '^\#'; } \
	2>/dev/null | cksum)
# Programs depend on their flags: build/flags, or build/cuda/flags, which DEVICE does not change
ifneq ($(filter-out build/cuda/% build/vectors/%,$(GOALS)),)
$(call remember,build/flags,$(CC) $(LANGUAGE) $(CFLAGS) $(ARCH) $(device) $(PRECISION) $(HAVE_MPI) \
	hardening=$(HARDENED) $(if $(filter cuda,$(device)),$(NO_MULTI_GPU) $(cuda_compiler)))
endif
ifneq ($(filter build/cuda/%,$(GOALS)),)
$(call remember,build/cuda/flags,$(cuda_compiler) $(PRECISION) $(HAVE_MPI) \
	 $(NO_MULTI_GPU) hardening=$(HARDENED))
endif

# ---- targets. The text after ## is the line of `make help`: its group, then what the target does

all: train_gpt2 $(if $(HAVE_CMOCKA),test_gpt2) ## build: ./train_gpt2 and ./test_gpt2 (the default)

train_gpt2 train_gpt2cu: comm = yes
train_gpt2 train_gpt2cu: train_gpt2.cu build/flags $(portable_program)
	$(compile_program)

test_gpt2: options = -DTESTING -Wno-unused-function
test_gpt2: libraries = -lcmocka
test_gpt2: test_gpt2.cu build/flags
	$(compile_for_device)

include dev/bench/bench.mk dev/test/tests.mk dev/fuzz/fuzz.mk scripts/quick.mk scripts/install.mk
-include $(wildcard build/depend/*.d)

build_parallel = @$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

clean: ## build: remove the files that make built; data/ and runs/ stay
	rm -rf build train_gpt2 train_gpt2cu test_gpt2

# The text is found before anything is compiled. Its name, with any quotes and blanks, comes through the environment.
train: export train_on := $(value DATA)
train: ## train: a small GPT on the King James Bible, about two minutes plus installing; DATA=FILE takes any text
	@[ -z "$$train_on" ] || scripts/text.sh data "$$train_on" >/dev/null
	@scripts/setup.sh $(if $(value DATA),build,train) && scripts/text.sh data "$$train_on" >/dev/null
	@$(MAKE) --no-print-directory --silent train_gpt2
	@scripts/train.sh "$$train_on"

sources = git ls-files -co --exclude-standard '*.h' '*.c' '*.cu' '*.cuh'
format: ## check: lay out every C source with clang-format
	@scripts/setup.sh lint && $(sources) | xargs clang-format -i

format-check: ## check: name the sources that `make format` would change, and fail
	@scripts/setup.sh lint && $(sources) | xargs clang-format --dry-run -Werror

lint: ## check: clang-tidy, cppcheck and shellcheck without a finding
	@scripts/setup.sh lint && scripts/lint.sh

help: ## build: this list
	@for group in build install train test bench check; do \
		echo "$$group"; sed -n "s/^\([a-z0-9-]*\):.*## $$group: /\1|/p" \
		Makefile dev/*/*.mk scripts/*.mk | awk -F '|' '{ printf "  make %-16s %s\n", $$1, $$2 }'; done
	@sed -n '2,3s/^#  /options:/p' Makefile

.PHONY: all clean train format format-check lint help
