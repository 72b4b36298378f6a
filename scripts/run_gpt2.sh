#!/usr/bin/env bash
# Trains in runs/gpt2_NAME on the token shards in DATA:   scripts/run_gpt2.sh NAME DATA FLAG...
# run_gpt2_124M.sh, 350M, 774M and 1558M call this script with their flags; their headers hold the arithmetic.
#
# data       token shards of 100M tokens, 200 MB: DATA/*_train_*.bin and DATA/*_val_*.bin. If they are missing,
#            scripts/get_data.sh fetches them; SHARDS=N in the environment fetches N. DATA=FOLDER in the environment
#            names another folder, for which nothing is fetched
# resume     the same command resumes from the newest checkpoint, bit for bit; flags at the end go to the trainer
# RANKS=8    trains on 8 GPUs of this machine, through mpirun; divide the hours in the four headers by 8
# HellaSwag  scored at every validation once scripts/get_data.sh hellaswag has fetched it
# An installed copy works in the current folder, with the program that was installed with it.
set -euo pipefail
program=./train_gpt2
scripts=$(realpath "$(dirname "$0")")
if [ -f "$scripts/../Makefile" ]; then
    cd "$scripts/.."
else
    program=$(realpath -m "$scripts/../../../bin/train_gpt2")
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

# shellcheck disable=SC2001  # versions of bash differ in what & is in ${data//}
pattern=$(sed 's/[][*?\\]/\\&/g' <<<"$data") # the folder's own name is no pattern
set=${data##*/}
[ "$set" != edu_fineweb100B ] || set=fineweb_edu
if [ -z "${DATA:-}" ] && { [ -e "$data/unfinished" ] || ! compgen -G "$pattern/*_train_*.bin" >/dev/null; }; then
    "$scripts/get_data.sh" "$set" --into "$data" ${SHARDS:+--shards "$SHARDS"}
fi

flags=(--device "${DEVICE:-cuda}" -i "$pattern/*_train_*.bin" -j "$pattern/*_val_*.bin" -o "$run")
[ ! -d "$run" ] || flags+=(-y 1)
if compgen -G "dev/data/hellaswag/hellaswag_val.*" >/dev/null; then
    flags+=(-h 1)
else
    echo "gpt2 $name  without HellaSwag: scripts/get_data.sh hellaswag fetches it"
fi
exec "${start[@]}" "$program" "${flags[@]}" -v 250 -m 20 -s 0 -nk 2 "$@"
