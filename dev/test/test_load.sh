#!/usr/bin/env bash
# -e with every form of a model: one file, several files, llm.c's files. dev/oracle/model_files.py writes the forms.
# All of them train, generate and plan as the checkpoint does, to the bit.
#   TRAINER=./train_gpt2 dev/test/test_load.sh
# With PyTorch and transformers in $PYTHON or build/py, dev/oracle/hf_check.py runs too.
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

trainer=$(realpath "${TRAINER:-./train_gpt2}")
root=$(realpath "$(dirname "$0")/../..")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C
in_scratch

refused_model() { refused "$@" -i text -o new; } # NAME WORDS ARGUMENTS...
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
    grep -qF -- "-e other.bin is neither a shape" "$err" || cat "$err"
    run 2 -o moved -y 1 -e l1h2c16
    grep -qF "leave out -e to resume the checkpoint" "$err" || cat "$err"
    run 0 -o moved -y 1 -e model
    cmp moved/step_00000004/model.safetensors before 2>&1
    mkdir none && sed 's/"model":[^,]*,/"model":"moved.bin",/' moved/config.json >none/config.json
    run 2 -o none -y 1
    grep -qF -- "-e moved.bin is neither a shape" "$err" || cat "$err"
)"

cp -r several absent && rm absent/model-00002-of-00005.safetensors
cp -r several lacking && cp several/model-00001-of-00005.safetensors lacking/model-00002-of-00005.safetensors
rm -f model/manifest.json  # files of a checkpoint that a user has changed
cp -r model llama && echo '{"model_type":"llama","num_hidden_layers":2}' >llama/config.json
cp -r model relu && sed -i 's/"gelu_new"/"relu"/' relu/config.json
cp -r model cut && echo '{"n_layer":' >cut/config.json
cp -r model bare && rm bare/config.json
mkdir pickled llmc && echo PK >pickled/pytorch_model.bin && cp model.bin llmc/model_00000010.bin
head -c -4 model.bin >short.bin
printf '\306\327\064\001\001' >old.bin && tail -c +6 model.bin >>old.bin
printf '\210\330\064\001\001' >shard.bin && tail -c +6 model.bin >>shard.bin
refused_model "an index without one of its files" \
    "model-00002-of-00005.safetensors' could not be opened: No such file" -e absent -t 16
refused_model "an index that names another file" "in the files that it names" -e lacking -t 16
refused_model "another architecture" 'has "llama" as "model_type", expected' -e llama -t 16
refused_model "another activation" 'has "relu" as "activation_function"' -e relu -t 16
refused_model "a config.json that is cut short" "is not a JSON object" -e cut -t 16
refused_model "a model without config.json" "put a config.json with n_head" -e bare -t 16
refused_model "a folder of PyTorch's pickle" "pickled/pytorch_model.bin is a file of PyTorch" -e pickled -t 16
refused_model "a run directory of llm.c" "give llm.c's model_*.bin itself" -e llmc -t 16
refused_model "llm.c's file, cut short" "bytes long, expected" -e short.bin -t 16
refused_model "a file of an older llm.c" "is an llm.c model of version 1, expected 3" -e old.bin -t 16
refused_model "-t over the positions of llm.c's file" "-t 17 is longer than the model's 16 positions" -e model.bin -t 17
refused_model "a token shard as a model" "is a token shard, expected a GPT-2" -e shard.bin -t 16

python=${PYTHON:-$root/build/py/bin/python3}
if "$python" -c 'import torch, transformers' 2>/dev/null; then
    report "transformers' own files, one and several, and its losses" "$(
        "$python" "$root/dev/oracle/hf_check.py" model "$trainer" >"$out" 2>&1 || tail -n 5 "$out"
        grep -qF "between files 0: the same" "$out" || echo "expected the same losses from all files"
    )"
else
    skip "torch and transformers (scripts/setup.sh peers)" 1 "transformers' own files"
fi
end_tests
