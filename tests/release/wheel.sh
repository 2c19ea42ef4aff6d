#!/bin/sh
# wheel.sh - the files of `make release`: sums, the wheel in an empty Python environment, the tarball, the RPM
#
# The wheel's commands and its Python module must work with nothing else installed, and read what the normal build reads.
# A check whose need (venv with pip, rpm) is missing is skipped by name. Run `make release DEB=0` first.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
root=$PWD arch=$(uname -m) version=$(cat VERSION)
work=$(mktemp -d "${TMPDIR:-/tmp}/wheel-XXXXXX") || exit 1
trap 'rm -rf "${work:?}"' EXIT
passed=0 failed=0 skipped=0
skip() { echo "skipped: $1"; skipped=$((skipped + 1)); }
check() {   # NAME COMMAND...
    name=$1; shift
    if "$@" >"$work/log" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1)); echo "FAIL $name"; tail -n 20 "$work/log" | sed 's/^/    /'
    fi
}

[ -e dist/SHA256SUMS ] || { echo "no dist/SHA256SUMS: make release"; echo "0 passed, 1 failed"; exit 1; }
check "sums" sh -c 'cd dist && sha256sum --quiet -c SHA256SUMS'

# ---- the tarball ----
check "tarball" tar --zstd -xf "dist/shardkit-$version-linux-$arch.tar.zst" -C "$work"
top=$work/shardkit-$version-linux-$arch
set_=tests/data/bloom-tp2pp2dp2
check "verify from the tarball" env -i "$top/bin/shardkit" verify "$set_"
check "the man page" grep -q '^\.SH' "$top/share/man/man1/shardkit.1"
check "licences" test -s "$top/share/doc/shardkit/licenses/glibc"

# ---- the wheel ----
if python3 -m venv "$work/venv" >/dev/null 2>&1; then
    begin=$(date +%s)
    check "pip install" "$work/venv/bin/pip" install -q --no-index --no-deps dist/shardkit-"$version"-py3-none-*"_$arch.whl"
    check "a command" env -i PATH="$work/venv/bin:/bin:/usr/bin" shardkit verify "$set_"
    check "a tool's name" env -i PATH="$work/venv/bin:/bin:/usr/bin" ckpt-inspect "$set_"
    check "to safetensors" env -i PATH="$work/venv/bin:/bin:/usr/bin" shardkit convert "$set_" --to hf "$work/model"
    echo "from a bare Python environment to safetensors: $(($(date +%s) - begin)) s"
    bin/export-hf -q "$set_" "$work/normal"
    check "the same bytes as the normal build" cmp "$work/model/model.safetensors" "$work/normal/model.safetensors"
    cat >"$work/read.py" <<'EOF'
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
        check "the module reads $s" env -i PATH="$work/venv/bin:/bin:/usr/bin" python3 "$work/read.py" "$root/tests/data/$s"
    done
else
    skip "the wheel: no venv with pip here"
fi

# ---- the RPM ----
rpm=dist/shardkit-$version-1.$arch.rpm
if [ -e "$rpm" ] && command -v rpm >/dev/null; then
    mkdir -p "$work/rpm"
    check "rpm installs into an empty root" rpm --root "$work/rpm" --nodeps --noscripts -i "$rpm"
    check "the installed program" env -i "$work/rpm/usr/bin/shardkit" verify "$set_"
else
    skip "the RPM: no rpm here"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
