#!/usr/bin/env bash
# Checks and measures the trainer on this machine's GPU, in less than nine minutes:   scripts/gpu_check.sh [build|pack]
#
# It builds with nvcc, tests every kernel and the whole model on the GPU, looks for bad memory accesses and races,
# checks that the same command gives the same bits, and times training, beside PyTorch where that is installed. All
# goes to dev/results/gpu_<name>_<date>.md, and into the folder $OUT where that is set; logs stay in build/gpu/log.
# `build` only builds: without a GPU for GPU_ARCH (default 90), and then with exit status 2. `pack` is for a GPU without
# a network: run where Debian's packages are, it puts make, cJSON and cmocka into build/gpu/packages, to be taken along.
#
# needs      nvcc, make, a C++ compiler, cJSON; cmocka for the tests. CUDA is its toolkit, or wheels that Python finds:
#            beside PyTorch's own cublas, cudart and NCCL, `pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl]==13.0.*'`, of
#            PyTorch's release (dev/test/wheels.sh tries them). What lies elsewhere is found through NVCC, PYTHON,
#            CPATH, LIBRARY_PATH and LD_LIBRARY_PATH
# work       124M at B 64, T 1024: 65,536 tokens of 0.80 GFLOP, 52 TFLOP a step; 1558M at B 16: 16,384 of 9.8, 161.
#            60 steps of each take 6 s and 17 s at 550 TFLOP/s, a little over half of a Hopper's bf16 peak
# time       build 60 s, tests and sanitizers, all at once on 16 cores, 100 s, operations 40 s, training 100 s, PyTorch
#            200 s, half of that to compile. Each step has its limit; what would pass 530 s in all is left out and said
# FLOPs      a token takes 6 N + 6 L C T: N counts every parameter but wpe's, which is added, not multiplied; half of
#            attention is masked. The share is of the rate of a large square bf16 product, measured in the same run
# memory     1558M takes 49 GiB (train_gpt2 --plan -e d48 -b 16), of which 21 are weights, gradients and moments
# disk       tokens 8 MB, programs 30 MB, what PyTorch compiled 50 MB
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

purpose=${1:-all}
case $purpose in
all | build | pack) ;;
*)
    echo "gpu_check: expected nothing, 'build' or 'pack', found '$purpose'" >&2
    exit 2
    ;;
esac
build=build/gpu programs=build/cuda python=${PYTHON:-python3}
seconds_in_all=530
started=$SECONDS
mkdir -p $build/log
rm -f $build/log/*

# ---- one step: its time limit, its word in the report

results=() failures=0

# left: seconds that remain of all
left() { echo $((seconds_in_all - (SECONDS - started))); }

# bounded SECONDS COMMAND...: the command, ended after so long or when the time in all is up
bounded() {
    local limit=$1 rest
    shift
    rest=$(left)
    [ "$rest" -ge 5 ] || return 125
    timeout -k 5 $((limit < rest ? limit : rest)) "$@"
}

# report NAME STATUS NOTE: a line of the report; what failed is said and the rest goes on
report() {
    local word=ok
    case $2 in
    0) ;;
    skipped) word=skipped ;;
    124 | 137) word="FAILED: out of time" failures=$((failures + 1)) ;;
    125) word="left out: no time was left" ;;
    *) word="FAILED: exit status $2" failures=$((failures + 1)) ;;
    esac
    results+=("- $1: $word${3:+; $3}")
    printf '%4d s  %s: %s%s\n' $((SECONDS - started)) "$1" "$word" "${3:+; $3}"
}

# start NAME SECONDS COMMAND...: begins it, with its output in a log
declare -A process=()
start() {
    bounded "${@:2}" >"$build/log/$1.txt" 2>&1 </dev/null &
    process[$1]=$!
}

# finish NAME: waits for what was started and reports; the end of its log is shown if it fails
finish() {
    local name=$1 log=$build/log/$1.txt status
    wait "${process[$name]}"
    status=$?
    report "$name" $status \
        "$(sed -n 's/^\[ *PASSED *\] \([0-9]* test(s)\).*/\1/p; s/.* SUMMARY: //p' "$log" | tail -n 1)"
    case $status in 0 | 125) ;; *) tail -n 15 "$log" | sed 's/^/        /' ;; esac
}

