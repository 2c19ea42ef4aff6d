#!/bin/sh
# fresh.sh - one seed gives one model in every topology
#
# The runs train 50 iterations from scratch with dropout. They are equal bit for bit over pipeline divisions and
# recomputation. Over tensor and data degrees the losses are within 5e-4 in bf16 and 1e-5 in fp32. The seed was chosen
# without an iteration of five times the usual norm, because there any rounding has three times the effect. QUICK=1
# runs bf16 only.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
MODEL="--num-layers 4 --hidden-size 48 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --position-embedding-type alibi --embed-layernorm --vocab-size 257 --micro-batch-size 1 --global-batch-size 8
    --train-samples 400 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-samples 40 --clip-grad 1.0
    --seed 7 --eval-interval 25 --eval-iters 1 --split 949,50,1 --log-interval 1 --threads 1
    --pad-vocab-size-to 512 --attention-dropout 0.1 --hidden-dropout 0.1"

# run NAME TP PP DP OPTIONS...
run() {
    name=$1 tp=$2 pp=$3 dp=$4; shift 4
    # shellcheck disable=SC2086
    launch $((tp * pp * dp)) $MODEL --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" \
        --data-path "$DATA_DIR/text_document" "$@" >"$W/$name" 2>&1 || { fail "$name runs"; tail -n 3 "$W/$name"; }
    series "$W/$name" >"$W/$name.series"
    [ "$(grep -c . "$W/$name.series")" -ge 52 ] || fail "$name: too few lines"
}

# near A B TOLERANCE: compare the losses of each iteration.
near() {
    paste "$W/$1.series" "$W/$2.series" | awk -v tol="$3" '
        $1 != "valid" { d = $2 - $5; if (d < 0) d = -d; if (!(d <= tol)) { print; bad = 1 } } END { exit bad }'
}

run bf16 1 1 1 --bf16 --save "$W/one" --save-interval 100
run bf16-pp4 1 4 1 --bf16 --save "$W/four" --save-interval 100
run bf16-full 1 2 1 --bf16 --checkpoint-activations
run bf16-selective 1 1 1 --bf16 --recompute-granularity selective
for other in pp4 full selective; do
    check "bf16: one stage and $other, bit for bit" cmp "$W/bf16.series" "$W/bf16-$other.series"
done
check "bf16: checkpoints of one stage and four, bit for bit" ckpt-inspect diff --tensors-only "$W/one" "$W/four"
check "a checkpoint from scratch is sound" ckpt-inspect verify --strict "$W/four"
run bf16-tp2 2 1 1 --bf16
run bf16-tp2pp2 2 2 1 --bf16
run bf16-dp2 1 1 2 --bf16
check "bf16: TP 2 with one and two stages, bit for bit" cmp "$W/bf16-tp2.series" "$W/bf16-tp2pp2.series"
check "bf16: TP 2" near bf16 bf16-tp2 5e-4
check "bf16: DP 2" near bf16 bf16-dp2 5e-4
# Work of data parallelism during the passes: the same bits, also in the intermediate checkpoint.
run bf16-behind 1 2 2 --bf16 --save "$W/behind" --save-interval 25 --overlap-grad-reduce False --overlap-param-gather False
run bf16-beside 1 2 2 --bf16 --save "$W/beside" --save-interval 25 --overlap-grad-reduce --overlap-param-gather
check "bf16: with and without overlap, bit for bit" cmp "$W/bf16-behind.series" "$W/bf16-beside.series"
check "bf16: checkpoints with and without overlap, bit for bit" ckpt-inspect diff --tensors-only "$W/behind/global_step25" "$W/beside/global_step25"
run bf16-sequence 2 2 1 --bf16 --micro-batch-size 2 --sequence-parallel --recompute-granularity full --save "$W/sequence" --save-interval 100
check "bf16: sequence parallelism" near bf16 bf16-sequence 5e-4
check "sequence parallelism: tensor ranks' copies agree" ckpt-inspect replicas "$W/sequence"

if ! quick; then
    run bf16-pp2 1 2 1 --bf16
    check "bf16: one stage and two, bit for bit" cmp "$W/bf16.series" "$W/bf16-pp2.series"
    # Two samples per micro-batch: tensor ranks work on one half while the sums of the other half are in transit.
    run bf16-tp2-halves 2 1 1 --bf16 --micro-batch-size 2
    check "bf16: TP 2, two samples a micro-batch" near bf16 bf16-tp2-halves 5e-4

    run fp32 1 1 1
    run fp32-pp2 1 2 1
    run fp32-tp4 4 1 1
    run fp32-sequence 4 1 1 --micro-batch-size 2 --sequence-parallel
    run fp32-selective 2 1 2 --micro-batch-size 2 --sequence-parallel --recompute-granularity selective
    run fp32-dp4 1 1 4
    run fp32-all 2 2 2
    check "fp32: one stage and two, bit for bit" cmp "$W/fp32.series" "$W/fp32-pp2.series"
    check "fp32: TP 4" near fp32 fp32-tp4 1e-5
    check "fp32: TP 4, sequence parallelism" near fp32 fp32-sequence 1e-5
    check "fp32: TP 2, DP 2, sequence parallelism, recomputation" near fp32 fp32-selective 1e-5
    check "fp32: DP 4" near fp32 fp32-dp4 1e-5
    check "fp32: TP 2, PP 2, DP 2" near fp32 fp32-all 1e-5
fi

# The same through sockets instead of MPI.
LAUNCH=sockets
run bf16-sockets 2 2 1 --bf16
check "bf16: MPI and sockets, bit for bit" cmp "$W/bf16-tp2.series" "$W/bf16-sockets.series"
first=$(awk 'NR == 1 { print $2 }' "$W/bf16.series") last=$(awk '$1 == 50 { print $2 }' "$W/bf16.series")
check "the loss falls: $first to $last" awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 1) }'
finish
