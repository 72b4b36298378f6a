#!/usr/bin/env bash
# scripts/gpu_check.sh: the rows of each command, its report and verdict, failing and hanging rows, and that each
# command fits its minutes. Stubs replace the GPU's tools, nvcc, make, python and the trainer.
#   PREDICT=build/bench/predict dev/test/test_gpu_check.sh
#
# Nothing waits: the clock is a file. The stub of `timeout` runs a command at once. The command says how many seconds it
# would take: steps of the milliseconds that $PREDICT predicts, starts and compilations. `wait` then sets the clock to
# the command's end. Rows in the background thus overlap as on a GPU.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

real_timeout=$(command -v timeout) real_date=$(command -v date) real_path=$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
here=$folder/here out=$folder/out
mkdir -p "$here/dev" "$folder/bin" "$folder/programs" "$folder/back"
cp -r scripts README.md train_gpt2.cu llmc "$here"
export PATH=$folder/bin:$PATH STUBS=$folder PYTHON=$folder/bin/python OUT=$folder/back
unset NVCC DATA MERGES GPU_CHECK_SECONDS TRAIN_GPT2_PICKS TRAIN_GPT2_SELF_CHECK

PREDICT=${PREDICT:-build/bench/predict}
[ -x "$PREDICT" ] || { echo "$0: $PREDICT is missing: make build/bench/predict" >&2 && exit 1; }
declare -A prediction=([124M]=$("$PREDICT" --json --gpu h200 -e d12 -b 64 -d 65536)
    [1558M]=$("$PREDICT" --json --gpu h200 -e d48 -b 16 -d 16384))
# predicted KEY MODEL: a number of the prediction, the second of a list
predicted() {
    sed -n "\$ { s/.*\"$1\":\[[^,]*,\([0-9.]*\).*/\1/p; s/.*\"$1\":\([0-9][0-9.]*\).*/\1/p; }" \
        <<<"${prediction[$2]}"
}
STEP_124M=$(predicted ms 124M) STEP_1558M=$(predicted ms 1558M)  # milliseconds
# the trainer's sentence for a plan that is too large, in printf's words
REFUSAL=$(sed -n 's/.*"\(the model needs [^"]*\)".*/\1/p' llmc/run/model_options.h)
export STEP_124M STEP_1558M REFUSAL

# program PATH: writes an executable file from stdin
program() {
    { echo '#!/usr/bin/env bash' && cat; } >"$1"
    chmod +x "$1"
}

# ---- a clock that only waiting advances

# bash reads this file at the start of every script. A background row has a clock of its own: VIRTUAL_NOW
cat >"$folder/clock.sh" <<'END_OF'
wait() {
    local status end id
    for id in "${process[@]}"; do  # a row in the background has read the clock before it moves
        until [ -e "$STUBS/ends/$id.began" ] || ! builtin kill -0 "$id" 2>/dev/null; do sleep 0.01; done
    done
    builtin wait "$@"
    status=$?
    end=$(cat "$STUBS/ends/${1:-none}" 2>/dev/null) || return $status
    if [ "$BASHPID" != "$$" ]; then
        export VIRTUAL_NOW=$end
        echo "$end" >"$STUBS/ends/$BASHPID"
    elif [ "$end" -gt "$(cat "$STUBS/clock")" ]; then
        echo "$end" >"$STUBS/clock"
    fi
    return $status
}
# a row that is stopped ends now
kill() {
    builtin kill "$@"
    builtin wait "$@" 2>/dev/null
    for id; do rm -f "$STUBS/ends/$id"; done
}
END_OF
program "$folder/bin/date" <<END_OF
if [ "\$*" = +%s ]; then echo "\${VIRTUAL_NOW:-\$(cat "\$STUBS/clock")}"; else exec $real_date "\$@"; fi
END_OF
# took SECONDS: the command that runs would have taken so long
program "$folder/bin/took" <<'END_OF'
[ -z "${TOOK:-}" ] || echo "$1" >>"$TOOK"
END_OF
# FINDS: a sanitizer that finds something and runs out of time. HANGS, FAILS: patterns of commands that hang, or fail at
# once. SLOW: everything takes so many times as long. A `timeout` within another is one of eight at once
program "$folder/bin/timeout" <<'END_OF'
[ "$1" != --foreground ] || shift
limit=$3 outer=${TOOK:-} began=${VIRTUAL_NOW:-$(cat "$STUBS/clock")}
shift 3
touch "$STUBS/ends/$PPID.began"
export TOOK=$STUBS/took.$$
: >"$TOOK"
status=0
if [[ -n ${HANGS:-} && "$*" == *$HANGS* ]]; then
    took 1000000
elif [[ -n ${FAILS:-} && "$*" == *$FAILS* ]]; then
    echo "something broke"
    status=7
else
    "$@"
    status=$?
fi
seconds=$(awk -v slow="${SLOW:-1}" '{ sum += $1 } END { printf "%.0f", sum * slow }' "$TOOK")
rm "$TOOK"
[ "$seconds" -le "$limit" ] || seconds=$limit status=124
if [ -n "$outer" ]; then
    awk "BEGIN { print $seconds / 8 / ${SLOW:-1} }" >>"$outer"
else
    echo $((began + seconds)) >"$STUBS/ends/$$"
fi
exit $status
END_OF

# ---- stubs

