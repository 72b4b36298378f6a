#!/usr/bin/env bash
# Checks and measures the trainer on this machine's GPU, in three commands:   scripts/gpu_check.sh first|speed|rest
#
#   first    correctness, 4 to 6 minutes: kernels against the reference, compute-sanitizer's memcheck, 20 steps of
#            124M without and with CUDA graphs. PyTorch compiles meanwhile
#   speed    10 minutes: 124M at B 64 and 1558M at B 16 with PyTorch's times (torch.compile, flash attention), the same
#            bits twice, the kernels of every matmul, every operation and its prediction, the predicted step and floor
#   rest     10 minutes: a thousand steps and PyTorch's loss on the same batches, -r 0 to 4, fused GELU, --offload, the
#            largest batch, the whole model's tests, fp32, NCCL, racecheck, synccheck, initcheck
#   build    compiles every program. Without a GPU it compiles for GPU_ARCH (default 90) and exits 2
#   pack     for a GPU machine without a network: run it where Debian's packages are. It puts make, cJSON, cmocka, a
#            text and MERGES=FILE into build/gpu/packages, for you to copy with the tree
#
# The report begins with a verdict. `go`: the kernels, memcheck and the losses are right. `no-go` names each failure.
# `speed` and `rest` say go only if `first` has passed here with the same sources, GPU, driver and CUDA. A failed row
# does not stop the next. A row that would exceed the command's time is left out: 330 s of `first`, 570 s of the others
# (GPU_CHECK_SECONDS). The report goes to dev/results/gpu_<name>_<date>_<command>.md, logs to build/gpu/log_<command>.
# The folder $OUT, if OUT is set, gets the report, gpu_check_<command>.tgz with the logs, and the autotune cache.
# Exit status 0: go; 1: no-go; 2: no GPU of compute capability 8.0, or a program is missing.
#
# needs    nvcc, make, a C++ compiler, cJSON; cmocka for the tests; PyTorch for its rows. No network. CUDA is the
#          toolkit, or wheels that Python finds: to PyTorch's own, add those of the same release,
#          `pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl]==13.0.*'`. NVCC, PYTHON, CPATH, LIBRARY_PATH and
#          LD_LIBRARY_PATH name other places
# text     of the thousand steps: DATA=FILE; else the packed text; else this repository's sources. It is read as bytes,
#          or with MERGES=FILE, GPT-2's vocab.bpe, as GPT-2's tokens
# memory   PyTorch trains 1558M at B 16 from 100,000 MiB on, at B 8 from 70,000 MiB on. Ours is halved until it fits
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

stage=${1:-} build=build/gpu programs=build/cuda logs=build/gpu/log_$stage packages=build/gpu/packages
python=${PYTHON:-python3} tokens=$build/tokens.bin

# ---- rows: a command with a limit in seconds, a log, and a line of the report

now() { date +%s; }
declare -A limits=([first]=330 [speed]=570 [rest]=570 [build]=7200) pid=() started=() outcome=()
began=$(now) seconds=${GPU_CHECK_SECONDS:-${limits[${stage:-none}]:-0}} results=() failed=() needed=() tables=()
slower='' report_file='' torch='' watcher='' status=0 # slower: operations whose fast kernel failed the self-check

log_of() { echo "$logs/${1//[^A-Za-z0-9.]/_}.txt"; }

# start NAME LIMIT COMMAND...: a row in the background. It is left out if a third of its limit is not left
start() {
    local left=$((seconds - ($(now) - began))) limit=$2
    if [ $left -lt $((limit / 3)) ]; then
        report "$1" 125
        return 125
    fi
    started[$1]=$(now)
    timeout -k 5 $((limit < left ? limit : left)) "${@:3}" >"$(log_of "$1")" 2>&1 </dev/null &
    pid[$1]=$!
}

# collect NAME: waits for the row and sets status. A sanitizer out of time has failed only if it has found something
finding='^=+ (Invalid|Uninitialized|Malloc|Error|Warning|Barrier|Program hit|.*([Rr]ace|hazard))'
collect() {
    status=125
    [ -n "${pid[$1]:-}" ] || return
    wait "${pid[$1]}"
    status=$?
    unset "pid[$1]"
    [ $status -ne 137 ] || status=124
    [[ $status -ne 124 || $1 != *[a-z]check* ]] || { grep -qE "$finding" "$(log_of "$1")" && status=9 || status=clean; }
}

# finish NAME: waits for the row and reports it, if it was started
finish() {
    [ -n "${pid[$1]:-}" ] || return
    collect "$1"
    report "$1" "$status" "$(sed -nE 's/^\[ *PASSED *\] ([0-9]* test\(s\)).*/\1/p; s/.* SUMMARY: //p
        s/^([0-9]+ of [0-9]+ rows passed).*/\1/p; s/^Products fused: (.*)\.$/fused: \1/p' "$(log_of "$1")" | tail -n 1)"
}

row() { start "$@" && finish "$1"; }

