#!/bin/sh
# submit-1B.sh - submit a BLOOM of 1.7 billion parameters on 8 nodes of 8 GPUs; it also fits on one node
#
#   RUN=/scratch/1b TOKENIZER=bigscience/tokenizer DATA_PATH=/data/text_document sh submit-1B.sh
set -a
: "${NODES:=8}" "${SPARES=1}" "${TASKS_PER_NODE:=8}" "${JOB_NAME:=bloom-1B}" "${TIME:=20:00:00}" "${ARRAY=1-5%1}"
: "${NLAYERS:=24}" "${NHIDDEN:=2048}" "${NHEADS:=16}" "${SEQ_LEN:=2048}"
: "${POSITION:=alibi}" "${EMBED_LAYERNORM:=1}" "${DTYPE:=bf16}" "${PAD_VOCAB_TO=250880}"
: "${TP:=1}" "${PP:=1}" "${MBS:=1}" "${GBS:=512}" "${RAMPUP=192 64 9_765_625}" "${RECOMPUTE:=selective}"
: "${TRAIN_SAMPLES=220_000_000}" "${LR:=2e-4}" "${MIN_LR:=1e-5}"
: "${LR_DECAY_SAMPLES=200_000_000}" "${LR_WARMUP_SAMPLES=183_105}" "${SAVE_INTERVAL:=500}"
exec sh "$(dirname "$0")/submit" "$@"
