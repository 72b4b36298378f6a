#!/usr/bin/env bash
# The trainer on the command line: its output, its files and its exit status.
# Prints a line for each case; the findings of a failed case follow, indented. The last line is in cmocka's words.
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1 # a second thread would only slow down models this small, above all on a busy machine

# ---- checks

# flag RUN NAME: a flag in the config.json of RUN
flag() { sed -nE "s/^[[:space:]]*\"$2\":[[:space:]]*([^,]*),?\$/\1/p" "$1/config.json"; }
step_losses() { sed -nE 's/.*"loss":([^,}]*),"grad.*/\1/p' "$1/metrics.jsonl"; }
close_steps() { # RUN RUN: equal losses but for the order of sums
    paste <(step_losses "$1") <(step_losses "$2") | awk '($1 - $2) ^ 2 > 1e-10 { print "loss " $1 ", expected " $2 }'
}
steps() { sed -nE 's/.*"step":([0-9]+),"loss".*/\1/p' "$1/metrics.jsonl" | paste -sd ' '; }
checkpoints() { find "$1" -mindepth 1 -type d -printf '%f\n' | sort | paste -sd ' '; }

# started FILE PATTERN: waits until a line of the file matches
started() {
    for ((i = 0; i < 30000; i++)); do
        ! grep -q -- "$2" "$1" 2>/dev/null || return
        sleep 0.02
    done
    echo "expected a line with '$2' in $1"
}

# ---- input files

seq 1 1500 >text
printf 'too short' >short
mapfile -t ids < <(awk 'BEGIN { for (i = 0; i < 240; i++) print (i * 7919 + 50256) % 50257 }')
write_shard good_0.bin 20240520 120 0 "${ids[@]:0:120}"
write_shard good_1.bin 20240520 120 0 "${ids[@]:120}"
write_shard promises.bin 20240520 121 0 "${ids[@]:0:120}"
past=("${ids[@]:0:120}")
write_shard ids.bin 20240520 120 0 "${past[@]/*/50257}"

model=(-e l1h2c16)
batch=(-b 2 -t 16 -d 64)
quiet=(-v 0 -s 0)
tiny=(-i text "${model[@]}" "${batch[@]}" "${quiet[@]}")
# flags with state that a resumed run restores: schedule, accumulation, moments, outlier detectors, order of the data
full_but_s=(-i text "${model[@]}" "${batch[@]}" -v 2 -m 3 -k cosine -l 1e-2 -q 0.1 -u 2 -c 0.1 -sl 3 -sg 3 -n 3)
full=("${full_but_s[@]}" -s 0)

# ---- a run and its resumed copy

