#!/bin/sh
# output_digests.sh BIN [DATA] - print the SHA-256 of every file that the tools write for the test data
#
# BIN is a folder of tools, DATA is tests/data unless given. Each line is "command: file digest". Run it before and
# after a change that is to keep every written byte, and compare the two lists with diff. Text on standard output and
# exit statuses are part of the list; records of a backup, which hold times, are not. Needs
# no module of Python and about two minutes.
set -u
cd "$(dirname "$0")/../.." || exit 1
bin=$(cd "$1" && pwd) || exit 1
data=${2:-tests/data}
work=$(mktemp -d "${TMPDIR:-/tmp}/digests-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
PATH=$bin:$PATH
export PATH

# Run a command that writes $work/out, and print what it wrote. The name of the scratch folder is left out of its text.
digest() {  # LABEL COMMAND...
    label=$1
    shift
    rm -rf "$work/out"
    "$@" >"$work/text" 2>"$work/err" </dev/null
    echo "$label: status $?"
    echo "$label: text $(sed "s|$work|W|g" "$work/text" | sha256sum | cut -c1-16)"
    [ -e "$work/out" ] || return 0
    (cd "$work/out" && find . -type f ! -path "./.ckpt-backup/*" | LC_ALL=C sort | xargs -r sha256sum) | while read -r sum file; do
        echo "$label: $file $(echo "$sum" | cut -c1-16)"
    done
}
# Write the same checkpoint in every layout and topology that its tools offer.
convert() { # LABEL IN
    digest "$1 summary" ckpt-inspect "$2"
    digest "$1 ls" ckpt-inspect ls "$2"
    digest "$1 verify" ckpt-inspect verify "$2"
    digest "$1 stats" ckpt-inspect stats "$2"
    digest "$1 universal" ds2universal -q "$2" "$work/out"
    digest "$1 universal strip" ds2universal -q --vocab strip "$2" "$work/out"
    digest "$1 hdf5" ds2universal -q --format hdf5 "$2" "$work/out"
    digest "$1 virtual" ds2universal -q --format virtual "$2" "$work/out"
    digest "$1 merge" merge-tp -q "$2" "$work/out"
    digest "$1 merge weights" merge-tp -q --weights-only "$2" "$work/out"
    digest "$1 hf" export-hf -q "$2" "$work/out"
    digest "$1 hf fp32" export-hf -q --dtype fp32 --max-shard-size 20KB "$2" "$work/out"
    digest "$1 hf bin" export-hf -q --format bin "$2" "$work/out"
    for to in zero1 zero2 zero3 dcp torchdist; do
        digest "$1 $to" reshape -q --to $to --ranks 2 "$2" "$work/out"
        digest "$1 $to of 3" reshape -q --to $to --ranks 3 "$2" "$work/out"
        digest "$1 $to weights" reshape -q --to $to --ranks 2 --weights-only "$2" "$work/out"
    done
    digest "$1 dcp mesh" reshape -q --to dcp --mesh 2x2 "$2" "$work/out"
    digest "$1 tp1" reshape -q --target-tp 1 --target-pp 1 --target-dp 1 "$2" "$work/out"
    digest "$1 tp2pp1dp3" reshape -q --target-tp 2 --target-pp 1 --target-dp 3 "$2" "$work/out"
    digest "$1 tp4pp2dp1" reshape -q --target-tp 4 --target-pp 2 --target-dp 1 "$2" "$work/out"
    digest "$1 dp3" reshape -q --target-dp 3 "$2" "$work/out"
    digest "$1 pack" ckpt-backup copy -q --pack "$2" "$work/out"
    first=$(ckpt-inspect ls "$2" 2>/dev/null | awk 'NR > 2 { name = $NF } END { print name }')
    tokens=$(ckpt-inspect ls "$2" 2>/dev/null | sed -n 's/^\[\([0-9]*\), .*embed.*/\1/p' | head -n 1)
    digest "$1 edit layers" ckpt-edit layers keep 0,1 "$2" "$work/out"
    digest "$1 edit layers twice" ckpt-edit layers keep 0,0 "$2" "$work/out"
    digest "$1 edit cast fp16" ckpt-edit cast fp16 "$2" "$work/out"
    digest "$1 edit cast bf16" ckpt-edit cast bf16 "$2" "$work/out"
    digest "$1 edit drop" ckpt-edit drop "${first:-none}" "$2" "$work/out"
    digest "$1 edit drop optimizer" ckpt-edit drop optimizer "$2" "$work/out"
    digest "$1 edit rename" ckpt-edit rename "^(.)(.*)" 'x$1$2' "$2" "$work/out"
    digest "$1 edit zero" ckpt-edit zero '*' "$2" "$work/out"
    digest "$1 edit zero weights" ckpt-edit zero "${first:-none}:fp32" "$2" "$work/out"
    digest "$1 edit set" ckpt-edit set args.lr=0.125 "$2" "$work/out"
    digest "$1 edit retag" ckpt-edit retag --step 77 "$2" "$work/out"
    digest "$1 edit average" ckpt-edit average "$2" "$2" "$work/out"
    digest "$1 edit thin" ckpt-edit thin "$2" "$work/out"
    digest "$1 edit salvage" ckpt-edit salvage "$2" "$work/out"
    digest "$1 edit vocab" ckpt-edit vocab --tokens $((${tokens:-16} + 16)) "$2" "$work/out"
}

for set in "$data"/bloom-* "$data"/gpt2-*; do
    convert "$(basename "$set")" "$set"
done
for set in "$data"/zero/*; do
    convert "zero/$(basename "$set")" "$set/ckpt"
done
for set in "$data"/dcp/* "$data"/dcp-models/* "$data"/torchdist/* "$data"/torchdist-gpt2 "$data"/hf-* "$data"/neox/*; do
    [ -d "$set" ] || continue
    [ ! -d "$set/ckpt" ] || set=$set/ckpt
    convert "${set#"$data"/}" "$set"
done
# Files written by shardkit as input of the tools.
universal=$work/in-universal hf=$work/in-hf
ds2universal -q "$data/bloom-tp2pp2dp2" "$universal" && convert "of universal" "$universal"
export-hf -q "$data/gpt2-tp2pp2dp1" "$hf" && convert "of hf" "$hf"
