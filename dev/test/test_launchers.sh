#!/usr/bin/env bash
# scripts/multi_node: stubs of mpirun, srun and train_gpt2 log the commands. Both launchers must give the same flags.
# Then the trainer in the environment of a launcher that did not connect it to other ranks.
. "$(dirname "$0")/harness.sh"

make_scratch
mkdir -p "$scratch/here/scripts" "$scratch/bin"
cp -r scripts/multi_node "$scratch/here/scripts/"
trainer=$(realpath "${TRAINER:-./train_gpt2}") root=$PWD
export LOG=$scratch/log PATH=$scratch/bin:$PATH
unset DATA

# program PATH: writes an executable file from stdin
program() {
    cat >"$1"
    chmod +x "$1"
}
program "$scratch/here/train_gpt2" <<'END'
#!/usr/bin/env bash
echo "$HOST $*" >>"$LOG"
END
program "$scratch/bin/mpirun" <<'END'
#!/usr/bin/env bash
while [ "$1" != ./train_gpt2 ]; do echo "mpirun $1" >>"$LOG.options" && shift; done
HOST=mpi exec "$@"
END
program "$scratch/bin/srun" <<'END'
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
    "${@:2}" >"$scratch/said" 2>&1 </dev/null
    status=$?
    [ "$status" -eq "$1" ] || printf 'exit status %s, expected %s\n%s\n' "$status" "$1" "$(cat "$scratch/said")"
}
has() { grep -qF -- "$2" "$1" || echo "expected '$2' in: $(cat "$1")"; }

here=$scratch/here
echo "node1 slots=8" >"$scratch/hosts"
report "mpirun.sh" "$(
    launch 0 "$here/scripts/multi_node/mpirun.sh" "$scratch/hosts" -b 8
    has "$LOG" " -e d48 -b 16 "
    has "$LOG" " -s 0 -b 8"
    has "$LOG.options" "mpirun --hostfile"
)"
run_flags >"$scratch/by_mpirun"
report "DATA is a folder's name, not a pattern" "$(
    DATA="Alice's [1] *.d" launch 0 "$here/scripts/multi_node/mpirun.sh" "$scratch/hosts"
    has "$LOG" " -i Alice's \\[1\\] \\*.d/*_train_*.bin -j Alice's \\[1\\] \\*.d/*_val_*.bin "
)"
report "slurm.sbatch" "$(
    cd "$here" || exit
    launch 0 env SLURM_SUBMIT_DIR="$here" SLURM_CPUS_PER_TASK=6 SLURM_NTASKS=16 SLURM_NTASKS_PER_NODE=8 \
        bash scripts/multi_node/slurm.sbatch -b 8
    has "$LOG" "slurm -pi fs -pf runs/meetings -pn 16 -pr 5 -pg 8 -i "
    for option in --kill-on-bad-exit=1 --mpi=none --cpus-per-task=6; do has "$LOG.options" "srun $option"; done
    [ -d runs/meetings ] || echo "the folder of the id was not created"
    run_flags | cmp - "$scratch/by_mpirun"
)"

# ---- the trainer, alone in the environment of a launcher

cd "$scratch" && seq 1 1500 >text
tiny=(-i text -e l1h2c16 -b 2 -t 16 -v 0 -s 0 -x 1)
# mode STATUS ENVIRONMENT FLAGS...: the trainer with VARIABLE=VALUE words as environment exits with STATUS
mode() {
    local variables
    read -ra variables <<<"$2"
    launch "$1" env "${variables[@]}" "$trainer" "${@:3}"
}
# refused by a variable, the first word; the rest of the environment
while read -r variable others; do
    report "alone: $variable $others" "$(
        mode 2 "$variable $others" "${tiny[@]}" -o run
        has "$scratch/said" "train_gpt2: $variable means several ranks, but this process found one"
        has "$scratch/said" ", or give -pn 1 to run it alone"
        [ "$(wc -l <"$scratch/said")" -eq 1 ] || echo "expected one line in: $(cat "$scratch/said")"
        [ ! -e run ] || echo "the run directory was created"
        mode 0 "$variable $others" "${tiny[@]}" -pn 1
    )"
done <<'END'
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0
PMI_SIZE=4 PMI_RANK=0 PMI_FD=9
PMIX_RANK=1 PMIX_NAMESPACE=job.0
SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_ID=7 SLURM_STEP_ID=0
SLURM_NTASKS=2 SLURM_PROCID=0
SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_JOB_ID=7
WORLD_SIZE=2 RANK=0 LOCAL_RANK=0
END
# one process: a world of one, sbatch's script, salloc's shell, a step of one task in a larger job, torch's size alone
while read -r variables; do
    report "accepted: $variables" "$(mode 0 "$variables" "${tiny[@]}")"
done <<'END'
OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0
PMI_SIZE=1 PMI_RANK=0
PMIX_RANK=0 PMIX_NAMESPACE=job.0
SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0
SLURM_JOB_ID=7 SLURM_NTASKS=8
SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0
WORLD_SIZE=2
END
end_tests
