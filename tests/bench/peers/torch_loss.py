"""Peer of a training run: the same model, weights, samples and schedule in PyTorch; what does the loss do?

Reads the weights that `train` saved before its first real step (a tag of TP 1, PP 1), and `train`'s
samples through the index files that it left beside the data. Everything else is PyTorch's: bf16 weights,
fp32 masters, clipping, AdamW, and on a GPU flex attention in compiled blocks. Says a line an iteration, in
Megatron's form. Runs with PyTorch 1.13 too, where the attention is a plain softmax.

  torch_loss.py --weights CKPT/global_step1 --data PREFIX --seed 1234 --heads 16 --seq 2048 --batch 8 \
      --iters 300 --lr 3e-4 --min-lr 3e-5 --warmup 30
"""
import argparse
import glob
import math
import os
import re
import time

import numpy as np
import torch
import torch.nn.functional as F


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--weights", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--seed", type=int, default=1234)
    p.add_argument("--heads", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--micro", type=int, help="samples at once, of --batch")
    p.add_argument("--iters", type=int, required=True)
    p.add_argument("--lr", type=float, required=True)
    p.add_argument("--min-lr", type=float, default=0)
    p.add_argument("--warmup", type=int, default=0, help="iterations")
    p.add_argument("--wd", type=float, default=0.1)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--beta2", type=float, default=0.95)
    p.add_argument("--compile", type=int, default=int(torch.cuda.is_available()))
    p.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    return p.parse_args()


def read_weights(tag, dtype, device):
    """{number of the layer file: {name: tensor}}, in order."""
    layers = {}
    for path in sorted(glob.glob(os.path.join(tag, "layer_*-model_00-model_states.pt"))):
        number = int(re.search(r"layer_(\d+)-", path).group(1))
        layers[number] = {k: v.to(device, dtype).requires_grad_() for k, v in torch.load(path, map_location="cpu").items()}
    return [layers[n] for n in sorted(layers)]


class Samples:
    """Sample k of the run, s + 1 tokens, as Megatron's GPTDataset finds it."""

    def __init__(self, o):
        with open(o.data + ".idx", "rb") as f:
            head = f.read(34)
            assert head[:9] == b"MMIDIDX\0\0", "not an .idx of the mmap kind"
            kind = {1: np.uint8, 3: np.int16, 4: np.int32, 8: np.uint16}[head[17]]
            n = int.from_bytes(head[18:26], "little")
            self.len = np.frombuffer(f.read(4 * n), np.int32)
            self.at = np.frombuffer(f.read(8 * n), np.int64) // np.dtype(kind).itemsize
        self.tokens = np.memmap(o.data + ".bin", kind, "r")
        index = "%s_train_indexmap_%dns_%dsl_%ds_" % (o.data, o.iters * o.batch, o.seq, o.seed)
        self.doc, self.place, self.order = (np.load(index + x + "_idx.npy") for x in ("doc", "sample", "shuffle"))
        self.s = o.seq

    def __getitem__(self, k):
        j = self.order[k]
        (first, start), (last, end) = self.place[j], self.place[j + 1]
        parts = []
        for i in range(first, last + 1):
            d = self.doc[i]
            parts.append(self.tokens[self.at[d] + (start if i == first else 0):
                                     self.at[d] + (end + 1 if i == last else self.len[d])])
        sample = np.concatenate(parts).astype(np.int64)
        assert len(sample) == self.s + 1
        return sample


def alibi_table(n, s, dtype, device):
    """[n, s]: slope of the head times the key's position, rounded to the weights' dtype as the original does."""
    c = 2 ** math.floor(math.log2(n))
    slopes = [2 ** (-8 * (i + 1) / c) for i in range(c)] + [2 ** (-8 * (2 * j + 1) / (2 * c)) for j in range(n - c)]
    table = torch.tensor(slopes, dtype=torch.float32)[:, None] * torch.arange(s, dtype=torch.float32)
    return table.to(dtype).float().to(device)


def plain_attention(table):
    s = table.shape[1]
    future = torch.ones(s, s, dtype=torch.bool, device=table.device).triu(1)

    def attention(q, k, v):
        score = (q.float() @ k.float().transpose(-1, -2)) / math.sqrt(q.shape[-1]) + table[:, None, :]
        return (score.masked_fill(future, float("-inf")).softmax(-1) @ v.float()).to(v.dtype)
    return attention


def flex(table):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    s = table.shape[1]
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, s, s, device=table.device)

    def bias(score, b, h, q, k):
        return score + table[h, k]
    return lambda q, k, v: flex_attention(q, k, v, score_mod=bias, block_mask=mask)


def wide(f, dtype):
    """f computed in fp32 and rounded once."""
    def call(*args, **named):
        return f(*(x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in args), **named).to(dtype)
    return call