program "$folder/bin/nvidia-smi" <<'END_OF'
[ -z "${NO_GPU:-}" ] || exit 9
for word; do [[ $word != --query-gpu=* ]] || asked=${word#*=}; done
case $asked in
name) echo "${GPU_NAME:-Stub H200}" ;;
compute_cap) echo "${CAPABILITY:-9.0}" ;;
driver_version) echo "${DRIVER:-1.2.3}" ;;
memory.free) echo "${FREE:-$((${MEMORY:-144000} - 1000))}" ;;
memory.total) echo "${MEMORY:-144000}" ;;
memory.used)
    echo 1000
    # 20 GiB more while a program runs
    [[ $* != *--loop-ms* ]] || { echo 21480 && echo $$ >>"$STUBS/watchers" && exec sleep 60; }
    ;;
esac
END_OF
program "$folder/bin/nvcc" <<END_OF
case \$* in
*--dryrun*) echo '#\$ TOP=$folder' >&2 ;;
*--version*) echo "Cuda compilation tools, release \${RELEASE:-13.0}, V13.0.1" ;;
*) while [ "\$1" != -o ]; do shift; done && cp "$folder/bin/true" "\$2" ;;
esac
END_OF
program "$folder/bin/true" <<<'exit 0'
# TOKENS: the random tokens are written
program "$folder/bin/c++" <<END_OF
[ -z "\${TOKENS:-}" ] || exec $(command -v c++) "\$@"
while [ "\$1" != -o ]; do shift; done
[ "\$2" = /dev/null ] || cp "$folder/bin/true" "\$2"
END_OF
# waits until nvidia-smi has measured the memory, if the row asks for it
program "$folder/bin/seen" <<'END_OF'
for _ in {1..1000}; do
    if [ ! -e build/gpu/used.txt ] || [ "$(wc -l <build/gpu/used.txt)" -ge 2 ]; then exit; fi
    sleep 0.02
done
END_OF
# builds all targets except BROKEN: 50 s, less if the programs exist
program "$folder/bin/make" <<'END_OF'
status=0 seconds=2
for word; do
    [[ $word == build/* ]] || continue
    name=${word##*/}
    if [ "$name" = "${BROKEN:-}" ]; then
        status=2
    elif [[ $* == *--question* ]]; then
        [ -e "$word" ] || status=1
    else
        [ -e "$word" ] || seconds=50
        [[ $word != build/bench/* ]] || seconds=12
        mkdir -p "${word%/*}"
        cp "$STUBS/programs/$(sed 's/^test_.*/test/' <<<"$name")" "$word"
    fi
done
took $seconds
exit $status
END_OF
program "$folder/bin/compute-sanitizer" <<'END_OF'
case $* in
*--help*)
    echo "  --destroy-on-device-error arg (=context)   --port arg   ${FILTERS---kernel-name arg  \
        --kernel-name-exclude arg  --initcheck-track-filtered-global-memory arg (=yes)}" && exit
    ;;
*train_gpt2*) took 30 ;;
*racecheck*) took 130 ;;
*memcheck*) took 60 ;;
*) took 80 ;;
esac
echo "self-check in '${TRAIN_GPT2_SELF_CHECK-unset}': $*" >>"$STUBS/log"
if [ "$2" = "${FINDS:-}" ]; then
    echo "========= Invalid __global__ read of size 2 bytes" && took 1000000
elif [ "$2" = "${RACES:-}" ]; then
    printf '========= %s\n' "Invalid __global__ write of size 4 bytes" "    at layernorm+0x80" "ERROR SUMMARY: 3 errors"
    exit 9
fi
echo "========= ERROR SUMMARY: 0 errors"
END_OF
# A test. Of test_ops the row OFF_ROW is too far off, and the row CRASH_ROW crashes
program "$folder/programs/test" <<'END_OF'
echo "$0 $*" >>"$STUBS/log"
row=${*: -1}
case "$0 $*" in
*--list*) printf '%s\n' attention_forward classifier gelu_forward layernorm_forward {a..t}_row && exit ;;
*test_ops*--quick*) took 3 ;;
*test_ops*) took 30 ;;
*test_gpt2*) took 45 ;;
*) took 4 ;;
esac
[ "$row" != "${CRASH_ROW:-}" ] || exit 139
if [ "$row" = "${OFF_ROW:-}" ]; then
    echo "ERROR: layernorm_forward B 4: out is off by 0.00512, at most 0.0039 is allowed; element 3 is 1, not 2"
    echo "[  FAILED  ] $row"
    exit 1
fi
echo "[  PASSED  ] 7 test(s)."
END_OF
program "$folder/programs/bench_ops" <<'END_OF'
echo "$0 $*" >>"$STUBS/log"
case $* in
*--products*) took 9 && printf '| qkv | bias | fused | `gemm` |\n\nProducts fused: 20 of 26.\n' ;;
*) took 80 && echo "Ceilings: copy 4000.0 GB/s, matmul of 8192 cubed 750.000 TFLOP/s." &&
    echo "Ceilings at the end: copy 4000.0 GB/s, matmul of 8192 cubed 751.000 TFLOP/s." ;;
