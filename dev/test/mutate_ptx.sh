#!/usr/bin/env bash
# Does the PTX run notice a mistake that only nvcc sees?   dev/test/mutate_ptx.sh [WORDS]
# Changes asm statements, and C expressions that g++ compiles differently, in a copy of the sources, one at a time, and
# compiles PTX of bf16 for sm_90. The programs are those of the unchanged sources: build/emulated/test_ops_bf16 runs
# rows of cases.h on the changed PTX. WORDS: only mutants with WORDS in their name. Prints each mutant with the first
# failure. Fails if no row notices one and `kept` gives no reason. Two at a time: 5 minutes on two free cores.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

scratch=$(mktemp -d) root=$PWD
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1
ulimit -c 0
make build/emulated/test_ops_bf16 >/dev/null || exit

# "name|file|change by sed -E|rows of cases.h"
asm=llmc/common/ptx.cuh common=llmc/common/cuda_common.cuh attention=attention_forward
mutants=(
    "mma: halves of B swapped|$asm|s/\"r\"\(b0\), \"r\"\(b1\)/\"r\"(b1), \"r\"(b0)/|$attention"
    "mma: quarters 1 and 2 of A swapped|$asm|s/\"r\"\(a\[1\]\), \"r\"\(a\[2\]\)/\"r\"(a[2]), \"r\"(a[1])/|$attention"
    "mma: rows of D swapped|$asm|s/\"\+f\"\(d\[1\]\), \"\+f\"\(d\[2\]\)/\"+f\"(d[2]), \"+f\"(d[1])/|$attention"
    "mma: C is not added|$asm|s/^( +\")\{%0,%1,%2,%3\};/\1{%4,%4,%4,%4};/|$attention"
    "ldmatrix without .trans|$asm|s/x4\.trans\.shared/x4.shared/|$attention"
    "ldmatrix with .trans|$asm|s/x4\.shared/x4.trans.shared/|$attention"
    "ldmatrix: registers swapped|$asm|s/\"=r\"\(r\[1\]\), \"=r\"\(r\[2\]\)/\"=r\"(r[2]), \"=r\"(r[1])/|$attention"
    "cvt: halves swapped|$common|s/\"f\"\(high\), \"f\"\(low\)/\"f\"(low), \"f\"(high)/|gelu_forward"
    "cvt: high half twice|$common|s/\"f\"\(high\), \"f\"\(low\)/\"f\"(high), \"f\"(high)/|gelu_forward"
    "cp.async: reads beyond the array|$asm|s/valid \? 16 : 0/16/|$attention"
    "cp.async: always zeros|$asm|s/valid \? 16 : 0/0/|$attention"
    "cp.async: one group too few|$asm|s/\"n\"\(PENDING\)/\"n\"(PENDING + 1)/|$attention attention_backward"
    "cp.async: no group|$asm|s/cp\.async\.commit_group;//|$attention"
    "ex2 is rcp|$asm|s/ex2\.approx/rcp.approx/|gelu_forward"
    "rcp is ex2|$asm|s/rcp\.approx/ex2.approx/|gelu_forward"
    "prefetch beyond the array|$asm|s/L2 \[%0\]/L2 [%0+1073741824]/|layernorm_backward"
    "launch_dependents before wait|$asm|s/griddepcontrol\.wait/griddepcontrol.launch_dependents/|layernorm_forward"
    "shared address + 512|$asm|s/__cvta_generic_to_shared\(p\)\)/__cvta_generic_to_shared(p) + 512)/|$attention"
    "shift by the width|$common|s/word\[i \/ 2\] << 16/word[i \/ 2] << (32 + 0 * i)/|residual_forward"
    "member of an argument's type|llmc/ops.h|s/^    bool decay;/    uint64_t decay;/|adamw_update"
    "argument's type|llmc/gelu.cuh|s/size_t n\)/int n)/|gelu_forward"
    "barrier of a sum deleted|$common|/results of all warps are complete/s/__syncthreads\(\)//|layernorm_forward"
    "order of evaluation|llmc/classifier.cuh|s/\(total - \*sum\) - term/total - (*sum + term)/|loss_sum"
    "uninitialised sum|llmc/layernorm.cuh|s/float sum = 0, squares = 0;/float sum, squares;/|layernorm_forward"
)
# why a mutant may survive, by its name
declare -A kept=(
    ["launch_dependents before wait"]="kernels run one after another here; dev/test/test_sass.sh finds the missing wait"
)

mutant() { # NAME FILE CHANGE ROWS
    local folder=$scratch/${1//[ \/]/_} row caught=
    mkdir "$folder" && cp -r llmc train_gpt2.cu "$folder" && cd "$folder" || return
    sed -i -E "$3" "$2"
    if cmp -s "$2" "$root/$2"; then
        caught="changes nothing"
    elif ! ptx_of "$folder/ptx" train_gpt2.cu bf16 sm_90 >log 2>&1; then
        caught="does not compile: $(head -n 1 log)"
    fi
    for row in $4; do
        [ -z "$caught" ] || break
        SIMT_PTX=ptx timeout 600 "$root/build/emulated/test_ops_bf16" --quick "$row" >log 2>&1 && continue
        caught="$row: $(grep -m 1 -E 'ptx: |ERROR' log || echo FAILS without a sentence)"
    done
    printf '%s\n    %s\n' "$1" "${caught:-SURVIVES${kept[$1]:+: ${kept[$1]}}}" | tee "$folder.result"
    cd "$root" && rm -r "${folder:?}"
}

all=$(printf '%s\n' "${mutants[@]##*|}" | tr ' ' '\n' | sort -u | tr '\n' ' ')
for line in "unchanged sources|train_gpt2.cu|1s/^/ /|$all" "${mutants[@]}"; do
    IFS='|' read -r name file change rows <<<"$line"
    [[ $name == unchanged* || $name == *"${1:-}"* ]] || continue
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    mutant "$name" "$file" "$change" "$rows" 2>/dev/null & # without the lines of aborted programs
done
wait

grep -qs SURVIVES "$scratch/unchanged_sources.result" || { echo "a row fails on the unchanged sources" && exit 1; }
rm "$scratch/unchanged_sources.result"
tried=$(find "$scratch" -name '*.result' | wc -l)
missed=$(find "$scratch" -name '*.result' -exec cat {} + |
    grep -cE '^    (SURVIVES$|changes nothing|does not compile|.*(FAILS without|unknown instr))')
echo "$((tried - missed)) of $tried mutants are noticed, or kept for a reason"
[ "$tried" -gt 0 ] && [ "$missed" -eq 0 ]
