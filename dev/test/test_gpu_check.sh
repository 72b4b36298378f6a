#!/usr/bin/env bash
# scripts/gpu_check.sh: the programs that each stage starts, its report, and its skipped steps. Stubs replace the GPU's
# tools, nvcc, make, python and the trainer.   dev/test/test_gpu_check.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
here=$folder/here out=$folder/out
mkdir -p "$here/dev" "$folder/bin" "$folder/programs" "$folder/back"
cp -r scripts README.md "$here"
export PATH=$folder/bin:$PATH STUBS=$folder PYTHON=$folder/bin/python OUT=$folder/back
unset NVCC DATA MERGES GPU_CHECK_SECONDS

# program PATH: writes an executable file from stdin
program() {
    { echo '#!/usr/bin/env bash' && cat; } >"$1"
    chmod +x "$1"
}

# ---- stubs

program "$folder/bin/nvidia-smi" <<'END_OF'
[ -z "${NO_GPU:-}" ] || exit 9
for word; do [[ $word != --query-gpu=* ]] || asked=${word#*=}; done
case $asked in
name) echo "Stub H200" ;;
compute_cap) echo 9.0 ;;
driver_version) echo 1.2.3 ;;
memory.free) echo 143000 ;;
memory.total) echo 144000 ;;
memory.used)
    echo 1000
    [[ $* != *--loop-ms* ]] || { echo 21480 && exec sleep 60; }  # 20 GiB more while a program runs
    ;;
esac
END_OF
program "$folder/bin/nvcc" <<END_OF
case \$* in
*--dryrun*) echo '#\$ TOP=$folder' >&2 ;;
*--version*) echo "Cuda compilation tools, release 13.0, V13.0.1" ;;
*) while [ "\$1" != -o ]; do shift; done && cp "$folder/bin/true" "\$2" ;;
esac
END_OF
program "$folder/bin/true" <<<'exit 0'
# waits until nvidia-smi has measured the memory, if the step asks for it
program "$folder/bin/seen" <<'END_OF'
for _ in {1..1000}; do
    if [ ! -e build/gpu/used.txt ] || [ "$(wc -l <build/gpu/used.txt)" -ge 2 ]; then exit; fi
    sleep 0.02
done
END_OF
# builds all targets except BROKEN
program "$folder/bin/make" <<'END_OF'
status=0
for word; do
    [[ $word == build/* ]] || continue
    name=${word##*/}
    if [ "$name" = "${BROKEN:-}" ]; then
        status=2
    elif [[ $* != *--question* ]]; then
        mkdir -p "${word%/*}"
        cp "$STUBS/programs/$(sed 's/^test_.*/test/' <<<"$name")" "$word"
    fi
done
exit $status
END_OF
program "$folder/bin/apt-get" <<<'exit 1'
program "$folder/bin/compute-sanitizer" <<'END_OF'
[ "$2" != "${RACES:-}" ] || exit 9
echo "========= ERROR SUMMARY: 0 errors"
END_OF
program "$folder/programs/test" <<<'echo "[  PASSED  ] 7 test(s)."'
program "$folder/programs/bench_ops" <<'END_OF'
case $* in
*--products*) printf '| qkv | bias | fused | `gemm` |\n\nProducts fused: 20 of 26.\n' ;;
*) echo "Ceilings: copy 4000.0 GB/s, matmul of 8192 cubed 750.000 TFLOP/s." ;;
esac
END_OF
# A trainer: 100 ms a step, plans of 2 GiB and 0.25 GiB per sequence. HANGS: flags with which it never ends.
program "$folder/programs/train_gpt2" <<'END_OF'
echo "$*" >>"$STUBS/log"
[[ -z ${HANGS:-} || " $* " != *" $HANGS "* || $* == *--plan* ]] || exec sleep 100
from=1 steps=1000 batch=4
for ((i = 1; i < $#; i++)); do
    next=$((i + 1)) value=${!next}
    case ${!i} in
    -b) batch=$value ;;
    -o) run=$value ;;
    -x) steps=$value ;;
    -y) from=501 ;;
    --tokenize) echo shard >"$value" && exit ;;
    esac
done
case $* in
*--plan=json*) echo "{\"total\":$(((8 + batch) << 28))}" && exit ;;
*"-b 4096"*) echo "train_gpt2: this takes 9e6 MiB and 140000.0 are free: too few; it fits with -b 3" >&2 && exit 2 ;;
esac
seen
[[ $* != *--fit* ]] || echo "fit       100.00 of 136.72 GiB: -b 128 -r 2"
awk -v from="$from" -v steps="$steps" -v seed="${NOISE:+$RANDOM}" 'BEGIN {
    srand(seed)
    for (i = from; i <= steps; i++) {
        loss = 10.9 - i / 500 + (seed != "" ? rand() / 1e6 : 0)
        printf "{\"step\":%d,\"loss\":%.8f,\"grad_norm\":1,\"lr\":0.1,\"ms\":100.0,\"tokens_per_s\":1}\n", i, loss
    }
}' >>"$run/metrics.jsonl"
echo "{}" >"$run/config.json"
echo "step $from/$steps | loss 1"
if [ "$steps" -eq 1000 ]; then
    for step in 00000500 00001000; do
        mkdir -p "$run/step_$step"
        echo "${WEIGHTS:-same}$from" | sed "s/same.*/same/" >"$run/step_$step/model.safetensors"
        echo same >"$run/step_$step/optimizer.safetensors"
    done
