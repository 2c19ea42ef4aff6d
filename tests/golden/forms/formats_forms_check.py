"""Every tensor of a checkpoint, in whatever form, against what the genuine software said of it.

formats_forms_check.py EXPECTED FOLDER [weights]   all of expected.json's tensors that are a parameter's weights, master or
                                                   moments are in FOLDER, bit for bit (weights: no moments)
Names of EXPECTED are those of the form that it is of: "model.X", "optim.state.X.exp_avg" of torch.distributed,
"fp32/X" of ZeRO, "X" and "optimizer.state.exp_avg.X" of Megatron-core, where layers may be stacked in X.
16-bit numbers that became fp32 are the same numbers.
"""
import hashlib
import json
import re
import subprocess
import sys

MOMENTS = ("exp_avg_sq", "exp_avg")


def run(*args):
    return subprocess.run(["ckpt-inspect", *args], check=True, capture_output=True).stdout


def sha(data):
    return hashlib.sha256(data).hexdigest()


def state_of(key):
    """A key's state and the rest of its name; no state: weights."""
    if "/" in key:
        state, name = key.split("/", 1)
        return state, name
    core = re.match(r"(?:chained_\d+\.)?optimizer\.state\.(exp_avg_sq|exp_avg|fp32_param|param)\.(.*)", key)
    if core:
        return ("fp32" if "param" in core[1] else core[1]), core[2]
    for state in MOMENTS:
        if key.endswith("." + state):
            return state, key[:-len(state) - 1]
    return "", key


def find(name, rows, params):
    """Parameters that a name stands for: itself, behind a prefix, or the layers of a stack."""
    for k in range(len(name.split("."))):
        end = ".".join(name.split(".")[k:])
        if end in params:
            return [end]
    stack = [re.sub(r"\blayers\.", f"layers.{i}.", name, count=1) for i in range(rows)]
    return stack if stack and all(n in params for n in stack) else []


def spellings(data, have, said):
    """The bytes as they are, and those of the same bf16 numbers as fp32, or the other way round."""
    yield data
    if said == "float32" and have == "bf16":
        yield b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    if said == "bfloat16" and have == "f32" and not any(data[0::4]) and not any(data[1::4]):
        yield b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))


def main(expected, folder, *what):
    want = json.load(open(expected))["tensors"]
    params = {p["name"]: p["states"] for p in json.loads(run("ls", "--json", folder))["parameters"]}
    n, bad, seen = 0, [], set()
    for key, v in want.items():
        state, name = state_of(key)
        of = find(name, v["shape"][0] if v["shape"] else 0, params)
        if not of or state not in ("", "fp32", *MOMENTS) or (what and state in MOMENTS):
            continue
        have = params[of[0]]
        # A frozen parameter has weights alone.
        told = state if state in have else "bf16" if "bf16" in have and state not in MOMENTS else "fp32"
        data = b"".join(run("cat", "--raw", folder, f"{one}:{told}") for one in of)
        n += 1
        seen.update(of)
        if v["sha256"] not in map(sha, spellings(data, have[told]["dtype"], v["dtype"])):
            bad.append(key)
    assert not bad, bad
    assert n and seen >= {p for p in params if "lm_head" not in p}, (n, sorted(set(params) - seen))
    print(n, "tensors are equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
