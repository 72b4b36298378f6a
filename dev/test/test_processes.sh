#!/usr/bin/env bash
# Training by several processes through mpirun, whatever each of them keeps (-z, -tp): against one process, stopped and
# gone on with in another layout, and one of whose processes is killed, hangs, or is given bad data.
#   PROGRAM=build/test/test_processes TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_processes.sh
# Skipped where there is no mpirun, or no MPI was built in.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

program=$(realpath "${PROGRAM:-build/test/test_processes}")
trainer=$(realpath "${TRAINER:-./train_gpt2}")
emulated=$(realpath "${EMULATED:-build/emulated/train_gpt2}")
# what layouts with other sums are compared with: bf16 would round them apart
fp32=$(realpath "${TRAINER_FP32:-$trainer}")
use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
folder=$(mktemp -d)
out=$folder/out
trap 'rm -rf "$folder"' EXIT
seq 100000 >"$folder/text" # the same on any machine and at any time
cd "$folder" || exit

mpi=(mpirun --oversubscribe --bind-to none)
launch() { timeout -k 5 300 "${mpi[@]}" -np "$1" "${@:2}" >"$out" 2>&1 </dev/null; }

# checks speak where something is wrong and are silent otherwise
run() { # STATUS RANKS ARGUMENTS...: the trainer, which is to end with this status; 1 rank without mpirun
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
metrics() { sed -E 's/,"ms":.*/}/' "$1/metrics.jsonl"; }
# of training, and of validations
losses() { sed -nE 's/.*"(val_)?loss":([^,}]*)[,}].*/\2/p' "$1/metrics.jsonl"; }
same_run() { # RUN RUN STEP: every bit
    cmp <(metrics "$1") <(metrics "$2") 2>&1
    local file
    for file in model.safetensors optimizer.safetensors; do cmp "$1/$3/$file" "$2/$3/$file" 2>&1; done
}
close_run() { # RUN RUN LIMIT: losses, relative
    [ "$(losses "$1" | wc -l)" -eq "$(losses "$2" | wc -l)" ] || echo "another number of losses"
    paste <(losses "$1") <(losses "$2") | awk -v limit="$3" \
        '{ off = ($1 - $2) / $2; if (off < 0) off = -off; if (!(off <= limit)) print "loss " $1 ", expected " $2 }'
}

# ---- the model, by its functions

for ranks in 1 2 3 4; do
    launch "$ranks" "$program" layouts
    report "gradients, bits and bytes of every -z on $ranks" "$(says "^every layout agrees")"
done
launch 3 "$program" files 1
report "checkpoints of every -z on 3" "$(says "^every layout agrees")"
rm -r alone_* first_* second_*
if [ -x "${program}_bf16" ]; then
    launch 3 "${program}_bf16" layouts
    report "and in bf16 on 3" "$(says "^every layout agrees")"
    launch 3 "${program}_bf16" files 1
    report "and checkpoints" "$(says "^every layout agrees")"
    rm -r alone_* first_* second_*
fi

for layout in "2 2" "3 3" "4 2" "4 4" "8 4"; do
    read -r ranks slices <<<"$layout"
    launch "$ranks" "$program" slices "$slices"
    report "gradients, bits and bytes of -tp $slices on $ranks" "$(says "^every layout agrees")"
    launch "$ranks" "$program" files "$slices"
    report "checkpoints of -tp $slices on $ranks" "$(says "^every layout agrees")"
    rm -r alone_* first_* second_*
done
if [ -x "${program}_bf16" ]; then
    launch 4 "${program}_bf16" slices 2
    report "and in bf16 of -tp 2 on 4" "$(says "^every layout agrees")"
    launch 4 "${program}_bf16" files 2
    report "and checkpoints" "$(says "^every layout agrees")"
    rm -r alone_* first_* second_*
fi
for layout in "3 1" "2 2" "4 2"; do
    read -r ranks slices <<<"$layout"
    launch "$ranks" "$program" late "$slices"
    report "calls that are late change no bit: $ranks, -tp $slices" "$(says "^every layout agrees")"
done
for layout in "2 1" "3 1" "4 2"; do
    read -r ranks slices <<<"$layout"
    launch "$ranks" "$program" bytes "$slices"
    report "bytes of $ranks, -tp $slices" "$(says "^every layout agrees")"
done

# ---- the trainer: 12 sequences an update

model=(-i text -e l3h3c24 -t 16 -l 3e-3 -c 0.1 -s 8 -g 4 --top-k 3)
# at 1e-8 AdamW makes whole steps of gradients that are rounding alone, as those of the keys' bias, and runs drift apart
together=("${model[@]}" -d 192 -v 10 -m 7 --epsilon 1e-5)

mixed=$trainer trainer=$fp32
report "one process, 50 steps" "$(run 0 1 "${together[@]}" -b 1 -x 50 -n 50 -o one)"
for layout in "2 0" "3 1" "2 2" "4 3" "3 3 -r 4 -rk 2"; do
    read -r ranks stage more <<<"$layout"
    # shellcheck disable=SC2086
    report "50 steps, -z $stage on $ranks${more:+ $more}, are those of one process" "$(
        run 0 "$ranks" "${together[@]}" -b 1 -z "$stage" -x 50 -n 50 -o "many_$ranks$stage" $more
        close_run "many_$ranks$stage" one 1e-5
    )"
