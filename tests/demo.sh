#!/bin/sh
# demo.sh - what `make demo` does: makes a checkpoint, looks into it, converts it, compares
#
# Works in a temporary folder (about 1 GB) that goes away at the end; KEEP=1 leaves it.
set -u
cd "$(dirname "$0")/.." || exit 1
bin=$PWD/bin bench=$PWD/build/release/tests/bench
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-demo-XXXXXX")
trap '[ -n "${KEEP:-}" ] || rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
PATH=$bin:$PATH
cd "$work" || exit 1
problems=0
done_list=$work/.done

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }

# show WANTED-STATUS WHAT COMMAND...: print the command, run it, keep its time for the end.
show() {
    want=$1 what=$2
    shift 2
    printf '$ %s\n' "$*"
    begin=$(date +%s%N)
    "$@"
    got=$?
    ms=$((($(date +%s%N) - begin) / 1000000))
    printf '%6d.%03d s  %s\n' $((ms / 1000)) $((ms % 1000)) "$what" >>"$done_list"
    if [ $got -ne "$want" ]; then
        echo "demo: exit status $got, expected $want" >&2
        problems=$((problems + 1))
    fi
}

shape="--layers 4 --hidden 512 --heads 8 --seq 512 --vocab 8000 --tp 2 --pp 2 --dp 2"
say "A training checkpoint: BLOOM-shaped, tensor parallel 2, pipeline 2, data parallel 2"
# shellcheck disable=SC2086
show 0 "make a checkpoint" "$bench/mkckpt" $shape ckpt
files=$(find ckpt -type f | wc -l)
echo "$files files, $(du -sh ckpt | cut -f1)"

say "What is it?"
show 0 "summary of $files files" ckpt-inspect ckpt

say "Where do the pieces of a parameter lie?"
show 0 "ls of two parameters" ckpt-inspect ls -v --param '3.self_attention.dense.*' ckpt

say "Is it whole? Every file, rank, checksum, slice mapping and value"
show 0 "verify" ckpt-inspect verify ckpt

say "Are the tensor-parallel copies of LayerNorms and biases the same?"
show 0 "replicas" ckpt-inspect replicas ckpt

say "To the universal form, three ways"
show 0 "convert to .pt files for DeepSpeed" ds2universal ckpt/global_step20 universal-pt
show 0 "convert to one HDF5 file" ds2universal --format hdf5 ckpt/global_step20 universal-hdf5
show 0 "convert to an HDF5 index that copies nothing" ds2universal --format virtual ckpt/global_step20 universal-virtual
du -sh universal-* | sed 's/^/    /'

say "All hold the same tensors"
show 0 "diff: 3D shards and .pt" ckpt-inspect diff ckpt/global_step20 universal-pt
show 0 "diff: .pt and HDF5" ckpt-inspect diff universal-pt universal-hdf5
show 0 "diff: .pt and the index" ckpt-inspect diff universal-pt universal-virtual

say "A second run, in which one LayerNorm of rank 1 has drifted by the last bit of 300 elements"
# shellcheck disable=SC2086
"$bench/mkckpt" $shape --drift 4.post_attention_layernorm.weight:fp32:1:300 drifted 2>/dev/null
show 1 "replicas finds the drift (exit status 1)" ckpt-inspect replicas --state fp32 drifted

say "Done"
cat "$done_list"
[ -n "${KEEP:-}" ] && echo "kept: $work"
if [ $problems -gt 0 ]; then
    echo "demo: $problems steps did not go as they should" >&2
    exit 1
fi
