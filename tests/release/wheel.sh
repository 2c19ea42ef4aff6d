#!/bin/sh
# wheel.sh - the files of `make release`: sums, the wheel in an empty Python environment, the tarball
#
# The wheel's commands and its Python module must work with nothing else installed, and read what the normal build reads.
# A check whose need (venv with pip) is missing is skipped by name. Run `make release DEB=0` first;
# install_roots.sh checks the packages.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
root=$PWD arch=$(uname -m) version=$(cat VERSION)

[ -e dist/SHA256SUMS ] || skip "wheel: no dist/SHA256SUMS: make release"
check "sums" sh -c 'cd dist && sha256sum --quiet -c SHA256SUMS'

# ---- the tarball ----
check "tarball" tar --zstd -xf "dist/shardkit-$version-linux-$arch.tar.zst" -C "$W"
top=$W/shardkit-$version-linux-$arch
set_=tests/data/bloom-tp2pp2dp2
check "verify from the tarball" env -i "$top/bin/shardkit" verify "$set_"
check "the man page" grep -q '^\.SH' "$top/share/man/man1/shardkit.1"
check "licences" test -s "$top/share/doc/shardkit/licenses/glibc"

# ---- the wheel ----
if python3 -m venv "$W/venv" >/dev/null 2>&1; then
    check "pip install" "$W/venv/bin/pip" install -q --no-index --no-deps dist/shardkit-"$version"-py3-none-*"_$arch.whl"
    check "a command" env -i PATH="$W/venv/bin:/bin:/usr/bin" shardkit verify "$set_"
    check "a tool's name" env -i PATH="$W/venv/bin:/bin:/usr/bin" ckpt-inspect "$set_"
    check "to safetensors" env -i PATH="$W/venv/bin:/bin:/usr/bin" shardkit convert "$set_" --to hf "$W/model"
    bin/export-hf -q "$set_" "$W/normal"
    check "the same bytes as the normal build" cmp "$W/model/model.safetensors" "$W/normal/model.safetensors"
    cat >"$W/read.py" <<'EOF'
import subprocess, sys, shardkit
path = sys.argv[1]
assert shardkit.verify(path).sound
with shardkit.open(path) as ck:
    n = 0
    for name in ck:
        for state in ck.states(name):
            raw = subprocess.run(["shardkit", "cat", "--raw", path, f"{name}.{state}"], capture_output=True, check=True).stdout
            assert bytes(ck.read(name, state)) == raw, (name, state)
            n += 1
print(path, n, "tensors")
EOF
    for s in bloom-tp2pp2dp2/global_step20 zero/zero3-gpt2-4ranks/ckpt torchdist/gpt/iter_0000005 dcp/mesh/ckpt; do
        check "the module reads $s" env -i PATH="$W/venv/bin:/bin:/usr/bin" python3 "$W/read.py" "$root/tests/data/$s"
    done
else
    echo "skipped: the wheel: no venv with pip here"
fi

finish
