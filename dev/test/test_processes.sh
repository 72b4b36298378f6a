#!/usr/bin/env bash
# Training on several ranks through mpirun, with every -z and -tp: against one rank, resumed in another layout, and with
# a rank that is killed, hangs or has bad data.
#   PROGRAM=build/test/test_processes TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_processes.sh
# Skipped without mpirun, or in a build without MPI.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

program=$(realpath "${PROGRAM:-build/test/test_processes}")
trainer=$(realpath "${TRAINER:-./train_gpt2}")
emulated=$(realpath "${EMULATED:-build/emulated/train_gpt2}")
# a trainer of fp32 weights, to compare layouts that sum in another order: bf16 would round the sums differently
fp32=$(realpath "${TRAINER_FP32:-$trainer}")
use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
folder=$(mktemp -d)
out=$folder/out
trap 'rm -rf "$folder"' EXIT
seq 100000 >"$folder/text"                # the same text on any machine
head -c 113 "$folder/text" >"$folder/held" # 7 sequences of 16 for validation, which 2, 3 and 4 do not divide
mpi=(mpirun --oversubscribe --bind-to none)
# beside three busy programs on two cores, `slices 2` on 4 ranks takes 9 s with it and 158 s without
cc -O2 -shared -fPIC dev/test/patient_yield.c -o "$folder/patient_yield.so" &&
    mpi+=(-x LD_PRELOAD="$folder/patient_yield.so")
cd "$folder" || exit

launch() { timeout -k 5 300 "${mpi[@]}" -np "$1" "${@:2}" >"$out" 2>&1 </dev/null; }

# A check prints a sentence if it fails, and nothing if it passes.
run() { # STATUS RANKS ARGUMENTS...: runs the trainer, which must exit with STATUS; 1 rank without mpirun
    local status=0
    if [ "$2" -eq 1 ]; then
        "$trainer" "${@:3}" >"$out" 2>&1 </dev/null || status=$?
    else
        launch "$2" "$trainer" "${@:3}" || status=$?
    fi
    [ "$status" -eq "$1" ] || echo "exit status $status, expected $1: ${*:2}"
}
says() { grep -qE -- "$1" "$out" || echo "expected /$1/"; }
sentences() {
    local found
    found=$(grep -c 'train_gpt2: ' "$out")
    [ "$found" -eq "$1" ] || echo "$found sentences, expected $1"
}
# losses of training and of validations
losses() { sed -nE 's/.*"(val_)?loss":([^,}]*)[,}].*/\2/p' "$1/metrics.jsonl"; }
same_run() { # RUN RUN STEP: the same bits
    cmp <(metrics "$1") <(metrics "$2") 2>&1
    local file
    for file in model.safetensors optimizer.safetensors; do cmp "$1/$3/$file" "$2/$3/$file" 2>&1; done
}
close_run() { # RUN RUN LIMIT: losses that differ by at most LIMIT, relative
    [ "$(losses "$1" | wc -l)" -eq "$(losses "$2" | wc -l)" ] ||
        echo "found $(losses "$1" | wc -l) losses, expected $(losses "$2" | wc -l)"
    paste <(losses "$1") <(losses "$2") | awk -v limit="$3" \
        '{ off = ($1 - $2) / $2; if (off < 0) off = -off; if (!(off <= limit)) print "loss " $1 ", expected " $2 }'
}

# ---- the model, by the functions of the trainer

# ROW...: number of ranks, and the arguments of test_processes
agree() {
    local row ranks arguments
    for row; do
        read -r ranks arguments <<<"$row"
        # shellcheck disable=SC2086
        launch "$ranks" "$checked" $arguments
        report "$(basename "$checked") $arguments on $ranks ranks, $TEST_OPTIMIZER" "$(says "^every layout agrees")"
        rm -rf alone_* first_* second_*
    done
}
export TEST_OPTIMIZER=adamw
checked=$program
agree "1 layouts" "2 layouts" "3 layouts" "4 layouts" "3 files 1"
agree "2 slices 2" "2 files 2" "3 slices 3" "3 files 3" "4 slices 2" "4 files 2" "4 slices 4" "4 files 4" \
    "8 slices 4" "8 files 4"
