#!/usr/bin/env bash
# Skipped updates, and the findings of --nan-check and --verify-step, on one rank and on several.
#   PROGRAM=build/test/test_processes TRAINER=./train_gpt2 dev/test/test_skips.sh
# The cases of several ranks are skipped without mpirun, or in a build without MPI.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

program=$(realpath "${PROGRAM:-build/test/test_processes}")
trainer=$(realpath "${TRAINER:-./train_gpt2}")
folder=$(mktemp -d)
out=$folder/out
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit
seq 100000 >text
head -c 113 text >held
export OMP_NUM_THREADS=1

# A check prints a sentence if it fails, and nothing if it passes.
run() { # STATUS RANKS COMMAND...
    local status=0
    if [ "$2" -eq 1 ]; then
        "${@:3}" >"$out" 2>&1 </dev/null || status=$?
    else
        timeout -k 5 300 mpirun --oversubscribe --bind-to none -np "$2" "${@:3}" >"$out" 2>&1 </dev/null || status=$?
    fi
    [ "$status" -eq "$1" ] || echo "exit status $status, expected $1: ${*:2}"
}
says() { grep -qE -- "$1" "$out" || echo "expected /$1/"; }
metrics() { sed -E 's/,"ms":[^}]*("skipped":[^}]*)}/,\1/; s/,"ms":.*/}/' "$1/metrics.jsonl"; }
lines() { # NUMBER FILE
    [ "$(wc -l <"$2")" -eq "$1" ] || echo "$2 has $(wc -l <"$2") lines, expected $1"
}

# poke FILE TENSOR VALUE [COUNT]: sets the first elements of a tensor in an fp32 .safetensors file
poke() {
    python3 - "$@" <<'PYTHON'
import json, struct, sys
path, tensor, value, count = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1
with open(path, "r+b") as file:
    header = struct.unpack("<Q", file.read(8))[0]
    file.seek(8 + header + json.loads(file.read(header))[tensor]["data_offsets"][0])
    file.write(struct.pack("<f", value) * count)
PYTHON
}

train=("$trainer" -i text -j held -t 16 -d 192 -b 1 -v 0 -s 0)
# fp32 weights, which poke writes: a bf16 build stores bf16
if ! "$trainer" --version | grep 'weights F32' >/dev/null; then
    echo "the trainer's weights are not fp32: tests of skipped updates are skipped"
    echo "[  SKIPPED ] 1 test(s)."
    exit 0
fi
run 0 1 "${train[@]}" -e l3h3c24 -x 2 -n 2 -o base
for name in nan big steep; do
    mkdir $name && cp base/step_00000002/{config.json,model.safetensors} $name
done
poke nan/model.safetensors h.1.mlp.c_fc.weight nan
poke big/model.safetensors h.1.mlp.c_fc.weight 3e38 96
poke steep/model.safetensors ln_f.weight 1e19 24 # a loss of 1e18, and gradients whose squares overflow

# ---- --max-skips and skipped.jsonl

report "--max-skips ends a run whose weights are not finite, with a whole checkpoint of the same weights" "$(
    run 1 1 "${train[@]}" -e nan -x 30 -n 20 -o ended --max-skips 3
    says '^step 3/30 .* \| skipped: loss is not finite$'
    says '^stopped at step 3 of 30: 3 updates in a row were skipped, the last at step 3: loss is not finite, loss nan'
    says "train_gpt2: 3 updates in a row were skipped.*\(--max-skips 3\); 'ended/step_00000003' has the weights of the"
    says "look at the data in 'ended/skipped.jsonl'"
    cmp nan/model.safetensors ended/step_00000003/model.safetensors 2>&1
    [ -f ended/DONE_00000003 ] || echo "no DONE_00000003"
    lines 3 ended/skipped.jsonl
    [ "$(grep -c '"loss":null.*"skipped":"loss is not finite"}$' ended/metrics.jsonl)" -eq 3 ] ||
        echo "metrics.jsonl lacks the reasons"
)"
report "a norm that is not finite skips the update, though the loss is finite" "$(
    run 1 1 "${train[@]}" -e steep -x 30 -o steep_run --max-skips 2
    says '^step 2/30 .* \| skipped: gradient norm is not finite$'
    says 'train_gpt2: 2 updates in a row were skipped, .*: gradient norm is not finite, loss [0-9.e+]+, '
    grep -qE '"reason":"gradient norm is not finite","loss":[0-9.e+]+,"grad_norm":null' steep_run/skipped.jsonl ||
        echo "skipped.jsonl lacks it"
)"
report "--max-skips 0 never ends it, and the default ends it after 20" "$(
    run 0 1 "${train[@]}" -e nan -x 25 --max-skips 0
    run 1 1 "${train[@]}" -e nan -x 25
    says 'train_gpt2: 20 updates in a row were skipped, .*; no checkpoint was saved, since -n is not given'
)"
report "skipped.jsonl names 12 sequences a step, all different, with the bytes that the file has there" "$(
    python3 - <<'PYTHON'