report "a run of 6 steps" "$(
    run 0 "${full[@]}" -x 6 -o whole
    silent "$err"
    equal "$(checkpoints whole)" "step_00000003 step_00000006"
    equal "$(cd whole/step_00000003 && echo *)" "config.json generation_config.json manifest.json model.safetensors \
optimizer.safetensors state.json tokenizer.json tokenizer_config.json"
    equal "$(steps whole)" "1 2 3 4 5 6"
    holds "$(step_losses whole | tail -n 1) < $(step_losses whole | head -n 1)"
)"
report "the same command gives the same bits" "$(
    run 0 "${full[@]}" -x 6 -o again && cp "$out" again.out
    same whole/step_00000006/model.safetensors again/step_00000006/model.safetensors
    equal "$(metrics again)" "$(metrics whole)"
    for copy in threads_1 threads_2; do OMP_NUM_THREADS=2 run 0 "${full[@]}" -x 6 -o $copy; done
    same threads_1/step_00000006/model.safetensors threads_2/step_00000006/model.safetensors
    run 0 "${full[@]}" -x 6 -o other --seed 43
    differ whole/step_00000006/model.safetensors other/step_00000006/model.safetensors
)"
report "a resumed run equals an uninterrupted one" "$(
    cp -r again resumed && rm -r resumed/step_00000006
    run 0 "${full[@]}" -x 6 -o resumed -y 1
    matches "$out" "^resumed +at step 3"
    for file in model.safetensors optimizer.safetensors state.json config.json; do
        same whole/step_00000006/$file resumed/step_00000006/$file
    done
    equal "$(metrics resumed)" "$(metrics whole)"
)"
report "Muon has the momentum of --muon-momentum, and a resumed run equals an uninterrupted one" "$(
    run 0 "${full[@]}" -x 6 --optimizer muon -om 8bit -o muon_95
    run 0 "${full[@]}" -x 6 --optimizer muon -om 8bit --muon-momentum 0.5 -o muon
    differ muon/step_00000006/model.safetensors muon_95/step_00000006/model.safetensors
    cp -r muon muon_resumed && rm -r muon_resumed/step_00000006
    run 0 -o muon_resumed -y 1
    matches "$out" "^resumed +at step 3"
    for file in model.safetensors optimizer.safetensors; do
        same muon/step_00000006/$file muon_resumed/step_00000006/$file
    done
    rm -r muon muon_95 muon_resumed
)"
report "a resumed run needs no flags but -o, and does not list them" "$(
    matches again.out '^flags     train-data text  model l1h2c16  output again  micro-batch 2  '
    rm -r resumed/step_00000006
    run 0 -o resumed -y 1
    lacks "$out" '^flags '
    equal "$(grep -c '^note' "$out")" 0
    same whole/step_00000006/model.safetensors resumed/step_00000006/model.safetensors
)"
report "-y 1 changes no checkpoint of a finished run, and starts a run in an empty folder" "$(
    before=$(cksum resumed/*/*)
    run 0 "${full[@]}" -x 6 -o resumed -y 1
    equal "$(cksum resumed/*/*)" "$before"
    run 0 "${full[@]}" -x 6 -o nested/new -y 1
    same whole/step_00000006/model.safetensors nested/new/step_00000006/model.safetensors
)"
report "-y 1 without the run's config.json takes all flags, and prints a changed number of steps" "$(
    cp -r resumed changed && rm changed/config.json
    run 0 "${full[@]}" -x 7 -o changed -y 1
    silent "$err"
    says "$out" "the schedule was for 6 steps and is now for 7: the learning rate differs"
    run 0 "${full[@]}" -x 8 -o changed -y 1 -q 1 # at -q 1 every schedule is constant
    matches "$out" "^note      the schedule was for 7 steps and is now for 8$"
)"
report "-y 1 of a run that was killed before its first checkpoint begins it again, and keeps its log" "$(
    run 0 "${tiny[@]}" -x 9 -o early
    sed -i 's/"checkpoint-every":.*/"checkpoint-every":9,/' early/config.json # as if killed before the save
    cp early/metrics.jsonl was.jsonl
    run 0 "${tiny[@]}" -x 2 -o early -y 1
    says "$out" "resumed   nothing: early holds no checkpoint yet"
    equal "$(steps early)" "1 2"
    same early/metrics.jsonl.old was.jsonl
    rm -r early/step_* early/DONE_*
    run 0 "${tiny[@]}" -x 3 -o early -y 1 -n 0
    same early/metrics.jsonl.old was.jsonl
    equal "$(wc -l <early/metrics.jsonl.old2) $(wc -l <early/metrics.jsonl)" "2 3"
    mkdir empty && run 0 "${tiny[@]}" -x 1 -o empty -y 1
    equal "$(steps empty)" 1
    # weights beside the log of such a run are never begun over, and a refusal deletes nothing
    sed -i 's/"checkpoint-every":.*/"checkpoint-every":9,/' early/config.json
    mkdir early/best early/best.old.tmp && touch early/best/model.safetensors early/best.old.tmp/kept
    before=$(snapshot)
    run 2 "${tiny[@]}" -x 2 -o early -y 1
    says "$err" "-y 1: 'early' holds best"
    equal "$(diff <(echo "$before" | grep early/) <(snapshot | grep early/))" ""
)"
cc -O2 -shared -fPIC "$root/dev/test/fail_nth.c" -o "$scratch/fail_nth.so" || exit
for resume in 0 1; do
    report "of two runs that begin in one new folder with -y $resume, the slower one is refused" "$(
        rm -rf race
        # it stops itself once its checks are made, before it makes the folder
        LD_PRELOAD=$scratch/fail_nth.so FAIL_WITH=stop FAIL_AT=1 FAIL_CALLS=mkdir FAIL_IN='race$' \
            "$trainer" "${tiny[@]}" -x 3 -n 1 -o race -y $resume >"$out" 2>first.err &
        first=$!
        started "/proc/$first/status" '^State:.*T ('
        [ ! -e race ] || echo "the first run has its folder: nothing was tested"
        run 0 "${tiny[@]}" -x 3 -n 1 -o race -y $resume
        kill -s CONT $first
        wait $first
        equal $? 2
        says first.err "-o race holds another run or a model"
        equal "$(checkpoints race)" "step_00000001 step_00000002 step_00000003"
    )"
