#!/usr/bin/python3
"""Makes the golden vectors beside this file: what PyTorch computes in FP64, for every operation of kernels/kernels.h and
for whole tiny models. Needs PyTorch (Debian: python3-torch); reading them needs nothing. Run it without arguments.

Inputs are bf16 numbers of moderate size, so that they are the same numbers in FP32, bf16 and FP16 and one reference
serves all three. Hyper-parameters are rounded to FP32, as the kernels take them. Large tensors of models are sampled:
every STRIDE-th element, which comes by every column, and beside them the norm of the whole.
"""
import json
import math
import os
import struct

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
STRIDE = 11
TYPES = {torch.float32: ("F32", 4), torch.bfloat16: ("BF16", 2), torch.int32: ("I32", 4), torch.int16: ("I16", 2)}


def save(name, tensors, metadata=None):
    """A safetensors file. FP64 becomes bf16 where that is exact, as it is for inputs, and FP32 elsewhere."""
    header, blobs, at = {}, [], 0
    if metadata:
        header["__metadata__"] = {"config": json.dumps(metadata)}
    for key, t in tensors.items():
        t = torch.as_tensor(t).detach()
        if t.dtype == torch.float64:
            t = t.bfloat16() if torch.equal(t.bfloat16().double(), t) else t.float()
        elif t.dtype == torch.int64:
            t = t.int()
        blob = t.contiguous().flatten().view(torch.int16 if t.dtype == torch.bfloat16 else t.dtype).numpy().tobytes()
        header[key] = {"dtype": TYPES[t.dtype][0], "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    print(name, 8 + len(text) + at, "bytes")


def fp32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def randn(*shape, scale=1.0, shift=0.0):
    return (torch.randn(*shape) * scale + shift).to(torch.bfloat16).double().requires_grad_()


def grads(out, dout, *inputs):
    return [g for g in torch.autograd.grad(out, inputs, dout)]


# ---- Formulas ----


def rmsnorm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def inverse_frequencies(head_dim, theta, kind="plain", factor=1.0, low=1.0, high=1.0, original=1.0):
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2).double() / head_dim)
    if kind == "linear":
        return inverse / factor
    if kind == "llama3":  # transformers, modeling_rope_utils.py, _compute_llama3_parameters
        length = 2 * math.pi / inverse
        smooth = (original / length - low) / (high - low)
        between = (1 - smooth) * inverse / factor + smooth * inverse
        scaled = torch.where(length > original / low, inverse / factor, inverse)
        return torch.where((length <= original / low) & (length >= original / high), between, scaled)
    return inverse


def rope(x, positions, inverse):
    """x [..., T, H, HD], positions [..., T]; half against half."""
    # Inverse frequencies and angles are FP32 in the reference, so that they are here.
    angle = (positions.float()[..., None] * inverse.float()).double()
    cos, sin = angle.cos()[..., None, :], angle.sin()[..., None, :]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q, k, v, scale, window, doc_start):
    """q [B,T,NH,HD], k and v [B,T,NKV,HD]; returns out and lse [B,NH,T]."""
    T, group = q.shape[1], q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) * scale
    t, s = torch.arange(T)[:, None], torch.arange(T)[None, :]
    seen = (s <= t) & (s >= doc_start[:, :, None])
    if window:
        seen = seen & (s > t - window)
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v), scores.logsumexp(-1)


# ---- Operations ----


