#!/bin/sh
# reshape_torchdist.sh - Megatron-core's torch_dist at other numbers of ranks, loaded by Megatron-core
#
# Conversion through any number of ranks and back gives the same bytes. `dist_checkpointing.load` on CPUs loads each
# result on 1 and 2 ranks, and every tensor and object and the common state is equal. The distributed optimizer, on
# gloo and CPUs, saves on 4 ranks and loads the converted result on others; two steps then equal those of the original
# run. If $FORMATS is set, its folders torchdist-* are used as well. Needs a Python with torch and megatron-core;
# skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'megatron.core.dist_checkpointing' "megatron-core"
script=tests/golden/forms/torchdist_check.py

# there_and_back FOLDER: 3 -> 2 -> 5 -> 3
there_and_back() {
    reshape -q --ranks 3 "$1" "$W/a" && reshape -q --ranks 2 "$W/a" "$W/b" && reshape -q --mesh 3x2 "$W/b" "$W/c" &&
        reshape -q --ranks 3 "$W/c" "$W/d" && diff -r -x manifest.json "$W/a" "$W/d"     # that names its source
}
load() { "$python" -W ignore "$script" load "$@"; }

for folder in tests/data/torchdist/stacked tests/data/torchdist/gpt ${FORMATS:+"$FORMATS"/torchdist-*}; do
    ckpt=$(echo "$folder"/iter_*)
    check "$folder: through 2 and 6 ranks and back" there_and_back "$ckpt"
    check "$folder: sound" ckpt-inspect verify --strict "$W/b"
    check "$folder: equal" ckpt-inspect diff "$ckpt" "$W/c"
    check "$folder: loads on 2 ranks" load "$W/a" "$folder/expected.json" 2 "$ckpt"
    check "$folder: of a mesh, loads on 1 rank" load "$W/c" "$folder/expected.json" 1 "$ckpt"
    rm -rf "$W/a" "$W/b" "$W/c" "$W/d"
done

in=tests/data/torchdist/stacked
check "to torch.distributed's and back" sh -ec "
    reshape -q --to dcp --ranks 2 $in/iter_0000002 '$W/dcp' && reshape -q --to torchdist --ranks 3 '$W/dcp' '$W/back'"
# Of all objects, only random states have no place there.
sed -e '/^"rng_state/d' -e 's|\(linear_qkv._extra_state/shard_1_2"\),|\1|' $in/expected.json >"$W/known.json"
check "loads on 2 ranks, each tensor and module's object equal" load "$W/back" "$W/known.json" 2

# The part that needs no GPU: masters and moments divided over data-parallel ranks (distopt_check.py).
OMP_NUM_THREADS=1
export OMP_NUM_THREADS
engine() { n=$1; shift; "$python" -W ignore -m torch.distributed.run --standalone --nproc-per-node "$n" tests/golden/forms/distopt_check.py "$@"; }
made=$W/run/iter_0000003
check "the distributed optimizer saves, TP 2, DP 2" engine 4 save "$W/run" 2
check "... which is sound" ckpt-inspect verify --strict "$made"
check "... to 3 ranks" reshape -q --verify --ranks 3 "$made" "$W/other"
check "... an engine of TP 1, DP 3 goes on from it" engine 3 load "$W/other" "$W/run" 1
grep ' ranks, TP ' "$W/log"
check "... and one of TP 2" engine 2 load "$W/other" "$W/run" 2
grep ' ranks, TP ' "$W/log"
check "... to files of ZeRO" reshape -q --to zero2 --ranks 3 "$made" "$W/zero"
check "... and back" reshape -q --verify --to torchdist --distributed-optimizer --ranks 2 "$W/zero" "$W/back_again"
check "... an engine of TP 2, DP 2 goes on from that" engine 4 load "$W/back_again" "$W/run" 2
grep ' ranks, TP ' "$W/log"
finish
