# train_gpt2. `make help` lists the targets. All code is in headers, so a program is one compiler command.
#   DEVICE=auto|cpu|cuda  PRECISION=fp32|bf16  ONEDNN=1|0  CC=gcc  CXX=g++  NVCC=nvcc  CFLAGS='-O3 -march=native -g'
# DEVICE=auto is cuda where there are nvcc and a GPU; a cuda build runs on CPUs too. PRECISION is bf16 with cuda.
# CUDA_FLAGS=-lcublasLt says where CUDA's headers and libraries are too, where nvcc does not know.
# build/ holds what can be made again: test programs, header dependencies, the flags last used. data/, runs/: yours.

DEVICE ?= auto
ONEDNN ?= 1
NVCC ?= nvcc
CUDA_FLAGS ?= -lcublasLt
CFLAGS ?= -O3 -march=native -g
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

ifeq ($(filter $(DEVICE),auto cpu cuda),)
$(error DEVICE=$(DEVICE): expected auto, cpu or cuda)
endif
GPU := $(if $(filter cpu,$(DEVICE)),,$(shell nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1))
device := $(if $(filter auto,$(DEVICE)),$(if $(and $(GPU),$(shell command -v $(NVCC))),cuda,cpu),$(DEVICE))
PRECISION ?= $(if $(filter cuda,$(device)),bf16,fp32)
ifeq ($(filter $(PRECISION),fp32 bf16),)
$(error PRECISION=$(PRECISION): expected fp32 or bf16)
endif

# ---- how one program is compiled. A target may set its own precision, onednn, options and libraries

precision = $(PRECISION)
onednn = $(HAVE_ONEDNN)
# yes in programs that talk to other processes: through MPI, and NCCL where nvcc compiles, if those are found
comm =
LANGUAGE := -D_GNU_SOURCE -I. -Wall -Wextra -Werror -fopenmp -fno-math-errno -fno-trapping-math
defines = -DPRECISION_$(shell echo $(precision) | tr a-z A-Z) $(if $(onednn),-DHAVE_ONEDNN) \
	$(if $(and $(comm),$(HAVE_MPI)),-DHAVE_MPI $(MPI_CFLAGS))
mpi_libraries = $(if $(and $(comm),$(HAVE_MPI)),$(MPI_LIBS))
dependencies = -MMD -MP -MT $@ -MF build/depend/$(subst /,-,$@).d

# the GPU at hand, or every kind that the kernels are written for
ARCHITECTURES = $(if $(GPU),-arch=native,$(foreach sm,80 90 100 120,-gencode arch=compute_$(sm),code=sm_$(sm)))
# C++ warns of = {} where C does not
WITHOUT_FIELDS := -Wno-missing-field-initializers

# by nvcc: kernels for the GPU, the rest by the C++ compiler, which does not see every parenthesis that is there
define compile_cuda
$(announce)
@mkdir -p $(@D) build/depend
@echo 'compile    $@'
@$(NVCC) -x cu -std=c++20 -D_GNU_SOURCE -I. -O3 -lineinfo $(ARCHITECTURES) -Xcompiler \
	-fopenmp,-fno-math-errno,-fno-trapping-math,-march=native,-Wall,-Wextra,$(WITHOUT_FIELDS),-Wno-parentheses \
	$(patsubst -W%,-Xcompiler -W%,$(options)) $(defines) $(if $(and $(comm),$(HAVE_NCCL)),-DHAVE_NCCL) \
	$(dependencies) $< -o $@ $(if $(onednn),-ldnnl) $(CUDA_FLAGS) -lcjson -lgomp \
	$(patsubst -W%,-Xcompiler -W%,$(filter-out -pthread,$(mpi_libraries))) \
	$(if $(and $(comm),$(HAVE_NCCL)),-lnccl) $(libraries)
endef

# the kernels executed on the CPU (llmc/emulator/simt.h)
define compile_emulated
$(announce)
@mkdir -p $(@D) build/depend
@echo 'compile    $@'
@$(CXX) -x c++ -std=c++20 -DSIMT $(LANGUAGE) $(WITHOUT_FIELDS) $(CFLAGS) -O2 $(options) $(defines) $(dependencies) \
	$< -o $@ $(if $(onednn),-ldnnl) -lcjson -lm -lpthread -lgomp $(mpi_libraries) $(libraries)
endef

define compile
$(announce)
@mkdir -p $(@D) build/depend
@echo 'compile    $@'
@$(CC) -x c -std=gnu11 $(LANGUAGE) $(CFLAGS) $(options) $(defines) $(dependencies) $< -o $@ \
	$(if $(onednn),-ldnnl) -lcjson -lm -lpthread $(mpi_libraries) $(libraries)
endef

