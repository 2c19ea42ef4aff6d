#!/bin/sh
# shellcheck disable=SC1091,SC2020,SC2034
# scripts.sh - runs that really were, called as they were (tests/lib/runs.sh)
#
# Each at its own size as a dry run on its own ranks: the published number of parameters. Then at a size for this
# machine, three iterations on 4 to 8 ranks and three more in a second job from what the first saved: sizes come from
# the environment, the vocabulary and, where there would be more than 8 ranks, the stages are substituted. RUN_NAMES picks
# some; QUICK=1 three.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh && . tests/lib/runs.sh
quick && RUNS="tr1-13B-round1 tr11-176B setup-test-n2"
picked=${RUN_NAMES:-$RUNS}
SHARDKIT_BACKEND=cpu SHARDKIT_THREADS=1 TRANSFORMERS_CACHE=$W/hub
export SHARDKIT_BACKEND SHARDKIT_THREADS TRANSFORMERS_CACHE

# ---- the environment of the clusters ----

DATA_PATH=$DATA_DIR/text_document KILL_SWITCH_PATH=$W/kill-switch TENSORBOARD_PATH=$W/tensorboard
CODECARBON_PATH=$W/codecarbon VOCAB_FILE=$W/gpt2-vocab.json MERGE_FILE=$W/gpt2-merges.txt
TRAIN_DATA_PATH=$W/train-splits.txt VALID_DATA_PATH=$W/valid-splits.txt
for model in $TOKENIZER_NAME_OR_PATH teven/test_150k_vocab_tokenizer; do
    folder=$W/hub/models--$(echo "$model" | sed 's|/|--|')/snapshots/0123abcd
    mkdir -p "$folder" && cp tests/data/text/tokenizers/bloom.json "$folder/tokenizer.json"
done
for set in en fr; do
    mkdir -p "$DATA_DIR/$set"
    for end in bin idx; do cp "$DATA_PATH.$end" "$DATA_DIR/$set/text_document.$end"; done
done
for set in en fr; do echo "{\"dataset_path\": \"$DATA_DIR/$set/text_document\", \"ratio\": 0.5}"; done |
    sed '1s/^/[/; 1s/$/,/; $s/$/]/' >"$W/ratios.json"
splits() {
    ops/data/ratios-to-splits --dataset-ratios-path "$W/ratios.json" --split "$1" --output-meg-ds-ratio-file "$2"
}
splits train "$TRAIN_DATA_PATH"
splits valid "$VALID_DATA_PATH"
# GPT-2's number of tokens is 50257; the test's vocabulary has the first of them.
{
    sed 's/}$//' tests/data/text/byte-vocab.json
    awk 'BEGIN { for (i = 257; i < 50257; i++) printf ", \"t%d\": %d", i, i; print "}" }'
} >"$VOCAB_FILE"
cp tests/data/text/byte-merges.txt "$MERGE_FILE"

# ---- a run ----

# prepare NAME: build the run's command line from these sizes. Sizes that are not set are the run's own.
prepare() {
    CHECKPOINT_PATH=$W/$1 config_json=$W/ds_config.$1.json
    run "$1"
}

# call N OPTIONS...: start the run as `srun bash -c "$LAUNCHER $CMD"` does.
call() { n=$1; shift; eval "launch $n $CMD $*"; }

# Ignored options must be known to have no effect, and every key of the JSON must be known.
no_effect='abort-on-unmet-fused-kernel-constraints|num-workers|valid-num-workers|distributed-backend|codecarbon-dir'
no_effect="$no_effect|loss-scale|log-level|log-level-replica|deepspeed-activation-checkpointing"
notes_known() {
    ! grep -E 'not known|is taken for' "$1" || return 1
    sed -n 's/.*accepted, without effect here: //p' "$1" | tr -d ' ' | tr ',' '\n' | grep -vxE -e "--($no_effect)"
    [ $? -eq 1 ]
}

# Three lines of a log must have the counts and rates of the start of the ramp and the warm-up, and the loss of a
# random guess.
begins() {  # LOG BATCH LR WARMUP VOCABULARY
    awk -v b="$2" -v lr="$3" -v warm="$4" -v V="$5" '
        function field(name, at) { at = index($0, name ": "); return substr($0, at + length(name) + 1) + 0 }
        function off(a, b, tol) { return !(a - b <= tol && b - a <= tol) }
        /consumed samples/ {
            n++
            rate = lr * b * n / warm
            if (field("consumed samples") != b * n || field("global batch size") != b ||
                off(field("learning rate"), rate, rate * 1e-3) || off(field("lm loss"), log(V), 0.1)) { print; bad = 1 }
        }
        END { exit bad || n != 3 }' "$1"
}

