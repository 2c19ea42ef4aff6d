# python.sh - the Python that has the genuine software; sourced, for need_python behind tests/fault/lib.sh

# python_with MODULES: the first of $PYTHON, python3 and /usr/bin/python3 that has them; nothing where none has.
python_with() {
    for one in ${PYTHON:-} python3 /usr/bin/python3; do
        "$one" -c "import $1" >/dev/null 2>&1 && { echo "$one"; return; }
    done
    true
}

# need_python MODULES NAMES: sets python, or ends the script: skipped. What a test uses beyond the modules' names follows
# them: 'torch; torch.uint16'.
need_python() {
    python=$(python_with "$1")
    [ -n "$python" ] || skip "no Python with $2 here"
}