# ---- CUDA, from its toolkit or from wheels

# sets NVCC, CUDA_ROOT and cuda_flags: the toolkit's own headers and libraries first, then those of wheels
find_cuda() {
    local wheels nvcc folders folder name library
    mapfile -t wheels < <("$python" -c 'import glob, sys
for path in sys.path: print(*sorted(glob.glob(path + "/nvidia/*")), sep="\n")' 2>/dev/null | sed '/^$/d')
    for nvcc in "${NVCC:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc "${wheels[@]/%//bin/nvcc}"; do
        # what is found may be a script or a link: nvcc says itself where it is
        CUDA_ROOT=$("${nvcc:-false}" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#[$] TOP=//p')
        [ -z "$CUDA_ROOT" ] || break
    done
    if [ -z "$CUDA_ROOT" ]; then
        echo "gpu_check: nvcc is missing: install CUDA's toolkit or the wheel nvidia-cuda-nvcc, or name it in NVCC" >&2
        return 1
    fi
    NVCC=$nvcc CUDA_ROOT=$(realpath "$CUDA_ROOT") cuda_flags=(-lcublasLt)
    for folder in "${wheels[@]/%//include}"; do
        [ ! -d "$folder" ] || cuda_flags+=(-isystem "$folder")
    done
    # a wheel has libcublasLt.so.13 without the plain name that -l looks for
    mkdir -p $build/lib
    rm -f $build/lib/lib*
    folders=("$CUDA_ROOT"/lib64 "$CUDA_ROOT"/targets/*/lib "$CUDA_ROOT"/lib "${wheels[@]/%//lib}")
    for name in cublasLt nccl; do
        for folder in "${folders[@]}"; do
            library=$(find "$folder" -maxdepth 1 -name "lib$name.so*" -print -quit 2>/dev/null)
            [ -n "$library" ] || continue
            ln -s "$(realpath "$library")" $build/lib/lib$name.so
            cuda_flags+=(-Xlinker "-rpath=$folder")
            break
        done
    done
    for folder in $build/lib "$CUDA_ROOT"/lib{64,}; do
        [ ! -d "$folder" ] || cuda_flags+=(-L"$folder")
    done
}

# try_cuda: whether it compiles for this GPU, links and runs. Wheels of several releases often do not
try_cuda() {
    cat >$build/probe.cu <<'END'
#include <cublasLt.h>
#include <cuda_bf16.h>
__global__ void add(__nv_bfloat16 *x) { x[threadIdx.x] = x[0] + x[1]; }
int main() { return cublasLtGetVersion() < CUBLAS_VER_MAJOR * 10000; }
END
    # shellcheck disable=SC2154  # arch
    "$NVCC" -std=c++20 -arch=sm_"$arch" $build/probe.cu -o $build/probe "${cuda_flags[@]}" >$build/log/probe.txt 2>&1 &&
        $build/probe >>$build/log/probe.txt 2>&1 && return
    head -n 20 $build/log/probe.txt >&2
    echo "gpu_check: $NVCC $cuda_version does not build a program with cuBLASLt for sm_$arch; its words are above." \
        "Install CUDA's toolkit, or wheels that are all of one release:" \
        "pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl,cudart,cublas]==$cuda_version.*'" >&2
    return 1
}

# links LIBRARY HEADER...: whether a program can be built with it
links() {
    local library=$1 include=()
    shift
    for header in "$@"; do include+=(-include "$header"); done
    echo 'int main() { return 0; }' | c++ -x c++ "${include[@]}" - -o /dev/null "$library" 2>/dev/null
}
has_cjson() { links -lcjson cjson/cJSON.h; }
has_cmocka() { links -lcmocka stdarg.h stddef.h stdint.h setjmp.h cmocka.h; }

packages=$build/packages

# packs what fetch_missing could not fetch without a network
pack() {
    rm -rf $packages
    mkdir -p $packages
    (cd $packages && apt-get -q download make libcjson-dev libcjson1 libcmocka-dev libcmocka0 &&
        for package in *.deb; do dpkg -x "$package" . || exit; done && rm -rf ./*.deb usr/share) 2>&1 |
        tee $build/log/pack.txt
    [ "${PIPESTATUS[0]}" -eq 0 ] && echo "$packages holds $(du -sh $packages | cut -f 1)"
}

# what was packed, after what the machine has
use_packed() {
    local libraries=("$PWD/$packages"/usr/lib/*-linux-gnu)
    [ -d "${libraries[0]}" ] || return 0
    export PATH=$PATH:$PWD/$packages/usr/bin
    export CPLUS_INCLUDE_PATH=${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$PWD/$packages/usr/include
    export C_INCLUDE_PATH=${C_INCLUDE_PATH:+$C_INCLUDE_PATH:}$PWD/$packages/usr/include
    export LIBRARY_PATH=${LIBRARY_PATH:+$LIBRARY_PATH:}${libraries[0]}
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${libraries[0]}
}

# what the build lacks, through apt where that is possible
fetch_missing() {
    local missing=()
    command -v make >/dev/null || missing+=(make)
    has_cjson || missing+=(libcjson-dev)
    has_cmocka || missing+=(libcmocka-dev)
    [ ${#missing[@]} -gt 0 ] && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || return 0
    echo "installing ${missing[*]} with apt-get"
    bounded 20 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=5 update >$build/log/apt.txt 2>&1
    bounded 30 env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=5 \
        install -y --no-install-recommends "${missing[@]}" >>$build/log/apt.txt 2>&1
    return 0
}

# ---- building

# builds everything at once, by the Makefile, which keeps what would come out the same, and reports each; what was built
# before and no longer builds is removed
build_all() {
    local making log=$build/log/build.txt names=(train_gpt2 bench_ops) name status excerpt
    making=(make --no-print-directory DEVICE=cuda PRECISION=bf16 ONEDNN=0 NVCC="$NVCC" CUDA_FLAGS="${cuda_flags[*]}"
        ARCHITECTURES="-gencode arch=compute_$arch,code=sm_$arch")
    if has_cmocka; then
        names+=(test_ops_bf16 test_ops_fp32 test_gpt2_bf16 test_gpt2_fp32 test_nccl_bf16)
    else
        report "tests" skipped "cmocka is missing (libcmocka-dev) and apt-get could not bring it"
    fi
    bounded 400 "${making[@]}" --jobs="$(nproc)" --keep-going --output-sync "${names[@]/#/$programs/}" >$log 2>&1
    status=$?
    for name in "${names[@]}"; do
        if [ $status -eq 0 ] || "${making[@]}" --question "$programs/$name" >/dev/null 2>&1; then
            report "build $name" 0
            continue
        fi
        report "build $name" $status
        rm -f "$programs/$name"
        [ $status -eq 2 ] || continue  # not make's word but the clock's
        excerpt=$(sed -n "\|^compile *$programs/$name\$|,\|^make: \*\*\*|p" $log)
        head -n 20 <<<"${excerpt:-$(tail -n 5 $log)}" | sed 's/^/        /'
    done
}

# built NAME: whether there is such a program to run
built() { [ -x "$programs/$1" ]; }

# ---- data

# a shard of COUNT tokens, uniform below 50257, from SEED
make_tokens() {
    local path=$1 count=$2 seed=$3
    cat >$build/make_tokens.c <<'END'
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    uint32_t header[256] = {20240520, 1, argc > 2 ? (uint32_t)atol(argv[1]) : 0};
    uint64_t state = argc > 2 ? (uint64_t)atol(argv[2]) : 0;
    fwrite(header, sizeof header, 1, stdout);
    for (uint32_t i = 0; i < header[2]; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint16_t token = (uint16_t)((state >> 33) % 50257);
        fwrite(&token, sizeof token, 1, stdout);
    }
    return fflush(stdout) != 0;
}
END
    c++ -w -O2 -x c++ $build/make_tokens.c -o $build/make_tokens && $build/make_tokens "$count" "$seed" >"$path"
}

# ---- numbers

# number KEY FILE: the last number that follows "KEY": in a file
number() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9.eE+-]*\).*/\1/p" "$2" | tail -n 1; }

# percentiles FILE: median, p10 and p90 of "ms", the first ten steps left out
percentiles() {
    sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$1" | tail -n +11 | sort -g |
        awk '{ ms[NR] = $1 }
             END { print ms[int((NR + 1) / 2)], ms[int(NR * 0.1) + 1], ms[int(NR * 0.9) + 1] }'
}

# flops_per_token L C T
flops_per_token() {
    awk -v L="$1" -v C="$2" -v T="$3" 'BEGIN {
        N = 50304 * C + L * (12 * C * C + 13 * C) + 2 * C
        print 6 * N + 6 * L * C * T
    }'
}

# gib BYTES
gib() { awk "BEGIN { if (\"$1\" > 0) printf \"%.1f\", $1 / 1024 ^ 3; else print \"-\" }"; }

gpu() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader,nounits; }

# watched COMMAND...: runs it, and sets driver_bytes to the most that it added to the memory that the driver has in use
watched() {
    local before watcher status
    before=$(gpu memory.used)
    nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=100 >$build/used.txt 2>/dev/null &
    watcher=$!
    "$@"
    status=$?
    kill $watcher 2>/dev/null
    wait $watcher 2>/dev/null
    driver_bytes=$(sort -g $build/used.txt | tail -n 1 | awk "{ printf \"%.0f\", (\$1 - $before) * 1048576 }")
    return $status
}

# ---- training

length=1024 rows=() gemm='' driver_bytes=0 tokens=$build/tokens.bin
export TRAIN_GPT2_PICKS=$build/picks.txt  # matmul algorithms, chosen in the first run of a shape

# trainer FOLDER SECONDS FLAG...: a run on the GPU; FOLDER gets its metrics and, in `first`, the time to the first step
trainer() {
    local folder=$1 limit=$2 begun=$EPOCHREALTIME line
    rm -rf "$folder"
    mkdir -p "$folder"
    bounded "$limit" "$programs/train_gpt2" --device cuda -i "$tokens" -o "$folder" -t $length -v 0 -s 0 -c 0.1 \
        "${@:3}" 2>&1 </dev/null | while IFS= read -r line; do
        echo "$line"
        [[ $line != "step 1/"* ]] || awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begun }" >"$folder/first"
    done
}

# row MODEL PROGRAM L C BATCH MEDIAN P10 P90 OWN_BYTES FIRST: a line of the table, its sixth cell still empty
row() {
    rows+=("$(awk -v flops="$(flops_per_token "$3" "$4" $length)" -v tokens=$(($5 * length)) -v ms="$6" -v p10="$7" \
        -v p90="$8" -v head="$1, B $5|$2" -v bytes="$(gib "$9")|$(gib "$driver_bytes")" -v first="${10}" \
        'BEGIN { printf "%s|%.1f|%.0f (%.0f to %.0f)|%.1f||%s|%s", head, ms, tokens / ms * 1e3, tokens / p90 * 1e3,
                 tokens / p10 * 1e3, tokens / ms * flops / 1e9, bytes, first }')")
}

# timed NAME STATUS LOG [MEDIAN]: reports a run, with the end of its log if it failed
timed() {
    report "$1" "$2" "${4:+$4 ms a step}"
    case $2 in 0 | 125) ;; *) tail -n 5 "$3" | sed 's/^/        /' ;; esac
}