done

report "an update of one micro-batch has the same bits at every -z" "$(
    for stage in 0 1 2 3; do
        run 0 4 "${together[@]}" -b 3 -z "$stage" -x 6 -n 6 -om 8bit -o "bits_$stage"
        same_run "bits_$stage" bits_0 step_00000006
    done
)"
report "the samples of several processes are printed once" "$([ "$(grep -c 'sample at' "$out")" = 1 ] || echo no)"

# uint16, little-endian
words() {
    local word bytes=
    for word; do
        printf -v word '%04x' "$word"
        bytes+="\\x${word:2:2}\\x${word:0:2}"
    done
    printf '%b' "$bytes"
}
report "HellaSwag's examples are dealt to the processes" "$(
    mkdir -p dev/data/hellaswag
    {
        words 55434 308 1 0 11 0 36 0 # magic number, version, examples, bytes of the longest
        head -c 1008 /dev/zero
        for i in 0 1 2 3 4 5 6 7 8 9 10; do # bytes, place, label; a context of 3 and endings of 1, 2, 1, 1
            words 65535 36 "$i" $((i % 4)) 4 3 $((i * 5 + 97)) 110 116 1 32 2 105 $((i + 100)) 1 95 1 $((115 - i))
        done
    } >dev/data/hellaswag/hellaswag_val.bin
    for ranks in 1 2 4; do
        run 0 "$ranks" "${model[@]}" -b 4 -d 256 -v 5 -m 5 -x 10 -z 3 -h 1 -o "hella_$ranks"
        found=$(grep -c hellaswag "hella_$ranks/metrics.jsonl")
        [ "$found" -eq 2 ] || echo "$found scores, expected 2"
        diff <(grep hellaswag hella_1/metrics.jsonl) <(grep hellaswag "hella_$ranks/metrics.jsonl")
    done
)"

# ---- checkpoints know no layout

report "a run on 4 at -z 3, whole and in two pieces" "$(
    run 0 4 "${together[@]}" -b 1 -z 3 -x 10 -n 5 -om bf16 -o whole
    run 0 4 "${together[@]}" -b 1 -z 3 -x 10 -n 5 -om bf16 -o split --time-limit 0
    rm -r split/step_00000010
    run 0 4 -b 1 -o split -y 1 -x 10
    same_run split whole step_00000010
)"
for layout in "1 0" "2 1" "3 2"; do
    read -r ranks stage <<<"$layout"
    report "goes on with on $ranks at -z $stage" "$(
        cp -r whole "again_$ranks" && rm -r "again_$ranks/step_00000010"
        run 0 "$ranks" -o "again_$ranks" -y 1 -x 10 -z "$stage" -b 1
        close_run "again_$ranks" whole 1e-5
    )"
done
report "and one process's is gone on with on 4" "$(
    run 0 1 "${together[@]}" -b 3 -x 10 -n 5 -o alone
    cp -r alone four && rm -r four/step_00000010
    run 0 4 -o four -y 1 -z 3
    close_run four alone 1e-5
)"

# ---- bf16 weights. What this trainer goes on with is to be said to it again

