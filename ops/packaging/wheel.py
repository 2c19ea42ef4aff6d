#!/usr/bin/env python3
"""wheel.py VERSION ARCH STAGE OUTDIR - pack STAGE, the files of a release, as a Python wheel

The wheel holds the static program as the script `shardkit`, a script of one line per tool that calls it, train, man pages,
completion and licences; and, where the folder LIBRARIES (in the environment) exists, python/shardkit and the shared
libraries of that folder. The platform tag is manylinux_2_17, or that of the newest glibc that these or train need. Names are
sorted and every time is SOURCE_DATE_EPOCH, so equal input gives an equal wheel. Only the standard library is used.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time
import zipfile

SCRIPT = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/shardkit" {tool} "$@"\n'


def shared_libraries():
    folder = pathlib.Path(os.environ.get("LIBRARIES", ""))
    return sorted(folder.glob("*.so*")) if os.environ.get("LIBRARIES") and folder.is_dir() else []


def glibc_minor(files):
    """Return the minor number of the newest GLIBC_2.x version that the files refer to; at least 17."""
    text = "".join(subprocess.run(["readelf", "-VW", path], check=True, capture_output=True, text=True).stdout
                   for path in files)
    return max([17] + [int(n) for n in re.findall(r"GLIBC_2\.(\d+)", text)])


def wheel_files(version, arch, stage, tag):
    """Return a dict from names in the wheel to (bytes, mode)."""
    files, data = {}, f"shardkit-{version}.data"
    info = f"shardkit-{version}.dist-info"
    for path in sorted((stage / "bin").iterdir()):
        if path.is_symlink():
            files[f"{data}/scripts/{path.name}"] = (SCRIPT.format(tool=path.name).encode(), 0o755)
        else:
            files[f"{data}/scripts/{path.name}"] = (path.read_bytes(), 0o755)
    for folder in ("share/man", "share/bash-completion", "share/zsh", "share/fish"):
        for path in sorted((stage / folder).rglob("*")):
            if path.is_file():
                files[f"{data}/data/{path.relative_to(stage)}"] = (path.read_bytes(), 0o644)
    doc = stage / "share/doc/shardkit"
    for path in [doc / "LICENSE", *sorted((doc / "licenses").iterdir())]:
        files[f"{info}/licenses/{path.name}"] = (path.read_bytes(), 0o644)
    package = pathlib.Path("python/shardkit")
    for path in sorted(package.rglob("*")) if shared_libraries() else ():
        if path.is_file() and "__pycache__" not in path.parts:
            files[f"shardkit/{path.relative_to(package)}"] = (path.read_bytes(), 0o644)
    for path in shared_libraries():
        files[f"shardkit/{path.name}"] = (path.read_bytes(), 0o755)
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: shardkit\nVersion: {version}\n"
        "Summary: Tools for the checkpoints of large language models: inspect, verify, reshape, convert, back up\n"
        "License: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
        .encode() + (doc / "README.md").read_bytes(), 0o644)
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: shardkit {version}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644)
    return files


def record(files, name):
    rows = []
    for path, (content, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}\n")
    return "".join(rows + [f"{name},,\n"]).encode()


def main():
    version, arch, stage, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    tag = f"py3-none-manylinux_2_{glibc_minor([*shared_libraries(), stage / 'bin/train'])}_{arch}"
    files = wheel_files(version, arch, stage, tag)
    name = f"shardkit-{version}.dist-info/RECORD"
    files[name] = (record(files, name), 0o644)
    # A zip has no times before 1980 and none of odd seconds.
    when = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
    wheel = out / f"shardkit-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for path, (content, mode) in sorted(files.items(), key=lambda f: (".dist-info/" in f[0], f[0])):
            entry = zipfile.ZipInfo(path, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            z.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    main()
