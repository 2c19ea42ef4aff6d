# shellcheck shell=sh disable=SC2034,SC2154
# runs.sh - how training runs were called that really were: bigscience's 13B and 176B, and their smaller relatives
#
# Sourced. Options and values are those of the Slurm scripts (bigscience-workshop/bigscience, train/), each run's
# here in one arrangement. `run NAME` takes sizes and paths from variables that are set already, as the scripts took
# paths from their cluster's, writes the DeepSpeed JSON to $config_json and sets
#   CMD   what follows the launcher, to be read by a shell once more (quotes stand in it)
# Paths:  CHECKPOINT_PATH TENSORBOARD_PATH CODECARBON_PATH DATA_PATH VOCAB_FILE MERGE_FILE TRAIN_DATA_PATH
#         VALID_DATA_PATH KILL_SWITCH_PATH
# Sizes:  NLAYERS NHIDDEN FFN_HIDDEN_SIZE SEQ_LEN TRAIN_SAMPLES TP_SIZE PP_SIZE; not set: as they were

RUNS="tr1-13B-round1 tr10-13B tr11b-1B3 tr11c-2B5 tr11d-760M tr11e-350M tr11f-6B3 tr11-176B setup-test-n2"
TOKENIZER_NAME_OR_PATH=bigscience-catalogue-data-dev/byte-level-bpe-tokenizer-no-norm-250k-whitespace-and-eos
TOKENIZER_NAME_OR_PATH=$TOKENIZER_NAME_OR_PATH-regex-alpha-v3-dedup-lines-articles

sizes() {   # L H N S TP PP MBS GBS
    : "${NLAYERS:=$1}" "${NHIDDEN:=$2}" "${SEQ_LEN:=$4}" "${TP_SIZE:=$5}" "${PP_SIZE:=$6}"
    NHEADS=$3 MICRO_BATCH_SIZE=$7 GLOBAL_BATCH_SIZE=$8
}

# Set the optimizer's options: BETA2 LR MIN-LR DECAY-SAMPLES ('': not given) WARMUP-SAMPLES
optimizer() {
    OPTIMIZER_ARGS="--optimizer adam --adam-beta1 0.9 --adam-beta2 $1 --adam-eps 1e-8 --lr $2 --min-lr $3
        --lr-decay-style cosine ${4:+--lr-decay-samples $4} --lr-warmup-samples $5 --clip-grad 1.0 --weight-decay 1e-1"
}

# Set the options of model and batch that all runs share: START INC SAMPLES of the ramp
model() {
    GPT_ARGS="--num-layers $NLAYERS --hidden-size $NHIDDEN --num-attention-heads $NHEADS --seq-length $SEQ_LEN
        --max-position-embeddings $SEQ_LEN --micro-batch-size $MICRO_BATCH_SIZE --rampup-batch-size $1 $2 $3
        --global-batch-size $GLOBAL_BATCH_SIZE --train-samples $TRAIN_SAMPLES"
}

output() {  # LOG-INTERVAL SAVE-INTERVAL EVAL-ITERS
    OUTPUT_ARGS="--log-interval $1 --save-interval $2 --eval-interval 1000 --eval-iters $3
        --tensorboard-dir $TENSORBOARD_PATH --tensorboard-queue-size 5 --log-timers-to-tensorboard
        --log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard"
}

# Set the DeepSpeed options and write the JSON: STAGE bf16|fp16
deepspeed() {
    case $2 in
    bf16) precision='"bf16": {"enabled": true}' ;;
    fp16) precision='"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2,
    "min_loss_scale": 1, "initial_scale_power": 12}' ;;
    esac
    cat >"$config_json" <<JSON
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE, "train_batch_size": $GLOBAL_BATCH_SIZE,
  "gradient_clipping": 1.0, "zero_optimization": {"stage": $1}, $precision,
  "steps_per_print": 2000, "wall_clock_breakdown": false
}
JSON
    DEEPSPEED_ARGS="--deepspeed --deepspeed_config $config_json --zero-stage $1 --deepspeed-activation-checkpointing"
}

