"""The PyTorch side of compare_train: trains a preset's shape from random weights and prints a JSON line a step.

It is the same work as a step of offtrain: causal language modelling in packed sequences, tied embeddings, cross-entropy
over the whole vocabulary, the gradient's norm clipped, AdamW. Weights are FP32; with bf16 the forward pass runs under
autocast. Query, key and value are one product, and so are gate and up: that is faster than three and two. Attention is
batched products with the mask added inside the first of them, the heads of a group side by side so that keys and values
are never repeated; PyTorch 1.13 has no fused attention on CPUs.
"""
import argparse
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional

SHAPES = {
    "124m": {"gpt2": True, "V": 50257, "L": 12, "C": 768, "NH": 12, "NKV": 12, "F": 3072},
    "135m": {"gpt2": False, "V": 49152, "L": 30, "C": 576, "NH": 9, "NKV": 3, "F": 1536},
}
HD = 64
ROPE_THETA = 100000


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def rope_tables(length):
    angles = torch.outer(torch.arange(length).float(), ROPE_THETA ** (-torch.arange(0, HD, 2).float() / HD))
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)


def rotate(x, tables):
    """x [B,heads,T,HD]"""
    cos, sin = tables
    return x * cos.to(x.dtype) + x.roll(HD // 2, -1) * sin.to(x.dtype)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, hidden, gpt2 = shape["C"], shape["F"], shape["gpt2"]
        self.heads, self.groups, self.gpt2 = shape["NH"], shape["NKV"], gpt2
        norm = nn.LayerNorm if gpt2 else RMSNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, (self.heads + 2 * self.groups) * HD, bias=gpt2)
        self.out = nn.Linear(self.heads * HD, width, bias=gpt2)
        self.up = nn.Linear(width, hidden if gpt2 else 2 * hidden, bias=gpt2)
        self.down = nn.Linear(hidden, width, bias=gpt2)

    def attention(self, x, mask, rope):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split([self.heads * HD, self.groups * HD, self.groups * HD], -1)
        q, k, v = (part.view(batch, length, -1, HD).transpose(1, 2) for part in (q, k, v))
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        q = q.reshape(batch * self.groups, -1, HD)
        k, v = (part.reshape(batch * self.groups, length, HD) for part in (k, v))
        scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=1 / math.sqrt(HD))
        out = torch.bmm(torch.softmax(scores, -1), v)
        return self.out(out.view(batch, self.heads, length, HD).transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x, mask, rope):
        x = x + self.attention(self.norm1(x), mask, rope)
        hidden = self.up(self.norm2(x))
        if self.gpt2:
            hidden = functional.gelu(hidden, approximate="tanh")
        else:
            gate, up = hidden.chunk(2, -1)
            hidden = functional.silu(gate) * up
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self, shape, length):
        super().__init__()
        self.tokens = nn.Embedding(shape["V"], shape["C"])
        self.positions = nn.Embedding(1024, shape["C"]) if shape["gpt2"] else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["L"]))
        self.norm = (nn.LayerNorm if shape["gpt2"] else RMSNorm)(shape["C"])
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.rope = None if shape["gpt2"] else rope_tables(length)
        mask = torch.full((length, length), -math.inf).triu(1)
        self.mask = mask.repeat(shape["NH"] // shape["NKV"], 1)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.mask, self.rope)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(42)
    model = Model(SHAPES[arguments.model], arguments.seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0, foreach=True)
    for step in range(1, arguments.steps + 1):
        data = torch.randint(0, 256, (arguments.batch_size, arguments.seq_len + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = model(data[:, :-1], data[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        print(json.dumps({"step": step, "loss": value, "step_s": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