import json
text, seen = open("text", "rb").read(), set()
for step, line in enumerate(open("ended/skipped.jsonl"), 1):
    skipped = json.loads(line)
    if (skipped["step"], skipped["reason"], skipped["loss"], skipped["grad_norm"]) != (
            step, "loss is not finite", None, None):
        print("found", line)
    for sequence in skipped["sequences"]:
        if sequence["file"] != "text" or sequence["tokens"] != 17 or sequence["first_token"] % 16:
            print("found", sequence)
        if sequence["first_token"] + 17 > len(text):
            print("past the end:", sequence)
        seen.add(sequence["first_token"])
if len(seen) != 36:
    print(len(seen), "sequences, expected 36")
PYTHON
)"

# faulty RANKS FIRST LAST FLAGS...: the last rank's attention writes NaN in its calls FIRST to LAST
faulty() {
    run 0 "$1" "$program" fault $(($1 - 1)) "$2" "$3" nan -i text -j held -t 16 -d 192 -v 0 -s 0 -e l3h3c24 "${@:4}"
}
# the steps and sequences of skipped updates
places() { sed -E 's/"reason".*"sequences"//' "$1/skipped.jsonl"; }
some=(-x 8 -n 2 -l 1e-3 -r 0)
report "a run skips some of its updates and goes on" "$(
    faulty 1 3 4 "${some[@]}" -b 12 -o some
    lines 2 some/skipped.jsonl
    cmp <(sed -nE 's/^."step":([0-9]+),.*"skipped":"loss is not finite".$/\1/p' some/metrics.jsonl) <(seq 3 4) 2>&1
    cmp some/step_00000002/model.safetensors some/step_00000004/model.safetensors 2>&1
    ! cmp -s some/step_00000004/model.safetensors some/step_00000006/model.safetensors || echo "no update after them"
)"
report "a resumed run has the skipped updates of the uninterrupted run" "$(
    cp -r some again && rm -r again/step_0000000[468] again/DONE_0000000[468]
    faulty 1 1 2 "${some[@]}" -b 12 -o again -y 1
    cmp some/skipped.jsonl again/skipped.jsonl 2>&1
    cmp <(metrics some) <(metrics again) 2>&1
    for file in model optimizer; do
        cmp some/step_00000008/$file.safetensors again/step_00000008/$file.safetensors 2>&1
    done
)"
report "a new run in the folder of a run without a checkpoint begins with no skipped updates" "$(
    run 1 1 "${train[@]}" -e nan -x 25 -o fresh --max-skips 2
    run 0 1 "${train[@]}" -e l3h3c24 -x 3 -o fresh -y 1
    [ ! -e fresh/skipped.jsonl ] || echo "skipped.jsonl is there"
)"

# ---- --nan-check

report "--nan-check names a weight" "$(
    run 1 1 "${train[@]}" -e nan -x 30 -o named --max-skips 1 --nan-check 1
    says '^step 1 \| h\.1\.mlp\.c_fc\.weight was not finite before the step: NaN in element 0$'
    says '^train_gpt2: .*; the weights are not finite: move the checkpoints with such weights out of the run'
    grep -q '"origin":"h.1.mlp.c_fc.weight was not finite' named/skipped.jsonl || echo "skipped.jsonl lacks it"
)"
report "--nan-check names an operation" "$(
    run 1 1 "${train[@]}" -e big -x 30 --max-skips 1 --nan-check 1
    says '^step 1 \| matmul_forward of layer 1 \(h\.1\.mlp\.c_fc\.weight\) made .*, -?inf in element [0-9]+ of out,'
    for r in 0 1 2 3 4; do
        run 1 1 "$program" fault 0 4 999 nan "${train[@]:1}" -e l3h3c24 -x 9 -d 16 -r $r --max-skips 2 --nan-check 1
        says '^step [34] \| attention_forward of layer 1 made the first .*, NaN in element 3 of out, from'
    done
)"
report "--nan-check finds nothing in a step that is finite when it runs again" "$(
    run 0 1 "$program" fault 0 4 4 nan "${train[@]:1}" -e l3h3c24 -x 9 -d 16 -r 0 --nan-check 1
    says '^step 4 \| the same step, run again, is finite: the hardware is faulty, or there is a race$'
)"
report "--nan-check changes no bit" "$(
    faulty 1 3 6 "${some[@]}" -b 12 -o checked --nan-check 1 # a skipped step calls the operation twice
    cmp <(metrics some) <(metrics checked) 2>&1
    for file in model optimizer; do
        cmp some/step_00000008/$file.safetensors checked/step_00000008/$file.safetensors 2>&1
    done
)"