def operations():
    torch.manual_seed(1)
    out = {}

    def put(name, **tensors):
        out.update({f"{name}.{key}": value for key, value in tensors.items()})

    table, dout = randn(11, 20), randn(9, 20)
    tokens = torch.tensor([3, 0, 10, 3, 3, 7, 1, 10, 2])
    y = table[tokens]
    put("embedding", table=table, tokens=tokens, dout=dout, out=y, added=y + dout, dtable=grads(y, dout, table)[0])

    for name, shape, layernorm in (("rmsnorm", (7, 1, 40), 0), ("qknorm", (5, 3, 16), 0), ("layernorm", (7, 1, 40), 1)):
        x, dy, dresidual = randn(*shape, shift=0.25), randn(*shape), randn(*shape)
        weight, bias = randn(shape[-1], scale=0.2, shift=1.0), randn(shape[-1])
        eps = fp32(1e-5)
        if layernorm:
            y = F.layer_norm(x, shape[-1:], weight, bias, eps)
            dx, dweight, dbias = grads(y, dy, x, weight, bias)
            rstd = torch.rsqrt(x.var(-1, unbiased=False) + eps)
            put(name, bias=bias, dbias=dbias, mean=x.mean(-1))
        else:
            y = rmsnorm(x, weight, eps)
            dx, dweight = grads(y, dy, x, weight)
            rstd = torch.rsqrt(x.pow(2).mean(-1) + eps)
        put(name, x=x, weight=weight, y=y, rstd=rstd, dy=dy, dresidual=dresidual, dx=dx + dresidual, dweight=dweight)

    x, w, bias, dy, before = randn(13, 24), randn(18, 24, scale=0.2), randn(18), randn(13, 18), randn(13, 18)
    y = x @ w.T + bias
    dx, dw, dbias = grads(y, dy, x, w, bias)
    put("matmul", x=x, w=w, bias=bias, dy=dy, y=y, before=before, added=y + before, dx=dx, dw=dw, dbias=dbias)

    positions = torch.tensor([0, 1, 2, 3, 17, 40, 0, 1, 2, 63])
    for kind, theta, extra in (("plain", 10000.0, {}), ("linear", 10000.0, {"factor": 4.0}),
                               ("llama3", 500000.0, {"factor": 8.0, "low": 1.0, "high": 4.0, "original": 32.0})):
        x, dout = randn(10, 3, 12), randn(10, 3, 12)
        y = rope(x, positions, inverse_frequencies(12, theta, kind, **extra))
        put("rope_" + kind, x=x, dout=dout, y=y, dx=grads(y, dout, x)[0])
    put("rope", positions=positions)

    T = 37
    starts = torch.stack([torch.tensor([0] * 11 + [11] * 1 + [12] * 25), torch.tensor([0] * 30 + [30] * 7)])
    for name, window, doc_start in (("full", 0, torch.zeros(2, T, dtype=torch.long)), ("window", 7, starts * 0),
                                    ("documents", 20, starts)):
        q, k, v, dout = randn(2, T, 4, 20), randn(2, T, 2, 20), randn(2, T, 2, 20), randn(2, T, 4, 20)
        y, lse = attention(q, k, v, 1 / math.sqrt(20), window, doc_start)
        dq, dk, dv = grads(y, dout, q, k, v)
        put("attention_" + name, q=q, k=k, v=v, dout=dout, out=y, lse=lse, dq=dq, dk=dk, dv=dv, doc_start=doc_start)

    gate, up, dout = randn(5, 23, scale=2.0), randn(5, 23), randn(5, 23)
    y = F.silu(gate) * up
    dgate, dup = grads(y, dout, gate, up)
    put("swiglu", gate=gate, up=up, dout=dout, out=y, dgate=dgate, dup=dup)

    for name in ("tanh", "erf"):
        x, dy = randn(71, scale=2.0), randn(71)
        y = F.gelu(x, approximate="tanh") if name == "tanh" else F.gelu(x)
        put("gelu_" + name, x=x, y=y, dy=dy, dx=grads(y, dy, x)[0])

    a, b = randn(71), randn(71)
    put("residual", a=a, b=b, out=a + b)
    put("scale", x=a, factor=[0.375], out=a * 0.375)
    put("accumulate", before=a, src=b, factor=[0.375], out=a + b * 0.375)
    put("sum_squares", x=randn(301), sum=[0.0])
    out["sum_squares.sum"] = out["sum_squares.x"].pow(2).sum().reshape(1)

    logits, targets = randn(9, 37, scale=3.0), torch.tensor([0, 36, -1, 5, 5, -1, 17, 30, 2])
    losses = F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
    put("cross_entropy", logits=logits, targets=targets, losses=losses, dlogits=grads(losses.sum() * 0.125, None, logits)[0])

    special = [0.0, -0.0, math.inf, -math.inf, 1.0, -1.0, 1.00390625, 1.01171875, 65504.0, 65519.0, 65520.0, 1e38, 3.4e38,
               6.1e-5, 6e-5, 5.96e-8, 2.98e-8, 2.99e-8, 8.94e-8, 1e-10, 1e-39, -1e-40, 0.1, -0.3, 1 / 3]
    x = torch.tensor(special + (torch.randn(46) * 10 ** (torch.rand(46) * 8 - 6)).tolist()).float()
    put("cast", x=x, bf16=x.to(torch.bfloat16).view(torch.int16), fp16=x.to(torch.float16).view(torch.int16))
    raw = x.view(torch.int32).long()
    hi = ((raw + 0x8000) >> 16) & 0xffff
    lo = (raw - (hi << 16)) & 0xffff
    put("split", hi=((hi ^ 0x8000) - 0x8000).to(torch.int16), lo=((lo ^ 0x8000) - 0x8000).to(torch.int16))

    optimizers(put)
    save("operations.safetensors", out)


