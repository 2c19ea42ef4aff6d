#!/bin/sh
# edit_torchdist.sh - Megatron-core loads its folders after edits by ckpt-edit: names, layers, rows, types
#
# The expected result is made from the source by torch alone. `dist_checkpointing.load` on CPUs must find each tensor
# and object, equal, on 1 or 2 ranks. Needs a Python with torch and megatron-core; skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'megatron.core.dist_checkpointing' "megatron-core"
script=tests/golden/forms/torchdist_check.py
their() { "$python" -W ignore "$script" "$@"; }

# edit NAME IN RANKS VERB ARG... -- OURS...: theirs on the left, ckpt-edit's on the right.
edit() {
    this=$1 in=$2 ranks=$3; shift 3
    theirs=
    while [ "$1" != -- ]; do theirs="$theirs $(printf "'%s'" "$1")"; shift; done
    shift
    rm -rf "$W/out"
    check "$this" ckpt-edit -q "$@" "$in" "$W/out"
    check "$this: verified" ckpt-inspect -q verify --strict "$W/out"
    eval "check \"\$this: by torch\" their edited \"\$in\" \"\$W/want.json\" $theirs"
    check "$this: loads on $ranks ranks" their load "$W/out" "$W/want.json" "$ranks"
}
stacked=$PWD/tests/data/torchdist/stacked/iter_0000002
edit "layers" "$stacked" 1 layers 1,0,1 -- layers keep 1,0,1
if ! quick; then
    cp -r "$stacked" "$W/in" && chmod -R u+w "$W/in"
    check "arguments" their args "$W/in" num_layers=2 vocab_size=14 padded_vocab_size=16 make_vocab_size_divisible_by=4 \
        tensor_model_parallel_size=2
    edit "layers, with arguments" "$W/in" 2 layers 1,0,1 -- layers keep 1,0,1
    check "layers: counted" their says "$W/out" num_layers=3 vocab_size=14
    edit "names" "$W/in" 2 names mlp.linear_fc1 mlp.up -- rename 'mlp[.]linear_fc1' mlp.up
    edit "a type" "$W/in" 1 cast bfloat16 -- cast bf16
    check "a type: said" their says "$W/out" bf16=1 fp16=0
    edit "fewer rows" "$stacked" 2 rows 12 -- vocab --tokens 12
    edit "more rows" "$stacked" 2 rows 20 -- vocab --tokens 20 --init zero
    edit "one layer" "$W/in" 1 layers 1 -- layers drop 0
    check "masters in their shape" reshape -q --ranks 2 tests/data/torchdist/flat/iter_0000001 "$W/masters"
    edit "of its masters" "$W/masters" 2 cast float16 -- cast fp16
    edit "of its masters, whole" "$W/masters" 1 cast float32 -- cast fp32
    edit "numbered layers" "$PWD/tests/data/torchdist/gpt/iter_0000005" 2 names layers.1. layers.2. -- rename 'layers[.]1' layers.2
    # What is not known stays where it is, or is refused by name.
    check "odd states" their odd "$W/odd"
    edit "odd states: a name" "$W/odd" 1 names output_layer head -- rename output_layer head
    edit "odd states: a type" "$W/odd" 1 cast bfloat16 -- cast bf16
    check "odd states: no optimizer" ckpt-edit -q drop optimizer "$W/odd" "$W/none"
    check "odd states: none of it" sh -c '! grep -qa optimizer "$1/.metadata"' sh "$W/none"
    check_exit "odd states: other names" 2 "form that is not known" ckpt-edit rename decoder model "$W/odd" "$W/no"
    # With padding behind the tokens: 18 of them are 24 rows of 2 tensor ranks.
    check "padded" ckpt-edit -q vocab --tokens 18 --init zero "$W/in" "$W/padded"
    check "padded: counted" their says "$W/padded" vocab_size=18 padded_vocab_size=24 num_layers=2
fi
finish
