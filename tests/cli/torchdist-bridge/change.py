"""change.py FILE N VALUE - write the int64 VALUE into the N-th storage of a file of torch.save"""
import struct, sys, zipfile

path, number, value = sys.argv[1], sys.argv[2], int(sys.argv[3])
with zipfile.ZipFile(path) as z:
    files = [(i.filename, z.read(i)) for i in z.infolist()]
with zipfile.ZipFile(path, 'w') as z:
    for name, data in files:
        z.writestr(name, struct.pack('<q', value) if name.endswith('/data/' + number) else data)
