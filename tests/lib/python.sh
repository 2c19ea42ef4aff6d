# python.sh - find the Python that has the genuine software; sourced by scripts that use
# need_python, after tests/fault/lib.sh

# python_with MODULES: print the first of $PYTHON, python3 and /usr/bin/python3 that has the
# modules. Prints nothing if none has them.
python_with() {
    for one in ${PYTHON:-} python3 /usr/bin/python3; do
        "$one" -c "import $1" >/dev/null 2>&1 && { echo "$one"; return; }
    done
    true
}

# need_python MODULES NAMES: set python, or end the script as skipped. Attributes that a test needs
# can follow the module names: 'torch; torch.uint16'.
need_python() {
    python=$(python_with "$1")
    [ -n "$python" ] || skip "no Python with $2 here"
}
