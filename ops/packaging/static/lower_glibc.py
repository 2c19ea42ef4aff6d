#!/usr/bin/env python3
"""lower_glibc.py IN OUT MINOR - copy a shared library so that it loads with glibc 2.MINOR

Symbols that IN takes from a newer version than GLIBC_2.MINOR refer to no version in OUT, so the dynamic linker takes the
machine's own. That is right only for functions which glibc 2.MINOR has too, with the same parameters: those whose new
version means that they moved into libc.so.6 from libpthread or libdl. The script knows these by name and refuses others.
For 64-bit little-endian ELF. Only the standard library is used.
"""
import pathlib
import re
import struct
import sys

SHT_GNU_VERNEED, SHT_GNU_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
VER_NDX_GLOBAL = 1
MOVED = re.compile(r"pthread_\w+|sem_\w+|dl(open|close|sym|error)")


def string_at(data, at):
    return data[at:data.index(b"\0", at)].decode()


def sections(data):
    """Return {type: (offset, size, link)} and a list of the offsets of all sections."""
    at, = struct.unpack_from("<Q", data, 0x28)
    size, n = struct.unpack_from("<HH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQII", data, at + i * size) for i in range(n)]
    return {r[1]: (r[4], r[5], r[6]) for r in rows}, [r[4] for r in rows]


def needed_versions(data, at, names):
    """Yield (offset of the entry, name of the version, index) of each version that is needed."""
    while True:
        _, n, _, aux, following = struct.unpack_from("<HHIII", data, at)
        entry = at + aux
        for _ in range(n):
            _, _, index, name, step = struct.unpack_from("<IHHII", data, entry)
            yield entry, string_at(data, names + name), index
            entry += step
        if not following:
            return
        at += following


def lower(data, minor):
    """Change `data`; return the names of the symbols that refer to no version now."""
    found, offsets = sections(data)
    if SHT_GNU_VERNEED not in found:
        return []
    need, _, link = found[SHT_GNU_VERNEED]
    names = offsets[link]
    versym, size, link = found[SHT_GNU_VERSYM]
    dynsym = offsets[link]
    versions = list(needed_versions(data, need, names))
    newer = {index: entry for entry, name, index in versions
             if (m := re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", name)) and int(m.group(1)) > minor}
    base = min((name, entry) for entry, name, _ in versions if re.fullmatch(r"GLIBC_2\.(2\.5|17)", name))[1]
    lowered = []
    for i in range(size // 2):
        index, = struct.unpack_from("<H", data, versym + 2 * i)
        if index & 0x7FFF in newer:
            name, = struct.unpack_from("<I", data, dynsym + 24 * i)
            name = string_at(data, names + name)
            if not MOVED.fullmatch(name):
                sys.exit(f"lower_glibc: {name}: not known to be the same function in glibc 2.{minor}")
            struct.pack_into("<H", data, versym + 2 * i, VER_NDX_GLOBAL)
            lowered.append(name)
    # An entry that no symbol refers to is checked at load, too: it gets the hash and the name of the first version.
    for entry in newer.values():
        data[entry:entry + 4] = data[base:base + 4]
        data[entry + 8:entry + 12] = data[base + 8:base + 12]
    return lowered


def main():
    data = bytearray(pathlib.Path(sys.argv[1]).read_bytes())
    if data[:6] != b"\x7fELF\x02\x01":
        sys.exit(f"lower_glibc: {sys.argv[1]}: no 64-bit little-endian ELF")
    lower(data, int(sys.argv[3]))
    pathlib.Path(sys.argv[2]).write_bytes(data)


if __name__ == "__main__":
    main()
