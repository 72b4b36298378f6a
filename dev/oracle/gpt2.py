"""GPT-2 in plain PyTorch, the reference for the trainer's results and times. For torch 2, CPU or CUDA.

Shapes: B batch, T positions used, V vocabulary, L layers, NH heads, C channels, HS = C / NH.
Modules have Hugging Face's names, so a parameter has the same name here and in a checkpoint without a prefix.
hf_tensors and load_hf handle the one difference: nn.Linear stores [out, in], Hugging Face's Conv1D stores [in, out].
"""
import inspect
import re
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

Shape = namedtuple("Shape", "L NH C")
NAMED_SHAPES = {"d12": Shape(12, 12, 768), "d24": Shape(24, 16, 1024),
                "d36": Shape(36, 20, 1280), "d48": Shape(48, 25, 1600)}


def parse_shape(text):
    """Shape of "d12" (GPT-2's four sizes, by depth) or "l4h4c128" (any)."""
    match = re.fullmatch(r"l(\d+)h(\d+)c(\d+)", text)
    if not match and text not in NAMED_SHAPES:
        raise ValueError(f"shape {text!r}: expected l<layers>h<heads>c<channels> or one of {', '.join(NAMED_SHAPES)}")
    return Shape(*map(int, match.groups())) if match else NAMED_SHAPES[text]


def causal_attention(q, k, v):
    """softmax(q k^T / sqrt(HS), past only) v; all [B, NH, T, HS]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    def __init__(self, NH, C):
        super().__init__()
        self.NH = NH
        self.ln_1 = nn.LayerNorm(C, eps=1e-5)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C), "c_proj": nn.Linear(C, C)})
        self.ln_2 = nn.LayerNorm(C, eps=1e-5)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x))  # [B, T, 3C]: q, k, v one after another, heads side by side in each
        q, k, v = (x.view(B, T, self.NH, C // self.NH).transpose(1, 2) for x in qkv.split(C, dim=2))
        heads = causal_attention(q, k, v).transpose(1, 2).reshape(B, T, C)
        x = x + self.attn["c_proj"](heads)
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")  # [B, T, 4C]
        return x + self.mlp["c_proj"](hidden)


class GPT2(nn.Module):
    def __init__(self, shape, V, max_T):
        super().__init__()
        self.shape, self.max_T = shape, max_T
        self.wte = nn.Embedding(V, shape.C)
        self.wpe = nn.Embedding(max_T, shape.C)
        self.h = nn.ModuleList(Block(shape.NH, shape.C) for _ in range(shape.L))
        self.ln_f = nn.LayerNorm(shape.C, eps=1e-5)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # two projections a layer add to the residual stream: scaled so that the variance does not grow with L
                nn.init.normal_(parameter, std=0.02 / (2 * shape.L) ** 0.5 if "c_proj" in name else 0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)  # LayerNorm weights are ones already

    def forward(self, tokens, targets):
        """Logits [B, T, V] and their mean cross entropy, a scalar; tokens and targets are [B, T] int64."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # the head is the embedding
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def is_transposed(name):
    """Whether Hugging Face stores this tensor as the transpose of nn.Linear's: the four matrices of a block."""
    return re.search(r"\.c_(attn|proj|fc)\.weight$", name) is not None


def hf_tensors(model, field="data"):
    """Every parameter's `data` or `grad` as {Hugging Face name: a copy in Hugging Face's layout}."""
    tensors = {name: getattr(parameter, field).detach() for name, parameter in model.named_parameters()}
    return {name: (x.t() if is_transposed(name) else x).contiguous().clone() for name, x in tensors.items()}


def load_hf(model, tensors):
    """Copies tensors in the layout of hf_tensors into the model. The names must be exactly the model's."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys():
        raise ValueError(f"not in both the file and the model: {sorted(parameters.keys() ^ tensors.keys())}")
    for name, parameter in parameters.items():
        source = tensors[name].t() if is_transposed(name) else tensors[name]
        if source.shape != parameter.shape:  # copy_ would broadcast
            raise ValueError(f"{name}: found {list(tensors[name].shape)}, which does not fit the model's shape")
        parameter.data.copy_(source)


def make_adamw(model, lr, betas=(0.9, 0.95), weight_decay=0.1):
    """AdamW that decays the 2-D tensors only, both embeddings among them; fused if this torch and device can.

    Otherwise torch's default: foreach on CUDA, a loop on a CPU, where foreach was 1.3 to 5 times slower (d12, 1.13).
    """
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": weight_decay},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8, fused=True)
    except (TypeError, RuntimeError):  # an older torch: no such argument, or not on this device
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8)


class MuonAndAdamW:
    """torch.optim.Muon for the matrices of blocks, q, k and v as three, and AdamW for the rest.

    torch computes Newton-Schulz in bf16. products: "float32" or "float64" runs the same code in that type.
    """

    def __init__(self, model, lr, betas=(0.9, 0.95), weight_decay=0.1, momentum=0.95, products="bfloat16"):
        import torch.optim._muon as torch_muon
        source = inspect.getsource(torch_muon._zeropower_via_newtonschulz)
        exec(source.replace("torch.bfloat16", f"torch.{products}"), torch_muon.__dict__)
        matrices = [p for name, p in model.named_parameters() if name.startswith("h.") and p.dim() == 2]
        self.parts = []  # (parameter of torch.optim.Muon, whole parameter, its rows): a view of the whole
        for p in matrices:
            rows = p.shape[1] if p.shape[0] == 3 * p.shape[1] else p.shape[0]
            for begin in range(0, p.shape[0], rows):
                self.parts.append((nn.Parameter(p.data[begin:begin + rows]), p, slice(begin, begin + rows)))
        self.muon = torch.optim.Muon([part for part, _, _ in self.parts], lr=lr, weight_decay=weight_decay,
                                     momentum=momentum, adjust_lr_fn="match_rms_adamw")
        ids = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in ids]
        groups = [{"params": [p for p in rest if p.dim() == 2], "weight_decay": weight_decay},
                  {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8)
        self.matrices = matrices
        self.param_groups = self.muon.param_groups + self.adamw.param_groups

    def step(self):
        for part, whole, rows in self.parts:
            part.grad = whole.grad[rows]
        self.muon.step()
        self.adamw.step()

    def zero_grad(self, set_to_none=True):
        self.adamw.zero_grad(set_to_none)
        for p in self.matrices:
            p.grad = None


def train_step(model, optimizer, tokens, targets, clip=1.0, bf16=False):
    """One update; returns the loss before it and the gradient norm before clipping, as scalar tensors.

    bf16: matmuls run under autocast; parameters keep their type.

    torch scales by clip / (norm + 1e-6). An exact clip / norm differs from that by a relative 1e-6 / norm.
    """
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
        _, loss = model(tokens, targets)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), norm
