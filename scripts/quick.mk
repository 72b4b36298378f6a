# `make quick`: ./train_gpt2 for the CPU with -O1. The Makefile includes this file. A cuda build is checked and then
# compiled as by `make`, since nvcc takes no CFLAGS.
#   build/quick   newer than the program that `make quick` compiled, so that `make` compiles it again; else not there

quick := $(if $(filter cpu,$(device)),$(filter quick,$(MAKECMDGOALS)))
define check_syntax
$(announce)
@$(compiler) $(LANGUAGE) $(CFLAGS) $(defines) -fsyntax-only $<
endef
define compile_program
$(if $(filter quick,$(MAKECMDGOALS)),$(check_syntax))
$(if $(portable_program),@cp $(portable_program) $@,$(compile_for_device))
@$(if $(filter train_gpt2,$@),$(if $(quick),touch,rm -f) build/quick)
endef

# -g1: a crash names its line. -w: with -O1 gcc warns falsely, and the check of the syntax has warned.
ifneq ($(quick),)
train_gpt2: private CFLAGS := $(filter-out -O% -g,$(CFLAGS)) -O1 -g1
train_gpt2: private options = -w
else
train_gpt2: $(wildcard build/quick)
endif

quick: train_gpt2 ## build: ./train_gpt2 with -O1, in a third of the time; an error shows within two seconds

.PHONY: quick
