#!/usr/bin/env bash
# GPT-2 124M on 10 billion tokens of FineWeb, on one GPU:   scripts/run_gpt2_124M.sh [FLAG...]
#
# tokens     18,865 steps of 524,288: 9.89 billion, an epoch of the 10B sample less its validation shard; 80 a parameter
# FLOPs      a token takes 6 N + 6 L C T = 0.80 GFLOP (N 123.7M without wpe, L 12, C 768, T 1024): 7.9e18 total
# hours      4.7 on an H200, a step 0.90 s, predicted by make predict ARGS='-e d12 -b 64 -d 524288'
# memory     21.9 GiB at -b 64 (--plan, -r auto): state 1.9, activations 18.1, scratch 1.9. Add a smaller -b and
#            --fit for a smaller GPU
# disk       data/fineweb10B: 103 shards, 20.6 GB. A checkpoint takes 14 bytes a parameter, 1.7 GB; two are kept
exec "$(dirname "$0")/run_gpt2.sh" 124M data/fineweb10B -e d12 -b 64 -t 1024 -d 524288 -x 18865 \
    -l 6e-4 -k cosine -u 700 -q 0.0 -c 0.1 -n 5000 "$@"
