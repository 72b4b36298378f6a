#!/usr/bin/env bash
# Trains in runs/gpt2_NAME on the token shards in DATA:   scripts/run_gpt2.sh NAME DATA FLAG...
# run_gpt2_124M.sh, 350M, 774M and 1558M call this script with their flags; their headers hold the arithmetic.
#
# data       token shards of 100M tokens, 200 MB, as llm.c's dev/data/fineweb.py writes them: DATA/*_train_*.bin and
#            DATA/*_val_*.bin. DATA=FOLDER in the environment overrides the folder
# resume     the same command resumes from the last checkpoint, bit for bit; flags at the end go to the trainer
# RANKS=8    trains on 8 GPUs of this machine, through mpirun; divide the hours in the four headers by 8
# HellaSwag  scored at every validation if dev/data/hellaswag.py has written its file
# An installed copy works in the current folder, with the program installed beside it.
set -euo pipefail
program=./train_gpt2
if [ -f "$(dirname "$0")/../Makefile" ]; then
    cd "$(dirname "$0")/.."
else
    program=$(realpath -m "$(dirname "$0")/../../../bin/train_gpt2")
fi

if [ $# -lt 2 ]; then
    echo "run_gpt2: expected a name, a folder of shards and flags; start one of scripts/run_gpt2_*M.sh instead" >&2
    exit 2
fi
name=$1 data=${DATA:-$2} run=runs/gpt2_$1
shift 2

start=()
if [ "${RANKS:-1}" != 1 ]; then
    if ! command -v mpirun >/dev/null; then
        echo "run_gpt2: RANKS=$RANKS needs mpirun, which is not installed; install openmpi-bin and build again" >&2
        exit 2
    fi
    start=(mpirun -np "$RANKS" --bind-to none)
fi
if [ ! -x "$program" ]; then
    echo "run_gpt2: there is no $program; build it with make on a machine with nvcc and a GPU" >&2
    exit 2
fi

flags=(--device "${DEVICE:-cuda}" -i "$data/*_train_*.bin" -j "$data/*_val_*.bin" -o "$run")
[ ! -d "$run" ] || flags+=(-y 1)
if [ -f dev/data/hellaswag/hellaswag_val.bin ]; then
    flags+=(-h 1)
else
    echo "gpt2 $name  without HellaSwag: python3 dev/data/hellaswag.py makes its file"
fi
exec "${start[@]}" "$program" "${flags[@]}" -v 250 -m 20 -s 0 -nk 2 "$@"