# report NAME STATUS NOTE: a line of the report; after a failure also the reasons in the log
report() {
    local word reasons=() log
    case $2 in
    0) word=ok ;;
    skipped) word=skipped ;;
    124) word="FAILED: out of time" ;;
    clean) word="stopped: out of time, nothing found until then" ;;
    125) word="left out: no time was left" ;;
    *) word="FAILED: exit status $2" ;;
    esac
    outcome[$1]=$word log=$(log_of "$1")
    [[ $word != FAILED* || $1 == *PyTorch* ]] || failed+=("$1") # a failure of PyTorch is none of this program
    [[ $word != FAILED* || ! -e $log ]] || mapfile -t reasons < <({
        grep -E ' is off by .* at most |^\[ +FAILED +\] [^0-9]|^[a-z_0-9]+: (exit status|out of time)|^expected' "$log"
        grep -E -A 3 "$finding|has no other kernel$" "$log" || tail -n 15 "$log"
    } | awk '!seen[$0]++' | head -n 24 | cut -c 1-300)
    word+="${3:+; $3}${started[$1]:+ ($(($(now) - started[$1])) s)}"
    results+=("- $1: $word" "${reasons[@]/#/        }")
    printf '%4d s  %s: %s\n' $(($(now) - began)) "$1" "$word"
    [ ${#reasons[@]} -eq 0 ] || printf '          %s\n' "${reasons[@]}"
    [ "$stage" = build ] || write_report
}

# a signal while `first` only waits for PyTorch takes no go back
interrupted() {
    trap - TERM INT HUP
    kill "$watcher" "${pid[@]}" 2>/dev/null
    status=1
    [ "$stage" != first ] || ! verdict >/dev/null || status=skipped
    report "the command" $status "stopped by a signal"
    verdict >/dev/null
    exit $?
}

# ---- the verdict and the report

# a go of `first` holds for these sources on this GPU, driver and CUDA
checked() {
    echo "sources $(cat train_gpt2.cu llmc/*.* llmc/*/*.* | cksum), $gpu_name, driver $driver, CUDA $cuda_version"
}

# prints go or no-go with every reason. `needed` names the rows that must be ok, or memcheck without a finding
verdict() {
    local reasons=() name right="the kernels, memcheck and the losses are right"
    for name in "${failed[@]}"; do reasons+=("$name ${outcome[$name]}"); done
    for name in "${needed[@]}"; do
        case ${outcome[$name]:-not run} in
        ok | FAILED*) ;;
        *"nothing found"*)
            right="the kernels and the losses are right, and $name had found nothing when it ran out of time"
            ;;
        *) reasons+=("$name ${outcome[$name]:-not run}") ;;
        esac
    done
    if [ "$stage" != first ]; then
        [ "$(head -n 1 $build/go 2>/dev/null)" = "$(checked)" ] && right=$(sed -n 2p $build/go) || reasons+=(
            "kernels and memcheck: \`scripts/gpu_check.sh first\` has no go for these sources, GPU, driver, CUDA")
    fi
    [ "$stage" != first ] || rm -f $build/go
    if [ ${#reasons[@]} -gt 0 ]; then
        printf 'no-go: %s' "${reasons[0]}"
        [ ${#reasons[@]} -eq 1 ] || printf '; %s' "${reasons[@]:1}"
    else
        printf 'go: %s' "$right"
        [ "$stage" != first ] || { checked && echo "$right"; } >$build/go
    fi
    echo "${slower:+. Replaced by slower kernels: $slower}"
    return $((${#reasons[@]} > 0))
}

# The report is written after every row, so that an interrupted command leaves one. `tables` names files
write_report() {
    local words file
    words=$(verdict)
    report_file=dev/results/gpu_$(tr 'A-Z ' 'a-z-' <<<"$gpu_name" | tr -cd 'a-z0-9-')_$(date +%F)_$stage.md
    mkdir -p dev/results
    {
        printf '%s\n\n' "# GPU: $stage" "**$words**" "$(date +%F), $gpu_name, driver $driver, CUDA $cuda_version, \
${torch:+PyTorch $torch, }\`scripts/gpu_check.sh $stage\`, $(($(now) - began)) s."
        printf '%s\n' "${results[@]}"
        for file in "${tables[@]}"; do [ ! -s "$file" ] || { echo && cat "$file"; }; done
    } >"$report_file"
    [ -n "${OUT:-}" ] || return 0
    cp "$report_file" "$OUT/"
    tar -czf "$OUT/gpu_check_$stage.tgz" -C $build "log_$stage"
    [ ! -s "${TRAIN_GPT2_AUTOTUNE_CACHE:-}" ] || cp "$TRAIN_GPT2_AUTOTUNE_CACHE" "$OUT/"
}

# ---- requirements

gpu() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader,nounits; }
stop() { echo "gpu_check: $*" >&2 && exit 2; }

# sets NVCC, cuda_root and cuda_flags: headers and libraries of the toolkit first, then of wheels
find_cuda() {
    local wheels nvcc folders folder name library
    mapfile -t wheels < <("$python" -c 'import glob, sys
for path in sys.path: print(*sorted(glob.glob(path + "/nvidia/*")), sep="\n")' 2>/dev/null | sed '/^$/d')
    for nvcc in "${NVCC:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc "${wheels[@]/%//bin/nvcc}"; do
        # nvcc may be a script or a link; nvcc --dryrun names the real folder
        cuda_root=$("${nvcc:-false}" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#[$] TOP=//p')
        [ -z "$cuda_root" ] || break
    done
    [ -n "$cuda_root" ] ||
        stop "nvcc is missing: install CUDA's toolkit or the wheel nvidia-cuda-nvcc, or name it in NVCC"
    NVCC=$nvcc cuda_root=$(realpath "$cuda_root") cuda_flags=(-lcublasLt)
    for folder in "${wheels[@]/%//include}"; do [ ! -d "$folder" ] || cuda_flags+=(-isystem "$folder"); done
    # a wheel has libcublasLt.so.13 without the plain name that -l looks for
    mkdir -p $build/lib
    rm -f $build/lib/lib*
    folders=("$cuda_root"/lib64 "$cuda_root"/targets/*/lib "$cuda_root"/lib "${wheels[@]/%//lib}")
    for name in cublasLt nccl; do
        for folder in "${folders[@]}"; do
            library=$(find "$folder" -maxdepth 1 -name "lib$name.so*" -print -quit 2>/dev/null)
            [ -n "$library" ] || continue
            ln -s "$(realpath "$library")" $build/lib/lib$name.so
            cuda_flags+=(-Xlinker "-rpath=$folder")
            break
        done
    done
    for folder in $build/lib "$cuda_root"/lib{64,}; do [ ! -d "$folder" ] || cuda_flags+=(-L"$folder"); done
    cuda_version=$("$NVCC" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
}

# A mixture of wheels from several releases often fails to compile, to link or to run.
try_cuda() {
    echo '#include <cublasLt.h>
#include <cuda_bf16.h>
__global__ void add(__nv_bfloat16 *x) { x[threadIdx.x] = x[0] + x[1]; }
int main() { return cublasLtGetVersion() < CUBLAS_VER_MAJOR * 10000; }' >$build/probe.cu
    "$NVCC" -std=c++20 -arch=sm_"$arch" $build/probe.cu -o $build/probe "${cuda_flags[@]}" >"$logs/probe.txt" 2>&1 &&
        $build/probe >>"$logs/probe.txt" 2>&1 && return
    head -n 20 "$logs/probe.txt" >&2
    stop "$NVCC $cuda_version does not build a program with cuBLASLt for sm_$arch; its words are above. Install" \
        "CUDA's toolkit, or wheels that are all of one release:" \
        "pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl,cudart,cublas]==$cuda_version.*'"
}

# links LIBRARY HEADER...: whether a program links with the library
links() {
    local header include=()
    for header in "${@:2}"; do include+=(-include "$header"); done
    c++ -x c++ "${include[@]}" - -o /dev/null "$1" 2>/dev/null <<<'int main() { return 0; }'
}

pack() {
    rm -rf $packages
    mkdir -p $packages/text
    [ -z "${MERGES:-}" ] || cp "$MERGES" $packages/text/merges.bpe || return
    scripts/text.sh $packages/text || return
    (cd $packages && apt-get -q download make libcjson-dev libcjson1 libcmocka-dev libcmocka0 &&
        for package in *.deb; do dpkg -x "$package" . || exit; done && rm -rf ./*.deb usr/share) &&
        echo "$packages holds $(du -sh $packages | cut -f 1)"
}

# appends the packed folders to the search paths; the machine's own come first
use_packed() {
    local libraries=("$PWD/$packages"/usr/lib/*-linux-gnu) name
    [ -d "${libraries[0]}" ] || return 0
    export PATH=$PATH:$PWD/$packages/usr/bin
    for name in CPLUS_INCLUDE_PATH C_INCLUDE_PATH; do
        export $name="${!name:+${!name}:}$PWD/$packages/usr/include"
    done
    for name in LIBRARY_PATH LD_LIBRARY_PATH; do export $name="${!name:+${!name}:}${libraries[0]}"; done
}

built() { [ -x $programs/"$1" ]; }

# build_all NAME...: builds the programs; one that does not build is removed. Without cmocka there are no tests
build_all() {
    local making name names=("$@") limit=150
    [ "$stage" != build ] || limit=$seconds
    links -lcmocka stdarg.h stddef.h stdint.h setjmp.h cmocka.h || {
        mapfile -t names < <(printf '%s\n' "$@" | grep -v '^test_')
        report "tests" 1 "cmocka is missing: scripts/setup.sh gpu installs it, '$0 pack' packs it elsewhere"
    }
    making=(make --no-print-directory DEVICE=cuda PRECISION=bf16 NVCC="$NVCC" CUDA_FLAGS="${cuda_flags[*]}"
        ARCHITECTURES="-gencode arch=compute_$arch,code=sm_$arch")
    row build "$limit" "${making[@]}" --jobs="$(nproc)" --keep-going --output-sync "${names[@]/#/$programs/}"
    [ "${outcome[build]}" != ok ] || return 0
    for name in "${names[@]}"; do
        "${making[@]}" --question $programs/"$name" >/dev/null 2>&1 || rm -f $programs/"$name"
    done
}

# ---- tests

# each_op SECONDS PROGRAM FLAG...: the rows of test_ops but those in WITHOUT, each in a process of its own, eight at a
# time, so that a row that crashes or hangs does not stop the others
each_op() {
    local folder rows row passed=0 all=0
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    rows=$("$2" --list | grep -vxF -- "${WITHOUT:-none}") || exit
    # --foreground: a row stays in the process group of this script, and ends with it
    # shellcheck disable=SC2016  # the inner shell expands
    xargs -P 8 -I{} bash -c 'timeout --foreground -k 2 "$1" "${@:4}" "$3" >"$2/$3.txt" 2>&1; echo $? >"$2/$3"' \
        row "$1" "$folder" {} "${@:2}" <<<"$rows"
    for row in $rows; do
        all=$((all + 1)) status=$(cat "$folder/$row")
        [ "$status" -ne 0 ] || { passed=$((passed + 1)) && continue; }
        case $status in 124 | 137) echo "$row: out of time after $1 s" ;; *) echo "$row: exit status $status" ;; esac
        tail -n 20 "$folder/$row.txt"
    done
    echo "$passed of $all rows passed"
    [ $passed -eq $all ] && [ $all -gt 0 ]
}

settings=(env TEST_DEVICE=cuda GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=$((($(nproc) + 3) / 4)))

# test_meanwhile NAME LIMIT PROGRAM COMMAND...: starts a test, if its program was built
test_meanwhile() { ! built "$3" || start "$1" "$2" "${settings[@]}" "${@:4}"; }

# sanitize NAME LIMIT TOOL PROGRAM FLAG...: starts a program under compute-sanitizer. In test_ops each array is an
# allocation of its own, so an overrun shows. A bad access ends its kernel alone, if this sanitizer can. Each run
# listens on ports of its own. Only the kernels of llmc are watched: cuBLASLt's would take most of the time. initcheck
# would call what an unwatched kernel writes uninitialized, except where it follows that
port=49152
sanitize() {
    local sanitizer options=() help filter=''
    sanitizer=$(command -v compute-sanitizer "$cuda_root"/{bin,compute-sanitizer}/compute-sanitizer | head -n 1)
    [ -n "$sanitizer" ] || { report "$1" skipped "there is no compute-sanitizer" && return; }
    [ -x "$4" ] || return
    help=$("$sanitizer" --help 2>&1)
    [[ $help != *destroy-on-device-error* ]] || options+=(--destroy-on-device-error kernel)
    [[ $help != *--port* ]] || options+=(--port "$port")
    [[ $help != *--kernel-regex* ]] || filter=--kernel-regex # before CUDA 12.3
    [[ $help != *--kernel-name* ]] || filter=--kernel-name
    [[ $3 != initcheck || $help == *--initcheck-track-filtered-global-memory* ]] || filter=''
    [ -z "$filter" ] || mapfile -t -O ${#options[@]} options < <(
        sed -nE 's/.*\b([a-z_]+_kernel)\(.*/\1/p' llmc/*.cuh llmc/*/*.cuh | grep -vE '^(wait_for_previous|launch)_' |
            sort -u | sed "s/^/$filter=kns=/")
    port=$((port + 100))
    start "$1" "$2" "${settings[@]}" "$sanitizer" --tool "$3" --error-exitcode 9 "${options[@]}" "${@:4}"
}

# ---- timed runs

# a token shard of 50257 u^4 for uniform u: a model soon learns the frequent tokens
random_tokens() {
    echo '#include <stdint.h>
#include <stdio.h>
int main(void) {
    uint32_t header[256] = {20240520, 1, 12000000};
    uint64_t state = 1;
    fwrite(header, sizeof header, 1, stdout);
    for (uint32_t i = 0; i < header[2]; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(state >> 33) / 2147483648.0;
        uint16_t token = (uint16_t)(50257 * u * u * u * u);
        fwrite(&token, sizeof token, 1, stdout);
    }
    return fflush(stdout) != 0;
}' >$build/random_tokens.c
    c++ -w -O2 -x c++ $build/random_tokens.c -o $build/random_tokens && $build/random_tokens >"$tokens"
}

declare -A layers=([124M]=12 [1558M]=48) torch_batch=([124M]=64)

# number KEY FILE: the last number after "KEY": in the file
number() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9.eE+-]*\).*/\1/p" "$2" | tail -n 1; }

# losses FILE: "step loss" of every step of a metrics file
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,}]*\).*/\1 \2/p' "$1" 2>/dev/null; }

plan_bytes() {
    $programs/train_gpt2 --plan=json --device cuda -t 1024 -s 0 "$@" 2>>"$logs/plans.txt" | number total /dev/stdin
}

# fits FLAG...: whether the plan takes at most 96 % of the free memory. A plan that fails counts as fitting, since the
# run then shows the error
fits() {
    awk -v plan="$(plan_bytes "$@")" -v free="$(gpu memory.free)" 'BEGIN { exit plan + 0 > 0.96 * free * 1048576 }'
}

# our_batch MODEL BATCH: the batch, halved until it fits; 0 if B 1 does not
our_batch() {
    local batch=$2
    until [ "$batch" -eq 0 ] || fits -e "d${layers[$1]}" -b "$batch"; do batch=$((batch / 2)); done
    echo "$batch"
}

# watched COMMAND...: runs it, and sets added to the peak increase of the memory that the driver has in use, and left to
# the MiB that were free then: from step 1 on, when autotuning has loaded its kernels
watched() {
    local before peak
    before=$(gpu memory.used)
    nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=100 >$build/used.txt &
    watcher=$!
    "$@"
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    peak=$(sort -g $build/used.txt | tail -n 1)
    added=0 left=unknown # nvidia-smi has no numbers of some GPUs: [N/A]
    [[ $before$peak =~ ^[0-9]+$ ]] && added=$(((peak - before) * 1048576)) left=$((memory - peak))
}

# run_row TABLE NAME TOKENS MS P10 P90 MFU PLANNED: a line of the table of a file
run_row() {
    [ -s "$1" ] || printf '| run | ms a step (p10 to p90) | tokens/s | MFU | planned%s |\n|---|---|---|---|---|---|\n' \
        ' or reserved, GiB | added in the driver, GiB' >"$1"
    awk -v name="$2" -v tokens="$3" -v ms="$4" -v p10="$5" -v p90="$6" -v mfu="$7" -v own="$8" -v added="$added" '
        BEGIN { printf "| %s | %.1f (%.1f to %.1f) | %.0f | %s | %.2f | %.2f |\n", name, ms, p10, p90,
                1e3 * tokens / ms, mfu == "" ? "-" : sprintf("%.1f %%", 100 * mfu), own / 1024 ^ 3, added / 1024 ^ 3 }
        ' >>"$1"
}

# ours TABLE NAME LIMIT STEPS BATCH FLAG...: trains on random tokens; the steps after the first ten count
ours() {
    local name=$2 folder=$build/run log ms=() words
    built train_gpt2 || return
    [ "$5" -gt 0 ] || { report "$name" skipped "it does not fit" && return; }
    log=$(log_of "$name") status=125
    rm -rf $folder
    mkdir -p $folder
    start "$name" "$3" $programs/train_gpt2 --device cuda -o $folder -i $tokens -t 1024 -v 0 -s 0 -c 0.1 -x "$4" \
        -b "$5" "${@:6}" || return
    watched collect "$name"
    read -r -a ms < <(sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' $folder/metrics.jsonl | tail -n +$(($4 > 10 ? 11 : 2)) |
        sort -g | awk '{ ms[NR] = $1 } END { print ms[int(NR / 2 + 0.5)], ms[int(NR / 10) + 1], ms[int(NR * .9) + 1] }')
    words=$(slower_kernels "$log") slower=${words:-$slower}
    report "$name" "$status" \
        "${ms[0]:+${ms[0]} ms a step; $left MiB free; }$(grep -om 1 'PDL is o[nf]*' "$log")"
    [[ $status != 0 || -z ${ms[0]:-} ]] || run_row "$1" "$name" $(($5 * 1024)) "${ms[@]}" \
        "$(number mfu $folder/metrics.jsonl)" "$(plan_bytes -b "$5" "${@:6}")"
}

# slower_kernels LOG: "OPERATION (KERNEL), ..." by the notes of a run or of the self-check
slower_kernels() {
    sed -nE 's/^note +(.*) uses a slower kernel (\(.*\)): .*/\1 \2/p' "$1" | paste -s -d , | sed 's/,\([^ ]\)/, \1/g'
}

# torch_command MODEL FLAG...: sets command to a training of MODEL in PyTorch
torch_command() {
    command=("$python" dev/oracle/train_torch.py --device cuda --length 1024 --shards "$tokens" --model "$1"
        --batch "${torch_batch[$1]}" "${@:2}")
}

# torch_speed TABLE NAME LIMIT MODEL: exit status 3 is out of memory
torch_speed() {
    local log command
    [ -n "$torch" ] || return
    [ -n "${torch_batch[$4]:-}" ] || { report "$2" skipped "1558M in PyTorch needs a GPU of 70000 MiB" && return; }
    torch_command "$4"
    start "$2" "$3" "${command[@]}" || return
    watched collect "$2"
    log=$(log_of "$2")
    report "$2" "$status" "$([ "$status" = 3 ] && echo "out of memory" || echo "$(number median_ms "$log") ms a step")"
    [ "$status" != 0 ] || run_row "$1" "$2, B ${torch_batch[$4]}" $((torch_batch[$4] * 1024)) \
        "$(number median_ms "$log")" "$(number p10_ms "$log")" "$(number p90_ms "$log")" "" \
        "$(number reserved_bytes "$log")"
}

# compile_torch MODEL...: fills PyTorch's cache meanwhile; one model after the other, since both need more than 80 GB
compile_torch() {
    local model command commands=''
    for model; do
        [ -n "${torch_batch[$model]:-}" ] || continue
        torch_command "$model" --warmup 1 --steps 1 --gradients none
        commands+="$(printf '%q ' "${command[@]}") && "
    done
    [ -z "$torch" ] || start "PyTorch compiles" 600 bash -c "${commands}true"
}

# ---- first: are the kernels, the memory accesses and the losses right?

# compare_losses: the first loss is ln 50257 = 10.82 and a little more, which random weights add. It falls as the model
# learns which tokens are frequent. Both runs have the same bits
compare_losses() {
    paste -d ' ' "$1" "$2"
    { cmp "$1" "$2" && [ "$(wc -l <"$1")" -eq 20 ]; } || echo "expected 20 equal losses of either run"
    awk 'NR == 1 { a = $2 } { b = $2 } END { exit !(a >= 10.8 && a <= 11.1 && b >= 9.2 && b < a - 0.1) }' "$1" ||
        echo "expected a first loss of 10.8 to 11.1, and a last one lower by 0.1 or more"
}

stage_first() {
    local graph
    needed=(test_simt test_ops self-check memcheck losses) tables=("$(log_of self-check)")
    rm -f "$build"/losses_? "$TRAIN_GPT2_SELF_CHECK"
    random_tokens
    # on a smaller GPU PyTorch would fill the memory that the tests need
    [ -z "${torch_batch[1558M]:-}" ] || compile_torch 124M 1558M
    build_all train_gpt2 test_simt_bf16 test_ops_bf16
    sanitize memcheck 240 memcheck $programs/test_ops_bf16 --quick
    test_meanwhile test_simt 20 test_simt_bf16 $programs/test_simt_bf16 && finish test_simt
    ! built train_gpt2 || row self-check 60 $programs/train_gpt2 --self-check --device cuda
    slower=$(slower_kernels "$(log_of self-check)" 2>/dev/null)
    # a kernel that the self-check has replaced is no failure of test_ops: the line after its operation's says so
    WITHOUT=$(awk '/^ +a faster kernel / { print name } { name = $1 }' "$(log_of self-check)" 2>/dev/null)
    test_meanwhile test_ops 60 test_ops_bf16 env WITHOUT="$WITHOUT" "$0" each_op 30 $programs/test_ops_bf16 --quick &&
        finish test_ops
    for graph in 0 1; do
        ours $build/table_first "124M, --graph $graph" 60 20 16 -e d12 --graph $graph
        losses $build/run/metrics.jsonl >$build/losses_$graph
    done
    compare_losses $build/losses_0 $build/losses_1 >"$(log_of losses)" 2>&1
    report losses "$(grep -c ^expected "$(log_of losses)")"
    finish memcheck
    # PyTorch's code is for `speed`, which follows a go
    verdict >/dev/null || kill "${pid["PyTorch compiles"]:-}" 2>/dev/null
    finish "PyTorch compiles"
}

# ---- speed

stage_speed() {
    local table=$build/table_speed name again b124 b1558 twice
    tables=("$table")
    for name in predicted "matmuls of 124M" "matmuls of 1558M" bench_ops; do tables+=("$(log_of "$name")"); done
    rm -f $table
    random_tokens
    compile_torch 124M
    build_all train_gpt2 bench_ops
    name=$(tr '[:upper:]' '[:lower:]' <<<"$gpu_name" | grep -oE 'h200|h100|a100|4090|4070|4060|3060|5090' | head -n 1)
    # the step that dev/bench/predict.cu predicts, and its floor
    [ -z "$name" ] || row predicted 120 make --no-print-directory --silent DEVICE=cpu GPU="$name" predict
    finish "PyTorch compiles" # nothing runs during a timed run
    b124=$(our_batch 124M 64) b1558=$(our_batch 1558M 16)
    for again in "" ", again"; do
        ours $table "124M, B $b124$again" 90 50 "$b124" -e d12
        torch_speed $table "PyTorch 124M$again" 130 124M
        [ -z "$again" ] || break
        # shellcheck disable=SC2016  # the inner shell expands
        twice='for i in 1 2; do rm -rf "$1$i" && mkdir "$1$i" && "${@:2}" -o "$1$i" || exit
            sed -i "s/,\"ms\".*//" "$1$i/metrics.jsonl"; done; [ -s "$1"1/metrics.jsonl ] && cmp "$1"?/metrics.jsonl'
        row "same bits twice" 80 bash -c "$twice" twice $build/bits $programs/train_gpt2 --device cuda -i $tokens \
            -e d12 -b "$b124" -t 1024 -x 20 -v 0 -s 0
        ours $table "1558M, B $b1558" 140 50 "$b1558" -e d48
        torch_speed $table "PyTorch 1558M" 330 1558M
        ! built bench_ops || {
            row "matmuls of 124M" 40 $programs/bench_ops --device cuda --products -e d12 -b "$b124"
            row "matmuls of 1558M" 40 $programs/bench_ops --device cuda --products -e d48 -b "$b1558"
            row bench_ops 130 $programs/bench_ops --device cuda
        }
    done
}

# ---- rest

# compare_curves OURS THEIRS: the losses of every 100th step. Means of 50 steps must stay within 0.01 of each other
compare_curves() {
    join <(losses "$1" | sort -k1,1) <(losses "$2" | sort -k1,1) | sort -n | awk '
        BEGIN { print "| step | train_gpt2 | PyTorch |\n|---|---|---|" }
        NR == 1 || NR % 100 == 0 { printf "| %d | %s | %s |\n", $1, $2, $3 }
        { off[NR] = $2 - $3; sum += off[NR] - (NR > 50 ? off[NR - 50] : 0); mean = sum < 0 ? -sum / 50 : sum / 50
          if (NR >= 50 && !(mean <= most)) { most = mean } }
        END { printf "\n%d steps; means of 50 steps are at most %.2g apart.\n", NR, most
              if (NR != 1000 || !(most <= 0.01)) { print "expected 1000 steps, and at most 0.01" } }'
}

# curve: a thousand steps of 124M, from the same weights on the same batches as PyTorch
curve() {
    local folder=$build/curve text=${DATA:-} merges=${MERGES:-} flags log
    [ -n "$text" ] || text=$(find $packages/text -name '*.txt' -print -quit 2>/dev/null)
    [ -n "$merges" ] || merges=$(find $packages/text -name '*.bpe' -print -quit 2>/dev/null)
    rm -rf $folder && mkdir -p $folder/run
    [ -n "$text" ] || { text=$folder/sources.txt && cat README.md train_gpt2.cu llmc/*.* llmc/*/*.* >"$text"; }
    if [[ $text != *.bin && -n $merges ]]; then
        row tokens 60 $programs/train_gpt2 --device cpu -i "$text" --tokenizer "$merges" --tokenize $folder/text \
            --val-share 0
        text="$folder/text_train_*.bin"
    fi
    flags=(-i "$text" -b 16 -t 1024 -x 1000 -l 6e-4 -u 100 -q 0.1 -c 0.1 -s 0)
    # shellcheck disable=SC2016  # the inner shell expands
    row "weights and batches" 120 bash -c 'make --no-print-directory DEVICE=cpu PRECISION=fp32 build/bench/dump_run &&
        build/bench/dump_run "$@"' dump $folder/dump --device cpu -e d12 -r 4 -m 1 -v 1 "${flags[@]}"
    [ "${outcome["weights and batches"]}" = ok ] || return
    [ -z "$torch" ] || start "PyTorch curve" 230 "$python" \
        dev/oracle/converge.py --device cuda --bf16 --compile --init $folder/dump/step_00000000/model.safetensors \
        --batches $folder/dump/train.i32 --shape d12 --B 16 --T 1024 --steps 1000 --lr 6e-4 \
        --losses $folder/torch.jsonl
    row "our curve" 150 $programs/train_gpt2 --device cuda -o $folder/run -v 0 "${flags[@]}" \
        -e $folder/dump/step_00000000/model.safetensors
    finish "PyTorch curve"
    log=$(log_of "the curves")
    [ "${outcome["PyTorch curve"]:-}" != ok ] || {
        compare_curves $folder/run/metrics.jsonl $folder/torch.jsonl >"$log"
        report "the curves" "$(grep -c ^expected "$log")" "$(grep ' apart\.$' "$log")"
    }
    cp $folder/*.jsonl $folder/run/metrics.jsonl "$logs" 2>/dev/null
    rm -rf $folder/{dump,run}
}

start_tests() {
    local tool name small=(--device cuda --graph 0 -i README.md -e l2h2c128 -b 4 -t 300 -x 2 -v 0 -s 0)
    test_meanwhile test_nccl 60 test_nccl_bf16 $programs/test_nccl_bf16
    if command -v mpirun >/dev/null; then # two ranks share the GPU
        test_meanwhile "two ranks" 60 test_nccl_bf16 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
            mpirun -np 2 --oversubscribe --bind-to none $programs/test_nccl_bf16 ranks
    fi
    test_meanwhile test_layouts 30 test_layouts_bf16 $programs/test_layouts_bf16
    for name in test_gpt2_bf16 test_gpt2_fp32; do test_meanwhile $name 150 $name $programs/$name; done
    test_meanwhile test_ops_fp32 120 test_ops_fp32 "$0" each_op 60 $programs/test_ops_fp32 --quick
    test_meanwhile "test_ops at 124M" 200 test_ops_bf16 "$0" each_op 150 $programs/test_ops_bf16
    for tool in racecheck synccheck initcheck; do sanitize $tool 220 $tool $programs/test_ops_bf16 --quick; done
    # the empty value turns off the self-check at the start, which compute-sanitizer would slow down
    TRAIN_GPT2_SELF_CHECK='' sanitize "memcheck of the trainer" 120 memcheck $programs/train_gpt2 "${small[@]}"
}

# largest MODEL: three steps of the largest batch whose plan at -r 4 fits
largest() {
    local low=0 high=8192 middle
    while [ $((high - low)) -gt 1 ]; do
        middle=$(((low + high) / 2))
        if fits -e "d${layers[$1]}" -r 4 -b $middle; then low=$middle; else high=$middle; fi
    done
    ours $build/table_rest "$1, the largest batch: $low, -r 4" 100 3 $low -e "d${layers[$1]}" -r 4
}

stage_rest() {
    local name flags batch
    tables=("$(log_of "the curves")" "$build/table_rest")
    rm -f $build/table_rest
    random_tokens
    build_all train_gpt2 test_{layouts,nccl}_bf16 test_{ops,gpt2}_{bf16,fp32}
    start_tests
    ! built train_gpt2 || curve
    for name in "${!pid[@]}"; do finish "$name"; done
    built train_gpt2 || return
    batch=$(our_batch 124M 64)
    for flags in "-r 0 -ge 0" "-r 0 -ge 1" "-r 1" "-r 2" "-r 3" "-r 4" "-r 4 --offload 1" "-r 4 --offload 4"; do
        # shellcheck disable=SC2086  # words of the flags
        ours $build/table_rest "124M, B $batch, $flags" 60 30 "$batch" -e d12 $flags
    done
    # shellcheck disable=SC2016  # the inner shell expands
    row "a batch too large is refused" 30 bash -c '"$@"; [ $? -eq 2 ]' refused $programs/train_gpt2 --device cuda \
        -i $tokens -t 1024 -e d48 -b 4096 -x 1 -v 0 -s 0
    largest 124M
    largest 1558M
}

# ---- main

case $stage in
first | speed | rest | build) ;;
pack) pack && exit ;;
each_op) each_op "${@:2}" && exit ;;
--help | -h) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit ;;
*) stop "expected 'first', 'speed', 'rest', 'build' or 'pack', found '$stage'" ;;
esac || exit
rm -rf "$logs"
mkdir -p "$logs"
[ -z "${OUT:-}" ] || { mkdir -p "$OUT" && [ -w "$OUT" ]; } 2>/dev/null ||
    stop "OUT=$OUT cannot be written: name a folder for the report and the logs"
use_packed
find_cuda
compute_capability=$(gpu compute_cap 2>/dev/null | sed -n 's/^\([0-9]*\)\.\([0-9]\)$/\1\2/p')
arch=${compute_capability:-${GPU_ARCH:-90}}
command -v c++ >/dev/null || stop "there is no C++ compiler: install g++"
[ -n "$compute_capability" ] || [ "$stage" = build ] || stop "no GPU: nvidia-smi shows none"
[ "$arch" -ge 80 ] || stop "compute capability 8.0 is needed, since all programs are built in bf16, and" \
    "${arch:0:-1}.${arch: -1} was found: on such a GPU plain make builds fp32, './train_gpt2 --self-check' checks the" \
    "kernels, and 'TEST_DEVICE=cuda ./test_gpt2' checks the model"
if ! command -v make >/dev/null || ! links -lcjson cjson/cJSON.h; then
    stop "make or cJSON is missing: scripts/setup.sh gpu installs them, '$0 pack' packs them elsewhere"
fi
try_cuda
echo "CUDA $cuda_version ($NVCC), compute capability ${arch:0:-1}.${arch: -1}"
if [ "$stage" = build ]; then
    build_all train_gpt2 bench_ops test_{simt,layouts,nccl}_bf16 test_{ops,gpt2}_{bf16,fp32}
    [ ${#failed[@]} -eq 0 ] || exit 1
    [ -n "$compute_capability" ] || stop "no GPU: nothing was run"
    exit
fi
gpu_name=$(gpu name) driver=$(gpu driver_version) memory=$(gpu memory.total)
[ "$memory" -lt 70000 ] || torch_batch[1558M]=$((memory < 100000 ? 8 : 16))
torch=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)
export TORCHINDUCTOR_CACHE_DIR=$PWD/$build/inductor
export TRAIN_GPT2_SELF_CHECK=$build/self_check.txt # the trainer remembers here that this GPU has passed
export TRAIN_GPT2_AUTOTUNE_CACHE=$build/autotune_$stage.txt # the first step of each model chooses the algorithms
rm -f "$TRAIN_GPT2_AUTOTUNE_CACHE"
# the closing bracket: bash 5.2 parses a pending trap inside the next $( ), and would lose the signal without one
on_signal() { trap "$1"$'\n)' TERM INT HUP; }
on_signal interrupted
stage_"$stage"
write_report
echo
cat "$report_file"
echo
verdict
