"""What a PyTorch user would run on the same CPU: a BLOOM with ALiBi, AdamW on fp32 masters.

Prints one JSON line: tokens a second and processor time (median step), peak memory. Attention is written with
matrix products and one additive mask, which on a CPU is as fast as what torch has fused.
"""
import argparse, json, math, resource, statistics, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
for name, value in dict(hidden=256, layers=4, heads=8, vocab=8192, seq=256, batch=4, threads=2, steps=8, warmup=2).items():
    p.add_argument('--' + name, type=int, default=value)
p.add_argument('--dtype', default='fp32', choices=['fp32', 'bf16'])
a = p.parse_args()
torch.manual_seed(0)
torch.set_num_threads(a.threads)
h, L, n, V, s, b = a.hidden, a.layers, a.heads, a.vocab, a.seq, a.batch
dtype = torch.bfloat16 if a.dtype == 'bf16' else torch.float32

c = 2 ** math.floor(math.log2(n))
slopes = [2 ** (-8 * (i + 1) / c) for i in range(c)] + [2 ** (-8 * (2 * j + 1) / (2 * c)) for j in range(n - c)]
bias = torch.tensor(slopes).view(n, 1, 1) * torch.arange(s).view(1, 1, s)
mask = torch.full((s, s), float('-inf')).triu(1) + bias
mask = mask.to(dtype)[None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.dense = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).view(b, s, n, 3, h // n).permute(3, 0, 2, 1, 4)
        w = torch.baddbmm(mask.expand(b, -1, -1, -1).reshape(b * n, s, s), q.reshape(b * n, s, -1),
                          k.reshape(b * n, s, -1).transpose(1, 2), alpha=1 / math.sqrt(h // n))
        o = torch.softmax(w, -1) @ v.reshape(b * n, s, -1)
        x = x + self.dense(o.view(b, n, s, -1).transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate='tanh'))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.embln, self.lnf = nn.Embedding(V, h), nn.LayerNorm(h), nn.LayerNorm(h)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        for q in self.parameters():
            if q.dim() > 1:
                nn.init.normal_(q, std=0.02)

    def forward(self, ids, labels):
        x = self.embln(self.emb(ids))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.lnf(x), self.emb.weight).flatten(0, 1).float(), labels.flatten())


model = Model().to(dtype)
live = list(model.parameters())
master = [q.detach().float().requires_grad_() for q in live] if dtype != torch.float32 else live
opt = torch.optim.AdamW(master, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
times, busy = [], []
for step in range(a.warmup + a.steps):
    ids = torch.randint(0, V, (b, s + 1))
    begin, began = time.perf_counter(), time.process_time()
    loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    if master is not live:
        for m, q in zip(master, live):
            m.grad, q.grad = q.grad.float(), None
    torch.nn.utils.clip_grad_norm_(master, 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    if master is not live:
        with torch.no_grad():
            for m, q in zip(master, live):
                q.copy_(m)
    times.append(time.perf_counter() - begin)
    busy.append(time.process_time() - began)
median, cpu = statistics.median(times[a.warmup:]), statistics.median(busy[a.warmup:])
print(json.dumps(dict(peer='torch ' + torch.__version__, dtype=a.dtype, tokens_per_s=b * s / median, step_s=median, cpu_s=cpu,
                      max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