if [ -x "${program}_bf16" ]; then
    printf '#!/bin/sh\nexec "%s" train "$@"\n' "${program}_bf16" >bf16 && chmod +x bf16
    trainer=$folder/bf16
    for layout in "3 0" "3 3" "4 1 -tp 2"; do
        read -r ranks stage more <<<"$layout"
        # shellcheck disable=SC2086
        report "50 steps of bf16 weights, fp32 masters, -z $stage on $ranks${more:+ $more}: replicas are alike" "$(
            run 0 "$ranks" "${together[@]}" -b 1 -z "$stage" -x 50 -w fp32 --check-replicas 1 $more
        )"
    done
    for states in "split 8bit" "fp32 bf16"; do
        read -r master moments <<<"$states"
        report "weights and masters of -w $master -om $moments are the same in another layout" "$(
            name=kept_$master
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

# ---- tensor parallelism, by the trainer

trainer=$fp32
report "one process, 50 steps and what it says" "$(
    run 0 1 "${together[@]}" -b 1 -x 50 -n 50 -o whole_model --temperature 0
)"
cp "$out" whole_text
samples() { sed -n '/^---$/,/^---$/p' "$1"; }
for layout in "2 2 0" "3 3 0 -r 0 -ra 0" "4 2 0 -r 2" "4 2 1 -r 3" "4 2 3 -r 4 -rk 2" "4 4 0"; do
    read -r ranks slices stage more <<<"$layout"
    name=slices_$ranks$slices$stage
    # shellcheck disable=SC2086
    report "50 steps, -tp $slices -z $stage on $ranks${more:+ $more}, are those of one process" "$(
        run 0 "$ranks" "${together[@]}" -b 1 -tp "$slices" -z "$stage" -x 50 -n 50 -o "$name" --temperature 0 $more
        close_run "$name" whole_model 1e-5
        cmp <(samples "$out") <(samples whole_text) 2>&1
    )"
done
report "an update has the same bits at every -z, -r and -ra" "$(
    for way in "-z 0 -r 0 -ra 0" "-z 0 -r 0" "-z 1 -r 1 -ra 0" "-z 2 -r 2" "-z 3 -r 3" "-z 3 -r 4 -rk 2"; do
        # shellcheck disable=SC2086
        run 0 4 "${together[@]}" -b 6 -tp 2 -x 6 -n 6 -om 8bit $way -o "same_${way//[^0-9]/}"
        same_run "same_${way//[^0-9]/}" same_000 step_00000006
    done
)"
report "HellaSwag by slices" "$(
    run 0 1 "${model[@]}" -b 4 -d 256 -v 5 -m 5 -x 10 -h 1 -o hella_whole
    for layout in "2 2" "4 2"; do
        read -r ranks slices <<<"$layout"
        run 0 "$ranks" "${model[@]}" -b 4 -d 256 -v 5 -m 5 -x 10 -tp "$slices" -z 3 -h 1 -o "hella_$ranks$slices"
        diff <(grep hellaswag hella_whole/metrics.jsonl) <(grep hellaswag "hella_$ranks$slices/metrics.jsonl")
    done
)"
for moments in bf16 8bit; do
    report "a run of -tp 2 on 4 at -z 3, whole and in two pieces, -om $moments" "$(
        whole=(-b 1 -tp 2 -z 3 -x 10 -n 5 -om "$moments")
        run 0 4 "${together[@]}" "${whole[@]}" -o "pieces_$moments"
        cp -r "pieces_$moments" "second_$moments" && rm -r "second_$moments/step_00000010"
        run 0 4 -o "second_$moments" -y 1 -x 10
        same_run "second_$moments" "pieces_$moments" step_00000010
    )"
done
report "a run of -tp 2 on 4 at -z 3 in fp32" "$(
    run 0 4 "${together[@]}" -b 1 -tp 2 -z 3 -x 10 -n 5 -o pieces
)"
for layout in "1 1 0" "4 1 1" "4 4 0"; do
    read -r ranks slices stage <<<"$layout"
    report "goes on with on $ranks at -tp $slices -z $stage" "$(
        cp -r pieces "pieces_$ranks$slices" && rm -r "pieces_$ranks$slices/step_00000010"
        run 0 "$ranks" -o "pieces_$ranks$slices" -y 1 -x 10 -tp "$slices" -z "$stage" -b 1
        close_run "pieces_$ranks$slices" pieces 1e-5
    )"
