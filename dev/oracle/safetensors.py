"""Reads and writes safetensors files: a u64 length, that many bytes of JSON, then the tensors' bytes, little-endian.

The JSON is {name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}; offsets count from its end.
"""
import json
import struct

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read(path):
    """{name: tensor} of a file, without `__metadata__`"""
    with open(path, "rb") as file:
        raw = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    data = 8 + struct.unpack("<Q", raw[:8].numpy().tobytes())[0]
    header = json.loads(raw[8:data].numpy().tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        copy = raw[data + begin : data + end].clone()  # new memory is aligned for any type
        tensors[name] = copy.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write(path, tensors):
    """Writes {name: tensor}, the widest types first, then by name, without gaps."""
    header, data, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        data.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        offsets = [offset, offset + len(data[-1])]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))
