#!/usr/bin/env bash
# Compiles PyTorch's models for their batches, one after the other, since both together need more than 80 GB:
#   TORCHINDUCTOR_CACHE_DIR=FOLDER scripts/gpu/compile_torch.sh TOKENS LENGTH MODEL:BATCH...
# FOLDER keeps the code, and a file MODEL_BBATCH for each model that was compiled.
set -euo pipefail
tokens=$1 length=$2
shift 2
mkdir -p "$TORCHINDUCTOR_CACHE_DIR"
for each; do
    model=${each%:*} batch=${each#*:}
    "${PYTHON:-python3}" dev/oracle/train_torch.py --length "$length" --shards "$tokens" --model "$model" \
        --device cuda --batch "$batch" --warmup 1 --steps 1 --gradients none
    touch "$TORCHINDUCTOR_CACHE_DIR/${model}_B$batch"
done
