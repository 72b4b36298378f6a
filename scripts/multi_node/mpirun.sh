#!/usr/bin/env bash
# GPT-2 1558M over machines that mpirun reaches:   scripts/multi_node/mpirun.sh HOSTFILE [FLAG...]
# HOSTFILE has a line a machine, `name slots=8`: as many slots as GPUs. This folder has the same path on all of them,
# with ./train_gpt2 built there with MPI and NCCL (make says what it found), and -o and the data are seen by all.
#
# tokens, hours, sent, memory     33.6 billion, 12.7 on 16 GPUs, 8.8 GB a step, 38.2 GiB: flags.sh beside it has them
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/multi_node/flags.sh

if [ $# -lt 1 ] || [ ! -r "$1" ]; then
    echo "mpirun.sh: expected a host file first, with lines such as 'node1 slots=8'; found '${1:-nothing}'" >&2
    exit 2
fi
hosts=$1
shift
environment=(-x PATH)
[ -z "${LD_LIBRARY_PATH:-}" ] || environment+=(-x LD_LIBRARY_PATH)
exec mpirun --hostfile "$hosts" --bind-to none "${environment[@]}" ./train_gpt2 "${flags[@]}" "$@"
