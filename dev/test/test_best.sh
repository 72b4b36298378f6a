#!/usr/bin/env bash
# --keep-best and --patience: a small model overfits, stops, is resumed, and killed at the worst places; two ranks.
#   TRAINER=./train_gpt2 dev/test/test_best.sh
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C
scratch=$(mktemp -d) out=$scratch/out err=$scratch/err
trap 'rm -rf "$scratch"' EXIT
cc -O2 -shared -fPIC "$(dirname "$0")/kill_at_rename.c" -o "$scratch/kill.so" || exit
mkdir "$scratch/work"
cd "$scratch/work" || exit 1

run() { # STATUS ARGUMENTS...: a sentence unless the trainer exits with STATUS
    local status=0
    "$trainer" "${@:2}" >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
says() { grep -qF -- "$2" "$1" || { echo "expected '$2' in:" && tail -n 8 "$1"; }; }
equal() { [ "$1" = "$2" ] || echo "found '$1', expected '$2'"; }
same() { cmp "$1" "$2" 2>&1; }
refused() { # NAME WORDS ARGUMENTS...: bad input gives exit 2 and one sentence with WORDS, and writes nothing
    report "refused: $1" "$(
        run 2 "${@:3}"
        says "$err" "$2"
        equal "$(wc -l <"$err")" 1
        [ ! -e refused ] || echo "something was written"
    )"
}
# the checkpoints in a run directory, and what is left of others
holds() { (shopt -s nullglob && cd "$1" && echo best* step*); }
metrics() { sed -E 's/,"ms":.*/}/' "$1/metrics.jsonl"; }
validations() { sed -nE 's/.*"step":([0-9]+),"val_loss":([^,}]*).*/\1 \2/p' "$1/metrics.jsonl"; }
lowest() { validations "$1" | LC_ALL=C sort -k2,2g -k1,1n | head -n 1; }
# steps of the validation with the lowest loss, and of the last one
best_step() { lowest "$1" | cut -d ' ' -f 1; }
last_step() { validations "$1" | tail -n 1 | cut -d ' ' -f 1; }
best_json() { sed -nE 's/.*"(step|val_loss)":\s*([^,]*),?/\2/p' "$1/best/best.json" | paste -sd ' '; }
step_of() { sed -nE 's/.*"step":\s*([0-9]+),/\1/p' "$1/state.json"; }
folder_of() { printf 'step_%08d' "$1"; }

# 400 random letters are learned by heart, and the loss on other letters rises
letters() { awk -v seed="$1" -v count="$2" 'BEGIN { for (i = 0; i < count; i++) {
    seed = (seed * 1103515245 + 12345) % 2147483648; printf "%c", 97 + int(seed / 65536) % 8 } }'; }
letters 1 400 >few
letters 2 2000 >other
overfit=(-i few -j other -e l2h2c32 -b 4 -t 16 -m 10 -l 1e-2 -s 0)

# ---- one run

report "the best checkpoint has the lowest validation loss, also without -n" "$(
    run 0 "${overfit[@]}" -v 5 -x 60 --keep-best -o best_only
    equal "$(best_json best_only)" "$(lowest best_only)"
    equal "$(step_of best_only/best)" "$(best_step best_only)"
    [ "$(best_step best_only)" -lt 60 ] || echo "the last step is the best: nothing was tested"
    holds best_only | grep -qxE 'best best_[ab]' || echo "found $(holds best_only)"
    run 0 "${overfit[@]}" -v 0 -x "$(best_step best_only)" -n 999 -o until
    same until/"$(folder_of "$(best_step best_only)")"/model.safetensors best_only/best/model.safetensors
)"
report "-e takes RUN/best, and RUN itself where no other checkpoint is" "$(
    run 0 --generate 9 -e best_only/best --temperature 0 && cp "$out" from_best
    run 0 --generate 9 -e best_only --temperature 0 && same "$out" from_best
)"
report "a checkpoint of -n is the best one without a second copy, and -nk spares it" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -nk 1 -x 60 --keep-best -o linked
    equal "$(validations linked)" "$(validations best_only)"
    equal "$(readlink linked/best)" "$(folder_of "$(best_step linked)")"
    equal "$(holds linked)" "best $(folder_of "$(best_step linked)") step_00000060"
    equal "$(best_json linked)" "$(lowest linked)"
    same linked/best/model.safetensors best_only/best/model.safetensors
    run 0 "${overfit[@]}" -v 5 -n 5 -x 30 --keep-best -o all
    equal "$(find all -name best.json | wc -l) of $(find all -maxdepth 1 -name 'step_*' | wc -l)" "1 of 6"
)"
report "--patience ends the run, with a checkpoint and a sample" "$(
    run 0 "${overfit[@]}" -v 5 -n 999 -s 999 -g 8 -x 400 --patience 3 -o patient
    equal "$(last_step patient)" "$(($(best_step patient) + 15))"
    says "$out" "stopped at step $(last_step patient) of"
    says "$out" "3 validations without a loss below"
    says "$out" "sample at step $(last_step patient):"
    equal "$(holds patient)" "$(folder_of "$(last_step patient)")"
    equal "$(validations patient)" "$(validations best_only | head -n "$(validations patient | wc -l)")"
)"

