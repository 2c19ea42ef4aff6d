#!/bin/sh
# h5py.sh - both HDF5 forms, read by h5py from another folder, hold the genuine converter's tensors
#
# Needs a Python with h5py and torch (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'h5py, torch' "h5py and torch"
data=$PWD/tests/data/bloom-tp2pp2dp2 script=$PWD/tests/golden/forms/h5py_check.py
compare() { (cd / && "$python" "$script" "$1" "$data/global_step20_universal"); }
for form in hdf5 virtual "hdf5 --split"; do
    out="$W/$(echo "$form" | tr -d ' ')"
    # shellcheck disable=SC2086
    check "convert to $form" ds2universal -q --format $form "$data/global_step20" "$out"
    check "$form equals the reference's" compare "$out"
done
finish
