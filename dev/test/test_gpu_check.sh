#!/usr/bin/env bash
# scripts/gpu_check.sh: the verdict, with failing, hanging and missing rows, and the report that an interrupted command
# leaves. Stubs replace the GPU's tools, nvcc, make, python and the programs.
# shellcheck disable=SC2016,SC2034  # case_of evaluates its text
. "$(dirname "$0")/harness.sh"

make_scratch
here=$scratch/here compiler=$(command -v c++)
mkdir -p "$here/dev" "$scratch/bin" "$scratch/programs" "$scratch/back"
cp -r scripts README.md train_gpt2.cu llmc "$here"
export PATH=$scratch/bin:$PATH STUBS=$scratch PYTHON=$scratch/bin/python OUT=$scratch/back
unset NVCC DATA MERGES GPU_CHECK_SECONDS TRAIN_GPT2_AUTOTUNE_CACHE TRAIN_GPT2_SELF_CHECK

# program PATH: writes an executable file from stdin. HANGS, FAILS: patterns of commands that hang, or fail
program() {
    {
        cat <<'END'
#!/usr/bin/env bash
[[ "$0 $*" != ${HANGS:-none}* ]] || { echo $$ >"$STUBS/hangs" && exec sleep 100; }
[[ "$0 $*" != ${FAILS:-none}* ]] || { echo something broke && exit 7; }
echo "$0 $*" >>"$STUBS/log"
END
        cat
    } >"$1"
    chmod +x "$1"
}
# a sanitizer that hangs has five seconds
program "$scratch/bin/timeout" <<END
[[ -z \${FINDS:-}\${CLEAN:-} || \$* != *--tool* ]] || set -- -k 1 5 "\${@:4}"
exec $(command -v timeout) "\$@"
END
program "$scratch/bin/nvidia-smi" <<'END'
[ -z "${NO_GPU:-}" ] || exit 9
for word; do [[ $word != --query-gpu=* ]] || asked=${word#*=}; done
case $asked in
name) echo "Stub H200" ;;
compute_cap) echo 9.0 ;;
driver_version) echo "${DRIVER:-1.2.3}" ;;
memory.free | memory.total) echo 144000 ;;
memory.used) # 20 GiB more while a program runs
    echo 1000
    [[ $* != *--loop-ms* ]] || { echo 21480 && echo $$ >"$STUBS/watcher" && exec sleep 60; }
    ;;
esac
END
program "$scratch/bin/nvcc" <<END
case \$* in
*--dryrun*) echo '#\$ TOP=$scratch' >&2 ;;
*--version*) echo "Cuda compilation tools, release 13.0, V13.0.1" ;;
*) while [ "\$1" != -o ]; do shift; done && cp "$scratch/bin/true" "\$2" ;;
esac
END
program "$scratch/bin/true" <<<'exit 0'
program "$scratch/bin/c++" <<END
[[ \$* != *random_tokens* ]] || exec $compiler "\$@"
END
# builds all targets except BROKEN
program "$scratch/bin/make" <<'END'
status=0
for word; do
    name=${word##*/}
    case $word in
    predict) echo "528K tokens/s, floor 863K" ;;
    build/*"${BROKEN:-none}") status=2 ;;
    build/*) mkdir -p "${word%/*}" && cp "$STUBS/programs/$(sed 's/^test_.*/test/' <<<"$name")" "$word" ;;
    esac
