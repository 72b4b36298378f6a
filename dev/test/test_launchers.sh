#!/usr/bin/env bash
# scripts/multi_node: stubs of mpirun, srun and train_gpt2 log the commands. Both launchers must give the same flags.
#   dev/test/test_launchers.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/here/scripts" "$folder/bin"
cp -r scripts/multi_node "$folder/here/scripts/"
export LOG=$folder/log PATH=$folder/bin:$PATH
unset DATA

# program PATH: writes an executable file from stdin
program() {
    cat >"$1"
    chmod +x "$1"
}
program "$folder/here/train_gpt2" <<'END'
#!/usr/bin/env bash
echo "$HOST $*" >>"$LOG"
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

# the logged flags without those that connect the ranks
run_flags() { sed 's/^[^-]*//; s/-p[inrgf] [^ ]* //g' "$LOG" | sort -u; }
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
    [ -d runs/meetings ] || echo "the folder of the id was not created"
    run_flags | cmp - "$folder/by_mpirun"
)"
end_tests