# ---- resumed runs

until_end=(-v 5 -n 10 -nk 1 --keep-best --patience 4)
run 0 "${overfit[@]}" "${until_end[@]}" -x 400 -o whole
compare_whole() { # RUN: the same as the run that was never stopped
    equal "$(metrics "$1")" "$(metrics whole)"
    equal "$(best_json "$1")" "$(best_json whole)"
    equal "$(holds "$1")" "$(holds whole)"
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
report "a run whose last steps are lost ends the same, and keeps what it had" "$(
    run 0 "${overfit[@]}" "${until_end[@]}" -nk 0 -x 400 -o every
    cp -a every lost && rm -r lost/best && rm -rf lost/best_? # as if --keep-best were new
    rm -r every/"$(folder_of "$(last_step every)")"
    before=$(best_json every)
    for step in $(seq $(($(best_step every) / 10 * 10)) 10 400); do # from before the best step
        rm -rf every/"$(folder_of "$step")"
    done
    if [ -e every/best/best.json ]; then equal "$(best_json every)" "$before"; fi
    mkdir every/best_a.tmp && touch every/best_a.tmp/half
    run 0 -o every -y 1 -nk 1
    compare_whole every
    run 0 -o lost -y 1 --patience 0 -x "$(($(last_step whole) + 5))" # the first validation saves
    equal "$(step_of lost/best)" "$(($(last_step whole) + 5))"
)"
report "a folder of a killed run is no obstacle" "$(
    run 0 "${overfit[@]}" -v 5 -n 1000 -x 5 --keep-best -o killed
    other=$(readlink killed/best | tr ab ba)
    [ "$other" = best_a ] || [ "$other" = best_b ] || other=best_a
    mkdir killed/"$other" killed/best_b.tmp && touch killed/"$other"/half killed/best.tmp
    run 0 -o killed -y 1 -x 60
    equal "$(best_json killed)" "$(lowest killed)"
    holds killed | grep -qxE 'best best_[ab] step_00000005 step_00000060' || echo "found $(holds killed)"
)"
killed_at() { # ARGUMENTS...: the run is killed where KILL_AT or KILL_AFTER says
    : >once
    { LD_PRELOAD=$scratch/kill.so KILL_ONCE=once run 137 "$@"; } 2>/dev/null
}
report "a run that was killed at the link of a checkpoint of -n makes the link when it resumes" "$(
    each=(-v 5 -n 5 -nk 1 --keep-best --patience 4)
    run 0 "${overfit[@]}" "${each[@]}" -x 400 -o each
    best=$(best_step each)
    [ "$best" -gt 5 ] || echo "step $best is the best: nothing was tested"
    for place in KILL_AT KILL_AFTER; do
        rm -rf cut
        run 0 "${overfit[@]}" "${each[@]}" -x $((best - 5)) -o cut
        export $place=cut/best.tmp
        killed_at -o cut -y 1 -x "$best"
        unset $place
        equal "$(last_step cut)" $((best - 5))
        run 0 -o cut -y 1 -x "$best"
        equal "$(readlink cut/best)" "$(folder_of "$best")"
        equal "$(validations cut)" "$(validations each | head -n $((best / 5 + 1)))"
        run 0 -o cut -y 1 -x 400
        equal "$(metrics cut)" "$(metrics each)"
        equal "$(best_json cut)" "$(best_json each)"
        equal "$(holds cut)" "$(holds each)"
        same cut/best/model.safetensors each/best/model.safetensors
    done
)"
report "an evaluation that only the resumed run makes links the checkpoint of -n without a copy" "$(
    export KILL_AFTER=alone/step_00000005.tmp
    killed_at "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o alone
    unset KILL_AFTER
    equal "$(validations alone | cut -d ' ' -f 1)" 0
    touch -d @0 alone/step_00000005/model.safetensors
    run 0 -o alone -y 1
    equal "$(holds alone)" "best step_00000005"
    equal "$(readlink alone/best)" step_00000005
    equal "$(best_json alone)" "$(lowest alone)"
    equal "$(stat -c %Y alone/best/model.safetensors)" 0
)"
report "a damaged best.json is a warning, and the next validation replaces RUN/best" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o torn
    truncate -s 7 torn/best/best.json
    run 0 -o torn -y 1 -x 10
    says "$err" "best.json' has no val_loss: it was cut short or damaged"
    equal "$(best_json torn | cut -d ' ' -f 1)" 10
)"
report "--keep-best=0 ends a resumed run's --keep-best and leaves its best checkpoint" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o ended
    run 0 -o ended -y 1 -x 20 -nk 1 --keep-best=0
    equal "$(holds ended)" "best step_00000005 step_00000020"
)"