fi
END_OF
program "$folder/programs/dump_run" <<'END_OF'
mkdir -p "$1/step_00000000" && touch "$1/train.i32" "$1/step_00000000/model.safetensors"
END_OF
# PyTorch: 125 ms a step, 0.4 GiB per sequence, out of memory from 340 sequences on. Its losses are OFF higher.
program "$folder/bin/python" <<'END_OF'
case $* in
*"import torch"*) [ -n "${NO_TORCH:-}" ] || echo 9.9.0 ;;
*train_torch.py*)
    echo "$*" >>"$STUBS/log"
    for ((i = 1; i < $#; i++)); do
        next=$((i + 1))
        [ "${!i}" != --batch ] || batch=${!next}
    done
    seen
    [ "$batch" -lt 340 ] || exit 3
    printf '{"median_ms": 125.0, "p10_ms": 124.0, "p90_ms": 126.0, "reserved_bytes": %d, "none_ms": 125.0, ' \
        $((batch * 429496730))
    echo '"kept_ms": 127.0, "first_step_s": 40.0, "gemm_tflops": 740.0}'
    ;;
*converge.py*)
    while [ "$1" != --losses ]; do shift; done
    awk -v off="${OFF:-0.001}" 'BEGIN {
        for (i = 1; i <= 1000; i++) { printf "{\"step\":%d,\"loss\":%.8f}\n", i, 10.9 - i / 500 + off }
    }' >"$2"
    ;;
esac
END_OF

# ---- checks

# check STATUS STAGE: runs a stage, and prints an unexpected exit status
check() {
    local status stage=("${@:2}")
    rm -rf "$folder/log" "$here/dev/results" "$folder"/back/*
    timeout 120 "$here/scripts/gpu_check.sh" "${stage[@]}" >"$out" 2>&1 </dev/null
    status=$?
    [ "$status" -eq "$1" ] || echo "exit status $status, expected $1"
    results=$(find "$here/dev/results" -name '*.md' 2>/dev/null)
}
# has WORDS...: prints the words that the results lack
has() {
    local words
    for words; do grep -qF -- "$words" "${results:-/dev/null}" || echo "expected '$words' in the results"; done
}
lacks() { if grep -F -- "$1" "$results"; then echo "expected no '$1' in the results"; fi; }
says() { grep -qF -- "$1" "$out" || echo "expected '$1' in the output"; }

# ---- cases

# judge NAME FUNCTION: runs a case in this shell, because `check` sets `results`
judge() {
    "$2" >"$folder/trouble" 2>&1
    report "$1" "$(cat "$folder/trouble")"
}

without_a_gpu() {
    local stage
    for stage in '' memory curve; do
        NO_GPU=1 check 2 ${stage:+"$stage"}
        says "no GPU: nvidia-smi shows none"
    done
    NO_GPU=1 check 2 build
    says "no GPU: nothing was run"
    check 2 nonsense
    says "found 'nonsense'"
}

all_of_it() {
    check 0
    has "# GPU: all" "Stub H200, driver 1.2.3, CUDA 13.0, PyTorch 9.9.0" "- build bench_ops: ok" \
        "- test_ops_bf16: ok; 7 test(s)" "- racecheck: ok; 0 errors" "- the same bits twice, 20 steps of 124M: ok" \
        "- products of 124M: ok; 20 of 26 are one kernel with their epilogue" "| qkv | bias | fused |" \
        "- the first loss of 124M: ok" "ran at 750.000 TFLOP/s" "## Matrix products of 1558M" \
        "| 124M, B 64 | train_gpt2, run 1 | 100.0 (100.0 to 100.0) | 655360 (655360 to 655360) |" \
        "| 1558M, B 16 | PyTorch 9.9.0, run 2 | 125.0 (124.0 to 126.0) |" "| 18.0 | 20.0 |" \
        "124M, B 64: 1.25x PyTorch, the best run of each." \
        "- PyTorch 124M, run 1: ok; 125.0 ms a step: gradients set to None 125.0, kept 127.0"
    [ -s "$folder/back/${results##*/}" ] && [ -s "$folder/back/gpu_check_all_logs.tgz" ] || echo "OUT is empty"
    [ "$(grep -c -- '-x 50 ' "$folder/log")" -eq 4 ] || echo "not four runs of 50 steps: $(cat "$folder/log")"
    [ "$(grep -oE -- '-x 50 -e d12|--model 124M.*' "$folder/log" | tr '\n' ';')" = "-x 50 -e d12;--model 124M \
--batch 64 --gradients both;-x 50 -e d12;--model 124M --batch 64 --gradients none;" ] ||
        echo "the programs do not take turns, or PyTorch does not run its faster variant: $(cat "$folder/log")"
}

