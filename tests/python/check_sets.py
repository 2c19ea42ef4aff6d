"""check_sets.py FOLDER... - every tensor of genuine sets, as the Python module reads it, against expected.json

A set is a folder with expected*.json, which lists tensors with shape, dtype and the SHA-256 of their little-
endian bytes, and with checkpoints in other folders below it. The sections of the file ("tensors", "disk",
"optimizer") describe some of these checkpoints. Each checkpoint that opens must have all tensors of a section,
equal in type, shape and bytes: as the library reads them, and as the file has them where bytes lie whole in
one. With NumPy and torch, arrays and tensors must have these bytes, too. Each section must be equal in a
checkpoint. What the module does not read is skipped, with the reason: a folder whose error is one of
NOT_SUPPORTED, the sections in NOT_READ, and states of other optimizers than Adam.

A folder without expected.json is read as a whole: each tensor must be read, and mapped bytes must equal those
that the library read. With NumPy, 16-bit weights must be their fp32 masters, rounded. If DeepSpeed's converter
made a folder NAME_universal beside it, the tensors of both must be equal. The states that a file NAME.sha256 beside
it lists must be equal, too. Folders that cannot be opened are skipped as above.

Imports the installed module, or if there is none, that of this source tree. Prints a line per checkpoint and
section, and "N passed, N failed, N skipped", which counts these lines.
"""
import hashlib
import json
import os
import re
import sys

try:
    import shardkit
except ImportError:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
    import shardkit

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


# Sets that are known to have other values than expected.json, which lists what megatron-core wrote as fully_reshardable.
# There it shifts all that follows the first bucket: how many tensors differ, and why.
KNOWN = {
    "distopt-tp2-dp2-two-buckets/fully_reshardable":
        (6, "in 6 the tensor ranks' copies differ, and expected.json has that of another rank"),
    "distopt-tp2-dp2-two-buckets/dp_reshardable":
        (27, "27 are wrong in expected.json; tests/data/torchdist-buckets.sha256 has their truth"),
}
# Sections of expected.json that list what a program makes of the files.
NOT_READ = {
    "dequantised_float32": "the product of weights and scales, which a conversion writes",
    "dequantised_bfloat16": "the product of weights and scales, which a conversion writes",
    "hf": "names and tensors of Transformers, which a conversion writes",
    "merged": "a model and an adapter, which ckpt-edit merge-adapter writes",
    "universal_fp32_made_from_16bit_module": "what DeepSpeed's converter makes of parameters without a master",
}
# Errors of open() for a folder of folders, which is not a checkpoint itself.
OF_FOLDERS = ("holds no checkpoint:", " in it")
# Errors of open() for forms that no tool reads, and for sets of tests/data that lack files or have other tensors.
NOT_SUPPORTED = (
    "is not a checkpoint, but",
    "so it is not a checkpoint of the pipeline engine", "has no optimizer files",
    "which parameters there are is unknown", "only TORCH_SAVE can be read",
    "only items without transformation can be read", "cannot be read: a",
)
# The end of the paths of folders that genuine software writes wrong, and that open() may refuse.
BROKEN = os.path.join("", "broken")
SINGLE_FILES = (".ckpt", ".pth")
# States by which a key "STATE/NAME" is looked for.
STATES = ("module", "fp32", "bf16", "exp_avg", "exp_avg_sq")


def sections(x, path=()):
    """Yield (name of the section, {tensor: facts}) for each object whose members have a sha256."""
    if not isinstance(x, dict):
        return
    here = {k: v for k, v in x.items() if isinstance(v, dict) and "sha256" in v and "shape" in v}
    if here:
        yield ".".join(path), here
    for k, v in x.items():
        if k not in here:
            yield from sections(v, (*path, k))


def bytes_of(ck, name, state):
    """The bytes of a tensor, after comparing all ways to get them."""
    data = bytes(ck.read(name, state))
    place = ck.location(name, state)
    if place:
        with open(place[0], "rb") as f:
            f.seek(place[1])
            assert f.read(len(data)) == data, f"{name}: other bytes in {place}"
    if numpy is not None:
        array = ck.array(name, state)
        assert array.tobytes() == data, f"{name}: the array has other bytes"
        mapped = place and place[1] % array.itemsize == 0
        assert not array.flags.writeable and (not mapped or isinstance(array, numpy.memmap)), f"{name}: not mapped"
    else:
        assert bytes(ck.array(name, state)) == data, f"{name}: the memoryview has other bytes"
    if torch is not None:
        tensor = ck.tensor(name, state)
        assert bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) == data if data else tensor.numel() == 0
    return data