esac
END_OF
# A trainer: the predicted ms a step. It reports 100 ms. A plan of 124M takes 2 GiB and 0.25 GiB per sequence. A plan of
# 1558M takes 21,200 MiB and 205 per sequence at -r 4, 2560 at -r 0. FALLS: the factor of the loss's fall. REPLACED: a
# kernel failed the self-check. WRONG: an operation has no right kernel
program "$folder/programs/train_gpt2" <<'END_OF'
note="note      attention_forward uses a slower kernel (CUDA cores): the fast one fails the self-check on this GPU"
echo "self-check in '${TRAIN_GPT2_SELF_CHECK-unset}': $*" >>"$STUBS/log"
if [[ $* == *--self-check* ]]; then
    took 25
    [ ! -e "$TRAIN_GPT2_SELF_CHECK" ] || echo "remembered before --self-check" >>"$STUBS/log"
    echo "self-check of Stub H200, driver and program 92e4b987a0d6aacb"
    printf 'a large copy moves 4000 GB/s, a large matmul computes 750000 GFLOP/s\n\n%-28s %-18s %5s %9s %16s %6s\n' \
        operation kernel error ms rate share
    line="%-28s %-18s %5.2f %9.3f %8.0f %-7s %4.0f %%\n"
    printf "$line" matmul_forward cuBLASLt 0.31 0.210 600000 GFLOP/s 80
    if [ -n "${REPLACED:-}" ]; then
        printf "$line" attention_forward "CUDA cores" 0.41 4.100 20000 GFLOP/s 3
        printf '%-28s a faster kernel is off by 37.1 times the tolerance\n%s\n' "" "$note"
    else
        printf "$line" attention_forward "tensor cores" 0.62 0.410 200000 GFLOP/s 27
    fi
    printf '\nerror: the largest difference from the textbook implementation, as a share of the tolerance\n'
    [ -z "${WRONG:-}" ] ||
        { printf '%-28s is off by 3.21 times the tolerance, and has no other kernel\n' gelu_forward && exit 1; }
    echo "24 operations agree with the textbook"
    echo "Stub H200" >>"$TRAIN_GPT2_SELF_CHECK"
    exit
fi
from=1 steps=1000 batch=4 model=d12 a_step=0 level=auto total=${MEMORY:-144000}
for ((i = 1; i < $#; i++)); do
    next=$((i + 1)) value=${!next}
    case ${!i} in
    -b) batch=$value ;;
    -d) batch=$((value / 1024)) ;;
    -e) model=$value ;;
    -o) run=$value ;;
    -r) level=$value ;;
    -x) steps=$value ;;
    -y) from=501 ;;
    --tokenize) echo shard >"${value}_train_000001.bin" && exit ;;
    esac
done
plan=$(((8 + batch) * 256)) room=$((${FREE:-$((total - 1000))} - 1000))
if [ "$model" = d48 ]; then
    plan=$((21200 + 2560 * batch))
    # -r auto chooses for the whole device
    if [ "$level" = 4 ] || { [ "$level" = auto ] && [ $plan -gt $((total - 2048)) ]; }; then
        plan=$((21200 + 205 * batch))
    fi
fi
[[ $* != *--plan=json* ]] || { printf '{\n\t"total":\t%d\n}\n' $((plan << 20)) && exit; }
if [ $plan -gt $room ] && [[ $* != *--fit* ]]; then
    printf "train_gpt2: $REFUSAL\n" $plan $room $((plan - room)) "it fits with -b 3" >&2
    exit 2
fi
seen
echo "machine   cuda, Stub H200, early launches on"
[ -z "${REPLACED:-}" ] || echo "$note"
[ "$model" = d48 ] && starts=15 whole="$STEP_1558M 16" || starts=8 whole="$STEP_124M 64"
a_step=$(awk -v batch="$batch" '{ printf "%d", $1 * batch / $2 }' <<<"$whole")
if ! grep -qs "$model $batch" "$TRAIN_GPT2_PICKS"; then
    took 15
    echo "$model $batch" >>"$TRAIN_GPT2_PICKS"
fi
took $((starts + (steps - from + 1) * a_step / 1000))
[[ $* != *--fit* ]] || echo "fit       100.00 of 136.72 GiB: -b 128 -r 2"
awk -v from="$from" -v steps="$steps" -v seed="${NOISE:+$RANDOM}" -v falls="${FALLS:-1}" 'BEGIN {
    srand(seed)
    for (i = from; i <= steps; i++) {
        loss = 10.9 - (i < 20 ? i / 100 : 0.2 + (i - 20) / 500) * falls + (seed != "" ? rand() / 1e6 : 0)
        printf "{\"step\":%d,\"loss\":%.8f,\"grad_norm\":1,\"lr\":0.1,\"ms\":100.0,\"tokens_per_s\":1}\n", i, loss
    }
}' >>"$run/metrics.jsonl"
echo "{}" >"$run/config.json"
echo "step $from/$steps | loss 1"
if [ "$steps" -eq 1000 ]; then
    took 15
    for step in 00000500 00001000; do
        mkdir -p "$run/step_$step"
        echo "${WEIGHTS:-same}$from" | sed "s/same.*/same/" >"$run/step_$step/model.safetensors"
        echo same >"$run/step_$step/optimizer.safetensors"
    done
fi
END_OF
program "$folder/programs/dump_run" <<'END_OF'
took 25
mkdir -p "$1/step_00000000" && touch "$1/train.i32" "$1/step_00000000/model.safetensors"
END_OF
# PyTorch: 5 % slower than the prediction, compiled code in its cache. It reports 125 ms, 0.4 GiB per sequence, out of
# memory from 340 sequences on, and a matmul at 740 TFLOP/s, 739 with one mode of gradients. Its losses are OFF higher.
# TORCH_HANGS: it never ends
program "$folder/bin/python" <<'END_OF'
case $* in
*'version("torch")'*) [ -n "${NO_TORCH:-}" ] || echo 9.9.0 ;;
*train_torch.py*)
    echo "$*" >>"$STUBS/log"
    [ -z "${TORCH_HANGS:-}" ] || { echo $$ >"$STUBS/hangs" && exec sleep 300; }
    steps=40 warmup=10 modes=2
    for ((i = 1; i < $#; i++)); do
        next=$((i + 1)) value=${!next}
        case ${!i} in
        --batch) batch=$value ;;
        --model) model=$value ;;
        --steps) steps=$value ;;
        --warmup) warmup=$value ;;
        --gradients) [ "$value" = both ] || modes=1 ;;
        esac
    done
    [ "$model" = 1558M ] && compile=115 whole="$STEP_1558M 16" || compile=55 whole="$STEP_124M 64"
    a_step=$(awk -v batch="$batch" '{ printf "%d", 1.05 * $1 * batch / $2 }' <<<"$whole")
    [ -e "$TORCHINDUCTOR_CACHE_DIR/code_$model$batch" ] && compile=$((compile / 4))
    mkdir -p "$TORCHINDUCTOR_CACHE_DIR" && touch "$TORCHINDUCTOR_CACHE_DIR/code_$model$batch"
    took $((12 + compile + modes * (warmup + steps) * a_step / 1000))
    [[ $* == *"--steps 1 "* ]] || seen
    [ "$batch" -lt 340 ] || exit 3
    printf '{"median_ms": 125.0, "p10_ms": 124.0, "p90_ms": 126.0, "reserved_bytes": %d, "none_ms": 125.0, ' \
        $((batch * 429496730))
    echo "\"kept_ms\": 127.0, \"first_step_s\": 40.0, \"gemm_tflops\": $((738 + modes)).0}"
    ;;
