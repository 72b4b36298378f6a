#!/usr/bin/env bash
# -e with every form of a model: one file, several files, llm.c's files. dev/oracle/model_files.py writes the forms.
# All of them train, generate and plan as the checkpoint does, to the bit.
# With PyTorch and transformers in $PYTHON or build/py, dev/oracle/hf_check.py runs too.
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1

# one update that changes nothing: the checkpoint has the weights that were loaded
still=(-i text -b 1 -t 16 -x 1 -l 0 -n 1 -v 1 -m 1 -s 0)
written() { python3 "$root/dev/oracle/model_files.py" "$@" 2>&1; }

head -c 20000 "$root/CONTRIBUTING.md" >text
report "a model to start from" "$(
    run 0 -i text -e l2h2c16 -b 2 -t 16 -x 3 -l 1e-2 -v 0 -s 0 -n 3 -o made
    mv made/step_00000003 model
    run 0 "${still[@]}" -e model -o from_model
    run 0 --generate 40 -e model --seed 3 && cp "$out" generated
    run 0 --plan=json -e model -t 16 -b 2 && cp "$out" planned
)"
report "the other forms of it" "$(
    written model several 5
    written model model.bin
    written model model_bf16.bin bf16
    cp -r model renamed && mv renamed/model.safetensors renamed/other.safetensors
)"
for form in several several/model.safetensors.index.json model.bin renamed/other.safetensors; do
    report "-e $form is the same model" "$(
        run 0 "${still[@]}" -e "$form" -o "from_${form//\//_}"
        cmp "from_${form//\//_}/step_00000001/model.safetensors" from_model/step_00000001/model.safetensors 2>&1
        diff <(grep val_loss "from_${form//\//_}/metrics.jsonl") <(grep val_loss from_model/metrics.jsonl)
        run 0 --generate 40 -e "$form" --seed 3
        cmp "$out" generated 2>&1
        run 0 --plan=json -e "$form" -t 16 -b 2
        cmp "$out" planned 2>&1
    )"
done
report "llm.c's bf16 file has the weights rounded to nearest" "$(
    run 0 "${still[@]}" -e model_bf16.bin -o rounded
    written rounded/step_00000001 rounded.bin bf16
    cmp rounded.bin model_bf16.bin 2>&1
)"
report "training from llm.c's file saves checkpoints and resumes" "$(
    run 0 -i text -e model.bin -b 1 -t 16 -x 4 -n 2 -v 0 -s 0 -o tuned
    run 0 -i text -e model -b 1 -t 16 -x 4 -n 2 -v 0 -s 0 -o tuned_too
    cmp tuned/step_00000004/model.safetensors tuned_too/step_00000004/model.safetensors 2>&1
    rm -r tuned/step_00000004
    run 0 -o tuned -y 1
    cmp tuned/step_00000004/model.safetensors tuned_too/step_00000004/model.safetensors 2>&1
)"
report "a run resumes without the file that it started from, unless it has no checkpoint" "$(
    cp model.bin moved.bin
    run 0 -i text -e moved.bin -b 1 -t 16 -x 4 -n 2 -v 0 -s 0 -o moved
    rm -r moved.bin moved/step_00000004
    run 0 -o moved -y 1
    cmp moved/step_00000004/model.safetensors tuned_too/step_00000004/model.safetensors 2>&1
    cp moved/step_00000004/model.safetensors before
    run 0 -o moved -y 1 -e moved.bin
    run 2 -o moved -y 1 -e other.bin
    says "$err" "-e other.bin is neither a shape"
    run 2 -o moved -y 1 -e l1h2c16
    says "$err" "leave out -e to resume the checkpoint"
    run 0 -o moved -y 1 -e model
    cmp moved/step_00000004/model.safetensors before 2>&1
    mkdir none && sed 's/"model":[^,]*,/"model":"moved.bin",/' moved/config.json >none/config.json
    run 2 -o none -y 1
    says "$err" "-e moved.bin is neither a shape"
)"

# dev/test/test_model_file.c has the other refusals
cp -r several absent && rm absent/model-00002-of-00005.safetensors
mkdir llmc && cp model.bin llmc/model_00000010.bin
refusals <<'ROWS'
model-00002-of-00005.safetensors' could not be opened: No such file | -i text -e absent -t 16
give llm.c's model_*.bin itself | -i text -e llmc -t 16
-t 17 is longer than the model's 16 positions | -i text -e model.bin -t 17
ROWS

if "$python" -c 'import torch, transformers' 2>/dev/null; then
    report "transformers' own files, one and several, and its losses" "$(
        "$python" "$root/dev/oracle/hf_check.py" model "$trainer" >"$out" 2>&1 || tail -n 5 "$out"
        says "$out" "between files 0: the same"
    )"
else
    skip "torch and transformers (scripts/setup.sh peers)" 1 "transformers' own files"
fi
end_tests