# check_first_loss METRICS: a model that has learned nothing is off by ln 50257 = 10.82, and a little as its logits vary
check_first_loss() {
    local loss
    loss=$(sed -n 's/^{"step":1,"loss":\([^,]*\),.*/\1/p' "$1")
    awk -v loss="$loss" 'BEGIN { exit !(loss >= 10.8 && loss <= 11.1) }'
    report "the first loss of 124M" $? "step 1 has loss ${loss:-none}; random weights and tokens give 10.8 to 11.1"
}

# time_ours ROUND MODEL L C BATCH SECONDS
time_ours() {
    local folder=$build/run log=$build/log/ours_$2_$1.txt ms=() status
    built train_gpt2 || return
    "$programs/train_gpt2" --plan=json --device cuda -e "d$3" -b "$5" -t $length >$build/plan.json
    watched trainer $folder "$6" -e "d$3" -b "$5" -x 60 >"$log"
    status=$?
    if [ $status -eq 0 ]; then
        read -r -a ms <<<"$(percentiles $folder/metrics.jsonl)"
        row "$2" "train_gpt2, run $1" "$3" "$4" "$5" "${ms[@]}" "$(number total $build/plan.json)" \
            "$(cat $folder/first)"
    fi
    timed "train $2, run $1" $status "$log" "${ms[0]:-}"
    [ "$status $2" != "0 124M" ] || check_first_loss $folder/metrics.jsonl
}

