"""
edit_torch.py - is what ckpt-edit made of a checkpoint what torch makes of it?

  edit_torch.py make DIR FILE...   random numbers with ties, zeros and the like into .npy files; DIR/bloated, the BLOOM of
                                   tests/data with tensors that are views of larger storages; DIR/frozen, its ZeRO-2 with
                                   a frozen parameter that is there twice, as a run on GPUs leaves it
  edit_torch.py look LIST          cases, a line each: NAME, VERB, IN, OUT, ARGs with tabs between

  edit_torch.py fsdp IN BEGIN NPY  folders of torch.distributed.checkpoint, merged by torch: BEGIN-put (0.weight from NPY),
                                   -zero (moments of 1.*), -average and -ema of IN and -put
  edit_torch.py without IN BEGIN   BEGIN-thin, -weights (no optimizer), -few (no 1.*),
                                   -set (a learning rate), -names (0.weight is first.weight), -half (weights in bf16)
  edit_torch.py model IN BEGIN     BEGIN-twice (layer 0 is layer 1, too), -more (5 tokens of zeros)
  edit_torch.py mesh IN BEGIN      BEGIN-zero (three weights), -average of IN and it, -names (blocks are boxes), -wide (weights in
                                   fp32) and -thin of that, cut as IN is

IN is loaded by torch and changed here, through views that say where each element of a parameter lies, made of
param_shapes alone; the result must be OUT: every byte of every storage, every value of every tree, every other file.
Nothing here knows how ckpt-edit does it.
"""
import fnmatch
import glob
import os
import re
import sys

import numpy
import torch

from torch_any import equal, load

MOMENTS = ("exp_avg", "exp_avg_sq")
ROW_PARALLEL = ("self_attention.dense.weight", "mlp.dense_4h_to_h.weight")
COLUMN_PARALLEL = ("word_embeddings.weight", "query_key_value.weight", "query_key_value.bias", "dense_h_to_4h.weight",
                   "dense_h_to_4h.bias")


class Wrong(Exception):
    """A case is not as expected."""


def fail(text):
    raise Wrong(text)


def flat(t):
    assert t.is_contiguous()
    return t.detach().view(-1)


