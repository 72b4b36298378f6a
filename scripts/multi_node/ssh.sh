#!/usr/bin/env bash
# GPT-2 1558M on machines that have only ssh:   scripts/multi_node/ssh.sh "HOST HOST ..." [FLAG...]
# The ranks meet at the first host, by TCP on port 29500 (PORT in the environment overrides it). All hosts see this
# folder at the same path, with ./train_gpt2 built with NCCL. GPUS is the number of GPUs of a host, 8 by default.
# A secret of this start keeps strangers out: a file of runs/ that only you can read. The script removes the file.
# If one rank fails, its error is printed here, the end of its connection ends the others, and the script exits with its
# status. Ctrl-C ends all connections too: each rank gets SIGHUP, and nobody sees its last output.
#
# tokens, hours, sent, memory     33.6 billion, 12.7 on 16 GPUs, 8.8 GB a step, 38.2 GiB: arithmetic in flags.sh
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
mkdir -p runs
secret=$(mktemp runs/.secret_XXXXXXXX) # mode 0600
trap 'rm -f "$secret"' EXIT
head -c 32 /dev/urandom | base64 >"$secret"
meet=(-pi tcp -ps "${hosts[0]}:$port" --secret-file "$secret" -pn $((gpus * ${#hosts[@]})) -pg "$gpus")

# kills the remaining connections and waits for them
end_all() {
    local left
    left=$(jobs -pr)
    # shellcheck disable=SC2086  # one word for each process
    [ -z "$left" ] || kill $left 2>/dev/null || true
    wait || true
}
trap 'end_all; exit 130' INT
trap 'end_all; exit 143' TERM
rank=0
for host in "${hosts[@]}"; do
    for ((gpu = 0; gpu < gpus; gpu++, rank++)); do
        command=$(printf '%q ' ./train_gpt2 "${meet[@]}" -pr "$rank" "${flags[@]}" "$@")
        # -tt: the rank gets SIGHUP when its connection ends
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
