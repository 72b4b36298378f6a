#!/usr/bin/env bash
# The command lines of llm.c's run scripts. As they stand, each is planned with 8 ranks. With a tiny shape, each trains
# on 8 ranks in llm.c's loop, until the DONE_ file of the last step ends the loop.
#   TRAINER=./train_gpt2 dev/test/test_llmc.sh [more]
#   more   the loops of the other scripts, whose flags differ little: `make test-all`
# The loops are skipped without mpirun, or in a build without MPI.
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}")
make_scratch
cc -O2 -shared -fPIC dev/test/patient_yield.c -o "$scratch/patient_yield.so" || exit
cc -O2 -shared -fPIC dev/test/kill_at_rename.c -o "$scratch/kill.so" || exit
mkdir "$scratch/work"
cd "$scratch/work" || exit
cp "$trainer" train_gpt2cu
trainer=./train_gpt2cu err=$out
export OMP_NUM_THREADS=1

# ---- what llm.c's users have: shards, HellaSwag

shard() { # FILE: 2731 tokens
    mkdir -p "$(dirname "$1")"
    {
        words 55432 308 1 0 2731 0 # 20240520, version 1
        head -c 1012 /dev/zero
        cat "$scratch/tokens"
    } >"$1"
}
mapfile -t ids < <(awk 'BEGIN { for (i = 0; i < 2731; i++) print (i * 7919 + 50256) % 50257 }')
words "${ids[@]}" >"$scratch/tokens"
for set in fineweb10B/fineweb fineweb100B/fineweb edu_fineweb100B/edu_fineweb; do
    for part in train_000001 train_000002 train_000003 val_000000; do shard "dev/data/${set}_$part.bin"; done
done
mkdir -p dev/data/hellaswag
hellaswag 2 >dev/data/hellaswag/hellaswag_val.bin

# ---- the command lines, with llm.c's arguments

names=(gpt2_124M gpt2_350M gpt2_774M gpt2_1558M gpt3_125M) loops=(gpt2_124M gpt3_125M)
[ "${1:-}" != more ] || loops=(gpt2_350M gpt2_774M gpt2_1558M)
declare -A flags done_step plan
fineweb='-i "dev/data/fineweb100B/fineweb_train_*.bin" -j "dev/data/fineweb100B/fineweb_val_*.bin"'
flags[gpt2_124M]='-i "dev/data/fineweb10B/fineweb_train_*.bin" -j "dev/data/fineweb10B/fineweb_val_*.bin"
    -o log_gpt2_124M -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700
    -n 5000 -y 1 -e "d12"'
# shellcheck disable=SC2016 # mpirun sets the rank
flags[gpt2_350M]="$fineweb "'-o log_gpt2_350M -v 250 -s 100000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1
    -l 0.0003 -q 0.0 -u 700 -n 2000 -x 60000 -y 1 -e "d24" -pn 8 -pr $OMPI_COMM_WORLD_RANK'
flags[gpt2_774M]="$fineweb "'-o log_gpt2_774M -v 250 -s 300000 -g 144 -h 1 -b 32 -t 1024 -d 524288 -r 0 -z 1 -c 0.1
    -l 0.00025 -q 0.0 -u 700 -n 4000 -x 286102 -y 1 -e "d36"'
flags[gpt2_1558M]='-i "dev/data/edu_fineweb100B/edu_fineweb_train_*.bin"
    -j "dev/data/edu_fineweb100B/edu_fineweb_val_*.bin" -o log_gpt2_1558M -v 250 -s 300000 -g 384 -h 1 -b 16 -t 1024
    -d 1048576 -r 0 -z 1 -c 0.1 -k "cosine" -l 0.0006 -q 0.1 -u 700 -n 2000 -x 32000 -ge 1 -y 1 -e "d48"'
flags[gpt3_125M]="$fineweb "'-o log_gpt3_125M -v 250 -s 20000 -g 144 -h 1 -b 32 -t 2048 -d 524288 -r 0 -z 1 -c 0.1
    -l 0.0006 -q 0.1 -u 700 -n 10000 -nk 5 -nm 50000 -ge 1 -sl 7.0 -sg 7.0 -y 1 -x 572204 -e "gpt3:c768"'
# layers, -b, -t and channels of a tensor that -r 0 saves
plan=([gpt2_124M]="12 x 64 x 1024 x 768" [gpt2_350M]="24 x 64 x 1024 x 1024" [gpt2_774M]="36 x 32 x 1024 x 1280"
    [gpt2_1558M]="48 x 16 x 1024 x 1600" [gpt3_125M]="12 x 32 x 2048 x 768")
