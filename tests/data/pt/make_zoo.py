#!/usr/bin/env python3
"""Write a .pt with every kind of value that checkpoints hold: make_zoo.py OUT.pt [PROTOCOL]

zoo_torch1.pt was made with torch 1.13 (Python 3.11), zoo_torch2.pt with torch 2.11
(Python 3.12), zoo_protocol4.pt and zoo_protocol5.pt with torch 2.15 and pickle_protocol 4
and 5. layer_08.pt is the final LayerNorm of the bloom golden set, step 20.
"""
import argparse
import collections
import enum
import random
import sys
import types

import numpy
import torch


def fake_module(name, cls):
    """Classes pickle by name; give them the names that real checkpoints have."""
    parts = name.split('.')
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault('.'.join(parts[:i]), types.ModuleType('.'.join(parts[:i])))
    cls.__module__ = name
    setattr(sys.modules[name], cls.__name__, cls)
    return cls


PositionEmbeddingType = fake_module('megatron.enums', enum.Enum('PositionEmbeddingType', 'rotary absolute alibi'))
fragment_address = fake_module('deepspeed.utils.tensor_fragment', type('fragment_address', (), {}))
Unknown = fake_module('megatron.curriculum', type('Unknown', (), {}))

torch.manual_seed(1)
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
fragment = fragment_address()
fragment.numel, fragment.start = 12, 3
unknown = Unknown()
unknown.field = [1, 2]
shared = ['shared', 'list']
random.seed(5)
numpy.random.seed(6)
module = torch.nn.Linear(3, 2)

zoo = {
    'base': base,
    'column': base[:, 2],
    'transposed': base.t(),
    'tail': base[2:, 3:],
    'scalar': torch.tensor(7.5),
    'empty': torch.zeros(0, 5),
    'dtypes': {str(t): torch.tensor([1, 2, 3]).to(t) for t in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)},
    'parameter': torch.nn.Parameter(torch.ones(2, 2)),
    'state_dict': module.state_dict(),
    'size': torch.Size([4, 6]),
    'dtype': torch.bfloat16,
    'device': torch.device('cpu'),
    'ints': [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63 - 1, -2**63, 2**63, 2**100, -2**100],
    'floats': [0.0, -0.0, 1.5, 0.1, 1e300, float('inf'), float('-inf')],
    'strings': ['', 'plain', 'quote " back \\', 'line\nbreak', 'h\u00e9\u4e2d\U0001f600', '\ud800'],
    'none': None, 'true': True, 'false': False,
    'tuples': [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    'set': {1}, 'frozenset': frozenset({2}), 'bytes': b'\x00\xff\x80a', 'no_bytes': b'',
    'complex': 1 + 2j, 'range': range(3),
    'deque': collections.deque([[1, 2], [3, 4]]), 'counter': collections.Counter('aab'),
    'ordered': collections.OrderedDict([('b', 1), ('a', 2)]), 7: 'int key',
    'shared': [shared, shared],
    'namespace': argparse.Namespace(hidden_size=64, position=PositionEmbeddingType.alibi, lr=2e-3),
    'fragment': fragment, 'unknown': unknown,
    'np_int': numpy.int64(-5), 'np_float': numpy.float32(0.25), 'np_u1': numpy.uint8(200),
    'random': random.getstate(), 'np_random': numpy.random.get_state(),
    'long_list': list(range(2500)),
}
torch.save(zoo, sys.argv[1], pickle_protocol=int(sys.argv[2]) if len(sys.argv) > 2 else 2)