class Folder:
    """All files of a checkpoint, and where the elements of its parameters are."""

    def __init__(self, path):
        self.path, self.tree, self.other = path, {}, {}
        for at, _, names in os.walk(path):
            for name in names:
                full = os.path.join(at, name)
                if name.endswith(".pt"):
                    self.tree[os.path.relpath(full, path)] = load(full)
                else:
                    with open(full, "rb") as f:
                        self.other[os.path.relpath(full, path)] = f.read()
        self.shape = {}
        self.copies = {}        # (name, state): {copy: [(view, the elements' numbers in the whole parameter)]}
        self.second = set()     # copies that are not asked when values are taken
        if any(n.startswith("zero/") for n in self.tree):
            self.find_universal()
        elif any(n.startswith("zero_pp_rank") and n.endswith("model_states.pt") for n in self.tree):
            self.find_zero3()
        else:
            self.find_flat()

    def add(self, name, state, copy, view, place):
        assert len(view) == len(place), (name, state)
        self.copies.setdefault((name, state), {}).setdefault(copy, []).append((view, place))

    def find_universal(self):
        # A tied weight's second name has a folder, too; rank 0 alone says so.
        shared = {k: v for n, t in self.tree.items() if n.endswith("model_states.pt")
                  for k, v in (t.get("shared_params") or {}).items()}
        for file, tree in self.tree.items():
            parts = file.split("/")
            if len(parts) != 3 or parts[2] == "step.pt":
                continue
            t = tree["param"] if isinstance(tree, dict) else tree
            name = shared.get(parts[1], parts[1])
            self.shape[name] = list(t.shape)
            self.add(name, parts[2][:-3], parts[1] == name, flat(t), torch.arange(t.numel()))
            self.second.add(False)

    def models(self):
        """Files of arguments and weights by their rank."""
        found = {int(m[1]): t for n, t in self.tree.items() if (m := re.fullmatch(r"mp_rank_(\d+)_model_states.pt", n))}
        return [found[i] for i in range(len(found))]

    def optims(self, mp):
        found = {}
        for n, t in self.tree.items():
            m = re.fullmatch(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states.pt", n)
            if m and int(m[2]) == mp:
                found[int(m[1])] = t["optimizer_state_dict"]
        return [found[i] for i in range(len(found))]

    def dim_of(self, name, tree):
        """The dimension that tensor ranks share, None: each has all of it."""
        info = tree.get("universal_checkpoint_info")
        if info:
            is_any = lambda key: any(re.match(p, name) for p in info.get(key, []))
            if is_any("tp_replicated_parameter_patterns"):
                return None
            return 1 if is_any("parameter_with_row_parallelism_patterns") else 0
        return 1 if name.endswith(ROW_PARALLEL) else 0 if name.endswith(COLUMN_PARALLEL) else None

    def place(self, name, shape, dim, t, n):
        """Numbers of a tensor rank's elements in the whole."""
        whole = list(shape)
        if dim is not None:
            whole[dim] *= n
        self.shape[name] = whole
        numbers = torch.arange(int(numpy.prod(whole, dtype=int))).reshape(whole)
        return (numbers if dim is None or n == 1 else numbers.narrow(dim, t * shape[dim], shape[dim])).flatten()

    def find_flat(self):
        """3D shards, and ZeRO-1 and 2: groups end to end, cut evenly among ranks."""
        models = self.models()
        args = models[0].get("args")
        tp = args.tensor_model_parallel_size if args is not None else len(models)
        for mp, tree in enumerate(models):
            t, stage = mp % tp, mp // tp
            optims = self.optims(mp)
            for g, shapes in enumerate(tree["param_shapes"] if optims else []):
                self.find_group(tree, optims, g, shapes, (t, tp, stage))
            if args is None:
                self.find_module(tree, t, tp)
        for file, tree in self.tree.items():
            m = re.fullmatch(r"layer_(\d+)-model_(\d+)-model_states.pt", file)
            for key, w in tree.items() if m else []:
                name = ("tied_modules.embed." if int(m[1]) == 1 else f"{int(m[1])}.") + key
                dim = self.dim_of(name, models[0])
                self.add(name, "bf16", int(m[2]) if dim is None else 0, flat(w),
                         self.place(name, w.shape, dim, int(m[2]), tp))

    def find_group(self, tree, optims, g, shapes, rank):
        t, tp, stage = rank
        n, at = 2 * len(optims), 0
        pads = optims[0].get("param_alignment_paddings") or [[0] * len(s) for s in tree["param_shapes"]]
        sizes = [int(numpy.prod(s, dtype=int)) for s in shapes.values()]
        part = -(-(sum(sizes) + sum(pads[g])) // n) * 2
        for (name, shape), size, pad in zip(shapes.items(), sizes, pads[g]):
            dim = self.dim_of(name, tree)
            place = self.place(name, shape, dim, t, tp)
            tied = stage > 0 and name.startswith("tied_modules.")
            for r, o in enumerate(optims):
                lo, hi = max(at, r * part), min(at + size, (r + 1) * part)
                base = o["base_optimizer_state"]
                moments = base[g] if isinstance(base, list) else base["state"][g]
                for state in ("fp32", *MOMENTS) if lo < hi else []:
                    v = o["single_partition_of_fp32_groups"][g] if state == "fp32" else moments[state]
                    copy = (t if dim is None else 0, tied)
                    if tied:
                        self.second.add(copy)
                    self.add(name, state, copy, flat(v)[lo - r * part:hi - r * part], place[lo - at:hi - at])
            at += size + pad

    def find_module(self, tree, t, tp):
        """Weights of ZeRO-1 and 2: of fp32 runs they are copies of the masters."""
        for name, w in tree["module"].items():
            if name in tree["buffer_names"]:
                continue
            name = tree["shared_params"].get(name, name)
            dim = self.dim_of(name, tree)
            place = self.place(name, w.shape, dim, t, tp)
            copy = (t if dim is None else 0, "module")
            frozen = (tree["frozen_param_fragments"] or {}).get(name)
            state = "fp32" if w.dtype == torch.float32 else "bf16"
            if state == "fp32" and (name, "fp32") in self.copies:
                self.second.add(copy)
            self.add(name, state, copy, flat(w), place)
            if frozen is not None:
                self.second.add("fragment")
                self.add(name, state, "fragment", flat(frozen), place)

    def find_zero3(self):
        """Each parameter is cut evenly among ranks."""
        tps = len({n.split("_mp_rank_")[1][:2] for n in self.tree})
        for t in range(tps):
            optims = [o["optimizer_state_dict"] for o in self.optims3(t, "optim")]
            models = self.optims3(t, "model")
            for g, shapes in enumerate(models[0]["param_shapes"]):
                at = 0
                for name, shape in shapes.items():
                    dim = self.dim_of(name, models[0]) if tps > 1 else None
                    place = self.place(name, shape, dim, t, tps)
                    each = -(-len(place) // len(optims))
                    for r, o in enumerate(optims):
                        lo, hi = r * each, min((r + 1) * each, len(place))
                        moments = o["optimizer_state_dict"]["state"].get(g, {})
                        for state in ("fp32", *(m for m in MOMENTS if m in moments)) if lo < hi else []:
                            v = flat(o["fp32_flat_groups"][g] if state == "fp32" else moments[state])
                            self.add(name, state, t if dim is None else 0, v[at:at + hi - lo], place[lo:hi])
                    at += each
            for name, shape in (models[0]["frozen_param_shapes"] or {}).items():
                place = self.place(name, shape, None, t, tps)
                each = -(-len(place) // len(models))
                for r, m in enumerate(models):
                    v = flat(m["frozen_param_fragments"][name])[:max(0, len(place) - r * each)]
                    self.add(name, "bf16", t, v, place[r * each:r * each + len(v)])

    def optims3(self, mp, what):
        found = {}
        for n, t in self.tree.items():
            m = re.fullmatch(rf"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_{what}_states.pt", n)
            if not m:
                m = re.fullmatch(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states.pt", n) if what == "model" else None
            if m and int(m[2]) == mp:
                found[int(m[1])] = t
        return [found[i] for i in range(len(found))]

    def get(self, name, state):
        """The whole, as fp64; copies are averaged."""
        all_ = []
        for copy, pieces in self.copies[name, state].items():
            if copy in self.second:
                continue
            whole = torch.full((int(numpy.prod(self.shape[name], dtype=int)),), float("nan"), dtype=pieces[0][0].dtype)
            for view, place in pieces:
                whole[place] = view
            all_.append(whole)
        if all(torch.equal(w.view(torch.uint8), all_[0].view(torch.uint8)) for w in all_):
            return all_[0].double()
        return sum(w.double() for w in all_).div(len(all_)).to(all_[0].dtype).double()

    def dtype(self, name, state):
        return next(iter(self.copies[name, state].values()))[0][0].dtype

    def put(self, name, state, value):
        for pieces in self.copies[name, state].values():
            for view, place in pieces:
                view.copy_(value.reshape(-1)[place])


# ---- comparing ----

def storage(t):
    s = t.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(s, 0, (s.nbytes(),))


def tensors(v, at="", seen=None):
    """All of a tree, with their places."""
    if isinstance(v, torch.Tensor):
        yield at, v
    elif isinstance(v, dict):
        for k, w in v.items():
            yield from tensors(w, f"{at}.{k}")
    elif isinstance(v, (list, tuple)):
        for i, w in enumerate(v):
            yield from tensors(w, f"{at}.{i}")


def same_tree(file, got, want, whole):
    a, b = list(tensors(got)), list(tensors(want))
    if [k for k, _ in a] != [k for k, _ in b]:
        fail(f"{file}: other tensors")
    for (key, g), (_, w) in zip(a, b):
        if g.dtype != w.dtype or g.shape != w.shape or g.stride() != w.stride() or g.requires_grad != w.requires_grad:
            fail(f"{file}{key}: {g.dtype} {tuple(g.shape)}, expected {w.dtype} {tuple(w.shape)}")
        if not equal(g.detach(), w.detach()):
            fail(f"{file}{key}: other elements")
        if whole and (g.storage_offset() != w.storage_offset() or not torch.equal(storage(g), storage(w))):
            fail(f"{file}{key}: another storage")
    shared = lambda ts: [[k for k, t in ts if t.untyped_storage().data_ptr() == p]
                         for p in dict.fromkeys(t.untyped_storage().data_ptr() for _, t in ts) if p]
    if shared(a) != shared(b):
        fail(f"{file}: other tensors share a storage")
    if not equal(got, want):
        fail(f"{file}: other values")


def same(out, want, whole=True):
    """`want` is the folder that was loaded and changed."""
    listed = lambda f: {n for n in (*f.tree, *f.other) if n != "manifest.json"}
    if listed(out) != listed(want):
        fail(f"files: {sorted(listed(out) ^ listed(want))}")
    for file, tree in want.tree.items():
        same_tree(file, out.tree[file], tree, whole)
    for file, data in want.other.items():
        if file != "manifest.json" and out.other[file] != data:
            fail(f"{file}: other bytes")


# ---- verbs: what the folder that was loaded becomes ----

def put(f, name, file, state=""):
    new = torch.from_numpy(numpy.load(file))
    wanted = [state] if state else ["bf16", "fp32"]
    done = [s for s in wanted if (name, s) in f.copies]
    assert done, name
    for s in done:
        if f.dtype(name, s) == torch.bfloat16 and new.dtype == torch.uint16:
            f.put(name, s, new.view(torch.bfloat16))
        else:
            f.put(name, s, new.to(f.dtype(name, s)))


def zero(f, *patterns):
    for pattern in patterns:
        name, _, state = pattern.partition(":")
        done = 0
        for key in f.copies:
            if fnmatch.fnmatchcase(key[0], name) and (key[1] == state if state else key[1] in MOMENTS):
                f.put(*key, torch.zeros(int(numpy.prod(f.shape[key[0]], dtype=int))))
                done += 1
        assert done, pattern


def walk(f, path):
    """Dicts and objects that have the last key of the path."""
    *above, last = path.split(".")
    for tree in f.tree.values():
        for key in above:
            tree = tree.get(key) if isinstance(tree, dict) else None
        if isinstance(tree, dict) and last in tree:
            yield tree, last
        elif tree is not None and not isinstance(tree, dict) and hasattr(tree, last):
            yield vars(tree), last


def set_(f, *pairs):
    for path, value in zip(pairs[::2], pairs[1::2]):
        places = list(walk(f, path))
        assert places, path
        for d, key in places:
            d[key] = type(d[key])(float(value)) if isinstance(d[key], (int, float)) else value


def retag(f, step, samples="", tokens=""):
    """What a step is called where, written down by hand."""
    run = f.models()[0] if f.models() else next(t for n, t in f.tree.items() if n.endswith("model_states.pt"))
    old = vars(run["args"]) if "args" in run else {}
    moved = {"samples": int(samples or 0) - old.get("consumed_train_samples", 0),
             "tokens": int(tokens or 0) - old.get("consumed_train_tokens", 0)}
    for path in ("iteration", "global_steps", "args.iteration"):
        for d, key in list(walk(f, path)):
            d[key] = int(step)
    for said, what, paths, schedule in (
            (samples, "samples", ("args.consumed_train_samples", "global_samples"), "lr_scheduler.num_steps"),
            (tokens, "tokens", ("args.consumed_train_tokens", "tokens"), "lr_scheduler.num_tokens")):
        if not said:
            continue
        for path in paths:
            for d, key in list(walk(f, path)):
                d[key] = int(said)
        for d, key in list(walk(f, schedule)):
            d[key] += moved[what]


def drop(f, *what):
    for one in what:
        if one == "optimizer":
            for n in [n for n in f.tree if n.endswith("optim_states.pt")]:
                if "fp32_flat_groups" in f.tree[n]["optimizer_state_dict"]:     # ZeRO-3: all the weights there are
                    f.tree[n]["optimizer_state_dict"]["optimizer_state_dict"]["state"] = {}
                else:
                    del f.tree[n]
            for d, key in list(walk(f, "args.no_save_optim")):
                d[key] = True
        elif one == "rng":
            for tree in f.tree.values():
                for key in [k for k in tree if "rng_" in str(k)] if isinstance(tree, dict) else []:
                    del tree[key]
        else:
            for n in [n for n in f.tree if n.startswith("zero/") and fnmatch.fnmatchcase(n.split("/")[1], one)]:
                del f.tree[n]
            for tree in f.models():
                for group in tree["param_shapes"]:
                    for name in [k for k in group if fnmatch.fnmatchcase(k, one)]:
                        del group[name]


def mixed(f, others, first, step, last, moments):
    for name, state in list(f.copies):
        if (state in MOMENTS and not moments) or not f.dtype(name, state).is_floating_point:
            continue
        source = "fp32" if state == "bf16" and (name, "fp32") in f.copies else state
        f.new = getattr(f, "new", {})
        total = first(f.get(name, source))
        for i, o in enumerate(others):
            total = step(total, i, o.get(name, source))
        f.new[name, state] = last(total).float().to(f.dtype(name, state))
    for key, value in f.new.items():
        f.put(*key, value)


def average(f, weights, moments, *others):
    others = [Folder(o) for o in others]
    w = [float(x) for x in weights.split(",")] if weights else [1.0] * (1 + len(others))
    mixed(f, others, lambda t: t * w[0], lambda t, i, o: t + w[i + 1] * o,
          lambda t: t if weights else t / len(w), moments)


def ema(f, decay, *others):
    d = float(decay)
    mixed(f, [Folder(o) for o in others], lambda t: t, lambda t, i, o: d * t + (1 - d) * o, lambda t: t, False)


def thin(f):
    """Each tensor stays what it is; of storages is left what they use of them."""


def check_thin(out, was):
    same(out, was, whole=False)
    for file, tree in was.tree.items():
        used = {}
        for (_, t), (_, w) in zip(tensors(out.tree[file]), tensors(tree)):
            first = w.storage_offset() * w.element_size()
            last = first + (1 + sum((n - 1) * s for n, s in zip(w.shape, w.stride()))) * w.element_size() * bool(w.numel())
            u = used.setdefault(w.untyped_storage().data_ptr(), [first, last, t.untyped_storage().nbytes()])
            u[:2] = min(u[0], first), max(u[1], last)
        for first, last, left in used.values():
            if left != last - first:
                fail(f"{file}: a storage of {left} bytes, {last - first} are used")


VERBS = {"put": put, "zero": zero, "set": set_, "retag": retag, "drop": drop, "average": average, "ema": ema,
         "thin": thin}


def look(path):
    wrong = 0
    with open(path, encoding="utf-8") as f:
        cases = [line.rstrip("\n").split("\t") for line in f]
    for name, verb, old, new, *args in cases:
        try:
            was, out = Folder(old), Folder(new)
            VERBS[verb](was, *args)
            check_thin(out, was) if verb == "thin" else same(out, was)
        except (Wrong, AssertionError, OSError, LookupError, RuntimeError, ValueError) as e:
            print(f"edit_torch: {name}: {type(e).__name__} {e}")
            wrong += 1
    print(f"{len(cases)} cases, {wrong} wrong")
    sys.exit(wrong > 0 or not cases)


# ---- DCP ----

def same_merged(out, want):
    from dcp_check import merged
    got = merged(out)
    assert list(got) == list(want), out
    for key, w in want.items():
        g = got[key]
        if isinstance(w, torch.Tensor):
            assert g.dtype == w.dtype and g.shape == w.shape, (out, key)
            assert g.numpy().tobytes() == w.numpy().tobytes() if w.dtype != torch.bfloat16 else \
                torch.equal(g.view(torch.int16), w.view(torch.int16)), (out, key)
        else:
            assert g == w, (out, key)


def in_order(folder, want):
    """The order of entries is nobody's."""
    from dcp_check import merged
    assert sorted(merged(folder)) == sorted(want), folder
    return {k: want[k] for k in merged(folder)}


def chunks(folder):
    from torch.distributed.checkpoint import FileSystemReader
    return {k: v.chunks for k, v in FileSystemReader(folder).read_metadata().state_dict_metadata.items() if hasattr(v, "chunks")}


def dcp(what, folder, begin, *rest):
    from dcp_check import merged
    is_ = merged(folder)
    if what == "fsdp":
        new = torch.from_numpy(numpy.load(rest[0]))
        was = is_["model.0.weight"]
        same_merged(begin + "-put", {**is_, "model.0.weight": new})
        same_merged(begin + "-zero", {k: torch.zeros_like(v) if ".1.weight.exp_avg" in k else v for k, v in is_.items()})
        mixed = lambda f: {k: f(v.double(), (new if "0.weight" in k else v).double()).float()
                           if k.startswith("model.") else v for k, v in is_.items()}
        same_merged(begin + "-average", mixed(lambda a, b: (a + b) / 2))
        same_merged(begin + "-ema", mixed(lambda a, b: 0.9 * a + (1 - 0.9) * b))
    elif what == "without":
        same_merged(begin + "-thin", is_)
        same_merged(begin + "-weights", {k: v for k, v in is_.items() if not k.startswith("optim.")})
        assert is_["optim.param_groups.0.lr"] != 0.125
        same_merged(begin + "-set", {**is_, "optim.param_groups.0.lr": 0.125})
        few = {k: v for k, v in is_.items() if ".1.weight" not in k and not k.startswith("model.1.")}
        for names in (v for k, v in few.items() if k.endswith(".params")):
            names.remove("1.weight")
        same_merged(begin + "-few", few)
        is_ = merged(folder)            # names were taken out of the lists
        name = lambda k: re.sub(r"\b0[.]weight\b", "first.weight", k)
        same_merged(begin + "-names", {name(k): [name(n) for n in v] if k.endswith(".params") else v for k, v in is_.items()})
        same_merged(begin + "-half", {k: v.bfloat16() if k.startswith("model.") else v for k, v in is_.items()})
    elif what == "model":
        both = lambda k: [k.replace("layers.0.", f"layers.{i}.") for i in (0, 1)] if "layers.0." in k else [k]
        twice = {n: [m for name in v for m in both(name)] if k.endswith(".params") else v for k, v in is_.items() for n in both(k)}
        same_merged(begin + "-twice", in_order(begin + "-twice", twice))
        grown = lambda v: torch.cat([v, v.new_zeros(5, v.shape[1])])
        table = lambda k, v: isinstance(v, torch.Tensor) and v.dim() == 2 and ("embed_tokens" in k or "lm_head" in k)
        same_merged(begin + "-more", {k: grown(v) if table(k, v) else v for k, v in is_.items()})
    else:
        names = ("blocks", "columns", "stacked")
        same_merged(begin + "-zero", {k: torch.zeros_like(v) if k in names else v for k, v in is_.items()})
        weights = lambda v: v.dtype.is_floating_point
        same_merged(begin + "-names", {"boxes" if k == "blocks" else k: v for k, v in is_.items()})
        for out in ("-wide", "-thin"):
            same_merged(begin + out, {k: v.float() if weights(v) else v for k, v in is_.items()})
        assert chunks(begin + "-wide") == chunks(begin + "-thin") == chunks(folder)
        assert chunks(begin + "-names") == {"boxes" if k == "blocks" else k: v for k, v in chunks(folder).items()}
        same_merged(begin + "-average", {k: (v.double() / 2).float().to(v.dtype) if k in names else v for k, v in is_.items()})


# ---- making ----

def fill(file, seed):
    """Numbers of all sizes: those that lie between two of 16 bits, the smallest, both zeros."""
    shape = numpy.load(file, mmap_mode="r").shape
    g = numpy.random.default_rng(seed)
    n = int(numpy.prod(shape, dtype=int))
    v = (g.standard_normal(n) * numpy.exp2(g.integers(-30, 10, n))).astype("<f4")
    bits = v.view("<u4")
    odd = g.integers(0, 8, n)
    bits[odd == 1] = bits[odd == 1] & 0xffff0000 | 0x8000           # halfway between two of bf16
    bits[odd == 2] = bits[odd == 2] & 0xffffe000 | 0x1000           # ... of fp16
    v[odd == 3] = g.choice(numpy.float32([0, -0.0, 1e-40, -6e-8, 2.98e-8, 65504, 65519.996]), (odd == 3).sum())
    numpy.save(file, v.reshape(shape))


def make(folder, *files):
    for i, file in enumerate(files):
        fill(file, i)
    for source, out in (("bloom-tp2pp2dp2/global_step20", "bloated"), ("zero/zero2-edge-3ranks/ckpt/global_step5", "frozen")):
        save_again(os.path.join("tests/data", source), os.path.join(folder, out))


def save_again(source, out):
    os.mkdir(out)
    for path in glob.glob(source + "/*.pt"):
        tree, name = load(path), os.path.basename(path)
        if tree.get("frozen_param_fragments"):
            tree["frozen_param_fragments"] = {k: v.clone() for k, v in tree["frozen_param_fragments"].items()}
        if name == "layer_03-model_01-model_states.pt":
            big = torch.zeros(100000, dtype=torch.bfloat16)
            for key, at in (("mlp.dense_h_to_4h.weight", 1000), ("mlp.dense_4h_to_h.bias", 20000)):
                big[at:at + tree[key].numel()] = tree[key].flatten()
                tree[key] = big[at:at + tree[key].numel()].view(tree[key].shape)
        torch.save(tree, os.path.join(out, name))


if __name__ == "__main__":
    {"make": make, "look": look}.get(sys.argv[1], lambda *args: dcp(sys.argv[1], *args))(*sys.argv[2:])
