#!/usr/bin/env bash
# GPT-2 774M on 150 billion tokens of FineWeb, on one GPU:   scripts/run_gpt2_774M.sh [FLAG...]
#
# tokens     286,102 steps of 524,288: 150 billion, 1.5 epochs of FineWeb's 100B sample, 194 a parameter
# FLOPs      a token takes 6 N + 6 L C T = 4.92 GFLOP (N 772.8M without wpe, L 36, C 1280, T 1024): 7.4e20 total
# hours      422, 18 days, on an H200, a step 5.3 s, predicted by make predict ARGS='-e d36 -b 32 -d 524288'
# memory     58.7 GiB at -b 32 (--plan, -r auto): state 11.7, activations 45.2, scratch 1.8. Add a smaller -b and
#            --fit for a smaller GPU
# disk       data/fineweb100B: 1,000 shards, 200 GB. A checkpoint takes 14 bytes a parameter, 10.8 GB; two are kept
exec "$(dirname "$0")/run_gpt2.sh" 774M data/fineweb100B -e d36 -b 32 -t 1024 -d 524288 -x 286102 \
    -l 2.5e-4 -k cosine -u 700 -q 0.0 -c 0.1 -n 4000 "$@"
