# How the tests are compiled, and the tests of `make test` and `make test-all`. The Makefile includes this file.
#   build/test/NAME       dev/test/NAME.c
#   build/sanitize/NAME   the same under AddressSanitizer and UBSan
#   build/tsan/NAME       the same under ThreadSanitizer, by clang; NAME_emulated: dev/test/NAME.cu
#   build/emulated/NAME   dev/test/NAME.cu, its kernels executed on the CPU (dev/emulator/simt.h)
#   build/cuda/NAME       the same for a GPU; scripts/gpu_check.sh runs these programs
#   build/aarch64/NAME    dev/test/NAME.c, test_gpt2 or the trainer for aarch64, executed by qemu-aarch64
#   build/check/NAME      compiled, and not run
#   build/vectors/PRECISION/COMPILER/CPU.o   dev/test/hot_loops.c, for dev/test/test_vectors.sh
# Suffixes: _fp32 and _bf16 set the precision, _v2 and _v3 compile for x86-64-v2 (SSE) and x86-64-v3
# (AVX2), _poisoned fills released scratch with NaN.

# ---- options

# CUDA's headers are those of the emulator
EMULATED_GPU := -DHAVE_CUDA -Idev/emulator
# dev/test/test_nccl_emulated.sh runs these, and sets the timeout of a rank that does not answer
EMULATED_NCCL := $(addprefix build/emulated/,train_gpt2_nccl_bf16 test_nccl)

build/test/% build/sanitize/% build/tsan/% build/emulated/% build/cuda/test_% build/aarch64/%: libraries = -lcmocka
build/%_bf16: precision = bf16
build/cuda/%_fp32: precision = fp32
build/test/test_gradients build/aarch64/test_gradients: precision = fp64
build/%/train_gpt2 build/%/train_gpt2_bf16 build/%/test_comm build/%/test_processes build/%/test_processes_bf16 \
	build/cuda/test_nccl_bf16 $(EMULATED_NCCL): comm = yes

build/%/test_gpt2 build/%/test_gpt2_bf16 build/%/test_gpt2_fp32: options = -DTESTING -Wno-unused-function
$(EMULATED_NCCL): options = -DHAVE_NCCL \
	'-DCOMM_TIMEOUT=(getenv("SIMT_COMM_SECONDS") ? atof(getenv("SIMT_COMM_SECONDS")) : 600.0)'
build/test/test_gpt2_poisoned: options = -DTESTING -DPOISON_SCRATCH -Wno-unused-function
build/emulated/test_gpt2 build/emulated/test_gpt2_bf16: options = -DTESTING -DPOISON_SCRATCH -Wno-unused-function
build/test/test_processes build/test/test_processes_bf16: options = -DPOISON_SCRATCH -Wno-unused-function

# One rank, without MPI. With -O3 operations are vectors, which qemu executes fastest; gcc 12 fails to compile
# test_adamw with -O3.
build/aarch64/%: compiler = aarch64-linux-gnu-gcc -x c -std=gnu11
build/aarch64/%: CFLAGS := -O1 -march=armv8-a
$(addprefix build/aarch64/,train_gpt2 test_gpt2 test_gemm test_reference test_gradients): \
	CFLAGS := -O3 -march=armv8-a -fno-schedule-insns
build/aarch64/test_adamw: CFLAGS := -O2 -march=armv8-a
build/aarch64/%: mpi =

# -O1 without -g compiles in a third of the time of -O3 -g. Programs that compute with the operations keep the trainer's
# -O3. CFLAGS on the command line replaces all of these.
without = $(filter-out -O% -g,$(CFLAGS))
build/test/%: CFLAGS := $(without) -O1
# with -O1 gcc warns falsely of the trainer, which is also compiled with warnings
build/test/portable/%: CFLAGS := $(without) -O1 -w
# make sets a variable for the longest pattern that fits last; so these add to what is set above or below
build/test/%_v2 build/sanitize/%_v2: options = -march=x86-64-v2
build/test/%_v3 build/sanitize/%_v3: options = -march=x86-64-v3
# gcc 12 warns falsely where a fortified memcpy of constant text is inlined
build/test/% build/emulated/% build/aarch64/%: fortifies =
build/test/test_reference% build/test/test_adamw% build/test/test_gpt2_bf16 build/test/train_gpt2_%: \
	CFLAGS := $(filter-out -g,$(CFLAGS))
