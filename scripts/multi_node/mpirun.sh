#!/usr/bin/env bash
# GPT-2 1558M on machines that mpirun reaches:   scripts/multi_node/mpirun.sh HOSTFILE [FLAG...]
# HOSTFILE has a line for each machine, `name slots=8`, with one slot for each GPU. This folder has the same path on all
# machines, and ./train_gpt2 is built there with MPI and NCCL (make reports both). All machines see -o and the data.
#
# tokens, hours, sent, memory     33.6 billion, 12.7 on 16 GPUs, 8.8 GB a step, 38.2 GiB: arithmetic in flags.sh
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
