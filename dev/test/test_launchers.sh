#!/usr/bin/env bash
# scripts/multi_node: stubs of mpirun, srun, ssh and train_gpt2 log the commands of each launcher. All three launchers
# must give the same flags, and over ssh a rank that fails must stop the others.
#   dev/test/test_launchers.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/here/scripts" "$folder/bin"
cp -r scripts/multi_node "$folder/here/scripts/"
export LOG=$folder/log PATH=$folder/bin:$PATH
unset DATA PORT

# program PATH: writes an executable file from stdin
program() {
    cat >"$1"
    chmod +x "$1"
}
# A trainer that logs its process id and its flags. Rank FAILS exits with 7. With HANGS all other ranks wait, in the
# same process.
program "$folder/here/train_gpt2" <<'END'
#!/usr/bin/env bash
rank=0
for ((i = 1; i < $#; i++)); do [ "${!i}" != -pr ] || { next=$((i + 1)) && rank=${!next}; }; done
echo "$$ $HOST $*" >>"$LOG"
for ((i = 1; i < $#; i++)); do
    [ "${!i}" != --secret-file ] || { next=$((i + 1)) && secret=$HERE/${!next}; }
done
[ -z "${secret:-}" ] || echo "$(stat -c '%a %s' "$secret") $(cat "$secret")" >>"$LOG.secrets"
if [ "$rank" = "${FAILS:-}" ]; then
    while [ "$(wc -l <"$LOG")" -lt 4 ]; do sleep 0.05; done
    exit 7
fi
[ -z "${HANGS:-}" ] || exec sleep 150
END
program "$folder/bin/ssh" <<'END'
#!/usr/bin/env bash
[ "$1" = -tt ] && [ $# -eq 3 ] || exit 99
cd / && HOST=$2 exec bash -c "$3"
END
program "$folder/bin/mpirun" <<'END'
#!/usr/bin/env bash
while [ "$1" != ./train_gpt2 ]; do echo "mpirun $1" >>"$LOG.options" && shift; done
HOST=mpi exec "$@"
END
program "$folder/bin/srun" <<'END'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do echo "srun $1" >>"$LOG.options" && shift; done
HOST=slurm SLURM_PROCID=5 exec "$@"
END

# the logged flags without the flags of the rendezvous
run_flags() { sed 's/^[^-]*//; s/-p[insrgf] [^ ]* //g; s/--secret-file [^ ]* //' "$LOG" | sort -u; }
# launch STATUS COMMAND...: runs a launcher with an empty log, and prints an unexpected exit status
launch() {
    local status
    rm -f "$LOG" "$LOG".*
    timeout 100 "${@:2}" >"$folder/out" 2>&1 </dev/null
    status=$?
    [ "$status" -eq "$1" ] || printf 'exit status %s, expected %s\n%s\n' "$status" "$1" "$(cat "$folder/out")"
}
has() { grep -qF -- "$2" "$1" || echo "expected '$2' in: $(cat "$1")"; }

here=$folder/here
export HERE=$here
echo "node1 slots=8" >"$folder/hosts"
report "mpirun.sh" "$(
    launch 0 "$here/scripts/multi_node/mpirun.sh" "$folder/hosts" -b 8
    has "$LOG" " -e d48 -b 16 "
    has "$LOG" " -s 0 -b 8"
    has "$LOG.options" "mpirun --hostfile"
)"
run_flags >"$folder/by_mpirun"
report "mpirun.sh without a host file" "$(
    launch 2 "$here/scripts/multi_node/mpirun.sh" /no/such/file
    has "$folder/out" "expected a host file first"
)"
report "slurm.sbatch" "$(
    cd "$here" || exit
    launch 0 env SLURM_SUBMIT_DIR="$here" SLURM_CPUS_PER_TASK=6 SLURM_NTASKS=16 SLURM_NTASKS_PER_NODE=8 \
        bash scripts/multi_node/slurm.sbatch -b 8
    has "$LOG" "slurm -pi fs -pf runs/meetings -pn 16 -pr 5 -pg 8 -i "
    for option in --kill-on-bad-exit=1 --mpi=none --cpus-per-task=6; do has "$LOG.options" "srun $option"; done
    [ -d runs/meetings ] || echo "the folder of the rendezvous was not created"
    run_flags | cmp - "$folder/by_mpirun"
)"
report "ssh.sh" "$(
    launch 0 env GPUS=2 "$here/scripts/multi_node/ssh.sh" "one two"
    sort -u "$LOG.secrets" >"$folder/secrets"
    launch 0 env GPUS=2 "$here/scripts/multi_node/ssh.sh" "one two" -b 8
    for rank in 0 1 2 3; do
        has "$LOG" "$([ $rank -lt 2 ] && echo one || echo two) -pi tcp -ps one:29500 --secret-file runs/.secret_"
        has "$LOG" " -pn 4 -pg 2 -pr $rank -i "
    done
    [ "$(wc -l <"$LOG.secrets") $(sort -u "$LOG.secrets" | wc -l)" = "4 1" ] ||
        echo "expected the same secret on 4 ranks: $(cat "$LOG.secrets")"
    has "$LOG.secrets" "600 45"
    sort -u "$LOG.secrets" >>"$folder/secrets"
    ! compgen -G "$here/runs/.secret_*" || echo "the file of the secret was not removed"
    [ "$(sort -u "$folder/secrets" | wc -l)" -eq 2 ] || echo "two starts have one secret: $(cat "$folder/secrets")"
    [ "$(wc -l <"$LOG")" -eq 4 ] || echo "expected 4 ranks"
    run_flags | cmp - "$folder/by_mpirun"
)"
# left: prints the logged processes that still run
left() {
    cut -d' ' -f1 "$LOG" | while read -r id; do
        [ ! -d "/proc/$id" ] || grep -q '^State:.*Z' "/proc/$id/status" 2>/dev/null || echo "$id still runs"
    done
}
for rank in 0 3; do
    report "ssh.sh, rank $rank fails" "$(
        launch 7 env GPUS=2 FAILS=$rank HANGS=1 "$here/scripts/multi_node/ssh.sh" "one two"
        left
        ! compgen -G "$here/runs/.secret_*" || echo "the file of the secret was not removed"
    )"
done
report "ssh.sh stops all ranks after SIGTERM" "$(
    rm -f "$LOG"
    env GPUS=2 HANGS=1 "$here/scripts/multi_node/ssh.sh" "one two" >"$folder/out" 2>&1 </dev/null &
    while { [ ! -e "$LOG" ] || [ "$(wc -l <"$LOG")" -lt 4 ]; } && kill -0 $! 2>/dev/null; do sleep 0.05; done
    kill $!
    wait $!
    status=$?
    [ $status -eq 143 ] || echo "exit status $status, expected 143"
    ! compgen -G "$here/runs/.secret_*" || echo "the file of the secret was not removed"
    left
)"

end_tests