fact() { tr ',{}' '\n\n\n' <"$CHECKPOINT_PATH/status.json" | sed -n "s/^\"$1\"://p"; }

three_and_three() {     # NAME RANKS BATCH LR WARMUP VOCABULARY
    SHARDKIT_EXIT_ITERATIONS=3; export SHARDKIT_EXIT_ITERATIONS
    call "$2" >"$W/$1.log" 2>&1 || { fail "$1 runs"; tail -n 3 "$W/$1.log"; return; }
    check "$1: all options are known" notes_known "$W/$1.log"
    # tr1 wrote a line only every tenth iteration.
    [ "$1" = tr1-13B-round1 ] || check "$1: three iterations" begins "$W/$1.log" "$3" "$4" "$5" "$6"
    case $CMD in *--fp16*)
        [ "$1" = tr1-13B-round1 ] ||
            check "$1: the JSON's loss scale" [ "$(grep -c 'loss scale: 4096.0 |' "$W/$1.log")" -eq 3 ] ;;
    esac
    check "$1: the loss of a guess" awk -v x="$(fact loss)" -v V="$6" \
        'BEGIN { d = x - log(V); exit !(d < 0.1 && d > -0.1) }'
    check "$1: stops in order" [ "$(fact stop_reason) $(fact consumed_samples)" = "\"iterations\" $((3 * $3))" ]
    check "$1: what it saved is sound" ckpt-inspect verify --strict "$CHECKPOINT_PATH"
    call "$2" >"$W/$1.log2" 2>&1 || { fail "$1 goes on"; tail -n 3 "$W/$1.log2"; return; }
    check "$1: a second job goes on" [ "$(fact iteration) $(fact consumed_samples) $(fact last_complete_tag)" = \
        "6 $((6 * $3)) \"global_step6\"" ]
    unset SHARDKIT_EXIT_ITERATIONS
    rm -rf "$CHECKPOINT_PATH"
}

# NAME ORIGINAL-RANKS PARAMETERS RANKS STAGES ('': as in the original) BATCH LR WARMUP VOCABULARY
both_sizes() {
    case " $picked " in *" $1 "*) ;; *) return ;; esac
    (unset NLAYERS NHIDDEN FFN_HIDDEN_SIZE SEQ_LEN TP_SIZE PP_SIZE; TRAIN_SAMPLES=300_000; prepare "$1"
        call 1 --dry-run --dry-run-ranks "$2" --device-memory 80) >"$W/$1.plan" 2>&1
    check "$1: $3 parameters at its own size" grep -qx "parameters: $3" "$W/$1.plan"
    check "$1: fits where it ran" grep -q '^it fits' "$W/$1.plan"
    unset NLAYERS NHIDDEN FFN_HIDDEN_SIZE SEQ_LEN TRAIN_SAMPLES TP_SIZE PP_SIZE
    case $1 in tr1-* | tr10-*) NLAYERS=4 ;; *) NLAYERS=2 ;; esac       # at least one a stage
    SEQ_LEN=16 TRAIN_SAMPLES=300_000 PP_SIZE=$5
    prepare "$1"
    NHIDDEN=$((2 * NHEADS)) FFN_HIDDEN_SIZE=$((8 * NHEADS))
    prepare "$1"
    CMD=$(echo "$CMD" | sed "s/--pad-vocab-size-to 250880/--pad-vocab-size-to $9/")
    three_and_three "$1" "$4" "$6" "$7" "$8" "$9"
}

both_sizes tr1-13B-round1 256 12854282240 8 '' 16 1e-4 216320 50432
both_sizes tr10-13B 16 12600002560 8 '' 16 1e-4 216320 768
both_sizes tr11b-1B3 64 1722408960 4 '' 192 2e-4 183105 4096
both_sizes tr11c-2B5 128 3002557440 8 2 192 1.6e-4 183105 4096
both_sizes tr11d-760M 32 1065314304 8 '' 192 2.5e-4 183105 4096
both_sizes tr11e-350M 32 559214592 4 '' 192 3.0e-4 183105 4096
both_sizes tr11f-6B3 128 7069016064 8 2 192 1.2e-4 183105 4096
both_sizes tr11-176B 384 176247271424 8 2 192 6e-5 183105 4096
both_sizes setup-test-n2 16 282097664 8 '' 192 6e-5 183105 4096
finish