failures_are_reported() {
    RACES=racecheck BROKEN=test_ops_fp32 NO_TORCH=1 NOISE=1 check 1
    has "- racecheck: FAILED: exit status 9" "- build test_ops_fp32: FAILED: exit status 2" "- memcheck: ok" \
        "- PyTorch: skipped" "- the same bits twice, 20 steps of 124M: FAILED" "- train 1558M, run 2: ok"
    lacks "- test_ops_fp32:"
    lacks "| PyTorch"
}

memory() {
    local level
    check 0 memory
    for level in 0 1 2 3 4; do
        has "| 124M, B 64 | -r $level | 100.0 (100.0 to 100.0) | 655360 | 18.0 | 20.0 | 2.0 |" \
            "| 1558M, B 16 | -r $level | 100.0"
    done
    # 140000 MiB are 546.9 times 256 MiB, and 8 of these hold no sequence
    has "| 8 | train_gpt2 | 100.0" "| 8 | PyTorch 9.9.0 | 125.0" "- what does not fit is refused" \
        "| 124M | train_gpt2 -r 1 | 538 | 100.0" "| 539, by its plan |" "| train_gpt2 --fit: -b 128 -r 2 |" \
        "| 124M | PyTorch 9.9.0 | 33"
    grep -q -- '-x 3 -e d12 -r 1 -b 538' "$folder/log" || echo "the largest batch was not run"
    # the largest batch that ran and the smallest that did not are at most 1/32 apart
    sed -n 's/^| 124M | PyTorch 9.9.0 | \([0-9]*\) .* \([0-9]*\), tried |$/\1 \2/p' "$results" |
        awk '{ close_by = $1 < 340 && $2 >= 340 && $2 - $1 <= $1 / 32 + 1 } END { exit !close_by }' ||
        echo "PyTorch's largest batch was not found"
}

memory_without_torch() {
    NO_TORCH=1 check 0 memory
    lacks "| PyTorch"
    has "| 1 | train_gpt2 | 100.0"
}

curve() {
    echo text >"$folder/text"
    DATA=$folder/text check 0 curve
    has "- text: ok; $folder/text, as bytes" "- the curves: ok; 1000 steps, means of 50 steps at most 0.001 apart" \
        "- uninterrupted and resumed at step 500: equal bits: ok" "| each step | 0.001 | 0.001 |" "| 1000 | 8.9"
    DATA=$folder/text MERGES=$folder/text check 0 curve
    has "- text: ok; $folder/text by $folder/text"
    grep -q -- '-i build/gpu/curve/text.bin ' "$folder/log" || echo "the shard was not trained on"
    DATA=$folder/text OFF=0.02 check 1 curve
    has "- the curves: FAILED: exit status 1; 1000 steps, means of 50 steps at most 0.02 apart"
    DATA=$folder/text WEIGHTS=other check 1 curve
    has "- uninterrupted and resumed at step 500: equal bits: FAILED"
    check 1 curve
    has "- text: FAILED"
}

# step_of ALL LIMIT: the status of a step of 20 s with a limit of its own and a limit of all steps
step_of() {
    # shellcheck disable=SC2034  # steps.sh reads it
    (seconds_in_all=$1 && . scripts/gpu/steps.sh && bounded "$2" sleep 20)
    echo $?
}

limits() {
    local started=$SECONDS status
    [ "$(step_of 100 1)" -eq 124 ] || echo "expected status 124 of a step past its limit"
    [ "$(step_of 5 60)" -eq 125 ] || echo "expected status 125 of a step without time left"
    NO_TORCH=1 HANGS="-r 1" GPU_CHECK_SECONDS=20 check 0 memory
    has "- 124M, B 64, -r 0: ok" "- 124M, B 64, -r 1: left out: no time was left" \
        "- 1558M, B 16, -r 0: left out: no time was left" "| 124M, B 64 | -r 0 |"
    lacks FAILED
    [ $((SECONDS - started)) -lt 90 ] || echo "the stage took $((SECONDS - started)) s, expected less than 90"
}

judge "without a GPU every stage stops with an error" without_a_gpu
judge "tests, matmuls, both trainers in turns" all_of_it
judge "a failed step is reported, and the other steps run" failures_are_reported
judge "memory: every -r, small batches, the largest batch" memory
judge "memory without PyTorch" memory_without_torch
judge "loss curves and a resumed run" curve
judge "time limits" limits
end_tests
