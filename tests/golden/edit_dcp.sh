#!/bin/sh
# edit_dcp.sh - edits by ckpt-edit of folders of torch.distributed.checkpoint, compared with torch's own merge
#
# Needs a Python with torch.distributed.checkpoint (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python torch.distributed.checkpoint "torch.distributed.checkpoint"
script=$PWD/tests/golden/forms/edit_torch.py

# edit OUT VERB ARG...: make $W/OUT and check that it is sound.
edit() {
    this=$1; shift
    check "$this" ckpt-edit -q "$@" "$W/$this"
    check "$this: verified" ckpt-inspect -q verify --strict "$W/$this"
}
fsdp=$PWD/tests/data/dcp/fsdp/ckpt mesh=$PWD/tests/data/dcp/mesh/ckpt
check "ours, with a manifest" reshape -q --ranks 2 "$fsdp" "$W/ours"
for in in "$fsdp" "$W/ours"; do
    key=$(basename "$in")
    ckpt-inspect cat --npy "$in" 0.weight.exp_avg >"$W/moment.npy"
    "$python" -c "import numpy, sys; numpy.save(sys.argv[2], 2 * numpy.load(sys.argv[1]))" "$W/moment.npy" "$W/new.npy"
    edit "$key-put" put 0.weight "$W/new.npy" "$in"
    edit "$key-zero" zero '1.*' "$in"
    edit "$key-average" average "$in" "$W/$key-put"
    edit "$key-ema" ema --decay 0.9 "$in" "$W/$key-put"
    check "$key: torch" "$python" "$script" fsdp "$in" "$W/$key" "$W/new.npy"
done
edit mesh-zero zero 'blocks:bf16' 'columns:bf16' 'stacked:bf16' "$mesh"
edit mesh-average average "$mesh" "$W/mesh-zero"
edit mesh-names rename '^blocks$' boxes "$mesh"
edit mesh-wide cast fp32 "$mesh"
edit mesh-thin thin "$W/mesh-wide"
check "mesh: torch" "$python" "$script" mesh "$mesh" "$W/mesh"
for in in gpt/iter_0000005 stacked/iter_0000002; do
    key=${in%/*}
    edit "$key-zero" zero '*mlp*:fp32' "$PWD/tests/data/torchdist/$in"
done
# torch does not find removed tensors; the remaining ones are unchanged.
for in in "$fsdp" "$W/ours"; do
    key=$(basename "$in")
    edit "$key-thin" thin "$in"
    edit "$key-weights" drop optimizer "$in"
    edit "$key-few" drop '1.*' "$in"
    edit "$key-set" set optim.param_groups.0.lr=0.125 "$in"
    edit "$key-names" rename '^0' first "$in"
    edit "$key-half" cast bf16 "$in"
    check "$key: torch, without entries" "$python" "$script" without "$in" "$W/$key"
done
if ! quick; then
    check "a model" reshape -q --to dcp --mesh 2x2 tests/data/zero/zero2-roundrobin-3ranks/ckpt "$W/model"
    rows=$(ckpt-inspect ls "$W/model" | sed -n 's/^\[\([0-9]*\), .*embed_tokens.weight.*/\1/p')
    edit model-twice layers keep 0,0 "$W/model"
    edit model-more vocab --tokens $((rows + 5)) --init zero "$W/model"
    check "model: torch" "$python" "$script" model "$W/model" "$W/model"
fi
# An edit of an edit, with values and names as at first: a program of FSDP2 continues from it.
lr=$(ckpt-inspect cat "$fsdp" optim.param_groups.0.lr)
edit fsdp-back rename '^first' 0 "$W/ckpt-names"
edit fsdp-again set "optim.param_groups.0.lr=$lr" "$W/fsdp-back"
quick || check "FSDP2 on 2 ranks" "$python" -W ignore tests/golden/forms/dcp_check.py load "$W/fsdp-again" \
    tests/data/dcp/fsdp/expected.json 2
finish
