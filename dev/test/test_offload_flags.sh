#!/usr/bin/env bash
# --offload on the command line: the plan, the banner and notes, --fit, a host that is too small, --generate and --eval.
#   TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_offload_flags.sh
# dev/test/test_plan.cu tests the choices of --fit, dev/test/test_offload.sh the bits of a run.
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}") emulated=$(realpath "${EMULATED:-build/emulated/train_gpt2}")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C TRAIN_GPT2_PICKS=
scratch=$(mktemp -d) out=$scratch/out err=$scratch/err
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
seq 1 1500 >text
model=(-i text -e l3h2c32 -b 2 -t 16 -d 64 -r 4 -s 0 -v 0)

run() { # STATUS PROGRAM ARGUMENTS...: the program must exit with STATUS
    local status=0
    "${@:2}" >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:3}" && tail -n 3 "$err"; }
}
says() { grep -qF -- "$2" "$1" || { echo "expected '$2' in:" && head -n 8 "$1"; }; }
matches() { grep -qE -- "$2" "$1" || { echo "expected /$2/ in:" && head -n 8 "$1"; }; }
lacks() { ! grep -qE -- "$2" "$1" || { echo "unexpected /$2/ in:" && head -n 8 "$1"; }; }
metrics() { sed -E 's/,"ms":.*/}/' "$1/metrics.jsonl"; }
same() { cmp "$1" "$2" 2>&1; }

