"""
transformers_check.py - does Transformers load what export-hf wrote, and compute the same?

  transformers_check.py load HFDIR TAG [ROWS]   TAG: the sharded checkpoint it was made of
  transformers_check.py bytes HFDIR TAG [ROWS]  torch alone: every tensor against an own merge
  transformers_check.py expect TAG              names, dtypes, shapes and CRC-32 as that merge has them
  transformers_check.py converter HFDIR TAG     BLOOM: against Transformers' own converter
  transformers_check.py strong TAG COPY         a copy of TAG with random weights of deviation 0.2

The merge and the forward pass here follow Megatron and know nothing of export-hf: layer
files are put together by hand, and logits are computed in fp32 from them.
"""
import glob
import json
import os
import re
import shutil
import struct
import sys
import zlib

import torch

BY_ROWS = ("word_embeddings.weight", "query_key_value.weight", "query_key_value.bias", "dense_h_to_4h.weight",
           "dense_h_to_4h.bias")
BY_COLUMNS = ("self_attention.dense.weight", "dense_4h_to_h.weight")


HEADS = int(os.environ.get("HEADS", "4"))      # of attention; layer files do not tell


def fail(text):
    sys.exit("transformers_check: " + text)


def merged_layers(tag):
    """{layer: {key: tensor}} with tensor ranks put together."""
    layers = {}
    for path in sorted(glob.glob(os.path.join(tag, "layer_*-model_*-model_states.pt"))):
        layer, rank = map(int, re.search(r"layer_(\d+)-model_(\d+)", path).groups())
        for key, value in torch.load(path, map_location="cpu").items():
            layers.setdefault(layer, {}).setdefault(key, {})[rank] = value
    return {layer: {key: merge(key, [parts[r] for r in sorted(parts)]) for key, parts in keys.items()}
            for layer, keys in sorted(layers.items())}


def merge(key, parts):
    if key.endswith(BY_COLUMNS):
        return torch.cat(parts, 1)
    if key.endswith(BY_ROWS):
        return torch.cat(parts, 0)
    return parts[0]


def model_of(tag):
    """(embedding, blocks, final LayerNorm, is it GPT-2?)"""
    layers = list(merged_layers(tag).values())
    return layers[0], layers[1:-1], layers[-1], "position_embeddings.weight" in layers[0]


GPT2 = {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attention.query_key_value": "attn.c_attn",
        "self_attention.dense": "attn.c_proj", "mlp.dense_h_to_4h": "mlp.c_fc", "mlp.dense_4h_to_h": "mlp.c_proj"}


def qkv_kinds_first(value):
    """Rows by (head, kind, lane) to (kind, head, lane)."""
    heads = HEADS
    lanes = value.shape[0] // (3 * heads)
    return value.reshape(heads, 3, lanes, -1).transpose(0, 1).reshape(value.shape)


def expected(tag, rows=None):
    """{name in Transformers: tensor}, in model order."""
    embedding, blocks, final, gpt2 = model_of(tag)
    names = {"word_embeddings.weight": "wte.weight", "position_embeddings.weight": "wpe.weight"} if gpt2 else \
            {"word_embeddings.weight": "word_embeddings.weight", "word_embeddings.norm.weight": "word_embeddings_layernorm.weight",
             "word_embeddings.norm.bias": "word_embeddings_layernorm.bias"}
    out = {"transformer." + names[key]: value[:rows] if key == "word_embeddings.weight" else value
           for key, value in embedding.items()}
    for k, block in enumerate(blocks):
        for key, value in block.items():
            module, kind = key.rsplit(".", 1)
            if gpt2:
                if module == "self_attention.query_key_value":
                    value = qkv_kinds_first(value)
                if value.dim() == 2:
                    value = value.t().contiguous()
                module = GPT2[module]
            out["transformer.h.%d.%s.%s" % (k, module, kind)] = value
    for kind in ("weight", "bias"):
        out["transformer.ln_f." + kind] = final[kind]
    return out


def forward(tag, tokens):
    """fp32 logits as Megatron computes them."""
    embedding, blocks, final, gpt2 = model_of(tag)
    f = lambda t: t.float()
    norm = lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], f(w), f(b), 1e-5)
    table = f(embedding["word_embeddings.weight"])
    heads = HEADS
    x = table[tokens]
    s, h = x.shape[-2:]
    d = h // heads
    position = torch.arange(s)
    bias = torch.full((s, s), float("-inf")).triu(1).expand(heads, s, s)
    if gpt2:
        x = x + f(embedding["position_embeddings.weight"])[position]
    else:
        x = norm(x, embedding["word_embeddings.norm.weight"], embedding["word_embeddings.norm.bias"])
        slopes = torch.tensor([2 ** (-8.0 * (i + 1) / heads) for i in range(heads)])
        bias = bias + slopes[:, None, None] * position
    for b in blocks:
        y = norm(x, b["input_layernorm.weight"], b["input_layernorm.bias"])
        y = y @ f(b["self_attention.query_key_value.weight"]).t() + f(b["self_attention.query_key_value.bias"])
        q, k, v = y.view(s, heads, 3, d).permute(2, 1, 0, 3)
        y = torch.softmax(q @ k.transpose(1, 2) / d ** 0.5 + bias, -1) @ v
        y = y.transpose(0, 1).reshape(s, h)
        x = x + y @ f(b["self_attention.dense.weight"]).t() + f(b["self_attention.dense.bias"])
        y = norm(x, b["post_attention_layernorm.weight"], b["post_attention_layernorm.bias"])
        y = y @ f(b["mlp.dense_h_to_4h.weight"]).t() + f(b["mlp.dense_h_to_4h.bias"])
        y = y * 0.5 * (1.0 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))
        x = x + y @ f(b["mlp.dense_4h_to_h.weight"]).t() + f(b["mlp.dense_4h_to_h.bias"])
    return norm(x, final["weight"], final["bias"]) @ table.t()