*converge.py*)
    took 85
    while [ "$1" != --losses ]; do shift; done
    awk -v off="${OFF:-0.001}" 'BEGIN {
        for (i = 1; i <= 1000; i++) {
            loss = 10.9 - (i < 20 ? i / 100 : 0.2 + (i - 20) / 500) + off
            printf "{\"step\":%d,\"loss\":%.8f}\n", i, loss
        }
    }' >"$2"
    ;;
esac
END_OF

# ---- checks

# fresh: a machine on which nothing was built
fresh() { rm -rf "$here/build"; }

# check STATUS COMMAND: runs a command of gpu_check.sh, and prints an unexpected exit status. Sets results, and elapsed
# by the clock
check() {
    local status
    rm -rf "$folder/log" "$here/dev/results" "$folder"/back/* "$folder/ends" "$folder"/took.*
    mkdir "$folder/ends"
    echo 1000 >"$folder/clock"
    BASH_ENV=$folder/clock.sh "$real_timeout" 300 "$here/scripts/gpu_check.sh" "${@:2}" >"$out" 2>&1 </dev/null
    status=$?
    elapsed=$(($(cat "$folder/clock") - 1000))
    [ "$status" -eq "$1" ] ||
        { echo "exit status $status, expected $1; the end of the output:" && tail -n 5 "$out"; }
    results=$(find "$here/dev/results" -name '*.md' 2>/dev/null)
}
# has WORDS...: prints the words that the results lack
has() {
    local words
    for words; do grep -qF -- "$words" "${results:-/dev/null}" || echo "expected '$words' in the results"; done
}
lacks() { if grep -F -- "$1" "$results"; then echo "expected no '$1' in the results"; fi; }
says() { grep -qF -- "$1" "$out" || echo "expected '$1' in the output"; }
# within SECONDS: the command ended in time
within() { [ "$elapsed" -le "$1" ] && [ "$elapsed" -gt 0 ] || echo "took $elapsed s, expected at most $1"; }
# verdict WORDS: the report begins with them, and the output ends with them
verdict() {
    [[ $(sed -n 3p "$results") == "**$1"* ]] || echo "expected '$1' at the top, found '$(sed -n 3p "$results")'"
    [[ $(tail -n 1 "$out") == "$1"* ]] || echo "expected '$1' as the last line"
}
# all_back COMMAND: $OUT has the report, the logs of the command's rows and the autotune cache, as three plain files
all_back() {
    local back=$folder/back
    cmp "$results" "$back/${results##*/}"
    [ "$(find "$back" -type f | wc -l)" -eq 3 ] && [ "$(find "$back" -mindepth 1 | wc -l)" -eq 3 ] ||
        echo "expected three files in OUT, found: $(ls "$back")"
    cmp "$here/build/gpu/autotune_$1.txt" "$back/autotune_$1.txt"
    diff <(cd "$here/build/gpu" && find "log_$1" -type f | sort) \
        <(tar -tzf "$back/gpu_check_$1.tgz" | grep -v '/$' | sort) || echo "logs are missing"
}

# ---- cases

# judge NAME FUNCTION: runs a case in this shell, because `check` sets `results`
judge() {
    "$2" >"$folder/trouble" 2>&1
    report "$1" "$(cat "$folder/trouble")"
}

without_a_gpu() {
    local command
    for command in first speed rest; do
        NO_GPU=1 check 2 $command
        says "no GPU: nvidia-smi shows none"
    done
    NO_GPU=1 check 2 build
    says "no GPU: nothing was run"
    CAPABILITY=7.5 check 2 first
    says "compute capability 8.0 is needed"
    says "7.5 was found"
    CAPABILITY=7.5 check 2 build
    touch "$folder/a_file"
    OUT=$folder/a_file check 2 first
    says "OUT=$folder/a_file cannot be written"
    NO_GPU=1 OUT=$folder/back/new/folder check 2 first
    [ -d "$folder/back/new/folder" ] || echo "expected a new folder OUT"
    check 2 nonsense
    says "found 'nonsense'"
    check 2
    check 0 times
    says "memcheck of the trainer"
}

