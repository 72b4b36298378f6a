# How the benchmarks are compiled and started. The Makefile includes this file.

build/bench/dump_run build/bench/predict build/bench/predict_fp32: options = -Wno-unused-function

build/bench/%: dev/bench/%.c build/flags
	$(compile)
# dump_run is the trainer with another main
build/bench/%: dev/oracle/%.c build/flags
	$(compile)
build/bench/%: dev/bench/%.cu build/flags
	$(compile_for_device)
build/cuda/bench_ops: dev/bench/bench_ops.cu build/cuda/flags
	$(compile_cuda)

# The trainer, compiled for the emulator. It computes nothing here, so there is nothing to optimize.
PREDICTORS := build/bench/predict build/bench/predict_fp32
build/bench/predict: precision = bf16
build/bench/predict_fp32: precision = fp32
$(PREDICTORS): CFLAGS := -O0 -march=native
$(PREDICTORS): compiler = $(CXX) -x c++ -std=c++20 $(EMULATED_GPU)
$(PREDICTORS): dev/bench/predict.cu build/flags
	$(compile)

BENCHES := $(addprefix build/bench/,$(basename $(notdir $(wildcard dev/bench/*.c dev/bench/*.cu dev/oracle/*.c))))

bench: build/bench/bench_ops ## bench: every operation, as a share of the measured copy and matmul ceilings; minutes
	@build/bench/bench_ops

# A GPU before sm_80 runs the fp32 build; others do with `make predict PRECISION=fp32`.
# Without ARGS, 124M and 1558M are predicted, then both with updates of 524,288 tokens. If 1558M or a larger update does
# not fit, its error message is printed, but the target does not fail.
precision_asked = $(if $(filter command,$(origin PRECISION)),$(PRECISION),$(if $(filter t4 sm_7%,$(GPU)),fp32))
PREDICT = build/bench/predict$(if $(filter fp32,$(precision_asked)),_fp32)
predict: $(PREDICT) ## bench: a training step on a GPU that is not here; GPU=h200 ARGS='-e d12 -b 64'
	@$(PREDICT) --gpu $(or $(GPU),h200) $(or $(ARGS),-e d12 -b 64 -d 65536)
	@$(if $(ARGS),,echo && $(PREDICT) --gpu $(or $(GPU),h200) -e d48 -b 16 -d 16384 || true)
	@$(if $(ARGS),,for flags in '-e d12 -b 64' '-e d48 -b 16'; do echo; \
		$(PREDICT) --gpu $(or $(GPU),h200) $$flags -d 524288 | grep -v '^|' | grep .; done || true)

plan: $(PREDICT) ## bench: the memory of a run on a GPU that is not here; ARGS='-e d48 -b 4 -s 0 -r 4 -om 8bit'
	@$(PREDICT) --gpu $(or $(GPU),h200) --plan $(ARGS)

bench-remat: train_gpt2 ## bench: time and saved bytes of every level of -r
	@dev/bench/bench_remat.py

bench-states: build/test/train_gpt2_bf16 ## bench: loss of a small model with every type of optimizer state
	@dev/bench/bench_states.py

bench-optimizers: train_gpt2 ## bench: tokens that Muon needs for AdamW's loss; all runs: 14 hours
	@dev/bench/bench_optimizers.py

# oneDNN, the peer of our GEMM, is searched for when bench_matmul is compiled
onednn = $(call links,oneapi/dnnl/dnnl.h,-ldnnl)
build/bench/bench_matmul: options = $(onednn:yes=-DHAVE_ONEDNN)
build/bench/bench_matmul: libraries = $(onednn:yes=-ldnnl)

# bench_matmul is recompiled, since setup.sh may have installed a peer
bench-cpu: ## bench: training steps and GEMMs on this CPU, against the newest PyTorch (5 GB); 25 minutes
	@scripts/setup.sh bench
	$(build_parallel) -W dev/bench/bench_matmul.c train_gpt2 build/portable/train_gpt2 build/bench/bench_matmul \
		build/bench/dump_run
	@dev/bench/bench_cpu.py $(ARGS)

bench-tokenizer: train_gpt2 ## bench: --tokenize against tiktoken and tokenizers; MERGES=vocab.bpe TEXT=FILE
	@scripts/setup.sh all
	@build/py/bin/python3 dev/bench/bench_tokenizer.py "$${MERGES:-vocab.bpe}" \
		"$${TEXT:-$$(scripts/text.sh build/text)}"

.PHONY: bench-tokenizer bench predict plan bench-remat bench-states bench-optimizers bench-cpu