def names_of(ck, key, want):
    """Yield the names and states by which a checkpoint may list a tensor of expected.json: the name itself, STATE/NAME
    (DeepSpeed calls the weights "module"), one of NUMBER.STATE with a member `name`, and one in a file of PyTorch
    Lightning."""
    yield key, None
    if "name" in want:
        state = key.split(".", 1)[1]
        yield want["name"], state
        yield f"optim.state.{want['name']}.{state}", None
    if "/" in key:
        state, name = key.split("/", 1)
        yield name, "bf16" if state == "module" else state
        if state == "fp32":             # as zero_to_fp32 lists a frozen parameter and a buffer, which have no master
            yield name, None
    if ck.layout == "file":
        yield "state_dict.model." + key, None
        names = [n[len("state_dict.model."):] for n in ck if n.startswith("state_dict.model.")]
        name, _, state = key.rpartition(".")
        if name in names:
            yield f"optimizer_states.0.state.{names.index(name)}.{state}", None


def find_stack(ck, key, want):
    """The tensors of a set of Megatron that a key means. The key is as in torch_dist: a name, or
    optimizer.state.STATE.NAME, of which a name without the number of its layer stands for all layers."""
    _, state, name = re.fullmatch(r"(optimizer\.state\.(exp_avg_sq|exp_avg|fp32_param|param)\.)?(.*)", key).groups()
    state = "bf16" if state is None else "fp32" if "param" in state else state
    layers = range(want["shape"][0] if ".layers." in name else 1)
    rows = [name.replace(".layers.", f".layers.{i}.", 1) for i in layers]
    return [(row, state) for row in rows if row in ck and state in ck.states(row)]


def find(ck, key, want):
    """The names and states of the tensors that a key of expected.json means: one, or the layers of a stack."""
    if ck.layout == "megatron" or "dp_reshardable" in ck.path:      # the files do not name masters and moments
        return find_stack(ck, key, want)
    for name, state in names_of(ck, key, want):
        try:
            ck.info(name, state)
            return [(name, state)]
        except shardkit.Error:
            pass
    return []


def compare(ck, expected):
    """How many tensors of a section are looked for, how many of them are equal, and the first that is not.

    States of other optimizers than Adam ("momentum_buffer/NAME") are left out: DeepSpeed's files hold them in pieces of
    ranks, which the library lists as they are.
    """
    n, equal, first = 0, 0, None
    for key, want in expected.items():
        if "/" in key and key.split("/", 1)[0] not in STATES:
            continue
        n += 1
        found = find(ck, key, want)
        if not found:
            first = first or f"{key} is not found"
            continue
        t = ck.info(*found[0])
        shape = list(t.shape) if len(t.shape) == len(want["shape"]) else [len(found), *t.shape]
        dtype = shardkit._DTYPES.get(t.dtype, (0, 0, t.dtype))[2]
        have = (dtype, shape, hashlib.sha256(b"".join(bytes_of(ck, *x) for x in found)).hexdigest())
        if have == (want["dtype"].replace("torch.", ""), want["shape"], want["sha256"]):
            equal += 1
        else:
            first = first or f"{key}: {have}, expected {want}"
    return n, equal, first


def is_set(files):
    return any(f.startswith("expected") and f.endswith(".json") for f in files)


def checkpoints(folder):
    """Yield (path, Checkpoint, None) for each checkpoint below a folder, and (path, None, Error) for a folder that is
    none, unless it only holds other folders. If such a folder has one file of torch.save, this file is opened. Sets
    inside the folder are left out."""
    for path, below, files in os.walk(folder):
        below.sort()
        if path != folder and is_set(files):
            below[:] = []
            continue
        try:
            ck = shardkit.open(path)
        except shardkit.Error as e:
            if any(text in str(e) for text in OF_FOLDERS):
                continue
            below[:] = []
            single = [os.path.join(path, f) for f in files if f.endswith(SINGLE_FILES)]
            yield path, shardkit.open(single[0]) if len(single) == 1 else None, e
            continue
        # A folder whose file `latest` names a checkpoint may have others, too.
        below[:] = [] if ck.path == path else [d for d in below if os.path.join(path, d) != ck.path]
        yield path, ck, None


