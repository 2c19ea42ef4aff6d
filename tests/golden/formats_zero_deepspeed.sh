#!/bin/sh
# formats_zero_deepspeed.sh - DeepSpeed loads files that reshape made for another number of ranks, or another stage
#
# Every tensor and moment equals the saved one, and two more steps give the losses of the run that continued.
# DeepSpeed's own converter makes the same universal form as shardkit. FORMATS=DIR adds the larger checkpoints of that
# folder. Needs a Python with deepspeed, torch and transformers (tests/lib/python.sh); skipped without. CASES=PATTERN
# selects cases, since each starts an engine on every rank.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'torch, deepspeed, transformers' "deepspeed, torch and transformers"
script=$PWD/tests/golden/zero/formats_zero_check.py data=$PWD/tests/data/zero
OMP_NUM_THREADS=1 PATH=$(dirname "$(command -v "$python")"):$PATH       # its build of kernels wants ninja
export OMP_NUM_THREADS PATH

# takes FIXTURE STAGE RANKS: reshape the fixture to this form; an engine with this stage and number of ranks must load
# it.
takes() {
    what="$1 as ZeRO-$2 on $3 ranks"
    case $what in ${CASES:-*}) ;; *) return ;; esac
    mkdir "$W/run"
    check "$what: reshape" reshape -q --verify --set-latest --to "zero$2" --target-dp "$3" "$data/$1/ckpt" \
        "$W/run/global_step5"
    check "$what" "$python" -m torch.distributed.run --standalone --nproc-per-node "$3" "$script" load "$data/$1" "$2" \
        "$W/run"
    grep '^ZeRO-' "$W/log"
    rm -rf "$W/run"
}

# Files written by ckpt-edit: a layer duplicated and removed; renamed, and renamed back.
edited() {  # FIXTURE STAGE RANKS
    what="$1 edited"
    case $what in ${CASES:-*}) ;; *) return ;; esac
    mkdir "$W/run"
    check "$what: layers" ckpt-edit -q layers keep 0,0 "$data/$1/ckpt" "$W/run/two"
    check "$what: and back" ckpt-edit -q layers drop 1 "$W/run/two" "$W/run/one"
    check "$what: names" ckpt-edit -q rename 'mlp' 'feed' "$W/run/one" "$W/run/named"
    check "$what: and back" ckpt-edit -q rename 'feed' 'mlp' "$W/run/named" "$W/run/global_step5"
    echo global_step5 >"$W/run/latest"
    check "$what" "$python" -m torch.distributed.run --standalone --nproc-per-node "$3" "$script" load "$data/$1" "$2" \
        "$W/run"
    grep '^ZeRO-' "$W/log"
    rm -rf "$W/run"
}
edited zero2-roundrobin-3ranks 2 3
edited zero3-edge-2ranks 3 2

# The same for a universal form, which an engine loads by load_universal, and for the contents of its model_states.
edited_universal() {    # FIXTURE STAGE RANKS DTYPE TOKENS
    what="$1 universal edited"
    case $what in ${CASES:-*}) ;; *) return ;; esac
    mkdir "$W/run"
    check "$what: universal" ds2universal -q "$data/$1/ckpt" "$W/run/was"
    check "$what: layers" ckpt-edit -q layers keep 0,0 "$W/run/was" "$W/run/two"
    check "$what: and back" ckpt-edit -q layers drop 1 "$W/run/two" "$W/run/one"
    check "$what: names" ckpt-edit -q rename 'mlp' 'feed' "$W/run/one" "$W/run/named"
    check "$what: and back" ckpt-edit -q rename 'feed' 'mlp' "$W/run/named" "$W/run/names"
    check "$what: rows" ckpt-edit -q vocab --tokens 100 "$W/run/names" "$W/run/rows"
    check "$what: a type" ckpt-edit -q cast "$4" "$W/run/rows" "$W/run/typed"
    check "$what: models" "$python" "$script" models "$W/run/two" "$W/run/named" "$W/run/rows" "$W/run/typed"
    check "$what: and back" ckpt-edit -q vocab --tokens "$5" "$W/run/rows" "$W/run/universal"
    # load_universal leaves frozen parameters and buffers as the model has them.
    case $1 in *edge*) ;; *)
        check "$what" "$python" -m torch.distributed.run --standalone --nproc-per-node "$3" "$script" load "$data/$1" "$2" \
            "$W/run" universal
        grep '^ZeRO-' "$W/log" ;;
    esac
    rm -rf "$W/run"
}
edited_universal zero1-fp32-gpt2-2ranks 1 2 bf16 29
edited_universal zero2-edge-3ranks 2 3 fp16 61
edited_universal zero2-fp16-3ranks 2 3 bf16 61
edited_universal zero3-edge-2ranks 3 2 fp16 61
edited_universal zero3-fp16-gpt2-2ranks 3 2 bf16 29