# time_torch ROUND MODEL L C BATCH SECONDS
time_torch() {
    local log=$build/log/torch_$2_$1.txt ms=() status
    [ -n "$torch" ] || return
    TORCHINDUCTOR_CACHE_DIR=$PWD/$build/inductor watched bounded "$6" "$python" dev/oracle/train_torch.py \
        --model "$2" --batch "$5" --length $length --shards $tokens >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        ms=("$(number median_ms "$log")" "$(number p10_ms "$log")" "$(number p90_ms "$log")")
        gemm=${gemm:-$(number gemm_tflops "$log")}
        row "$2" "PyTorch $torch, run $1" "$3" "$4" "$5" "${ms[@]}" "$(number reserved_bytes "$log")" \
            "$(number first_step_s "$log")"
    fi
    timed "PyTorch $2, run $1" $status "$log" "${ms[0]:-}"
}

# same_bits: 20 steps twice; all that is not a time has to be equal
same_bits() {
    local log=$build/log/same_bits.txt run
    built train_gpt2 || return
    rm -f $build/bits_?.txt
    for run in 1 2; do
        trainer $build/run 40 -e d12 -b 64 -x 20 >"$log" || break
        sed 's/,"ms".*//' $build/run/metrics.jsonl >"$build/bits_$run.txt"
    done && [ "$(wc -l <$build/bits_1.txt)" -eq 20 ] && cmp $build/bits_1.txt $build/bits_2.txt >>"$log"
    timed "the same bits twice, 20 steps of 124M" $? "$log"
}