done
report "8-bit moments of other slices are rounded again, and it is said" "$(
    rm -r second_8bit/step_00000010
    run 0 1 -o second_8bit -y 1 -x 10 -tp 1 -b 1
    says '^note .*moments were in 2 slices, are now in 1: they were rounded to 8 bits again'
    close_run second_8bit pieces_8bit 1e-4
)"
trainer=$mixed
if [ -x "${program}_bf16" ]; then
    least=("${together[@]}" -b 1 -x 50 -w none -om 8bit)
    report "50 steps of bf16 weights without masters, 8-bit moments, in slices" "$(
        launch 1 "${program}_bf16" train "${least[@]}" -o least_one || echo "exit status $?, expected 0"
        launch 2 "${program}_bf16" train "${least[@]}" -tp 2 --check-replicas 1 -o least ||
            echo "exit status $?, expected 0"
        close_run least least_one 2e-2
    )"
fi

# ---- the plan

report "the plan is what each process takes and sends" "$(
    run 0 4 "${together[@]}" -b 3 -z 3 -x 1 -o planned
    taken=$(sed -nE 's/^memory +([0-9.]+) MiB.*/\1/p' "$out")
    sent=$(sed -nE 's/.*each sends ([0-9.]+) MiB.*/\1/p' "$out")
    run 0 1 "${together[@]}" -b 3 -z 3 --plan=json -pn 4
    [ "$(grep -c '"rank":' "$out")" -eq 4 ] || echo "expected 4 ranks"
    awk -v taken="$taken" -v sent="$sent" '/"total":/ { found += sprintf("%.1f", $2 / 1048576) == taken }
        /"sent":/ { found += sprintf("%.2f", $2 / 1048576) == sent }
        END { if (found != 8) print found " of 8 numbers are what the run said: " taken " " sent }' "$out"
)"

report "and with -tp" "$(
    run 0 4 "${together[@]}" -b 3 -z 2 -tp 2 -r 2 -x 1 -o planned_slices
    taken=$(sed -nE 's/^memory +([0-9.]+) MiB.*/\1/p' "$out")
    sent=$(sed -nE 's/.*each sends ([0-9.]+) MiB.*/\1/p' "$out")
    run 0 1 "${together[@]}" -b 3 -z 2 -tp 2 -r 2 --plan=json -pn 4
    awk -v taken="$taken" -v sent="$sent" '/"total":/ { ranks++; found += sprintf("%.1f", $2 / 1048576) == taken }
        /"sent":/ { found += sprintf("%.2f", $2 / 1048576) == sent }
        END { if (ranks != 4 || found != 8) print found " of 8 numbers are what the run said: " taken " " sent }' "$out"
)"

# ---- trouble

refused() { report "refused: $1" "$(
    run 2 "${@:3}"
    says "$2"
    sentences 1
    [ ! -e refused ] || echo "something was written"
)"; }
refused "a batch that the processes do not divide" \
    '-d 192 is not a multiple of -b x -t x ranks = 2 x 16 x 4 = 128; the nearest below is 128' \
    4 "${model[@]}" -b 2 -d 192 -o refused
refused "another number of processes" '-pn 3, but 2 started' 2 "${model[@]}" -b 1 -pn 3 -o refused
refused "processes that -tp does not divide" '-tp 2 must divide the number of ranks, found 3 ranks' \
    3 "${model[@]}" -b 1 -tp 2 -o refused
refused "too few rows for -tp" '-tp 4 divides the 9 rows of a micro-batch into chunks of 3, which leaves none for' \
    4 -i text -e l3h3c24 -t 9 -b 1 -tp 4 -o refused
refused "text from several processes" '--generate runs on one rank, found 2 ranks' \
    2 --generate 5 -e one/step_00000050