def build(layers, o, device, dtype):
    """Mean loss of (ids, labels) as a function."""
    table = alibi_table(o.heads, o.seq, dtype, device)
    attention = flex(table) if o.compile and device == "cuda" else plain_attention(table)
    n = o.heads
    embed, linear, layer_norm, gelu = F.embedding, F.linear, F.layer_norm, F.gelu
    if device == "cpu":
        # PyTorch 1.13 adds up bf16 products in bf16 there, and learns nothing.
        embed, linear, layer_norm, gelu = (wide(f, dtype) for f in (embed, linear, layer_norm, gelu))

    def block(x, w):
        b, s, h = x.shape
        u = layer_norm(x, (h,), w["input_layernorm.weight"], w["input_layernorm.bias"])
        qkv = linear(u, w["self_attention.query_key_value.weight"], w["self_attention.query_key_value.bias"])
        q, k, v = qkv.view(b, s, n, 3, h // n).permute(3, 0, 2, 1, 4)
        a = attention(q, k, v).transpose(1, 2).reshape(b, s, h)
        y = x + linear(a, w["self_attention.dense.weight"], w["self_attention.dense.bias"])
        u = layer_norm(y, (h,), w["post_attention_layernorm.weight"], w["post_attention_layernorm.bias"])
        up = gelu(linear(u, w["mlp.dense_h_to_4h.weight"], w["mlp.dense_h_to_4h.bias"]), approximate="tanh")
        return y + linear(up, w["mlp.dense_4h_to_h.weight"], w["mlp.dense_4h_to_h.bias"])

    def head(x, norm_w, norm_b, word, labels):
        x = layer_norm(x, x.shape[-1:], norm_w, norm_b)
        return F.cross_entropy(linear(x, word).flatten(0, 1).float(), labels.flatten())

    if o.compile:
        # One compilation serves all blocks: their weights are arguments.
        block, head = torch.compile(block), torch.compile(head)
    first, last = layers[0], layers[-1]

    def loss(ids, labels):
        word = first["word_embeddings.weight"]
        x = embed(ids, word)
        x = layer_norm(x, x.shape[-1:], first["word_embeddings.norm.weight"], first["word_embeddings.norm.bias"])
        for w in layers[1:-1]:
            x = block(x, w)
        return head(x, last["weight"], last["bias"], word, labels)
    return loss


def rate(o, samples):
    """Learning rate of the update that is made when so many samples were seen."""
    warm, all_ = o.warmup * o.batch, o.iters * o.batch
    if samples <= warm and warm > 0:
        return o.lr * samples / warm
    return o.min_lr + 0.5 * (math.cos(math.pi * (samples - warm) / (all_ - warm)) + 1) * (o.lr - o.min_lr)


def main():
    o = options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
    begin = time.time()
    layers = read_weights(o.weights, dtype, device)
    live = [w for layer in layers for w in layer.values()]
    master = [w.detach().float().clone() for w in live]
    groups = [{"params": [m for m in master if m.dim() > 1], "weight_decay": o.wd},
              {"params": [m for m in master if m.dim() == 1], "weight_decay": 0}]
    fused = {"fused": True} if device == "cuda" else {}
    adam = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, o.beta2), eps=1e-8, **fused)
    loss_of, samples = build(layers, o, device, dtype), Samples(o)
    told = []

    def tell():
        for i, loss, norm in told:
            print(" iteration %8d/%8d | consumed samples: %12d | learning rate: %.3E | lm loss: %.6E | grad norm: %.3f |"
                  % (i + 1, o.iters, (i + 1) * o.batch, rate(o, (i + 1) * o.batch), loss.item(), norm.item()), flush=True)
        told.clear()

    for i in range(o.iters):
        batch = np.stack([samples[i * o.batch + j] for j in range(o.batch)])
        batch = torch.from_numpy(batch).to(device)
        loss, parts = 0, batch.split(o.micro or o.batch)
        for m in master:
            m.grad = None
        for part in parts:
            mean = loss_of(part[:, :-1].contiguous(), part[:, 1:].contiguous()) / len(parts)
            mean.backward()
            loss += mean.detach()
            for m, w in zip(master, live):
                m.grad = w.grad.float() if m.grad is None else m.grad + w.grad.float()
                w.grad = None
        with torch.no_grad():
            norm = torch.nn.utils.clip_grad_norm_(master, o.clip)
            for g in adam.param_groups:
                g["lr"] = rate(o, i * o.batch)
            adam.step()
            for m, w in zip(master, live):
                w.copy_(m)
        told.append((i, loss, norm))
        if i == 0 or i % 50 == 49 or i == o.iters - 1:
            tell()
        if i == 0:
            print("first step after %.1f s" % (time.time() - begin), flush=True)
    print("all after %.1f s" % (time.time() - begin), flush=True)


main()
