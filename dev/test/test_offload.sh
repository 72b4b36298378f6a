#!/usr/bin/env bash
# --offload on an emulated GPU, with copies that land late, early and in a random order: the bits of --offload 0, in
# CUDA graphs, beside validation, samples and checkpoints, and resumed with another stage.
#   EMULATED=build/emulated/train_gpt2 BF16=build/emulated/train_gpt2_bf16 dev/test/test_offload.sh
. "$(dirname "$0")/harness.sh"
bf16=$(realpath "${BF16:-build/emulated/train_gpt2_bf16}")
. dev/test/ranks.sh
model=(-i text -b 2 -l 3e-3 -s 0 -n 3)
shape=(-e l4h2c32 -t 16 -x 3)
export SIMT_RACES=0 # test_ops finds races within kernels

train() { trainer=$1 run 0 1 "${model[@]}" -o "${@:2}"; } # PROGRAM RUN FLAGS...

# check ORDERS NAME PROGRAM FLAGS...: every --offload has the bits of --offload 0 in these orders of the streams
check() {
    local failures stage order
    failures=$(train "$3" whole "${@:4}")
    for stage in 1 2 3 4; do
        for order in $1; do
            failures+=$(SIMT_STREAMS=$order train "$3" offload "${@:4}" --offload "$stage")
            failures+=$(same_run whole offload step_00000003 | sed "s/^/--offload $stage, SIMT_STREAMS=$order: /")
            rm -rf offload
        done
    done
    rm -rf whole
    report "$2" "$failures"
}

# 1: copies land late, 2: early, 3 and above: seeds of random orders (dev/emulator/cuda_runtime.h)
few="1 2 3" many="1 2 3 4 5 6"
check "$few" "-r 0, three micro-batches, with validation" "$emulated" "${shape[@]}" -r 0 -d 96 -v 1
check "1 2" "-r 4, fp32" "$emulated" "${shape[@]}" -r 4
check 1 "one layer, -rk larger than the model, and updates skipped" "$emulated" \
    -e l1h1c16 -t 16 -x 3 -r 4 -rk 3 -d 64 -sg 0.1
check 1 "20 layers: more copies than events of a copy stream" "$emulated" -e l20h1c16 -t 4 -x 3 -d 16 -r 0 -v 0
check "$few" "-r 2 -om 8bit -w split, three micro-batches, bf16" "$bf16" "${shape[@]}" \
    -r 2 -om 8bit -d 96
check "$many" "-r 4 -rk 2 -rn 3 -w split -om bf16, with validation and samples, bf16" "$bf16" \
    "${shape[@]}" -r 4 -rk 2 -rn 3 -om bf16 -d 64 -v 2 -s 2 -g 4
check "1 2" "-r 4 -w none -gd bf16 --graph 0, bf16" "$bf16" \
    "${shape[@]}" -r 4 -w none -gd bf16 -d 64 --graph 0
check "$few" "--optimizer muon -r 4, with validation and samples, fp32" "$emulated" \
    "${shape[@]}" --optimizer muon -r 4 -d 64 -v 2 -s 2 -g 4
check "1 2" "--optimizer muon -om 8bit -w split, bf16" "$bf16" "${shape[@]}" --optimizer muon -om 8bit
check 1 "--optimizer muon -om bf16 --graph 0, bf16" "$bf16" "${shape[@]}" --optimizer muon -om bf16 \
    --graph 0
check 1 "--optimizer muon -w none, bf16" "$bf16" "${shape[@]}" --optimizer muon -w none
check 1 "-r 4 -rn 0" "$emulated" "${shape[@]}" -r 4 -rn 0

# with a constant learning rate the number of steps changes nothing
failures=$(train "$emulated" whole -e l4h2c32 -t 16 -r 4 -d 64 -k constant -v 0 -x 5) step=0
for stage in 4 0 3 1 2; do
    step=$((step + 1))
    failures+=$(SIMT_STREAMS=1 train "$emulated" parts -e l4h2c32 -t 16 -r 4 -d 64 -k constant -v 0 -x $step \
        -y 1 --offload $stage)
done
failures+=$(same_run whole parts step_00000005)
report "resumed with another --offload after every step" "$failures"

end_tests