done
exit $status
END
# FINDS, CLEAN: tools that hang with or without a finding
program "$scratch/bin/compute-sanitizer" <<'END'
[[ $* != *--help* ]] || { echo "--kernel-name arg --port arg" && exit; }
[ "$2" != "${FINDS:-}" ] || { echo "========= Invalid __global__ read of size 2 bytes" && exec sleep 100; }
[ "$2" != "${CLEAN:-}" ] || exec sleep 100
echo "========= ERROR SUMMARY: 0 errors"
END
# of test_ops the row OFF_ROW is too far off, and the row CRASH_ROW crashes
program "$scratch/programs/test" <<'END'
[[ $* != *--list* ]] || { printf '%s\n' attention_forward classifier activation_forward && exit; }
[ "${*: -1}" != "${CRASH_ROW:-}" ] || exit 139
[ "${*: -1}" != "${OFF_ROW:-}" ] || { echo "ERROR: out is off by 0.00512, at most 0.0039 is allowed" && exit 1; }
echo "[  PASSED  ] 7 test(s)."
END
program "$scratch/programs/bench_ops" <<<'[[ $* != *products* ]] || echo "Products fused: 20 of 26."'
program "$scratch/programs/dump_run" <<<'mkdir -p "$1/step_00000000" && touch "$1/train.i32"'
# REPLACED: a kernel failed the self-check. WRONG: an operation has no right kernel. NOISE: bits differ. FALLS: the
# factor of the loss's fall. The plan of B sequences takes B GiB
program "$scratch/programs/train_gpt2" <<'END'
note="note      attention_forward uses a slower kernel (CUDA cores): the fast one fails the self-check on this GPU"
batch=4 steps=20
while [ $# -gt 0 ]; do
    case $1 in
    --self-check)
        echo "attention_forward   CUDA cores  0.41"
        [ -z "${REPLACED:-}" ] || printf '%s\n' "    a faster kernel is off by 37.1 times the tolerance" "$note"
        [ -z "${WRONG:-}" ] || { echo "activation_forward  is off by 3.2 times, and has no other kernel" && exit 1; }
        exit
        ;;
    --plan=json) plan=yes ;;
    -b) batch=$2 ;;
    -x) steps=$2 ;;
    -o) run=$2 ;;
    esac
    shift
done
[ -z "${plan:-}" ] || { printf '{\n\t"total":\t%d\n}\n' $((batch << 30)) && exit; }
[ "$batch" -lt 4096 ] || exit 2
echo "machine   cuda, Stub H200"
[ -z "${REPLACED:-}" ] || echo "$note"
awk -v steps="$steps" -v noise="${NOISE:+$RANDOM}" -v falls="${FALLS:-1}" 'BEGIN {
    for (i = 1; i <= steps; i++) {
        loss = 10.9 - (i < 20 ? i / 100 : 0.2 + (i - 20) / 500) * falls + noise / 1e9
        printf "{\"step\":%d,\"loss\":%.8f,\"grad_norm\":1,\"ms\":100.0,\"mfu\":0.5}\n", i, loss
    }
}' >"$run/metrics.jsonl"
# a run whose memory is watched ends after the watcher has begun
[[ $run != build/gpu/run ]] || until kill -0 "$(cat "$STUBS/watcher")"; do sleep 0.01; done 2>/dev/null
END
# PyTorch's losses are OFF higher
program "$scratch/bin/python" <<'END'
case $* in
*'version("torch")'*) echo 9.9.0 ;;
*train_torch.py*) echo '{"median_ms": 125.0, "p10_ms": 124.0, "p90_ms": 126.0, "reserved_bytes": 42949672960}' ;;
*converge.py*)
    while [ "$1" != --losses ]; do shift; done
    awk -v off="${OFF:-0}" 'BEGIN { for (i = 1; i <= 1000; i++) {
        printf "{\"step\":%d,\"loss\":%.8f}\n", i, 10.9 - (i < 20 ? i / 100 : 0.2 + (i - 20) / 500) + off } }' >"$2"
    ;;
esac
END

# check STATUS COMMAND: runs the command from clean logs
check() {
    local status
    (cd "$here" && scripts/gpu_check.sh "$2") >"$out" 2>&1
    status=$?
    [ $status -eq "$1" ] || { echo "exit status $status, expected $1" && tail -n 30 "$out"; }
}
has() { grep -qE -- "$1" "$out" || { echo "no line matches '$1':" && grep -E '^(no-)?go|^- |gpu_check' "$out"; }; }
go="go: the kernels, memcheck and the losses are right"
# case NAME COMMAND: a case in a subshell, so that no setting outlives it; what it prints is its failure
case_of() { report "$1" "$(eval "$2" 2>&1)"; }

case_of "first says go, and the report comes back" 'check 0 first; has "^$go\$"; has "^- test_ops: ok; 3 of 3 rows"
    has "^- 124M, --graph 0: ok; .* ms a step; 122520 MiB free; "
    grep -qx "\*\*$go\*\*" "$OUT"/gpu_stub-h200_*_first.md || echo "no report in OUT"
    tar -tzf "$OUT/gpu_check_first.tgz" | grep self_check >/dev/null || echo "no logs in OUT"'
