#!/usr/bin/env python3
"""Writes a model of Hugging Face's format in another form, with nothing but Python: an oracle for `-e`.

    python3 dev/oracle/model_files.py FOLDER OUT.bin [bf16]    llm.c's model file, version 3, or 5 with bf16
    python3 dev/oracle/model_files.py FOLDER OUT COUNT         a folder: COUNT .safetensors files and their index
    python3 dev/oracle/model_files.py FOLDER OUT F32|BF16|F16  a folder: model.safetensors with numbers of that type

FOLDER holds config.json and model.safetensors in F32, BF16 or F16, as the trainer and transformers write them.
"""
import array
import json
import os
import shutil
import struct
import sys

LAYER = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
         "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
         "mlp.c_proj.bias"]
CONV1D = {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"}


def read(path):
    """{name: (entry of the header, bytes)} of a .safetensors file"""
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry, data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write(path, tensors):
    """{name: (entry, bytes)}; data_offsets of the entries do not count"""
    header, offset = {}, 0
    for name, (entry, data) in tensors.items():
        header[name] = {**entry, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def words(entry, data):
    """the bits of F32 numbers"""
    if entry["dtype"] == "BF16":
        return array.array("I", (half << 16 for half in array.array("H", data)))
    if entry["dtype"] == "F16":
        data = array.array("f", struct.unpack(f"<{len(data) // 2}e", data)).tobytes()
    elif entry["dtype"] != "F32":
        sys.exit(f"model_files.py: found a tensor of {entry['dtype']}, expected F32, BF16 or F16")
    return array.array("I", data)


def out_in(entry, numbers):
    """the transpose of an (in, out) table"""
    rows, cols = entry["shape"]
    return array.array("I", (numbers[r * cols + c] for c in range(cols) for r in range(rows)))


def nearest_bf16(word):
    upper, lower = word >> 16, word & 0xFFFF
    return upper + (lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1))


def encoded(numbers, dtype):
    """the bytes in F32, BF16 or F16 of F32 numbers that are given as bits"""
    if dtype == "F32":
        return numbers.tobytes()
    if dtype == "BF16":
        return array.array("H", map(nearest_bf16, numbers)).tobytes()
    return struct.pack(f"<{len(numbers)}e", *array.array("f", numbers.tobytes()))


def write_llmc(folder, out, bf16):
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in
               read(os.path.join(folder, "model.safetensors")).items()}
    with open(os.path.join(folder, "config.json")) as file:
        c = json.load(file)
    V, C, L = c["vocab_size"], c["n_embd"], c["n_layer"]
    Vp = V + -V % 128
    names = ["wte.weight", "wpe.weight"]
    names += [f"h.{layer}.{name}" for name in LAYER for layer in range(L)]
    names += ["ln_f.weight", "ln_f.bias"]
    header = [20240326, 5 if bf16 else 3, c["n_positions"], V, L, c["n_head"], C, Vp]
    with open(out, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * 248))
        for name in names:
            entry, data = tensors[name]
            numbers = words(entry, data)
            if name.split(".", 2)[-1] in CONV1D:
                numbers = out_in(entry, numbers)
            if name == "wte.weight":
                numbers.extend([0] * ((Vp - V) * C))
            file.write(encoded(numbers, "BF16" if bf16 else "F32"))


def write_several(folder, out, count):
    tensors = read(os.path.join(folder, "model.safetensors"))
    os.makedirs(out, exist_ok=True)
    shutil.copy(os.path.join(folder, "config.json"), out)
    weight_map = {}
    for k in range(count):
        file = f"model-{k + 1:05}-of-{count:05}.safetensors"
        mine = dict(list(tensors.items())[k::count])
        write(os.path.join(out, file), mine)
        weight_map.update({name: file for name in mine})
    total = sum(len(data) for _, data in tensors.values())
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=2)


def write_rounded(folder, out, dtype):
    rounded = {}
    for name, (entry, data) in read(os.path.join(folder, "model.safetensors")).items():
        rounded[name] = ({**entry, "dtype": dtype}, encoded(words(entry, data), dtype))
    os.makedirs(out, exist_ok=True)
    shutil.copy(os.path.join(folder, "config.json"), out)
    write(os.path.join(out, "model.safetensors"), rounded)


def main():
    if len(sys.argv) in (3, 4) and sys.argv[2].endswith(".bin") and sys.argv[3:] in ([], ["bf16"]):
        write_llmc(sys.argv[1], sys.argv[2], len(sys.argv) == 4)
    elif len(sys.argv) == 4 and sys.argv[3].isdecimal() and int(sys.argv[3]) > 0:
        write_several(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) == 4 and sys.argv[3] in ("F32", "BF16", "F16"):
        write_rounded(*sys.argv[1:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