first() {
    fresh
    TOKENS=1 check 0 first
    [ "$(stat -c %s "$here/build/gpu/tokens.bin")" -eq $((1024 + 2 * 4200000)) ] || echo "expected 4.2 M tokens"
    verdict "go: the kernels, memcheck and the losses are right"
    within 240
    has "# GPU: first" "Stub H200, driver 1.2.3, CUDA 13.0, PyTorch 9.9.0" "- build: ok; 3 of 3 programs" \
        "- test_simt: ok; 7 test(s)" "- test_ops: ok; 24 of 24 rows passed" "- memcheck: ok; 0 errors" \
        "- 124M without CUDA graphs: ok; 100.0 ms a step; early launches on (" \
        "- losses: ok; 124M, 10.89000000 to 10.70000000" "- PyTorch compiles: ok" \
        "(60 s, 70 expected)" "- self-check: ok; 24 operations agree; operations with a slower kernel: 0" \
        "## Self-check" \
        "attention_forward            tensor cores        0.62"
    lacks "slower kernels"
    grep -q -- "--destroy-on-device-error kernel .*test_ops_bf16 --quick" "$folder/log" ||
        echo "expected memcheck of test_ops_bf16 --quick"
    watches memcheck --kernel-name "$kernels"
    all_back first
    checks_in "build/gpu/self_check.txt"
    SLOW=1.5 check 0 first
    within 240
    verdict go
    checks_in "build/gpu/self_check.txt"
    fresh
    MEMORY=81559 check 0 first
    grep -q -- "--model 1558M --device cuda --batch 8 " "$folder/log" || echo "PyTorch's 1558M does not fit at B 16"
    fresh
    MEMORY=40960 check 0 first
    if grep -- "--model .*" "$folder/log"; then echo "PyTorch fills a small GPU beside the tests"; fi
}

kernels=$(cat llmc/*.cuh llmc/*/*.cuh | grep -c __global__)
# watches TOOL OPTION COUNT: the tool of the last command has a filter by name for so many kernels
watches() {
    local found
    found=$(grep -- "--tool $1 .*test_ops" "$folder/log" | grep -oE -- "$2=kns=[a-z_]+_kernel " | sort -u | wc -l)
    [ "$found" -eq "$3" ] || echo "$1 has $found filters $2, expected $3"
}

# checks_in FILE: every run of the trainer remembers the self-check in FILE; none existed before --self-check
checks_in() {
    grep -q "^self-check in '$1': .*-x 20" "$folder/log" || echo "expected the self-check in $1"
    if grep "^remembered\|^self-check in '[^']*': .*-x" "$folder/log" | grep -v "^self-check in '$1'"; then
        echo "expected every self-check in $1, and none before --self-check"
    fi
}

first_replaces_a_kernel() {
    fresh
    REPLACED=1 check 0 first
    verdict "go: the kernels, memcheck and the losses are right. Replaced by slower kernels: attention_forward \
(CUDA cores)"
    has "- self-check: ok; 24 operations agree; operations with a slower kernel: 1" \
        "a faster kernel is off by 37.1 times the tolerance" \
        "- 124M with CUDA graphs: ok; 100.0 ms a step; slower kernels: attention_forward (CUDA cores)"
    REPLACED=1 GPU_CHECK_SECONDS=150 check 0 speed
    verdict "go: the kernels, memcheck and the losses are right. Replaced by slower kernels"
    has "- train 124M: ok; 100.0 ms a step; slower kernels: attention_forward (CUDA cores)"
    REPLACED=1 OFF_ROW=attention_forward check 0 first
    verdict "go: the kernels, memcheck and the losses are right. Replaced by slower kernels: attention_forward"
    has "- test_ops: FAILED: exit status 1; 23 of 24 rows passed" \
        "- test_ops: ok without the kernels that the self-check has replaced: attention_forward"
    REPLACED=1 OFF_ROW=attention_forward CRASH_ROW=gelu_forward check 1 first
    verdict "no-go: test_ops FAILED: exit status 1. Replaced by slower kernels: attention_forward"
    OFF_ROW=attention_forward check 1 first
    verdict "no-go: test_ops FAILED: exit status 1"
    lacks "ok without"
    WRONG=1 check 1 first
    verdict "no-go: self-check FAILED: exit status 1"
    has "        gelu_forward                 is off by 3.21 times the tolerance, and has no other kernel" \
        "- losses: ok" "## Self-check"
    lacks "        error: the largest difference"
    REPLACED=1 FAILS=--graph check 1 first
    has "losses skipped. Replaced by slower kernels: attention_forward (CUDA cores)"
    BROKEN=train_gpt2 check 1 first
    has "; self-check not run; losses skipped"
}

first_fails() {
    fresh
    OFF_ROW=layernorm_forward CRASH_ROW=gelu_forward RACES=memcheck NOISE=1 check 1 first
    verdict "no-go: test_ops FAILED: exit status 1; losses FAILED: exit status 1; memcheck FAILED: exit status 9"
    has "1.31 of its tolerance: layernorm_forward B 4: out is off by 0.00512, at most 0.0039 is allowed" \
        "gelu_forward: exit status 139" "- test_ops: FAILED: exit status 1; 22 of 24 rows passed" \
        "Invalid __global__ write of size 4 bytes" "- 124M with CUDA graphs: ok" "- PyTorch compiles: skipped; stopped"
    all_back first
    FALLS=0.1 BROKEN=test_simt_bf16 check 1 first
    verdict "no-go: build test_simt_bf16 FAILED: exit status 2; losses FAILED: exit status 1; test_simt not run"
    has "- test_ops: ok" "- build: ok; 2 of 3 programs"
    fresh
    FAILS=compile_torch.sh check 0 first  # no failure of this program
    has "- PyTorch compiles: FAILED: exit status 7"
}