done_step=([gpt2_124M]=18865 [gpt2_350M]=60000 [gpt2_774M]=286102 [gpt2_1558M]=32000 [gpt3_125M]=572204)

# a command line with a tiny shape: 8 updates, 5 of which need two micro-batches on each of 8 ranks
tiny_line() {
    sed -E 's/-e "[^"]*"/-e l1h1c16/; s/-t 1024/-t 16/; s/-t 2048/-t 32/; s/-b [0-9]+/-b 4/; s/-d 524288/-d 1024/
        s/-d 1048576/-d 2048/; s/-x [0-9]+/-x 8/; s/-v 250/-v 4/; s/-g [0-9]+/-g 5/; s/-u 700/-u 2/; s/-nk 5/-nk 1/
        s/-nm 50000/-nm 4/; s/-n 10000/-n 2/; s/-n [0-9]{4}/-n 4/' <<<"${flags[$1]}"
}
says() { matches "$out" "$1"; }
steps_of() { sed -nE "s/^s:([0-9]+) $2:.*/\1/p" "$1/main.log" | paste -sd ' '; }
for name in "${names[@]}"; do
    report "$name: the arguments as they stand, planned for 8 ranks" "$(
        export OMPI_COMM_WORLD_RANK=0
        eval "line=(${flags[$name]})"
        run 0 "${line[@]}" -pn 8 --plan
        says "^saved +ln1 +${plan[$name]} "      # -r 0 saves the layernorms,
        says "^saved +fch_gelu +${plan[$name]%x*}x" # and GELU
        says "^each of 8 ranks holds this"
        shards=$(sed -nE 's/^state +(params|m) +([0-9]+) .*/\2/p' "$out" | paste -sd ' ')
        equal "${shards#* }" "$((${shards% *} / 8))" # -z 1
        run 0 "${line[@]}" -pn 8 --plan=json
        case $name in gpt2_1558M | gpt3_125M) says '"fuse_gelu":.true' ;; *) says '"fuse_gelu":.false' ;; esac
        [ ! -e "log_$name" ] || echo "--plan wrote files"
        [[ ${flags[$name]} != *" -x "* || ${flags[$name]} == *" -x ${done_step[$name]} "* ]] ||
            echo "-x is not the step that the loop waits for"
    )"
done

report "the multi-node scripts' arguments: a folder for fs; tcp is refused" "$(
    eval "line=(${flags[gpt2_124M]} -d 2097152 -pn 16 -pr 0 -pg 8)"
    run 0 "${line[@]}" -pf . -pi "fs" --plan
    says "^each of 16 ranks holds this"
    run 2 "${line[@]}" -pi "tcp" --plan
    says "-pi takes one of mpi, fs; found 'tcp'"
    run 2 "${line[@]}" -ps 10.0.1.220 -pi "tcp" --plan
    says "flag -ps was removed; start the ranks with mpirun"
)"
report "every value that llm.c takes" "$(
    for words in "-ge 0" "-ge 2" "-w 0" "-w 1" "-f 0" "-z 2" "-z 3" "-r 1" "-r 2" "-a 1" "-d -1" "-x -1" "-m -1" \
        "-sl 0.0" "-k linear" "-k constant" "-k wsd" "-h 0" "-y 0" "-s 0" "-n 0 -nk 0 -nm 0" "-pi mpi" \
        "-e d6" "-e gpt2:d12"; do
        # shellcheck disable=SC2086
        run 0 $words --plan
    done
)"

report "gpt2_124M with -h 1 and without HellaSwag's file: the run goes on" "$(
    mv dev/data/hellaswag away
    eval "line=($(tiny_line gpt2_124M))"
    run 0 "${line[@]}" -o unscored
    says "^note +no HellaSwag score: fetch dev/data/hellaswag/hellaswag_val.jsonl with scripts/get_data.sh hellaswag"
    mv away dev/data/hellaswag
    equal "$(sed -nE 's/^s:([0-9]+) (tel|eval):.*/\1 \2/p' unscored/main.log | paste -sd,)" "0 tel,4 tel,8 tel"
    [ -f unscored/DONE_00000008 ] || echo "no DONE_ file ends the loop"
    run 0 "${line[@]}" -o unscored # the file is there now
    equal "$(sed -nE 's/^s:8 (tel|eval):.*/\1/p' unscored/main.log | paste -sd,)" "tel,eval"
)"

