# The optional libraries, searched before anything is compiled, and nvcc's options. The Makefile includes this file.
# NO_USE_MPI=1 and NO_MULTI_GPU=1 leave out MPI and NCCL, as in llm.c.

comma := ,
# options of gcc as options of nvcc, which splits the argument of -Xcompiler at commas
for_nvcc = $(foreach word,$(1),$(if $(filter -I% -L% -l% -isystem,$(word))$(filter-out -%,$(word)),$(word),-Xcompiler \
	$(subst $(comma),\\$(comma),$(word))))
# NVIDIA's installer does not tell the loader where CUDA's libraries are. A distribution's package does; its nvcc has no
# such folder next to it. With the new dtags LD_LIBRARY_PATH comes first.
cuda_rpath = $(patsubst %/libcublasLt.so,-Xlinker -rpath=% -Xlinker --enable-new-dtags,$(wildcard $(patsubst \
	%/bin/nvcc,%/lib64/libcublasLt.so,$(realpath $(shell command -v $(NVCC))))))

links = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c $(addprefix -include ,$(1)) - $(2) -o /dev/null \
	2>/dev/null && echo yes)
# -isystem silences the warnings of MPI's headers
MPI_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags ompi-c 2>&- || mpicc --showme:compile 2>&-))
MPI_LIBS := $(shell pkg-config --libs ompi-c 2>/dev/null || mpicc --showme:link 2>/dev/null)
# nvcc takes a second to link with NCCL, so this search runs on first use
HAVE_NCCL = $(eval HAVE_NCCL := $(if $(filter 1,$(NO_MULTI_GPU)),,$(shell $(NVCC) -shared \
	-include nccl.h -x cu /dev/null $(CUDA_FLAGS) -lnccl -o /dev/null >/dev/null 2>&1 && echo yes)))$(HAVE_NCCL)
# these goals compile nothing by themselves
GOALS := $(filter-out help train test test-quick test-aarch64 test-all bench-cpu fuzz format format-check lint clean \
	install uninstall,$(or $(MAKECMDGOALS),all))
ifneq ($(GOALS),)
HAVE_CMOCKA := $(call links,stdarg.h stddef.h stdint.h setjmp.h cmocka.h,-lcmocka)
HAVE_MPI := $(if $(filter 1,$(NO_USE_MPI)),,$(call links,mpi.h,$(MPI_CFLAGS) $(MPI_LIBS)))
endif
