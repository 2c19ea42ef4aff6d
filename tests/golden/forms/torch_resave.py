#!/usr/bin/env python3
"""Load a checkpoint's files and save them again: torch_resave.py IN OUT PROTOCOL

torch_resave.py --equal A B: do two folders hold the same values, tensors and all else?
"""
import os
import sys

import torch

from torch_any import equal, load


def names(folder):
    return sorted(n for n in os.listdir(folder) if n.endswith('.pt'))


if sys.argv[1] == '--equal':
    a, b = sys.argv[2:]
    bad = [n for n in names(a) if not equal(load(f'{a}/{n}'), load(f'{b}/{n}'))] if names(a) == names(b) else ['names']
    sys.exit(f'differ: {bad}' if bad else 0)
source, out, protocol = sys.argv[1:]
os.mkdir(out)
for n in names(source):
    torch.save(load(f'{source}/{n}'), f'{out}/{n}', pickle_protocol=int(protocol))