# HANGS of each row of `first`: the row, and a later row that ran all the same
first_hangs() {
    local words row later
    while IFS='|' read -r words row later; do
        fresh
        HANGS=$words check 1 first
        within 340
        verdict no-go
        has "- $row: FAILED: out of time" "$later"
    done <<'END_OF'
make --no-print|build train_gpt2|- build: FAILED: out of time; 0 of 3 programs
OMP_NUM_THREADS=*test_simt_bf16|test_simt|- test_ops: ok
--self-check|self-check|- losses: ok
--graph 0|124M without CUDA graphs|- 124M with CUDA graphs: ok
END_OF
    fresh
    HANGS="--quick f_row" check 1 first
    has "f_row: out of time after 30 s" "23 of 24 rows passed" "- losses: ok"
    fresh
    HANGS=compile_torch check 0 first
    within 340
    has "- PyTorch compiles: stopped: no time was left"
    fresh
    SLOW=4 GPU_CHECK_SECONDS=230 check 1 first
    within 240
    has "- memcheck: stopped: out of time, nothing found until then" \
        "- 124M with CUDA graphs: left out: no time was left"
    all_back first
}

# memcheck without the time to end: what it has found until then decides
first_without_memcheck() {
    local words="go: the kernels and the losses are right, and memcheck had found nothing when it ran out of time"
    fresh
    HANGS="--tool memcheck" check 0 first
    within 340
    verdict "$words"
    has "- memcheck: stopped: out of time, nothing found until then (240 s, 70 expected)" "- losses: ok"
    GPU_CHECK_SECONDS=0 check 0 speed
    verdict "$words"
    FINDS=memcheck check 1 first
    verdict "no-go: memcheck FAILED: exit status 9"
    has "        ========= Invalid __global__ read of size 2 bytes"
    GPU_CHECK_SECONDS=0 check 1 speed
    GPU_CHECK_SECONDS=60 check 1 first
    has "memcheck left out: no time was left"
}

# the filter by name: initcheck has none in a version that does not follow the other kernels
filters() {
    fresh
    check 0 first
    check 0 rest
    watches initcheck --kernel-name "$kernels"
    FILTERS="--kernel-regex arg" check 0 rest
    watches racecheck --kernel-regex "$kernels"
    watches initcheck --kernel-regex 0
    FILTERS="" check 0 rest
    watches racecheck --kernel-name 0
}

speed() {
    fresh
    check 0 first
    check 0 speed
    verdict go
    within 600
    lacks "left out"
    has "# GPU: speed" "- same bits twice: ok; 20 steps of 124M" "ran at 750.000 TFLOP/s" "## Matmuls of 1558M" \
        "- matmuls of 124M: ok; 20 of 26 are one kernel with their epilogue" "| qkv | bias | fused |" \
        "| 124M | train_gpt2 | 64 | 100.0 (100.0 to 100.0) | 655360 (655360 to 655360) |" \
        "| 1558M | PyTorch 9.9.0 | 16 | 125.0 (124.0 to 126.0) |" "| 18.0 | 20.0 | 23 |" \
        "| 124M | train_gpt2, again |" \
        "| 655360 (655360 to 655360) | 523.0 | 70 % |" "6 (12 L C^2 + 50304 C) + 6 L C (T + 1) FLOPs" \
        "124M: 1.25 times the tokens/s of PyTorch" "## Operations of 124M" \
        "- PyTorch 124M: ok; 125.0 ms a step: gradients set to None 125.0, kept 127.0"
    all_back speed
    checks_in "build/gpu/self_check.txt"
    [ -s "$here/build/gpu/log_first/test_ops.txt" ] || echo "expected the logs of first beside those of speed"
    [ "$(grep -oE -- '-x 50 -e d..|--model .*' "$folder/log" | tr '\n' ';')" = "-x 50 -e d12;--model 124M --batch 64 \
--gradients both;-x 50 -e d48;--model 1558M --batch 16 --gradients both;-x 50 -e d12;--model 124M --batch 64 \
--gradients none;" ] || echo "other runs, or PyTorch does not repeat its faster variant: $(cat "$folder/log")"
    SLOW=1.5 check 0 speed
    within 600
    has "- train 1558M: ok" "- PyTorch 1558M: ok"
}

speed_on_another_machine() {
    fresh
    check 1 speed
    verdict "no-go: kernels and memcheck: \`scripts/gpu_check.sh first\` has no go for these sources, GPU, driver, CUDA"
    within 600
    has "- PyTorch compiles 124M: ok" "- PyTorch 1558M: ok" "- matmuls of 1558M: ok" "- bench_ops: ok"
    fresh
    SLOW=1.5 check 1 speed
    within 600
    has "- train 1558M: ok" "left out: no time was left"
    fresh
    MEMORY=81559 check 1 speed
    has "| 1558M | PyTorch 9.9.0 | 8 |" "1558M: 2.50 times the tokens/s"
    check 0 first
    export GPU_CHECK_SECONDS=0  # no row has time
    check 0 speed
    GPU_NAME="Stub H100" check 1 speed
    DRIVER=1.2.4 check 1 speed
    RELEASE=13.1 check 1 speed
    echo "// changed" >>"$here/llmc/matmul.h"
    check 1 speed
    verdict "no-go: kernels and memcheck: "
    unset GPU_CHECK_SECONDS
}

# MEMORY of the GPU, FREE of it: the batch of 1558M whose plan fits, and the flag -r
speed_by_memory() {
    fresh
    MEMORY=40960 check 0 first
    MEMORY=40960 check 0 speed
    verdict go
    has "| 1558M | train_gpt2 | 16 |" "- PyTorch 124M: ok" \
        "- PyTorch 1558M: skipped; 1558M in PyTorch needs a GPU of 70000 MiB, and this GPU has 40960"
    MEMORY=24564 check 0 speed
    verdict go
    has "| 1558M | train_gpt2 | 4 |" "| 124M | train_gpt2 | 64 |"
    grep -q -- "--products -e d48 -b 4\$" "$folder/log" || echo "expected the matmuls of 1558M at B 4"
    MEMORY=16376 check 0 speed
    verdict go
    has "- train 1558M: skipped; 1558M does not fit" "- matmuls of 1558M: skipped; 1558M does not fit" \
        "| 124M | train_gpt2 | 32 |" "- same bits twice: ok" "| 124M | train_gpt2, again | 32 |"
    FREE=60000 check 0 speed  # another program holds memory
    has "| 1558M | train_gpt2 | 8 |"
    MEMORY=26000 FREE=22420 check 0 speed
    has "| 1558M | train_gpt2 | 1 |"
    grep -q -- "-x 50 -e d48 -b 1 -r 4" "$folder/log" || echo "expected -r 4 where the plan of -r auto does not fit"
}