def rounded(a, dtype):
    """An array of f32, rounded to nearest or even, as the bytes of f16 or bf16."""
    if dtype == "f16":
        with numpy.errstate(over="ignore"):
            return a.astype("<f2").tobytes()
    bits = a.view("<u4").astype("<u8")
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def read_whole(path, ck):
    """Read a checkpoint that no expected.json describes. Returns a line about it; raises AssertionError."""
    for t in ck.tensors:
        bytes_of(ck, t.name, t.state)
    text = f"{len(ck.tensors)} tensors read"
    if os.path.exists(path + ".sha256"):
        with open(path + ".sha256", encoding="utf-8") as f:
            sums = [line.split() for line in f if " --state " in line]
        other = [n for digest, n, _, state in sums if hashlib.sha256(ck.read(n, state)).hexdigest() != digest]
        assert not other, f"{other[0]}: not the sum of {path}.sha256"
        text += f", {len(sums)} states equal those of the .sha256" if sums else ""
    pairs = [n for n in ck if {"bf16", "fp32"} <= set(ck.states(n)) and ck.info(n, "fp32").dtype == "f32" and
             ck.info(n, "bf16").dtype in ("bf16", "f16")]
    if numpy is not None and pairs:
        other = [n for n in pairs if rounded(ck.array(n, "fp32"), ck.info(n, "bf16").dtype) != ck.read(n, "bf16")]
        assert not other, f"{other[0]}: the weights are not the rounded master ({len(other)} of {len(pairs)})"
        text += f", {len(pairs)} weights are the rounded masters"
    if os.path.isdir(ck.path + "_universal"):
        with shardkit.open(ck.path + "_universal") as by_converter:
            both = [(n, s) for n in by_converter for s in by_converter.states(n)]
            other = [x for x in both if by_converter.read(*x) != ck.read(*x)]
            assert both and not other, f"{other[:1]}: not the bytes of {by_converter.path}"
            text += f", {len(both)} equal those of DeepSpeed's converter"
    return text


def check(path, ck, parts):
    """Yield (section, kind of line, text) for the sections that are equal in a checkpoint, or if none is, for the one
    that is so for the most part."""
    results = [(name, len(want), *compare(ck, want)) for name, want in parts]
    known = KNOWN.get("/".join(path.split(os.sep)[-3:-1]), (0, ""))
    whole = [r for r in results if r[3] and r[2] - r[3] in (0, known[0])]
    for name, listed, n, equal, first in whole or [max(results, key=lambda r: r[3])]:
        why = "" if equal == n else f"; {known[1] if whole else first}"
        yield name, "ok" if whole else "FAIL", f"{equal} of {n} of '{name}' equal{why}"
        if listed > n:
            yield name, "skip", f"{listed - n} of '{name}': states of another optimizer, in pieces of ranks"


class Count:
    """Prints lines and counts them."""

    def __init__(self):
        self.n = {"ok": 0, "FAIL": 0, "skip": 0}

    def line(self, kind, *words):
        self.n[kind] += 1
        print(kind.ljust(4), *words, flush=True)


def check_checkpoint(path, ck, error, parts, count):
    """Check one checkpoint. Returns the names of the sections that it was compared with; None if it is not one that the
    module reads, for the reason in `error`."""
    seen = set()
    try:
        lines = list(check(path, ck, parts)) if parts else [("", "ok", read_whole(path, ck))]
    except (AssertionError, shardkit.Error) as e:
        lines = [("", "FAIL", str(e))]
    if error is not None and any(kind == "FAIL" for _, kind, _ in lines):
        return None
    for name, kind, text in lines:
        count.line(kind, ck.layout, path, text)
        seen.add(name)
    return seen


def check_set(folder, parts, count):
    """Check the checkpoints of a set, or if it has no parts, those of a folder. A section that is left must belong to a
    folder that is not read, or be one of NOT_READ."""
    seen, unread, left = set(), [], {}
    for path, ck, error in checkpoints(folder):
        names = check_checkpoint(path, ck, error, parts, count) if ck else None
        if names is not None:
            seen |= names
            continue
        unread.append(path + os.sep)
        if path.endswith(BROKEN):
            count.line("ok", f"refused: {error}")
        else:
            count.line("skip" if any(text in str(error) for text in NOT_SUPPORTED) else "FAIL", error)
    for name, _ in parts:
        tail = os.path.join(folder, name.replace(".", os.sep), "")
        if name not in seen and not any(path.startswith(tail) or tail.startswith(path) for path in unread) and \
                not (name == "tensors" and unread and not seen):
            left.setdefault(name.split(".")[0], []).append(name)
    for name, names in left.items():
        what = f"'{name}'" + (f" ({len(names)} sections)" if len(names) > 1 else "")
        if name in NOT_READ:
            count.line("skip", f"{folder}: {what}: {NOT_READ[name]}")
        else:
            count.line("FAIL", f"{folder}: no checkpoint has the tensors of {what}")


def main(folders):
    count = Count()
    print(f"shardkit {shardkit.version()} of {os.path.dirname(shardkit.__file__)};",
          f"NumPy {numpy.__version__}," if numpy else "without NumPy,",
          f"torch {torch.__version__}" if torch else "without torch")
    sets = [d for folder in folders for d, _, files in sorted(os.walk(folder)) if is_set(files)]
    for folder in sets + [folder for folder in folders if folder not in sets]:
        parts = []
        described = sorted(f for f in os.listdir(folder) if is_set([f]))
        for f in described:
            with open(os.path.join(folder, f), encoding="utf-8") as text:
                found = sections(json.load(text))
                parts += [(name if len(described) == 1 else f"{f}: {name}", want) for name, want in found]
        check_set(folder, parts, count)
    print(f"{count.n['ok']} passed, {count.n['FAIL']} failed, {count.n['skip']} skipped")
    return count.n["FAIL"] > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
