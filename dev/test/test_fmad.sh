#!/usr/bin/env bash
# Do compilers form FMAs in kernels whose bits are promised?   dev/test/test_fmad.sh
# fmaf(a, b, c) is rounded once; a * b + c twice, or once where nvcc's front end or ptxas makes an FMA of it. In both
# precisions, with and without -fmad: FMAs in PTX for sm_90, machine code for sm_80 and sm_90. Needs nvcc; 2 minutes.
. "$(dirname "$0")/harness.sh"
command -v nvcc ptxas >/dev/null || { skip nvcc && exit; }
make_scratch
ptx=$PWD/build/ptx
# The first pattern that fits counts. none: neither may form an FMA. nvcc: nvcc may, ptxas must not. any: both may.
rules() {
    cat <<'END'
adamw_kernel                            none  the CPU's bits: adamw.h, moments.h
muon_(momentum|weights)_kernel          none  the CPU's bits: muon.h
layernorm_kernel                        none  the same rows of any width, recomputed
activation_forward_kernel               none  as in the epilogues of matmuls
matmul_(epilogue|plain)_kernel          nvcc  the same activation and slope
(gradient|norm)_[a-z]+_kernel           none  the same on every GPU
(residual|embedding)_forward_kernel     none  recomputed
attention_(forward|decode)_kernel       nvcc  recomputed; a text in one call or several
classifier_                             any   one source: test_ops compares held rows with others on a GPU
(attention_d|layernorm_|embedding_)     any   no other kernel has these sums
(loss_|matmul_|muon_|pdl_trial_)     any   no other kernel has these bits
END
}
fmas() { # "count kernel". A product by 2 or 0.5 is exact, so that an FMA has the same bits
    awk '/\.entry/ { kernel = $NF } /fma\.rn\.f32/ && !/, 0f(40000000|3F000000),/ { print kernel }' "$1" |
        sort | uniq -c | sort
}
formed() { # PRECISION: "no kernel" of each, then "nvcc kernel" or "ptxas kernel" of those with an FMA that it formed
    local sm name dump
    for sm in sm_80 sm_90 "sm_90 -fmad=false"; do
        # shellcheck disable=SC2086  # words
        ptx_of "$ptx/nvcc_$1_${sm/ /}" train_gpt2.cu "$1" $sm >&2 || return
    done
    awk '/\.entry/ { print "no", $NF }' "$ptx/nvcc_$1_sm_90"
    comm -3 <(fmas "$ptx/nvcc_$1_sm_90") <(fmas "$ptx/nvcc_$1_sm_90-fmad=false") | awk '{ print "nvcc", $2 }'
    cd "$scratch" || exit
    for sm in sm_80 sm_90; do
        for name in "$1$sm"{true,false}; do
            mkdir "$name" && ptxas -arch=$sm -fmad="${name#"$1$sm"}" "$ptx/nvcc_$1_$sm" -o "$name.cubin"
            mapfile -t dump < <(sed -nE "s|.*\.entry (.*)\(.*|--dump-section=.text.\1=$name/\1|p" "$ptx/nvcc_$1_$sm")
            objcopy -I elf64-little "${dump[@]}" "$name.cubin" /dev/null 2>/dev/null
            [ "$(find "$name" -size +0 -type f | wc -l)" = ${#dump[@]} ] || echo "ptxas failed: $name" >&2
        done
        diff -rq "$1$sm"{true,false} | sed -nE 's/.*\/(\S+) differ$/ptxas \1/p'
    done
}
judge() { # PRECISION: each kernel that breaks its rule or has none
    formed "$1" | tr -d '(' | c++filt -p | awk -v of="$1: " '
        FNR == NR { split($0, rule, /  +/); pattern[++rules] = "^" rule[1]; allows[rules] = rule[2]; next }
        { former = $1; sub(/[a-z]+ /, ""); for (i = 1; i <= rules && $0 !~ pattern[i]; i++) { } kernels++ }
        said[former $0]++ { next }
        i > rules { print of $0 ": unknown to this test: give it a line in rules()" }
        former != "no" && allows[i] !~ "any|" former { print of $0 ": " former " forms an FMA: write fmaf()" }
        END { if (!kernels) { print of "no kernels" } }' <(rules) -
}
report "no FMA is formed in a kernel whose bits are promised" "$({ judge bf16 & judge fp32 & wait; } 2>&1 | head -n 20)"
end_tests
