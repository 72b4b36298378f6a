#!/usr/bin/env bash
# GPT-2 1558M over machines that have nothing but ssh:   scripts/multi_node/ssh.sh "HOST HOST ..." [FLAG...]
# The first host is where the processes meet, by TCP on port 29500 (PORT in the environment for another). This folder
# has the same path on all of them, with ./train_gpt2 built with NCCL; GPUS says how many GPUs each has, 8 without it.
# If one process ends badly, what it said stands here, its connection's end ends the others, and its exit status is this
# script's. Ctrl-C ends all connections as well: each process gets SIGHUP, and what it says then is seen by nobody.
#
# tokens, hours, sent, memory     33.6 billion, 12.7 on 16 GPUs, 8.8 GB a step, 38.2 GiB: flags.sh beside it has them
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/multi_node/flags.sh

if [ $# -lt 1 ]; then
    echo "ssh.sh: expected the hosts first, as in \"node1 node2\"" >&2
    exit 2
fi
read -ra hosts <<<"$1"
gpus=${GPUS:-8} port=${PORT:-29500}
shift
meet=(-pi tcp -ps "${hosts[0]}:$port" -pn $((gpus * ${#hosts[@]})) -pg "$gpus")

# ends every connection that is left, and waits for their end
end_all() {
    local left
    left=$(jobs -pr)
    # shellcheck disable=SC2086  # a word a process
    [ -z "$left" ] || kill $left 2>/dev/null || true
    wait || true
}
trap 'end_all; exit 130' INT
trap 'end_all; exit 143' TERM
rank=0
for host in "${hosts[@]}"; do
    for ((gpu = 0; gpu < gpus; gpu++, rank++)); do
        command=$(printf '%q ' ./train_gpt2 "${meet[@]}" -pr "$rank" "${flags[@]}" "$@")
        # -tt: the process gets SIGHUP when its connection ends
        ssh -tt "$host" "cd $(printf %q "$PWD") && exec $command" </dev/null &
    done
done
for (( ; rank > 0; rank--)); do
    status=0
    wait -n || status=$?
    if [ "$status" -ne 0 ]; then
        end_all
        exit "$status"
    fi
done
