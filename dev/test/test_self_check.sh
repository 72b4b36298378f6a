#!/usr/bin/env bash
# The self-check: its report, the check at the start of a run, and kernels that are wrong (SIMT_BREAK of the emulator).
#   dev/test/test_self_check.sh     needs build/emulated/train_gpt2_bf16 and build/emulated/train_gpt2
# shellcheck disable=SC2030,SC2031  # each case has settings of its own
. "$(dirname "$0")/harness.sh"
trainer=$root/build/emulated/train_gpt2_bf16
in_scratch
seq 1 400 >text
export SIMT_RACES=0 # test_ops finds races
train=(--device cuda -i text -e l1h1c64 -b 2 -t 16 -x 3 -v 0 -s 0)
check=(--self-check --device cuda)

# close A B: loss and gradient norm of two runs, in all steps, differ by less than 2 %
numbers() { sed -n 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1\n\2/p' "$1/metrics.jsonl"; }
close() {
    paste <(numbers "$1") <(numbers "$2") | awk '
        { d = $1 - $2; if (!(d * d < 4e-4 * $1 * $1)) print "found " $2 ", expected " $1 }
        END { if (NR != 6) print NR " numbers, expected 6" }'
}
right_lines() { grep -c '^[a-z_]* .* [0-9]\.[0-9][0-9]$' "$out"; }

# program | device | an operation and its kernel
while read -r program device line; do
    report "every operation has a line: $program --device $device" "$(
        trainer=$root/$program run 0 --self-check --device "$device"
        matches "$out" "^$line  *0\.[0-9][0-9]$"
        says "$out" "$(right_lines) operations agree with the reference"
        holds "$(right_lines) > 20"
    )"
done <<'ROWS'
build/emulated/train_gpt2_bf16 cuda matmul_backward *cuBLASLt
build/emulated/train_gpt2_bf16 cpu matmul_forward *C
build/emulated/train_gpt2 cuda attention_forward *CUDA cores
ROWS
all=$(right_lines)

# SIMT_BREAK | the operation | its replacement | why
while IFS='|' read -r broken operation replacement why; do
    report "replaced: $broken" "$(
        SIMT_BREAK=$broken run 0 "${check[@]}"
        says "$out" "a faster kernel $why"
        matches "$out" "^$operation *$replacement  *0\.[0-9][0-9]$"
    )"
done <<'ROWS'
attention_forward_kernel:128|attention_forward|CUDA cores|is off by
cublasLtMatmul:4|matmul_forward|cuBLASLt, unfused|is off by
attention_forward_kernel:128:nan|attention_forward|CUDA cores|gives NaN
attention_dq_kernel:128:nothing|attention_backward|CUDA cores|gives NaN
ROWS
report "cuBLASLt is replaced in each matmul" "$(
    SIMT_BREAK=cublasLtMatmul run 0 "${check[@]}"
    matches "$out" "^matmul_forward *plain GEMM  *0\.[0-9][0-9]$"
    matches "$out" "^matmul_backward *plain GEMM  *0\.[0-9][0-9]$"
    says "$out" "note      matmul uses a slower kernel (plain GEMM)"
)"
report "an operation without another kernel fails, and the others are right" "$(
    SIMT_BREAK="activation_forward_kernel<PACK:crash" run 1 "${check[@]}"
    matches "$out" "^activation_forward  *failed: Aborted: .* a kernel of SIMT_BREAK crashes, and has no other"
    says "$err" "1 of $all operations have no right kernel on this device"
    equal "$(right_lines)" $((all - 1))
)"

# ---- at the start of a run

said="checking every operation on this GPU"
note="note      attention_backward uses a slower kernel (CUDA cores)"
remembered=$PWD/remembered
report "the first start checks and remembers" "$(
    export TRAIN_GPT2_SELF_CHECK=$remembered
    run 0 "${train[@]}" -o right -n 3
    says "$out" "$said"
    equal "$(wc -l <remembered)" 1
    run 0 "${train[@]}"
    lacks "$out" "$said"
)"
echo "Kernel Module 999" >driver
cp "$trainer" program && echo >>program
report "another GPU of the same model, another driver and another program are checked, and the first are remembered" "$(
    export TRAIN_GPT2_SELF_CHECK=$remembered
    for variable in SIMT_UUID=second SIMT_DRIVER="$PWD/driver" trainer=./program; do
        (
            export "${variable?}" SIMT_CHECK_SECONDS=0 # the check begins, and is given up
            run 0 "${train[@]}"
            says "$out" "$said"
        )
    done
    run 0 "${train[@]}"
    lacks "$out" "$said"
)"
report "a later --self-check overrides a remembered pass" "$(
    export TRAIN_GPT2_SELF_CHECK=$PWD/latest
    cp remembered latest
    SIMT_BREAK=attention_dq_kernel:128 run 0 "${check[@]}"
    run 0 "${train[@]}"
    lacks "$out" "$said"
    says "$out" "$note"
    SIMT_BREAK="activation_forward_kernel<PACK" run 1 "${check[@]}"
    run 0 "${train[@]}"
    says "$out" "$said"
    lacks "$out" "attention_backward uses a slower kernel"
)"

