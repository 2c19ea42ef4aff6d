#!/bin/sh
# submit-tr11-176B.sh - submit BLOOM-176B as it was trained, on 48 nodes of 8 GPUs; NODES=24 as in its last weeks
#
#   RUN=/scratch/tr11 TOKENIZER=bigscience/tokenizer TRAIN_SPLITS=train-splits.txt VALID_SPLITS=valid-splits.txt \
#       sh submit-tr11-176B.sh
# The script submits ten jobs of 100 hours that run one after the other. The next ten wait for them with
# DEPENDENCY=tr11-176B.
set -a
: "${NODES:=48}" "${SPARES=4}" "${TASKS_PER_NODE:=8}" "${JOB_NAME:=tr11-176B}"
: "${TIME:=100:00:00}" "${ARRAY=1-10%1}" "${EXIT_DURATION_MINS=5990}"
: "${NLAYERS:=70}" "${NHIDDEN:=14336}" "${NHEADS:=112}" "${SEQ_LEN:=2048}"
: "${POSITION:=alibi}" "${EMBED_LAYERNORM:=1}" "${DTYPE:=bf16}" "${INIT_STD:=0.0048}" "${PAD_VOCAB_TO=250880}"
# With half of the nodes the run has half of the replicas, 4 instead of 8. Everything else is the same.
: "${TP:=4}" "${PP:=12}" "${MBS:=2}" "${GBS:=2048}" "${RAMPUP=192 16 9_765_625}" "${RECOMPUTE:=full}"
# A replica needs 6 nodes, so the run cannot use fewer.
: "${MIN_NODES:=6}"
: "${TRAIN_SAMPLES=220_000_000}" "${LR:=6e-5}" "${MIN_LR:=6e-6}"
: "${LR_DECAY_SAMPLES=200_000_000}" "${LR_WARMUP_SAMPLES=183_105}"
: "${ADAM_BETA1:=0.9}" "${ADAM_BETA2:=0.95}" "${WEIGHT_DECAY:=0.1}" "${CLIP_GRAD:=1.0}" "${SEED:=42}"
: "${EVAL_INTERVAL:=1000}" "${EVAL_ITERS:=1}" "${SAVE_INTERVAL:=100}"
exec sh "$(dirname "$0")/submit" "$@"