# ---- Optimizers ----

BETA1, BETA2, EPS, LR, DECAY = fp32(0.9), fp32(0.999), fp32(1e-8), fp32(1e-2), fp32(0.1)


def lion(p, m, g):
    p = p - LR * DECAY * p
    p = p - LR * torch.sign(BETA1 * m + (1 - BETA1) * g)
    return p, BETA2 * m + (1 - BETA2) * g


def adafactor(p, r, c, g, k, lr=LR, decay=DECAY):
    """Shazeer & Stern 2018, algorithm 4 for a matrix, 5 for a vector."""
    beta2 = fp32(1 - k ** -0.8)
    square = g * g + 1e-30
    if len(p) == 1:
        c = beta2 * c + (1 - beta2) * square[0]
        u = g / c.sqrt()
    else:
        r = beta2 * r + (1 - beta2) * square.mean(1)
        c = beta2 * c + (1 - beta2) * square.mean(0)
        u = g / (r[:, None] * c[None, :] / r.mean()).sqrt()
    u = u / max(1.0, u.pow(2).mean().sqrt().item())
    return p - lr * decay * p - lr * u, r, c


def optimizers(put):
    n, steps = 300, 3
    start, gradients = randn(n).detach(), randn(steps, n, scale=0.1).detach()
    put("update", p=start, grad=gradients)
    for name, make in (("adamw", lambda p: torch.optim.AdamW(p, LR, (BETA1, BETA2), EPS, DECAY)),
                       ("adam", lambda p: torch.optim.Adam(p, LR, (BETA1, BETA2), EPS, DECAY)),
                       ("sgd", lambda p: torch.optim.SGD(p, LR, BETA1, weight_decay=DECAY))):
        p = start.clone().requires_grad_()
        optimizer = make([p])
        for g in gradients:
            p.grad = g.clone()
            optimizer.step()
        state = optimizer.state[p]
        if name == "sgd":
            put(name, p=p, m=state["momentum_buffer"])
        else:
            put(name, p=p, m=state["exp_avg"], v=state["exp_avg_sq"])
    p, m = start, torch.zeros(n)
    for g in gradients:
        p, m = lion(p, m, g)
    put("lion", p=p, m=m)
    for name, shape in (("adafactor", (12, 25)), ("adafactor_vector", (1, 300))):
        p, r, c = start.reshape(shape), torch.zeros(shape[0]), torch.zeros(shape[1])
        for k, g in enumerate(gradients, 1):
            p, r, c = adafactor(p, r, c, g.reshape(shape), k)
        put(name, p=p, r=r, c=c)


# ---- Models ----

STEPS, MICRO, B, T, V, C, NH, NKV, L = 5, 2, 2, 24, 259, 64, 4, 2, 2
HYPER = {"lr": fp32(1e-3), "beta1": BETA1, "beta2": BETA2, "eps_adam": fp32(1e-5), "weight_decay": DECAY}


def llama_parameters(c):
    q, kv, p = NH * c["head_dim"], NKV * c["head_dim"], {"model.embed_tokens.weight": (V, C)}
    for i in range(L):
        h = f"model.layers.{i}."
        p[h + "input_layernorm.weight"] = (C,)
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            p[h + f"self_attn.{name}_proj.weight"] = (width, C)
            if c["qkv_bias"]:
                p[h + f"self_attn.{name}_proj.bias"] = (width,)
        if c["qk_norm"]:
            p[h + "self_attn.q_norm.weight"] = p[h + "self_attn.k_norm.weight"] = (c["head_dim"],)
        p[h + "self_attn.o_proj.weight"] = (C, q)
        p[h + "post_attention_layernorm.weight"] = (C,)
        p[h + "mlp.gate_proj.weight"] = p[h + "mlp.up_proj.weight"] = (c["ffn"], C)
        p[h + "mlp.down_proj.weight"] = (C, c["ffn"])
    p["model.norm.weight"] = (C,)
    if not c["tied"]:
        p["lm_head.weight"] = (V, C)
    return p