# says what this machine has before the first command of a build, so never when there is nothing to do
announce = $(if $(announced),,$(eval announced := yes)$(shell CC='$(CC)' PRECISION='$(PRECISION)' ONEDNN='$(ONEDNN)' \
	HAVE_ONEDNN='$(HAVE_ONEDNN)' HAVE_CMOCKA='$(HAVE_CMOCKA)' HAVE_MPI='$(HAVE_MPI)' \
	HAVE_NCCL='$(if $(filter cuda,$(device)),$(HAVE_NCCL))' DEVICE='$(device)' NVCC='$(NVCC)' GPU='$(GPU)' \
	scripts/found.sh > build/found)$(if $(filter-out 0,$(.SHELLSTATUS)),$(error nothing was built))$(info \
	$(file < build/found)))

# The optional libraries, looked for whenever something may be compiled. build/flags changes when they or a flag do,
# and every program depends on it; those in build/cuda, which DEVICE does not change, on build/cuda/flags.
links = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c $(addprefix -include ,$(1)) - $(2) -o /dev/null \
	2>/dev/null && echo yes)
# MPI's own headers warn, so they are a system's. NCCL is looked for by nvcc when something asks, which takes a second.
MPI_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags ompi-c 2>/dev/null || \
	mpicc --showme:compile 2>/dev/null))
MPI_LIBS := $(shell pkg-config --libs ompi-c 2>/dev/null || mpicc --showme:link 2>/dev/null)
HAVE_NCCL = $(eval HAVE_NCCL := $(shell mkdir -p build && echo 'int main(void) { return 0; }' > build/nccl.cu && \
	$(NVCC) -include nccl.h build/nccl.cu $(CUDA_FLAGS) -lnccl -o build/nccl.out >/dev/null 2>&1 && \
	echo yes; rm -f build/nccl.cu build/nccl.out))$(HAVE_NCCL)
# remember FILE,TEXT: writes the text to the file, unless it is there already
remember = $(shell mkdir -p $(dir $(1)); echo '$(2)' > $(1).new; \
	cmp -s $(1).new $(1) && rm $(1).new || mv $(1).new $(1))
NO_COMPILER := help train test bench-cpu format format-check lint clean
GOALS := $(filter-out $(NO_COMPILER),$(or $(MAKECMDGOALS),all))
cuda_compiler = $(NVCC) $(ARCHITECTURES) $(CUDA_FLAGS) $(shell { $(NVCC) --version; $(CXX) --version; \
	grep -m 1 'model name' /proc/cpuinfo; } 2>/dev/null | cksum)
# whether NCCL has come or gone, without linking
nccl_header = $(shell echo | $(NVCC) -x cu -E -include nccl.h $(CUDA_FLAGS) - >/dev/null 2>&1 && echo nccl)
ifneq ($(GOALS),)
HAVE_ONEDNN := $(if $(filter 1,$(ONEDNN)),$(call links,oneapi/dnnl/dnnl.h,-ldnnl))
HAVE_CMOCKA := $(call links,stdarg.h stddef.h stdint.h setjmp.h cmocka.h,-lcmocka)
HAVE_MPI := $(call links,mpi.h,$(MPI_CFLAGS) $(MPI_LIBS))
endif
ifneq ($(filter-out build/cuda/%,$(GOALS)),)
$(call remember,build/flags,$(CC) $(LANGUAGE) $(CFLAGS) $(device) $(PRECISION) $(HAVE_ONEDNN) $(HAVE_MPI) \
	$(if $(filter cuda,$(device)),$(cuda_compiler) $(nccl_header)))
endif
ifneq ($(filter build/cuda/%,$(GOALS)),)
$(call remember,build/cuda/flags,$(cuda_compiler) $(nccl_header) $(PRECISION) $(HAVE_ONEDNN) $(HAVE_MPI))
endif

# ---- programs

all: train_gpt2 $(if $(HAVE_CMOCKA),test_gpt2) ## build ./train_gpt2 and ./test_gpt2 (the default)

train_gpt2: train_gpt2.cu build/flags
	$(if $(filter cuda,$(device)),$(compile_cuda),$(compile))

test_gpt2: options = -DTESTING -Wno-unused-function
test_gpt2: libraries = -lcmocka
test_gpt2: test_gpt2.cu build/flags
	$(if $(filter cuda,$(device)),$(compile_cuda),$(compile))

# unit tests, as they are and under the sanitizers; test_reference also without oneDNN and in bf16
build/test/% build/sanitize/%: libraries = -lcmocka
build/test/test_gradients build/test/test_tensor_parallel: precision = fp64
build/test/%_portable build/sanitize/%_portable: onednn =
build/test/%_bf16: precision = bf16
train_gpt2 build/emulated/train_gpt2 build/cuda/train_gpt2 build/sanitize/train_gpt2: comm = yes
build/test/test_comm build/sanitize/test_comm build/test/test_processes build/test/test_processes_bf16 \
	build/sanitize/test_processes build/bench/bench_comm build/check/nccl build/check/test_nccl \
	build/cuda/test_nccl_bf16: comm = yes