# ---- trouble

report "a folder in the place of the link is a warning, and ends the run at its last step or with --strict-save" "$(
    mkdir -p blocked/best
    run 1 "${overfit[@]}" -v 5 -n 5 -x 20 --keep-best -o blocked
    says "$err" "warning: could not make the link 'blocked/best' to step_00000005"
    says "$err" "train_gpt2: could not make the link 'blocked/best' to step_00000020"
    equal "$(grep -c '"loss"' blocked/metrics.jsonl)" 20
    mkdir -p strict/best
    run 1 "${overfit[@]}" -v 5 -n 5 -x 20 --keep-best -o strict --strict-save 1
    says "$err" "train_gpt2: could not make the link 'strict/best'"
    equal "$(wc -l <"$err")" 1
    equal "$(grep -c '"loss"' strict/metrics.jsonl)" 0  # the untrained model is the first to be the best
    equal "$(cd blocked && echo *.tmp)" "*.tmp"
)"
report "a link that failed at a checkpoint of -n leaves no best.json, and is made when the run resumes" "$(
    run 0 "${overfit[@]}" -v 5 -n 5 -x 5 --keep-best -o later
    rm later/best && mkdir later/best
    run 1 -o later -y 1 -x 10
    says "$err" "could not make the link 'later/best' to step_00000010"
    [ -d later/step_00000010 ] && [ ! -e later/step_00000010/best.json ] || echo "best.json is in step_00000010"
    rmdir later/best
    run 0 -o later -y 1 -x 10
    equal "$(readlink later/best): $(best_json later)" "step_00000010: $(validations later | tail -n 1)"
)"
refused "--keep-best without -o" "there is no -o" "${overfit[@]}" -v 5 --keep-best
refused "--keep-best without validation" "--keep-best goes by the validation loss" \
    "${overfit[@]}" -v 0 --keep-best -o refused
refused "--patience without validation" "--patience goes by the validation loss" \
    "${overfit[@]}" -v 0 --patience 2 -o refused
refused "--patience -1" "--patience takes a whole number from 0" "${overfit[@]}" --patience -1 -o refused

# ---- two ranks

if [ "$failed" -gt 0 ]; then end_tests && exit || exit; fi
use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
report "two ranks keep the same best checkpoint, stop together and resume" "$(
    two=(timeout -k 5 300 mpirun --oversubscribe --bind-to none -np 2 "$trainer")
    ranks=("${overfit[@]}" -b 2)
    "${two[@]}" "${ranks[@]}" "${until_end[@]}" -z 1 -x 400 -o ranks >"$out" 2>&1 </dev/null || echo "exit status $?"
    says "$out" "4 validations without a loss below"
    equal "$(best_json ranks)" "$(lowest ranks)"
    [ "$(last_step ranks)" -lt 400 ] || echo "the run did not end"
    stop=$(($(last_step ranks) - 5))
    "${two[@]}" "${ranks[@]}" "${until_end[@]}" -z 1 -x "$stop" -o again >"$out" 2>&1 </dev/null &&
        "${two[@]}" -o again -y 1 -x 400 >"$out" 2>&1 </dev/null || echo "exit status $?"
    equal "$(metrics again)" "$(metrics ranks)"
    equal "$(best_json again)" "$(best_json ranks)"
    same again/best/optimizer.safetensors ranks/best/optimizer.safetensors
)"
end_tests