agree "3 late 1" "2 late 2" "4 late 2" "1 offload 1" "3 offload 1" "2 offload 2" "4 offload 2"
agree "2 bytes 1" "3 bytes 1" "4 bytes 2"
checked=${program}_bf16
[ ! -x "$checked" ] || agree "3 layouts" "3 files 1" "4 slices 2" "4 files 2" "4 offload 2"
TEST_OPTIMIZER=muon
[ ! -x "$checked" ] || agree "3 layouts" "4 slices 2" "4 files 2"
checked=$program
agree "2 layouts" "3 layouts" "5 layouts" "3 files 1" "2 slices 2" "3 slices 3" "4 slices 2" "3 files 3" "4 files 2" \
    "8 slices 4" "3 late 1" "4 late 2" "1 offload 1" "3 offload 1" "4 offload 2" "4 bytes 2"

# ---- the trainer: 12 sequences an update

model=(-i text -e l3h3c24 -t 16 -l 3e-3 -c 0.1 -s 8 -g 4 --top-k 3)
together=("${model[@]}" -j "$folder/held" -d 192 -v 10 -m -1)

mixed=$trainer trainer=$fp32
samples() { sed -n '/^---$/,/^---$/p' "$1"; }
report "24 steps and samples on one rank" "$(run 0 1 "${together[@]}" -b 1 -x 24 -n 24 -o one --temperature 0)"
cp "$out" one_text
for layout in "2 -z 0" "3 -z 1" "2 -z 2" "4 -z 3" "3 -z 3 -r 4 -rk 2" "2 -tp 2" "3 -tp 3 -r 0 -ra 0" \
    "4 -tp 2 -r 2" "4 -tp 2 -z 1 -r 3" "4 -tp 2 -z 3 -r 4 -rk 2" "4 -tp 4"; do
    read -r ranks flags <<<"$layout"
    # shellcheck disable=SC2086
    report "24 steps and samples with $flags on $ranks ranks agree with one rank" "$(
        run 0 "$ranks" "${together[@]}" -b 1 -x 24 -n 24 -o many --temperature 0 $flags
        close_run many one 1e-5
        cmp <(samples "$out") <(samples one_text) 2>&1
        [ "$(grep -c 'sample at' "$out")" = 3 ] || echo "expected 3 samples, all of rank 0"
        rm -r many
    )"
done
report "24 steps of Muon with -tp 2 -z 3 -r 4 -rk 2 on 4 ranks agree with one rank" "$(
    run 0 1 "${together[@]}" -b 1 -x 24 -n 24 --optimizer muon -o muon_one
    run 0 4 "${together[@]}" -b 1 -x 24 -n 24 --optimizer muon -o muon_many -tp 2 -z 3 -r 4 -rk 2
    close_run muon_many muon_one 1e-5
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
report "updates of Muon have the same bits at every -z" "$(
    same_bits "-b 3 -om 8bit --optimizer muon -z "{0,1,2,3}
)"
report "updates of Muon with -tp have the same bits at every -z, -r and -ra" "$(
    same_bits "-b 6 -tp 2 -om bf16 --optimizer muon "{"-z 0 -r 0 -ra 0","-z 1 -r 1","-z 2 -r 2 -ra 0","-z 3 -r 4 -rk 2"}
)"
report "updates with -tp have the same bits at every -z, -r and -ra" "$(
    same_bits "-b 6 -tp 2 -om 8bit "{"-z 0 -r 0 -ra 0","-z 0 -r 0","-z 1 -r 1 -ra 0","-z 2 -r 2","-z 3 -r 3"} \
        "-b 6 -tp 2 -om 8bit -z 3 -r 4 -rk 2"
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
    close_run third again 1e-4
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
for row in "whole 1 -z 0" "whole 2 -z 1" "whole 3 -z 2" "alone 4 -z 3 -b 3" \
    "tp 1 -tp 1 -z 0" "tp 4 -tp 1 -z 1" "tp 4 -tp 4 -z 0"; do
    read -r name ranks flags <<<"$row"
    # shellcheck disable=SC2086
    report "the run '$name' resumes with $flags on $ranks ranks" "$(
        cp -r "$name" again && rm -r again/step_00000010
        run 0 "$ranks" -o again -y 1 -x 10 -b 1 $flags
        close_run again "$name" 1e-5
        rm -r again
    )"
done
report "another -tp rounds 8-bit moments again" "$(
    rm -r second_tp_8bit/step_00000010
    run 0 1 -o second_tp_8bit -y 1 -x 10 -tp 1 -b 1
    close_run second_tp_8bit tp_8bit 1e-4
)"

# ---- bf16 weights. test_processes train does not read the flags of a resumed run, so each command gives all flags