def llama(p, c, tokens, positions, doc_start):
    hd, eps, inverse = c["head_dim"], c["eps"], inverse_frequencies(c["head_dim"], c["theta"], **c["rope"])
    x = p["model.embed_tokens.weight"][tokens]
    for i in range(L):
        w = lambda name: p[f"model.layers.{i}.{name}"]
        h = rmsnorm(x, w("input_layernorm.weight"), eps)
        project = lambda n: F.linear(h, w(f"self_attn.{n}_proj.weight"), w(f"self_attn.{n}_proj.bias") if c["qkv_bias"] else None)
        q, k, v = (project(n).reshape(B, T, -1, hd) for n in "qkv")
        if c["qk_norm"]:
            q, k = rmsnorm(q, w("self_attn.q_norm.weight"), eps), rmsnorm(k, w("self_attn.k_norm.weight"), eps)
        q, k = rope(q, positions, inverse), rope(k, positions, inverse)
        h, _ = attention(q, k, v, 1 / math.sqrt(hd), c["window"], doc_start)
        x = x + F.linear(h.reshape(B, T, -1), w("self_attn.o_proj.weight"))
        h = rmsnorm(x, w("post_attention_layernorm.weight"), eps)
        h = F.silu(F.linear(h, w("mlp.gate_proj.weight"))) * F.linear(h, w("mlp.up_proj.weight"))
        x = x + F.linear(h, w("mlp.down_proj.weight"))
    x = rmsnorm(x, p["model.norm.weight"], eps)
    return F.linear(x, p["model.embed_tokens.weight" if c["tied"] else "lm_head.weight"])


def gpt2_parameters(c):
    p = {"wte.weight": (V, C), "wpe.weight": (32, C)}
    for i in range(L):
        h = f"h.{i}."
        for name, shape in (("ln_1", (C,)), ("attn.c_attn", (C, 3 * C)), ("attn.c_proj", (C, C)), ("ln_2", (C,)),
                            ("mlp.c_fc", (C, c["ffn"])), ("mlp.c_proj", (c["ffn"], C))):
            p[h + name + ".weight"], p[h + name + ".bias"] = shape, shape[-1:]
    p["ln_f.weight"] = p["ln_f.bias"] = (C,)
    return p


