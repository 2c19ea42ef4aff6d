#!/bin/sh
# torch.sh - the files we write load in torch, and hold what the genuine converter wrote
#
# Needs a Python with torch (PYTHON, default /usr/bin/python3, then python3); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
for python in ${PYTHON:-/usr/bin/python3 python3}; do
    "$python" -c 'import torch' 2>/dev/null && break
    python=
done
if [ -z "$python" ]; then
    rm -rf "$W"
    echo "no Python with torch here: skipped"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
check "convert bloom" ds2universal -q tests/data/bloom-tp2pp2dp2/global_step20 "$W/bloom"
check "bloom equals the reference's" "$python" tests/golden/torch_check.py "$W/bloom" tests/data/bloom-tp2pp2dp2/global_step20_universal
check "convert gpt2" ds2universal -q tests/data/gpt2-tp2pp2dp1/global_step20 "$W/gpt2"
check "gpt2 loads" "$python" tests/golden/torch_check.py "$W/gpt2"
check "strip" ds2universal -q --vocab strip tests/data/bloom-tp2pp2dp2/global_step20 "$W/strip"
check "strip loads" "$python" tests/golden/torch_check.py "$W/strip"
finish