report "--plan: both sides, and the copies of an update at --link" "$(
    run 0 "$emulated" --plan -e d12 -b 4 -r 4 -s 0 --offload 4 --link 12.5
    matches "$out" '^total on the device +[0-9.]+$'
    matches "$out" '^host +block_inputs '
    awk '/^total in pinned/ { host = $NF } /^copied to the device/ { up = $NF } /^copied to the host/ { down = $NF }
         /^seconds of the longer at 12.5 GB.s \(--link\) / { seconds = $NF }
         END { if (!(host > 2000 && up > down && down > host - 1 && (seconds - up * 1048576 / 12.5e9) ^ 2 < 1e-6))
                   print "host " host ", up " up ", down " down ", seconds " seconds }' "$out"
    run 0 "$emulated" --plan -e d12 -b 4 -r 4 -s 0
    lacks "$out" '^copied|^seconds'
)"
report "--plan=json: link_up and link_down of each rank" "$(
    run 0 "$emulated" --plan=json -e d12 -pn 2 -z 1 --offload 1
    awk '/"link_up"/ { up += $2 > 1e8 } /"link_down"/ { down += $2 > 1e8 }
         END { if (up != 2 || down != 2) print up " and " down " ranks with copies" }' "$out"
)"
report "the banner: tensors in host memory, and the link" "$(
    run 0 "$emulated" "${model[@]}" -x 1 --offload 2 --link 12.5
    matches "$out" '^offload   optimizer state, gradients: [0-9.]+ MiB of pinned host memory$'
    matches "$out" '^link      12\.5 GB/s \(--link\): an update copies [0-9.]+ MiB to the device, [0-9.]+ MiB to the h'
    run 0 "$emulated" "${model[@]}" -x 1 --offload 4
    matches "$out" '^offload   optimizer state, gradients, weights, inputs of blocks: '
    matches "$out" '^link      [0-9.]+ GB/s \(measured\): '
    lacks "$out" '^note .*-(offload|link)'
)"
report "--plan measures no link; a resumed run measures its own" "$(
    run 0 "$emulated" --plan -e d12 -b 4 -s 0 --offload 1
    matches "$out" '^seconds of the longer at 25 GB.s \(assumed; see --link\) '
    run 0 "$emulated" "${model[@]}" -x 1 -n 1 -o resumed --offload 1 --link 12.5
    run 0 "$emulated" -o resumed -y 1 -x 2
    matches "$out" '^link      [0-9.]+ GB/s \(measured\): '
    run 0 "$emulated" -o resumed -y 1 -x 3 --link 50
    matches "$out" '^link      50 GB/s \(--link\): '
)"
report "--plan --eval: the layers alone are copied for each forward" "$(
    run 0 "$emulated" --plan --eval text -e d12 -t 64 -b 2 --offload 3
    layers=$(awk '/^copied to the device per forward / { print $NF }' "$out")
    mib=$(awk 'BEGIN { printf "%.2f", 12 * (12 * 768 * 768 + 13 * 768) * 4 / 1048576 }')
    [ "$layers" = "$mib" ] || echo "$layers MiB, expected $mib"
    matches "$out" '^copied to the host per forward +0\.00$'
)"
report "--fit: the host is too small" "$(
    run 2 "$emulated" --plan --device cuda -e l2000h16c1024 -b 1 -t 16 -d 32 -s 0 --fit=0.8
    matches "$err" "^train_gpt2: --fit: nothing fits in 0\.80 GiB; .*--offload 4 would take 0\.[0-9]+ GiB of the GPU "
    matches "$err" ' GiB of host memory, and [0-9.]+ are free; free more of it, or give a smaller -e$'
)"
report "notes: --offload on a CPU, --link without --offload" "$(
    run 0 "$trainer" "${model[@]}" -x 1 --offload 4 --device cpu
    says "$out" "note      --offload 4 does nothing on a CPU: the model is already in host memory"
    lacks "$out" '^(offload|link) '
    run 0 "$trainer" --plan -e d12 --offload 4 --device cpu
    says "$out" "note      --offload 4 does nothing on a CPU"
    run 0 "$emulated" "${model[@]}" -x 1 --link 12.5
    says "$out" "note      --link does nothing without --offload"
    run 0 "$emulated" "${model[@]}" -x 1
    lacks "$out" '^(offload|link) |--(offload|link)'
    run 0 "$emulated" "${model[@]}" -x 1 --offload-pageable 1
    says "$out" "note      --offload-pageable does nothing without --offload"
)"
report "memory that cannot be pinned: one sentence, and --offload-pageable has the bits of --offload 0" "$(
    run 0 "$emulated" "${model[@]}" -x 3 -n 3 -o pinned_0
    export SIMT_PINNED_MIB=0
    for link in 0 12.5; do
        run 1 "$emulated" "${model[@]}" -x 3 -n 3 -o unpinned --offload 4 --link $link
        matches "$err" '^train_gpt2: cannot pin [0-9.]+ MiB of host memory \(out of memory\): [0-9.]+ MiB free, limit'
        matches "$err" 'limit of locked memory \(ulimit -l\) ([0-9.]+ MiB|unlimited); --offload-pageable 1 does '
        [ "$(wc -l <"$err")" = 1 ] || cat "$err"
    done
    for stage in 1 2 3 4; do
        SIMT_STREAMS=$stage run 0 "$emulated" "${model[@]}" -x 3 -n 3 -o pageable --offload $stage --offload-pageable 1
        matches "$out" '^offload   .* MiB of pageable host memory$'
        lacks "$out" '^note .*pageable'
        cmp <(metrics pinned_0) <(metrics pageable) 2>&1
        same pinned_0/step_00000003/model.safetensors pageable/step_00000003/model.safetensors
        rm -rf pageable
    done
)"
report "one block has no input to offload" "$(
    run 0 "$emulated" -i text -e l1h2c32 -b 2 -t 16 -r 4 -s 0 -v 0 -x 1 --offload 4
    lacks "$out" '^note .*offload'
)"
report "refused before the run: the host has too little memory" "$(
    run 2 "$emulated" -i text -e l2000h16c2048 -b 1 -t 16 -s 0 --offload 4 -o refused
    matches "$err" '^train_gpt2: --offload 4 needs [0-9.]+ MiB of host memory, and [0-9.]+ are free: [0-9.]+ too few; '
    says "$err" "give a smaller -e"
    [ "$(wc -l <"$err")" = 1 ] || cat "$err"
    [ ! -e refused ] || echo "a refused run wrote a run directory"
)"
report "refused before the run: the GPU is too small, and --offload helps" "$(
    run 2 "$emulated" -i text -e l90h16c1024 -b 1 -t 16 -s 0
    matches "$err" ' too few; it fits with .*--offload [1-4]$'
)"
report "--fit chooses --offload only if nothing fits without, and prints its bytes and its time" "$(
    run 0 "$emulated" --plan -e d12 -b 4 -s 0 --fit=4 --link 12.5
    lacks "$out" '--offload'
    run 0 "$emulated" --plan -e d12 -b 4 -s 0 --fit=0.5 --link 12.5
    matches "$out" '^fit .* of 0\.50 GiB: .* --offload [1-4]$'
    matches "$out" '^fit       --offload [1-4] instead of --offload 0: -[0-9.]+ GiB, \+[0-9.]+ % time$'
    awk '/^total on the device/ && $NF > 512 { print }' "$out"
    flags=$(sed -n '1s/^fit .* GiB: //p' "$out") total=$(grep '^total' "$out")
    read -ra chosen <<<"$flags"
    run 0 "$emulated" --plan -e d12 -s 0 "${chosen[@]}" --link 12.5
    [ "$(grep '^total' "$out")" = "$total" ] || echo "the flags of --fit give another plan: $flags"
    run 2 "$emulated" --plan -e d12 -s 0 --fit=0.01
    says "$err" "--fit: nothing fits in 0.01 GiB"
)"
report "--generate and --eval with weights in host memory: the same output" "$(
    run 0 "$emulated" "${model[@]}" -x 3 -o small -n 3
    for stage in 0 3 4; do
        run 0 "$emulated" --generate 12 -e small --prompt 12 --offload $stage
        cp "$out" "generated_$stage"
        run 0 "$emulated" --eval text -e small -b 2 --offload $stage
        cp "$out" "scored_$stage"
    done
    for stage in 3 4; do same generated_0 generated_$stage && same scored_0 scored_$stage; done
    matches scored_0 '^loss +[0-9.]+$'
)"
end_tests
