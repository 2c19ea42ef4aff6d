#!/bin/sh
# edit_hf.sh - an edit of a model folder by ckpt-edit equals the same edit by torch, and Transformers loads it
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
need_python 'torch, transformers, safetensors' 'torch, transformers and safetensors'
script=$PWD/tests/golden/forms/edit_check.py
check "folders" "$python" "$script" make "$W"

# Each case has its own folder. torch checks all of them in one call, because it takes seconds to start.
n=0
# edit NAME IN VERB ARG...: make $out, whose tensors must have the digests stored with them.
edit() {
    name=$1 in=$2; shift 2
    n=$((n + 1)) out=$n
    check "$name" ckpt-edit -q "$@" "$W/$in" "$W/$out"
    check "$name: verified" ckpt-inspect -q verify "$W/$out"
}
look() {    # VERB ARG...: the last one
    verb=$1; shift
    printf '%s\t%s\t%s\t%s' "$name" "$verb" "$W/$in" "$W/$out" >>"$W/todo"
    for arg; do printf '\t%s' "$arg" >>"$W/todo"; done
    echo >>"$W/todo"
}
for from in one many bin; do
    for type in bf16 fp16 fp32; do
        edit "$from to $type" $from cast $type && look cast $type
        [ $type = bf16 ] && half=$out
    done
    # Convert and convert back: fp32 holds each number of bf16.
    edit "$from back to fp32" $half cast fp32 && look cast fp32
    edit "$from from bf16 to fp16" $half cast fp16 && look cast fp16
    edit "$from renamed" $from rename '^model\.' 'transformer.' '\.(\w+)_proj\.' '.proj_$1.'
    look rename '^model\.' 'transformer.' '\.(\w+)_proj\.' '.proj_$1.'
    edit "$from without" $from drop '*.2.mlp.*' && look drop '.*\.2\.mlp\..*'
    edit "$from, layers kept" $from layers keep 0,3 && look layers 0 3
    edit "$from, layers dropped" $from layers drop 1-2 && look layers 0 3
    edit "$from, layers in another order, some twice" $from layers keep 3,1-2,2,0 && look layers 3 1 2 2 0
    for init in mean zero normal:0.02; do
        edit "$from, more tokens, $init" $from vocab --tokens 300 --init $init && look vocab 300 $init
    done
    edit "$from, fewer tokens" $from vocab --tokens 64 && look vocab 64 mean
done
for tokens in 64 120; do
    edit "three names of one embedding, $tokens tokens" tied vocab --tokens $tokens && look tied $tokens
done
edit "thin" bin thin && look thin 160000
# Unchanged files are hard links where requested: one of the four files holds the head.
edit "one file of many" many --hard-links rename '^lm_head' 'head' && look rename '^lm_head' 'head'
[ "$(find "$W/$out" -name '*.safetensors' -links +1 | wc -l)" -eq 3 ] && pass || fail "files that stay are not shared"
# Use the same random rows in every run.
edit "random rows" one vocab --tokens 120 --init normal:1
edit "random rows again" one vocab --tokens 120 --init normal:1
check "random rows are the same" cmp "$W/$out/model.safetensors" "$W/$((out - 1))/model.safetensors"
# Edit in place, and roll back.
cp -r "$W/many" "$W/tag"
check "in place" ckpt-edit -q layers keep 1,0 -i "$W/tag"
cp -r "$W/tag" "$W/placed"
name="in place" in=many out=placed; look layers 1 0
check "rolled back" ckpt-edit -q rollback "$W/tag"
check "what it was" diff -r "$W/many" "$W/tag"
check "torch" "$python" "$script" look "$W/todo"
finish
