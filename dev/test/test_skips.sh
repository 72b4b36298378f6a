#!/usr/bin/env bash
# Skipped updates, and the findings of --nan-check, on one rank and on several.
#   PROGRAM=build/test/test_processes TRAINER=./train_gpt2 dev/test/test_skips.sh
# The cases of several ranks are skipped without mpirun, or in a build without MPI.
. "$(dirname "$0")/harness.sh"
. dev/test/ranks.sh
export OMP_NUM_THREADS=1
metrics() { sed -E 's/,"ms":[^}]*("skipped":"[^"]*").*/,\1}/; s/,"ms":.*/}/' "$1/metrics.jsonl"; }

train=(-i text -j held -t 16 -d 192 -b 1 -v 0 -s 0)
# fp32 weights, which poke writes: a bf16 build stores bf16
if ! "$trainer" --version | grep 'weights F32' >/dev/null; then
    skip "a program with weights in fp32"
    exit 0
fi
run 0 1 "${train[@]}" -e l3h3c24 -x 2 -n 2 -o base
for name in big steep; do
    mkdir $name && cp base/step_00000002/{config.json,model.safetensors} $name
done
poke big/model.safetensors h.1.mlp.c_fc.weight 3e38 96
poke steep/model.safetensors ln_f.weight 1e19 24 # a loss of 1e18, and gradients whose squares overflow

# ---- 20 in a row

report "20 skipped updates in a row end the run, with a whole checkpoint of the same weights" "$(
    run 1 1 "${train[@]}" -e big -x 30 -n 25 -o ended
    says '^step 20/30 .* \| skipped: loss is not finite$'
    says '^stopped at step 20 of 30: too many updates in a row were skipped'
    says "train_gpt2: 20 updates in a row were skipped, .*not finite; no update since the start was good: "
    cmp big/model.safetensors ended/step_00000020/model.safetensors 2>&1
    [ -f ended/DONE_00000020 ] || echo "no DONE_00000020"
    [ "$(grep -c '"loss":null.*"skipped":"loss is not finite"}$' ended/metrics.jsonl)" -eq 20 ] ||
        echo "metrics.jsonl lacks the reasons"
)"
report "weights that overflow: the advice is other weights, also after a resume" "$(
    says 'no update since the start was good: .* move the checkpoints with them out of -o and resume, or give other'
    run 1 1 "${train[@]}" -o ended -y 1 -x 50
    says "the last at step 40: .*; no update since the start was good: "
    run 1 1 "${train[@]}" -e l3h3c24 -l 1000 -c 1000 -x 60 # the first steps are good
    says 'find the operation with --nan-check 1, lower -l or give a longer -u$'
)"
report "a norm that is not finite skips the update, though the loss is finite" "$(
    run 1 1 "${train[@]}" -e steep -x 30 -o steep_run
    says 'gradient norm is not finite; no update since the start was good'
    grep -qE '"loss":[0-9.e+]+,"grad_norm":null,.*"skipped":"gradient norm is not finite"' steep_run/metrics.jsonl ||
        echo "metrics.jsonl lacks it"
)"
report "a run without a single update ends with status 1" "$(
    run 1 1 "${train[@]}" -e big -x 3 -n 2 -o none
    says '^train_gpt2: 3 updates in a row were skipped, the last at step 3: loss is not finite; no update '
    [ -f none/step_00000003/model.safetensors ] || echo "no checkpoint"
    run 1 1 "${train[@]}" -e steep -x 1
    says '^train_gpt2: 1 update in a row was skipped, .*norm is not finite; no update '
)"

report "a resumed run whose only update is an outlier does not fail" "$(
    calm=(-e l3h3c24 -l 1e-7 -k constant -sl 1)
    run 0 1 "${train[@]}" "${calm[@]}" -x 170 -o calm
    step=$(sed -nE 's/^."step":([0-9]+),.*"loss is an outlier".*/\1/p' calm/metrics.jsonl | head -n 1)
    run 0 1 "${train[@]}" "${calm[@]}" -x $((step - 1)) -n 200 -o before
    run 0 1 "${train[@]}" "${calm[@]}" -x "$step" -o before -y 1
    says "^step $step/$step .* skipped: loss is an outlier$"
)"

