# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh: runs of the tests, of the trainer and of dev/oracle/train_torch.py, and the figures of a run.

# random_tokens PATH COUNT SEED POWER: a token shard, 50257 u^POWER for uniform u. POWER 1 is uniform. With POWER 4 the
# frequent tokens are soon learned: the entropy is 1.6 below ln 50257
random_tokens() {
    cat >"$build/random_tokens.c" <<'EOF'
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    uint32_t header[256] = {20240520, 1, argc > 2 ? (uint32_t)atol(argv[1]) : 0};
    uint64_t state = argc > 2 ? (uint64_t)atol(argv[2]) : 0;
    fwrite(header, sizeof header, 1, stdout);
    for (uint32_t i = 0; i < header[2]; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(state >> 33) / 2147483648.0, x = 50257;
        for (int i = 0; argc > 3 && i < atoi(argv[3]); i++) { x *= u; }
        uint16_t token = (uint16_t)x;
        fwrite(&token, sizeof token, 1, stdout);
    }
    return fflush(stdout) != 0;
}
EOF
    c++ -w -O2 -x c++ "$build/random_tokens.c" -o "$build/random_tokens" &&
        "$build/random_tokens" "$2" "$3" "$4" >"$1"
}

# ---- numbers

declare -A layers=([124M]=12 [1558M]=48) channels=([124M]=768 [1558M]=1600)

# number KEY FILE: the last number after "KEY": in the file
number() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9.eE+-]*\).*/\1/p" "$2" | tail -n 1; }

# percentiles FILE SKIP: median, p10 and p90 of "ms", without the first SKIP steps
percentiles() {
    sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$1" | tail -n +$(($2 + 1)) | sort -g |
        awk '{ ms[NR] = $1 }
             END { print ms[int((NR + 1) / 2)], ms[int(NR * 0.1) + 1], ms[int(NR * 0.9) + 1] }'
}

# gib BYTES
gib() { awk "BEGIN { if (\"$1\" > 0) printf \"%.1f\", $1 / 1024 ^ 3; else print \"-\" }"; }

# per_second BATCH MS: tokens per second
per_second() { awk "BEGIN { if (\"$2\" > 0) printf \"%.0f\", $1 * $length / $2 * 1e3; else print \"-\" }"; }