# with -O2 these run four times as fast, and compile in seconds more
$(addprefix build/test/,test_reference test_adamw test_gemm test_gradients test_processes test_sampler): \
	CFLAGS := $(without) -O2
build/emulated/%: CFLAGS := $(without) -O2
build/emulated/test_plan_bf16: CFLAGS := $(without) -O0
build/sanitize/%: CFLAGS := $(without) -O1 -g1
# -w: gcc warns falsely of code that the sanitizers insert. Other programs compile the same sources with warnings.
build/sanitize/%: options = -w -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
build/sanitize/train_gpt2: options += -DPOISON_SCRATCH
# clang, since ThreadSanitizer follows the threads of its OpenMP library, and not those of gcc's
build/tsan/%: CFLAGS := $(without) -O1 -g1
build/tsan/%: options = -w -fno-omit-frame-pointer -fsanitize=thread -DSIMT_TSAN
# MPI is compiled without it
build/tsan/train_gpt2 build/tsan/test_comm: comm =
build/tsan/%: compiler = clang -x c -std=gnu11
build/tsan/%_emulated_bf16: compiler = clang++ -x c++ -std=c++20 $(EMULATED_GPU)

build/emulated/% build/sanitize/%_emulated build/sanitize/%_emulated_bf16: \
	compiler = $(CXX) -x c++ -std=c++20 $(EMULATED_GPU)
# AddressSanitizer does not follow fibers together with OpenMP's threads: without -fopenmp, yet with its library
build/sanitize/%_emulated build/sanitize/%_emulated_bf16: LANGUAGE := $(filter-out -fopenmp,$(LANGUAGE))
build/sanitize/%_emulated build/sanitize/%_emulated_bf16: libraries = -lcmocka -lgomp

# ---- programs

build/sanitize/train_gpt2 build/emulated/train_gpt2 build/emulated/train_gpt2_bf16 \
		build/emulated/train_gpt2_nccl_bf16 build/test/train_gpt2_v2 build/test/train_gpt2_v3 build/test/train_gpt2_bf16 \
		build/tsan/train_gpt2 build/tsan/train_gpt2_emulated_bf16: \
		train_gpt2.cu build/flags
	$(compile)
build/test/test_gpt2_bf16 build/test/test_gpt2_poisoned build/emulated/test_gpt2 build/emulated/test_gpt2_bf16: \
		test_gpt2.cu build/flags
	$(compile)
build/test/%: dev/test/%.c build/flags
	$(compile)
build/test/dump_tokens: dev/oracle/dump_tokens.c build/flags
	$(compile)
build/test/%_v2: dev/test/%.c build/flags
	$(compile)
build/test/%_v3: dev/test/%.c build/flags
	$(compile)
build/test/%_bf16: dev/test/%.c build/flags
	$(compile)
build/sanitize/%: dev/test/%.c build/flags
	$(compile)
build/sanitize/%_v3: dev/test/%.c build/flags
	$(compile)
build/sanitize/%_emulated: dev/test/%.cu build/flags
	$(compile)
build/sanitize/%_emulated_bf16: dev/test/%.cu build/flags
	$(compile)
build/tsan/%: dev/test/%.c build/flags
	$(compile)
build/emulated/%: dev/test/%.cu build/flags
	$(compile)
build/emulated/%_bf16: dev/test/%.cu build/flags
	$(compile)

build/aarch64/train_gpt2: train_gpt2.cu build/flags
	$(compile)
build/aarch64/test_gpt2: test_gpt2.cu build/flags
	$(compile)
build/aarch64/%: dev/test/%.c build/flags
	$(compile)

build/cuda/train_gpt2: train_gpt2.cu build/cuda/flags
	$(compile_cuda)
build/cuda/test_gpt2_bf16 build/cuda/test_gpt2_fp32: test_gpt2.cu build/cuda/flags
	$(compile_cuda)
build/cuda/%_bf16: dev/test/%.cu build/cuda/flags
	$(compile_cuda)
build/cuda/%_fp32: dev/test/%.cu build/cuda/flags
	$(compile_cuda)