if [ -x "${program}_bf16" ]; then
    printf '#!/bin/sh\nexec "%s" train "$@"\n' "${program}_bf16" >bf16 && chmod +x bf16
    trainer=$folder/bf16
    for layout in "3 0" "3 3" "4 1 -tp 2" "2 0 -tp 2 -w none -om 8bit"; do
        read -r ranks stage more <<<"$layout"
        # shellcheck disable=SC2086
        report "bf16 weights, fp32 masters, -z $stage${more:+ $more} on $ranks ranks: equal replicas" "$(
            launch "$ranks" "${program}_bf16" replicas -1 "${together[@]}" -b 1 -z "$stage" -x 24 -w fp32 $more ||
                echo "exit status $?"
            says '^the replicas of step 24 agree'
        )"
    done
    for states in "split 8bit" "fp32 bf16"; do
        read -r master moments <<<"$states"
        report "weights and masters of -w $master -om $moments load unchanged in another layout" "$(
            name=masters_$master
            flags=(-i text -e l3h3c24 -t 16 -d 192 -b 1 -v 0 -n 5 -w "$master" -om "$moments")
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
        close_run least least_one 2e-2
    )"
fi

# ---- the plan

for flags in "-z 3" "-z 2 -tp 2 -r 2"; do
    # shellcheck disable=SC2086
    report "a run's banner has the memory and sent bytes of --plan, $flags" "$(
        run 0 4 "${together[@]}" -b 3 $flags -x 1 -o "planned${flags//[^0-9]/}"
        memory=$(sed -nE 's/^memory +([0-9.]+) MiB.*/\1/p' "$out")
        sent=$(sed -nE 's/.*each sends ([0-9.]+) MiB.*/\1/p' "$out")
        run 0 1 "${together[@]}" -b 3 $flags --plan=json -pn 4
        awk -v memory="$memory" -v sent="$sent" '
            /"total":/ { ranks++; found += sprintf("%.1f", $2 / 1048576) == memory }
            /"sent":/ { found += sprintf("%.2f", $2 / 1048576) == sent }
            END { if (ranks != 4 || found != 8) print found " of 8 numbers are the banner: " memory " " sent }' "$out"
    )"
done

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
    says "^ +--output +runs/text-1 "
    run 0 2 -o runs/text-1 -y 1 -x 3
    says "^resumed +at step 2$"
    [ -e runs/text-1/step_00000003/optimizer.safetensors ] || find runs
)"

# ---- errors

refused() { report "refused: $1" "$(
    run 2 "${@:3}"
    says "$2"
    sentences 1
    [ ! -e refused ] || echo "something was written"
)"; }
refused "-d that the ranks do not divide" \
    '-d 192 is not a multiple of 128 = -b 2 x -t 16 x 4 data-parallel ranks; give 128' \
    4 "${model[@]}" -b 2 -d 192 -o refused
refused "another number of ranks than -pn" '-pn 3, but 2 started' 2 "${model[@]}" -b 1 -pn 3 -o refused
refused "-tp that does not divide the ranks" '-tp 2 must divide the number of ranks, found 3' \
    3 "${model[@]}" -b 1 -tp 2 -o refused
refused "Muon with -z 3 and -tp that does not divide the ranks" '-tp 2 must divide the number of ranks, found 3' \
    3 "${model[@]}" -b 1 -tp 2 -z 3 --optimizer muon -o refused
refused "too few rows for -tp" '-tp 4 divides the 9 rows of a micro-batch into chunks of 3, which leaves none for' \
    4 -i text -e l3h3c24 -t 9 -b 1 -tp 4 -o refused
refused "--generate on several ranks" '--generate runs on one rank, found 2' \
    2 --generate 5 -e one/step_00000024

# different_ranks NAME SENTENCE FOLDER FLAGS...: two ranks; rank 1 runs in FOLDER with FLAGS, rank 0 with the flags of
# `together` and `both`
different_ranks() {
    local status=0
    timeout -k 5 300 "${mpi[@]}" -np 1 "$trainer" "${together[@]}" -b 1 -o bad "${both[@]}" : \
        -np 1 -wd "$folder/$3" "$trainer" "${@:4}" >"$out" 2>&1 </dev/null || status=$?
    report "$1" "$(
        [ "$status" -eq 2 ] || echo "exit status $status, expected 2"
        says "train_gpt2: rank [01]: $2"
        sentences 1
        [ ! -e bad ] && [ ! -e "$3/bad" ] || echo "something was written"
    )"
}
mkdir -p other short
both=()
head -c 20000 text >other/text
head -c 10 text >short/text
different_ranks "other flags on rank 1" 'rank 1 has a different warmup from rank 0' . "${together[@]}" -b 1 -o bad -u 5
different_ranks "another layout on rank 1" 'rank 1 has a different zero-stage from rank 0' \
    . "${together[@]}" -b 1 -o bad -z 1
