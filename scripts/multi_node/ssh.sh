#!/usr/bin/env bash
# GPT-2 1558M over machines that have nothing but ssh:   scripts/multi_node/ssh.sh "HOST HOST ..." [FLAG...]
# The first host is where the processes meet, by TCP on port 29500 (PORT in the environment for another). This folder
# has the same path on all of them, with ./train_gpt2 built with NCCL; GPUS says how many GPUs each has, 8 without it.
# Ctrl-C ends all processes; each says its own last sentence.
#
# tokens, hours, sent, memory     those of scripts/multi_node/mpirun.sh: 33.6 billion tokens, 12.7 hours on 16 GPUs
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ $# -lt 1 ]; then
    echo "ssh.sh: expected the hosts first, as in \"node1 node2\"" >&2
    exit 2
fi
read -ra hosts <<<"$1"
gpus=${GPUS:-8} port=${PORT:-29500} data=${DATA:-data/edu_fineweb100B}
shift
flags=(-i "$data/*_train_*.bin" -j "$data/*_val_*.bin" -o runs/gpt2_1558M_nodes -y 1
    -e d48 -b 16 -t 1024 -d 1048576 -x 32000 -z 1 -l 6e-4 -k cosine -u 700 -q 0.1 -c 0.1 -n 2000 -nk 2
    -v 250 -m 20 -s 0 "$@")
meet=(-pi tcp -ps "${hosts[0]}:$port" -pn $((gpus * ${#hosts[@]})) -pg "$gpus")

trap 'kill $(jobs -p) 2>/dev/null; wait' INT TERM
rank=0
for host in "${hosts[@]}"; do
    for ((gpu = 0; gpu < gpus; gpu++, rank++)); do
        command=$(printf '%q ' ./train_gpt2 "${meet[@]}" -pr "$rank" "${flags[@]}")
        ssh -tt "$host" "cd $(printf %q "$PWD") && exec $command" </dev/null & # -tt: it ends with its connection
    done
done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit "$status"