# ---- files of llm.c in the current folder

tiny=(-e l1h1c16 -b 4 -t 16 -d 64 -r 0 -s 0 -v 0)
# 256 bytes, then pairs of bytes; COUNT tokens in all
tokenizer() {
    awk -v count="$1" 'BEGIN {
        for (i = 0; i < 256; i++) printf "\\x01\\x%02x", i
        for (i = 0; i < count - 257; i++) printf "\\x02\\x%02x\\x%02x", i / 256, i % 256
        printf "\\x00"
    }' >"$scratch/escapes"
    words 55240 308 2 0 "$1" 0 $(($1 - 1)) 0 # 20240328, version 2, vocabulary, end-of-text
    head -c 1008 /dev/zero
    printf '%b' "$(cat "$scratch/escapes")"
}
report "gpt2_tokenizer.bin in the current folder is found if it has the model's vocabulary" "$(
    run 0 -i dev/data/fineweb10B/fineweb_val_000000.bin "${tiny[@]}" -x 1 -n 1 -o started
    generate=(--generate 4 -e started --prompt text)
    run 2 "${generate[@]}"
    says "needs a tokenizer"
    tokenizer 50256 >gpt2_tokenizer.bin
    run 2 "${generate[@]}"
    says "needs a tokenizer"
    tokenizer 50257 >gpt2_tokenizer.bin
    run 0 "${generate[@]}"
    says "^text"
    rm gpt2_tokenizer.bin
)"
report "a folder with llm.c's checkpoints or log is left as it is" "$(
    mkdir theirs logged marked
    : >marked/DONE_00005000
    echo "s:0 tel:10.9890" >theirs/main.log
    echo "s:0 tel:10.9890" >logged/main.log
    : >theirs/model_00005000.bin
    : >theirs/DONE_00005000
    for run in theirs logged marked; do
        run 2 -i "dev/data/fineweb10B/*_train_*.bin" "${tiny[@]}" -x 1 -o $run
        says "-o $run holds another run or a model, with [a-zA-Z0-9_.]+; give a new folder"
        run 2 -i "dev/data/fineweb10B/*_train_*.bin" "${tiny[@]}" -x 1 -y 1 -o $run
        says "-y 1: '$run' holds [a-zA-Z0-9_.]+, but no whole checkpoint"
    done
    equal "$(cat {theirs,logged}/* | sort -u)" "s:0 tel:10.9890"
    equal "$(echo theirs/* logged/* marked/*)" \
        "theirs/DONE_00005000 theirs/main.log theirs/model_00005000.bin logged/main.log marked/DONE_00005000"
)"
report "SIGTERM after the last checkpoint: the same command validates, then creates DONE_" "$(
    small=(-i "dev/data/fineweb10B/*_train_*.bin" -j "dev/data/fineweb10B/*_val_*.bin" -e l1h1c16 -b 4 -t 16 -d 64
        -s 0 -v 2 -n 2 -x 4 -h 1 -y 1)
    run 0 "${small[@]}" -o whole
    : >once
    LD_PRELOAD=$scratch/kill.so KILL_AFTER=ended/step_00000004.tmp KILL_ONCE=once KILL_SIGNAL=15 \
        run 0 "${small[@]}" -o ended
    equal "$(cd ended && echo DONE_* step_*)" "DONE_00000002 step_00000002 step_00000004"
    diff <(grep -vE 's:4 (tel|eval)' whole/main.log) ended/main.log
    run 0 "${small[@]}" -o ended
    says "^finished +all 4 steps are done"
    equal "$(echo ended/DONE_*)" "ended/DONE_00000002 ended/DONE_00000004"
    cmp whole/main.log ended/main.log 2>&1
    for log in main.log metrics.jsonl; do sed -i '$d' ended/$log; done # as if killed before HellaSwag's score
    rm ended/DONE_00000004
    run 0 "${small[@]}" -o ended
    [ -e ended/DONE_00000004 ] || echo "no DONE_ after HellaSwag's score"
    cmp whole/main.log ended/main.log 2>&1
    run 0 "${small[@]}" -o ended
    cmp whole/main.log ended/main.log 2>&1
)"
report "a larger -x after a kill before the last evaluation: DONE_ of that step comes at once" "$(
    small=(-i "dev/data/fineweb10B/*_train_*.bin" -j "dev/data/fineweb10B/*_val_*.bin" -e l1h1c16 -b 4 -t 16 -d 64
        -s 0 -v 3 -n 2 -y 1 -o larger)
    : >once
    LD_PRELOAD=$scratch/kill.so KILL_AFTER=larger/step_00000004.tmp KILL_ONCE=once KILL_SIGNAL=15 \
        run 0 "${small[@]}" -x 4
    equal "$(cd larger && echo DONE_*)" "DONE_00000002"
    run 0 "${small[@]}" -x 6 # step 4 has no evaluation now
    equal "$(steps_of larger tel)" "0 3 6"
    equal "$(cd larger && echo DONE_*)" "DONE_00000002 DONE_00000004 DONE_00000006"
)"

