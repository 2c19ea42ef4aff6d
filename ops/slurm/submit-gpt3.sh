#!/bin/sh
# submit-gpt3.sh - submit GPT-3 in the sizes and with the variables of NeMo's examples
#
#   MODEL_SIZE=175b NODES=64 MAX_STEPS=300000 JOB_SUFFIX=-a RUN=/fsx/gpt3 DATA_PATH=/fsx/pile/gpt2_text_document \
#       VOCAB_FILE=/fsx/bpe/vocab.json MERGE_FILE=/fsx/bpe/merges.txt IMAGE=/fsx/shardkit.sqsh sh submit-gpt3.sh
# Without IMAGE no container is used. RUN_SH, if given, is sourced first, for example to set variables of the site's
# network.
set -a
: "${MODEL_SIZE:=175b}" "${MAX_STEPS:=300000}" "${JOB_SUFFIX=}" "${IMAGE=}" "${RUN_SH=}"
# nodes, layers, width, heads, TP, PP, micro batch, batch, learning rate
case $MODEL_SIZE in
126m) shape='1 12 768 12 1 1 4 256 6e-4' ;;
1.3b) shape='2 24 2048 16 1 1 2 512 2e-4' ;;
5b) shape='8 24 4096 32 2 1 2 2048 1.6e-4' ;;
20b) shape='16 44 6144 48 4 4 2 2048 1.4e-4' ;;
40b) shape='32 48 8192 64 8 4 2 2048 1.1e-4' ;;
175b) shape='64 96 12288 96 8 16 1 2048 6e-5' ;;
*)
    echo "submit-gpt3.sh: MODEL_SIZE=$MODEL_SIZE: expected 126m, 1.3b, 5b, 20b, 40b or 175b; NLAYERS, NHIDDEN and" \
        "NHEADS change one of them" >&2
    exit 2 ;;
esac
read -r nodes layers width heads tp pp mbs gbs lr <<TEXT
$shape
TEXT
: "${NODES:=$nodes}" "${NLAYERS:=$layers}" "${NHIDDEN:=$width}" "${NHEADS:=$heads}" "${TP:=$tp}" "${PP:=$pp}"
: "${MBS:=$mbs}" "${GBS:=$gbs}" "${LR:=$lr}"
: "${JOB_NAME:=gpt3-${MODEL_SIZE}${NODES}${JOB_SUFFIX}}" "${TIME:=24:00:00}" "${TASKS_PER_NODE:=8}"
: "${CONTAINER=$IMAGE}" "${SEQ_LEN:=2048}" "${POSITION:=absolute}" "${EMBED_LAYERNORM:=0}" "${DTYPE:=bf16}"
: "${TOKENIZER_TYPE:=GPT2BPETokenizer}" "${EPOCH_CUTOFF=0.80}" "${SPLIT:=900,50,50}"
: "${TRAIN_ITERS=$MAX_STEPS}" "${LR_DECAY_ITERS=$MAX_STEPS}" "${LR_WARMUP_ITERS=$((MAX_STEPS / 500))}"
: "${MIN_LR:=6e-6}" "${RECOMPUTE:=selective}" "${SAVE_INTERVAL:=500}" "${EVAL_INTERVAL:=2000}" "${EVAL_ITERS:=50}"
# shellcheck source=/dev/null
if [ -n "$RUN_SH" ]; then . "$RUN_SH"; fi
exec sh "$(dirname "$0")/submit" "$@"
