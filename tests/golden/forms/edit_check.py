"""
edit_check.py - is what ckpt-edit made of a model folder what torch makes of it?

  edit_check.py make DIR           folders of a small Llama: one file, several, pickled with a tied head
  edit_check.py look LIST         cases, a line each: NAME, VERB, IN, OUT, ARGs with tabs between; the tensors of OUT
                                   against those of IN, changed here; Transformers loads OUT

Nothing here knows how ckpt-edit does it: tensors are read by torch and safetensors, changed by torch.
"""
import glob
import json
import os
import re
import sys

import torch
from safetensors.torch import load_file

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Wrong(Exception):
    """A case is not as expected."""


def fail(text):
    raise Wrong(text)


def config(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def tensors(path):
    """All of a folder, and by which file."""
    all_, place = {}, {}
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors")) + glob.glob(os.path.join(path, "*.bin"))):
        part = load_file(file) if file.endswith(".safetensors") else torch.load(file, weights_only=True)
        for name, value in part.items():
            if name in all_:
                fail(f"{name} stands in two files of {path}")
            all_[name], place[name] = value, os.path.basename(file)
    for index in glob.glob(os.path.join(path, "*.index.json")):
        with open(index, encoding="utf-8") as f:
            said = json.load(f)
        if said["weight_map"] != place:
            fail(f"{index} does not say where the tensors are")
        total = sum(t.numel() * t.element_size() for t in all_.values())
        if said["metadata"]["total_size"] != total:
            fail(f"{index}: total_size {said['metadata']['total_size']}, there are {total} bytes")
    return all_


def same(got, want):
    if sorted(got) != sorted(want):
        fail(f"tensors: only there {sorted(set(got) - set(want))}, only expected {sorted(set(want) - set(got))}")
    for name, w in want.items():
        g = got[name]
        if g.dtype != w.dtype or g.shape != w.shape:
            fail(f"{name}: {g.dtype} {tuple(g.shape)}, expected {w.dtype} {tuple(w.shape)}")
        if not torch.equal(g, w):
            fail(f"{name}: other elements")


def loads(path):
    """Transformers builds the model that config.json means and finds each tensor, no more."""
    try:
        import transformers
    except ImportError:
        return
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    if any(info.values()):
        fail(f"{path}: {info}")
    with torch.no_grad():
        out = model(input_ids=torch.arange(8)[None]).logits
    if not torch.isfinite(out).all():
        fail(f"{path}: logits that are no numbers")


def make(path):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=4,
                                         num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
                                         tie_word_embeddings=False, max_position_embeddings=64))
    model.save_pretrained(path + "/one")
    model.save_pretrained(path + "/many", max_shard_size="40KB")
    os.makedirs(path + "/bin")
    state = dict(model.state_dict())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]        # one storage
    # Views of a large one: torch.save writes all of it.
    big = torch.randn(1000, 32)
    big[300:332].copy_(state["model.layers.1.self_attn.q_proj.weight"])
    state["model.layers.1.self_attn.q_proj.weight"] = big[300:332]
    norms = torch.randn(5000)
    for i in range(4):
        norms[1000 + 32 * i:1032 + 32 * i] = state[f"model.layers.{i}.input_layernorm.weight"]
        state[f"model.layers.{i}.input_layernorm.weight"] = norms[1000 + 32 * i:1032 + 32 * i]
    torch.save(state, path + "/bin/pytorch_model.bin")
    # A storage may stand in a file by itself: it is used as a whole, whatever views of it there are.
    torch.save({"view": norms[:32], "storage": norms.storage()}, path + "/bin/extra.pt")
    model.config.save_pretrained(path + "/bin")
    with open(path + "/bin/config.json", encoding="utf-8") as f:
        text = json.load(f)
    text["tie_word_embeddings"] = True
    with open(path + "/bin/config.json", "w", encoding="utf-8") as f:
        json.dump(text, f)
    # As T5 has it: the holder of all has a name that is none of a vocabulary's.
    os.makedirs(path + "/tied")
    rows = torch.randn(100, 8)
    torch.save({"a.shared.weight": rows, "encoder.embed_tokens.weight": rows, "lm_head.weight": rows},
               path + "/tied/pytorch_model.bin")
    with open(path + "/tied/config.json", "w", encoding="utf-8") as f:
        json.dump({"vocab_size": 100}, f)


def cast(old, out, kind):
    same(tensors(out), {k: v.to(TYPES[kind]) for k, v in tensors(old).items()})
    said = config(out)
    if said.get("dtype", said.get("torch_dtype")) != str(TYPES[kind]).split(".")[1]:
        fail(f"config.json says {said.get('dtype')}")
    loads(out)