# NAME SENTENCE FOLDER FLAGS...: two ranks, of which rank 1 runs in FOLDER with FLAGS; rank 0 has those that are in
# `both` beside its own
strangers() {
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
strangers "other flags on rank 1" 'rank 1 has a different warmup from rank 0' . "${together[@]}" -b 1 -o bad -u 5
strangers "another layout on rank 1" 'rank 1 has a different zero-stage from rank 0' . "${together[@]}" -b 1 -o bad -z 1
strangers "other data on rank 1" 'rank 1 has a different training data from rank 0' other "${together[@]}" -b 1 -o bad
cp text other
mkdir -p model other/model
for seed in 1 2; do
    "$trainer" "${together[@]}" -b 1 -x 1 -n 1 --seed $seed -o "seed_$seed" >"$out" 2>&1
done
cp seed_1/step_00000001/* model
cp seed_2/step_00000001/* other/model
both=(-e model)
strangers "other weights on rank 1" 'rank 1 has a different model from rank 0' other "${together[@]}" -b 1 -o bad -e model
both=()
strangers "data that are too short on rank 1 alone" '-i: a sequence of length 16' short "${together[@]}" -b 1 -o bad

# a shard of 2000 tokens, the last of which one process does not have
{
    words 55432 308 1 0 2000 0
    head -c 5012 /dev/zero
} >whole.bin
head -c 5022 whole.bin >short/whole.bin
shard=(-i whole.bin -e l1h1c8 -t 16 -b 1 -x 1 -o bad)
timeout -k 5 300 "${mpi[@]}" -np 1 "$trainer" "${shard[@]}" : -np 1 -wd "$folder/short" "$trainer" "${shard[@]}" \
    >"$out" 2>&1 </dev/null
status=$?
report "a shard that is cut short on rank 1 alone" "$(
    [ "$status" -eq 2 ] || echo "exit status $status, expected 2"
    says 'train_gpt2: rank 1: -i: whole.bin has 5022 bytes, but its header says 2000 tokens'
    sentences 1
    [ ! -e bad ] || echo "something was written"
)"

# NAME FLAGS...: rank 1 of 3 drifts after step 2
drifts() {
    local status=0
    launch 3 "$program" drift 1 "${together[@]}" -b 1 "${@:2}" || status=$?
    report "$1" "$(
        [ "$status" -eq 1 ] || echo "exit status $status, expected 1"
        says '^step 1 is sound'
        says 'train_gpt2: rank [0-2]: after step 2 the parameters of rank 1 differ from those of rank 0, which 2 of 3 ranks have'
        sentences 1
    )"
}
drifts "a replica that drifts is named"
for stage in 0 3; do drifts "and a slice whose whole tensors drift, -z $stage" -tp 3 -z "$stage"; done
report "replicas that do not are silent" "$(run 0 2 "${together[@]}" -b 1 -x 4 --check-replicas 2 -z 1)"

# RANK PROCESS...: the process of a rank
process_of() {
    local id
    for id in "${@:2}"; do
        if tr '\0' '\n' <"/proc/$id/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$id"; fi
    done
}
being_saved() { compgen -G "$1/step_*.tmp" >/dev/null; }
# PROCESS RUN: stops a rank while a checkpoint is being written, which is not finished without it
stop_in_save() {
    while kill -0 "$1" 2>/dev/null; do
        being_saved "$2" || continue
        kill -s STOP "$1"
        sleep 0.5
        being_saved "$2" && return
        kill -s CONT "$1"
    done
    echo "it ended"
}

# SIGNAL RANK STATUS KEEP [FLAGS]: starts a long run of 3 ranks with -nk KEEP, in struck, and sends one the signal. KEEP
# 0: while a checkpoint is being written; then none is deleted, since deleting makes a step_*.tmp too. It ends within a
# minute, half of --comm-timeout, and no process is left.
strike() {
    local job status=0 ranks victim
    rm -rf struck
    timeout -k 5 300 "${mpi[@]}" -np 3 "$trainer" "${together[@]}" -b 1 -z 3 -x 1000000 -n 4 -nk "$4" -o struck \
        --comm-timeout 120 "${@:5}" >"$out" 2>&1 </dev/null &
    job=$!
    until [ -d struck/step_00000008 ] || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    ranks=$(pgrep -P "$(pgrep -P "$job")")  # of mpirun, of timeout
    # shellcheck disable=SC2086
    victim=$(process_of "$2" $ranks)
    if [ "$4" -eq 0 ]; then stop_in_save "$victim" struck; fi
    local began=$SECONDS
    kill -s "$1" "$victim"
    wait "$job" || status=$?
    [ $((SECONDS - began)) -le 60 ] || echo "it took $((SECONDS - began)) s to end"
    [ "$status" -eq "$3" ] || echo "exit status $status, expected $3"
    # shellcheck disable=SC2086
    none_left $ranks
}
# the last checkpoint can be gone on with, in another layout
goes_on() {
    local last
    last=$(find struck -name 'step_*' ! -name '*.tmp' | sort | tail -n 1)
    last=$((10#0${last##*_}))
    [ "$last" -gt 0 ] || echo "there is no checkpoint"
    run 0 2 -o struck -y 1 -z 2 -b 1 -tp 1 -x $((last + 2)) -v 0 -s 0
    [ -d "struck/$(printf 'step_%08d' $((last + 2)))" ] || echo "no checkpoint of step $((last + 2))"
    ! being_saved struck || echo "an unfinished checkpoint is left"
}
killed() { says 'exited on signal 9' && sentences 0; }
silent() { says "train_gpt2: rank [^$1]: rank $1 has not answered for 5 s" && sentences 1; }
report "a rank is killed" "$(strike KILL 1 137 2 && killed)"
report "and the run goes on" "$(goes_on)"
report "the first of three slices is killed" "$(strike KILL 0 137 2 -tp 3 && killed)"
report "and the run goes on" "$(goes_on)"
for rank in 0 2; do
    report "rank $rank is killed while a checkpoint is written" "$(
        strike KILL "$rank" 137 0 && killed
        being_saved struck || echo "no checkpoint was being written"
    )"
    report "and the run goes on" "$(goes_on)"
done
report "the first rank hangs" "$(strike STOP 0 1 2 --comm-timeout 5 && silent 0)"
report "and the run goes on" "$(goes_on)"
report "a rank of three slices hangs" "$(strike STOP 1 1 2 -tp 3 --comm-timeout 5 && silent 1)"
report "and the run goes on" "$(goes_on)"
report "a signal that mpirun passes on ends all with a checkpoint" "$(
    timeout -k 5 300 "${mpi[@]}" -np 2 "$trainer" "${together[@]}" -b 1 -x 1000000 -n 1000000 -o told \
        >"$out" 2>&1 </dev/null &
    job=$!
    until [ -s told/metrics.jsonl ] || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    kill -USR1 "$(pgrep -P "$job")" # mpirun, of timeout
    wait "$job" || echo "exit status $?, expected 0"
    says 'told to end by a signal'
    find told -name 'step_*' | grep -q . || echo "no checkpoint"
)"
report "a signal to one rank ends all with a checkpoint" "$(
    strike TERM 1 0 2
    says 'told to end by SIGTERM'
    goes_on
)"

# ---- the run's folder, which all ranks write into

# STATUS COMMAND FLAGS...: 3 ranks, whose second one is started by this shell command
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
report "which it may take when all see it" "$(run 0 3 "${saving[@]}" -x 4 -o apart)"
report "refused: another folder of the same name" "$(
    cp -r apart elsewhere
    second_by 2 'cd elsewhere' "${saving[@]}" -x 6 -o apart -y 1
    says 'train_gpt2: rank 1: -o apart is not a folder .*: No such file or directory'
    find . -name 'mark_*'
)"
report "and one that is not there, of a run that goes on" "$(
    rm -r elsewhere/apart
    second_by 2 'cd elsewhere' "${saving[@]}" -x 6 -o apart -y 1
    [ ! -e elsewhere/apart ] || echo "something was written"
)"
report "a checkpoint that does not fit for one rank" "$(
    second_by 1 'ulimit -f 30' "${saving[@]}" -x 4 -o narrow
    says "train_gpt2: rank 1: could not save checkpoint 'narrow/step_00000002': File too large; .*: make room, then resume"
    find narrow -name 'step_*'
)"

# ---- the kernels, emulated: device memory through the host

if [ -x "$emulated" ]; then
    tiny=(-i text -e l2h1c8 -t 8 -d 32 -v 0 -s 0 -x 2 -n 2 -lc 64)
    report "emulated kernels on 2" "$(
        trainer=$emulated
        export TRAIN_GPT2_PICKS=$folder/picks  # which algorithm is fastest is found out once
        run 0 1 "${tiny[@]}" -b 4 -o emulated_one
        run 0 2 "${tiny[@]}" -b 2 -o first
        for stage in 0 2 3; do
            run 0 2 "${tiny[@]}" -b 2 -z "$stage" -o "emulated_$stage"
            close_run "emulated_$stage" emulated_one 1e-5
            same_run "emulated_$stage" emulated_0 step_00000002
        done
        run 0 2 "${tiny[@]}" -b 4 -tp 2 -o emulated_slices # one head: the second rank has none
        close_run emulated_slices emulated_one 1e-5
    )"
fi

end_tests
