#!/usr/bin/env bash
# --keep-best and --patience: a small model overfits, stops, is resumed, and killed at the worst places; two ranks.
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1
cc -O2 -shared -fPIC "$root/dev/test/kill_at_rename.c" -o "$scratch/kill.so" || exit

# the checkpoints in a run directory, and what is left of others
kept() { (shopt -s nullglob && cd "$1" && echo best* step*); }
validations() { sed -nE 's/.*"step":([0-9]+),"val_loss":([^,}]*).*/\1 \2/p' "$1/metrics.jsonl"; }
lowest() { validations "$1" | sort -k2,2g -k1,1n | head -n 1; }
# steps of the validation with the lowest loss, and of the last one
best_step() { lowest "$1" | cut -d ' ' -f 1; }
last_step() { validations "$1" | tail -n 1 | cut -d ' ' -f 1; }
best_of() { sed -nE 's/^\s*"(step|val_loss)":\s*([^,]*),?/\2/p' "$1/best/state.json" | paste -sd ' '; } # as lowest
folder_of() { printf 'step_%08d' "$1"; }

# 400 random letters are learned by heart, and the loss on other letters rises
letters() { awk -v seed="$1" -v count="$2" 'BEGIN { for (i = 0; i < count; i++) {
    seed = (seed * 1103515245 + 12345) % 2147483648; printf "%c", 97 + int(seed / 65536) % 8 } }'; }
letters 1 400 >few
letters 2 2000 >other
overfit=(-i few -j other -e l2h2c32 -b 4 -t 16 -m 10 -l 1e-2 -s 0)

# ---- one run

report "RUN/best has the lowest validation loss, also without -n" "$(
    run 0 "${overfit[@]}" -v 5 -x 60 --keep-best -o best_only
    equal "$(best_of best_only)" "$(lowest best_only)"
    [ "$(best_step best_only)" -lt 60 ] || echo "the last step is the best: nothing was tested"
    equal "$(kept best_only)" best
    run 0 "${overfit[@]}" -v 0 -x "$(best_step best_only)" -n 999 -o until
    same until/"$(folder_of "$(best_step best_only)")"/model.safetensors best_only/best/model.safetensors
)"
report "-e takes RUN/best, and from RUN the newest checkpoint, as -y 1 does" "$(
    run 0 --generate 9 -e best_only/best --temperature 0 && cp "$out" from_best
    run 0 --generate 9 -e best_only --temperature 0 && same "$out" from_best
    cp -a best_only both && run 0 "${overfit[@]}" -x 1 -n 1 -o first && cp -a first/step_00000001 both
    run 0 --generate 9 -e both --temperature 0 && same "$out" from_best
    run 0 --generate 9 -e both/step_00000001 --temperature 0
    ! cmp -s "$out" from_best || echo "the untrained model writes the same: nothing was tested"
)"
report "RUN/best is the same beside checkpoints of -n, which -nk prunes" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -nk 1 -x 60 --keep-best -o pruned
    equal "$(validations pruned)" "$(validations best_only)"
    equal "$(kept pruned)" "best step_00000060"
    equal "$(best_of pruned)" "$(lowest pruned)"
    same pruned/best/model.safetensors best_only/best/model.safetensors
    says "$out" "step $(best_step pruned) | saved pruned/best | paused"
    # stdout has the CRC32C of the manifest
    crcs=$(grep -oE '(model|optimizer).safetensors|[0-9a-f]{8}"' pruned/best/manifest.json | grep -A 1 safetensors |
        sed -n '/"/ s/"//p' | paste -sd ' ')
    says "$out" "| weights ${crcs% *}, optimizer ${crcs#* }"
)"
report "--patience ends the run, with a checkpoint and a sample" "$(
    run 0 "${overfit[@]}" -v 5 -n 999 -s 999 -g 8 -x 400 --patience 3 -o patient
    equal "$(last_step patient)" "$(($(best_step patient) + 15))"
    says "$out" "stopped at step $(last_step patient) of"
    says "$out" "3 validations without a loss below"
    says "$out" "sample at step $(last_step patient):"
    equal "$(kept patient)" "$(folder_of "$(last_step patient)")"
    equal "$(validations patient)" "$(validations best_only | head -n "$(validations patient | wc -l)")"
)"

# ---- resumed runs

