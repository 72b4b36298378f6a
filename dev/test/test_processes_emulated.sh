#!/usr/bin/env bash
# The trainer on several ranks with emulated GPUs: collectives are staged through the host.
#   EMULATED=build/emulated/train_gpt2 dev/test/test_processes_emulated.sh
. "$(dirname "$0")/harness.sh"
. dev/test/ranks.sh
use_ranks

if [ ! -x "$emulated" ]; then
    skip "$emulated" 4
    exit 0
fi
export TRAIN_GPT2_AUTOTUNE_CACHE=$folder/autotune  # so that all runs use the same algorithms
tiny=(-i text -e l2h1c8 -t 8 -d 32 -v 0 -s 0 -x 2 -n 2)
report "emulated kernels on 2 ranks" "$(
    trainer=$emulated
    run 0 1 "${tiny[@]}" -b 4 -o emulated_one
    run 0 2 "${tiny[@]}" -b 2 -o first
    for stage in 0 2 3; do
        run 0 2 "${tiny[@]}" -b 2 -z "$stage" -o "emulated_$stage"
        close_losses "emulated_$stage" emulated_one 1e-5
        same_run "emulated_$stage" emulated_0 step_00000002
    done
    run 0 2 "${tiny[@]}" -b 4 -tp 2 -o emulated_slices # one head: rank 1 has only padding
    close_losses emulated_slices emulated_one 1e-5
    # Muon with a matrix of each kind: rank 1 owns none, but has to autotune the same matmuls
    muon=("${tiny[@]}" -e l1h1c8 -l 3e-2 --optimizer muon)
    run 0 1 "${muon[@]}" -b 4 -o muon_one
    for flags in "-b 2 -z 0" "-b 2 -z 2" "-b 4 -tp 2"; do
        # shellcheck disable=SC2086
        run 0 2 "${muon[@]}" $flags -o "muon_two${flags// /}"
        close_losses "muon_two${flags// /}" muon_one 1e-5
    done
)"
report "emulated kernels on 7 ranks, of which the last has no parameters to update" "$(
    trainer=$emulated
    for offload in 0 1; do
        run 0 7 "${tiny[@]}" -e l1h1c4 -b 1 -d 56 -z 1 --offload $offload -o "rest_$offload"
    done
    same_run rest_0 rest_1 step_00000002
)"
report "the smallest GPU that a plan fits trains it: cuBLASLt's kernels and graphs need memory outside the plan" "$(
    trainer=$emulated
    near=(-i text -e l2h2c32 -b 2 -t 16 -d 64 -v 0 -s 0 -x 3)
    SIMT_DEVICE_MIB=2048 run 2 1 "${near[@]}" -e d48
    reserve=$((2048 - $(sed -nE 's/.* and ([0-9]+)\.[0-9] are free: .*/\1/p' "$out")))
    export SIMT_DEVICE_MIB SIMT_MODULE_MIB=32 TRAIN_GPT2_AUTOTUNE_CACHE=
    run 0 1 "${near[@]}" -x 1
    SIMT_DEVICE_MIB=$(awk -v reserve=$reserve '$1 == "memory" { print int($2) + 1 + reserve }' "$out")
    run 0 1 "${near[@]}"
    ! grep -E 'next choice|own kernel|not autotuned' "$out"
)"
# each emulated GPU has 8 GiB, of which a plan may take 7168 MiB, and all have one PCI bus id
sharing=("$emulated" -i text -e l90h16c1024 -b 1 -t 16 -s 0 -d 32)
report "ranks that share a GPU divide its memory" "$(
    launch 1 -x SIMT_UUID=a "${sharing[@]}" : -np 1 -x SIMT_UUID=a "${sharing[@]}"
    says '^train_gpt2: ranks 0 and 1 share a GPU, so all ranks communicate through MPI'
    says 'MiB on each rank, and 3584.0 are free'
)"
report "MIG instances of one GPU have memory of their own, and no NCCL" "$(
    launch 1 -x SIMT_UUID=a "${sharing[@]}" : -np 1 -x SIMT_UUID=b "${sharing[@]}"
    says '^train_gpt2: ranks 0 and 1 have two MIG instances of one GPU, so all ranks communicate through MPI'
    says 'MiB on each rank, and 7168.0 are free'
)"

end_tests
