# conversions.sh - one command of each kind on two sets, to compare two builds; sourced by tests/release/*.sh
#
# The current folder holds the link or folder `data` (tests/data). All paths are relative, so that the text agrees.

# what BIN OUT RUN... - one command of each kind; RUN... precedes each program. Paths are relative, so that text agrees.
conversions() {
    bin=$1 out=$2
    shift 2
    for set in bloom-tp2pp2dp2 gpt2-fp16-tp2pp2dp2; do
        in=data/$set/global_step20 to=$out/$set
        "$@" mkdir "$to"
        for run in "ckpt-inspect $in" "ckpt-inspect ls $in" "ckpt-inspect verify $in" "ckpt-inspect stats $in" \
            "ds2universal -q $in $to/universal" "ds2universal -q --format hdf5 $in $to/hdf5" "merge-tp -q $in $to/merged" \
            "ckpt-inspect verify $to/hdf5" "reshape -q --target-tp 1 --target-pp 4 --target-dp 2 $in $to/reshaped" \
            "reshape -q --to dcp --ranks 3 $in $to/dcp" "reshape -q --to zero3 --ranks 2 $in $to/zero3" \
            "export-hf -q $in $to/hf" "export-hf -q --dtype fp32 $to/dcp $to/hf-dcp" \
            "ckpt-edit cast fp16 $in $to/edited" "ckpt-edit vocab --tokens 300 $in $to/vocab" \
            "ckpt-edit zero -q *bias $in $to/zeroed" "ckpt-inspect diff --patch $to/patch $in $to/zeroed" \
            "ckpt-edit apply -q $to/patch $in $to/applied" "ckpt-edit -q average --weights 0.3,0.7 $in $to/reshaped $to/mean" \
            "ckpt-backup copy -q --pack $in $to/backup" "ckpt-backup verify $to/backup" \
            "ckpt-backup copy -q $in $to/copied" "ckpt-backup verify $to/copied"; do
            echo "$run"
            # shellcheck disable=SC2086
            "$@" "$bin"/$run 2>&1
            echo "status $?"
        done
    done
    run="ckpt-edit -q cast fp8 data/peft/llama/base $out/fp8"
    echo "$run"
    # shellcheck disable=SC2086
    "$@" "$bin"/$run 2>&1
    echo "status $?"
    for adapter in llama/dora gpt2/plain; do
        run="ckpt-edit -q merge-adapter data/peft/${adapter%/*}/base data/peft/${adapter%/*}/adapters/${adapter#*/} $out/${adapter%/*}"
        echo "$run"
        # shellcheck disable=SC2086
        "$@" "$bin"/$run 2>&1
        echo "status $?"
    done
}
# Times of a run, the rate, which a slow run does not print, and records that hold them differ from run to run.
equal_trees() { diff -r -x .ckpt-backup -x '*.log' "$1" "$2"; }
same_text() { sed "s|$2|OUT|g; s/ ([0-9.]* [KMG]*B\/s)//; s/[0-9.]* s\b//" "$1"; }