until_end=(-v 5 -n 10 -nk 1 --keep-best --patience 4)
run 0 "${overfit[@]}" "${until_end[@]}" -x 400 -o whole
compare_whole() { # RUN: the same as the run that was never stopped
    equal "$(metrics "$1")" "$(metrics whole)"
    equal "$(best_of "$1")" "$(best_of whole)"
    equal "$(kept "$1")" "$(kept whole)"
    same "$1/best/model.safetensors" whole/best/model.safetensors
}
report "a resumed run goes on counting" "$(
    end=$(last_step whole)
    [ "$end" -gt 20 ] && [ "$end" -lt 400 ] || echo "the whole run ends at step $end: nothing was tested"
    for stop in 10 $((end / 10 * 10)) $((end - 5)); do
        rm -rf resumed
        run 0 "${overfit[@]}" "${until_end[@]}" -x "$stop" -o resumed
        run 0 -o resumed -y 1 -x 400
        compare_whole resumed
    done
)"
report "a resumed run of no patience left ends at once; a larger --patience goes on" "$(
    cp -a whole over && run 0 -o over -y 1
    says "$out" "a larger --patience goes on"
    compare_whole over
    run 0 -o over -y 1 --patience 1000 -x "$(($(last_step whole) + 10))"
    equal "$(last_step over)" "$(($(last_step whole) + 10))"
)"
report "a run whose last steps are lost resumes from RUN/best if that is newer, and ends the same" "$(
    run 0 "${overfit[@]}" "${until_end[@]}" -nk 0 -x 400 -o every
    cp -a every lost && rm -r lost/best # as if --keep-best were new
    rm -r every/"$(folder_of "$(last_step every)")"
    for step in $(seq $(($(best_step every) / 10 * 10)) 10 400); do # from before the best step
        rm -rf every/"$(folder_of "$step")"
    done
    mkdir every/best.tmp && touch every/best.tmp/half
    cp -a every older && rm -r older/best
    run 0 -o every -y 1 -nk 1
    says "$out" "resumed   at step $(best_step whole) from every/best"
    compare_whole every
    run 0 -o older -y 1 -nk 1
    matches "$out" '^resumed   at step [0-9]+ from .*/step_[0-9]+$'
    compare_whole older
    run 0 "${overfit[@]}" -v 5 -x 60 --keep-best -o unsaved # RUN/best alone
    rm -r unsaved/metrics.jsonl unsaved/main.log
    run 0 -o unsaved -y 1 -x 400 "${until_end[@]}"
    equal "$(validations unsaved | tail -n 1)" "$(validations whole | tail -n 1)"
    same unsaved/best/model.safetensors whole/best/model.safetensors
    rm -rf unsaved
    run 0 -o lost -y 1 --patience 0 -x "$(($(last_step whole) + 5))" # the first validation saves
    equal "$(best_of lost | cut -d ' ' -f 1)" "$(($(last_step whole) + 5))"
)"
killed_at() { # ARGUMENTS...: the run is killed where KILL_AT or KILL_AFTER says
    : >once
    { LD_PRELOAD=$scratch/kill.so KILL_ONCE=once run 137 "$@"; } 2>/dev/null
}
# the new checkpoint is best.tmp, the one before it becomes best.old.tmp, and the new one best
report "a run that was killed while RUN/best is replaced has it whole, and ends the same" "$(
    each=(-v 5 -n 5 -nk 1 --keep-best --patience 4)
    run 0 "${overfit[@]}" "${each[@]}" -x 400 -o each
    best=$(best_step each)
    [ "$best" -gt 5 ] || echo "step $best is the best: nothing was tested"
    run 0 "${overfit[@]}" "${each[@]}" -x $((best - 5)) -o begun
    for place in KILL_AT=cut/best KILL_AFTER=cut/best KILL_AFTER=cut/best.tmp; do
        rm -rf cut && cp -a begun cut
        export "${place?}"
        killed_at -o cut -y 1 -x "$best"
        unset KILL_AT KILL_AFTER
        case $place in
        KILL_AT*) equal "$(kept cut)" "best best.tmp $(folder_of "$best")" ;;
        *best) equal "$(kept cut)" "best.old.tmp best.tmp $(folder_of "$best")" ;;
        *) equal "$(kept cut)" "best best.old.tmp $(folder_of "$best")" ;;
        esac
        for name in cut/best cut/best.old.tmp; do [ ! -d $name ] || run 0 --generate 1 -e $name; done
        cp -a cut untouched
        run 0 -o untouched -y 1 -v 0 --keep-best=0 --patience 0 # no validation: the one before is back, or the new one
        equal "$(kept untouched)" "best $(folder_of "$best")"
        rm -r untouched
        run 0 -o cut -y 1 -x "$best"
        equal "$(validations cut)" "$(validations each | head -n $((best / 5 + 1)))"
        run 0 -o cut -y 1 -x 400
        equal "$(metrics cut)" "$(metrics each)"
        equal "$(best_of cut)" "$(best_of each)"
        equal "$(kept cut)" "$(kept each)"
        same cut/best/model.safetensors each/best/model.safetensors
    done
)"
report "an evaluation that only the resumed run makes gives RUN/best" "$(
    export KILL_AFTER=alone/step_00000005.tmp
    killed_at "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o alone
    unset KILL_AFTER
    equal "$(validations alone | cut -d ' ' -f 1)" 0
    run 0 -o alone -y 1
    equal "$(best_of alone)" "$(lowest alone)"
    equal "$(best_step alone)" 5
)"
report "a damaged RUN/best/state.json is refused before a validation would replace RUN/best" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o torn
    cp torn/best/state.json step.json && truncate -s 7 torn/best/state.json
    for command in "-o torn -y 1 -x 10" "--generate 1 -e torn"; do
        # shellcheck disable=SC2086
        run 2 $command
        says "$err" "'torn/best/state.json' has no step: it was cut short or edited; move the folder 'torn/best' away"
    done
    cp -a torn worded && sed 's/"val_loss":.*/"val_loss":"2.5",/' step.json >worded/best/state.json
    run 1 -o worded -y 1 -x 10 # nothing replaces a RUN/best whose loss is no number
    says "$err" "could not save checkpoint 'worded/best': Directory not empty; the checkpoints before it are whole"
    equal "$(best_of worded | cut -d ' ' -f 1)" 5
    mv torn/best torn/aside
    run 0 -o torn -y 1 -x 10
    equal "$(best_of torn | cut -d ' ' -f 1)" 10
)"
report "validations of other tokens are not compared: RUN/best gets a name with its step" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 20 --keep-best --patience 9 -o other_tokens
    before=$(best_of other_tokens)
    cp -a other_tokens cut_short
    KILL_AFTER=cut_short/best.tmp killed_at -o cut_short -y 1 -x 25 -m 5
    run 0 -o cut_short -y 1 -v 0 --keep-best=0 --patience 0 # no validation: the one before has its name
    says cut_short/best_000000"${before%% *}"/state.json '"val_tokens":	640'
    run 0 -o other_tokens -y 1 -x 25 -m 5
    says "$out" "note      a validation scored 640 tokens, now 320: --patience and --keep-best start over"
    says other_tokens/best_000000"${before%% *}"/state.json '"val_tokens":	640'
    says other_tokens/best/state.json '"val_tokens":	320'
    equal "$(best_of other_tokens | cut -d ' ' -f 1)" 25
    run 0 -o other_tokens -y 1 -x 30 -b 8 -d 128 # -m 5 of 8 sequences: as many as at first
    says "$out" "a validation scored 320 tokens, now 640"
    run 0 -o other_tokens -y 1 -x 35 -b 4 -d 64 -m 10
    lacks "$out" "^note .*start over"
)"
report "--keep-best=0 ends a resumed run's --keep-best and leaves its best checkpoint" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o ended
    run 0 -o ended -y 1 -x 20 -nk 1 --keep-best=0
    equal "$(kept ended)" "best step_00000020"
    equal "$(best_of ended | cut -d ' ' -f 1)" 5
)"