# ---- the loops

use_mpirun "$(./train_gpt2cu --version | grep 'MPI (')" 3
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export LD_PRELOAD=$scratch/patient_yield.so:$scratch/kill.so

# LINE DONE_FILE: llm.c's loop. Prints the number of starts; a loop that does not end stops after 4.
loop() {
    local starts=0
    while [ ! -f "$2" ] && [ $starts -lt 4 ]; do
        case $1 in
        *OMPI_COMM_WORLD_RANK*) mpirun -np 8 bash -c "./train_gpt2cu ${1//$'\n'/ }" ;;
        *) eval "mpirun -np 8 ./train_gpt2cu ${1//$'\n'/ }" ;;
        esac >>"$out" 2>&1 </dev/null
        starts=$((starts + 1))
    done
    echo $starts
}
# main.log as metrics.jsonl tells it: llm.c's formats, updates counted from 0
expected_log() {
    awk -F '[{}:,"]+' '{
        split("", value)
        for (i = 2; i < NF; i += 2) value[$i] = $(i + 1)
        if ("loss" in value) {
            printf "s:%d trl:%.4f lr:%.6f ", value["step"] - 1, value["loss"], value["lr"]
            printf "norm:%.2f\n", value["grad_norm"]
        }
        if ("val_loss" in value) printf "s:%d tel:%.4f\n", value["step"], value["val_loss"]
        if ("hellaswag" in value) printf "s:%d eval:%.4f\n", value["step"], value["hellaswag"]
    }' "$1/metrics.jsonl"
}
whole_log() { # RUN: a line for each of 8 updates and for each evaluation, once
    expected_log "$1" | diff - "$1/main.log"
    equal "$(steps_of "$1" trl)" "0 1 2 3 4 5 6 7"
    equal "$(steps_of "$1" tel)" "0 4 8"
    equal "$(steps_of "$1" eval)" "4 8"
}

for name in "${loops[@]}"; do
    report "$name: a tiny model on 8 ranks, until its DONE_ file ends the loop" "$(
        : >"$out"
        equal "$(loop "$(tiny_line "$name")" "log_$name/DONE_00000008")" 1
        says "^ranks +8 through mpi, -z 1$"
        whole_log "log_$name"
        steps="00000004 00000008"
        [ "$name" != gpt3_125M ] || steps="00000004 00000006 00000008" # -nk 1 beside those of -nm 4
        equal "$(cd "log_$name" && echo DONE_* step_*)" "DONE_${steps// / DONE_} step_${steps// / step_}"
    )"
done
if [ "${1:-}" = more ]; then end_tests && exit || exit; fi
report "after a kill within the second save, the loop resumes and writes the same files" "$(
    : >"$out"
    : >once
    line=$(tiny_line gpt2_124M)
    starts=$(KILL_AT=killed/step_00000008.tmp KILL_ONCE=once \
        loop "${line/log_gpt2_124M/killed}" killed/DONE_00000008)
    equal "$starts" 2
    whole_log killed
    cmp killed/main.log log_gpt2_124M/main.log 2>&1
    for file in model optimizer; do cmp {killed,log_gpt2_124M}/step_00000008/$file.safetensors 2>&1; done
    equal "$(cd killed && echo DONE_* step_*)" "DONE_00000004 DONE_00000008 step_00000004 step_00000008"

    : >"$out" # a run whose steps are all done ends at once, and its DONE_ file comes back
    rm killed/DONE_00000008
    equal "$(loop "${line/log_gpt2_124M/killed}" killed/DONE_00000008)" 1
    says "^finished +all 8 steps are done"
    cmp killed/main.log log_gpt2_124M/main.log 2>&1
)"
end_tests
