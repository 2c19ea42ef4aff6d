#!/bin/sh
# hfstorage.sh - shards for HuggingFaceStorageReader, loaded by torch, and shards of HuggingFaceStorageWriter, read here
#
# Every tensor is compared by its SHA-256. If $FOLDERS is set, its folders hfstorage-* are used as well: expected.json
# next to sharded, sharded-two-files and consolidated. Needs a Python with torch that has HuggingFaceStorageReader, and
# safetensors; skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'safetensors, torch.distributed.checkpoint.hf_storage' "torch with HuggingFaceStorageReader"
script=tests/golden/forms/hfstorage_check.py
data=tests/data/hfstorage

# values FOLDER EXPECTED: compare what ckpt-inspect cat prints
values() {
    while read -r sum name; do
        [ "$(ckpt-inspect cat --raw "$1" "$name" | sha256sum | cut -c1-64)" = "$sum" ] || { echo "$name differs"; return 1; }
    done <"$2"
}

for ranks in 1 3 5; do
    check "write $ranks ranks" reshape -q --to hfstorage --ranks $ranks --verify $data/tp-2x2 "$W/out"
    check "$ranks ranks: torch loads it" "$python" -W ignore $script load "$W/out" $data/expected
    check "$ranks ranks: torch loads it on 2 ranks" "$python" -W ignore $script shard "$W/out" $data/expected 2
    rm -rf "$W/out"
done
reshape -q --to dcp --ranks 2 $data/tp-2x2 "$W/dcp" && reshape -q --to hfstorage --ranks 4 "$W/dcp" "$W/out"
check "of dcp: torch loads it on 3 ranks" "$python" -W ignore $script shard "$W/out" $data/expected 3

for ranks in 2 3; do
    rm -rf "$W/new"
    check "torch saves from $ranks ranks" "$python" -W ignore $script save "$W/new" $ranks
    check "$ranks ranks: sound" ckpt-inspect verify "$W/new/ckpt"
    check "$ranks ranks: every tensor" values "$W/new/ckpt" "$W/new/expected"
    check "$ranks ranks: to 4" reshape -q --to hfstorage --ranks 4 "$W/new/ckpt" "$W/new/four"
    check "$ranks ranks: torch loads the 4" "$python" -W ignore $script load "$W/new/four" "$W/new/expected"
done

for set in ${FOLDERS:+"$FOLDERS"/hfstorage-*}; do
    "$python" -c 'import json, sys
for k, v in json.load(open(sys.argv[1]))["tensors"].items(): print(v["sha256"], k)' "$set/expected.json" >"$W/expected"
    for folder in sharded sharded-two-files consolidated; do
        check "$set/$folder: every tensor" values "$set/$folder" "$W/expected"
    done
done
finish