# ---- failures

report "a folder of the user at RUN/best stays: a warning, and exit 1 at the last step" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 5 -nk 1 -o blocked
    mkdir -p blocked/best && touch blocked/best/mine
    run 1 -o blocked -y 1 -x 20 --keep-best -nk 0
    says "$err" "warning: could not save checkpoint 'blocked/best': Directory not empty"
    says "$err" "train_gpt2: could not save checkpoint 'blocked/best'"
    equal "$(grep -c '"loss"' blocked/metrics.jsonl)" 20
    equal "$(kept blocked): $(ls blocked/best)" "best step_00000005 step_00000010 step_00000015 step_00000020: mine"
    rm -r blocked/best
    run 0 -o blocked -y 1
    equal "$(best_of blocked)" "$(validations blocked | tail -n 1)"
)"
refusals <<'ROWS'
no -o is given | "${overfit[@]}" -v 5 --keep-best
--keep-best, --patience and -h 1 act at each validation | "${overfit[@]}" -v 0 --keep-best -o refused
--keep-best, --patience and -h 1 act at each validation | "${overfit[@]}" -v 0 --patience 2 -o refused
--patience takes a whole number from 0 | "${overfit[@]}" --patience -1 -o refused
ROWS

# ---- two ranks

use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
report "two ranks keep the same best checkpoint, stop together and resume" "$(
    two=(mpirun --oversubscribe --bind-to none -np 2 "$trainer")
    ranks=("${overfit[@]}" -b 2)
    "${two[@]}" "${ranks[@]}" "${until_end[@]}" -z 1 -x 400 -o ranks >"$out" 2>&1 </dev/null || echo "exit status $?"
    says "$out" "4 validations without a loss below"
    equal "$(best_of ranks)" "$(lowest ranks)"
    [ "$(last_step ranks)" -lt 400 ] || echo "the run did not end"
    stop=$(($(last_step ranks) - 5))
    "${two[@]}" "${ranks[@]}" "${until_end[@]}" -z 1 -x "$stop" -o again >"$out" 2>&1 </dev/null &&
        "${two[@]}" -o again -y 1 -x 400 >"$out" 2>&1 </dev/null || echo "exit status $?"
    equal "$(metrics again)" "$(metrics ranks)"
    equal "$(best_of again)" "$(best_of ranks)"
    same again/best/optimizer.safetensors ranks/best/optimizer.safetensors
)"
end_tests
