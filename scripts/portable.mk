# The target CPU of a build. The Makefile includes this file.
#   ARCH=native     programs are for MARCH, by default the CPU of this machine
#   ARCH=portable   ./train_gpt2 is for every CPU of x86-64-v2 and later. The program holds the trainer once for each of
#                   LEVELS, and llmc/run/portable.c calls the highest level of the CPU.
# With ARCH=portable the other programs, a cuda build and a build for another CPU than x86-64 are for the baseline: AVX2
# and FMA on x86-64, Armv8-A on aarch64. A cross compiler (CC=aarch64-linux-gnu-gcc) also builds for the baseline.
#   build/portable/train_gpt2        the program of ARCH=portable
#   build/test/portable/train_gpt2   the same with -O1, for dev/test/test_portable.sh

ARCH ?= native
ifeq ($(filter $(ARCH),native portable),)
$(error ARCH=$(ARCH): expected native or portable; MARCH= names one CPU)
endif
machine := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>&-)))
baseline := $(or $(if $(filter x86_64,$(machine)),x86-64-v3),$(if $(filter aarch64,$(machine)),armv8-a),native)
MARCH ?= $(if $(filter portable,$(ARCH))$(filter-out $(shell uname -m),$(machine)),$(baseline),native)
# gcc and clang use only half of a register for loops on some CPUs with AVX-512. gcc 12 for aarch64 otherwise loads
# elements of A so early that a sum of gemm_tile is on the stack; clang has no such option.
cpu_options_x86_64 := -mprefer-vector-width=512
cpu_options_aarch64 = $(if $(call links,,-Werror -fno-schedule-insns),-fno-schedule-insns)
cpu_options := $(cpu_options_$(machine))
# the prerequisite of ./train_gpt2
portable_program := $(if $(filter portable,$(ARCH)),$(if $(filter cpu,$(device)),build/portable/train_gpt2))

PORTABLE := build/portable/train_gpt2 build/test/portable/train_gpt2
build/portable/% build/test/portable/%: comm = yes
ifeq ($(machine),x86_64)
# bf16: v4, and AVX512-BF16
LEVELS := v2 v3 v4 bf16
level = $(basename $(notdir $@))
build/portable/%.o build/test/portable/%.o: options = -march=x86-64-$(level:bf16=v4 -mavx512bf16) \
	-Dmain=main_$(level) -DCPU_LEVEL='", x86-64-$(level:bf16=v4 with AVX512-BF16)"'
build/portable/main.o build/test/portable/main.o: options = -march=x86-64

define compile_object
$(begin)
@$(compiler) $(LANGUAGE) $(CFLAGS) $(options) $(defines) $(hardening) $(dependencies) -c $< -o $@
endef
build/portable/main.o build/test/portable/main.o: llmc/run/portable.c build/flags
	$(compile_object)
$(foreach folder,$(dir $(PORTABLE)),$(LEVELS:%=$(folder)%.o)): train_gpt2.cu build/flags
	$(compile_object)
$(PORTABLE): %/train_gpt2: $(addprefix %/,$(addsuffix .o,main $(LEVELS)))
	@echo 'link       $@'
	@$(CC) -fopenmp $(hardening) $(hardening_link) $^ -o $@ $(links_with)
else
$(PORTABLE): options = -march=$(baseline)
$(PORTABLE): train_gpt2.cu build/flags
	$(compile)
endif