# Seconds without an answer after which a kernel hangs; a busy machine is slow
patience() { case $1 in *:hang) echo 8 ;; *) echo 600 ;; esac; }
# mode of SIMT_BREAK | why
while IFS='|' read -r mode why; do
    report "a run replaces a kernel that $why, says so at every start, and trains right" "$(
        export TRAIN_GPT2_SELF_CHECK=$PWD/replaced SIMT_BREAK=attention_dq_kernel:128$mode
        SIMT_CHECK_SECONDS=$(patience "$mode") && export SIMT_CHECK_SECONDS
        rm -rf replaced slow
        run 0 "${train[@]}" -o slow
        says "$out" "$said"
        says "$out" "$note"
        says "$out" "the fast kernel of attention_backward $why"
        close right slow
        run 0 "${train[@]}"
        lacks "$out" "$said"
        says "$out" "$note"
    )"
done <<'ROWS'
|is off by
:error|failed:
:crash|failed: Aborted: simt: a kernel of SIMT_BREAK crashes
:hang|failed: no answer for 8 s
ROWS
report "without the check the same kernel trains wrong" "$(
    TRAIN_GPT2_SELF_CHECK='' SIMT_BREAK=attention_dq_kernel:128 run 0 "${train[@]}" -o wrong
    [ -n "$(close right wrong)" ] || echo "the same losses"
)"
export TRAIN_GPT2_SELF_CHECK=$PWD/failed
for row in "|is off by" ":error|failed: .*: invalid configuration argument"; do
    report "a run ends before training if a kernel ${row#*|} and there is no other" "$(
        SIMT_BREAK="activation_forward_kernel<PACK${row%|*}" run 1 "${train[@]}" -o never
        matches "$err" "^train_gpt2: activation_forward ${row#*|}.*, and there is no other kernel \(cuda, emulator"
        one_line "$err"
        [ ! -e never ] && [ ! -e failed ] || echo "something was written"
    )"
done

report "a run goes on if the check does not start" "$(
    export SIMT_CHECK_SECONDS=0
    run 0 "${train[@]}"
    says "$err" "the self-check did not start: no answer for 0 s; the run goes on"
    [ ! -e failed ] || echo "a pass was remembered"
    run 1 "${check[@]}"
    says "$err" "the self-check did not start: no answer for 0 s"
)"
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
# One end of the child, as of a machine without memory, replaces no kernel: the operation is repeated. A stopped child
# ends at SIGKILL alone, as one that hangs in the driver.
for signal in KILL STOP; do
    report "a child that ends once by SIGKILL, after SIG$signal, replaces no kernel" "$(
        export TRAIN_GPT2_SELF_CHECK=$PWD/child SIMT_CHECK_SECONDS=8
        rm -f child
        "$trainer" "${train[@]}" >"$out" 2>"$err" &
        kill -$signal "$(child_of $! 30)" # within its CPU time
        wait $! || echo "exit status $?"
        lacks "$out" slower
        says child "$(printf '\t 0 0 0')"
    )"
done
# A kernel hangs, and no second child starts: the program may no longer be executed.
report "a run ends if a kernel has failed and no other child starts" "$(
    cp "$trainer" once
    SIMT_BREAK="activation_forward_kernel<PACK:hang" SIMT_CHECK_SECONDS=8 ./once "${train[@]}" >"$out" 2>"$err" &
    parent=$!
    child_of $parent >child && chmod a-x once
    wait $parent
    equal $? 1
    says "$err" "the self-check broke off: Permission denied; "
    [ ! -e failed ] || echo "a pass was remembered"
)"
report "a killed run leaves no child behind" "$(
    SIMT_BREAK="packed ? embedding_forward:hang" "$trainer" "${train[@]}" >"$out" 2>"$err" &
    parent=$!
    child=$(child_of "$parent")
    sleep 1
    kill -KILL "$parent"
    trouble=$(none_left "$child")
    [ -z "$trouble" ] || { echo "$trouble" && kill -KILL "$child"; }
)"
report "--generate says so on stderr: stdout holds the text alone" "$(
    generate=(--device cuda -e right/step_00000003 --generate 8 --prompt 12)
    TRAIN_GPT2_SELF_CHECK='' run 0 "${generate[@]}"
    cp "$out" text_alone
    TRAIN_GPT2_SELF_CHECK=$PWD/generated SIMT_BREAK=attention_dq_kernel:128 run 0 "${generate[@]}"
    same "$out" text_alone
    says "$err" "$said"
    says "$err" "$note"
)"

# ---- two ranks

use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
ranks() { trainer=mpirun run 0 --oversubscribe --bind-to none -np "$@"; }
# Rank 0's GPU has a remembered pass, rank 1's fails the check. At level 0 rank 0 would train wrong.
report "two ranks use the plainest kernels of either" "$(
    TRAIN_GPT2_SELF_CHECK='' ranks 2 "$trainer" "${train[@]}" -o right2
    export TRAIN_GPT2_SELF_CHECK=$PWD/two
    SIMT_UUID=first run 0 "${train[@]}"
    SIMT_BREAK=attention_dq_kernel:128 ranks 1 env SIMT_UUID=first "$trainer" "${train[@]}" -o slow2 : \
        -np 1 env SIMT_UUID=second "$trainer" "${train[@]}" -o slow2
    says "$out" "$note"
    close right2 slow2
    equal "$(cut -f2 two | tr '\n' ,)" ' 0 0 0, 0 1 0,'
)"
end_tests