def gpt2(p, c, tokens, positions, doc_start):
    x = p["wte.weight"][tokens] + p["wpe.weight"][positions]
    for i in range(L):
        norm = lambda x, name: F.layer_norm(x, (C,), p[f"h.{i}.{name}.weight"], p[f"h.{i}.{name}.bias"], c["eps"])
        linear = lambda x, name: x @ p[f"h.{i}.{name}.weight"] + p[f"h.{i}.{name}.bias"]
        q, k, v = (h.reshape(B, T, NH, C // NH) for h in linear(norm(x, "ln_1"), "attn.c_attn").split(C, -1))
        h, _ = attention(q, k, v, 1 / math.sqrt(C // NH), 0, doc_start)
        x = x + linear(h.reshape(B, T, C), "attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh"), "mlp.c_proj")
    return F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"], c["eps"]) @ p["wte.weight"].T


LLAMA = {"family": "llama", "ffn": 96, "head_dim": 16, "eps": fp32(1e-5), "theta": 10000.0, "rope": {"kind": "plain"}, "window": 0,
         "qkv_bias": 0, "qk_norm": 0, "tied": 0, "documents": 0}
SCALED = {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 16.0}
MODELS = {
    "llama2": {**LLAMA, "documents": 1},
    "llama31": {**LLAMA, "theta": 500000.0, "rope": SCALED},
    "qwen2": {**LLAMA, "theta": 1000000.0, "eps": fp32(1e-6), "qkv_bias": 1, "tied": 1},
    "qwen3": {**LLAMA, "theta": 1000000.0, "eps": fp32(1e-6), "qk_norm": 1, "head_dim": 32},
    "mistral": {**LLAMA, "window": 8},
    "gpt2": {"family": "gpt2", "ffn": 256, "head_dim": 16, "eps": fp32(1e-5), "window": 0, "tied": 1, "documents": 0},
}


def sample(t):
    return (t.flatten()[::STRIDE] if t.numel() > 1024 else t.flatten()).detach().clone()


def initial(name, shape):
    if len(shape) > 1:
        return randn(*shape, scale=0.08)
    return randn(*shape, scale=0.1, shift=0.0 if name.endswith("bias") else 1.0)


def adamw(parameters):
    decayed, others = ([p for p in parameters if (p.dim() > 1) == matrices] for matrices in (True, False))
    return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], HYPER["lr"],
                             (HYPER["beta1"], HYPER["beta2"]), HYPER["eps_adam"], HYPER["weight_decay"])


class Adafactor:
    """Each parameter factored by itself; no decay on vectors."""

    def __init__(self, parameters):
        self.parameters, self.steps = parameters, 0
        self.moments = [(torch.zeros(p.numel() // p.shape[-1]), torch.zeros(p.shape[-1])) for p in parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        self.steps += 1
        for i, p in enumerate(self.parameters):
            decay = HYPER["weight_decay"] if p.dim() > 1 else 0.0
            matrix, grad = (x.detach().reshape(-1, p.shape[-1]) for x in (p, p.grad))
            result, *self.moments[i] = adafactor(matrix, *self.moments[i], grad, self.steps, HYPER["lr"], decay)
            p.data.copy_(result.reshape(p.shape))


def model(name, c, make_optimizer=adamw):
    """Five steps from the seed's model on the seed's data. Returns what save takes."""
    torch.manual_seed(2)
    shapes, forward = (gpt2_parameters(c), gpt2) if c["family"] == "gpt2" else (llama_parameters(c), llama)
    p = {key: initial(key, shape) for key, shape in shapes.items()}
    out = {"initial." + key: value.detach().clone() for key, value in p.items()}
    tokens = torch.randint(V, (STEPS, MICRO, B, T + 1))
    targets = tokens[..., 1:].masked_fill(torch.rand(STEPS, MICRO, B, T) < 0.2, -1)
    tokens = tokens[..., :-1]
    doc_start = torch.zeros(B, T, dtype=torch.long)
    if c["documents"]:
        doc_start = torch.stack([torch.tensor([0] * 9 + [9] * 15), torch.tensor([0] * 5 + [5] * 12 + [17] * 7)])
    positions = torch.arange(T)[None] - doc_start
    optimizer = make_optimizer(list(p.values()))
    losses, norms, limit = [], [], 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        count, loss = (targets[step] >= 0).sum(), 0.0
        for micro in range(MICRO):
            logits = forward(p, c, tokens[step, micro], positions, doc_start)
            part = F.cross_entropy(logits.flatten(0, 1), targets[step, micro].flatten(), ignore_index=-1, reduction="sum") / count
            part.backward()
            loss += part.item()
            if step == 0 and micro == 0:
                out["logits"] = sample(logits)
        norm = torch.stack([value.grad.norm() for value in p.values()]).norm().item()
        if step == 0:
            limit = fp32(0.7 * norm)  # so that it bites
            for key, value in p.items():
                out["grad." + key] = sample(value.grad)
            out["grad_norms"] = torch.stack([value.grad.norm() for value in p.values()])
        torch.nn.utils.clip_grad_norm_(list(p.values()), limit)
        losses.append(loss)
        norms.append(norm)
        optimizer.step()
    out.update({"after." + key: sample(value) for key, value in p.items()})
    out.update(tokens=tokens, targets=targets, doc_start=doc_start, positions=positions, losses=losses, norms=norms)
    sizes = {"steps": STEPS, "micro": MICRO, "B": B, "T": T, "V": V, "C": C, "NH": NH, "L": L, "stride": STRIDE, "clip": limit,
             "NKV": NH if c["family"] == "gpt2" else NKV}
    return out, {**sizes, **HYPER, **c}


if __name__ == "__main__":
    operations()
    for name, config in MODELS.items():
        save(name + ".safetensors", *model(name, config))
    trained = {}
    for name in ("llama2", "qwen2", "gpt2"):
        out, _ = model(name, MODELS[name], Adafactor)
        trained.update({f"{name}.{key}": value for key, value in out.items() if key.startswith(("after.", "losses", "norms"))})
    save("adafactor.safetensors", trained, {"stride": STRIDE})