# faulty RANKS FIRST LAST FLAGS...: the last rank's attention writes NaN in its calls FIRST to LAST
faulty() {
    trainer=$program run 0 "$1" fault $(($1 - 1)) "$2" "$3" nan \
        -i text -j held -t 16 -d 192 -v 0 -s 0 -e l3h3c24 "${@:4}"
}
skipped() { sed -nE 's/^."step":([0-9]+),.*"skipped":"loss is not finite".*/\1/p' "$1/metrics.jsonl" | paste -sd ' '; }
some=(-x 8 -n 2 -l 1e-3 -r 0)
report "19 skipped updates in a row after a good one do not end a run" "$(
    trainer=$program run 0 1 fault 0 2 20 nan "${train[@]}" -e l3h3c24 -x 20 -d 16 -r 0
    says '^step 20/20 .* skipped: loss is not finite$'
    trainer=$program run 1 1 fault 0 2 21 nan "${train[@]}" -e l3h3c24 -x 21 -d 16 -r 0
)"
report "a run skips some of its updates and goes on" "$(
    faulty 1 3 4 "${some[@]}" -b 12 -o some
    [ "$(skipped some)" = "3 4" ] || echo "skipped: $(skipped some)"
    cmp some/step_00000002/model.safetensors some/step_00000004/model.safetensors 2>&1
    ! cmp -s some/step_00000004/model.safetensors some/step_00000006/model.safetensors || echo "no update after them"
)"
report "a resumed run has the skipped updates of the uninterrupted run" "$(
    cp -r some again && rm -r again/step_0000000[468] again/DONE_0000000[468]
    faulty 1 1 2 "${some[@]}" -b 12 -o again -y 1
    cmp <(metrics some) <(metrics again) 2>&1
    for file in model optimizer; do
        cmp some/step_00000008/$file.safetensors again/step_00000008/$file.safetensors 2>&1
    done
)"
# ---- --nan-check

report "--nan-check names a weight" "$(
    trainer=$program run 0 1 weight 0 "${train[@]}" -e l3h3c24 -x 1 -o named --nan-check 1
    says '^step 1 \| wte\.weight was not finite before the step: NaN in element 3$'
    grep -q '"skipped":"loss is not finite","origin":"wte.weight was not finite' named/metrics.jsonl ||
        echo "metrics.jsonl lacks it"
)"
report "--nan-check changes no bit" "$(
    faulty 1 3 6 "${some[@]}" -b 12 -o checked --nan-check 1 # a skipped step calls the operation twice
    cmp <(metrics some) <(metrics checked) 2>&1
    for file in model optimizer; do
        cmp some/step_00000008/$file.safetensors checked/step_00000008/$file.safetensors 2>&1
    done
)"

# ---- several ranks

use_ranks
report "2 ranks skip the same outliers, and stay equal" "$(
    trainer=$program run 0 2 replicas -1 "${train[@]}" -e l3h3c24 -l 1e-7 -x 170 -sl 1
    says '^the replicas of step 170 agree'
    run 0 2 "${train[@]}" -e l3h3c24 -l 1e-7 -x 170 -sl 1 -o outliers
    [ "$(grep -c '"skipped":"loss is an outlier"' outliers/metrics.jsonl)" -ge 3 ] || echo "too few outliers"
)"
report "2 ranks refuse weights that are not finite" "$(
    mkdir nan && cp base/step_00000002/{config.json,model.safetensors} nan
    poke nan/model.safetensors h.1.mlp.c_fc.weight nan
    for layout in "-z 0" "-z 3" "-tp 2"; do
        # shellcheck disable=SC2086
        run 2 2 "${train[@]}" -e nan -x 1 $layout
        says "rank [01]: 'nan/model.safetensors' has NaN or infinite values in tensor h\.1\.mlp\.c_fc"
    done
)"
report "--nan-check names a weight that is wrong on one rank alone" "$(
    trainer=$program run 0 2 weight 1 "${train[@]}" -e l3h3c24 -x 1 -z 0 --nan-check 1
    says '^step 1 \| wte\.weight was not finite before the step: NaN in element 3, on rank 1$'
)"
for layout in "6 3 4 -z 0" "6 3 4 -z 1" "6 5 8 -z 3 -r 4" "12 3 4 -tp 2"; do
    read -r b first last layout <<<"$layout"
    # shellcheck disable=SC2086
    report "2 ranks with $layout skip alike: equal replicas" "$(
        faulty 2 "$first" "$last" "${some[@]}" -b "$b" -o many $layout
        [ "$(skipped many)" = "3 4" ] || echo "skipped: $(skipped many)"
        rm -r many
        run 1 2 "${train[@]}" -e big -x 2 --nan-check 1 $layout
        says '^step 2 \| matmul_forward of layer 1 .*made the first .*inf in element [0-9]+ of out, .* on rank 0$'
    )"
    # shellcheck disable=SC2086
    report "a fault on rank 1 of 2 with $layout is named" "$(
        trainer=$program run 0 2 fault 1 4 999 nan "${train[@]}" -d 32 -e l3h3c24 -x 5 --nan-check 1 $layout
        says 'attention_forward of layer 1 made the first .*, NaN in element 3 of out, from finite inputs, on rank 1$'
    )"
done

end_tests
