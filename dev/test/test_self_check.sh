#!/usr/bin/env bash
# The self-check: its report, the check at the start of a run, and kernels that are wrong (SIMT_BREAK of the emulator).
#   dev/test/test_self_check.sh     needs build/emulated/train_gpt2_bf16
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/harness.sh
trainer=build/emulated/train_gpt2_bf16
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
seq 1 400 >"$folder/text"
export TRAIN_GPT2_PICKS=$folder/picks TRAIN_GPT2_SELF_CHECK=
train=("$trainer" --device cuda -i "$folder/text" -e l1h1c64 -b 2 -t 16 -x 3 -v 0 -s 0)

# ok NAME FUNCTION...: a case; in a subshell, so that no setting outlives it
ok() {
    local name=$1 trouble
    shift
    trouble=$("$@" 2>&1) && trouble='' || trouble=${trouble:-failed}
    report "$name" "$trouble"
}
# has FILE WORDS: the file has the words
has() { grep -qF -- "$2" "$1" || { echo "# $1 lacks '$2':" && head -50 "$1" && false; }; }
lacks() { ! grep -qF -- "$2" "$1" || { echo "# $1 has '$2'" && false; }; }
# run STATUS COMMAND...: the exit status; output in $folder/out and $folder/err
run() {
    local wanted=$1 status
    shift
    "$@" >"$folder/out" 2>"$folder/err"
    status=$?
    [ "$status" -eq "$wanted" ] || { echo "# exit status $status, expected $wanted:" && cat "$folder/err" && false; }
}
# close A B: loss and gradient norm of two runs, in all steps, differ by less than 2 %
numbers() { sed -n 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1\n\2/p' "$1/metrics.jsonl"; }
close() {
    paste <(numbers "$1") <(numbers "$2") |
        awk '{ n++; d = $1 - $2; if (!(d * d < 4e-4 * $1 * $1)) bad = 1 } END { exit bad || n != 6 }'
}

every_operation() {
    run 0 "$trainer" --self-check --device "$1" && has "$folder/out" "24 operations agree with their reference" &&
        [ "$(grep -c 'B/s\|FLOP/s.*%' "$folder/out")" -eq 25 ]
}
ok "every operation has a line, on the emulated GPU" every_operation cuda
ok "every operation has a line, on the CPU" every_operation cpu

# broken KERNEL OPERATION REPLACEMENT: --self-check replaces the kernel
broken() {
    SIMT_BREAK=$1 run 0 "$trainer" --self-check --device cuda && has "$folder/out" "a faster kernel is off by" &&
        grep -q "^$2 *$3  *0\.[0-9][0-9] " "$folder/out"
}
ok "tensor-core attention is replaced" broken attention_forward_kernel:128 attention_forward "CUDA cores"
ok "its backward is replaced" broken attention_dq_kernel:128 attention_backward "CUDA cores"
ok "a fused epilogue is replaced" broken cublasLtMatmul:4 matmul_forward "cuBLASLt, first choice, unfused"
ok "a kernel that writes NaN into the first of its outputs is replaced" broken attention_forward_kernel:128:nan \
    attention_forward "CUDA cores"
ok "a kernel that does nothing is replaced" broken attention_dq_kernel:128:nothing attention_backward "CUDA cores"
ok "cuBLASLt is replaced" broken cublasLtMatmul matmul_backward "plain GEMM"

no_other_kernel() {
    SIMT_BREAK=gelu_forward_packed_kernel run 1 "$trainer" --self-check --device cuda &&
        has "$folder/out" "gelu_forward is wrong on this device"
}
ok "an operation without another kernel fails" no_other_kernel

# ---- at the start of a run

said="self-check the operations on this device"
remembers() {
    export TRAIN_GPT2_SELF_CHECK=$folder/remembered
    run 0 "${train[@]}" -o "$folder/right" && has "$folder/out" "$said" && [ "$(wc -l <"$folder/remembered")" -eq 1 ] &&
        run 0 "${train[@]}" && lacks "$folder/out" "$said"
}
ok "the first start checks and remembers" remembers
# forgets SED: a remembered pass changed so does not count
forgets() {
    export TRAIN_GPT2_SELF_CHECK=$folder/remembered
    sed -i "$1" "$folder/remembered"
    run 0 "${train[@]}" && has "$folder/out" "$said"
}
ok "another driver or program is checked again" forgets 's/program [0-9a-f]*/program 0123456789abcdef/'
ok "another GPU is checked again" forgets 's/emulator/another GPU/'

replaces() {
    export TRAIN_GPT2_SELF_CHECK=$folder/replaced SIMT_BREAK=attention_dq_kernel:128
    local note="note      attention_backward uses a slower kernel (CUDA cores)"
    run 0 "${train[@]}" -o "$folder/slow" && has "$folder/out" "$said" && has "$folder/out" "$note" &&
        close "$folder/right" "$folder/slow" &&
        run 0 "${train[@]}" && lacks "$folder/out" "$said" && has "$folder/out" "$note"
}
ok "a run replaces a wrong kernel, says so at every start, and trains right" replaces
without_check() {
    SIMT_BREAK=attention_dq_kernel:128 run 0 "${train[@]}" -o "$folder/wrong" && ! close "$folder/right" "$folder/wrong"
}
TRAIN_GPT2_SELF_CHECK='' ok "without the check the same kernel trains wrong" without_check

ends() {
    TRAIN_GPT2_SELF_CHECK=$folder/failed SIMT_BREAK=gelu_forward_packed_kernel run 1 "${train[@]}" -o "$folder/never" &&
        has "$folder/err" "gelu_forward is wrong on cuda, emulator" && [ "$(wc -l <"$folder/err")" -eq 1 ] &&
        [ ! -e "$folder/never" ] && [ ! -e "$folder/failed" ]
}
ok "a run ends before training if there is no other kernel" ends

unwritable() {
    mkdir "$folder/dir" # a folder cannot be opened as a file, by root either
    export TRAIN_GPT2_SELF_CHECK=$folder/dir
    local times
    for times in 1 2; do
        run 0 "${train[@]}" && has "$folder/out" "$said" || return
        [ "$(grep -c 'could not write .*dir: Is a directory' "$folder/err")" -eq 1 ] || return
    done
}
ok "a cache that cannot be written is one sentence, and the check runs each time" unwritable
in_home() {
    unset TRAIN_GPT2_SELF_CHECK
    HOME=$folder run 0 "${train[@]}" && [ -s "$folder/.cache/train_gpt2/self_check.txt" ]
}
ok "the pass is remembered in HOME" in_home
end_tests