done
report "-y 1 without config.json takes the flags that are given, and none of a text without -e" "$(
    run 0 -i text -e l1h2c16 -b 2 -t 16 "${quiet[@]}" -x 2 -n 2 -o lost_flags
    rm lost_flags/config.json
    run 0 -i text -b 2 -t 16 "${quiet[@]}" -x 3 -o lost_flags -y 1
    matches "$out" '^resumed   at step 2 from .*/step_00000002$'
    says "$out" "note      config.json is missing: flags that are not given have their defaults"
)"
report "config.json has a name that is no flag: a note names it" "$(
    cp -r whole unknown_name
    sed -i 's/"learning-rate":/"learning_rate":1, "threads":2, "learning-rate":/' unknown_name/config.json
    run 0 -o unknown_name -y 1 -x 7
    equal "$(grep -o 'is no flag, and is ignored: .*' "$out")" "$(
        printf 'is no flag, and is ignored: %s\n' learning_rate threads)"
)"
report "an epoch is a part of the data: -y 1 with another -d or -b reads what is left of it" "$(
    head -c 4000 text >epoch_text
    read_tokens() { # of RUN, whose first $2 steps had 64 tokens and whose other steps have $3
        local last
        last=$(steps "$1") last=${last##* }
        echo $(($2 * 64 + (last - $2) * $3))
    }
    run 0 -i epoch_text "${model[@]}" -b 2 -t 16 -d 64 "${quiet[@]}" -n 20 --time-limit 1e9 -o part
    equal "$(steps part)" "$(seq -s ' ' 1 56)" # of 3600 tokens
    for step in 40 56; do rm -r part/*_000000$step; done
    for d in 32 64 128 192; do
        rm -rf again_epoch && cp -a part again_epoch
        run 0 -o again_epoch -y 1 -d $d
        holds "$(read_tokens again_epoch 20 $d) <= 3600 && $(read_tokens again_epoch 20 $d) > 3600 - $d"
    done
    run 0 -i epoch_text "${model[@]}" -b 2 -t 16 -d 64 "${quiet[@]}" -n 7 -x 7 -a 1 -o overfitted
    run 0 -o overfitted -y 1 -x -1 # -a 1 stays at the first batch
    equal "$(steps overfitted)" "$(seq -s ' ' 1 56)"
)"
report "-y 1 reads data under another name, and names the file that is missing" "$(
    cp text named_text
    run 0 -i named_text "${model[@]}" "${batch[@]}" "${quiet[@]}" -x 2 -n 2 -o named
    mv named_text renamed_text
    run 2 -o named -y 1 -x 3
    says "$err" "-i: no file matches 'named_text'"
    run 0 -o named -y 1 -x 3 -i renamed_text
    run 0 -o named -y 1 -x 4 -e whole
    says "$out" "the weights are those of the checkpoint: a resumed run does not read -e whole"
)"
report "-a 1 overfits the whole batch of -d, for any -b" "$(
    for b in 1 4; do run 0 -i text "${model[@]}" "${quiet[@]}" -b $b -t 16 -d 64 -a 1 -x 3 -o all$b; done
    close_steps all1 all4
    run 0 -i text "${model[@]}" "${quiet[@]}" -b 1 -t 16 -d 16 -a 1 -x 3 -o one
    differ one/metrics.jsonl all1/metrics.jsonl
)"

# ---- interrupted and failing runs

# ends_on SIGNALS RUN: a long run that receives the signals in its first steps saves a checkpoint, exits 0, and resumes
ends_on() {
    local long=(-i text "${model[@]}" "${batch[@]}" -s 0 -v 1000000) i last signal
    env --default-signal=INT "$trainer" "${long[@]}" -x 1000000 -n 1000000 -o "$2" >"$out" 2>"$err" &
    started "$2/metrics.jsonl" '"step":5,'
    for signal in $1; do kill -s "$signal" $!; done
    wait $!
    equal $? 0
    last=$(sed -nE 's/^stopped at step ([0-9]+) of 1000000: .*/\1/p' "$out")
    holds "${last:-0} >= 5"
    equal "$(checkpoints "$2")" "$(printf 'step_%08d' "$last")"
    run 0 "${long[@]}" -x $((last + 2)) -o "$2" -y 1
    equal "$(steps "$2")" "$(seq -s ' ' 1 $((last + 2)))"
}
report "SIGTERM, SIGINT and SIGUSR2 stop a run with a checkpoint" "$(
    ends_on TERM terminated
    ends_on INT interrupted
    ends_on USR2 requested
)"
report "the soft limit of CPU time stops a run with a checkpoint" "$(
    (ulimit -S -t 1 && exec "$trainer" "${tiny[@]}" -x 100000000 -n 100000000 -o out_of_time) >"$out" 2>"$err"
    equal $? 0
    matches "$out" '^stopped at step [0-9]+ of 100000000: CPU time limit exceeded'
    equal "$(checkpoints out_of_time | wc -w)" 1
)"
# SIGSTOP holds the program until both signals are pending, so that they arrive together on a busy machine too
report "two signals at the same time count as one" "$(ends_on "STOP TERM INT CONT" both)"
seq 1 400000 >long_text
report "a signal stops a run within a validation or a step" "$(
    : >"$out"
    # a validation of 25 s
    "$trainer" -i long_text -e l4h4c256 -b 1 -t 16 -s 0 -v 1 -m -1 -x 100 -n 100 -o validating >"$out" 2>"$err" &
    started "$out" '^machine'
    kill -s TERM $!
    wait $!
    equal $? 0
    says "$out" "stopped at step 0 of 100"
    : >"$out"
    "$trainer" -i long_text "${model[@]}" -b 1 -t 16 -d 16000000 "${quiet[@]}" -x 9 -n 9 -o halfway >"$out" 2>"$err" &
    started "$out" '^machine'
    kill -s TERM $!
    wait $!
    equal $? 0
    says "$out" "stopped at step 0 of 9"
    equal "$(checkpoints halfway)" ""
)"
# spends PROCESS HUNDREDTHS: waits until the process has used so much more CPU time, in hundredths of a second, or ended
spends() {
    local end
    cpu_time() { awk '$3 != "Z" { print $14 + $15 }' "/proc/$1/stat" 2>/dev/null; }
    end=$(($(cpu_time "$1") + $2))
    while [ "$(cpu_time "$1")" -lt "$end" ] 2>/dev/null; do sleep 0.02; done
}
# ended_by STATUS SIGNALS...: a run that receives the signals in its first step, which takes 8 s and after which the
# first alone would stop it, exits with STATUS. To build the model takes 0.6 s of CPU time.
ended_by() {
    local signal
    : >"$out"
    "$trainer" -i long_text -e l4h8c512 -b 16 -t 512 -r 4 "${quiet[@]}" -x 1000 >"$out" 2>"$err" &
    started "$out" '^machine'
    spends $! 150
    for signal in "${@:2}"; do
        kill -s "$signal" $! 2>/dev/null || break
        spends $! 30 # signals within 0.2 s of the first count as the first
    done
    wait $!
    equal $? "$1"
}
# The reader of stdout ends after a line. The status of the trainer is in the file `status`
report "a reader of stdout that goes away ends a run as SIGHUP does, with a checkpoint" "$(
    long=("${tiny[@]}" -x 100000000 -n 100000000)
    # after a step, since a run that ends in its first lines saves nothing
    { (trap - PIPE && exec "$trainer" "${long[@]}" -o no_reader 2>"$err"); echo $? >status; } | sed -n '/^step /q'
    equal "$(cat status)" 0
    equal "$(checkpoints no_reader | wc -w)" 1
    says "$err" "train_gpt2: stopping after this micro-step, then saving"
    # as at Ctrl-C, which ends the trainer and its reader; SIGSTOP holds the trainer until the reader is gone
    { echo $BASHPID >id && trap - PIPE && exec "$trainer" "${long[@]}" -o both_end 2>"$err"; } | {
        sed -n '/^step /q' && kill -s STOP "$(<id)" && exec <&-
        for signal in TERM CONT; do kill -s $signal "$(<id)"; done
    }
    equal "${PIPESTATUS[0]}" 0
    equal "$(checkpoints both_end | wc -w)" 1
    # ignored, as under a program that looks at the error itself
    {
        until [[ -e reader_gone ]]; do sleep 0.01; done
        (trap '' PIPE && exec "$trainer" "${tiny[@]}" -x 9 -n 9 -o ignored_pipe 2>"$err")
        echo $? >status
    } | { exec <&- && touch reader_gone; }
    equal "$(cat status)" 1
    says "$err" "could not write to stdout: its reader is gone"
    equal "$(checkpoints ignored_pipe)" step_00000009
    : >"$out"
    "$trainer" "${long[@]}" -x 100000000 -o no_reader -y 1 >"$out" 2>"$err" &
    started "$out" '^step '
    kill -s TERM $!
    wait $!
    equal "$(tail -n 1 "$out")" "resume    $trainer -o no_reader -y 1"
)"
report "a second signal ends the program at once, but for SIGXCPU, which repeats" "$(
    ended_by 143 TERM TERM TERM
    ended_by 143 XCPU XCPU XCPU TERM
)"
report "a run directory accepts one run at a time" "$(
    "$trainer" "${tiny[@]}" -x 1000000 -n 10 -nk 1 -o shared >first.out 2>first.err &
    first=$!
    started first.out '^step 1/'
    run 2 "${tiny[@]}" -x 1000000 -n 10 -o shared -y 1
    says "$err" "-o shared is in use by another process"
    kill -s TERM $first
    wait $first
    equal $? 0
    equal "$(cat first.err)" "
