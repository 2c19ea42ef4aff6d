#!/usr/bin/env python3
"""Where each millisecond of a step goes, and how near each class of kernels is to its limit.

  roofline.py TRACE.csv --hidden 1024 --layers 24 --heads 16 --vocab 250880 --batch 8 [--seq 2048] [--json]

TRACE.csv is what tests/tools/kernel_times.c wrote of a run on one GPU: one micro-batch a step, no dropout, ALiBi.
Which layer a matrix product belongs to is told by its neighbours: between LayerNorm and attention it is
query_key_value, and so on. Floating-point operations and bytes are those that the work needs at least, whatever
was really done; a class's limit is the larger of operations / PEAK and bytes / BANDWIDTH (--peak, --bandwidth).
The table is Markdown, for docs/performance.md.
"""
import argparse
import json
import re
import sys

# What a kernel does, by its name; the letter is what tells the layer of products beside it.
KINDS = [
    (r"^(norm_rows|norm_any)", "LayerNorm, residual, bias", "A"),
    (r"^(back_rows|back_any)", "LayerNorm backward", "R"),
    (r"^(sum_strips|add_chunks)", "bias and LayerNorm gradients", "C"),
    (r"^(forward|plain_forward)\b", "attention forward", "F"),
    (r"^(back_q|back_kv|plain_back|dots)", "attention backward", "T"),
    (r"^(row_stat|loss_each)", "cross entropy", "S"),
    (r"^row_back", "cross entropy", "B"),
    (r"^sum_weighted", "casts and sums", "E"),
    (r"^sumsq", "gradient norm", "E"),
    (r"^adamw", "AdamW", "O"),
    (r"^(gather|make_keys|short_rows|long_rows|finish|position_)|[Rr]adix|cub::", "embedding", "M"),
    (r"^(cast_packs|scale_packs|add_packs|doubles_add|gelu_packs)", "casts and sums", None),
    (r"^(copy|fill)", "copies and fills", None),
    (r"[Nn]ccl", "NCCL", "N"),
]
# Products in a row, by what is before and behind them.
PLACES = {
    "AF": ["qkv"], "FA": ["dense"], "AA": ["up", "down"], "AS": ["head"], "BS": ["head dW", "head dx", "head"],
    "BE": ["head dW", "head dx"], "CC": ["down dW", "down dx", "up dx", "up dW"],
    "CT": ["dense dW", "dense dx"], "TC": ["qkv dx", "qkv dW"],
}


