#!/usr/bin/env bash
# The forms in which other programs write GPT-2's weights: each is loaded as the plain model, or refused by what it is.
#   dev/test/test_model_forms.sh
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1
seq 4000 >text
head -c 2000 text >held
run 0 -i text -e l2h2c32 -t 32 -b 2 -x 20 -n 20 -l 1e-2 -v 0 -s 0 -o run
plain=run/step_00000020
[ -f $plain/model.safetensors ] || exit 1

# A form is Python that changes t, {name: (dtype, shape, bytes)}, and config, which it may set to None.
cat >form.py <<'PYTHON'
import json, os, shutil, struct, sys
folder, plain, change = sys.argv[1], sys.argv[2], sys.argv[3]
data = open(plain + "/model.safetensors", "rb").read()
start = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:start])
t = {name: (e["dtype"], e["shape"], data[start + e["data_offsets"][0]:start + e["data_offsets"][1]])
     for name, e in header.items() if name != "__metadata__"}
config = json.load(open(plain + "/config.json"))
bytes_of = {"F32": 4, "BF16": 2, "F16": 2}

def save(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, numbers) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(numbers)]}
        at += len(numbers)
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(x[2] for x in tensors.values()))

def prefixed(prefix, head=""):
    """All names after a prefix; with `head` the token embedding is called so."""
    global t
    t = {head if head and name == "wte.weight" else prefix + name: x for name, x in t.items()}

def transposed():
    """The matmul weights as (out, in), as torch.nn.Linear has them."""
    for name, (dtype, (rows, cols), numbers) in [x for x in t.items() if ".c_" in x[0] and len(x[1][1]) == 2]:
        n = bytes_of[dtype]
        t[name] = (dtype, [cols, rows], b"".join(numbers[(r * cols + c) * n:(r * cols + c + 1) * n]
                                                 for c in range(cols) for r in range(rows)))

def without(*endings):
    for name in [name for name in t if name.endswith(endings)]:
        del t[name]

def rotated(tensor): return (*tensor[:2], tensor[2][128:] + tensor[2][:128])

def fill(name, count, top=b"\xff\xff"):
    """NaN, or with the bits `top` another number, in the first elements of a tensor."""
    dtype, shape, numbers = t[name]
    n = bytes_of[dtype]
    t[name] = (dtype, shape, top.rjust(n, b"\0") * count + numbers[n * count:])

def split(**extra):
    """Two files and an index, which also has the entries `extra`."""
    names, files = list(t), ("a.safetensors", "b.safetensors")
    halves = [names[:len(names) // 2], names[len(names) // 2:]]
    weight_map = {name: file for half, file in zip(halves, files) for name in half}
    for half, file in zip(halves, files):
        save(f"{folder}/{file}", {name: t[name] for name in half})
    weight_map.update({name.replace("__", "."): file for name, file in extra.items()})
    json.dump({"weight_map": weight_map}, open(folder + "/model.safetensors.index.json", "w"))
    t.clear()

def write(name, contents): open(f"{folder}/{name}", "wb").write(contents); t.clear()

shutil.rmtree(folder, ignore_errors=True)
os.mkdir(folder)
exec(change)
if t:
    save(folder + "/model.safetensors", t)
if config is not None:
    json.dump(config, open(folder + "/config.json", "w"))
PYTHON
form() { python3 form.py form $plain "$1" 2>&1; }

# loads NAME PYTHON: the form scores text as the plain model does, to the last digit
score() { run 0 -e "$1" --eval held; }
score $plain && cp "$out" expected
loads() {
    report "loaded: $1" "$(
        form "$2"
        score form
        cmp expected "$out" 2>&1
    )"
}
report "a changed weight changes the score" "$(
    form 't["wte.weight"] = rotated(t["wte.weight"])'
    score form
    ! cmp -s expected "$out" || echo "the same score"
)"
for prefix in transformer. _orig_mod. module. model. _orig_mod.transformer. module.transformer. base_model.model.; do
    loads "names after $prefix" "prefixed('$prefix')"
    loads "names after $prefix, with lm_head.weight alone" \
        "prefixed('$prefix', '${prefix%transformer.}lm_head.weight')"
done
loads "lm_head.weight alone, without a prefix" "prefixed('', 'lm_head.weight')"
loads "lm_head.weight alone, after the model's prefix" "prefixed('transformer.', 'transformer.lm_head.weight')"
loads "lm_head.weight and wte.weight, which are the same" \
    "prefixed('transformer.'); t['lm_head.weight'] = t['transformer.wte.weight']"
