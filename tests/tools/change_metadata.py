"""change_metadata.py FOLDER CODE - change the .metadata of a folder of torch.distributed.checkpoint, without torch

CODE sees m (the Metadata object), tensors (its state_dict_metadata), drop(name ...), which removes all entries whose
names contain one of the texts, cut(name, axis, n), which keeps the first n rows of an axis that is cut in pieces of 1,
halve(name, axis), which keeps the first half of an axis that is cut there, and rename(a, b), which replaces a text in all names. all_local_plans, which states the same again, is removed.
"""
import copyreg, os, pickle, sys, types


class Stub:                             # an object of any class; __init__ runs only if the pickle calls the class
    def __new__(cls, *args):
        o = object.__new__(cls)
        object.__setattr__(o, 'made', [args, False, None])
        return o

    def __init__(self, *args):
        self.made[1] = True

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.made[2] = state

    def __reduce__(self):
        args, called, other = self.made
        state = other or {k: v for k, v in self.__dict__.items() if k != 'made'}
        how = (type(self), args) if called else (copyreg.__newobj__, (type(self),) + args)
        return how + (state,) if state else how


class Type:                             # such as torch.float32
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


def find(module, name):
    if module.startswith('collections') or module == 'builtins':
        return getattr(__import__(module), name)
    at = sys.modules.setdefault(module, types.ModuleType(module))
    if not hasattr(at, name):
        if module == 'torch' and name == 'Size':
            new = type(name, (tuple,), {'__module__': module, '__reduce__': lambda o: (type(o), (tuple(o),))})
        elif module == 'torch':
            new = Type(name)
            new.__module__ = module
        else:
            new = type(name, (Stub,), {'__module__': module})
        setattr(at, name, new)
    return getattr(at, name)


class Unpickler(pickle.Unpickler):
    find_class = staticmethod(find)


def drop(*texts):
    for k in [k for k in tensors if any(t in k for t in texts)]:
        del tensors[k]
        for i in [i for i in m.storage_data if i.fqn == k]:
            del m.storage_data[i]
        if m.planner_data:
            m.planner_data.pop(k, None)


def cut(name, axis, n):
    t = tensors[name]
    t.size = find('torch', 'Size')(n if a == axis else s for a, s in enumerate(t.size))
    t.chunks = [c for c in t.chunks if c.offsets[axis] < n]
    for i in [i for i in m.storage_data if i.fqn == name and i.offset[axis] >= n]:
        del m.storage_data[i]


def halve(name, axis):
    t = tensors[name]
    n = t.size[axis] // 2
    t.size = find('torch', 'Size')(n if a == axis else s for a, s in enumerate(t.size))
    t.chunks = [c for c in t.chunks if c.offsets[axis] < n]
    for i in [i for i in m.storage_data if i.fqn == name and i.offset[axis] >= n]:
        del m.storage_data[i]


def rename(a, b):
    for k in [k for k in tensors if a in k]:
        tensors[k.replace(a, b)] = tensors.pop(k)
    paths = m.planner_data or {}
    for k in [k for k in paths if a in k]:
        paths[k.replace(a, b)] = tuple(p.replace(a, b) if isinstance(p, str) else p for p in paths.pop(k))
    for i in m.storage_data:
        i.fqn = i.fqn.replace(a, b)


path = sys.argv[1] + '/.metadata'
with open(path, 'rb') as f:
    m = Unpickler(f).load()
tensors = m.state_dict_metadata
m.all_local_plans = None
exec(sys.argv[2])
os.chmod(sys.argv[1], 0o755)
os.remove(path)
with open(path, 'wb') as f:
    pickle.dump(m, f, protocol=2)
