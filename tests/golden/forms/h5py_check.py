#!/usr/bin/python3
"""Read an index.h5 with h5py, from another folder, and compare it bit for bit.

usage: h5py_check.py OUT UNIVERSAL         (needs python3-h5py and python3-torch)
       h5py_check.py --raw OUT RAW         (needs python3-h5py)
       h5py_check.py --edited OUT UNIVERSAL        and what the index says of the run is what UNIVERSAL's mp_rank_00 says
       h5py_check.py --zeroed OUT IN PATTERN       IN, with zeros in the moments of what the pattern matches

OUT is a folder made by ds2universal --format hdf5 or virtual. UNIVERSAL is what the
reference converter made of the same checkpoint; RAW holds PARAMETER.STATE files of
little-endian floats. One tensor of the reference's is left out: it concatenates the
replicated position table over tensor ranks, and takes the last stage's copy, which is
never trained.
"""
import fnmatch
import os
import sys

# Before h5py is loaded: where external files are looked for.
os.environ["HDF5_EXTFILE_PREFIX"] = "${ORIGIN}"

import h5py
import numpy


STATES = ("fp32", "exp_avg", "exp_avg_sq")


def universal_names(folder):
    zero = os.path.join(folder, "zero")
    return [n for n in os.listdir(zero) if os.path.isdir(os.path.join(zero, n))]


def universal_tensor(folder, name, state):
    import torch

    held = torch.load(os.path.join(folder, "zero", name, state + ".pt"), map_location="cpu")
    return held["param"].detach().numpy()


def raw_names(folder):
    return {n.rsplit(".", 1)[0] for n in os.listdir(folder)}


def raw_tensor(folder, name, state):
    return numpy.fromfile(os.path.join(folder, name + "." + state), dtype="<f4")


def compare(index, names, tensor):
    wrong = checked = 0
    have = {n for n in index if not n.startswith(".")}
    if set(names) != have:
        print("names differ:", set(names) ^ have)
        wrong += 1
    for name in sorted(have & set(names)):
        for state in STATES:
            want = tensor(name, state)
            got = index[name][state][...]
            if name.endswith("position_embeddings.weight") and want.shape != got.shape:
                print(f"{name} {state}: the reference has {want.shape}, here {got.shape}: not compared")
                continue
            checked += 1
            same_shape = want.ndim == 1 or want.shape == got.shape
            if got.dtype != numpy.float32 or not same_shape or got.tobytes() != want.tobytes():
                print(f"{name} {state}: differs")
                wrong += 1
    return checked, wrong


def check_run(index, folder):
    """The attributes that follow from mp_rank_00 and the tensors."""
    from torch_any import load

    tree = load(os.path.join(folder, "mp_rank_00_model_states.pt"))
    a = tree["args"]
    word = index["tied_modules.embed.word_embeddings.weight"]["fp32"].shape[0]
    layers = {n.split(".")[0] for n in index if n[0].isdigit()}
    want = {"iteration": tree["iteration"], "consumed_samples": a.consumed_train_samples,
            "consumed_tokens": tree.get("tokens", a.consumed_train_tokens), "model_layers": a.num_layers,
            "model_vocab_padded": word, "n_parameters": len(index)}
    wrong = {k: (int(index.attrs[k]), v) for k, v in want.items() if index.attrs[k] != v}
    print(f"{folder}: {wrong or 'the index says the same'}")
    return bool(wrong) or len(layers) != a.num_layers + 1


def zeroed(out, folder, pattern):
    wrong = 0
    with h5py.File(os.path.join(out, "index.h5"), "r") as new, h5py.File(os.path.join(folder, "index.h5"), "r") as was:
        assert set(new) == set(was)
        for name in was:
            for state in STATES:
                want = was[name][state][...]
                if state != "fp32" and fnmatch.fnmatchcase(name, pattern):
                    want = numpy.zeros_like(want)
                wrong += new[name][state][...].tobytes() != want.tobytes()
    print(f"{out}: {wrong} wrong")
    return 1 if wrong else 0


def main(args):
    if args[0] == "--zeroed":
        return zeroed(*args[1:])
    edited = args[0] == "--edited"
    args = args[edited:]
    raw = args[0] == "--raw"
    out, folder = (os.path.abspath(a) for a in args[raw:])
    names = raw_names(folder) if raw else universal_names(folder)
    read = raw_tensor if raw else universal_tensor
    os.chdir("/")
    with h5py.File(os.path.join(out, "index.h5"), "r") as index:
        assert index.attrs["format"] == b"shardkit-universal", index.attrs["format"]
        assert index.attrs["format_version"] == 1
        checked, wrong = compare(index, names, lambda n, s: read(folder, n, s))
        wrong += edited and check_run(index, folder)
    print(f"{out}: {checked} tensors read by h5py, {wrong} wrong")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
