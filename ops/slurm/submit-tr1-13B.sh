#!/bin/sh
# submit-tr1-13B.sh - submit the 13B model of the GPT-2 family in fp16, on 16 nodes of 4 GPUs
#
#   RUN=/scratch/tr1 DATA_PATH=/data/oscar_text_document VOCAB_FILE=gpt2-vocab.json MERGE_FILE=gpt2-merges.txt \
#       sh submit-tr1-13B.sh
# The jobs have 20 hours. A batch of 16 samples suffices for 8 replicas on 16 nodes. The original run used one script
# for each of its rounds, which saved at different intervals; SAVE_SCHEDULE holds all of these intervals.
set -a
: "${NODES:=16}" "${SPARES=2}" "${TASKS_PER_NODE:=4}" "${JOB_NAME:=tr1-13B}"
: "${TIME:=20:00:00}" "${ARRAY=1-10%1}" "${EXIT_DURATION_MINS=1190}"
: "${NLAYERS:=40}" "${NHIDDEN:=5120}" "${NHEADS:=32}" "${SEQ_LEN:=2048}"
: "${POSITION:=absolute}" "${EMBED_LAYERNORM:=0}" "${DTYPE:=fp16}" "${INITIAL_LOSS_SCALE=4096}"
: "${TOKENIZER_TYPE:=GPT2BPETokenizer}" "${EPOCH_CUTOFF=0.80}"
: "${TP:=2}" "${PP:=4}" "${MBS:=1}" "${GBS:=1024}" "${RAMPUP=16 16 5_000_000}" "${RECOMPUTE:=full}"
: "${PP_PARTITION:=type:transformer}" "${MIN_NODES:=2}"
: "${TRAIN_SAMPLES=300_000_000}" "${LR:=1e-4}" "${MIN_LR:=1e-5}"
: "${LR_DECAY_SAMPLES=126_953_125}" "${LR_WARMUP_SAMPLES=216_320}"
: "${ADAM_BETA1:=0.9}" "${ADAM_BETA2:=0.999}" "${WEIGHT_DECAY:=0.1}" "${CLIP_GRAD:=1.0}" "${SEED:=42}"
: "${EVAL_INTERVAL:=1000}" "${EVAL_ITERS:=5}" "${LOG_INTERVAL:=10}" "${SPLIT:=949,50,1}"
: "${SAVE_INTERVAL=}" "${SAVE_SCHEDULE=1-100:10,101-1000:18,1001-:1500}"
exec sh "$(dirname "$0")/submit" "$@"
