# Options that harden a program against damaged files and hostile input. The Makefile includes this file. A compiler may
# know some of the options: each name below is tried alone, and scripts/found.sh prints the names.
#   fortify-3         -D_FORTIFY_SOURCE: calls such as memcpy and snprintf check the size of the destination
#   stack-protector   -fstack-protector-strong: a function that overwrote its local arrays ends the program
#   pie               -fPIE -pie: the system loads the program at a random address
#   relro             -z relro, now, noexecstack: the tables of library functions are read-only before main runs, and
#                     the stack holds no code
# CFLAGS does not replace these options. HARDENING=0 leaves them out. dev/test/test_hardening.sh checks the program.

HARDENING ?= 1
STACK_PROTECTOR := -fstack-protector-strong
RELRO := -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack
# -U: some distributions predefine another level
fortify = -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$(1)
hardens = $(call links,stdio.h,-O1 -Werror $(1))
nvcc_hardens = $(shell $(NVCC) -O1 -include stdio.h -x cu -c /dev/null -o /dev/null $(call for_nvcc,-Werror $(1)) \
	>/dev/null 2>&1 && echo yes)
fortify_level = $(firstword $(foreach level,3 2,$(if $(call $(1),$(call fortify,$(level))),$(level))))
# HARDENED: the names of the options in this build, or `none`, or `off` with HARDENING=0.
# FORTIFY: the first level that gives no warning, or empty. Level 3 needs gcc 12 or clang 9, and glibc 2.34.
# FORTIFY_CUDA: the same for nvcc. nvcc 12.0 cannot read level 3, whichever gcc it calls. Its trials take a
# second, and only a CUDA build makes them.
ifneq ($(and $(GOALS),$(filter 1,$(HARDENING))),)
FORTIFY := $(call fortify_level,hardens)
FORTIFY_CUDA = $(eval FORTIFY_CUDA := $(call fortify_level,nvcc_hardens))$(FORTIFY_CUDA)
HARDENED := $(patsubst %,fortify-%,$(if $(filter cuda,$(device)),$(FORTIFY_CUDA),$(FORTIFY))) \
	$(if $(call hardens,$(STACK_PROTECTOR)),stack-protector) \
	$(if $(call hardens,-fPIE -pie),pie) $(if $(call hardens,$(RELRO)),relro)
endif
HARDENED := $(or $(strip $(HARDENED)),$(if $(filter 1,$(HARDENING)),none,off))

# NAME,OPTIONS: the options, if the build has the name
if_hardened = $(if $(filter $(1),$(HARDENED)),$(2))
# Without optimization _FORTIFY_SOURCE gives a warning. The sanitizers check more than the fortified functions do.
fortifies = $(if $(findstring -fsanitize,$(CFLAGS) $(options)),,$(filter-out -O0,$(lastword $(filter -O%,$(CFLAGS)))))
hardening_at = $(call if_hardened,stack-protector,$(STACK_PROTECTOR)) $(call if_hardened,pie,-fPIE) \
	$(if $(fortifies),$(if $(1),$(call fortify,$(1))))
hardening = $(call hardening_at,$(FORTIFY))
hardening_link = $(call if_hardened,pie,-pie) $(call if_hardened,relro,$(RELRO))
hardening_cuda = $(call for_nvcc,$(call hardening_at,$(FORTIFY_CUDA)) $(hardening_link))
