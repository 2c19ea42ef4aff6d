"""torch_any.py - what scripts that look into .pt files share: loading without Megatron and DeepSpeed, comparing

Classes of Megatron and DeepSpeed need not be there: their names are kept.
"""
import enum
import pickle
import sys
import unittest.mock

import torch


class Kept:
    """An object of a class that is not installed."""
    def __new__(cls, *args):
        self = object.__new__(cls)
        if args:                        # a member of an enumeration
            self.made_of = args
        return self

    def __init__(self, *args):
        pass

    def __reduce_ex__(self, protocol):
        if hasattr(self, 'made_of'):
            return type(self), self.made_of
        return super().__reduce_ex__(protocol)


classes = {}


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module.split('.')[0] in ('deepspeed', 'megatron'):
            if (module, name) not in classes:
                cls = (enum.Enum(name, 'rotary absolute alibi', module=module) if name == 'PositionEmbeddingType' else
                       type(name, (Kept,), {'__module__': module}))
                parts = module.split('.')
                for i in range(1, len(parts) + 1):
                    sys.modules.setdefault('.'.join(parts[:i]), type(sys)('.'.join(parts[:i])))
                setattr(sys.modules[module], name, cls)
                classes[module, name] = cls
            return classes[module, name]
        return super().find_class(module, name)


def load(path):
    # As torch.load(pickle_module=...) would do; torch 1.13.0 does not use what it is given there.
    with unittest.mock.patch.object(pickle, 'Unpickler', Unpickler):
        return torch.load(path, weights_only=False, map_location='cpu')


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
            a.contiguous().flatten().view(torch.uint8) if a.numel() else a,
            b.contiguous().flatten().view(torch.uint8) if b.numel() else b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a).__name__ == type(b).__name__ and len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, '__dict__') and not isinstance(a, type):
        return type(a).__name__ == type(b).__name__ and equal(vars(a), vars(b))
    if type(a).__name__ == 'ndarray':
        return a.dtype == b.dtype and (a == b).all()
    return type(a).__name__ == type(b).__name__ and a == b