build/test/test_processes%: options = -DPOISON_SCRATCH -Wno-unused-function
build/test/test_processes: options = -DPOISON_SCRATCH -Wno-unused-function
# -w: what the sanitizers insert makes gcc warn falsely, and the same sources are compiled with its warnings anyway
build/sanitize/%: options = -w -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
# the whole model in bf16, and with scratch that is NaN once released
build/test/test_gpt2_%: options = -DTESTING -Wno-unused-function
build/test/test_gpt2_poisoned: options += -DPOISON_SCRATCH
build/test/test_gpt2_bf16 build/test/test_gpt2_poisoned: test_gpt2.cu build/flags
	$(compile)
build/test/%: dev/test/%.c build/flags
	$(compile)
build/test/%_portable: dev/test/%.c build/flags
	$(compile)
build/test/%_bf16: dev/test/%.c build/flags
	$(compile)
build/sanitize/%: dev/test/%.c build/flags
	$(compile)
build/sanitize/%_portable: dev/test/%.c build/flags
	$(compile)
build/sanitize/train_gpt2: options += -DPOISON_SCRATCH
build/sanitize/train_gpt2: train_gpt2.cu build/flags
	$(compile)

# the kernels, emulated
build/emulated/%_bf16: precision = bf16
build/emulated/% build/sanitize/%_emulated build/sanitize/%_emulated_bf16: libraries = -lcmocka
build/emulated/test_gpt2 build/emulated/test_gpt2_bf16: options = -DTESTING -DPOISON_SCRATCH -Wno-unused-function
build/emulated/test_gpt2 build/emulated/test_gpt2_bf16: test_gpt2.cu build/flags
	$(compile_emulated)
build/emulated/train_gpt2: train_gpt2.cu build/flags
	$(compile_emulated)
build/emulated/%: dev/test/%.cu build/flags
	$(compile_emulated)
build/emulated/%_bf16: dev/test/%.cu build/flags
	$(compile_emulated)
# fibers and OpenMP's threads are more than AddressSanitizer follows: without -fopenmp
build/sanitize/%_emulated build/sanitize/%_emulated_bf16: LANGUAGE := $(filter-out -fopenmp,$(LANGUAGE))
build/sanitize/%_emulated build/sanitize/%_emulated_bf16: onednn =
build/sanitize/%_emulated_bf16: precision = bf16
build/sanitize/%_emulated: dev/test/%.cu build/flags
	$(compile_emulated)
build/sanitize/%_emulated_bf16: dev/test/%.cu build/flags
	$(compile_emulated)

# what scripts/gpu_check.sh runs on a GPU: the same tests, the trainer, the benchmark
build/cuda/test_%: libraries = -lcmocka
build/cuda/%_bf16: precision = bf16
build/cuda/%_fp32: precision = fp32
build/cuda/test_gpt2_%: options = -DTESTING -Wno-unused-function
build/cuda/test_gpt2_bf16 build/cuda/test_gpt2_fp32: test_gpt2.cu build/cuda/flags
	$(compile_cuda)
build/cuda/train_gpt2: train_gpt2.cu build/cuda/flags
	$(compile_cuda)
build/cuda/bench_ops: dev/bench/bench_ops.cu build/cuda/flags
	$(compile_cuda)
build/cuda/%_bf16: dev/test/%.cu build/cuda/flags
	$(compile_cuda)
build/cuda/%_fp32: dev/test/%.cu build/cuda/flags
	$(compile_cuda)

# what the benchmark runs; dump_run is the trainer with another main
build/bench/dump_run: options = -Wno-unused-function
build/bench/%: dev/bench/%.c build/flags
	$(compile)
build/bench/%: dev/oracle/%.c build/flags
	$(compile)

build/bench/remat: options = -Wno-unused-function
build/bench/%: dev/bench/%.cu build/flags
	$(if $(filter cuda,$(device)),$(compile_cuda),$(compile))

# the trainer is also C in the other precision, C++ and CUDA
build/check/bf16: precision = bf16
build/check/bf16: train_gpt2.cu build/flags
	$(compile)
build/check/c++: train_gpt2.cu build/flags
	@mkdir -p $(@D) build/depend
	@echo 'compile    train_gpt2.cu as C++20'
	@$(CXX) -x c++ -std=c++20 $(LANGUAGE) $(WITHOUT_FIELDS) $(CFLAGS) $(defines) $(dependencies) -c $< -o $@
