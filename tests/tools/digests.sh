#!/bin/sh
# digests.sh BIN - print the SHA-256 of every file that the tools in folder BIN make of the test
# data
#
# Use it for a change that must not alter a byte: run it with the build before and the build after
# the change, and compare the two lists. Each line has the digest, the case and the file inside it.
set -u
export LC_ALL=C OMP_NUM_THREADS=1
[ $# -eq 1 ] && [ -x "$1/reshape" ] || { echo "usage: digests.sh FOLDER-OF-TOOLS" >&2; exit 2; }
BIN=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.." || exit 1
W=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-digests-XXXXXX")
trap 'rm -rf "$W"' EXIT
trap 'exit 130' INT TERM
. tests/lib/train.sh                    # launch, BLOOM, GPT2, COMMON
data=$PWD/tests/data failed=0

# made CASE COMMAND...: run the command ("OUT" stands for a new path), list the digests of its
# output, and remove it.
made() {
    case_name=$1 out=$W/out/$1; shift
    mkdir -p "$W/out"
    for word; do
        shift
        [ "$word" = OUT ] && word=$out
        set -- "$@" "$word"
    done
    tool=$1; shift
    if ! "$BIN/$tool" "$@" >"$W/stdout" 2>"$W/stderr"; then
        echo "digests: $case_name: $(tail -n 1 "$W/stderr")" >&2
        failed=1
    fi
    list "$case_name" "$out"
    [ -n "${KEEP_OUT:-}" ] || rm -rf "$out"
}

list() {
    [ -e "$2" ] || return 0
    (cd "$2" 2>/dev/null && find . -type f | sort | xargs -r sha256sum) | sed "s|  \./|  $1/|"
}

# The same for a command that only writes to standard output.
printed() {
    case_name=$1; shift
    "$BIN/$@" 2>/dev/null | sha256sum | sed "s|-\$|$case_name|"
}

for set_dir in bloom-tp2pp2dp2/global_step20 bloom-tp2pp2dp2/global_step20_universal bloom-headonly-tp1pp3dp2/global_step10 \
        gpt2-tp2pp2dp1/global_step20; do
    ckpt=tests/data/$set_dir name=${set_dir%%/*}
    case $set_dir in *universal) name=$name-universal ;; esac
    case $name in *-universal) ;; *)
        made "$name-pt" ds2universal "$ckpt" OUT
        made "$name-hdf5" ds2universal --format hdf5 "$ckpt" OUT
        made "$name-strip" ds2universal --vocab strip "$ckpt" OUT
    esac
    for t in "1 1 1" "2 2 2" "4 1 2" "1 4 1" "2 1 4"; do
        # shellcheck disable=SC2086
        set -- $t
        case $name-$2 in bloom-headonly*-4) continue ;; esac            # of three layers
        made "$name-tp$1pp$2dp$3" reshape --target-tp "$1" --target-pp "$2" --target-dp "$3" "$ckpt" OUT
    done
    made "$name-weights" reshape --weights-only "$ckpt" OUT
    made "$name-groups" reshape --groups 2 --zero-moments --step 7 "$ckpt" OUT
    made "$name-msmd" reshape --layer-numbering msmd --set args.lr=0.5 "$ckpt" OUT
    made "$name-merged" merge-tp --replicas average "$ckpt" OUT
    made "$name-safetensors" export-hf "$ckpt" OUT
    made "$name-bin" export-hf --format bin --dtype fp32 --per-layer "$ckpt" OUT
    KEEP_OUT=1 made "$name-hf" export-hf --strip-vocab-padding "$ckpt" OUT >/dev/null
    made "$name-imported" export-hf --import --target-tp 2 --target-pp 2 "$W/out/$name-hf" OUT
    rm -rf "$W/out/$name-hf"
    printed "$name-ls" ckpt-inspect ls "$ckpt"
    printed "$name-stats" ckpt-inspect stats --json "$ckpt"
    printed "$name-args" ckpt-inspect args "$ckpt"
done
for impl in mmap cached lazy; do
    mkdir -p "$W/out/text-$impl"
    "$BIN/preprocess" -q --input tests/data/demo/*.txt --input-format text --document paragraph --append-eod --dataset-impl $impl \
        --output-prefix "$W/out/text-$impl/t" >/dev/null || failed=1
    list "text-$impl" "$W/out/text-$impl"
done
# Train resumed sets, with the same degrees and with others, and from weights drawn from the seed.
# Paths are saved as arguments, so they are the same each time.
trained() {
    name=$1 ranks=$2; shift 2
    # shellcheck disable=SC2086
    (cd "$W" && launch "$ranks" "$@" $COMMON --data-path data/text_document --save "run-$name" --save-interval 100) \
        >"$W/stdout" 2>&1 || { echo "digests: $name: $(tail -n 1 "$W/stdout")" >&2; failed=1; }
    list "$name" "$W/run-$name" | grep -v -e '\.log$' -e status.json -e events.out -e '\.lock'
    rm -rf "$W/run-$name"
}
# shellcheck disable=SC2086
{
    trained train-bloom 8 $BLOOM --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --exit-interval 22 \
        --load "$data/bloom-tp2pp2dp2/global_step20"
    trained train-bloom-tp1 2 $BLOOM --pipeline-model-parallel-size 2 --exit-interval 22 --load "$data/bloom-tp2pp2dp2/global_step20"
    trained train-gpt2 4 $GPT2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --exit-interval 22 \
        --load "$data/gpt2-tp2pp2dp1/global_step20"
    trained train-fresh 4 $GPT2 --tensor-model-parallel-size 2 --num-layers 2 --hidden-size 64 --num-attention-heads 4 \
        --vocab-size 256 --exit-interval 2
}
exit $failed