# Build the whole command in the order of the scripts: DATA-OPTIONS MORE
command_line() {
    CMD=$(echo "--tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE $GPT_ARGS $OUTPUT_ARGS
        --save $CHECKPOINT_PATH --load $CHECKPOINT_PATH $1 --data-impl mmap $2 --distributed-backend nccl
        $DEEPSPEED_ARGS" | tr '\n' ' ')
}

# tr1-13B and tr10-13B: GPT-2 with one data file
tr1() {
    sizes 40 5120 32 2048 2 4 1 1024
    : "${FFN_HIDDEN_SIZE:=20480}" "${TRAIN_SAMPLES:=300_000_000}"
    optimizer 0.999 1e-4 1e-5 126_953_125 216_320
    model 16 16 5_000_000
    GPT_ARGS="$GPT_ARGS --ffn-hidden-size $FFN_HIDDEN_SIZE --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE
        --loss-scale 12 --clip-grad 1.0 --fp16 --checkpoint-activations --seed 42
        $OPTIMIZER_ARGS --exit-duration-in-mins 1190"
    output 10 1500 5
    OUTPUT_ARGS="$OUTPUT_ARGS --codecarbon-dir $CODECARBON_PATH"
    deepspeed 1 fp16
    command_line "--data-path $DATA_PATH" "--split 949,50,1"
}

tr10() {
    sizes 40 5120 40 2048 2 4 1 2048
    : "${TRAIN_SAMPLES:=$((3000000000 / SEQ_LEN + 1))}"
    optimizer 0.95 1e-4 6e-6 '' 216_320
    model 16 16 6_000_000
    GPT_ARGS="$GPT_ARGS --tokenizer-type PretrainedFromHF --tokenizer-name-or-path teven/test_150k_vocab_tokenizer
        --loss-scale 12 --init-method-std 0.00884 --fp16 --checkpoint-activations --seed 43
        $OPTIMIZER_ARGS --hidden-dropout 0.0 --attention-dropout 0.0 --exit-duration-in-mins 1190"
    output 1 300 5
    OUTPUT_ARGS="$OUTPUT_ARGS --log-level info --log-level-replica error"
    deepspeed 1 fp16
    command_line "--data-path $DATA_PATH" "--split 900,100,0"
}

# All runs of tr11: LR MIN-LR INC SAVE-INTERVAL bf16|fp16 MORE-OPTIONS WORKERS
tr11() {
    : "${TRAIN_SAMPLES:=220_000_000}"
    optimizer 0.95 "$1" "$2" 200_000_000 183_105
    model 192 "$3" 9_765_625
    GPT_ARGS="--pp-partition-method 'type:transformer|embedding' $GPT_ARGS --tokenizer-type PretrainedFromHF
        --tokenizer-name-or-path $TOKENIZER_NAME_OR_PATH --init-method-std 0.0048 --embed-layernorm --$5 --seed 42
        --position-embedding-type alibi ${6:-} --abort-on-unmet-fused-kernel-constraints --pad-vocab-size-to 250880
        $OPTIMIZER_ARGS --exit-duration-in-mins 5990"
    output 1 "$4" 1
    deepspeed 0 "$5"
    command_line "--train-weighted-split-paths-path $TRAIN_DATA_PATH
        --valid-weighted-split-paths-path $VALID_DATA_PATH" "${7:-}"
}

run() {
    recompute=--checkpoint-activations
    case $1 in
    tr1-13B-round1) tr1 ;;
    tr10-13B) tr10 ;;
    tr11b-1B3) sizes 24 2048 16 2048 1 2 4 512; tr11 2e-4 1e-5 16 250 fp16 $recompute ;;
    tr11c-2B5) sizes 30 2560 32 2048 4 4 1 512; tr11 1.6e-4 1e-5 32 250 fp16 $recompute ;;
    tr11d-760M) sizes 24 1536 16 2048 1 2 1 256; tr11 2.5e-4 1e-5 16 250 fp16 ;;
    tr11e-350M) sizes 24 1024 16 2048 1 1 1 256; tr11 3.0e-4 1e-5 16 250 fp16 ;;
    tr11f-6B3) sizes 30 4096 32 2048 4 4 1 512; tr11 1.2e-4 1e-5 32 250 fp16 $recompute ;;
    tr11-176B)
        sizes 70 14336 112 2048 4 12 2 2048
        tr11 6e-5 6e-6 16 100 bf16 "$recompute --kill-switch-path $KILL_SWITCH_PATH" \
            "--num-workers 2 --valid-num-workers 0" ;;
    setup-test-n2)
        sizes 2 1024 64 2048 4 2 2 2048
        tr11 6e-5 6e-6 16 250 bf16 "$recompute --kill-switch-path $KILL_SWITCH_PATH" ;;
    esac
}