# watched COMMAND...: runs the command; sets driver_bytes to the peak increase of the driver's used memory
driver_bytes=0
watched() {
    local before status
    before=$(gpu memory.used)
    : >"$build/used.txt"
    nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=100 >>"$build/used.txt" \
        2>/dev/null &
    watcher=$!
    "$@"
    status=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    watcher=''
    driver_bytes=$(sort -g "$build/used.txt" | tail -n 1 | awk "{ most = \$1 - $before }
        END { printf \"%.0f\", most * 1048576 }")
    return $status
}

# ---- tests

# without GOMP_SPINCOUNT a program executes itself again, and compute-sanitizer does not follow
settings=(env TEST_DEVICE=cuda GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=$((($(nproc) + 3) / 4)))

# test_beside NAME PROGRAM COMMAND...: starts a test in the background, if its program was built
test_beside() { ! built "$2" || start "$1" "${settings[@]}" "${@:3}"; }

# sanitize NAME TOOL PROGRAM FLAG...: starts a program under compute-sanitizer. In test_ops each array is an allocation
# of its own, so an overrun shows. A bad access ends its kernel alone, if this sanitizer can. Each run listens on ports
# of its own. Only the kernels of llmc are watched: cuBLASLt's would take most of the time. The filter is --kernel-regex
# before CUDA 12.3. initcheck would call what an unwatched kernel writes uninitialized, except where it follows that
port=49152
sanitize() {
    local sanitizer options=() help filter=''
    sanitizer=$(command -v compute-sanitizer "$CUDA_ROOT"/bin/compute-sanitizer \
        "$CUDA_ROOT"/compute-sanitizer/compute-sanitizer | head -n 1)
    if [ -z "$sanitizer" ]; then
        report "$1" skipped "there is no compute-sanitizer"
        return
    fi
    [ -x "$3" ] || return
    help=$("$sanitizer" --help 2>&1)
    [[ $help != *destroy-on-device-error* ]] || options+=(--destroy-on-device-error kernel)
    [[ $help != *--port* ]] || options+=(--port "$port")
    [[ $help != *--kernel-regex* ]] || filter=--kernel-regex
    [[ $help != *--kernel-name* ]] || filter=--kernel-name
    [[ $2 != initcheck || $help == *--initcheck-track-filtered-global-memory* ]] || filter=''
    [ -z "$filter" ] || mapfile -t -O ${#options[@]} options < <(
        sed -nE 's/.*\b([a-z_]+_kernel)\(.*/\1/p' llmc/*.cuh llmc/*/*.cuh | grep -vE '^(wait_for_previous|launch)_' |
            sort -u | sed "s/^/$filter=kns=/")
    port=$((port + 100))
    start "$1" "${settings[@]}" "$sanitizer" --tool "$2" --error-exitcode 9 "${options[@]}" "${@:3}"
}

# ---- runs

length=1024 tokens=$build/tokens.bin gemm=''
# The last run of either program: median, p10 and p90 of ms; the memory that the program reports; seconds to the first
# step; a note for the report; the log.
ms=() own_bytes='' first_step='' note='' run_log=''

# plan_bytes FLAG...: bytes of the plan
plan_bytes() {
    "$programs/train_gpt2" --plan=json --device cuda -t "$length" -s 0 "$@" 2>>"$logs/plans.txt" |
        number total /dev/stdin
}

# fitting MODEL BATCH FLAG...: the batch, halved until its plan takes at most 96 % of the free memory; 0 if B 1 takes
# more. A plan that fails halves nothing, since the run then shows the error
fitting() {
    local batch=$2 free
    free=$(gpu memory.free)
    until [ "$batch" -eq 0 ] || awk -v plan="$(plan_bytes -e "d${layers[$1]}" -b "$batch" "${@:3}")" -v free="$free" \
        'BEGIN { exit free + 0 > 0 && plan + 0 > 0.96 * free * 1048576 }'; do
        batch=$((batch / 2))
    done
    echo "$batch"
}

# fits MODEL BATCH ROW: whether `fitting` found a batch; if not, the row is reported as skipped
fits() {
    [ "$2" -eq 0 ] || return 0
    report "$3" skipped "$1 does not fit"
    return 1
}

# slower_kernels LOG: "OPERATION (KERNEL), ..." by the notes of a run or of the self-check
slower_kernels() {
    sed -nE 's/^note +(.*) uses a slower kernel (\(.*\)): .*/\1 \2/p' "$1" | paste -s -d , | sed 's/,\([^ ]\)/, \1/g'
}

# log_of NAME: sets run_log
log_of() { run_log=$logs/${1//[^A-Za-z0-9.]/_}.txt; }

# trainer ROW FOLDER FLAG...: a run on the GPU; FOLDER gets the metrics
trainer() {
    rm -rf "$2"
    mkdir -p "$2"
    bounded "$1" "$programs/train_gpt2" --device cuda -o "$2" "${@:3}" 2>&1
}

# startup FOLDER: seconds of the last run beside its steps from the second on
startup() {
    sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" |
        awk -v took="$took" 'NR > 1 { ms += $1 } END { printf "%.0f", took - ms / 1e3 }'
}

# ours ROW STEPS FLAG...: trains on random tokens, reports the run and sets ms, own_bytes, first_step and run_log. One
# step of up to ten warms up, else ten
ours() {
    local name=$1 steps=$2 folder=$build/run status words
    ms=() own_bytes='' first_step=''
    log_of "$name"
    built train_gpt2 || return
    "$programs/train_gpt2" --plan=json --device cuda -t $length -s 0 "${@:3}" >"$build/plan.json" 2>"$run_log"
    own_bytes=$(number total "$build/plan.json")
    watched trainer "$name" "$folder" -i "$tokens" -t $length -v 0 -s 0 -c 0.1 -x "$steps" "${@:3}" >>"$run_log"
    status=$?
    if [ $status -eq 0 ]; then
        read -r -a ms <<<"$(percentiles "$folder/metrics.jsonl" $((steps > 10 ? 10 : 1)))"
        first_step=$(startup "$folder")
        [ ${#ms[@]} -eq 3 ] || status=1  # no metrics
    fi
    words=$(slower_kernels "$run_log")
    slower=${words:-$slower}
    words="${ms[0]:+${ms[0]} ms a step; }${words:+slower kernels: $words; }"
    words+=$(grep -om 1 'early launches o[nf]*' "$run_log")
    ended "$name" $status "$run_log" "${words%; }"
    return $status
}

# torch_run ROW NAME FLAG...: runs train_torch.py, reports the run and sets ms, own_bytes, first_step, note and run_log.
# Status 3 is out of memory, and no failure of train_gpt2
torch=''
torch_run() {
    local name=$2 status
    ms=() own_bytes='' first_step='' note=''
    log_of "$name"
    [ -n "$torch" ] || return 125
    TORCHINDUCTOR_CACHE_DIR=$PWD/$build/inductor watched bounded "$1" "$python" dev/oracle/train_torch.py \
        --device cuda --length $length --shards "$tokens" "${@:3}" >"$run_log" 2>&1
    status=$?
    if [ $status -eq 3 ]; then
        report "$name" 0 "out of memory"
        return 3
    elif [ $status -eq 0 ]; then
        ms=("$(number median_ms "$run_log")" "$(number p10_ms "$run_log")" "$(number p90_ms "$run_log")")
        own_bytes=$(number reserved_bytes "$run_log") first_step=$(number first_step_s "$run_log")
        gemm=${gemm:-$(number gemm_tflops "$run_log")}
        note="${ms[0]} ms a step"
        ! grep -q '"kept_ms"' "$run_log" ||
            note+=": gradients set to None $(number none_ms "$run_log"), kept $(number kept_ms "$run_log")"
    fi
    ended "$name" $status "$run_log" "$note"
    return $status
}

# PyTorch's batch of each model; 1558M takes about 75 GB at B 16, and has no batch on a GPU of less than 70,000 MiB
declare -A torch_batch=([124M]=64)
choose_torch_batch() {
    local mib
    mib=$(gpu memory.total)
    if [ "$mib" -ge 100000 ]; then torch_batch[1558M]=16; elif [ "$mib" -ge 70000 ]; then torch_batch[1558M]=8; fi
}

# compiled MODEL: whether PyTorch's compiled code of the model is in the cache; the file says so
compiled() { [ -e "$build/inductor/$1_B${torch_batch[$1]}" ]; }

# compile_torch ROW MODEL...: starts compiling the models that the cache lacks, beside the rows below
compile_torch() {
    local row=$1 model missing=()
    [ -n "$torch" ] || return 0
    for model in "${@:2}"; do
        compiled "$model" || missing+=("$model:${torch_batch[$model]}")
    done
    [ ${#missing[@]} -eq 0 ] || start "$row" env TORCHINDUCTOR_CACHE_DIR="$PWD/$build/inductor" PYTHON="$python" \
        scripts/gpu/compile_torch.sh "$tokens" "$length" "${missing[@]}"
}

# find_torch: sets torch to the version of PyTorch, and torch_batch. An import of PyTorch would take seconds
find_torch() {
    choose_torch_batch
    torch=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)
    [ -n "$torch" ] || report "PyTorch" skipped "$python has none"
}
