#!/usr/bin/env bash
# Do the kernels, as machine code, read memory 16 bytes at a time, multiply on the tensor cores, keep away from local
# memory and from atomics of floats, and wait for the kernel before them first?   dev/test/test_sass.sh
# Disassembles the trainer in bf16 that dev/test/test_nvcc.sh left in build/nvcc, for sm_80 and sm_90, and prints a line
# a kernel: its loads from global memory of 128 bits and of less (LDG, LDGSTS), its stores likewise, its matrix
# instructions (HMMA, HGMMA), local accesses (LDL, STL), and atomics of integers and of floats (RED, ATOM). They are
# counted as they stand in the code: a loop counts once, and a tail that was unrolled many times.
# Needs nvcc, and cuobjdump and nvdisasm, which scripts/setup.sh all puts into build/cuda_tools; else it is skipped.
. "$(dirname "$0")/harness.sh"

PATH=$(echo "$PWD"/build/cuda_tools/lib/python*/site-packages/nvidia/*/bin):$PATH
trainer=build/nvcc/train_gpt2
for tool in nvcc cuobjdump nvdisasm $trainer; do # dev/test/test_nvcc.sh builds the last
    command -v "$tool" >/dev/null || { skip "$tool" && exit; }
done
changed=$(find llmc train_gpt2.cu -newer $trainer -type f | head -n 1)
[ -z "$changed" ] || echo "$changed is newer than $trainer: run dev/test/test_nvcc.sh first"

# Rules, one a kernel; the first pattern that fits counts: at least so many loads of 128 bits, which is the number of
# arrays that it reads whole; at most so many narrower ones (-: any, the reason beside it); matrix instructions or not.
rules() {
    cat <<'END'
# a lane has four neighbours, what a rounding draw serves: 128 bits of fp32, 64 of bf16, 32 of codes (adamw.cuh). Their
# narrow loads are these, the spans, and what is no whole group at a span's end
adamw_kernel<[a-z0-9]+, float,                  2 - no   both moments
adamw_kernel<[a-z0-9]+, bf16, float>            1 - no   gradients
adamw_kernel<[a-z0-9]+, unsigned char, float>   1 - no   gradients
adamw_kernel                                    0 - no   bf16 or codes alone
muon_momentum_kernel<float, float>              2 - no   the moment, gradients
muon_momentum_kernel<float,                     1 - no   the moment
muon_momentum_kernel<[a-z0-9_ ]+, float>        1 - no   gradients
muon_momentum_kernel                            0 - no   bf16 or codes alone
muon_weights_kernel                             0 - no   bf16 alone
muon_(normalise|polynomial)_kernel              0 - no   one element at a time
# plain kernels: rows that are not whole packs, or arrays that are not aligned to packs
layernorm_kernel<[0-9]+, 1,                     0 - no   one element at a time
[a-z_]+<1[,>]                                   0 - no   one element at a time
attention_[a-z]+_kernel<PlainTiles              3 - no   heads of any width, in fp32: scalars where rows are not packs
matmul_plain_kernel                             0 - no   any shape and alignment, where cuBLASLt has no kernel
# memory-bound: the narrow loads are rows' statistics, targets and tokens
layernorm_kernel                                3 2 no   in, weight, bias; mean and rstd
layernorm_backward_(packed_)?kernel             4 4 no   dout, in, dinp, weight; mean and rstd of two rows
residual_forward_kernel                         3 0 no   in, residual, bias
activation_forward_kernel                       1 0 no   in
classifier_statistics_kernel                    1 3 no   logits; the target's, a row's end
classifier_kernel<[0-9]+, [0-9]+, true>         2 8 no   logits once, in two loops; target, a row's ends
classifier_kernel                               2 8 no   logits, twice; target, a row's ends
classifier_from_statistics_kernel               1 - no   logits; one statistic of each rank
norm_blocks_kernel                              1 1 no   gradients; the last
gradient_accumulate_kernel                      2 - no   sum, gradients; the last elements
embedding_forward_kernel<[0-9]+, true, true>    2 1 no   a token's row, a position's; the token
embedding_forward_kernel<[0-9]+, true, false>   1 1 no   a token's row; the token
embedding_forward_kernel                        2 0 no   in, a position's row
embedding_positions_kernel                      1 0 no   dout of each sequence
embedding_runs_kernel                           1 - no   dout of a token's places; the sorted places
attention_decode_kernel                         2 - no   keys, values; scalars where threads share a head
matmul_epilogue_kernel                          1 0 no   D, bias, the activation's input
matmul_(sample|dot)_kernel                      0 - no   elements far apart
matmul_column_sums_kernel                       4 0 no   the array, four rows at once
# tensor cores
attention_forward_kernel<TensorTiles            3 0 yes  queries, keys, values
attention_dq_kernel<TensorTiles                 6 4 yes  queries, dout twice, out, keys, values; lse of 2 or 4 rows
attention_dkv_kernel<TensorTiles                5 0 yes  keys, values, queries, dout, pairs of lse and delta
# small: a few numbers of each block or row
(embedding_(fold|pairs|sort)|gradient_fold|loss_sum|norm_total)_kernel  0 - no   a fold, or tokens
pdl_trial_kernel                             0 - no   tries PDL: numbers
END
}

# "kernel|wide loads|narrow|wide stores|narrow|matrix|local|integer atomics|float atomics|early|read-only loads" of
# every kernel. Early: accesses to global memory and exits before the wait for the kernel before (ACQBULK,
# wait_for_previous_kernel)
count() {
    cuobjdump -sass -arch "$1" $trainer | awk '
        /Function : / { kernel = $3 }
        !/^ +\/\*[0-9a-f]+\*\/ / { next }
        {
            sub(/^ +\/\*[0-9a-f]+\*\/ +(@!?U?P[0-9T]+ +)?/, "")
            sub(/[ ;].*/, "")
            if (/^LD.*\.CONSTANT/) { n[kernel, "j"]++ }
            what = ""
            if (/^(LDG|LDGSTS|LD)(\.|$)/) { what = /\.128/ ? "a" : "b" }
            if (/^(STG|ST)(\.|$)/) { what = /\.128/ ? "c" : "d" }
            if (/^(HMMA|HGMMA)\./) { what = "e" }
            if (/^(LDL|STL)(\.|$)/) { what = "f" }
            if (/^(RED|ATOM)[A-Z]*\./) { what = /F16|BF|F32|F64/ ? "h" : "g" }
            if (what != "") { n[kernel, what]++ }
            if (/^ACQBULK/) { waited[kernel] = 1 }
            if (!waited[kernel] && /^(LD|LDG|LDGSTS|ST|STG|RED|ATOM|ATOMG|CCTL|EXIT)(\.|$)/) { n[kernel, "i"]++ }
            lines[kernel]++
        }
        END {
            for (kernel in lines) {
                line = kernel
                for (i = 1; i <= 10; i++) { line = line "|" n[kernel, substr("abcdefghij", i, 1)] + 0 }
                print line
            }
        }' | c++filt -p | sed 's/__nv_bfloat16/bf16/g' | sort
}

