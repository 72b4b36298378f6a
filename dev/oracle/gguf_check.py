#!/usr/bin/env python3
"""Reads a file of `train_gpt2 --export gguf` with the Python packages gguf and llama-cpp-python.

    gguf_check.py tensors MODEL.gguf FOLDER           every tensor against model.safetensors in FOLDER
    gguf_check.py generate MODEL.gguf N PROMPT        llama.cpp's N likeliest tokens after PROMPT, as text
    gguf_check.py tokens MODEL.gguf TEXT_FILE         llama.cpp's ids of a text, as uint16
    gguf_check.py loss MODEL.gguf TEXT_FILE           the mean loss of a text's first tokens, in nats

`tensors` needs gguf, and the rest llama-cpp-python: scripts/setup.sh test and scripts/setup.sh peers install them into
build/py. llama.cpp runs on the CPU with a key-value cache of fp32 and without flash attention.
"""
import json
import re
import struct
import sys
from pathlib import Path

import numpy as np

NAMES = {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_norm": "ln_1", "ffn_norm": "ln_2",
         "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
TRANSPOSED = {"attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"}


def read_safetensors(path):
    """{name: fp32 array}; BF16 is the upper half of fp32"""
    raw = path.read_bytes()
    data = 8 + struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:data]).items():
        if name != "__metadata__":
            begin, end = (data + offset for offset in entry["data_offsets"])
            bf16 = entry["dtype"] == "BF16"
            array = np.frombuffer(raw[begin:end], "<u2" if bf16 else {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
            array = (array.astype("<u4") << 16).view("<f4") if bf16 else array.astype("<f4")
            tensors[name.removeprefix("transformer.")] = array.reshape(entry["shape"])
    return tensors


def check_tensors(model, folder):
    import gguf
    expected = read_safetensors(Path(folder) / "model.safetensors")
    expected.pop("lm_head.weight", None)
    types = {}
    for tensor in gguf.GGUFReader(model).tensors:
        layer, name, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", tensor.name).groups()
        theirs = expected.pop((f"h.{layer}." if layer else "") + NAMES[name] + "." + kind)
        if f"{name}.{kind}" in TRANSPOSED:
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


def loss(model, path):
    llama = open_llama(model, logits_all=True)
    tokens = llama.tokenize(Path(path).read_bytes())[: int(llama.metadata["gpt2.context_length"])]
    llama.eval(tokens)
    logits = np.asarray(llama.scores[: len(tokens) - 1], dtype=np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    print(f"{np.mean(log_sums - logits[np.arange(len(tokens) - 1), tokens[1:]]):.6f}")


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    command, model, *rest = sys.argv[1:]
    if command == "tensors":
        check_tensors(model, rest[0])
    elif command == "generate":
        generate(model, *rest)
    elif command == "tokens":
        ids = open_llama(model).tokenize(Path(rest[0]).read_bytes())
        sys.stdout.buffer.write(np.array(ids, "<u2").tobytes())
    elif command == "loss":
        loss(model, rest[0])
    else:
        sys.exit(f"gguf_check.py: expected tensors, generate, tokens or loss, found '{command}'")


if __name__ == "__main__":
    main()
