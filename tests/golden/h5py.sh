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

# The output of ckpt-edit: the tensors equal those that torch makes of the .pt files, and the index describes the run
# as these do.
check "reference" ds2universal -q "$data/global_step20" "$W/pt"
for form in hdf5--split hdf5; do
    edited() {  # VERB ARG...
        check "$form: $1" ckpt-edit -q "$@" "$W/$form" "$W/edited"
        check "$form: $1, sound" ckpt-inspect verify --strict -q "$W/edited"
        check "$form: $1, the .pt files" ckpt-edit -q "$@" "$W/pt" "$W/as"
        check "$form: $1, by h5py" "$python" "$script" --edited "$W/edited" "$W/as"
        rm -rf "$W/edited" "$W/as"
    }
    check "$form: zero" ckpt-edit -q zero '3.mlp.*' "$W/$form" "$W/zeroed"
    check "$form: zero, by h5py" "$python" "$script" --zeroed "$W/zeroed" "$W/$form" '3.mlp.*'
    rm -rf "$W/zeroed"
    edited layers keep 3,0,0-1
    quick && break
    edited retag --step 30 --samples 300 --tokens 40000
    edited set lr=0.125
    edited vocab --tokens 600
    edited cast fp16
    edited rename '[.]mlp[.]' .feed.
    edited drop rng '3.mlp.*'
done
finish