train_gpt2: stopping after this micro-step, then saving; Ctrl-C again stops without saving"
    equal "$(tail -n 1 first.out)" "resume    $trainer -o shared -y 1"
)"
report "scripts/train.sh takes a name with quotes, passes SIGTERM on, and prints how to resume" "$(
    mkdir -p tree/scripts && cp "$root"/scripts/{train,text}.sh tree/scripts
    cat >tree/train_gpt2 <<TRAINER
#!/usr/bin/env bash
[[ ! -e no_first_step || "\$*" != *"-n 1000"* ]] || exit 0 # as if stopped before the first step
exec "$trainer" "\${@/#60/12}" # of the steps that are timed
TRAINER
    chmod +x tree/train_gpt2
    text="$PWD/Alice's \"long\" [1]" run=runs/Alice_s__long___1_-1
    cp long_text "$text"
    env OMP_NUM_THREADS=1 tree/scripts/train.sh "$text" >"$out" 2>"$err" &
    started tree/$run/metrics.jsonl '"step":9,'
    kill -s TERM $!
    wait $!
    equal $? 143
    says "$out" ": Terminated"
    matches "$out" "^go on .* -y 1 "
    (cd tree && eval "$(sed -n 's/^go on  *//p' "$out") --plan") >"$err" 2>&1 || cat "$err"
    says "$out" "the model has not seen enough text for words: the command after 'go on' trains it further"
    equal "$(checkpoints tree/$run | wc -w)" 1
)"
report "an ignored signal stays ignored" "$(
    : >"$out"
    (
        trap '' INT
        exec "$trainer" "${tiny[@]}" -x 100000000 >"$out"
    ) &
    started "$out" '^step 1/'
    kill -s INT $!
    kill -s TERM $!
    wait $!
    says "$out" ": Terminated"
)"
report "--time-limit counts from each start, and a resumed run needs none" "$(
    run 0 "${tiny[@]}" -x 100000000 --time-limit 2 -n 100000000 -o hurried
    last=$(sed -nE 's/^stopped at step ([0-9]+) of 100000000: --time-limit is up/\1/p' "$out")
    equal "$(checkpoints hurried)" "$(printf 'step_%08d' "${last:-0}")"
    run 0 -o hurried -y 1 -x $((last + 9))
    equal "$(steps hurried)" "$(seq -s ' ' 1 $((last + 9)))"
)"
report "--time-limit below one update gives exit 1 at the first start, and at the next" "$(
    for line in "-d 16000000 --time-limit 0.2 -v 0" "-v 1 -m -1 --time-limit 0.0001"; do
        read -ra short <<<"$line"
        for _ in 1 2; do # a validation, too, may take all of the time
            run 1 "${tiny[@]}" "${short[@]}" -x 9 -n 9 -y 1 -o "too_short_${short[1]}"
            matches "$err" "--time-limit 0.*ended before one update of (64|16000000) tokens was finished"
        done
    done
)"

# ---- a text without -e

