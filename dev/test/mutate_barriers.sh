#!/usr/bin/env bash
# Is every barrier of the kernels needed, and does a test fail without it?   dev/test/mutate_barriers.sh [WORDS]
# For each __syncthreads, __syncwarp, cp_async_commit and cp_async_wait of llmc/*.cuh (WORDS: only those of which
# "file:line statement" contains WORDS) a copy of the sources loses that one statement, and the rows of test_ops that
# its file serves run emulated, in three orders of the warps: in bf16, and in fp32 too where bf16 does not notice.
# A line each: where, what, how it was caught (race | value | refusal: other misuse | hang), by which row.
# Fails if a statement can go and has no reason in `kept` below. Two at a time; about 5 minutes on two free cores.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

statement='(__sync(threads|warp)|cp_async_(commit|wait<[0-9]+>))\([^)]*\);'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1

# the rows of dev/test/cases.h that a file's kernels serve, the quick ones first
declare -A rows=(
    [attention.cuh]="attention_forward attention_backward attention_decode"
    [cuda_common.cuh]="loss_sum global_norm_squared classifier layernorm_forward attention_decode"
    [embedding.cuh]="embedding_backward"
    [layernorm.cuh]="layernorm_backward"
    [matmul_kernels.cuh]="matmul_forward matmul_backward"
)

# Why a statement that no test misses is kept: "file: the line, without indentation"
declare -A kept=()

# build PRECISION: the sources of this folder as ./ops
build() {
    g++ -x c++ -std=c++20 -D_GNU_SOURCE -I. -O1 -march=native -fopenmp -w -DSIMT -DPRECISION_"$1" dev/test/test_ops.cu \
        -o ops -lcmocka -lcjson -lm -lpthread
}

# first_failure ROWS...: "how row: what was said" of the first that fails; nothing if none does
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

# mutant FILE LINE STATEMENT ROWS...: says how FILE without the statement of LINE is caught; with line 0 all is as it is
mutant() {
    local folder=$scratch/$1.$2 precision caught=
    cp -r "$scratch/sources" "$folder"
    cd "$folder" || return
    [ "$2" -eq 0 ] || sed -i -E "${2}s/$statement/;/" "llmc/$1"
    for precision in BF16 FP32; do
        build "$precision" || break  # what does not compile is not caught
        caught=$(first_failure "${@:4}" 2>/dev/null)
        [ -z "$caught" ] || break
    done
    printf '%-20s %-21s %s\n' "$1:$2" "$3" "${caught:-SURVIVES}" | tee "$folder.result"
    rm -r "${folder:?}"
}

# ---- as it is, everything must pass; then every statement

ulimit -c 0
mkdir -p "$scratch/sources/dev/test"
cp -r llmc "$scratch/sources"
cp dev/test/*.h dev/test/test_ops.cu "$scratch/sources/dev/test"
cd "$scratch/sources" || exit
mapfile -t found < <(grep -noE "$statement" llmc/*.cuh | sed 's|^llmc/||')
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

# ---- what it comes to

status=0 survivors=
if ! grep -q 'SURVIVES$' "$scratch/everything.0.result"; then
    echo "a test fails with every statement in its place: nothing can be said of the others"
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
