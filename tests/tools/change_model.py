"""change_model.py IN OUT CODE - copy a model folder of one safetensors file, changed by CODE

CODE sees t (name: [type, shape, bytes]) and c (config.json).
"""
import json, os, shutil, struct, sys
source, out, code = sys.argv[1:]
shutil.copytree(source, out)
os.chmod(out, 0o755)
with open(out + '/model.safetensors', 'rb') as f:
    b = f.read()
n = struct.unpack('<Q', b[:8])[0]
h = json.loads(b[8:8 + n])
meta = h.pop('__metadata__', None)
t = {k: [v['dtype'], v['shape'], b[8 + n + v['data_offsets'][0]:8 + n + v['data_offsets'][1]]] for k, v in h.items()}
c = json.load(open(out + '/config.json'))
exec(code)
h, data = {}, b''
for k, (d, s, x) in t.items():
    h[k] = {'dtype': d, 'shape': s, 'data_offsets': [len(data), len(data) + len(x)]}
    data += x
if meta:
    h['__metadata__'] = meta
j = json.dumps(h).encode()
for name, text in (('model.safetensors', struct.pack('<Q', len(j)) + j + data), ('config.json', json.dumps(c).encode())):
    os.remove(out + '/' + name)
    open(out + '/' + name, 'wb').write(text)
