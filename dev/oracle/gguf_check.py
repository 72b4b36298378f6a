#!/usr/bin/env python3
"""Reads a file of `train_gpt2 --export gguf`: with nothing but Python, or with the packages gguf and llama-cpp-python.

    gguf_check.py numbers MODEL.gguf FOLDER           every tensor against model.safetensors in FOLDER
    gguf_check.py keys MODEL.gguf                     the keys and values as JSON
    gguf_check.py tensors MODEL.gguf FOLDER           the same through the package gguf
    gguf_check.py generate MODEL.gguf N PROMPT        llama.cpp's N likeliest tokens after PROMPT, as text
    gguf_check.py tokens MODEL.gguf TEXT_FILE         llama.cpp's ids of a text, as uint16
    gguf_check.py loss MODEL.gguf TEXT_FILE           the mean loss of a text's first tokens, in nats

`numbers` and `keys` need no package, `tensors` needs gguf, and the rest llama-cpp-python: scripts/setup.sh all and
scripts/setup.sh peers install them into build/py. llama.cpp runs on the CPU with a key-value cache of fp32 and without
flash attention.
"""
import array
import json
import math
import re
import struct
import sys
from pathlib import Path

import model_files

NAMES = {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_norm": "ln_1", "ffn_norm": "ln_2",
         "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
TRANSPOSED = {"attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"}
TYPES = {0: "F32", 1: "F16", 30: "BF16"}


def safetensors_name(name):
    """the name in model.safetensors, and the name without the block"""
    layer, kind, end = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name).groups()
    return (f"h.{layer}." if layer else "") + NAMES[kind] + "." + end, f"{kind}.{end}"


def whole_model(folder):
    """{name: (entry, bytes)} of model.safetensors"""
    tensors = model_files.read(Path(folder) / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


# ---- the file, with nothing but Python

def read_gguf(path):
    """({key: value}, {name: (sizes with the columns first, type, bytes)}); stops unless the tensors fill the file"""
    raw, at = Path(path).read_bytes(), 0

    def number(form):
        nonlocal at
        at += struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, raw, at - struct.calcsize("<" + form))[0]

    def text():
        nonlocal at
        length = number("Q")
        at += length
        return raw[at - length : at].decode("utf-8")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            kind, count = number("I"), number("Q")
            return [value(kind) for _ in range(count)]
        return number({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    magic, version, num_tensors, num_keys = raw[:4], *struct.unpack_from("<IQQ", raw, 4)
    if (magic, version) != (b"GGUF", 3):
        sys.exit(f"{path} begins with {magic} and version {version}, expected GGUF and 3")
    at = 24
    keys = {text(): value(number("I")) for _ in range(num_keys)}
    table = [(text(), [number("Q") for _ in range(number("I"))], TYPES[number("I")], number("Q"))
             for _ in range(num_tensors)]
    start = end = at + -at % 32
    tensors = {}
    for name, sizes, kind, offset in table:
        count = math.prod(sizes)
        size = count * (4 if kind == "F32" else 2)
        if start + offset != end or any(raw[at:end]):
            sys.exit(f"{name} begins at byte {start + offset}, expected {end} after zeros")
        tensors[name] = sizes, kind, raw[end : end + size]
        at, end = end + size, end + size + -size % 32
    if len(raw) != end:
        sys.exit(f"{path} is {len(raw)} bytes long, expected {end}")
    return keys, tensors


def check_numbers(model, folder):
    expected = whole_model(folder)
    types = []
    for name, (sizes, kind, data) in read_gguf(model)[1].items():
        theirs, bare = safetensors_name(name)
        entry, raw = expected.pop(theirs)
        numbers, shape = model_files.words(entry, raw), entry["shape"]
        if bare in TRANSPOSED:
            numbers, shape = model_files.out_in(entry, numbers), shape[::-1]
        if sizes != shape[::-1]:
            sys.exit(f"{name} has the sizes {sizes}, expected {shape[::-1]}")
        if data != model_files.encoded(numbers, kind):
            sys.exit(f"{name} holds other numbers than the weights as {kind}")
        types.append(kind)
    if expected:
        sys.exit(f"{model} lacks {sorted(expected)}")
    print("equal:", ", ".join(f"{types.count(kind)} {kind}" for kind in sorted(set(types))))


# ---- the package gguf

def check_tensors(model, folder):
    import gguf
    import numpy as np
    expected = {name: np.frombuffer(model_files.words(entry, data).tobytes(), "<f4").reshape(entry["shape"])
                for name, (entry, data) in whole_model(folder).items()}
    types = {}
    for tensor in gguf.GGUFReader(model).tensors:
        name, bare = safetensors_name(tensor.name)
        theirs = expected.pop(name)
        if bare in TRANSPOSED:
            theirs = np.ascontiguousarray(theirs.T)
        if list(tensor.shape) != list(theirs.shape)[::-1]:
            sys.exit(f"{tensor.name} has shape {list(tensor.shape)}, expected {list(theirs.shape)[::-1]}")
        stored = np.asarray(tensor.data).view(np.uint8).ravel()
        if stored.tobytes() != gguf.quants.quantize(theirs, tensor.tensor_type).tobytes():
            sys.exit(f"{tensor.name} holds other numbers than the weights as {tensor.tensor_type.name}")
        types.setdefault(tensor.tensor_type.name, []).append(tensor.name)
    if expected:
        sys.exit(f"{model} lacks {sorted(expected)}")
    print("equal:", ", ".join(f"{len(names)} {name}" for name, names in sorted(types.items())))


# ---- llama.cpp

def open_llama(model, **options):
    import llama_cpp
    return llama_cpp.Llama(model, n_ctx=0, n_threads=1, n_threads_batch=1, n_gpu_layers=0, verbose=False, seed=1,
                           flash_attn=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, **options)


def generate(model, count, prompt):
    llama = open_llama(model)
    tokens = llama.tokenize(prompt.encode())
    prompt_tokens = len(tokens)
    for token in llama.generate(list(tokens), temp=0):
        tokens.append(token)
        if len(tokens) == prompt_tokens + int(count):
            break
    sys.stdout.buffer.write(llama.detokenize(tokens, special=True) + b"\n")


def tokens(model, path):
    ids = open_llama(model).tokenize(Path(path).read_bytes())
    sys.stdout.buffer.write(array.array("H", ids).tobytes())


def loss(model, path):
    import numpy as np
    llama = open_llama(model, logits_all=True)
    tokens = llama.tokenize(Path(path).read_bytes())[: int(llama.metadata["gpt2.context_length"])]
    llama.eval(tokens)
    logits = np.asarray(llama.scores[: len(tokens) - 1], dtype=np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    print(f"{np.mean(log_sums - logits[np.arange(len(tokens) - 1), tokens[1:]]):.6f}")


def keys(model):
    print(json.dumps(read_gguf(model)[0]))


def main():
    commands = {"numbers": check_numbers, "keys": keys, "tensors": check_tensors, "generate": generate,
                "tokens": tokens, "loss": loss}
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] not in commands:
        sys.exit(f"gguf_check.py: expected {', '.join(commands)}, found '{sys.argv[1]}'")
    commands[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
