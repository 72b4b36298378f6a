#!/usr/bin/env bash
# The trainer on several ranks through mpirun, with every -z and -tp: against one rank, and resumed in another layout.
#   PROGRAM=build/test/test_processes TRAINER=./train_gpt2 dev/test/test_processes.sh
. "$(dirname "$0")/harness.sh"
. dev/test/ranks.sh
use_ranks

# ---- layouts

mixed=$trainer trainer=$fp32
report "24 steps and samples on one rank" "$(run 0 1 "${together[@]}" -b 1 -x 24 -n 24 -o one --temperature 0)"
cp "$out" one_text
# test_processes_model.sh has every combination
for layout in "2 -z 0" "3 -z 3 -r 4 -rk 2" "3 -tp 3 -r 0 -ra 0" "4 -tp 2 -z 1 -r 3" "4 -tp 2 -z 3 -r 4 -rk 2" \
    "4 -tp 4"; do
    read -r ranks flags <<<"$layout"
    # shellcheck disable=SC2086
    report "24 steps and samples with $flags on $ranks ranks agree with one rank" "$(
        run 0 "$ranks" "${together[@]}" -b 1 -x 24 -n 24 -o many --temperature 0 $flags
        close_losses many one 1e-5
        cmp <(samples "$out") <(samples one_text) 2>&1
        [ "$(grep -c 'sample at' "$out")" = 3 ] || echo "expected 3 samples, all of rank 0"
        rm -r many
    )"
done
report "24 steps of Muon with -tp 2 -z 3 -r 4 -rk 2 on 4 ranks agree with one rank" "$(
    run 0 1 "${together[@]}" -b 1 -x 24 -n 24 --optimizer muon -o muon_one
    run 0 4 "${together[@]}" -b 1 -x 24 -n 24 --optimizer muon -o muon_many -tp 2 -z 3 -r 4 -rk 2
    close_losses muon_many muon_one 1e-5
    rm -r muon_many muon_one
)"

# same_bits FLAGS FLAGS...: 4 ranks with any of these flags have the bits of the first
same_bits() {
    local n=0 flags
    for flags; do
        # shellcheck disable=SC2086
        run 0 4 "${together[@]}" -x 6 -n 6 $flags -o "bits_$n"
        same_run "bits_$n" bits_0 step_00000006
        n=$((n + 1))
    done
    rm -r bits_*
}
report "updates of one micro-batch have the same bits at every -z" "$(same_bits "-b 3 -om 8bit -z "{0,1,2,3})"
report "updates of one micro-batch with -f 2 have the same bits at every -z" "$(same_bits "-b 3 -f 2 -z "{0,1,2,3})"
report "updates with -tp have the same bits at every -z, -r and -ra" "$(
    same_bits "-b 6 -tp 2 -om 8bit "{"-z 0 -r 0 -ra 0","-z 0 -r 0","-z 1 -r 1 -ra 0","-z 2 -r 2","-z 3 -r 3"} \
        "-b 6 -tp 2 -om 8bit -z 3 -r 4 -rk 2"
)"

report "all ranks in one tensor-parallel group: -z does nothing, and the banner says so" "$(
    run 0 2 "${together[@]}" -b 1 -tp 2 -z 2 -x 1 -v 0
    says '^ranks +2 through mpi, -tp 2, -z 0$'
    run 0 2 "${together[@]}" -b 1 -z 2 -x 1 -v 0
    says '^ranks +2 through mpi, -z 2$'
)"

report "the ranks share HellaSwag's examples and find the score of one rank" "$(
    mkdir -p dev/data/hellaswag
    hellaswag 11 >dev/data/hellaswag/hellaswag_val.bin
    for layout in "1" "2 -z 3" "4 -z 3" "2 -tp 2 -z 3" "4 -tp 2 -z 3"; do
        read -r ranks flags <<<"$layout"
        name=hella_$ranks${flags//[^0-9]/}
        # shellcheck disable=SC2086
        run 0 "$ranks" "${model[@]}" -b 4 -d 256 -v 5 -m 5 -x 10 $flags -h 1 -o "$name"
        found=$(grep -c hellaswag "$name/metrics.jsonl")
        [ "$found" -eq 2 ] || echo "$found scores, expected 2"
        diff <(grep hellaswag hella_1/metrics.jsonl) <(grep hellaswag "$name/metrics.jsonl")
    done
)"