speed_fails() {
    fresh
    check 0 first
    NO_TORCH=1 NOISE=1 BROKEN=bench_ops check 1 speed
    verdict "no-go: build bench_ops FAILED: exit status 2; same bits twice FAILED: exit status 1"
    has "- PyTorch: skipped" "- train 1558M: ok"
    lacks "| PyTorch"
    check 0 first
    HANGS="-e d12 -b 64" check 1 speed
    within 600
    has "- train 124M: FAILED: out of time" "- same bits twice: FAILED: out of time" "- PyTorch 1558M: ok" \
        "- bench_ops: ok"
    HANGS=train_torch check 0 speed
    within 600
    has "- PyTorch 124M: FAILED: out of time" "- train 1558M: ok" "- bench_ops: ok"
    FAILS=bench_ops check 1 speed
    has "- matmuls of 124M: FAILED: exit status 7" "something broke" "- again, PyTorch 124M: ok" \
        "ran at 740.0 TFLOP/s"
}

rest() {
    local level
    fresh
    check 0 first
    check 0 rest
    verdict go
    [ "$(grep -c "| 124M | PyTorch" "$results")" -eq 1 ] || echo "expected one largest batch of PyTorch"
    within 600
    for level in 0 1 2 3 4; do
        has "| 124M, B 64 | -r $level | 100.0 (100.0 to 100.0) | 655360 | 18.0 | 20.0 | 2.0 |"
    done
    # 142000 MiB are 554.7 times 256 MiB, and 8 of these hold no sequence
    has "- text: ok; build/gpu/curve/sources.txt, as bytes" "- two ranks: " "- test_nccl: ok" \
        "- test_layouts: ok" "- test_gpt2_bf16: ok" \
        "- test_ops_fp32: ok; 24 of 24" "- test_ops at 124M: ok; 24 of 24" "- racecheck: ok; 0 errors" \
        "- synccheck: ok" "- initcheck: ok" "- memcheck of the trainer: ok" \
        "- a batch too large: refused, 1558M at B 4096: ok; the model needs 860880.0 MiB, and 142000.0 are free" \
        "| 124M | train_gpt2 -r 4 | 546 | 100.0" "| 547, by its plan |" "| train_gpt2 --fit: -b 128 -r 2 |" \
        "- the curves: ok; 1000 steps, means of 50 steps at most 0.001 apart" "| each step | 0.001 | 0.001 |" \
        "- resumed at step 500: equal bits: ok" "| 1000 | 8.74" "- largest batch of PyTorch: 124M, try 1, B 64: ok"
    grep -q -- '-x 3 -e d12 -r 4 -b 546' "$folder/log" || echo "the largest batch was not run"
    grep -q -- 'racecheck .*test_ops_bf16 --quick' "$folder/log" || echo "expected racecheck of test_ops_bf16 --quick"
    grep -q "^self-check in '': --tool memcheck .*train_gpt2 " "$folder/log" ||
        echo "expected memcheck of the trainer without a self-check"
    all_back rest
    # the largest batch that ran and the smallest that did not are at most 1/32 apart
    GPU_CHECK_SECONDS=3000 check 0 rest
    sed -n 's/^| 124M | PyTorch 9.9.0 | \([0-9]*\) .* \([0-9]*\), tried |$/\1 \2/p' "$results" |
        awk '{ close_by = $1 < 340 && $2 >= 340 && $2 - $1 <= $1 / 32 + 1 } END { exit !close_by }' ||
        echo "PyTorch's largest batch was not found"
    fresh
    check 0 first
    SLOW=1.5 check 0 rest
    within 600
    has "- racecheck: ok" "- the curves: ok" "left out: no time was left"
}

rest_fails() {
    echo text >"$folder/text"
    fresh
    check 0 first
    DATA=$folder/text OFF=0.02 RACES=racecheck check 1 rest
    verdict "no-go: the curves FAILED: exit status 1; racecheck FAILED: exit status 9"
    has "1000 steps, means of 50 steps at most 0.02 apart" "- text: ok; $folder/text, as bytes" "- initcheck: ok"
    DATA=$folder/text MERGES=$folder/text WEIGHTS=other check 1 rest
    has "- resumed at step 500: equal bits: FAILED" "- text: ok; $folder/text by $folder/text" "- -r at 124M: -r 4"
    grep -q -- '-i build/gpu/curve/text_train_000001.bin ' "$folder/log" || echo "the shard was not trained on"
    DATA=$folder/nothing NO_TORCH=1 check 1 rest
    has "- text: FAILED" "- racecheck: ok" "- -r at 124M: -r 4"
    lacks "| PyTorch 9"
    HANGS="-n 500" check 1 rest
    within 600
    has "- our curve: FAILED: out of time" "- racecheck: ok" "- -r at 124M: -r 4, B 64: ok"
    HANGS=racecheck MEMORY=16376 check 0 rest
    within 600
    has "- racecheck: stopped: out of time, nothing found until then" "- initcheck: ok" "- -r at 124M: -r 4, B 32: ok" \
        "- largest batch of 1558M: skipped; 1558M does not fit"
}