case_of "speed has the tables of either program, the prediction and go" 'check 0 speed; has "^$go\$"
    has "^\| 124M, B 64 \| 100.0 \(100.0 to 100.0\) \| 655360 \| 50.0 % \| 64.00 \|"
    has "^\| 1558M, B 16 \|"; has "^\| PyTorch 1558M, B 16 \| 125.0 .* \| 131072 \| - \| 40.00 \|"
    has "floor 863K"; has "matmuls of 1558M: ok; fused: 20 of 26"; has "same bits twice: ok"'
case_of "rest has the curves, every -r, fused GELU, --offload and the largest batch" 'check 0 rest; has "^$go\$"
    has "^1000 steps; means of 50 steps are at most 0 apart"; has "^\| 500 \| 9.74000000 \| 9.74000000 \|"
    for flags in "-r 0 -ge 1" "-r 3" "-r 4 --offload 1" "-r 4 --offload 4"; do has "^\| 124M, B 64, $flags \|"; done
    has "^\| 1558M, the largest batch: 135, -r 4 \|"; has "a batch too large is refused: ok"; has "racecheck: ok"'
case_of "speed needs a go of first for the same driver and sources" '
    DRIVER=9 check 1 speed; has "^no-go: kernels and memcheck: .* no go for these sources, GPU, driver, CUDA"
    cp "$here/llmc/ops.h" "$scratch/ops.h"; echo "// changed" >>"$here/llmc/ops.h"; check 1 rest; has "^no-go: kernels"
    cp "$scratch/ops.h" "$here/llmc/ops.h"; check 0 speed'
case_of "losses further apart than 0.01 are a no-go" 'OFF=0.02 check 1 rest; has "^no-go: the curves FAILED"'
case_of "different bits are a no-go" 'NOISE=1 check 1 speed; has "^no-go: same bits twice FAILED: exit status 1"'

# errors of `first`; none of them leaves a go behind
refuses() { case_of "$1" "$2 check 1 first; has '^no-go: .*$3'; [ ! -e '$here/build/gpu/go' ] || echo 'a go is left'"; }
refuses "a row that is off by too much" OFF_ROW=classifier 'test_ops FAILED: exit status 1'
has 'is off by 0.00512, at most 0.0039' >"$scratch/said"
report "the report names the error and its tolerance" "$(cat "$scratch/said")"
refuses "a row that crashes" CRASH_ROW=classifier 'test_ops FAILED'
refuses "an operation without a right kernel" WRONG=1 'self-check FAILED'
refuses "a memcheck with a finding" FINDS=memcheck 'memcheck FAILED: exit status 9'
refuses "losses that do not fall" FALLS=0.1 'losses FAILED'
refuses "losses that differ with graphs" NOISE=1 'losses FAILED'
refuses "a program that does not build" BROKEN=test_simt_bf16 'build FAILED.*test_simt not run'
refuses "rows that have no time" GPU_CHECK_SECONDS=0 'test_simt left out: no time was left'
refuses "a test that fails" FAILS=build/cuda/test_simt 'test_simt FAILED: exit status 7'
case_of "memcheck out of time without a finding is a go that says so" '
    CLEAN=memcheck check 0 first
    has "^go: the kernels and the losses are right, and memcheck had found nothing when it ran out of time"'
case_of "a kernel that the self-check has replaced is named, and its row of test_ops left out" '
    REPLACED=1 CRASH_ROW=attention_forward check 0 first
    has "^$go. Replaced by slower kernels: attention_forward \(CUDA cores\)"; has "test_ops: ok; 2 of 2 rows"'
case_of "an interrupted command reports the rows so far, and ends its programs" '
    (cd "$here" && HANGS=build/cuda/test_simt exec scripts/gpu_check.sh first) >"$out" 2>&1 &
    until [ -s "$scratch/hangs" ]; do sleep 0.1; done; kill -TERM $!; wait $!
    [ $? -eq 1 ] || echo "exit status is not 1"
    cat "$OUT"/gpu_stub-h200_*_first.md >"$out"; has "the command: FAILED: exit status 1; stopped by a signal"
    has "^- build: ok"; none_left "$(cat "$scratch/hangs")"'

case_of "no GPU ends with exit status 2" 'NO_GPU=1 check 2 first; has "gpu_check: no GPU"'
case_of "build without a GPU compiles, and ends with exit status 2" 'NO_GPU=1 check 2 build; has "nothing was run"
    grep -q "arch=compute_90.*build/cuda/bench_ops" "$scratch/log" || echo "bench_ops was not built for sm_90"
    grep -q "timeout -k 5 7... make" "$scratch/log" || echo "the compilers did not get the two hours of build"'
end_tests
