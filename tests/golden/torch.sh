#!/bin/sh
# torch.sh - the files that shardkit writes load in torch, and hold what the genuine converter wrote
#
# Needs a Python with torch (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python torch torch
check "convert bloom" ds2universal -q tests/data/bloom-tp2pp2dp2/global_step20 "$W/bloom"
check "bloom equals the reference's" "$python" tests/golden/torch_check.py "$W/bloom" tests/data/bloom-tp2pp2dp2/global_step20_universal
check "convert gpt2" ds2universal -q tests/data/gpt2-tp2pp2dp1/global_step20 "$W/gpt2"
check "gpt2 loads" "$python" tests/golden/torch_check.py "$W/gpt2"
check "strip" ds2universal -q --vocab strip tests/data/bloom-tp2pp2dp2/global_step20 "$W/strip"
check "strip loads" "$python" tests/golden/torch_check.py "$W/strip"
# ---- files saved with newer pickle protocols give the same result ----
for protocol in 4 5; do
    check "save again with protocol $protocol" "$python" tests/golden/forms/torch_resave.py \
        tests/data/bloom-tp2pp2dp2/global_step20 "$W/p$protocol" $protocol
    check "protocol $protocol: sound" ckpt-inspect verify "$W/p$protocol"
    check "protocol $protocol: equal" ckpt-inspect diff --tensors-only "$W/p$protocol" tests/data/bloom-tp2pp2dp2/global_step20
    check "protocol $protocol: reshape" reshape -q --target-tp 1 "$W/p$protocol" "$W/r$protocol"
    check "protocol $protocol: what is written loads and is equal" "$python" tests/golden/forms/torch_resave.py \
        "$W/r$protocol" "$W/again$protocol" 2
done
check "reshape of the original" reshape -q --target-tp 1 tests/data/bloom-tp2pp2dp2/global_step20 "$W/r2"
check "resave it" "$python" tests/golden/forms/torch_resave.py "$W/r2" "$W/again2" 2
for protocol in 4 5; do
    check "protocol $protocol: the same values" "$python" tests/golden/forms/torch_resave.py --equal "$W/again2" "$W/again$protocol"
done
finish