# stop STATUS FILE: starts `first`, sends a signal, as of a time limit around the command, once FILE and $folder/hangs
# exist, and waits for the end
stop() {
    rm -rf "$folder"/{hangs,watchers,ends,took.*} "$here/dev/results"
    mkdir "$folder/ends"
    BASH_ENV=$folder/clock.sh "$here/scripts/gpu_check.sh" first >"$out" 2>&1 </dev/null &
    until { [ -e "$2" ] && [ -e "$folder/hangs" ]; } || ! kill -0 $! 2>/dev/null; do sleep 0.1; done
    kill -TERM $!
    wait $!
    [ $? -eq "$1" ] || echo "expected exit status $1"
    results=$(find "$here/dev/results" -name '*.md')
    kill "$(cat "$folder/hangs")" 2>/dev/null
}

# the trainer hangs: the report is written, and no nvidia-smi is left
stopped() {
    local watchers
    fresh
    mv "$folder/programs/train_gpt2" "$folder/programs/kept"
    program "$folder/programs/train_gpt2" <<'END_OF'
[[ $* != *"--graph 0"* || $* == *--plan* ]] || { echo $$ >"$STUBS/hangs" && exec sleep 300; }
END_OF
    stop 1 "$folder/watchers"
    mv "$folder/programs/kept" "$folder/programs/train_gpt2"
    has "- test_ops: ok" "stopped by a signal" "**no-go: the command FAILED"
    [ -s "$folder/back/${results##*/}" ] || echo "OUT has no report"
    mapfile -t watchers <"$folder/watchers"
    none_left "${watchers[@]}"
}

# only PyTorch still compiles: the go stays
stopped_after_go() {
    fresh
    TORCH_HANGS=1 stop 0 "$here/build/gpu/go"
    has "**go: " "- the command: skipped; stopped by a signal"
    GPU_CHECK_SECONDS=0 check 0 speed
}

# a signal during the first of two $( ) of a command
signal_between_substitutions() {
    local found
    found=$(
        PATH=$real_path GPU_CHECK_SECONDS=0
        . scripts/gpu/steps.sh
        on_signal "echo trapped; exit 3" TERM
        shell=$BASHPID
        echo "$(kill -TERM "$shell")$(basename not/trapped)"
    )
    [ "$?$found" = 3trapped ] || echo "expected the trap and exit status 3, found '$found'"
}

# the times in the texts are at most 5 % from the predicted ones
times_in_texts() {
    local found
    for found in "$(sed -n 's/.* prints \([0-9]*\) and \([0-9]*\) ms a step.*/\1 \2/p' scripts/gpu_check.sh)" \
        "$(sed -n 's/.*: \([0-9]*\) ms at 124M, \([0-9]*\) ms at 1558M.*/\1 \2/p' scripts/gpu/times.sh)"; do
        awk -v a="$STEP_124M" -v b="$STEP_1558M" \
            '{ exit !($1 > 0.95 * a && $1 < 1.05 * a && $2 > 0.95 * b && $2 < 1.05 * b) }' <<<"$found" ||
            echo "expected $STEP_124M and $STEP_1558M ms, found $found"
    done
}

# FLOPs of a token, as the program counts them
flops() {
    local found
    # shellcheck disable=SC2034  # speed.sh reads it
    found=$(logs=none . scripts/gpu/speed.sh && flops_per_token 12 768 1024 && flops_per_token 48 1600 1024)
    [ "${found//$'\n'/ }" = "$(predicted model_flops_per_token 124M) $(predicted model_flops_per_token 1558M)" ] ||
        echo "found $found"
}

# status_of ALL LIMIT COMMAND...: the status of a row with a limit of its own and a limit of all rows
status_of() {
    # shellcheck disable=SC2034  # steps.sh reads it
    (
        stage=first GPU_CHECK_SECONDS=$1 PATH=$real_path
        declare -A seconds_of=() expected=([row]=1) limit=([row]=$2)
        . scripts/gpu/steps.sh && bounded row "${@:3}"
    )
    echo $?
}

limits() {
    [ "$(status_of 100 1 sleep 60)" -eq 124 ] || echo "expected status 124 of a row past its limit"
    [ "$(status_of 2 60 sleep 60)" -eq 125 ] || echo "expected status 125 of a row that the total ended"
    [ "$(status_of 0 60 sleep 60)" -eq 125 ] || echo "expected status 125 of a row without time left"
    [ "$(status_of 100 60 false)" -eq 1 ] || echo "expected the command's status"
}

judge "without a GPU every command stops with an error" without_a_gpu
judge "first: kernels, memcheck, losses, and a go" first
judge "first: kernels that the self-check replaces, and a wrong operation" first_replaces_a_kernel
judge "first: each failure is in the verdict, and the other rows run" first_fails
judge "first: rows that hang" first_hangs
judge "first: memcheck runs out of time" first_without_memcheck
judge "compute-sanitizer watches the kernels of llmc" filters
judge "speed: both programs and models, matmuls, operations" speed
judge "speed: a fresh machine, a smaller GPU, other sources" speed_on_another_machine
judge "speed: the batch that fits the GPU's memory" speed_by_memory
judge "speed: failing and hanging rows, no PyTorch" speed_fails
judge "rest: curves, tests, every -r, the largest batch" rest
judge "rest: failing and hanging rows" rest_fails
judge "a signal ends the command with a report" stopped
judge "a signal while PyTorch compiles takes no go back" stopped_after_go
judge "a signal between two substitutions" signal_between_substitutions
judge "time limits" limits
judge "times of a step in the texts" times_in_texts
judge "FLOPs of a token" flops
end_tests
