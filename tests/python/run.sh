#!/bin/sh
# run.sh - libshardkit as other programs use it: the C example, the Python module, the examples of docs/library.md
#
# Needs build/release/libshardkit.so.1 (make lib), or $SHARDKIT_LIBRARY. $PYTHON, else python3, runs the module; its parts
# for NumPy and torch are skipped if that Python has none. tests/python/check_sets.py reads whole sets, here those of
# tests/data. Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/../.." || exit 1
BIN=${BIN:-$PWD/bin}
python=${PYTHON:-python3}
SHARDKIT_LIBRARY=${SHARDKIT_LIBRARY:-$PWD/build/release/libshardkit.so.1}
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/python PATH=$BIN:$PATH
export SHARDKIT_LIBRARY PYTHONDONTWRITEBYTECODE PYTHONPATH PATH
passed=0 failed=0 skipped=0
W=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-python-XXXXXX")
trap 'rm -rf "$W"' EXIT
set_in=tests/data/gpt2-tp2pp2dp1

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAIL $1"; [ ! -s "$W/log" ] || sed 's/^/    /' "$W/log" | tail -n 20; }
skip() { skipped=$((skipped + 1)); echo "skip $1"; }
check() {   # NAME COMMAND...
    name=$1; shift
    if "$@" >"$W/log" 2>&1; then pass; else fail "$name"; fi
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
    exit
}

if [ ! -e "$SHARDKIT_LIBRARY" ]; then
    skip "no $SHARDKIT_LIBRARY: make lib"
    finish
fi

# ---- C ----

if nm -D --defined-only "$SHARDKIT_LIBRARY" >"$W/names" 2>/dev/null; then
    grep -oE '[^a-z]sk_[a-z_]+\(' include/shardkit.h | tr -dc 'a-z_\n' | LC_ALL=C sort -u >"$W/want"
    sed -n 's/.* T \([a-z_]*\)@@SHARDKIT_1$/\1/p' "$W/names" | LC_ALL=C sort >"$W/have"
    check "the library exports the functions of the header and nothing else" diff "$W/want" "$W/have"
else
    skip "no nm here"
fi
cc=${CC:-cc}
if command -v "${cc%% *}" >/dev/null; then
    # shellcheck disable=SC2086
    compile() {     # SOURCE PROGRAM
        $cc -std=c99 -Wall -Wextra -pedantic -Werror -Iinclude -o "$2" "$1" "$SHARDKIT_LIBRARY" \
            -Wl,-rpath,"$(dirname "$SHARDKIT_LIBRARY")"
    }
    check "examples/list_tensors.c compiles" compile examples/list_tensors.c "$W/list_tensors"
    "$W/list_tensors" "$set_in" >"$W/list" 2>"$W/log"
    ckpt-inspect ls --json "$set_in" | grep -o '"name":"[^"]*"' | sed 's/.*:"//; s/"//' | LC_ALL=C sort -u >"$W/want"
    sed 's/ .*//' "$W/list" | LC_ALL=C sort -u >"$W/have"
    check "the example lists the parameters of ckpt-inspect ls" cmp "$W/want" "$W/have"
    first=$(ckpt-inspect cat "$set_in" 3.input_layernorm.weight.exp_avg --slice 0:1 | awk '{ printf "%g", $1 }')
    check "and the first element" grep -qxF "3.input_layernorm.weight exp_avg [64] f32, first $first" "$W/list"
    awk '/^```c$/ { on = 1; next } /^```/ { on = 0 } on' docs/library.md >"$W/doc.c"
    check "the example of docs/library.md compiles" compile "$W/doc.c" "$W/doc"
    cp -R "$set_in/global_step20" "$W/global_step20"
    (cd "$W" && ./doc) >"$W/doc.out" 2>&1
    check "and runs" grep -qxF "3.mlp.dense_4h_to_h.weight: 16384 elements, sound" "$W/doc.out"
else
    skip "no C compiler here"
fi

# ---- Python ----

if ! command -v "$python" >/dev/null; then
    skip "no $python here"
    finish
fi

# The structs of the module are those of the header.
cat >"$W/sizes.c" <<'END'
#include <shardkit.h>
#include <stdio.h>
#define MEMBER(s, m) printf(#s " %zu %zu\n", sizeof(struct sk_##s), offsetof(struct sk_##s, m))
int main(void)
{
    MEMBER(error, text);
    MEMBER(finding, parameter);
    MEMBER(open_options, threads);
    MEMBER(info, iteration);
    MEMBER(tensor, bytes);
    MEMBER(place, at);
    MEMBER(verify_options, stop);
    MEMBER(verification, bytes);
    return 0;
}
END
cat >"$W/sizes.py" <<'END'
import ctypes, shardkit as s
for name, type in (("error", s._Error), ("finding", s._Finding), ("open_options", s._OpenOptions), ("info", s._Info),
                   ("tensor", s._Tensor), ("place", s._Place), ("verify_options", s._VerifyOptions),
                   ("verification", s._Verification)):
    print(name, ctypes.sizeof(type), getattr(type, type._fields_[-1][0]).offset)
END
if command -v "${cc%% *}" >/dev/null; then
    compile "$W/sizes.c" "$W/sizes" && "$W/sizes" >"$W/want"
    "$python" "$W/sizes.py" >"$W/have"
    check "structs have the sizes of the header" diff "$W/want" "$W/have"
fi
"$python" tests/python/test_shardkit.py -v >"$W/unit" 2>&1
if [ "$(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$W/unit")" ]; then
    passed=$((passed + $(grep -c ' ok$' "$W/unit")))
    bad=$(grep -cE ' (FAIL|ERROR)$' "$W/unit")
    [ "$bad" -eq 0 ] || { failed=$((failed + bad)); cat "$W/unit"; }
    sed -n 's/^\(test_[a-z_]*\) .* skipped \(.*\)$/skip \1: \2/p' "$W/unit" >"$W/skipped"
    cat "$W/skipped"
    skipped=$((skipped + $(wc -l <"$W/skipped")))
else
    cp "$W/unit" "$W/log"
    fail "tests/python/test_shardkit.py"
fi
# tests/data/broken has sets that the library refuses.
check "every checkpoint of tests/data is read, and equals expected.json" \
    "$python" tests/python/check_sets.py $(find tests/data -mindepth 1 -maxdepth 1 -type d ! -name broken)
awk '/^```python$/ { on = 1; next } /^```/ { on = 0 } on' docs/library.md >"$W/doc.py"
mkdir "$W/py"
cp -R "$set_in/global_step20" "$W/py/global_step20"
check "the example of docs/library.md runs" sh -c "cd '$W/py' && '$python' ../doc.py"
check "and without NumPy" sh -c "cd '$W/py' && '$python' -c '
import sys
sys.modules[\"numpy\"] = None
exec(open(\"../doc.py\").read())'"
no_library() { SHARDKIT_LIBRARY=$W/none.so "$python" -c 'import shardkit; shardkit.open(".")'; }
no_library >"$W/none" 2>&1
check "without the library, the error names the way" grep -q 'ImportError: .*none.so: cannot be loaded.*make lib' "$W/none"
finish
