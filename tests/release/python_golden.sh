#!/bin/sh
# python_golden.sh - the Python module of the wheel reads genuine sets of every layout: tensors equal to expected.json
#
# The wheel is installed by pip in an empty Python environment; tests/python/check_sets.py opens each set of tests/data, and
# of the folder $GOLDEN if it is set, and compares every tensor. It does so without NumPy and torch, with NumPy alone
# (types of ml_dtypes where that is installed), and with torch. $PYTHON, python3 or /usr/bin/python3 must have these; a
# part without them is skipped by name. WHEEL names the wheel, else it is that of this machine in dist (`make release DEB=0`).
# Prints the sets that are skipped or fail and the reason.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh || exit 1
wheel=${WHEEL:-$(find "$PWD/dist" -maxdepth 1 -name "shardkit-*_$(uname -m).whl" 2>/dev/null | head -n 1)}

[ -n "$wheel" ] || skip "python_golden: no wheel in dist: make release DEB=0"
python3 -m venv "$W/venv" >/dev/null 2>&1 || skip "python_golden: no venv with pip (python3-venv)"
check "pip install" "$W/venv/bin/pip" install -q --no-index --no-deps "$wheel"
site=$(echo "$W"/venv/lib/python3*/site-packages)
check "the module has its library beside it" test -e "$site/shardkit/libshardkit.so.1"

# Compare all sets with one Python; add the counts of check_sets.py. The module must be the installed one.
sets() { # NAME EXPECTED-IN-FIRST-LINE COMMAND...
    label=$1 want=$2
    shift 2
    env -u SHARDKIT_LIBRARY PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 "$@" tests/python/check_sets.py tests/data \
        ${GOLDEN:+"$GOLDEN"} >"$W/sets" 2>&1
    check "$label: the modules" grep -q "^shardkit [0-9.]* of $W/venv/.*; $want\$" "$W/sets"
    last=$(tail -n 1 "$W/sets")
    case $last in
    [1-9]*" passed, "*" failed, "*" skipped") ;;
    *) fail "$label: $last"; return ;;
    esac
    grep '^FAIL' "$W/sets"
    [ -n "${shown:-}" ] || grep '^skip' "$W/sets"
    shown=yes
    passed=$((passed + ${last%% passed*}))
    n=${last#* passed, } && failed=$((failed + ${n%% failed*}))
    n=${last#* failed, } && n_skipped=$((n_skipped + ${n%% skipped*}))
    echo "$label: $last"
}

sets "bare" "without NumPy, without torch" "$W/venv/bin/python"
# A Python that has more packages uses the installed module, too.
for need in numpy torch; do
    python=$(python_with "$need")
    if [ -z "$python" ]; then
        skip_part "with $need" "no Python with $need here"
    elif [ $need = numpy ]; then
        # torch is hidden: a folder of that name that cannot be imported stands before it.
        mkdir -p "$W/no/torch" && echo 'raise ImportError("hidden")' >"$W/no/torch/__init__.py"
        sets "NumPy" "NumPy [0-9.a-z]*, without torch" env PYTHONPATH="$W/no:$site" "$python"
    else
        sets "torch" "NumPy [0-9.a-z]*, torch .*" env PYTHONPATH="$site" "$python"
    fi
done
finish
