#!/usr/bin/env bash
# The trainer compiled by nvcc, on a machine without a GPU: it trains on the CPU and names the reason.
#   TRAINER=build/nvcc/train_gpt2 dev/test/test_cuda_build.sh
# dev/test/test_nvcc.sh builds that trainer. Skipped without nvcc, and on a machine with a GPU.
. "$(dirname "$0")/harness.sh"

trainer=$(realpath -m "${TRAINER:-build/nvcc/train_gpt2}")
make_scratch
if ! command -v nvcc >/dev/null || nvidia-smi >"$out" 2>&1; then
    skip "nvcc, and a machine without a GPU" 2
    exit 0
fi

export OMP_NUM_THREADS=1
cd "$scratch" || exit
seq 1000 >text
run() { # STATUS ARGUMENTS...: one step of a small model
    local status=0
    "$trainer" -i text -e l2h2c16 -b 2 -t 8 -d 16 -v 0 -s 0 -x 1 "${@:2}" >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1" && cat "$err"; }
}

report "a build for GPUs trains on a CPU, and names the reason" "$(
    run 0
    silent "$err"
    matches "$out" "^machine +cpu, "
    matches "$out" "^note +this program can use a GPU, but finds none: .+"
    matches "$out" "step 1/1 \| loss"
)"
report "refused: --device cuda without a GPU" "$(
    run 2 --device cuda
    matches "$err" "--device cuda: there is no GPU that this program can use"
    [ "$(wc -l <"$err")" -eq 1 ] || echo "expected one line"
    silent "$out"
    [ "$(ls)" = "$(printf 'err\nout\ntext')" ] || { echo "the disk changed:" && ls; }
)"

end_tests