# ---- checkpoints do not depend on the layout

# a run on 4 ranks, and its resumed copy of the same bits
for row in "whole -z 3 -om bf16" "tp_bf16 -tp 2 -z 3 -om bf16" "tp_8bit -tp 2 -z 3 -om 8bit"; do
    read -r name flags <<<"$row"
    # shellcheck disable=SC2086
    report "a run with $flags on 4 ranks, uninterrupted and resumed: equal bits" "$(
        run 0 4 "${together[@]}" -b 1 -x 10 -n 5 $flags -o "$name"
        cp -r "$name" "second_$name" && rm -r "second_$name/step_00000010"
        run 0 4 -b 1 -o "second_$name" -y 1 -x 10
        same_run "second_$name" "$name" step_00000010
    )"
done
report "a run of Muon resumes in other layouts, and not with another optimizer" "$(
    run 0 4 "${together[@]}" -b 1 -z 3 -tp 2 -x 10 -n 5 --optimizer muon -o muon
    rm -r muon/step_00000010
    cp -r muon again
    run 0 3 -b 1 -o again -y 1 -x 10 -z 1 -tp 1
    cp -r again third && rm -r third/step_00000010
    run 0 1 -b 3 -o third -y 1 -x 10 -tp 1
    close_losses third again 1e-4
    run 2 4 -b 1 -o muon -y 1 -x 10 --optimizer adamw
    says "state of --optimizer muon, but this run has --optimizer adamw: resume with --optimizer muon"
    sentences 1
    rm -r again third
)"
report "runs to resume in other layouts" "$(
    run 0 1 "${together[@]}" -b 3 -x 10 -n 5 -o alone
    run 0 4 "${together[@]}" -b 1 -tp 2 -z 3 -x 10 -n 5 -o tp
    run 2 1 -b 3 -o alone -y 1 -x 20 --optimizer muon
    says "state of --optimizer adamw, but this run has --optimizer muon: resume with --optimizer adamw"
    sentences 1
)"
for row in "whole 2 -z 1" "alone 4 -z 3 -b 3" "tp 1 -tp 1 -z 0" "tp 4 -tp 4 -z 0"; do
    read -r name ranks flags <<<"$row"
    # shellcheck disable=SC2086
    report "the run '$name' resumes with $flags on $ranks ranks" "$(
        cp -r "$name" again && rm -r again/step_00000010
        run 0 "$ranks" -o again -y 1 -x 10 -b 1 $flags
        close_losses again "$name" 1e-5
        rm -r again
    )"
done
report "another -tp rounds 8-bit moments again" "$(
    rm -r second_tp_8bit/step_00000010
    run 0 1 -o second_tp_8bit -y 1 -x 10 -tp 1 -b 1
    close_losses second_tp_8bit tp_8bit 1e-4
)"

# ---- bf16 weights. test_processes train does not read the flags of a resumed run, so each command gives all flags

if [ -x "${program}_bf16" ]; then
    printf '#!/bin/sh\nexec "%s" train "$@"\n' "${program}_bf16" >bf16 && chmod +x bf16
    trainer=$folder/bf16
    for layout in "3 0" "3 3" "4 1 -tp 2" "2 0 -tp 2 -w none -om 8bit"; do
        read -r ranks stage more <<<"$layout"
        # shellcheck disable=SC2086
        report "bf16 weights, -z $stage${more:+ $more} on $ranks ranks: equal replicas" "$(
            launch "$ranks" "${program}_bf16" replicas -1 "${together[@]}" -b 1 -z "$stage" -x 24 $more ||
                echo "exit status $?"
            says '^the replicas of step 24 agree'
        )"
    done
    for moments in 8bit bf16; do
        report "weights and masters of -om $moments load unchanged in another layout" "$(
            name=masters_$moments
            flags=(-i text -e l3h3c24 -t 16 -d 192 -b 1 -v 0 -n 5 -om "$moments")
            run 0 2 "${flags[@]}" -z 3 -x 5 -l 3e-3 -o "$name"
            for layout in "1 0" "3 1"; do
                read -r ranks stage <<<"$layout"
                cp -r "$name" "$name$ranks"
                run 0 "$ranks" "${flags[@]}" -z "$stage" -x 10 -o "$name$ranks" -y 1 -l 0
                cmp "$name/step_00000005/model.safetensors" "$name$ranks/step_00000010/model.safetensors" 2>&1
                "${program}_bf16" same "$name/step_00000005/optimizer.safetensors" \
                    "$name$ranks/step_00000010/optimizer.safetensors" master. 2>&1
            done
        )"
    done
