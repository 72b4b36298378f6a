#!/usr/bin/env bash
# GPT-2 1558M over machines that mpirun reaches:   scripts/multi_node/mpirun.sh HOSTFILE [FLAG...]
# HOSTFILE has a line a machine, `name slots=8`: as many slots as GPUs. This folder has the same path on all of them,
# with ./train_gpt2 built there with MPI and NCCL (make says what it found), and -o and the data are seen by all.
#
# tokens     32,000 steps of 1,048,576: 33.6 billion, 3.3e20 FLOPs (scripts/run_gpt2_1558M.sh has the arithmetic)
# hours      on 2 machines of 8 GPUs 12.7, at 450 TFLOP/s each: a step is 4 micro-steps of 16 x 1024 tokens, 1.43 s
# sent       -z 1: each GPU sends 2 x 1558M bf16 numbers x 15/16 a step, 5.8 GB: 0.13 s through a 400 Gb/s card, behind
#            the backward of the last micro-step and the next forward (scripts/scale.py predicts other numbers of GPUs)
# memory     -z 1: 10 bytes a parameter become 4 + 6 / 16; `./train_gpt2 --plan -pn 16 -z 1 -e d48 -b 16` has it all
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ $# -lt 1 ] || [ ! -r "$1" ]; then
    echo "mpirun.sh: expected a host file first, with lines such as 'node1 slots=8'; found '${1:-nothing}'" >&2
    exit 2
fi
hosts=$1 data=${DATA:-data/edu_fineweb100B}
shift
exec mpirun --hostfile "$hosts" --bind-to none -x PATH -x LD_LIBRARY_PATH \
    ./train_gpt2 -i "$data/*_train_*.bin" -j "$data/*_val_*.bin" -o runs/gpt2_1558M_nodes -y 1 \
    -e d48 -b 16 -t 1024 -d 1048576 -x 32000 -z 1 -l 6e-4 -k cosine -u 700 -q 0.1 -c 0.1 -n 2000 -nk 2 \
    -v 250 -m 20 -s 0 "$@"
