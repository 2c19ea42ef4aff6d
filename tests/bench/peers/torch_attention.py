"""Attention on one GPU: our kernels beside PyTorch's (cuDNN and flash SDPA, flex attention with ALiBi).

Usage: torch_attention.py LIBRARY [HD...]     LIBRARY: kernels/cuda as a shared library
Batch 8, s 2048, causal, bf16, random data, medians; flops as in bench_attention.cu. JSON lines.
"""
import ctypes
import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

B, S = 8, 2048
BF16 = 3                                # enum dtype of libcommon/base/dtype.h


class Dropout(ctypes.Structure):
    _fields_ = [("p", ctypes.c_float), ("key", ctypes.c_uint32 * 2), ("row0", ctypes.c_int64)]


class Attention(ctypes.Structure):
    _fields_ = [("b", ctypes.c_int), ("s", ctypes.c_int), ("heads", ctypes.c_int), ("hd", ctypes.c_int),
                ("head0", ctypes.c_int),
                ("q", ctypes.c_void_p), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p),
                ("token_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64),
                ("o", ctypes.c_void_p), ("lse", ctypes.c_void_p), ("scale", ctypes.c_float),
                ("bias", ctypes.c_void_p), ("round_unit", ctypes.c_float), ("drop", Dropout)]


class AttentionBack(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("d_o", "dq", "dk", "dv", "scratch")]


def median_ms(call, n=20, warm=5):
    for _ in range(warm):
        call()
    times = []
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(n):
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times)[n // 2]


def report(impl, heads, hd, alibi, p, fwd, bwd):
    flops = 2 * B * heads * S * S * hd
    row = dict(op="attention", impl=impl, hd=hd, heads=heads, alibi=alibi, dropout=p, fwd_ms=round(fwd, 3), bwd_ms=round(bwd, 3),
               fwd_tflops=round(flops / fwd / 1e9), bwd_tflops=round(2.5 * flops / bwd / 1e9))
    print(json.dumps(row), flush=True)


def ours(lib, heads, hd, bias, p_drop):
    qkv, o, grad = (torch.randn(B, S, heads, n, hd, device="cuda", dtype=torch.bfloat16) for n in (3, 1, 3))
    d_o = torch.randn_like(o)
    lse = torch.empty(B, heads, S, device="cuda")
    p, g = qkv.data_ptr(), grad.data_ptr()
    a = Attention(B, S, heads, hd, 0, p, p + 2 * hd, p + 4 * hd, 3 * heads * hd, 3 * hd, o.data_ptr(),
                  lse.data_ptr(), hd ** -0.5, bias.data_ptr() if bias is not None else None,
                  0, Dropout(p_drop, (ctypes.c_uint32 * 2)(1, 2), 0))
    scratch = torch.empty(lib.cuda_attention_scratch(ctypes.byref(a)), device="cuda", dtype=torch.uint8)
    back = AttentionBack(d_o.data_ptr(), g, g + 2 * hd, g + 4 * hd, scratch.data_ptr())
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    fwd = median_ms(lambda: lib.cuda_attention(ctypes.byref(a), BF16, stream))
    bwd = median_ms(lambda: lib.cuda_attention_back(ctypes.byref(a), ctypes.byref(back), BF16, stream))
    report("shardkit", heads, hd, bias is not None, p_drop, fwd, bwd)


def peers(heads, hd, slopes):
    q, k, v = (torch.randn(B, heads, S, hd, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    g = torch.randn_like(q)

    def both(impl, alibi, p, call):
        try:
            fwd = median_ms(call)
            o = call()
            bwd = median_ms(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))
            report(impl, heads, hd, alibi, p, fwd, bwd)
        except Exception as e:
            print(json.dumps(dict(op="attention", impl=impl, hd=hd, heads=heads, error=str(e)[:100])), flush=True)

    for impl, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash-2", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            for p in (0, 0.1):
                both(impl, False, p, lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, S, S, device="cuda")
    flex = torch.compile(flex_attention)
    both("flex", True, 0, lambda: flex(q, k, v, score_mod=lambda x, b, h, i, j: x + slopes[h] * j, block_mask=mask))


def main():
    lib = ctypes.CDLL(sys.argv[1])
    lib.cuda_attention_scratch.restype = ctypes.c_uint64
    if lib.cuda_device_open(0, ctypes.create_string_buffer(4096)) < 0:
        sys.exit("no GPU")
    torch.manual_seed(0)
    for hd in [int(x) for x in sys.argv[2:]] or (128, 64, 96, 80):
        heads = 16
        slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)], device="cuda")
        bias = (slopes[:, None] * torch.arange(S, device="cuda")).bfloat16().float().contiguous()
        ours(lib, heads, hd, bias, 0)
        ours(lib, heads, hd, bias, 0.1)
        ours(lib, heads, hd, None, 0)
        peers(heads, hd, slopes)


main()