# A result of another type: an engine of that type loads it.
cast_to() {     # DTYPE FIXTURE STAGE RANKS
    what="$2 as $1"
    case $what in ${CASES:-*}) ;; *) return ;; esac
    mkdir "$W/run"
    check "$what: cast" ckpt-edit -q cast "$1" "$data/$2/ckpt" "$W/run/global_step5"
    check "$what: sound" ckpt-inspect verify -q "$W/run/global_step5"
    check "$what: universal" ds2universal -q "$data/$2/ckpt" "$W/universal"
    echo global_step5 >"$W/run/latest"
    check "$what" "$python" -m torch.distributed.run --standalone --nproc-per-node "$4" "$script" cast "$data/$2" "$3" \
        "$W/run" "$1" "$W/universal"
    grep '^ZeRO-' "$W/log"
    rm -rf "$W/run" "$W/universal"
}
cast_to fp16 zero2-edge-3ranks 2 3
cast_to fp16 zero2-roundrobin-3ranks 2 3
cast_to fp16 zero3-edge-2ranks 3 2
cast_to bf16 zero1-fp32-gpt2-2ranks 1 2
cast_to bf16 zero2-fp16-3ranks 2 3
cast_to bf16 zero3-fp16-gpt2-2ranks 3 2
cast_to fp32 zero2-edge-3ranks 2 3

if [ -n "${FORMATS:-}" ]; then
    data=$FORMATS
    takes zero1-gpt2-2ranks 1 3
    takes zero2-llama-3ranks 2 2
    takes zero2-llama-3ranks 3 4
    takes zero3-llama-3ranks 3 2
    takes zero3-llama-3ranks 2 4
    data=$PWD/tests/data/zero
fi

# Without moments: zero_to_fp32.py and engines load the remaining data.
without() {     # FIXTURE RANKS
    what="$1 without moments"
    case $what in ${CASES:-*}) ;; *) return ;; esac
    mkdir "$W/run"
    check "$what: drop" ckpt-edit -q drop optimizer "$data/$1/ckpt" "$W/run/global_step5"
    echo global_step5 >"$W/run/latest"
    check "$what" "$python" -m torch.distributed.run --standalone --nproc-per-node "$2" "$script" moments "$data/$1" \
        "$data/$1/ckpt" "$W/run"
    grep '^ZeRO-' "$W/log"
    rm -rf "$W/run"
}
without zero3-edge-2ranks 2
without zero3-gpt2-4ranks 4
without zero3-fp16-gpt2-2ranks 2

takes zero1-fp32-gpt2-2ranks 1 3
takes zero2-edge-3ranks 2 2
takes zero2-roundrobin-3ranks 2 2
takes zero2-elastic-gpt2-3ranks 2 2
takes zero3-edge-2ranks 3 3
takes zero3-gpt2-4ranks 3 2
takes zero2-roundrobin-3ranks 3 2
takes zero3-edge-2ranks 2 3
takes zero1-fp16-gpt2-2ranks 1 3
takes zero2-fp16-3ranks 2 2
takes zero2-fp16-3ranks 3 2
takes zero3-fp16-gpt2-2ranks 3 3
takes zero3-fp16-gpt2-2ranks 2 3
# through FIXTURE FORM STAGE RANKS DTYPE: convert it to torch.distributed's form (--ranks, --mesh), and that form back
# to files of DeepSpeed.
through() {
    what="$1 through dcp as ZeRO-$3 on $4 ranks"
    case $what in ${CASES:-*}) ;; *) return ;; esac
    mkdir "$W/run"
    check "$what: dcp" reshape -q --verify --to dcp "$2" "$data/$1/ckpt" "$W/dcp"
    check "$what: torch loads it" "$python" -W ignore -m torch.distributed.run --standalone --nproc-per-node "$4" \
        "$script" fsdp "$data/$1" "$W/dcp"
    grep '^FSDP2' "$W/log"
    check "$what: reshape" reshape -q --verify --set-latest --to "zero$3" --ranks "$4" --dtype "$5" \
        "$W/dcp" "$W/run/global_step5"
    check "$what" "$python" -m torch.distributed.run --standalone --nproc-per-node "$4" "$script" load "$data/$1" "$3" \
        "$W/run"
    grep '^ZeRO-' "$W/log"
    if [ "$3" -lt 3 ]; then             # without settings of another stage the form is that of ZeRO-2
        check "$what: universal" ds2universal -q --verify "$W/dcp" "$W/run/universal"
        check "$what: load_universal" "$python" -m torch.distributed.run --standalone --nproc-per-node "$4" "$script" \
            load "$data/$1" "$3" "$W/run" universal
        grep '^ZeRO-' "$W/log"
    fi
    rm -rf "$W/run" "$W/dcp"
}
through zero1-fp32-gpt2-2ranks --ranks=4 2 3 fp32
through zero3-gpt2-4ranks --mesh=2x2 1 2 bf16
through zero2-roundrobin-3ranks --mesh=3x2 3 2 bf16           # of which ZeRO-3 knows nothing
f=zero2-edge-3ranks
case "$f weights" in ${CASES:-*})
    check "$f: to Transformers" export-hf -q "$data/$f/ckpt" "$W/hf"
    check "$f: and back, weights alone" reshape -q --verify --set-latest --weights-only --to zero2 "$W/hf" \
        "$W/run/global_step5"
    check "$f weights" "$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$script" weights "$data/$f" 2 \
        "$W/run"
    rm -rf "$W/hf" "$W/run" ;;
esac
for f in zero1-fp32-gpt2-2ranks zero2-edge-3ranks zero3-edge-2ranks zero3-gpt2-4ranks zero2-fp16-3ranks \
    zero3-fp16-gpt2-2ranks; do
    case "$f universal" in ${CASES:-*}) ;; *) continue ;; esac
    check "$f: universal" ds2universal -q "$data/$f/ckpt" "$W/universal"
    check "$f: both converters" "$python" "$script" universal "$data/$f/ckpt/global_step5" "$W/universal"
    rm -rf "$W/universal"
done
finish
