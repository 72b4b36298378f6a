#!/usr/bin/env bash
# Does a test fail with each mistake in the sources?   dev/test/mutate.sh barriers|layouts|ptx|waits [WORDS]
# A mutant is a copy of the sources with one mistake. Its tests run until one fails.
#   barriers  deletes each __syncthreads, __syncwarp, cp_async_commit and cp_async_wait of llmc/*.cuh and of
#             cuda_common.cuh. The rows of test_ops that cover the file run emulated, in three orders of the warps. A
#             failure starts with its kind: race, value, refusal (another misuse) or hang. 5 minutes on two free cores
#   layouts   exchanges rows, columns, halves or lanes in the emulator's mma and ldmatrix, in cuda_common.cuh and in
#             TensorTiles of attention.cuh, or drops a head size of TensorTiles. test_layouts, or attention's row of
#             test_ops, runs emulated. 3 minutes
#   ptx       changes asm statements and C++. The program is that of the unchanged sources: rows of test_ops run on the
#             mutant's PTX, in bf16 for sm_90. 5 minutes
#   waits     deletes each comm_wait, each copy_wait, and each wait before a buffer is used again, of llmc/parallel,
#             llmc/memory/activation_offload.h, device.cuh and train_gpt2.cu; one at a time, since a test has four ranks
# WORDS: only mutants with WORDS in their name. The unchanged sources come first and must pass. Prints each mutant with
# the first failure. Fails if one survives and `kept` gives no reason; one that does not compile, or changes nothing,
# survives.
. "$(dirname "$0")/harness.sh"

kind=${1:-}
[[ $kind =~ ^(barriers|layouts|ptx|waits)$ ]] || { sed -n 2p "$0" && exit 2; }
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d) root=$PWD
trap 'rm -rf "$scratch"' EXIT
ulimit -c 0

# ---- the mutants: a function for each kind prints lines "file@change by sed -E@tests@name"

# why a mutant may survive, by its name without a line number
declare -A kept=(
    ["launch_dependents before wait"]="kernels run one after another here; dev/test/test_sass.sh finds the missing wait"
)

# each_line FILE REGEXP REPLACEMENT TESTS: a mutant for each line that matches, or one that changes nothing
each_line() {
    local line text
    while IFS=: read -r line text; do
        echo "$1@$line s/$2/$3/@$4@$1:$line ${text#"${text%%[! ]*}"}"
    done < <(grep -nE "$2" "$1" || echo ":$2")
}

