#!/bin/sh
# h5py.sh - both HDF5 forms, read by h5py from another folder, hold the genuine converter's tensors
#
# Needs a Python with h5py and torch (PYTHON, default /usr/bin/python3, then python3); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
for python in ${PYTHON:-/usr/bin/python3 python3}; do
    "$python" -c 'import h5py, torch' 2>/dev/null && break
    python=
done
if [ -z "$python" ]; then
    rm -rf "$W"
    echo "no Python with h5py and torch here: skipped"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
data=$PWD/tests/data/bloom-tp2pp2dp2 script=$PWD/tests/golden/h5py_check.py
compare() { (cd / && "$python" "$script" "$1" "$data/global_step20_universal"); }
for form in hdf5 virtual "hdf5 --split"; do
    out="$W/$(echo "$form" | tr -d ' ')"
    # shellcheck disable=SC2086
    check "convert to $form" ds2universal -q --format $form "$data/global_step20" "$out"
    check "$form equals the reference's" compare "$out"
done
finish