fi

trainer=$mixed
if [ -x "${program}_bf16" ]; then
    least=("${together[@]}" -b 1 -x 24 -w none -om 8bit)
    report "24 steps of bf16 weights without masters, 8-bit moments, -tp 2" "$(
        launch 1 "${program}_bf16" train "${least[@]}" -o least_one || echo "exit status $?, expected 0"
        launch 2 "${program}_bf16" train "${least[@]}" -tp 2 -o least ||
            echo "exit status $?, expected 0"
        close_losses least least_one 2e-2
    )"
fi

# ---- the plan

for flags in "-z 3" "-z 2 -tp 2 -r 2"; do
    # shellcheck disable=SC2086
    report "a run's banner has the memory of --plan, $flags" "$(
        run 0 4 "${together[@]}" -b 3 $flags -x 1 -o "planned${flags//[^0-9]/}"
        memory=$(sed -nE 's/^memory +([0-9.]+) MiB.*/\1/p' "$out")
        run 0 1 "${together[@]}" -b 3 $flags --plan=json -pn 4
        awk -v memory="$memory" '/"total":/ { ranks++; found += sprintf("%.1f", $2 / 1048576) == memory }
            END { if (ranks != 4 || found != 4) print found " of 4 ranks have the banner'"'"'s " memory }' "$out"
    )"
done
report "the first step says what a rank sends: at -z 0 all gradients, and the loss and norm" "$(
    run 0 1 "${together[@]}" -b 3 --plan=json -pn 2
    grads=$(tr -d '\n\t ' <"$out" | grep -oE '"name":"grads"[^}]*"bytes":[0-9]+' | grep -oE '[0-9]+$' | head -n 1)
    run 0 2 "${together[@]}" -b 3 -x 2 -v 0 -s 0
    says "^sent +$(awk -v bytes="$((grads + 8))" 'BEGIN { printf "%.2f", bytes / 1048576 }') MiB an update, from rank 0"
    [ "$(grep -c ^sent "$out")" -eq 1 ] || echo "more than one line"
)"

report "-r auto: ranks divide the machine's memory, as --plan predicts" "$(
    of() { sed -nE 's/^chosen +-r 0: [0-9.]+ of ([0-9.]+) GiB$/\1/p' "$out"; }
    run 0 1 "${together[@]}" -b 3 -x 1
    whole=$(of)
    run 0 4 "${together[@]}" -b 3 -x 1
    each=$(of)
    run 0 1 "${together[@]}" -b 3 --plan -pn 4
    [ "$each" = "$(of)" ] || echo "4 ranks choose for '$each' GiB each, --plan -pn 4 for '$(of)' GiB"
    awk -v whole="$whole" -v each="$each" 'BEGIN { exit !(whole > 0 && (whole - 4 * each) ^ 2 < 0.001) }' ||
        echo "one rank has $whole GiB, each of 4 has $each"
)"

report "a text without -e: all ranks have the folder that rank 0 names" "$(
    run 0 2 -i text -x 2 -v 0 -s 0 -z 1
    says "^flags .* output runs/text-1( |$)"
    run 0 2 -o runs/text-1 -y 1 -x 3
    says "^resumed +at step 2 from "
    [ -e runs/text-1/step_00000003/optimizer.safetensors ] || find runs
)"
end_tests