barriers() { # the rows of llmc/self_check/cases.h that cover a file's kernels, quick ones first
    local file statement='(__sync(threads|warp)|cp_async_(commit|wait<[0-9]+>))\([^)]*\);' tests
    declare -A rows=(
        [attention.cuh]="attention_forward attention_backward attention_decode"
        [classifier.cuh]="classifier"
        [common/cuda_common.cuh]="loss_sum global_norm_squared classifier layernorm_forward attention_decode"
        [embedding.cuh]="embedding_backward"
        [gradient.cuh]="layernorm_backward matmul_backward"
        [layernorm.cuh]="layernorm_backward"
        [matmul_kernels.cuh]="matmul_forward matmul_backward"
    )
    for file in llmc/*.cuh llmc/common/cuda_common.cuh; do
        tests=" ${rows[${file#llmc/}]:-}"
        ! grep -qE "$statement" "$file" || each_line "$file" "$statement" ";" "${tests// / bf16:}${tests// / fp32:}"
    done
}

layouts() { # "file@text@replacement@test", for every occurrence of the text; without a test it is test_layouts
    local row=bf16:attention_forward file text replacement test
    while IFS=@ read -r file text replacement test; do
        echo "$file@s/$(literal "$text")/$(literal "$replacement")/g@${test:-layouts}@$file: $text becomes $replacement"
    done <<END
dev/emulator/simt.h@a[g + i % 2 * 8][t + i / 2 * 8@a[g + i / 2 * 8][t + i % 2 * 8
dev/emulator/simt.h@b[t + i * 8][g] = low_bf16@b[t + i * 8][g] = high_bf16
dev/emulator/simt.h@c[g + i / 2 * 8][t + i % 2] =@c[g + i % 2 * 8][t + i / 2] =
dev/emulator/simt.h@c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]@c[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2]
dev/emulator/simt.h@own.transposed ? element[j][i]@own.transposed ? element[i][j]
dev/emulator/simt.h@element[j + 1][i] : element[i][j + 1]@element[j + 1][i] : element[i][j]
dev/emulator/simt.h@= high << 16 | low@= low << 16 | high
dev/emulator/simt.h@lane = m * 8 + row@lane = row * 4 + m
llmc/common/cuda_common.cuh@half(high) << 16 | half(low)@half(low) << 16 | half(high)
llmc/attention.cuh@(lane_id() % 16, lane_id() / 16, k)@(lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2, k)@$row
llmc/attention.cuh@chunk_offset(lane % 16, lane / 16, j)@chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2, j)@$row
llmc/attention.cuh@chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2, j)@chunk_offset(lane % 16, lane / 16, j)@$row
llmc/attention.cuh@{top[0], top[1], bottom[0], bottom[1]}@{top[0], bottom[0], top[1], bottom[1]}@$row
llmc/attention.cuh@x[2 * m + i % 2][4 * k + i / 2 * 2]@x[2 * m + i / 2][4 * k + i % 2 * 2]@$row
llmc/attention.cuh@first_row() + r * 8 + lane_id() / 4@first_row() + r * 8 + lane_id() % 8@$row
llmc/attention.cuh@c / 2 * 8 + lane_id() % 4 * 2 + c % 2@c / 2 * 8 + lane_id() % 4 + c % 2 * 4@$row
llmc/attention.cuh@case 80: return@case 81: return
END
}
literal() { sed 's/[][\/.*^$+?(){}|&]/\\&/g' <<<"$1"; }

# "name@file@change@rows of cases.h". Most change asm, which g++ never sees. The others change C++ that nvcc compiles
# otherwise than g++, or the types of arguments that the host passes. The PTX run must notice a missing barrier too.
ptx() {
    local asm=llmc/common/ptx.cuh common=llmc/common/cuda_common.cuh attention=attention_forward name file change rows
    while IFS=@ read -r name file change rows; do
        echo "$file@$change@ptx:${rows// / ptx:}@$name"
    done <<END
mma: halves of B swapped@$asm@s/"r"\(b0\), "r"\(b1\)/"r"(b1), "r"(b0)/@$attention
mma: quarters 1 and 2 of A swapped@$asm@s/"r"\(a\[1\]\), "r"\(a\[2\]\)/"r"(a[2]), "r"(a[1])/@$attention
mma: rows of D swapped@$asm@s/"\+f"\(d\[1\]\), "\+f"\(d\[2\]\)/"+f"(d[2]), "+f"(d[1])/@$attention
mma: C is not added@$asm@s/^( +")\{%0,%1,%2,%3\};/\1{%4,%4,%4,%4};/@$attention
ldmatrix without .trans@$asm@s/x4\.trans\.shared/x4.shared/@$attention
ldmatrix with .trans@$asm@s/x4\.shared/x4.trans.shared/@$attention
ldmatrix: registers swapped@$asm@s/"=r"\(r\[1\]\), "=r"\(r\[2\]\)/"=r"(r[2]), "=r"(r[1])/@$attention
cvt: halves swapped@$common@s/"f"\(high\), "f"\(low\)/"f"(low), "f"(high)/@activation_forward
cvt: high half twice@$common@s/"f"\(high\), "f"\(low\)/"f"(high), "f"(high)/@activation_forward
cp.async: reads beyond the array@$asm@s/valid \? 16 : 0/16/@$attention
cp.async: always zeros@$asm@s/valid \? 16 : 0/0/@$attention
cp.async: one group too few@$asm@s/"n"\(PENDING\)/"n"(PENDING + 1)/@$attention attention_backward
cp.async: no group@$asm@s/cp\.async\.commit_group;//@$attention
ex2 is rcp@$asm@s/ex2\.approx/rcp.approx/@activation_forward
rcp is ex2@$asm@s/rcp\.approx/ex2.approx/@activation_forward
prefetch beyond the array@$asm@s/L2 \[%0\]/L2 [%0+1073741824]/@layernorm_backward
launch_dependents before wait@$asm@s/griddepcontrol\.wait/griddepcontrol.launch_dependents/@layernorm_forward
shared address + 512@$asm@s/__cvta_generic_to_shared\(p\)\)/__cvta_generic_to_shared(p) + 512)/@$attention
shift by the width@$common@s/word\[i \/ 2\] << 16/word[i \/ 2] << (32 + 0 * i)/@residual_forward
member of an argument's type@llmc/ops.h@s/^    bool decay;/    uint64_t decay;/@adamw_update
argument's type@llmc/activation.cuh@s/size_t n\)/int n)/@activation_forward
barrier of a sum deleted@$common@/results of all warps are complete/s/__syncthreads\(\)//@layernorm_forward
order of evaluation@llmc/classifier.cuh@s/\(total - \*sum\) - term/total - (*sum + term)/@loss_sum
uninitialised sum@llmc/layernorm.cuh@s/float sum = 0, squares = 0;/float sum, squares;/@layernorm_forward
END
}

# "file@extended regular expression@replacement@test". gpt2_update's comm_watch is left out: no test can notice its
# deletion, since collectives of the emulated NCCL block inside their calls
waits() {
    local file pattern replacement test
    while IFS=@ read -r file pattern replacement test; do
        each_line "$file" "$pattern" "$replacement" "${test:-processes}"
    done <<'END'
llmc/parallel/zero.h@comm_wait\(@no_comm_wait(
llmc/parallel/tensor_parallel.h@comm_wait\(@no_comm_wait(
llmc/parallel/tensor_parallel.h@^    rows_wait\(@    no_wait(
llmc/parallel/orthogonalise.h@comm_wait\(@no_comm_wait(
train_gpt2.cu@comm_wait\(@no_comm_wait(
train_gpt2.cu@^    rows_wait\(@    no_wait(
llmc/parallel/zero.h@if \(buffered && bucket < .*\{ zero_bucket_grads_wait\(z, bucket \+ 1\); \}@
llmc/parallel/zero.h@\{ zero_bucket_grads_wait\(z, b\); \}@{ (void)b; }
llmc/parallel/zero.h@ && layer_buffer\(next\) != layer_buffer\(bucket\)@
llmc/parallel/zero.h@^    if \(z->buffered\[layer_buffer\(bucket\)\] == bucket\)@    if (z->buffered[bucket % 2])
llmc/parallel/zero.h@^    zero_empty_buffers\(z\);@
llmc/parallel/zero.h@^    zero_gather_changed\(z\);@
train_gpt2.cu@^ +zero_params_wait\(@    no_wait(
llmc/parallel/zero.h@z->device->copy_wait\(@no_wait(
llmc/parallel/zero.h@^ +zero_grad_copy_wait\(@    no_wait(
llmc/parallel/zero.h@\{ zero_grad_copy_wait\(@{ no_wait(
llmc/parallel/update.h@z->device->copy_wait\(@no_wait(
llmc/memory/activation_offload.h@in->device->copy_wait\(@no_wait(
llmc/memory/activation_offload.h@^ +offload_copy_wait\(@    no_wait(
llmc/parallel/zero.h@comm_after_copy\(@no_wait(
llmc/memory/activation_offload.h@\{ offload_copy_wait\(@{ no_wait(
train_gpt2.cu@^ +zero_grads_acquire\(@    no_wait(
train_gpt2.cu@^ +offload_acquire\(@    no_wait(
llmc/common/device.cuh@^ +CUDA_CHECK(.cudaStreamWaitEvent.copies,)@if (false) CUDA_CHECK\1@offload
llmc/common/device.cuh@^ +CUDA_CHECK(.cudaStreamWaitEvent.stream, copied)@if (false) CUDA_CHECK\1@offload
llmc/parallel/comm_nccl.cuh@CUDA_CHECK.cudaEventRecord@if (false) CUDA_CHECK(cudaEventRecord@nccl
llmc/parallel/comm_nccl.cuh@CUDA_CHECK.cudaStreamWaitEvent@if (false) CUDA_CHECK(cudaStreamWaitEvent@nccl
llmc/parallel/comm_nccl.cuh@^    stream_wait_copy\(@    no_wait(@nccl
llmc/parallel/comm_nccl.cuh@^    nccl_event_wait\(@    no_wait(@nccl
llmc/parallel/comm_nccl.cuh@watch_enter\(@no_wait(@nccl
llmc/parallel/comm_nccl.cuh@watch_leave\(@no_wait(@nccl
llmc/parallel/comm_nccl.cuh@watch_stay\(@no_wait(@nccl
llmc/parallel/comm_nccl.cuh@^    cudaGetLastError\(@    no_wait(@nccl
llmc/parallel/comm_nccl.cuh@\{ setenv\(@{ no_wait(@nccl
train_gpt2.cu@^    comm_watch\(m->groups.world\);$@    no_wait();@nccl
END
}

# ---- the tests: each check prints the first failure, and nothing if the test passes

check() { # TEST, in the folder of a mutant
    case $1 in
    bf16:* | fp32:*) check_row "${1#*:}" "${1%%:*}" ;;
    ptx:*) check_ptx "${1#*:}" ;;
    *) "check_$1" ;;
    esac
}

# compiled PROGRAM COMMAND...: makes PROGRAM once; fails with a sentence
compiled() {
    [ -e "$1" ] || "${@:2}" >log 2>&1 || { echo "does not compile: $(grep -im 1 error log)" && false; }
}
emulated() { # SOURCE PROGRAM PRECISION
    compiled "$2" g++ -x c++ -std=c++20 -D_GNU_SOURCE -Idev/emulator -I. -O1 -march=native -fopenmp -w -DHAVE_CUDA \
        -DPRECISION_"${3^^}" "$1" -o "$2" -lcmocka -lcjson -lm -lpthread
}

check_row() { # ROW PRECISION
    local status how=value
    emulated dev/test/test_ops.cu "ops_$2" "$2" || return
    timeout 300 "./ops_$2" "$1" >log 2>&1
    status=$?
    if [ "$status" -eq 0 ] && grep -q 'PASSED  \] 1 test' log; then return; fi
    [ "$status" -ne 134 ] || how=refusal
    [ "$status" -ne 124 ] || how=hang
    ! grep -q 'race on' log || how=race
    echo "$how  $1: $(sed -n -E '/simt: |ERROR/ { s/^simt: .*block \([0-9,]*\)[^:]*: //; p; q }' log)"
}

check_layouts() {
    emulated dev/test/test_layouts.cu layouts bf16 || return
    timeout 300 ./layouts >log 2>&1 && return
    grep -m 1 -E 'simt: |ERROR' log || echo FAILS
}

check_ptx() { # ROW. The program is that of the unchanged sources
    compiled ptx ptx_of "$PWD/ptx" train_gpt2.cu bf16 sm_90 || return
    SIMT_PTX=ptx timeout 600 "$root/build/emulated/test_ops_bf16" --quick "$1" >log 2>&1 && return
    echo "$1: $(grep -m 1 -E 'ptx: |ERROR' log || echo FAILS without a sentence)"
}

# late with -z on 3 ranks and with -tp 2 on 4, layouts on 3, bytes sent on 2, and offload on 1, 3 and 4; then Muon
check_processes() {
    local with_mpi test ranks arguments
    read -ra with_mpi <<<"$(pkg-config --cflags --libs ompi-c 2>/dev/null || mpicc --showme)"
    compiled processes cc -std=gnu11 -D_GNU_SOURCE -I. -O1 -march=native -fopenmp -w -x c dev/test/test_processes.c \
        -o processes -DPRECISION_FP32 -DPOISON_SCRATCH -DHAVE_MPI '-Dno_comm_wait(work,comm,ex)=(void)(work)' \
        '-Dno_wait(...)=(void)0' "${with_mpi[@]}" -lcmocka -lcjson -lm -lpthread || return
    for test in "3 late 1" "4 late 2" "3 layouts" "2 bytes 1" "1 offload 1" "3 offload 1" "4 offload 2" \
        "muon 3 late 1" "muon 4 late 2" "muon 1 offload 1"; do
        export TEST_OPTIMIZER=${test%%[ 0-9]*}
        read -r ranks arguments <<<"${test#muon }"
        # shellcheck disable=SC2086
        timeout -k 5 100 mpirun --oversubscribe --bind-to none -np "$ranks" ./processes $arguments >log 2>&1 \
            </dev/null && continue
        sed -nE 's/^train_gpt2: (rank [0-9]: )?//p; /signal/ { p; q }' log | grep -m 1 . || tail -n 1 log
        return
    done
}

check_offload() { # the streams and graphs of an emulated GPU
    compiled train_gpt2 make train_gpt2 build/emulated/train_gpt2 build/emulated/train_gpt2_bf16 || return
    dev/test/test_offload.sh >log 2>&1 || grep -A 1 '^not ok' log | head -n 2 | tail -n 1
}

check_nccl() { # ends the test at its first failure
    sed -i '1i #define no_wait(...) ((void)0)' llmc/parallel/nccl_host.h
    sed -i 's/ -Werror / /' Makefile
    compiled build/emulated/test_nccl \
        make build/emulated/train_gpt2_bf16 build/emulated/train_gpt2_nccl_bf16 build/emulated/test_nccl || return
    timeout 900 dev/test/test_nccl_emulated.sh >log 2>&1 &
    until grep -q '^not ok' log || ! kill -0 $! 2>/dev/null; do sleep 1; done
    kill $! 2>/dev/null
    wait $! && return
    grep -m 1 -A 2 '^not ok' log | paste -s -d ' ' | grep . || echo hangs
}

# ---- the unchanged sources must pass; then every mutant

# first_failure FOLDER FILE CHANGE TESTS: of the tests in a changed copy of the sources
first_failure() {
    local test
    cp -r "$scratch/sources" "$1" && cd "$1" || return
    sed -i -E "$3" "$2"
    if cmp -s "$2" "$scratch/sources/$2"; then
        echo "changes nothing"
    else
        for test in $4; do check "$test" 2>/dev/null | grep . && break; done
    fi
    cd "$scratch" && rm -r "$1"
}

try() { # NUMBER FILE CHANGE TESTS NAME
    local caught reason
    caught=$(first_failure "$scratch/$1" "${@:2:3}")
    reason=${kept["$(sed -E 's/:[0-9]+ /: /' <<<"$5")"]:-}
    case $caught in
    '') caught=${reason:+kept: $reason} ;;
    "changes nothing" | "does not compile"* | *"FAILS without"* | *"unknown instr"*) caught="SURVIVES: $caught" ;;
    esac
    printf '%s\n    %s\n' "$5" "${caught:-SURVIVES}" | tee "$scratch/$1.result"
}

mkdir "$scratch/sources" && cp -r llmc dev scripts Makefile train_gpt2.cu test_gpt2.cu "$scratch/sources"
mapfile -t mutants < <("$kind" | while IFS=@ read -r file change tests name; do
    [[ $name != *"${2:-}"* ]] || echo "$file@$change@$tests@$name"
done)
[ "${#mutants[@]}" -gt 0 ] || { echo "no mutant has '${2:-}' in its name" && exit 1; }
[ "$kind" != ptx ] || make build/emulated/test_ops_bf16 >/dev/null || exit
tests=$(printf '%s\n' "${mutants[@]}" | cut -d @ -f 3 | tr -s ' ' '\n' | awk '!seen[$0]++')
failure=$(first_failure "$scratch/unchanged" train_gpt2.cu '1s/^/ /' "$tests")
[ -z "$failure" ] || { echo "a test fails on the unchanged sources: $failure" && exit 1; }
at_once=2
[ "$kind" != waits ] || at_once=1
number=0
for mutant in "${mutants[@]}"; do
    IFS=@ read -r file change tests name <<<"$mutant"
    number=$((number + 1))
    while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
    try "$number" "$file" "$change" "$tests" "$name" &
done
wait
survivors=$(cat "$scratch"/*.result | grep -c '^    SURVIVES')
echo "$((number - survivors)) of $number mutants are noticed, or kept for a reason"
[ "$survivors" -eq 0 ]
