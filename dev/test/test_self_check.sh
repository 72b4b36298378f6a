#!/usr/bin/env bash
# The self-check: its report, the check at the start of a run, and kernels that are wrong (SIMT_BREAK of the emulator).
#   dev/test/test_self_check.sh     needs build/emulated/train_gpt2_bf16 and build/emulated/train_gpt2
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/harness.sh
trainer=build/emulated/train_gpt2_bf16
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
seq 1 400 >"$folder/text"
export TRAIN_GPT2_AUTOTUNE_CACHE=$folder/autotune TRAIN_GPT2_SELF_CHECK=
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

# every_operation PROGRAM DEVICE OPERATION KERNEL
every_operation() {
    run 0 "$1" --self-check --device "$2" && has "$folder/out" "28 operations agree with the textbook" &&
        [ "$(grep -c '^[a-z_]* .* [0-9]\.[0-9][0-9]$' "$folder/out")" -eq 28 ] &&
        grep -q "^$3 *$4  *0\.[0-9][0-9]$" "$folder/out"
}
ok "every operation has a line, on the emulated GPU" every_operation "$trainer" cuda \
    matmul_gelu_forward cuBLASLt
ok "every operation has a line, on the CPU" every_operation "$trainer" cpu matmul_forward C
ok "every operation has a line, in fp32" every_operation build/emulated/train_gpt2 cuda attention_forward "CUDA cores"

# replaced OPERATION REPLACEMENT WORDS: --self-check has replaced the operation's kernel and says why
replaced() {
    run 0 "$trainer" --self-check --device cuda && has "$folder/out" "a faster kernel $3" &&
        grep -q "^$1 *$2  *0\.[0-9][0-9]$" "$folder/out"
}
# broken KERNEL OPERATION REPLACEMENT: a kernel that is wrong
broken() { SIMT_BREAK=$1 replaced "$2" "$3" "is off by"; }
ok "tensor-core attention is replaced" broken attention_forward_kernel:128 attention_forward "CUDA cores"
ok "its backward is replaced" broken attention_dq_kernel:128 attention_backward "CUDA cores"
ok "a fused epilogue is replaced" broken cublasLtMatmul:4 matmul_forward "cuBLASLt, unfused"
nan() { SIMT_BREAK=$1 replaced "$2" "$3" "gives NaN"; }
ok "a kernel that writes NaN into the first of its outputs is replaced" nan attention_forward_kernel:128:nan \
    attention_forward "CUDA cores"
ok "a kernel that does nothing is replaced" nan attention_dq_kernel:128:nothing attention_backward "CUDA cores"
# each matmul says why it is replaced
no_cublaslt() {
    broken cublasLtMatmul matmul_backward "plain GEMM" && has "$folder/out" "a faster kernel fails in matmul_forward" &&
        has "$folder/out" "note      matmul uses a slower kernel (plain GEMM)"
}
ok "cuBLASLt is replaced" no_cublaslt
# patience [hang]: seconds without an answer after which a kernel hangs; a busy machine is slow
patience() { case $1 in *:hang) echo 8 ;; *) echo 600 ;; esac; }
refused() {
    SIMT_BREAK=cublasLtMatmul:4:error run 0 "$trainer" --self-check --device cuda &&
        grep -q "^matmul_forward *cuBLASLt  *0" "$folder/out"
}
ok "an error of cuBLASLt for an epilogue is that epilogue refused" refused

no_other_kernel() {
    SIMT_BREAK="gelu_forward_kernel<PACK:crash" run 1 "$trainer" --self-check --device cuda &&
        grep -q "^gelu_forward  *failed: Aborted: .* a kernel of SIMT_BREAK crashes, and has no other" "$folder/out" &&
        has "$folder/out" "operations without a right kernel on this device: 1 of 28" &&
        [ "$(grep -c '^[a-z_]* .* [0-9]\.[0-9][0-9]$' "$folder/out")" -eq 27 ]
}
ok "an operation without another kernel fails, and the others are right" no_other_kernel

# ---- at the start of a run

said="checking every operation on this GPU"
note="note      attention_backward uses a slower kernel (CUDA cores)"
remembers() {
    export TRAIN_GPT2_SELF_CHECK=$folder/remembered
    run 0 "${train[@]}" -o "$folder/right" -n 3 && has "$folder/out" "$said" &&
        [ "$(wc -l <"$folder/remembered")" -eq 1 ] && run 0 "${train[@]}" && lacks "$folder/out" "$said"
}
ok "the first start checks and remembers" remembers
# checks_again COMMAND...: although another machine has a remembered pass
checks_again() {
    TRAIN_GPT2_SELF_CHECK=$folder/remembered run 0 "$@" && has "$folder/out" "$said" && run 0 "${train[@]}"
}
echo "Kernel Module 999" >"$folder/driver"
cp "$trainer" "$folder/program" && echo >>"$folder/program"
ok "another GPU of the same model is checked" checks_again env SIMT_UUID=second "${train[@]}"
ok "another driver is checked" checks_again env SIMT_DRIVER="$folder/driver" "${train[@]}"
ok "another program is checked" checks_again "$folder/program" "${train[@]:1}"
unchanged() { TRAIN_GPT2_SELF_CHECK=$folder/remembered run 0 "${train[@]}" && lacks "$folder/out" "$said"; }
ok "the first GPU, driver and program are still remembered" unchanged

