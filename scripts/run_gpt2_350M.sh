#!/usr/bin/env bash
# GPT-2 350M on 31 billion tokens of FineWeb, on one GPU:   scripts/run_gpt2_350M.sh [FLAG...]
#
# tokens     60,000 steps of 524,288: 31.5 billion of FineWeb's 100B sample, 89 a parameter
# FLOPs      a token takes 6 N + 6 L C T = 2.27 GFLOP (N 353.8M without wpe, L 24, C 1024, T 1024): 7.2e19 total
# hours      40 on an H200, a step 2.4 s, predicted by make predict ARGS='-e d24 -b 64 -d 524288'
# memory     55.6 GiB at -b 64 (--plan, -r auto): state 5.4, activations 48.2, scratch 2.0. Add a smaller -b and
#            --fit for a smaller GPU
# disk       data/fineweb100B: the run reads 315 token shards, 63 GB. A checkpoint takes 14 bytes a parameter, 5.0 GB;
#            two are kept
exec "$(dirname "$0")/run_gpt2.sh" 350M data/fineweb100B -e d24 -b 64 -t 1024 -d 524288 -x 60000 \
    -l 3e-4 -k cosine -u 700 -q 0.0 -c 0.1 -n 2000 "$@"