mkdir alone
cp text "alone/Alice's text.v2.txt" && cp long_text alone/long && printf '{"text":"a"}\n%.0s' {1..20} >alone/lines
alone() { (cd alone && run "$@" && silent "$err"); } # as run, in a folder of its own
report "a text without -e trains a small model, whose settings are shares of the run, in a new folder" "$(
    alone 0 -i ../text -x 32 -u 5
    run=alone/runs/text-1
    for word in 'model "l4h4c128"' 'output "runs/text-1"' "micro-batch 12" "sequence-length 64" "max-steps 32" \
        "learning-rate 0.001" "final-fraction 0.1" "weight-decay 0.1" "warmup 5" "val-every 3" "sample-every 9" \
        "sample-tokens 200" "checkpoint-every 3" "keep 1"; do
        equal "${word%% *} $(flag $run "${word%% *}")" "$word"
        [[ $word == warmup* ]] || matches "$out" "^flags .*  ${word//\"/}( |\$)"
    done
    equal "$(checkpoints $run)" step_00000032
    equal "$(grep -cE '^step [0-9]+ \| validation' "$out") $(grep -c '^sample at' "$out")" "12 4"
    alone 0 -o runs/text-1 -y 1 -x 33
    equal "$(flag $run val-every) $(flag $run warmup) $(checkpoints $run)" "3 5 step_00000033"
    lacks "$out" '^flags '
)"
report "a text without -e: given flags win, also with llm.c's defaults" "$(
    given=(-b 4 -t 16 -l 3e-4 -q 1 -c 0 -u 0 -v 20 -s 20 -g 64 -n 0 -nk 0)
    alone 0 -i ../text -x 1 "${given[@]}" -o own
    for word in "micro-batch 4" "sequence-length 16" "learning-rate 0.0003" "final-fraction 1" "weight-decay 0" \
        "warmup 0" "val-every 20" "sample-every 20" "sample-tokens 64" "checkpoint-every 0" "keep 0"; do
        equal "${word%% *} $(flag alone/own "${word%% *}")" "$word"
    done
)"
report "a text without -e is read once, or for 2000 steps; no folder is taken twice" "$(
    # the reader of stdout ends the run after a step
    briefly() { (cd alone && (trap - PIPE && exec "$trainer" -v 0 -s 0 "$@" 2>"$err") | sed '/^step 1\//q' >"$out"); }
    briefly -i "Alice's text.v2.txt"
    matches "$out" "^step 1/2000 "
    briefly -i "Alice's text.v2.txt" -x -1
    matches "$out" "^step 1/7 "
    briefly -i long
    matches "$out" "^step 1/3151 "
    equal "$(cd alone/runs && echo A* l*)" "Alice_s_text-1 Alice_s_text-2 long-1"
    for word in "Alice_s_text-1 2000 51" "Alice_s_text-2 -1 1" "long-1 -1 79"; do
        read -r name steps warmup <<<"$word"
        equal "$(flag "alone/runs/$name" max-steps) $(flag "alone/runs/$name" warmup)" "$steps $warmup"
    done
)"
report "a text without -e: -y 1 begins, and resumes with the same settings" "$(
    for steps in 16 17; do alone 0 -i ../text -o again -y 1 -x $steps -v 0 -s 0; done
    matches "$out" '^resumed   at step 16 from .*/step_00000016$'
    alone 0 -i '../long_tex*' -x 1 -v 0 -s 0
    says "$out" "runs/text-2 "
    equal "$(flag alone/again checkpoint-every) $(flag alone/again warmup) $(flag alone/again micro-batch)" "2 1 12"
)"

# ---- single flags