# check_kernels: the tests, and compute-sanitizer over two steps of a small model whose kernels are those for tensor
# cores. All at once: the tests wait for the host's sums, the tools for the host's driver
check_kernels() {
    local small=("$programs/train_gpt2" --device cuda --graph 0 -i README.md -e l2h2c128 -b 4 -t 300 -x 2 -v 0 -s 0)
    local tools=(memcheck racecheck synccheck initcheck) name
    built train_gpt2 && bounded 20 "${small[@]}" >$build/log/small.txt 2>&1  # chooses the matmul algorithms
    # without GOMP_SPINCOUNT the program would start itself again, which the tools do not follow
    local settings=(env TEST_DEVICE=cuda GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=$((($(nproc) + 1) / 2)))
    for name in test_ops_bf16 test_ops_fp32 test_gpt2_bf16 test_gpt2_fp32; do
        built $name && start $name 150 "${settings[@]}" "$programs/$name"
    done
    for name in "${tools[@]}"; do
        if [ -z "$sanitizer" ]; then
            report "$name" skipped "there is no compute-sanitizer"
        elif built train_gpt2; then
            start "$name" 120 "${settings[@]}" "$sanitizer" --tool "$name" --error-exitcode 9 "${small[@]}"
        fi
    done
    for name in "${tools[@]}" test_gpt2_bf16 test_gpt2_fp32 test_ops_bf16 test_ops_fp32; do
        [ -z "${process[$name]:-}" ] || finish "$name"
    done
}

# check_nccl: NCCL in a group of one, and two processes, which share the GPU if there is one, through MPI
check_nccl() {
    local test=$programs/test_nccl_bf16
    built test_nccl_bf16 || return
    start test_nccl 60 "$test"
    finish test_nccl
    if ! command -v mpirun >/dev/null || ! "$test" backends | grep -q MPI; then
        report "two processes" skipped "there is no mpirun, or no MPI was built in"
        return
    fi
    start two_processes 60 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun -np 2 --oversubscribe --bind-to none "$test" ranks
    finish two_processes
}

# ---- the report