# judge SM: the table on stdout, and what is wrong in it to the end
judge() {
    printf '%-57s %9s %9s %6s %6s %8s\n' "$1" "loads 128" "stores" "HMMA" "local" "atomics"
    { rules | grep -v '^#' && echo '==' && count "$1"; } | awk -v sm="$1" '
        $0 == "==" { FS = "|"; table = 1; next }
        !table {
            match($0, /   ?[0-9]+ [0-9-]+ (yes|no)/)
            pattern[++rules] = substr($0, 1, RSTART - 1)
            split(substr($0, RSTART), field, " ")
            sub(/ +$/, "", pattern[rules])
            wide[rules] = field[1]; narrow[rules] = field[2]; matrix[rules] = field[3]
            next
        }
        function wrong(what) { trouble = trouble sm ": " $1 ": " what "\n" }
        {
            printf "%-57s %4d+%-4d %4d+%-4d %6d %6d %5d+%d\n", $1, $2, $3, $4, $5, $6, $7, $8, $9
            for (i = 1; i <= rules && $1 !~ "^(" pattern[i] ")"; i++) { }
            if (i > rules) { wrong("a kernel that this test does not know: give it a line in rules()"); next }
            used[i] = 1
            if ($2 < wide[i]) { wrong($2 " loads of 128 bits, expected " wide[i] " or more") }
            if (narrow[i] != "-" && $3 > narrow[i]) { wrong($3 " loads of less than 128 bits, expected " narrow[i]) }
            if ((matrix[i] == "yes") != ($6 > 0)) { wrong($6 " matrix instructions") }
            if (matrix[i] == "yes" && $4 == 0) { wrong("no stores of 128 bits") }
            if ($7 > 0) { wrong($7 " accesses to local memory") }
            if ($9 > 0) { wrong($9 " atomics of floats") }
            if (sm != "sm_80" && $10 > 0) { wrong($10 " accesses or exits before wait_for_previous_kernel()") }
            # ld.global.nc is for memory that nothing writes while the kernel lives, and a kernel that was launched
            # early lives while the one before it still writes
            if (sm != "sm_80" && $11 > 0) { wrong($11 " loads of the read-only path: no __restrict__, no __ldg()") }
        }
        END {
            for (i = 1; i <= rules; i++) { if (!used[i]) { trouble = trouble sm ": no kernel is " pattern[i] "\n" } }
            printf "%s", trouble
        }'
}

known=$(nvcc --list-gpu-code) failed=0
for sm in sm_80 sm_90; do
    [[ $known == *$sm* ]] || continue
    table=$(judge $sm)
    echo "$table"
    echo
    ! grep -q "^$sm: " <<<"$table" || failed=1
done
if [ $failed -eq 1 ]; then
    echo "[  FAILED  ] 1 test(s)."
    exit 1
fi
echo "[  PASSED  ] 1 test(s)."