report "-nk and -nm delete all other checkpoints" "$(
    run 0 "${tiny[@]}" -x 10 -n 1 -nk 2 -nm 4 -o rotated
    kept="step_00000004 step_00000008 step_00000009 step_00000010"
    equal "$(checkpoints rotated)" "$kept"
    cp -r rotated/step_00000009 rotated/step_00000007 # as if a kill had come before it was deleted
    run 0 -o rotated -y 1
    equal "$(checkpoints rotated)" "$kept"
)"
report "-s samples and does not change the training" "$(
    run 0 "${full_but_s[@]}" -s 2 -g 5 -x 6 -o sampled
    equal "$(grep -c '^sample at step' "$out")" 3
    same whole/step_00000006/model.safetensors sampled/step_00000006/model.safetensors
)"
report "-j validates on another file, -v 0 does not validate" "$(
    run 0 "${tiny[@]}" -x 1
    equal "$(grep -c 'validation loss' "$out")" 0
    head -c 300 text >held_out
    run 0 -i text -j held_out "${model[@]}" -b 2 -t 16 -s 0 -x 2 -v 1 -m -1
    equal "$(grep -c 'validation loss' "$out")" 3
    says "$out" "300 validation tokens"
    for m in -1 18 19; do # of 18 sequences
        run 0 -i text -j held_out "${model[@]}" -b 1 -t 16 -s 0 -x 1 -v 1 -m $m -o "held_out$m"
        matches "held_out$m/metrics.jsonl" '"val_tokens":288\b'
    done
)"
report "-f 2 rounds matmul inputs if the CPU multiplies bf16 faster, and prints a note if not" "$(
    for f in 1 2; do run 0 -i text -e l2h2c64 "${batch[@]}" "${quiet[@]}" -x 5 -f $f -o rounded$f; done
    if grep -q ', bf16 inputs' "$out"; then
        differ rounded1/metrics.jsonl rounded2/metrics.jsonl
        paste <(step_losses rounded1) <(step_losses rounded2) |
            awk '$1 == $2 { same++ } ($1 - $2) ^ 2 > 1e-4 { print "loss " $2 ", expected near " $1 }
                 END { if (same == NR) print "-f 2 changed no loss" }'
    else
        says "$out" ", fp32 inputs (-f 2 needs AVX512-BF16 of the CPU and the build)"
        equal "$(step_losses rounded2)" "$(step_losses rounded1)"
    fi
)"
report "-sg skips outliers of the norm alone" "$(
    run 0 -i text "${model[@]}" -b 1 -t 16 "${quiet[@]}" -l 0 -x 160 -sg 0.5
    says "$out" "skipped: gradient norm is an outlier"
    lacks "$out" "skipped: loss is an outlier"
)"
rounding=(-i text -e l2h2c64 "${batch[@]}" "${quiet[@]}" -l 1e-2)
report "-f auto rounds the inputs where the CPU multiplies bf16, and a resumed run keeps its inputs" "$(
    run 0 "${rounding[@]}" -x 4 -n 4 -f auto -o chosen
    f=1 && ! grep -q ', bf16 inputs' "$out" || f=2
    equal "$(flag chosen matmul-precision)" $f
    for f in $(seq $f); do run 0 "${rounding[@]}" -x 8 -n 4 -f "$f" -o "whole_$f"; done
    cp -r whole_1 rest && rm -r rest/*_00000008
    equal "$(step_losses chosen)" "$(step_losses "whole_$f" | head -n 4)"
    run 0 -i text -o rest -y 1 -x 8 -n 8 -f auto
    equal "$(flag rest matmul-precision)" 1
    same {whole_1,rest}/step_00000008/model.safetensors
    run 0 -i text -o rest -y 1 -x 12 -f 2
    equal "$(flag rest matmul-precision)" 2
)"
report "token shards of llm.c by glob, with GPT-2's vocabulary" "$(
    run 0 -i 'good_*.bin' -e l1h1c16 -b 2 -t 16 "${quiet[@]}" -x 2 -n 2 -o shards
    says "$out" "50257 tokens"
    matches shards/step_00000002/config.json '"vocab_size":[[:space:]]*50257'
    says shards/step_00000002/model.safetensors '"wte.weight":{"dtype":"F32","shape":[50257,16]'
    holds "$(step_losses shards | head -n 1) > 10.7 && $(step_losses shards | head -n 1) < 10.95" # ln 50257 = 10.82
    run 0 -i 'good_*.bin' -e l1h1c16 -b 2 -t 16 --plan=json
    # wte with padding, wpe, matmuls, vectors padded to 128
    says "$out" "$((50304 * 16 + 16 * 16 + 12 * 16 * 16 + 10 * 128))"
    run 0 --generate 3 -e shards/step_00000002
    matches "$out" '^([0-9]+ ){4}$'
)"

# ---- text

report "--generate continues from a checkpoint" "$(
    for word in first second; do
        run 0 --generate 40 -e whole/step_00000006 --temperature 0
        cp "$out" $word
    done
    silent "$err"
    same first second
    equal "$(wc -c <first)" 42 # a newline as the first token, 40 bytes, a final newline
    run 0 --generate 40 -e whole/step_00000006 --top-k 1
    same "$out" first
    run 0 --generate 40 -e whole/step_00000006 --seed 1
    cp "$out" seed_1
    run 0 --generate 40 -e whole/step_00000006/model.safetensors --seed 2
    differ "$out" seed_1
)"
report "--generate --prompt begins with the prompt" "$(
    prompt='12 34, longer than the sixteen positions that the model has'
    run 0 --generate 5 -e whole/step_00000006 --prompt "$prompt" --top-k 3
    equal "$(head -c ${#prompt} "$out")" "$prompt"
    equal "$(wc -c <"$out")" $((${#prompt} + 6))
    equal "$(<"$err")" "note      --prompt has 59 tokens, and the model 16 positions: it reads the last 8 tokens"
    run 0 --generate 5 -e whole/step_00000006 --prompt "${prompt:0:16}" && silent "$err"
    run 0 "${full_but_s[@]}" -s 6 -x 6 --prompt "$prompt" -o long_prompt
    equal "$(grep -c '^note  .*it reads the last 8 tokens$' "$out")" 1
    run 0 "${full_but_s[@]}" -s 0 -x 1 --prompt "$prompt" -o no_sample && lacks "$out" 'it reads the last'
)"

report "GPT-2's tokens: --tokenizer, or a merges file in or beside the model or in the run directory" "$(
    head -n 44 "$merges" >few.bpe # a comment line and 43 merges: 256 + 43 + 1 tokens
    mapfile -t few < <(awk 'BEGIN { for (i = 0; i < 240; i++) print i * 7 % 300 }')
    write_shard few_0.bin 20240520 240 0 "${few[@]}"
    run 0 -i few_0.bin -e l1h2c16 "${batch[@]}" "${quiet[@]}" -x 2 -n 2 -o merges
    prompt=' the thing'
    run 0 --generate 9 -e merges --temperature 0 --prompt "$prompt" --tokenizer few.bpe && cp "$out" generated
    equal "$(head -c ${#prompt} generated)" "$prompt"
    from=merges/step_00000002
    while read -r file weights; do
        cp few.bpe "$file"
        run 0 --generate 9 -e "$weights" --temperature 0 --prompt "$prompt"
        same "$out" generated
        rm "$file"
    done <<<"$from/merges.txt $from
$from/vocab.bpe $from/model.safetensors
merges/merges.txt $from
merges/vocab.bpe merges"
    cp few.bpe merges/vocab.bpe
    run 0 -i few_0.bin "${batch[@]}" -v 0 -s 4 --temperature 0 --prompt "$prompt" -g 9 -x 4 -o merges -y 1
    sed '1,/^---$/d' "$out" | head -c ${#prompt} | cmp - <(printf '%s' "$prompt") 2>&1
)"

# ---- the reference operations

report "--device reference has the CPU's losses, at each -r the same bits, and its run goes on on the CPU" "$(
    run 0 "${full[@]}" -x 6 -o reference --device reference -r 0
    says "$out" "cpu, reference operations"
    close_steps reference whole
    run 0 "${full[@]}" -x 3 -o recomputed --device reference -r 4
    same <(step_losses recomputed) <(step_losses reference | head -n 3)
    run 0 -o recomputed -y 1 -x 6 --device cpu
    close_steps recomputed whole
)"

# ---- information

report "--plan needs no data and adds up" "$(
    run 0 --plan -e d12 -b 4 -t 1024
    matches "$out" '^total on the device +[0-9.]+$'
    matches "$out" '^total in pinned host memory +[0-9.]+$'
    (ulimit -v 1000000 && run 0 --plan=json -e d12 -b 4 -t 1024) # it allocates nothing of the plan
    if command -v python3 >/dev/null; then
        python3 - "$out" <<'EOF' 2>&1
import json, sys
plan = json.load(open(sys.argv[1]))
assert list(plan) == ["recompute", "fuse_gelu", "logits_chunk", "ranks"] and len(plan["ranks"]) == 1
assert plan["recompute"] in range(5) and not plan["fuse_gelu"] and plan["logits_chunk"] == 256, plan
rank = plan["ranks"][0]
keys = {"rank", "state", "saved", "scratch", "host", "total", "tensors"}
assert set(rank) == keys, set(rank)
for tensor in rank["tensors"]:
    assert set(tensor) == {"name", "lifetime", "shape", "dtype", "bytes"}, tensor
for lifetime in "state", "saved", "scratch", "host":
    assert rank[lifetime] == sum(t["bytes"] for t in rank["tensors"] if t["lifetime"] == lifetime) > 0, lifetime
assert rank["total"] == sum(t["bytes"] for t in rank["tensors"] if t["lifetime"] != "host")
assert rank["state"] >= 16 * 124439808, rank["state"]
EOF
    fi
)"
# total: MiB of the last --plan, on the device
total() { awk '/^total on the device/ { print $NF }' "$out"; }
report "--plan with the flags that --fit chose has the same total, and --fit keeps given flags" "$(
    run 0 --plan -e d48 -b 4 -t 1024 --fit=20
    mib=$(total) flags=$(sed -nE 's/^fit .* of 20.00 GiB: //p' "$out")
    equal "$flags" "-r 4 -om bf16"
    holds "$mib <= 20 * 1024 && $mib > 15 * 1024"
    # shellcheck disable=SC2086
    run 0 --plan -e d48 -b 4 -t 1024 $flags
    equal "$(total)" "$mib"
    run 0 --plan=json -e d48 -b 4 --fit=40
    matches "$out" '^\{'
    run 0 --plan -e d48 -b 4 -r 2 --fit=40
    matches "$out" '^fit       on a CPU in fp32, .* of 40.00 GiB: the given flags$'
    run 0 --plan -e d48 -b 4 -r 2 --fit=30
    matches "$out" '^fit  .* of 30.00 GiB: -om bf16$'
    run 2 --plan -e d48 -b 4 --fit=4 --device cpu
    says "$err" " too few; no flags make it fit: give a smaller -e, -b or -t"
    run 0 -i text "${model[@]}" "${batch[@]}" "${quiet[@]}" -x 2 -n 2 --fit -o fitted
    matches "$out" '^fit  .* GiB: -r 0$'
    equal "$(flag fitted recompute)" 0
    run 0 -i text -o fitted -y 1 -x 4
    equal "$(step_losses fitted | wc -l)" 4
)"
report "-r auto is printed, gives the same losses twice, and is not chosen with -r N" "$(
    run 0 "${tiny[@]}" -x 4 -n 2 -o auto
    matches "$out" '^chosen    -r 0: 0\.00 of [0-9]+\.[0-9]{2} GiB$'
    run 0 "${tiny[@]}" -x 4 -r auto -o auto_again
    equal "$(step_losses auto_again)" "$(step_losses auto)"
    run 0 "${tiny[@]}" -x 4 -r 0 -o level_0
    equal "$(grep -c '^chosen' "$out") $(flag level_0 recompute) $(step_losses level_0)" "0 0 $(step_losses auto)"
    run 0 "${tiny[@]}" -x 4 -ge 1
    matches "$out" '^chosen    -r 0 -ge 1: '
)"
report "a resumed run has the -r of its config.json, auto too, unless -r is given" "$(
    equal "$(flag auto recompute) $(flag auto fuse-gelu)" '"auto" "auto"'
    cp -r auto auto_given
    run 0 -i text -o auto -y 1 -x 6
    matches "$out" '^chosen    -r 0: '
    run 0 -i text -o auto_given -y 1 -x 6 -r 1
    run 0 -i text -o auto_given -y 1 -x 8
    equal "$(grep -c '^chosen' "$out") $(flag auto_given recompute)" "0 1"
)"
report "-gd bf16 adds up to 128 micro-batches, and a run resumes with more with -gd auto" "$(
    run 0 -i text -e l1h2c16 -b 1 -t 16 "${quiet[@]}" -gd bf16 -d 2048 -x 1 -n 1 -o narrow
    run 2 -o narrow -y 1 -d 2064 -x 2
    says "$err" "-gd bf16 would round a gradient 129 times in an update, and after more than 128 times the norm is off"
    says "$err" " by over 1 %; give -gd auto"
    run 2 --plan -o narrow -y 1 -d 2064
    run 0 -o narrow -y 1 -d 2064 -x 2 -gd auto
)"
report "a full stdout gives exit 1" "$(
    for words in "--help" "--plan=json -e d12" "--generate 3 -e whole"; do
        read -ra flags <<<"$words"
        status=0
        "$trainer" "${flags[@]}" >/dev/full 2>"$err" || status=$?
        equal $status 1
        says "$err" "could not write to stdout"
    done
)"
# ---- bad input

mkdir dev_null cut_short weights theirs logged && head -c 9 whole/config.json >cut_short/config.json
cp whole/step_00000006/model.safetensors weights
cp whole/step_00000006/{model.safetensors,config.json} theirs && cp whole/{metrics.jsonl,main.log} logged
tr 1 2 <text >other_text
cp -r again bad
bad=("${batch[@]}" -o bad -y 1) # the run's model
refusals <<'ROWS'
-i is missing | "${model[@]}"
found 'all'; --plan -r N prints one level | --plan -r all
found 'fp32', now replaced by split | -i text -w fp32
no file matches 'missing' | -i missing "${model[@]}"
-j: no file matches 'missing' | "${tiny[@]}" -j missing
-h 1 act at each validation, but -v 0 | "${tiny[@]}" -h 1
first make a token shard of it | -i text -e shards -b 2 -t 16
--tokenize needs --tokenizer: add it | -i text --tokenize new.bin
without model.safetensors | -i text -e dev_null
bytes for its 121 tokens, version 1 | -i promises.bin "${model[@]}" -t 16 -o new
is id 50257 | -i ids.bin "${model[@]}" -t 16 -v 0 -o new
a sequence of length 16 | -i short "${model[@]}" -t 16 -o new
-j: a sequence of length 16 | -i text -j short "${model[@]}" -t 16 -o new
-j good_0.bin is token shards; give files of one kind | -i text -j good_0.bin "${model[@]}" -t 16 -o new
is not a multiple of 32 = -b 2 x -t 16 x 1 data-parallel ranks; give 64 | -i text "${model[@]}" -b 2 -t 16 -d 65 -o new
data-parallel ranks; give 32 | -i text "${model[@]}" -b 2 -t 16 -d 16
is a micro-batch of 1099511627776 tokens | -i text "${model[@]}" -b 1048576 -t 1048576
neither a shape (d6 d12 | -i text -e d13 -o new
-t 2048 is longer than the model's 1024 positions | -i text -e d12 -t 2048 -o new
-t 32 is longer than the model's 16 positions | -i text -e whole/step_00000006 -t 32 -o new
good_0.bin | -i good_0.bin -e whole/step_00000006 -t 16 -o new
too few; no flags make it fit | -i text -e gpt3:c12288 -b 1 -t 16
--generate does not use --micro-batch, -b | --generate 3 -e whole -b 2
-t 2048 is longer than the model's 16 positions | --plan --generate 3 -e whole -t 2048
--generate does not use --eval: leave it out, or give it in | --generate 3 --eval x -e whole
--export does not use --offload | --export gguf -e whole -o x.gguf --offload 2
no -o is given | "${tiny[@]}" -n 1
no -o is given | "${tiny[@]}" -y 1
'nothing/config.json' of -y 1 is missing or names no data; give all flags of the first start | -o nothing -y 1
'cut_short/config.json' is not a JSON object, so the run's flags are not | "${full[@]}" -o cut_short -y 1
'weights' holds model.safetensors, but no whole checkpoint | "${tiny[@]}" -o weights -y 1
-y 1: 'theirs' holds | "${tiny[@]}" -e theirs -o theirs -y 1
-y 1: 'logged' holds | "${tiny[@]}" -o logged -y 1
-o text/run cannot be written (Not a directory); give a folder | "${tiny[@]}" -o text/run
-o text cannot be written (Not a directory); give a folder | "${tiny[@]}" -x 1 -o text
holds another run | "${tiny[@]}" -x 1 -o whole
is longer than 4095 characters | "${tiny[@]}" -x 1 -o "$(printf 'a%.0s' {1..4060})"
--generate needs --model, -e: add it | --generate 5
only describes a shape | --generate 5 -e l1h2c16
has 2757 tokens and the model 256 | --generate 5 -e whole --tokenizer "$merges"
needs a tokenizer | --generate 5 -e shards/step_00000002 --prompt hello
--prompt hello: a model of 50257 tokens needs a tokenizer | -i text -e d6 -b 1 -t 16 --prompt hello
holds a model of another shape than -e l2h2c16 | -i text "${bad[@]}" -e l2h2c16
-t 32 | -i text "${bad[@]}" -t 32
was trained with -t 16 | -i text "${bad[@]}" -t 8
--seed 42 | -i text "${bad[@]}" --seed 7
tokens of other files, or with another tokenizer, than -i other_text, which gives | "${bad[@]}" -i other_text
was trained without -j and this run has one: the training data differs | -i text "${bad[@]}" -j other_text
a sequence of length 16 | "${bad[@]}" -i short
has already made 6 steps | "${full[@]}" -x 5 -o bad -y 1
ROWS
if grep -q 'devices cpu,' <<<"$("$trainer" --version)"; then
    refused "--device cuda in a build without CUDA" "(it was built without CUDA" -i text --device cuda
fi
report "a token id past the vocabulary that only a longer -x reads is found before the first step" "$(
    mkdir later && cp good_0.bin later/0.bin && write_shard later/1.bin 20240520 120 0 50257 "${ids[@]:1:119}"
    run 0 -i 'later/*.bin' "${model[@]}" "${quiet[@]}" -b 1 -t 16 -d 16 -x 1 -n 1 -o longer --seed 7
    run 0 -o longer -y 1 -x 2
    run 2 -o longer -y 1 -x 9
    says "$err" "is id 50257"
    equal "$(steps longer)" "1 2"
)"
report "a small stack" "$(
    ulimit -s 256
    export OMP_NUM_THREADS=2
    small=("${tiny[@]}" --device cpu)
    run 0 "${small[@]}" -x 2 -n 1 -v 1 -s 1 -o little
    run 0 -o little -y 1 -x 3
    run 0 --eval text -e little
    run 0 --generate 3 -e little
    run 0 --export gguf -e little -o little.gguf
    run 0 --train-bpe 300 -i text -o merged
    run 0 --tokenize merged/shards -i text --tokenizer merged/merges.txt
    OMP_NUM_THREADS=1024 run 0 "${small[@]}" -x 1
)"
# a checkpoint of an older version is not checked as a whole: without a manifest
last=bad/step_00000006 state=whole/step_00000006/state.json
rm $last/manifest.json
sed 's/"position":\([[:space:]]*\)/"position":\1-/' $state >$last/state.json
refused "state.json with a negative position" "expected a whole number" -i text "${bad[@]}"
sed 's/"step":\([[:space:]]*\)6/"step":\14/' $state >$last/state.json
refused "state.json of another step" "says step 4, and its folder is named for another" -i text "${bad[@]}"
cp $state $last/state.json
head -c -1 whole/step_00000006/model.safetensors >$last/model.safetensors
refused "weights cut short" "bytes of data, expected" -i text "${bad[@]}"
refused "--generate with weights cut short" "bytes of data, expected" --generate 5 -e $last

end_tests