# write_report FILE: what is known so far, into the file and $OUT, so that a run that is ended leaves what it found
write_report() {
    local name
    name=$(gpu name)
    mkdir -p "$(dirname "$1")"
    {
        echo "# GPU benchmark"
        echo
        echo "$(date +%F), $name, driver $(gpu driver_version), CUDA $cuda_version; \`scripts/gpu_check.sh\`." \
            "T $length, bf16, random tokens, 50 steps after 10. A token takes 6 N + 6 L C T FLOPs, N without wpe." \
            "${gemm:+A large bf16 product ran at $gemm TFLOP/s in the same run.}" \
            "Own peak: the plan's total; PyTorch's max_memory_reserved. First step: s from the program's start."
        echo
        echo "| model | program | ms a step | tokens/s (p10 to p90) | TFLOP/s | of GEMM | own peak, GiB |" \
            "driver's, GiB | first step |"
        echo "|---|---|---|---|---|---|---|---|---|"
        [ ${#rows[@]} -eq 0 ] || printf '%s\n' "${rows[@]}" | sort -s -t'|' -k1,1 -k2,2 |
            awk -F'|' -v OFS=' | ' -v gemm="${gemm:-0}" \
                '{ $6 = gemm > 0 ? sprintf("%.0f %%", 100 * $5 / gemm) : "-"; $1 = $1; print "| " $0 " |" }'
        echo
        printf '%s\n' "${results[@]}"
        [ ! -s $build/log/bench_ops.txt ] || { echo && cat $build/log/bench_ops.txt; }
    } >"$1"
    if [ -d "${OUT:-}" ]; then
        cp "$1" "$OUT/"
        tar -czf "$OUT/gpu_check_logs.tgz" -C $build log
    fi
}

# ---- all of it

if [ "$purpose" = pack ]; then
    pack
    exit
fi
use_packed
find_cuda || exit 2
cuda_version=$("$NVCC" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
command -v c++ >/dev/null || { echo "gpu_check: there is no C++ compiler: install g++" >&2 && exit 2; }
compute_capability=$(gpu compute_cap 2>/dev/null | sed -n 's/^\([0-9]*\)\.\([0-9]\)$/\1\2/p')
arch=${compute_capability:-${GPU_ARCH:-90}}
if [ -z "$compute_capability" ] && [ "$purpose" = all ]; then
    echo "gpu_check: no GPU: nvidia-smi shows none" >&2
    exit 2
fi
fetch_missing
command -v make >/dev/null || { echo "gpu_check: there is no make: install it" >&2 && exit 2; }
if ! has_cjson; then
    echo "gpu_check: cJSON is missing: install libcjson-dev, or bring what '$0 pack' packs elsewhere" >&2
    exit 2
fi
try_cuda || exit 2
echo "CUDA $cuda_version ($NVCC), compute capability ${arch:0:-1}.${arch: -1}"
build_all
if [ -z "$compute_capability" ]; then
    echo "gpu_check: no GPU: nothing was run" >&2
    exit 2
fi
[ "$purpose" = all ] || exit $((failures > 0))

sanitizer=$(command -v compute-sanitizer "$CUDA_ROOT"/bin/compute-sanitizer \
    "$CUDA_ROOT"/compute-sanitizer/compute-sanitizer | head -n 1)
torch=$("$python" -c 'import torch; assert torch.cuda.is_available(); print(torch.__version__)' 2>/dev/null)
[ -n "$torch" ] || report "PyTorch" skipped "$python has none that sees the GPU"
rm -f $build/picks.txt
make_tokens $tokens 4200000 1

results_file=dev/results/gpu_$(gpu name | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')_$(date +%F).md
check_kernels
check_nccl
write_report "$results_file"
if built bench_ops; then
    start bench_ops 80 "$programs/bench_ops" --device cuda
    finish bench_ops
    gemm=$(sed -n 's/^Ceilings.* matmul of .* \([0-9.]*\) TFLOP.*/\1/p' $build/log/bench_ops.txt | head -n 1)
fi
for round in 1 2; do
    time_ours $round 124M 12 768 64 60
    [ $round -eq 2 ] || same_bits
    time_torch $round 124M 12 768 64 120
    write_report "$results_file"
done
for round in 1 2; do
    time_ours $round 1558M 48 1600 16 120
    time_torch $round 1558M 48 1600 16 180
    write_report "$results_file"
done
echo
cat "$results_file"
exit $((failures > 0))