# the trainer is also C++
build/check/c++: train_gpt2.cu build/flags
	@mkdir -p $(@D) build/depend
	@echo 'compile    train_gpt2.cu as C++20'
	@$(CXX) -x c++ -std=c++20 $(LANGUAGE) $(CFLAGS) $(defines) $(dependencies) -fsyntax-only $<
	@touch $@
# -gdwarf-4: objdump 2.40 takes the first file of a DWARF 5 table for another. Some versions of clang lack omp.h: the
# folder of a version that has one comes last, so that only omp.h is found there
build/vectors/fp32/%.o: precision = fp32
build/vectors/bf16/%.o: precision = bf16
build/vectors/%.o: comm = yes
build/vectors/%.o: dev/test/hot_loops.c $(wildcard build/flags)
	@mkdir -p $(@D) build/depend
	@$(notdir $(*D)) -x c -std=gnu11 $(LANGUAGE) $(CFLAGS) -march=$(*F) -gdwarf-4 $(defines) $(hardening) $(dependencies) \
		$(addprefix -idirafter ,$(dir $(firstword $(wildcard /usr/lib/llvm-*/lib/clang/*/include/omp.h)))) -c $< -o $@
# dev/test/test_nvcc.sh saves the messages of nvcc, and compiles nothing when the test runs it again
build/check/nvcc build/check/nvcc_oldest: train_gpt2.cu test_gpt2.cu dev/bench/bench_ops.cu \
		$(addprefix dev/test/,test_ops.cu test_layouts.cu test_simt.cu test_nccl.cu) \
		dev/test/test_nvcc.sh $(wildcard llmc/*.* llmc/*/*.* dev/test/*.h dev/bench/*.h)
	@mkdir -p $(@D)
	@echo 'compile    the trainer and its tests with the $(if $(findstring oldest,$@),oldest )nvcc'
	@dev/test/test_nvcc.sh $(findstring oldest,$@) > $@ 2>&1 || true

# ---- lists. The longest come first: cores are seldom idle at the end

UNITS := $(basename $(notdir $(wildcard dev/test/test_*.c)))
BIG_UNITS := test_checkpoint test_reference test_processes test_comm test_adamw test_gradients
# these compile with nvcc, or read what build/check/nvcc leaves
NVCC_SCRIPTS := $(addprefix dev/test/,test_ptx.sh test_fmad.sh test_nvcc.sh test_sass.sh test_launches.sh \
	test_cuda_build.sh)
# in `make test-all` only: tests of minutes, of what rarely changes, and test_vectors.sh, which judges the machine code
# of compilers
MINUTES := $(addprefix dev/test/,fresh_machine.sh test_self_check.sh test_offload.sh test_threads.sh test_learns.sh \
	test_determinism.sh test_vectors.sh test_gpu_check.sh test_portable.sh test_makefile.sh test_package.sh \
	test_predict.sh test_plot.sh test_setup.sh test_nccl_emulated.sh)
# scripts whose cases are in `make test` and, with this argument, the others in `make test-all`
MORE_CASES := 'dev/test/test_processes_model.sh more' 'dev/test/test_llmc.sh more' \
	'dev/test/test_old_checkpoint.sh bf16'
LONG_SCRIPTS := $(addprefix dev/test/,test_processes_model.sh test_processes_errors.sh test_processes.sh \
	test_faults.sh test_llmc.sh test_tokenize.sh test_comm.sh test_trainer.sh test_run_tests.sh)
SHORT_SCRIPTS := $(filter-out $(LONG_SCRIPTS) $(NVCC_SCRIPTS) $(MINUTES),$(wildcard dev/test/test_*.sh))

EMULATED := $(addprefix build/emulated/,test_ops_bf16 test_matmul_bf16 test_plan_bf16 test_simt \
	test_layouts_bf16)
TESTS := $(addprefix build/test/,$(BIG_UNITS) $(filter-out $(BIG_UNITS),$(UNITS)))
# the readers of files, and the communicator
SANITIZED := $(addprefix build/sanitize/,test_comm test_safetensors test_tokenizer test_dataloader)

MORE_EMULATED := $(addprefix build/sanitize/,test_ops_emulated_bf16 test_matmul_emulated_bf16) \
	build/emulated/test_matmul
# dev/test/test_threads.sh runs these; without clang and its OpenMP library there are none
THREADED = $(if $(shell echo '\#include <omp.h>' | clang -fopenmp -E - 2>&-),$(addprefix build/tsan/,train_gpt2 \
	train_gpt2_emulated_bf16 test_reference test_comm test_dataloader))
MODELS := $(addprefix build/emulated/,test_gpt2 test_gpt2_bf16)
# dev/test/test_ptx.sh runs these as nvcc compiles them
ON_PTX := $(addprefix build/emulated/,test_ops_bf16 test_ops train_gpt2_bf16 train_gpt2 test_layouts_bf16)
# arithmetic within NVIDIA's error bounds, and streams that run when the host waits (dev/emulator/block.h); test_matmul
# covers the autotuner. SIMT_RACES=0: where another run of the program checks for races, in half of the time
on_hardware := SIMT_HARDWARE=1 TRAIN_GPT2_AUTOTUNE=0 TEST_DEVICE=cuda
ON_HARDWARE := 'env $(on_hardware) SIMT_RACES=0 build/emulated/test_gpt2_bf16' \
	'env $(on_hardware) SIMT_RACES=0 build/emulated/test_ops_bf16' \
	'env $(on_hardware) build/sanitize/test_ops_emulated'
# the kernels and the model of the fp32 build on a T4
ON_SM_75 := 'env SIMT_CAPABILITY=75 SIMT_RACES=0 TEST_DEVICE=cuda build/emulated/test_gpt2' \
	'env SIMT_CAPABILITY=75 TEST_DEVICE=cuda build/sanitize/test_ops_emulated'
# the same for narrower vectors, on an x86 CPU with AVX2
NARROW := $(if $(shell grep -m 1 -w avx2 /proc/cpuinfo),test_gemm_v2 test_gemm_v3 test_reference_v2 test_reference_v3)
MORE_TESTS := $(addprefix build/test/,test_gpt2_bf16 test_gpt2_poisoned test_reference_bf16 test_adamw_bf16 \
	test_gemm_bf16 test_muon_bf16 $(NARROW) test_checkpoint_bf16 test_processes_bf16)
# test_gradients takes minutes there, and test_reference runs the same operations
MORE_SANITIZED := $(filter-out $(SANITIZED) build/sanitize/test_gradients,$(addprefix build/sanitize/,$(BIG_UNITS) \
	$(if $(NARROW),test_gemm_v3) $(filter-out $(BIG_UNITS),$(UNITS))))
# the longest first
LONG_ON_AARCH64 := test_gpt2 test_adamw test_reference test_gradients test_gemm
ON_AARCH64 := $(addprefix build/aarch64/,$(LONG_ON_AARCH64) $(filter-out $(LONG_ON_AARCH64),$(UNITS)))
# dev/test/test_determinism.sh runs these and ./train_gpt2
BITS = $(addprefix build/test/train_gpt2_,bf16 $(if $(NARROW),v2 v3))
# test_nccl_bf16: the communicator between GPUs compiles and links
CHECKS = build/check/nvcc_oldest build/check/c++ $(if $(shell command -v $(NVCC)),build/check/nvcc \
	$(HAVE_NCCL:yes=build/cuda/test_nccl_bf16))

# Expanded by the recipe of `make test-all` alone: THREADED and CHECKS call clang and nvcc, which takes seconds
MORE_PROGRAMS = $(ON_PTX) build/emulated/test_ptx build/test/portable/train_gpt2 build/sanitize/train_gpt2 $(CHECKS) \
	build/sanitize/test_ops_emulated $(EMULATED_NCCL) $(MORE_EMULATED) $(MODELS) $(MORE_SANITIZED) $(MORE_TESTS) \
	$(BITS) $(THREADED) $(PREDICTORS) $(BENCHES)

# ---- targets

test: ## test: the tests, 6 minutes from nothing, 4 where all is compiled; ends with `N passed, N failed`
	@scripts/setup.sh test
	$(build_parallel) test-programs
	@scripts/run_tests.sh $(TALLY:%=--tally %) $(LONG_SCRIPTS) $(EMULATED) ./test_gpt2 $(TESTS) $(SANITIZED) \
		$(SHORT_SCRIPTS)

# The tests of OP. An operation has tests of its cases. Other tests have OP as the start of their name, or their name
# starts OP: tokenizer has test_tokenizer.c and test_tokenize.sh. The scripts name the programs that they run.
OPERATIONS := loss_sum $(patsubst llmc/%_cpu.h,%,$(wildcard llmc/*_cpu.h))
operation = $(filter $(OP),$(OPERATIONS))
of_cases = $(if $(operation),build/test/test_reference $(if $(shell grep -E '"$(OP)_backward"|TEST.test_$(OP)' \
	dev/test/test_gradients.c),build/test/test_gradients) build/emulated/test_ops_bf16)
named := $(UNITS:%=build/test/%) $(EMULATED) $(sort $(wildcard dev/test/test_*.sh))
name = $(patsubst test_%,%,$(basename $(notdir $(1:_bf16=))))
of_name = $(filter-out $(of_cases),$(if $(filter matmul,$(OP)),build/test/test_gemm) $(foreach test,$(named),$(if \
	$(filter $(OP)%,$(call name,$(test)))$(filter $(call name,$(test))%,$(OP)),$(test))))
of_scripts = $(if $(filter %.sh,$(of_name)),$(filter-out build/test/portable,$(sort $(shell grep -ohE \
	'build/(test|emulated|sanitize|bench)/(portable/)?[a-z0-9_]+' $(filter %.sh,$(of_name))))))
quick_programs = $(sort $(filter-out %.sh,$(of_cases) $(of_name)) $(of_scripts))

test-quick: ## test: the tests of an operation, OP=layernorm, or of a subject by its name, OP=tokenizer
	$(if $(and $(OP),$(of_cases)$(of_name)),,$(error OP=$(OP): expected an operation or the name of a test: $(sort \
		$(OPERATIONS) $(call name,$(named)))))
	@scripts/setup.sh test
	@$(if $(filter %.sh,$(of_name)),$(MAKE) --no-print-directory --silent quick)
	$(if $(quick_programs),$(build_parallel) $(quick_programs))
	@scripts/run_tests.sh $(of_cases:%='% *$(OP)*') $(of_name)

test-faults: train_gpt2 build/test/test_processes ## test: kills, failing disks, wrong bytes, stopped ranks; 50 minutes
	@TEST_CPU_SECONDS=7200 scripts/run_tests.sh 'dev/test/faults.sh whole'

test-aarch64: ## test: the unit tests and a short run on an emulated aarch64 CPU; 6 minutes on two cores
	@scripts/setup.sh aarch64
	$(build_parallel) build/aarch64/train_gpt2 $(ON_AARCH64)
	@scripts/run_tests.sh $(ON_AARCH64:%='qemu-aarch64 %') \
		'dev/test/tiny_run.sh build/aarch64/train_gpt2 qemu-aarch64'

test-ptx: ## test: the kernels as nvcc compiled them, on the CPU; 5 minutes on two cores, needs nvcc
	$(build_parallel) $(ON_PTX) build/emulated/test_ptx
	@scripts/run_tests.sh build/emulated/test_ptx dev/test/test_ptx.sh

test-programs: all build/emulated/train_gpt2 $(EMULATED) build/sanitize/replay build/test/dump_tokens \
	build/test/test_processes_bf16 $(TESTS) $(SANITIZED)

test-all: ## test: `make test`, then the rest: sanitizers, both precisions, nvcc; the last line counts everything
	@scripts/setup.sh all
	@mkdir -p build && rm -f build/tally
	@$(MAKE) --no-print-directory test TALLY=build/tally || [ -s build/tally ]
	$(build_parallel) $(MORE_PROGRAMS)
	@scripts/run_tests.sh --tally build/tally $(MINUTES) $(MORE_CASES) $(MODELS:%='env TEST_DEVICE=cuda %') \
		$(ON_HARDWARE) $(ON_SM_75) \
		$(NVCC_SCRIPTS) $(MORE_EMULATED) build/emulated/test_ptx 'dev/test/test_nvcc.sh oldest' \
		'dev/test/tiny_run.sh build/sanitize/train_gpt2' $(MORE_SANITIZED) $(MORE_TESTS)

.PHONY: test test-ptx test-quick test-aarch64 test-faults test-programs test-all
