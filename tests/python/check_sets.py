"""check_sets.py FOLDER... - every tensor of genuine sets, as the Python module reads it, against expected.json

A set is a folder with expected*.json, which lists tensors with shape, dtype and the SHA-256 of their little-
endian bytes, and with checkpoints in other folders below it. The sections of the file ("tensors", "disk",
"hf") describe some of these checkpoints. Each checkpoint that opens must have all tensors of a section, equal
in type, shape and bytes: as the library reads them, and as the file has them where bytes lie whole in one.
With NumPy and torch, arrays and tensors must have these bytes, too. A set without a checkpoint that opens is
skipped, with the reason. A folder without expected.json is read as a whole: each tensor must be read, and
mapped bytes must equal those that the library read.

Prints a line per checkpoint and "N passed, N failed, N skipped", which counts checkpoints.
"""
import hashlib
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import shardkit  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


# Sets whose files are known to hold other values than expected.json: how many tensors, and why.
KNOWN = {
    "distopt-tp2-dp2-two-buckets/fully_reshardable":
        (6, "megatron-core saved 6 tensors wrongly, expected.json has the truth"),
}


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
    if torch is not None:
        tensor = ck.tensor(name, state)
        assert bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) == data if data else tensor.numel() == 0
    return data


def find(ck, key):
    """The tensor that a key of expected.json means: a name, or STATE/NAME; DeepSpeed calls the weights "module"."""
    ways = [(key, None)]
    if "/" in key:
        state, name = key.split("/", 1)
        ways.append((name, "bf16" if state == "module" else state))
        if state == "fp32":             # as zero_to_fp32 lists a frozen parameter and a buffer, which have no master
            ways.append((name, None))
    for name, state in ways:
        try:
            return ck.info(name, state), name, state
        except shardkit.Error:
            pass
    return None, None, None


def compare(ck, expected):
    """How many tensors of a section are looked for, how many of them are equal, and the first that is not.

    States of other optimizers than Adam ("momentum_buffer/NAME") are left out: DeepSpeed's files hold them in pieces of
    ranks, which the library lists as they are.
    """
    n, equal, first = 0, 0, None
    for key, want in expected.items():
        if "/" in key and key.split("/", 1)[0] not in ("module", "fp32", "bf16", "exp_avg", "exp_avg_sq"):
            continue
        n += 1
        t, name, state = find(ck, key)
        if t is None:
            first = first or f"{key} is not found"
            continue
        dtype = shardkit._DTYPES.get(t.dtype, (0, 0, t.dtype))[2]
        have = (dtype, list(t.shape), hashlib.sha256(bytes_of(ck, name, state)).hexdigest())
        if have == (want["dtype"].replace("torch.", ""), want["shape"], want["sha256"]):
            equal += 1
        else:
            first = first or f"{key}: {have}, expected {want}"
    return n, equal, first


def is_set(files):
    return any(f.startswith("expected") and f.endswith(".json") for f in files)


def checkpoints(folder):
    """Yield (path, Checkpoint) for each checkpoint below a folder, and (path, Error) for folders that are none. Sets
    inside the folder are left out."""
    for path, below, files in os.walk(folder):
        below.sort()
        if path != folder and is_set(files):
            below[:] = []
            continue
        try:
            ck = shardkit.open(path)
        except shardkit.Error as e:
            yield path, e
            continue
        # A folder whose file `latest` names a checkpoint may have others, too.
        below[:] = [] if ck.path == path else [d for d in below if os.path.join(path, d) != ck.path]
        yield path, ck


def check(path, ck, parts):
    """A line about one checkpoint, and whether it is good."""
    if not parts:
        for t in ck.tensors:
            bytes_of(ck, t.name, t.state)
        return True, f"{len(ck.tensors)} tensors read"
    best = max(((name, len(want), *compare(ck, want)) for name, want in parts), key=lambda x: (x[2] == x[3], x[3]))
    name, listed, n, equal, first = best
    known = KNOWN.get("/".join(path.split(os.sep)[-3:-1]))
    text = f"{equal} of {n} of '{name}' equal"
    if listed > n:
        text += f", {listed - n} not looked for: states of another optimizer"
    if equal < n:
        text += f"; {known[1]}" if known and n - equal == known[0] else f"; {first}"
    return equal > 0 and (equal == n or (known is not None and n - equal == known[0])), text


def main(folders):
    passed = failed = skipped = 0
    sets = [d for folder in folders for d, _, files in sorted(os.walk(folder)) if is_set(files)]
    for folder in sets + [folder for folder in folders if folder not in sets]:
        parts = []
        for f in sorted(os.listdir(folder)):
            if f.startswith("expected") and f.endswith(".json"):
                with open(os.path.join(folder, f), encoding="utf-8") as text:
                    parts += sections(json.load(text))
        opened = why = None
        for path, ck in checkpoints(folder):
            if isinstance(ck, shardkit.Error):
                why = why if path == folder or why else str(ck)
                continue
            opened = True
            try:
                good, text = check(path, ck, parts)
            except (AssertionError, shardkit.Error) as e:
                good, text = False, str(e)
            passed, failed = passed + good, failed + (not good)
            print("ok  " if good else "FAIL", ck.layout, path, text)
        if not opened and parts:
            skipped += 1
            print("skip", folder, why)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
