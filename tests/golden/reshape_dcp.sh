#!/bin/sh
# reshape_dcp.sh - checkpoints of torch.distributed.checkpoint at other numbers of ranks, loaded by torch
#
# Conversion through any number of ranks and back gives the same bytes. torch merges the result to the original
# tensors, and loads it into FSDP2 on 2 and on 5 ranks, bit for bit. If $FORMATS is set, its folders dcp-* are used as
# well. Needs a Python with torch that has FSDP2; skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'torch.distributed.fsdp, torch.distributed.checkpoint.format_utils' "torch with FSDP2"
script=tests/golden/forms/dcp_check.py

# there_and_back FOLDER: 3 -> 2 -> 5 -> 3
there_and_back() {
    reshape -q --ranks 3 "$1" "$W/a" && reshape -q --ranks 2 "$W/a" "$W/b" && reshape -q --ranks 5 "$W/b" "$W/c" &&
        reshape -q --ranks 3 "$W/c" "$W/d" && diff -r -x manifest.json "$W/a" "$W/d"     # that names its source
}

for folder in tests/data/dcp/* ${FORMATS:+"$FORMATS"/dcp-*}; do
    check "$folder: through 2 and 5 ranks and back" there_and_back "$folder/ckpt"
    check "$folder: sound" ckpt-inspect verify --strict "$W/b"
    check "$folder: equal" ckpt-inspect diff "$folder/ckpt" "$W/c"
    check "$folder: torch merges it" "$python" -W ignore "$script" tensors "$W/c" "$folder/expected.json"
    check "$folder: onto a mesh" reshape -q --verify --mesh 2x2 "$folder/ckpt" "$W/mesh"
    check "$folder: torch merges the mesh" "$python" -W ignore "$script" tensors "$W/mesh" "$folder/expected.json"
    check "$folder: and back to rows" reshape -q --ranks 3 "$W/mesh" "$W/rows"
    check "$folder: the same files" diff -r -x manifest.json "$W/a" "$W/rows"
    rm -rf "$W/a" "$W/b" "$W/c" "$W/d" "$W/mesh" "$W/rows"
done

in=tests/data/dcp/fsdp
for ranks in 2 5; do
    check "write $ranks ranks" reshape -q --to dcp --ranks $ranks $in/ckpt "$W/out"
    world=$((7 - ranks))
    check "$ranks ranks, torch loads on $world" "$python" -W ignore "$script" load "$W/out" $in/expected.json $world
    rm -rf "$W/out"
done

# Keys that are neither text nor whole numbers have no name there. This is reported before anything is written.
odd() {
    cp -r tests/data/zero/zero2-edge-3ranks/ckpt/global_step5 "$W/odd" && chmod -R u+w "$W/odd" &&
        "$python" -W ignore -c "
import sys, torch
d = torch.load(sys.argv[1], weights_only=False)
d['odd'] = {1.5: 'lost', 2: 'kept', 'a': {None: 'lost', 'b': 'kept'}}
torch.save(d, sys.argv[1])" "$W/odd/mp_rank_00_model_states.pt"
}
check "a checkpoint with odd keys" odd
check_exit "odd keys are told of" 0 "omitted: odd[1.5], odd.a[null]" reshape --to dcp --ranks 2 "$W/odd" "$W/out"
check "the others are there" sh -c "ckpt-inspect ls -v '$W/out' | grep -q odd.a.b"
finish