def options():
    p = argparse.ArgumentParser()
    p.add_argument("trace")
    for name in ("hidden", "layers", "heads", "vocab", "batch"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--seq", type=int, default=2048)
    p.add_argument("--peak", type=float, default=720, help="TFLOP/s of large bf16 products")
    p.add_argument("--bandwidth", type=float, default=4.2, help="TB/s of a large copy")
    p.add_argument("--json", action="store_true")
    return p.parse_args()


def read(path):
    """[(step, begin, duration in us, name)]"""
    events = []
    for line in open(path):
        step, begin, us, _, name = line.rstrip("\n").split(",", 4)
        events.append((int(step), float(begin), float(us), name))
    return events


def kind_of(name):
    for pattern, kind, letter in KINDS:
        if re.search(pattern, name):
            return kind, letter
    return None, None                   # a matrix product: cuBLASLt's names tell nothing


def label(events):
    """The class of each event; products get their layer's name."""
    out, letters, run = [], [], []
    for e in events:
        kind, letter = kind_of(e[3])
        out.append(kind)
        letters.append(letter)
    before = ""
    for i, (kind, letter) in enumerate(zip(out, letters)):
        if kind is None:
            # The second kernel of a product that is split over its depth belongs to the first.
            if run and "splitKreduce" in events[i][3]:
                run[-1].append(i)
            else:
                run.append([i])
        elif letter:
            if run:
                place = PLACES.get(before + letter, [])
                for n, ids in enumerate(run):
                    name = place[n] if len(place) == len(run) else "unknown, between " + before + letter
                    for j in ids:
                        out[j] = "product " + name
                run = []
            before = letter
    for ids in run:
        for j in ids:
            out[j] = "product unknown, at the end"
    return out


def needs(o):
    """{class: (operations, bytes)} of a step."""
    T, h, L, V, s = o.batch * o.seq, o.hidden, o.layers, o.vocab, o.seq
    params = V * h + L * (12 * h * h + 13 * h) + 4 * h
    n = {}
    for name, rows, cols, times in (("qkv", 3 * h, h, L), ("dense", h, h, L), ("up", 4 * h, h, L),
                                    ("down", h, 4 * h, L), ("head", V, h, 1)):
        # up also writes what GELU's derivative needs; down dx reads it.
        extra = {"up": 2 * T * rows, "down dx": 2 * T * cols}
        for part, size in (("", 2 * T * (rows + cols) + 2 * rows * cols), (" dx", 2 * T * (rows + cols) + 2 * rows * cols),
                           (" dW", 2 * T * (rows + cols) + 4 * rows * cols)):
            n["product " + name + part] = (2 * T * rows * cols * times, (size + extra.get(name + part, 0)) * times)
    n["attention forward"] = (2 * T * s * h * L, 8 * T * h * L)
    n["attention backward"] = (5 * T * s * h * L, 16 * T * h * L)
    # Two residual_norms a block: two tensors read, two written; the embedding's and the first norm: one and one.
    n["LayerNorm, residual, bias"] = (0, 16 * T * h * L + 8 * T * h)
    # Two a block: gradient, input and residual gradient read, one written; the final and the embedding's: two and one.
    n["LayerNorm backward"] = (0, 16 * T * h * L + 12 * T * h)
    # Gradients of four biases: h, 4h, h and 3h wide.
    n["bias and LayerNorm gradients"] = (0, 18 * T * h * L)
    n["cross entropy"] = (0, 6 * T * V)
    n["AdamW"] = (0, 30 * params)
    n["gradient norm"] = (0, 4 * params)
    n["embedding"] = (0, 14 * T * h)
    return n


def main():
    o = options()
    events = read(o.trace)
    steps = events[-1][0] + 1
    spent, calls = {}, {}
    for e, kind in zip(events, label(events)):
        spent[kind] = spent.get(kind, 0) + e[2] / 1e3 / steps
        calls[kind] = calls.get(kind, 0) + 1 / steps
    # A step lasts to the begin of the next; of the last one that begin is not in the trace.
    inner = [e for e in events if e[0] < steps - 1]
    busy, until = 0.0, 0.0
    end = min(e[1] for e in events if e[0] == steps - 1) if steps > 1 else events[-1][1] + events[-1][2]
    for _, begin, us, _ in inner if steps > 1 else events:
        begin, stop = max(begin, until), min(begin + us, end)
        if stop > begin:
            busy, until = busy + stop - begin, stop
    step_ms, idle_ms = end / 1e3 / max(steps - 1, 1), (end - busy) / 1e3 / max(steps - 1, 1)

    need, rows = needs(o), []
    for kind, ms in sorted(spent.items(), key=lambda x: -x[1]):
        flops, size = need.get(kind, (0, 0))
        limit = max(flops / o.peak / 1e9, size / o.bandwidth / 1e9)
        rows.append(dict(kind=kind, calls=round(calls[kind], 1), ms=round(ms, 3), share=round(100 * ms / step_ms, 1),
                         tflops=round(flops / ms / 1e9) if flops else None,
                         tb_s=round(size / ms / 1e9, 2) if size and not flops else None,
                         limit_ms=round(limit, 3), of_limit=round(100 * limit / ms) if limit else None))
    rows.append(dict(kind="idle", calls=0, ms=round(idle_ms, 3), share=round(100 * idle_ms / step_ms, 1)))
    if o.json:
        print(json.dumps(dict(bench="roofline", hidden=o.hidden, layers=o.layers, batch=o.batch, step_ms=round(step_ms, 3),
                              classes=rows)))
        return
    print("| Class | ms a step | share | calls | rate | limit, ms | of its limit |\n|---|---|---|---|---|---|---|")
    for r in rows:
        rate = "%d TFLOP/s" % r["tflops"] if r.get("tflops") else "%.2f TB/s" % r["tb_s"] if r.get("tb_s") else ""
        print("| %s | %.2f | %.1f %% | %g | %s | %s | %s |" % (
            r["kind"], r["ms"], r["share"], r["calls"], rate, "%.2f" % r["limit_ms"] if r.get("of_limit") else "",
            "%d %%" % r["of_limit"] if r.get("of_limit") else ""))
    limits = sum(r.get("limit_ms") or 0 for r in rows)
    print("\n%d steps of %.2f ms; the classes' limits together %.2f ms (%.0f %%)"
          % (steps, step_ms, limits, 100 * limits / step_ms))


if __name__ == "__main__":
    sys.exit(main())