different_ranks "other data on rank 1" 'rank 1 has a different training set from rank 0' \
    other "${together[@]}" -b 1 -o bad
cp text other
head -c 2000 text >val_text
tail -c 2000 text >other/val_text
both=(-j val_text)
different_ranks "other validation data on rank 1" 'rank 1 has a different validation set from rank 0' \
    other "${together[@]}" -b 1 -o bad -j val_text
mkdir -p model other/model
for seed in 1 2; do
    "$trainer" "${together[@]}" -b 1 -x 1 -n 1 --seed $seed -o "seed_$seed" >"$out" 2>&1
done
cp seed_1/step_00000001/* model
cp seed_2/step_00000001/* other/model
both=(-e model)
different_ranks "other weights on rank 1" 'rank 1 has a different model from rank 0' \
    other "${together[@]}" -b 1 -o bad -e model
both=()
different_ranks "data too short on rank 1 only" '-i: a sequence of length 16' short "${together[@]}" -b 1 -o bad

# a token shard of 2000 tokens; rank 1's file lacks the last token
{
    words 55432 308 1 0 2000 0
    head -c 5012 /dev/zero
} >whole.bin
head -c 5022 whole.bin >short/whole.bin
shard=(-i whole.bin -e l1h1c8 -t 16 -b 1 -x 1 -o bad)
timeout -k 5 300 "${mpi[@]}" -np 1 "$trainer" "${shard[@]}" : -np 1 -wd "$folder/short" "$trainer" "${shard[@]}" \
    >"$out" 2>&1 </dev/null
status=$?
report "refused: a token shard cut short on rank 1 only" "$(
    [ "$status" -eq 2 ] || echo "exit status $status, expected 2"
    says 'train_gpt2: rank 1: -i: whole.bin has 5022 bytes, but its header says 2000 tokens'
    sentences 1
    [ ! -e bad ] || echo "something was written"
)"

report "the comparison of replicas names -tp and -z where one rank's parameters change" "$(
    for layout in "-z 0" "-tp 3 -z 0" "-tp 3 -z 3"; do
        # shellcheck disable=SC2086
        ! launch 3 "$program" replicas 1 "${together[@]}" -b 1 -x 3 $layout || echo "$layout: exit status 0"
        says '^the replicas of step 1 agree'
        says "-tp [13] -z [03]: the ranks' parameters differ"
    done
)"

# process_of RANK PROCESS...: the process of a rank
process_of() {
    local id
    for id in "${@:2}"; do
        if grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$id/environ"; then echo "$id"; fi
    done
}
being_saved() { compgen -G "$1/step_*.tmp" >/dev/null; }
# stop_in_save PROCESS RUN: stops a rank while the run writes a checkpoint. The checkpoint cannot be finished without
# the rank.
stop_in_save() {
    while kill -0 "$1" 2>/dev/null; do
        being_saved "$2" || continue
        kill -s STOP "$1"
        sleep 0.5
        being_saved "$2" && return
        kill -s CONT "$1"
    done
    echo "the process ended before a checkpoint"
}

# two_checkpoints RUN: whether the run has two checkpoints. -nk 2 and 0 keep at least two from the second save on.
two_checkpoints() { [ "$(find "$1" -maxdepth 1 -name 'step_*[0-9]' 2>/dev/null | wc -l)" -ge 2 ]; }

# strike SIGNAL RANK STATUS KEEP [FLAGS]: starts a long run of 3 ranks with -nk KEEP in the folder struck, and sends the
# signal to RANK. KEEP 0: while the run writes a checkpoint; no checkpoint is deleted, because a deletion uses a
# step_*.tmp too. The run must end with STATUS within a minute, a tenth of the timeout of a silent rank, and leave no
# process. TEST_TIMEOUT: another timeout, which only test_processes knows.
strike() {
    local job status=0 ranks victim command=("$trainer")
    [ -z "${TEST_TIMEOUT:-}" ] || command=("$program" train)
    rm -rf struck
    timeout -k 5 300 "${mpi[@]}" -np 3 "${command[@]}" "${together[@]}" -b 1 -z 3 -x 1000000 -n 4 -nk "$4" -o struck \
        "${@:5}" >"$out" 2>&1 </dev/null &
    job=$!
    until two_checkpoints struck || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    ranks=$(pgrep -P "$(pgrep -P "$job")")  # children of mpirun, the child of timeout
    # shellcheck disable=SC2086
    victim=$(process_of "$2" $ranks)
    [ -n "$victim" ] || { echo "rank $2 is none of the processes '$ranks'" && kill "$job" && return; }
    if [ "$4" -eq 0 ]; then stop_in_save "$victim" struck; fi
    local began=$SECONDS
    kill -s "$1" "$victim"
    wait "$job" || status=$?
    [ $((SECONDS - began)) -le 60 ] || echo "the run took $((SECONDS - began)) s to end, expected at most 60"
    [ "$status" -eq "$3" ] || echo "exit status $status, expected $3"
    # shellcheck disable=SC2086
    none_left $ranks
}
# resumes: the last checkpoint of struck resumes in another layout
resumes() {
    local last
    last=$(find struck -name 'step_*' ! -name '*.tmp' | sort | tail -n 1)
    last=$((10#0${last##*_}))
    [ "$last" -gt 0 ] || echo "there is no checkpoint"
    run 0 2 -o struck -y 1 -z 2 -b 1 -tp 1 -x $((last + 2)) -v 0 -s 0
    [ -d "struck/$(printf 'step_%08d' $((last + 2)))" ] || echo "no checkpoint of step $((last + 2))"
    ! being_saved struck || echo "an unfinished checkpoint is left"
}
killed() { says 'exited on signal 9' && sentences 0; }
no_answer() { says "train_gpt2: rank [^$1]: a rank has not answered for 5 s" && sentences 1; }
report "rank 1 is killed" "$(strike KILL 1 137 2 && killed)"
report "the run resumes after rank 1 is killed" "$(resumes)"
report "rank 0 of -tp 3 is killed" "$(strike KILL 0 137 2 -tp 3 && killed)"
report "the run resumes after rank 0 of -tp 3 is killed" "$(resumes)"
for rank in 0 2; do
    report "rank $rank is killed while a checkpoint is written" "$(
        strike KILL "$rank" 137 0 && killed
        being_saved struck || echo "no checkpoint was being written"
    )"
    report "the run resumes after rank $rank is killed in a save" "$(resumes)"
done
report "rank 0 hangs" "$(TEST_TIMEOUT=5 strike STOP 0 1 2 && no_answer 0)"
report "the run resumes after rank 0 hangs" "$(resumes)"
report "rank 1 of -tp 3 hangs" "$(TEST_TIMEOUT=5 strike STOP 1 1 2 -tp 3 && no_answer 1)"
report "the run resumes after rank 1 of -tp 3 hangs" "$(resumes)"
for signal in USR1 USR2; do
    report "SIG$signal, which mpirun passes on, stops all ranks with a checkpoint" "$(
        timeout -k 5 300 "${mpi[@]}" -np 2 "$trainer" "${together[@]}" -b 1 -x 1000000 -n 1000000 -o by_$signal \
            >"$out" 2>&1 </dev/null &
        job=$!
        until [ -s by_$signal/metrics.jsonl ] || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
        kill -s $signal "$(pgrep -P "$job")" # mpirun, the child of timeout
        wait "$job" || echo "exit status $?, expected 0"
        says 'told to end by a signal'
        compgen -G "by_$signal/step_*" >/dev/null || echo "no checkpoint"
    )"
done
report "a signal to one rank stops all ranks with a checkpoint" "$(
    strike TERM 1 0 2
    says 'told to end by SIGTERM'
    resumes
)"

# ---- the run directory, into which all ranks write

# second_by STATUS COMMAND FLAGS...: 3 ranks; a shell runs COMMAND and then rank 1
second_by() {
    local status=0
    timeout -k 5 300 "${mpi[@]}" -np 1 "$trainer" "${@:3}" : -np 1 bash -c "$2"' && exec "$@"' - "$trainer" "${@:3}" : \
        -np 1 "$trainer" "${@:3}" >"$out" 2>&1 </dev/null || status=$?
    [ "$status" -eq "$1" ] || echo "exit status $status, expected $1"
    sentences 1
}
saving=("${together[@]}" -b 1 -z 3 -n 2)
mkdir elsewhere
cp text elsewhere
report "refused: a folder that one rank does not see" "$(
    second_by 2 'cd elsewhere' "${saving[@]}" -x 4 -o apart
    says 'train_gpt2: rank 1: -o apart is not a folder .*: No such file or directory; give one folder that all ranks'
    find apart elsewhere/apart -mindepth 1 2>/dev/null
)"
report "the folder is accepted if all ranks see it" "$(run 0 3 "${saving[@]}" -x 4 -o apart)"
report "refused: another folder with the same name on one rank" "$(
    cp -r apart elsewhere
    second_by 2 'cd elsewhere' "${saving[@]}" -x 6 -o apart -y 1
    says 'train_gpt2: rank 1: -o apart is not a folder .*: No such file or directory'
    find . -name 'mark_*'
)"
report "refused: a resumed run's folder that one rank lacks" "$(
    rm -r elsewhere/apart
    second_by 2 'cd elsewhere' "${saving[@]}" -x 6 -o apart -y 1
    [ ! -e elsewhere/apart ] || echo "something was written"
)"
report "a checkpoint that one rank cannot write" "$(
    second_by 1 'ulimit -f 30' "${saving[@]}" -x 2 -o narrow
    error="train_gpt2: rank 1: could not save checkpoint 'narrow/step_00000002': File too large"
    says "$error; .*: make room, or make -o .*, then resume"
    find narrow -name 'step_*'
)"

# ---- emulated kernels: collectives staged through the host

if [ -x "$emulated" ]; then
    export TRAIN_GPT2_AUTOTUNE_CACHE=$folder/autotune  # so that all runs use the same algorithms
    tiny=(-i text -e l2h1c8 -t 8 -d 32 -v 0 -s 0 -x 2 -n 2)
    report "emulated kernels on 2 ranks" "$(
        trainer=$emulated
        run 0 1 "${tiny[@]}" -b 4 -o emulated_one
        run 0 2 "${tiny[@]}" -b 2 -o first
        for stage in 0 2 3; do
            run 0 2 "${tiny[@]}" -b 2 -z "$stage" -o "emulated_$stage"
            close_run "emulated_$stage" emulated_one 1e-5
            same_run "emulated_$stage" emulated_0 step_00000002
        done
        run 0 2 "${tiny[@]}" -b 4 -tp 2 -o emulated_slices # one head: rank 1 has only padding
        close_run emulated_slices emulated_one 1e-5
        # Muon with a matrix of each kind: rank 1 owns none, but has to autotune the same matmuls
        muon=("${tiny[@]}" -e l1h1c8 -l 3e-2 --optimizer muon)
        run 0 1 "${muon[@]}" -b 4 -o muon_one
        for flags in "-b 2 -z 0" "-b 2 -z 2" "-b 4 -tp 2"; do
            # shellcheck disable=SC2086
            run 0 2 "${muon[@]}" $flags -o "muon_two${flags// /}"
            close_run "muon_two${flags// /}" muon_one 1e-5
        done
    )"
    report "emulated kernels on 7 ranks, of which the last has no parameters to update" "$(
        trainer=$emulated
        for offload in 0 1; do
            run 0 7 "${tiny[@]}" -e l1h1c4 -b 1 -d 56 -z 1 --offload $offload -o "rest_$offload"
        done
        same_run rest_0 rest_1 step_00000002
    )"
    # each emulated GPU has 8 GiB, of which a plan may take 7680 MiB, and all have one PCI bus id
    sharing=("$emulated" -i text -e l90h16c1024 -b 1 -t 16 -s 0 -d 32)
    report "ranks that share a GPU divide its memory" "$(
        launch 1 -x SIMT_UUID=a "${sharing[@]}" : -np 1 -x SIMT_UUID=a "${sharing[@]}"
        says '^train_gpt2: ranks 0 and 1 share a GPU, so all ranks communicate through MPI'
        says 'MiB on each rank, and 3840.0 are free'
    )"
    report "MIG instances of one GPU have memory of their own, and no NCCL" "$(
        launch 1 -x SIMT_UUID=a "${sharing[@]}" : -np 1 -x SIMT_UUID=b "${sharing[@]}"
        says '^train_gpt2: ranks 0 and 1 have two MIG instances of one GPU, so all ranks communicate through MPI'
        says 'MiB on each rank, and 7680.0 are free'
    )"
fi

end_tests