for dtype in BOOL:1 U8:1 F32:4; do
    loads "masks of ${dtype%:*}" "for l in 0, 1:
    t[f'h.{l}.attn.bias'] = ('${dtype%:*}', [1, 1, 8, 8], bytes(64 * ${dtype#*:}))
    t[f'h.{l}.attn.masked_bias'] = ('${dtype%:*}', [], bytes(${dtype#*:}))"
done
loads "nanoGPT's (out, in) weights" "transposed()"
loads "nanoGPT's names, tied weight and (out, in) weights" "transposed()
prefixed('_orig_mod.transformer.'); t['_orig_mod.lm_head.weight'] = t['_orig_mod.transformer.wte.weight']"
loads "an index of two files" "prefixed('transformer.'); split()"
loads "an index that names a tied weight without a file for it" "split(lm_head__weight='a.safetensors')"
loads "an index that names a mask without a file for it" "split(h__0__attn__bias='b.safetensors')"
loads "an index of lm_head.weight alone" "prefixed('', 'lm_head.weight'); split(wte__weight='a.safetensors')"

# names NAME PYTHON MODEL WORDS: --generate refuses the form
names() {
    form "$2"
    refused "$1" "$4" -e "$3" --generate 4 --prompt 1
}
names "no bias in a linear layer" "without('attn.c_attn.bias')" form \
    "has no tensor h.0.attn.c_attn.bias, which a model of 2"
names "no biases at all" "transposed(); without('.bias'); prefixed('_orig_mod.transformer.')" form \
    "a model without biases needs zeros in their place"
names "a missing tensor in an index" "split(); save(folder + '/b.safetensors', {'x': ('F32', [1], bytes(4))})" form \
    "in the files that it names, which a model of 2"
names "Llama by its config.json" "config['model_type'] = 'llama'" form 'has "llama" as "model_type"'
names "Llama without config.json" "t = {'model.layers.0.self_attn.q_proj.weight': ('BF16', [2], bytes(4))}
config = None" form "has no config.json next to it"
names "GPT-NeoX" "t = {'gpt_neox.layers.0.attention.dense.bias': ('F16', [2], bytes(4))}" form \
    "has no tensor wte.weight"
names "GPT-Neo, which has wpe.weight" "without('c_attn.weight', 'c_attn.bias')
t['h.0.attn.attention.q_proj.weight'] = ('F32', [1], bytes(4))" form "has no tensor h.0.attn.c_attn.weight"

names "another lm_head.weight than wte.weight" \
    "prefixed('transformer.'); t['lm_head.weight'] = rotated(t['transformer.wte.weight'])" form \
    ": lm_head.weight differs from wte.weight, and GPT-2 ties the two; give a model with tied embeddings"
names "an lm_head.weight that differs in its last number" "d, shape, x = t['wte.weight']
t['lm_head.weight'] = (d, shape, x[:-1] + bytes([x[-1] ^ 1]))" form "lm_head.weight differs from wte.weight"
names "GPT-J's output matrix" "config['model_type'] = 'gptj'; t['lm_head.weight'] = rotated(t['wte.weight'])" \
    form 'has "gptj" as "model_type"'
for tensor in h.0.attn.c_attn.{lora_A.weight,ia3_l} h.1.{ln_3,crossattention.c_attn,attn.q_norm}.weight; do
    names "$tensor" "t['$tensor'] = ('F32', [1], bytes(4)); prefixed('transformer.')" form \
        "has a tensor $tensor, which a GPT-2 of the 2 layers in config.json lacks"
done
loads "the heads of other tasks" "for name in 'score.weight', 'lm_head.bias', 'v_head.layers.0.weight', 'encoder.x':
    t[name] = ('F32', [1], bytes(4))"

zip='b"PK\3\4 and so on"'
names "a folder of pytorch_model.bin" "write('pytorch_model.bin', $zip)" form "doc/files.md converts PyTorch's files"
names "a ckpt.pt" "write('ckpt.pt', $zip)" form/ckpt.pt "ckpt.pt is a file of PyTorch"
names "an empty folder" "t = {}" form "is a folder without model.safetensors, its index or checkpoints"

# ---- weights that are not finite

words="has NaN or infinite values in tensor ln_f.weight, expected finite numbers; give other weights with -e"
names "NaN: --generate" "fill('ln_f.weight', 2)" form "'form/model.safetensors' $words"
refused "NaN: --eval of text" "$words" -e form --eval held
refused "NaN: --export gguf" "$words" -e form --export gguf -o form.gguf
refused "NaN: --export llmc" "$words" -e form --export llmc -o form.bin
report "refused: NaN: training, after the banner, which does not wait for the weights" "$(
    run 2 -e form -i text -x 1 -t 32 -b 2 -o refused
    says "$err" "$words"
    one_line "$err"
    matches "$out" '^machine '
    [ ! -e refused ] || echo "a refused run made its folder"
)"
names "an infinity in a transposed weight" "fill('h.1.mlp.c_fc.weight', 1, b'\x80\x7f')" form \
    "has NaN or infinite values in tensor h.1.mlp.c_fc.weight"
names "NaN in one file of an index" "fill('ln_f.bias', 1); split()" form "safetensors' has NaN or infinite values"
resumed=run/step_00000020
report "refused: NaN: a resumed run" "$(
    # bf16 weights are resumed from the masters in optimizer.safetensors
    python3 - run/step_00000020 <<'PYTHON'
import json, struct, sys
for name, tensors in ("model", ["ln_f.weight"]), ("optimizer", ["master.ln_f.weight"]):
    with open(f"{sys.argv[1]}/{name}.safetensors", "r+b") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        for tensor in tensors:
            if tensor in header:
                begin, end = header[tensor]["data_offsets"]
                file.seek(8 + length + begin)
                file.write(b"\xff" * (end - begin))
PYTHON
    rm $resumed/manifest.json
    run 2 -i text -o run -y 1 -x 40 -t 32 -b 2 -v 0 -s 0
    says "$err" "has NaN or infinite values in tensor"
    says "$err" "to resume from the checkpoint before it, move this one out of -o"
    one_line "$err"
)"
end_tests