def rename(old, out, *rules):
    want = tensors(old)
    for pattern, by in zip(rules[::2], rules[1::2]):
        want = {re.sub(pattern, by.replace("$", "\\"), k): v for k, v in want.items()}
    same(tensors(out), want)


def drop(old, out, pattern):
    same(tensors(out), {k: v for k, v in tensors(old).items() if not re.fullmatch(pattern, k)})


def layers(old, out, *numbers):
    want = {}
    for name, value in tensors(old).items():
        m = re.fullmatch(r"(model\.layers\.)(\d+)(\..*)", name)
        if not m:
            want[name] = value
        for i, k in enumerate(numbers):
            if m and int(k) == int(m[2]):
                want[f"{m[1]}{i}{m[3]}"] = value
    same(tensors(out), want)
    if config(out)["num_hidden_layers"] != len(numbers):
        fail("num_hidden_layers")
    loads(out)


def vocab(old, out, tokens, init):
    tokens, was, got = int(tokens), tensors(old), tensors(out)
    for name in [k for k, v in was.items() if v.shape[0] == config(old)["vocab_size"]]:
        w, g = was[name], got.pop(name)
        del was[name]
        n = min(tokens, w.shape[0])
        if g.shape != (tokens, w.shape[1]) or g.dtype != w.dtype or not torch.equal(g[:n], w[:n]):
            fail(f"{name}: rows that were there are others")
        new = g[n:].double()
        if init == "mean" and len(new) and not torch.equal(g[n:], w.double().mean(0).to(w.dtype).expand_as(g[n:])):
            worst = (new - w.double().mean(0)).abs().max().item()
            # fp64 sums of another order, then one rounding: at most one unit in the last place of fp32
            if worst > 2 ** -23 * w.double().mean(0).abs().max().item():
                fail(f"{name}: no mean, off by {worst}")
        if init == "zero" and new.abs().max() != 0:
            fail(f"{name}: not 0")
        if init.startswith("normal") and abs(new.std().item() / float(init[7:]) - 1) > 0.1:
            fail(f"{name}: deviation {new.std().item()}")
    same(got, was)
    if config(out)["vocab_size"] != tokens:
        fail("vocab_size")
    loads(out)


def tied(old, out, tokens):
    n = min(100, int(tokens))
    got = tensors(out)
    for name, w in tensors(old).items():
        if got[name].shape != (int(tokens), 8) or not torch.equal(got[name][:n], w[:n]):
            fail(f"{name}: {tuple(got[name].shape)}, or other rows")
    if len({t.untyped_storage().data_ptr() for t in got.values()}) != 1:
        fail("they do not share their storage")


def thin(old, out, most):
    was, got = tensors(old), tensors(out)
    same(got, was)
    shared = lambda t: sorted(sorted(k for k in t if t[k].untyped_storage().data_ptr() == p)
                              for p in {v.untyped_storage().data_ptr() for v in t.values()})
    if shared(got) != shared(was):
        fail("other tensors share a storage than did")
    for name, t in got.items():
        used = sum(v.numel() * v.element_size() for v in
                   {v.data_ptr(): v for v in got.values()
                    if v.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()}.values())
        if t.untyped_storage().nbytes() != used:
            fail(f"{name}: a storage of {t.untyped_storage().nbytes()} bytes, {used} are used")
    size = os.path.getsize(out + "/pytorch_model.bin")
    if size > int(most):
        fail(f"pytorch_model.bin still has {size} bytes")
    was, got = (torch.load(p + "/extra.pt", weights_only=False)["storage"].tolist() for p in (old, out))
    if got != was:
        fail(f"extra.pt: {len(got)} elements of a storage, expected {len(was)}")


def look(path):
    wrong = 0
    with open(path, encoding="utf-8") as f:
        cases = [line.rstrip("\n").split("\t") for line in f]
    for name, verb, *args in cases:
        try:
            VERBS[verb](*args)
        except (Wrong, OSError, KeyError, RuntimeError, ValueError) as e:
            print(f"edit_check: {name}: {e}")
            wrong += 1
    print(f"{len(cases)} cases, {wrong} wrong")
    sys.exit(wrong > 0 or not cases)


VERBS = {"cast": cast, "rename": rename, "drop": drop, "layers": layers, "vocab": vocab, "tied": tied,
         "thin": thin}
{"make": make, "look": look}[sys.argv[1]](sys.argv[2])
