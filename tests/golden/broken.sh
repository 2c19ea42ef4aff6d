#!/bin/sh
# broken.sh - the faults of docs/broken-writers.md, made by the genuine software, and what is found in them
#
# Each fault of tests/broken/broken.py is made where a Python has its packages; a note of verify names it, or a command
# shows it, and its sound twin is sound. A fault that the installed release no longer has fails its check. QUICK=1: the
# faults of one rank.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'torch, transformers, safetensors' "torch and Transformers"
make=tests/broken/broken.py DS_ACCELERATOR=cpu OMP_NUM_THREADS=1
export DS_ACCELERATOR OMP_NUM_THREADS

# made FAULT RANKS: make the fault's folders in $W/FAULT
made() {
    if [ "$2" = 1 ]; then
        "$python" -W ignore $make "$1" "$W/$1"
    else
        "$python" -W ignore -m torch.distributed.run --standalone --nproc-per-node "$2" $make "$1" "$W/$1"
    fi
}

# named FOLDER TEXT: verify finds errors, and its note has the text
named() {
    ckpt-inspect verify "$1" >"$W/found" && return 1
    grep '^note: ' "$W/found" | grep -q -e "$2"
}

# differ A B NAME: the tensor differs between two folders
differ() { ckpt-inspect diff --json "$1" "$2" | grep -q "\"$3\""; }

"$python" $make >"$W/faults"
exec 3<"$W/faults"
while read -r fault ranks packages <&3; do
    quick && [ "$ranks" -gt 1 ] && continue
    "$python" -c "import $packages" 2>/dev/null || { skip_part "$fault" "no $packages"; continue; }
    check "$fault: made" made "$fault" "$ranks"
    b=$W/$fault/broken s=$W/$fault/sound
    case $fault in
    compiled) check "$fault: named" named "$b" _orig_mod. ;;
    wrapped) check "$fault: named" named "$b" DistributedDataParallel ;;
    zero3-placeholders) check "$fault: named" named "$b" 'shape \[0\]' ;;
    tensor-rank) check "$fault: named" named "$b" tensor-parallel ;;
    rank0-alone) check "$fault: named" named "$b" 'rank 0 alone' ;;
    experts-of-one-rank) check "$fault: named" named "$b" save_16bit_model ;;
    shifted-buckets)
        check "$fault: named" named "$b" Megatron-Core
        check "$fault: the weights are right" ckpt-edit -q drop --accept-mismatch optimizer "$b" "$W/weights"
        ckpt-edit -q drop optimizer "$s" "$W/twin"
        check "$fault: as those of the twin" ckpt-inspect diff -q "$W/weights" "$W/twin" ;;
    zero3-adapter)
        check_exit "$fault: refused" 1 'a factor without elements' \
            ckpt-edit merge-adapter "$W/$fault/base" "$b" "$W/merged"
        check "$fault: the sound one is merged" ckpt-edit -q merge-adapter "$W/$fault/base" "$s" "$W/merged"
        continue ;;
    tied-head)
        check "$fault: the embedding differs" differ "$W/$fault/base" "$b" model.embed_tokens.weight
        ckpt-edit merge-adapter "$W/$fault/base" "$W/$fault/adapter" "$W/tied" 2>"$W/warned"
        check "$fault: merge-adapter warns" grep -q 'so the embedding changes too' "$W/warned"
        continue ;;
    fp8-blocks) check "$fault: a cut block differs" differ "$s" "$b" model.layers.0.mlp.down_proj.weight ;;
    *) check "$fault: is in this script" false ;;
    esac
    check "$fault: the twin is sound" ckpt-inspect verify -q "$s"
done
finish