def raw(t):
    t = t.contiguous()
    return (t.view(torch.int16) if t.element_size() == 2 else t.view(torch.int32)).numpy().tobytes()


def same(name, got, want):
    """Equal, want converted to got's dtype by torch."""
    if got.shape != want.shape:
        fail("%s: shape %s, expected %s" % (name, list(got.shape), list(want.shape)))
    if raw(got) != raw(want.to(got.dtype)):
        fail("%s: other values" % name)


DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def read_folder(path):
    """All tensors of a folder, by a reader of our own."""
    index = [f for f in os.listdir(path) if f.endswith(".index.json")]
    names = set(json.load(open(os.path.join(path, index[0])))["weight_map"].values()) if index else \
        [f for f in ("model.safetensors", "pytorch_model.bin") if os.path.exists(os.path.join(path, f))]
    out = {}
    for name in names:
        file = os.path.join(path, name)
        if name.endswith(".bin"):
            out.update(torch.load(file, map_location="cpu"))
            continue
        data = open(file, "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for key, t in json.loads(data[8:8 + n]).items():
            if key == "__metadata__":
                continue
            first, end = t["data_offsets"]
            flat = torch.frombuffer(bytearray(data[8 + n + first:8 + n + end]), dtype=DTYPES[t["dtype"]])
            out[key] = flat.reshape(t["shape"])
    return out


def check_bytes(folder, tag, rows=None):
    want, got = expected(tag, rows), read_folder(folder)
    got = {("" if k.startswith("transformer.") else "transformer.") + k: v for k, v in got.items()}
    if set(want) != set(got):
        fail("%s: names differ: %s" % (folder, sorted(set(want) ^ set(got))))
    for name in want:
        same(name, got[name], want[name])


def check_load(folder, tag, rows=None):
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, torch_dtype="auto", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info[kind]:
            fail("%s: %s: %s" % (folder, kind, info[kind]))
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        fail("head and embedding are two")
    dtype = {t.dtype for t in read_folder(folder).values()}
    if {model.dtype} != dtype:
        fail("the model is %s, its tensors are %s" % (model.dtype, dtype))
    state = model.state_dict()
    want = expected(tag, rows)
    for name in want:
        same(name, state[name], want[name])
    again = folder + ".saved"
    model.save_pretrained(again)
    check_bytes(again, tag, rows)
    shutil.rmtree(again)
    tokens = torch.arange(100) * 7919 % min(257, rows or 257)
    want = forward(tag, tokens)[:, :rows]
    with torch.no_grad():
        got = model.float()(tokens[None]).logits[0]
    off = ((got - want).abs().max() / want.abs().max()).item()
    if not off <= 1e-5:
        fail("%s: logits differ by %.1e of the largest" % (folder, off))
    print("%s: logits differ by %.1e of the largest, %.2f" % (folder, off, want.abs().max().item()))


def print_expected(tag):
    for name, t in expected(tag).items():
        print(name, str(t.dtype)[6:], "x".join(map(str, t.shape)), "%08x" % zlib.crc32(raw(t)))


def check_converter(folder, tag):
    import tempfile
    try:
        from transformers.models.bloom import convert_bloom_original_checkpoint_to_pytorch as converter
    except ImportError:
        print("this Transformers has no converter for BLOOM: skipped")
        return
    got = read_folder(folder)
    with tempfile.TemporaryDirectory() as layers, tempfile.TemporaryDirectory() as out:
        for path in glob.glob(os.path.join(tag, "layer_*")):
            shutil.copy(path, layers)
        converter.convert_bloom_checkpoint_to_pytorch(layers, "", out, True, 2)
        n = 0
        for path in glob.glob(os.path.join(out, "*.bin")):
            for key, value in torch.load(path, map_location="cpu").items():
                name = "transformer." + key if "transformer." + key in got else key
                if name not in got or got[name].dtype != value.dtype or raw(got[name]) != raw(value):
                    fail("%s: not what the converter gives" % key)
                n += 1
    if n != len(got):
        fail("the converter has %d tensors, not %d" % (n, len(got)))
    print("%s: %d tensors as the converter gives them" % (folder, n))


def make_strong(tag, copy):
    """Random weights of deviation 0.2: a briefly trained model hides most mistakes."""
    shutil.copytree(tag, copy)
    torch.manual_seed(1)
    random = {}
    for path in sorted(glob.glob(os.path.join(copy, "layer_*-model_*"))):
        layer = os.path.basename(path).split("-")[0]
        state = torch.load(path, map_location="cpu")
        for key in state:
            value = torch.randn(state[key].shape) * 0.2 + (1.0 if "norm.weight" in key or key == "weight" else 0.0)
            if not key.endswith(BY_ROWS + BY_COLUMNS):
                value = random.setdefault((layer, key), value)      # the copies of all ranks
            state[key] = value.to(state[key].dtype)
        torch.save(state, path)


def main():
    what, *args = sys.argv[1:]
    if len(args) == 3:
        args[2] = int(args[2])
    {"load": check_load, "bytes": check_bytes, "expect": print_expected, "converter": check_converter,
     "strong": make_strong}[what](*args)


main()
