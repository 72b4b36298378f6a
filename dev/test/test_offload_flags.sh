#!/usr/bin/env bash
# --offload on the command line: the plan, the banner and notes, --fit, a host that is too small, --generate and --eval.
#   TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_offload_flags.sh
# dev/test/test_plan.cu tests the choices of --fit, dev/test/test_offload.sh the bits of a run.
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1
seq 1 1500 >text
model=(-i text -e l3h2c32 -b 2 -t 16 -d 64 -r 4 -s 0 -v 0)

run() { # STATUS PROGRAM ARGUMENTS...: the program must exit with STATUS
    local status=0
    "${@:2}" >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:3}" && tail -n 3 "$err"; }
}

report "--plan: both sides" "$(
    run 0 "$emulated" --plan -e d12 -b 4 -r 4 -s 0 --offload 4
    matches "$out" '^total on the device +[0-9.]+$'
    matches "$out" '^host +block_inputs '
    awk '/^total in pinned/ { host = $NF } END { if (host < 2000) print "host " host }' "$out"
)"
report "the banner: tensors in host memory" "$(
    run 0 "$emulated" "${model[@]}" -x 1 --offload 2
    matches "$out" '^offload   --offload 2: [0-9.]+ MiB of pinned host memory$'
    run 0 "$emulated" "${model[@]}" -x 1 --offload 4
    matches "$out" '^offload   --offload 4: '
    banner=$(sed '/^step /,$d' "$out" | grep -cv '^note')
    [ "$banner" -eq 7 ] || echo "a banner of $banner lines, expected 7, and 9 with ranks and -r auto"
    lacks "$out" '^note .*-offload'
)"
report "--fit: the host is too small" "$(
    run 2 "$emulated" --plan --device cuda -e l2000h16c1024 -b 1 -t 16 -d 32 -s 0 --fit=0.8
    matches "$err" '^train_gpt2: on a GPU in fp32, the model needs [0-9.]+ MiB, and 819\.2 are free: [0-9.]+ too few; '
    says "$err" "; no flags make it fit: give a smaller -e, -b or -t"
)"
report "--offload on a CPU does nothing" "$(
    run 0 "$trainer" "${model[@]}" -x 1 --offload 4 --device cpu
    lacks "$out" '^offload '
    run 0 "$emulated" "${model[@]}" -x 1
    lacks "$out" '^offload |--offload'
)"
report "memory that cannot be pinned: one sentence" "$(
    export SIMT_PINNED_MIB=0
    run 1 "$emulated" "${model[@]}" -x 3 -n 3 -o unpinned --offload 4
    matches "$err" '^train_gpt2: cannot pin [0-9.]+ MiB of host memory \(out of memory\); raise the limit of locked '
    matches "$err" ' memory \(ulimit -l\), or give a smaller --offload or -b$'
    [ "$(wc -l <"$err")" = 1 ] || cat "$err"
)"
report "one block has no input to offload" "$(
    run 0 "$emulated" -i text -e l1h2c32 -b 2 -t 16 -r 4 -s 0 -v 0 -x 1 --offload 4
    lacks "$out" '^note .*offload'
)"
report "refused before the run: the host has too little memory" "$(
    run 2 "$emulated" -i text -e l2000h16c2048 -b 1 -t 16 -s 0 --offload 4 -o refused
    matches "$err" '^train_gpt2: on a GPU in fp32, --offload 4 needs [0-9.]+ MiB of host memory, and [0-9.]+ are free'
    says "$err" "give a smaller -e, -b or -t"
    [ "$(wc -l <"$err")" = 1 ] || cat "$err"
    [ ! -e refused ] || echo "a refused run wrote a run directory"
)"
report "refused before the run: the GPU is too small, and --offload helps" "$(
    run 2 "$emulated" -i text -e l90h16c1024 -b 1 -t 16 -s 0
    matches "$err" ' too few; it fits with .*--offload [1-4]$'
)"
report "--fit chooses --offload only if nothing fits without" "$(
    run 0 "$emulated" --plan -e d12 -b 4 -s 0 --fit=4
    lacks "$out" '--offload'
    run 0 "$emulated" --plan -e d12 -b 4 -s 0 --fit=1
    matches "$out" '^fit .* of 1\.00 GiB: .* --offload [1-4]$'
    matches "$out" '^fit .* of [0-9.]+ GiB of host memory$'
    awk '/^total on the device/ && $NF > 1024 { print }' "$out"
    flags=$(sed -n 's/^fit .* of 1\.00 GiB: //p' "$out") total=$(grep '^total' "$out")
    read -ra chosen <<<"$flags"
    run 0 "$emulated" --plan -e d12 -b 4 -s 0 "${chosen[@]}"
    [ "$(grep '^total' "$out")" = "$total" ] || echo "the flags of --fit give another plan: $flags"
    run 2 "$emulated" --plan -e d12 -s 0 --fit=0.01
    says "$err" ", and 10.2 are free: "
    says "$err" "; no flags make it fit: give a smaller -e, -b or -t"
)"
report "--generate and --eval with weights in host memory: the same output" "$(
    run 0 "$emulated" "${model[@]}" -x 3 -o small -n 3
    head -c 700 text >held
    for stage in 0 3 4; do
        run 0 "$emulated" --generate 12 -e small --prompt 12 --offload $stage
        cp "$out" "generated_$stage"
        run 0 "$emulated" --eval held -e small -b 2 --offload $stage
        cp "$out" "scored_$stage"
    done
    for stage in 3 4; do same generated_0 generated_$stage && same scored_0 scored_$stage; done
    matches scored_0 '^loss +[0-9.]+$'
)"
end_tests