# the test of what nvcc says keeps its results, and is quick when it is run again
build/check/nvcc: train_gpt2.cu test_gpt2.cu dev/bench/bench_ops.cu dev/test/test_ops.cu dev/test/test_nvcc.sh \
		$(wildcard llmc/*.* llmc/*/*.* dev/test/*.h dev/bench/*.h)
	@mkdir -p $(@D)
	@echo 'compile    the trainer with nvcc for every architecture, its tests for one'
	@dev/test/test_nvcc.sh > $@ 2>&1 || true

# the communicator between GPUs compiles and links
build/check/nccl: dev/bench/bench_comm.cu build/flags
	$(compile_cuda)
build/check/test_nccl: libraries = -lcmocka
build/check/test_nccl: dev/test/test_nccl.cu build/flags
	$(compile_cuda)

-include $(wildcard build/depend/*.d)

# ---- tasks

EMULATED := $(addprefix build/emulated/,test_plan_bf16 test_simt test_matmul test_matmul_bf16 test_ops test_ops_bf16)
MODELS_EMULATED := build/emulated/test_gpt2 build/emulated/test_gpt2_bf16
EMULATED_SANITIZED := $(addprefix build/sanitize/,test_simt_emulated test_matmul_emulated_bf16 test_ops_emulated \
	test_ops_emulated_bf16)
UNITS := $(basename $(notdir $(wildcard dev/test/test_*.c)))
TESTS := $(addprefix build/test/,$(UNITS) test_reference_portable test_reference_bf16 test_checkpoint_bf16 test_adamw_bf16 \
	test_processes_bf16 test_gpt2_bf16 test_gpt2_poisoned)
# without test_gradients, whose thousands of differences take minutes there; test_reference runs every operation as well
SANITIZED := $(addprefix build/sanitize/,$(filter-out test_gradients,$(UNITS)) test_reference_portable)
BENCHES := $(addprefix build/bench/,$(basename $(notdir $(wildcard dev/bench/*.c dev/bench/*.cu dev/oracle/*.c))))
CHECKS = $(addprefix build/check/,bf16 c++ $(if $(shell command -v $(NVCC)),nvcc \
	$(if $(HAVE_NCCL),nccl $(HAVE_CMOCKA:yes=test_nccl))))
PARALLEL = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

train: ## train a small GPT for at most two minutes on the King James Bible; DATA=FILE takes any text
	@scripts/setup.sh $(if $(DATA),build,train)
	@$(MAKE) --no-print-directory --silent train_gpt2
	@scripts/train.sh '$(DATA)'

test: ## build and run every test; the last line is `N passed, N failed`
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory $(PARALLEL) test-programs
	@scripts/run_tests.sh $(TESTS) ./test_gpt2 $(wildcard dev/test/test_*.sh) build/sanitize/test_comm \
		--together $(EMULATED_SANITIZED) $(MODELS_EMULATED:%='env TEST_DEVICE=cuda %') $(EMULATED) \
		$(filter-out %/test_comm,$(SANITIZED)) 'dev/test/tiny_run.sh build/sanitize/train_gpt2'

# what takes longest comes first
test-programs: $(CHECKS) $(EMULATED_SANITIZED) $(MODELS_EMULATED) build/emulated/train_gpt2 $(EMULATED) all $(BENCHES) \
	$(TESTS) $(SANITIZED) build/sanitize/train_gpt2

bench: build/bench/bench_ops ## time every operation, as shares of what this machine can copy and multiply; minutes
	@build/bench/bench_ops

bench-remat: build/bench/remat ## time every level of -r, beside the bytes it saves
	@build/bench/remat

bench-states: build/check/bf16 ## train a small model with every kind of optimizer state
	@dev/bench/bench_states.py

bench-comm: build/bench/bench_comm ## bandwidth between processes: mpirun -np 2 --bind-to none build/bench/bench_comm
	@mpirun -np 2 --oversubscribe --bind-to none build/bench/bench_comm

bench-processes: train_gpt2 ## time several processes of one thread beside one process of as many
	@dev/bench/bench_processes.py

bench-cpu: ## time a training step and its matmuls on the CPU, beside PyTorch
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory $(PARALLEL) train_gpt2 $(BENCHES)
	@dev/bench/bench_cpu.py

format: ## lay out every C source with clang-format
	@scripts/setup.sh lint
	@git ls-files -co --exclude-standard '*.h' '*.c' '*.cu' '*.cuh' | xargs clang-format -i

format-check: ## name the sources that `make format` would change, and fail
	@scripts/setup.sh lint
	@git ls-files -co --exclude-standard '*.h' '*.c' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror

lint: ## clang-tidy, cppcheck and shellcheck; no findings
	@scripts/setup.sh lint
	@scripts/lint.sh

clean: ## remove what make built; data/ and runs/ stay
	rm -rf build train_gpt2 test_gpt2

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@sed -n 's/^#   DEVICE/options: DEVICE/p' Makefile

.PHONY: all train test test-programs bench bench-remat bench-states bench-comm bench-processes bench-cpu format \
	format-check lint clean help
