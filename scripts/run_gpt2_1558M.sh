#!/usr/bin/env bash
# GPT-2 1558M on 34 billion tokens of FineWeb-Edu, on one GPU:   scripts/run_gpt2_1558M.sh [FLAG...]
#
# tokens     32,000 steps of 1,048,576: 33.6 billion of FineWeb-Edu's 100B sample, 22 a parameter
# FLOPs      a token takes 6 N + 6 L C T = 9.81 GFLOP (N 1556M without wpe, L 48, C 1600, T 1024): 3.3e20 total
# hours      180, 7.5 days, on an H200, a step 20 s, predicted by make predict ARGS='-e d48 -b 16 -d 1048576'
# memory     62.9 GiB at -b 16 (--plan, -r auto): state 23.5, activations 37.6, scratch 1.8. Add a smaller -b and
#            --fit for a smaller GPU
# disk       data/edu_fineweb100B: the run reads 336 token shards, 67 GB. A checkpoint takes 14 bytes a parameter,
#            21.8 GB; two are kept
exec "$(dirname "$0")/run_gpt2.sh" 1558M data/edu_fineweb100B -e d48 -b 16 -t 1024 -d 1048576 -x 32000 \
    -l 6e-4 -k cosine -u 700 -q 0.1 -c 0.1 -n 2000 "$@"