# the last line of a machine counts
latest() {
    export TRAIN_GPT2_SELF_CHECK=$folder/latest
    cp "$folder/remembered" "$folder/latest" || return
    SIMT_BREAK=attention_dq_kernel:128 run 0 "$trainer" --self-check --device cuda &&
        run 0 "${train[@]}" && lacks "$folder/out" "$said" && has "$folder/out" "$note" &&
        SIMT_BREAK="gelu_forward_kernel<PACK" run 1 "$trainer" --self-check --device cuda &&
        run 0 "${train[@]}" && has "$folder/out" "$said" && lacks "$folder/out" "$note"
}
ok "a later --self-check overrides a remembered pass" latest

# replaces BREAK: a start replaces attention_backward's kernel, says so at every start, and trains right
replaces() {
    export TRAIN_GPT2_SELF_CHECK=$folder/replaced SIMT_BREAK=attention_dq_kernel:128$1
    SIMT_CHECK_SECONDS=$(patience "$1") && export SIMT_CHECK_SECONDS
    rm -rf "$folder/replaced" "$folder/slow"
    run 0 "${train[@]}" -o "$folder/slow" && has "$folder/out" "$said" && has "$folder/out" "$note" &&
        has "$folder/out" "the fast kernel of attention_backward $2" && close "$folder/right" "$folder/slow" &&
        run 0 "${train[@]}" && lacks "$folder/out" "$said" && has "$folder/out" "$note"
}
ok "a run replaces a wrong kernel, says so at every start, and trains right" replaces "" "is off by"
ok "a run replaces a kernel that does not launch" replaces :error "failed: "
ok "a run replaces a kernel that crashes" replaces :crash "failed: Aborted: simt: a kernel of SIMT_BREAK crashes"
ok "a run replaces a kernel that hangs" replaces :hang "failed: no answer for 8 s"
without_check() {
    SIMT_BREAK=attention_dq_kernel:128 run 0 "${train[@]}" -o "$folder/wrong" && ! close "$folder/right" "$folder/wrong"
}
TRAIN_GPT2_SELF_CHECK='' ok "without the check the same kernel trains wrong" without_check

# ends MODE CAUSE: a run ends before training if there is no other kernel
ends() {
    TRAIN_GPT2_SELF_CHECK=$folder/failed SIMT_BREAK="gelu_forward_kernel<PACK$1" \
        SIMT_CHECK_SECONDS=$(patience "$1") \
        run 1 "${train[@]}" -o "$folder/never" &&
        grep -q "^train_gpt2: gelu_forward $2.*, and there is no other kernel (cuda, emulator" "$folder/err" &&
        [ "$(wc -l <"$folder/err")" -eq 1 ] && [ ! -e "$folder/never" ] && [ ! -e "$folder/failed" ]
}
ok "a run ends before training if there is no other kernel" ends "" "is off by"
ok "and if the only kernel does not launch" ends :error "failed: .*: invalid configuration argument"
ok "and if the only kernel crashes" ends :crash "failed: Aborted: simt: a kernel of SIMT_BREAK crashes"
ok "and if the only kernel hangs" ends :hang "failed: no answer for 8 s"