# ---- --verify-step

report "--verify-step changes no bit" "$(
    run 0 1 "${train[@]}" -e l3h3c24 -x 7 -n 7 -o once -om 8bit
    for r in 0 2 4; do
        run 0 1 "${train[@]}" -e l3h3c24 -x 7 -n 7 -o "twice_$r" -om 8bit -r $r --verify-step 2
        cmp <(metrics once) <(metrics "twice_$r") 2>&1
        cmp once/step_00000007/optimizer.safetensors "twice_$r/step_00000007/optimizer.safetensors" 2>&1
    done
)"
report "--verify-step says which steps had the same bits" "$(
    run 0 1 "${train[@]}" -e l3h3c24 -x 5 --verify-step 2
    cmp <(grep checked: "$out") <(printf 'step %d | checked: ran twice, same bits\n' 2 4) 2>&1
)"
report "--verify-step ends a run whose steps differ" "$(
    run 1 1 "$program" fault 0 5 5 0.5 "${train[@]:1}" -e l3h3c24 -x 9 -d 16 -r 0 --verify-step 4
    says 'train_gpt2: step 4 ran twice from the same weights and data, and the results differ: rank 0 has losses [0-9.]'
    run 0 1 "$program" fault 0 3 3 0.5 "${train[@]:1}" -e l3h3c24 -x 9 -d 16 -r 0 --verify-step 4
)"

# ---- several ranks

use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
report "2 ranks skip the same outliers, and stay equal" "$(
    run 0 2 "${train[@]}" -e l3h3c24 -l 1e-7 -x 170 -sl 1 -o outliers --check-replicas 1
    [ "$(grep -c '"skipped":"loss is an outlier"' outliers/metrics.jsonl)" -ge 3 ] || echo "too few outliers"
    lines "$(grep -c '"skipped"' outliers/metrics.jsonl)" outliers/skipped.jsonl
)"
report "--check-replicas compares the ranks before each checkpoint too" "$(
    run 0 2 "${train[@]}" -e l3h3c24 -x 5 -n 2 -o compared --save-sync 1 --check-replicas 3
    cmp <(sed -nE 's/^step ([0-9]) . (checked|saved).*/\1 \2/p' "$out") - 2>&1 <<<"2 checked
2 saved
3 checked
4 checked
4 saved
5 checked
5 saved"
)"
report "--nan-check names a weight that is wrong on one rank alone" "$(
    run 1 2 "$program" weight 1 "${train[@]:1}" -e l3h3c24 -x 9 -z 0 --max-skips 1 --nan-check 1
    says '^step 1 \| wte\.weight was not finite before the step: NaN in element 3, on rank 1$'
)"
for layout in "6 3 4 -z 0" "6 3 4 -z 1" "6 5 8 -z 3 -r 4" "12 3 4 -tp 2"; do
    read -r b first last layout <<<"$layout"
    # shellcheck disable=SC2086
    report "2 ranks with $layout skip alike: equal replicas and the sequences of one rank" "$(
        faulty 2 "$first" "$last" "${some[@]}" -b "$b" -o many --check-replicas 1 $layout
        cmp <(places some) <(places many) 2>&1
        rm -r many
        run 1 2 "${train[@]}" -e big -x 9 --max-skips 2 --nan-check 1 $layout
        says '^step 2 \| matmul_forward of layer 1 .*made the first .*inf in element [0-9]+ of out, .* on rank 0$'
        says 'train_gpt2: rank [01]: 2 updates in a row were skipped'
        run 0 2 "${train[@]}" -e l3h3c24 -x 6 --verify-step 2 $layout
    )"
    # shellcheck disable=SC2086
    report "a fault on rank 1 of 2 with $layout is named" "$(
        run 1 2 "$program" fault 1 4 999 nan "${train[@]:1}" -d 32 -e l3h3c24 -x 9 --max-skips 1 --nan-check 1 $layout
        says 'attention_forward of layer 1 made the first .*, NaN in element 3 of out, from finite inputs, on rank 1$'
        run 1 2 "$program" fault 1 8 999 0.5 "${train[@]:1}" -d 32 -e l3h3c24 -x 9 --verify-step 1 $layout
        says 'train_gpt2: rank [01]: step [0-9]+ ran twice from the same weights and data, and the results differ: rank'
    )"
done

end_tests
