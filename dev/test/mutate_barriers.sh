#!/usr/bin/env bash
# Does a test fail without each barrier of the kernels?   dev/test/mutate_barriers.sh [WORDS]
# Deletes each __syncthreads, __syncwarp, cp_async_commit, cp_async_wait of llmc/*.cuh and of cuda_common.cuh in a copy
# of the sources, one at a time, and runs the rows of test_ops that cover the file: emulated, in three orders of the
# warps, in bf16, and in fp32 too if bf16 finds nothing. WORDS: only statements with WORDS in "file:line statement".
# Prints a line per statement: file and line, statement, detection (race | value | refusal: other misuse | hang), row.
# Fails if no test notices a deletion and `kept` below gives no reason. Two run at a time: 5 minutes on two free cores.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

statement='(__sync(threads|warp)|cp_async_(commit|wait<[0-9]+>))\([^)]*\);'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1

# the rows of llmc/self_check/cases.h that cover a file's kernels, quick ones first
declare -A rows=(
    [attention.cuh]="attention_forward attention_backward attention_decode"
    [classifier.cuh]="classifier"
    [common/cuda_common.cuh]="loss_sum global_norm_squared classifier layernorm_forward attention_decode"
    [embedding.cuh]="embedding_backward"
    [gradient.cuh]="layernorm_backward matmul_backward"
    [layernorm.cuh]="layernorm_backward"
    [matmul_kernels.cuh]="matmul_forward matmul_backward"
)

# reasons to keep a statement that no test needs, by "file: line without indentation"
declare -A kept=()

# build PRECISION: compiles the sources of this folder to ./ops
build() {
    g++ -x c++ -std=c++20 -D_GNU_SOURCE -Idev/emulator -I. -O1 -march=native -fopenmp -w -DHAVE_CUDA \
        -DPRECISION_"$1" dev/test/test_ops.cu -o ops -lcmocka -lcjson -lm -lpthread
}

# first_failure ROWS...: prints "detection row: message" of the first row that fails; nothing if all pass
first_failure() {
    local row status how
    for row in "$@"; do
        timeout 300 ./ops "$row" >log 2>&1
        status=$?
        if [ "$status" -eq 0 ] && grep -q 'PASSED  \] 1 test' log; then continue; fi
        how=value
        [ "$status" -ne 134 ] || how=refusal
        [ "$status" -ne 124 ] || how=hang
        ! grep -q 'race on' log || how=race
        echo "$how  $row: $(sed -n -E '/simt: |ERROR/ { s/^simt: .*block \([0-9,]*\)[^:]*: //; p; q }' log)"
        return
    done
}

# mutant FILE LINE STATEMENT ROWS...: prints how FILE without LINE's statement is detected; line 0 deletes nothing
mutant() {
    local folder=$scratch/${1//\//.}.$2 precision caught=
    cp -r "$scratch/sources" "$folder"
    cd "$folder" || return
    [ "$2" -eq 0 ] || sed -i -E "${2}s/$statement/;/" "llmc/$1"
    for precision in BF16 FP32; do
        build "$precision" || break  # a compile error is no detection
        caught=$(first_failure "${@:4}" 2>/dev/null)
        [ -z "$caught" ] || break
    done
    printf '%-20s %-21s %s\n' "$1:$2" "$3" "${caught:-SURVIVES}" | tee "$folder.result"
    rm -r "${folder:?}"
}

# ---- the unchanged sources must pass; then every statement

ulimit -c 0
mkdir -p "$scratch/sources/dev/test"
cp -r llmc "$scratch/sources"
cp -r dev/emulator "$scratch/sources/dev"
cp dev/test/*.h dev/test/test_ops.cu "$scratch/sources/dev/test"
cd "$scratch/sources" || exit
mapfile -t found < <(grep -noE "$statement" llmc/*.cuh llmc/common/cuda_common.cuh | sed "s|^llmc/||")
for line in "${found[@]}"; do
    IFS=: read -r file number what <<<"$line"
    [[ "$file:$number $what" == *"${1:-}"* ]] || continue
    [ -n "${rows[$file]:-}" ] || { echo "$file: no rows are named for it in $0" && exit 1; }
    list+="$file $number $what ${rows[$file]}"$'\n'
done
[ -n "${list:-}" ] || { echo "no statement contains '${1:-}'" && exit 1; }
while read -r -a words; do
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    mutant "${words[@]}" &
done <<<"everything 0 (nothing) ${rows[*]}"$'\n'"${list%$'\n'}"
wait

# ---- summary

status=0 survivors=
if ! grep -q 'SURVIVES$' "$scratch/everything.0.result"; then
    echo "a test fails on the unchanged sources: run build/emulated/test_ops and fix it first"
    exit 1
fi
rm "$scratch/everything.0.result"
mutants=$(cat "$scratch"/*.result)
while read -r place _; do
    file=${place%:*} text=$(sed -E "${place#*:}!d; s/^ *//" "llmc/${place%:*}")
    survivors+=" $place"
    [ -n "${kept["$file: $text"]:-}" ] && survivors+=" (${kept["$file: $text"]})" || status=1
done < <(grep 'SURVIVES$' <<<"$mutants")
needed=$(grep -cv 'SURVIVES$' <<<"$mutants")
echo "$needed of $(wc -l <<<"$mutants") barriers are needed; survivors:${survivors:- none}"
exit $status