not_started() {
    export TRAIN_GPT2_SELF_CHECK=$folder/failed SIMT_CHECK_SECONDS=0
    run 0 "${train[@]}" && has "$folder/err" "the self-check did not start: no answer for 0 s; the run goes on" &&
        [ ! -e "$folder/failed" ] && run 1 "$trainer" --self-check --device cuda &&
        has "$folder/err" "the self-check did not start: no answer for 0 s"
}
ok "a run goes on if the check does not start" not_started
# child_of PROCESS [TICKS]: waits for its child of the self-check, and until that has had TICKS / 100 s of CPU time
child_of() {
    local child
    until child=$(cat "/proc/$1/task/$1/children" 2>/dev/null) && child=${child%% *} && [ -n "$child" ] &&
        grep -qs -- --self-check-child "/proc/$child/cmdline" &&
        awk -v ticks="${2:-0}" '{ exit $14 + $15 < ticks }' "/proc/$child/stat"; do
        [ -d "/proc/$1/task/$1" ] || return
        sleep 0.1
    done
    echo "$child"
}
# One end of the child, as of a machine without memory, replaces no kernel: the operation is repeated.
child_killed() {
    export TRAIN_GPT2_SELF_CHECK=$folder/child_killed
    "${train[@]}" >"$folder/out" 2>"$folder/err" &
    kill -KILL "$(child_of $! 30)" # within its CPU time
    wait $! && lacks "$folder/out" slower && grep -q "$(printf '\t 0 0 0')" "$folder/child_killed"
}
ok "a child that is killed once replaces no kernel" child_killed
# A stopped child ends at SIGKILL alone, as one that hangs in the driver.
child_stopped() {
    export TRAIN_GPT2_SELF_CHECK=$folder/child_stopped SIMT_CHECK_SECONDS=8
    "${train[@]}" >"$folder/out" 2>"$folder/err" &
    kill -STOP "$(child_of $! 30)"
    wait $! && lacks "$folder/out" slower && grep -q "$(printf '\t 0 0 0')" "$folder/child_stopped"
}
ok "a child that takes no signal is killed, and replaces no kernel" child_stopped
# A kernel hangs, and no second child starts: the program may no longer be executed.
broke_off() {
    local parent
    cp "$trainer" "$folder/once"
    TRAIN_GPT2_SELF_CHECK=$folder/failed SIMT_BREAK="gelu_forward_kernel<PACK:hang" SIMT_CHECK_SECONDS=8 \
        "$folder/once" "${train[@]:1}" >"$folder/out" 2>"$folder/err" &
    parent=$!
    child_of $parent >"$folder/child" && chmod a-x "$folder/once"
    wait $parent
    [ $? -eq 1 ] && has "$folder/err" "the self-check broke off: Permission denied; " && [ ! -e "$folder/failed" ]
}
ok "a run ends if a kernel has failed and no other child starts" broke_off
killed() {
    local parent child trouble
    TRAIN_GPT2_SELF_CHECK=$folder/failed SIMT_BREAK="packed ? embedding_forward:hang" "${train[@]}" >"$folder/out" &
    parent=$!
    child=$(child_of "$parent")
    sleep 1
    kill -KILL "$parent"
    trouble=$(none_left "$child")
    [ -z "$trouble" ] || { echo "# $trouble" && kill -KILL "$child" && false; }
}
ok "a killed run leaves no child behind" killed

memory_first() {
    TRAIN_GPT2_SELF_CHECK=$folder/memory run 2 "${train[@]}" -e l2h64c4096 -b 64 -t 1024 &&
        has "$folder/err" "the model needs" && lacks "$folder/out" "$said"
}
ok "the model's memory is checked first" memory_first

# stdout holds the text alone
generates() {
    local generate=("$trainer" --device cuda -e "$folder/right/step_00000003" --generate 8 --prompt 12)
    TRAIN_GPT2_SELF_CHECK='' run 0 "${generate[@]}" && cp "$folder/out" "$folder/text_alone" &&
        TRAIN_GPT2_SELF_CHECK=$folder/generated SIMT_BREAK=attention_dq_kernel:128 run 0 "${generate[@]}" &&
        cmp "$folder/out" "$folder/text_alone" && has "$folder/err" "$said" && has "$folder/err" "$note"
}
ok "--generate says so on stderr" generates

unwritable() {
    mkdir "$folder/dir" # a folder cannot be opened as a file, by root either
    export TRAIN_GPT2_SELF_CHECK=$folder/dir
    for _ in 1 2; do
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

# ---- two ranks

ranks=(mpirun --oversubscribe --bind-to none -np)
one_sentence() {
    TRAIN_GPT2_SELF_CHECK=$folder/dir run 0 "${ranks[@]}" 2 "${train[@]}" &&
        [ "$(grep -c 'could not write' "$folder/err")" -eq 1 ] && [ "$(grep -c "$said" "$folder/out")" -eq 1 ]
}
# Rank 0's GPU has a remembered pass, rank 1's fails the check. At level 0 rank 0 would train wrong.
plainest() {
    local first=(1 env SIMT_UUID=first "${train[@]}") second=(1 env SIMT_UUID=second "${train[@]}")
    TRAIN_GPT2_SELF_CHECK='' run 0 "${ranks[@]}" 2 "${train[@]}" -o "$folder/right2" || return
    export TRAIN_GPT2_SELF_CHECK=$folder/two
    run 0 "${first[@]:1}" || return
    SIMT_BREAK=attention_dq_kernel:128 run 0 "${ranks[@]}" "${first[@]}" -o "$folder/slow2" : \
        -np "${second[@]}" -o "$folder/slow2" && has "$folder/out" "$note" && close "$folder/right2" "$folder/slow2" &&
        cut -f2 "$folder/two" | tr '\n' , | grep -qx ' 0 0 0, 0 1 0,'
}
if command -v mpirun >/dev/null && "$trainer" --version | grep 'MPI (' >/dev/null; then
    use_mpirun yes 2
    ok "two ranks that cannot write the cache say one sentence" one_sentence
    ok "two ranks use the plainest kernels of either" plainest
else
    skip "$MPI" 2 "two ranks"
fi
end_tests
