#!/bin/sh
# bench_train_gpu.sh ROW... - train on one GPU beside torch.compile, the same shape, in the same run
#
# Rows: bloom-1b7 bloom-560m gpt-1b3 gpt-350m h4096 (default: all). Sequence 2048, DTYPE (bf16; fp16: with a loss
# scale, torch's with GradScaler), AdamW with
# fp32 masters, random tokens, no dropout, no recomputation, no gradient accumulation.
# TFLOP/s = 72 tokens L h^2 (1 + s/(6h) + V/(12 L h)) / time, medians over STEPS (12) steps after 3.
# A row is ours, the peer (PYTHON with torch, PEER=0 leaves it out), ours again: the better of ours is
# not taken, the median over both is. JSON lines are added to OUT (build/bench-gpu.jsonl).
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
out=${OUT:-build/bench-gpu.jsonl} steps=${STEPS:-12}
python=${PYTHON:-python3} dtype=${DTYPE:-bf16}
case $dtype in
bf16) scale=--bf16 reduce="--grad-reduce-dtype fp32" ;;
fp16) scale='--fp16 --initial-loss-scale 65536' reduce= ;;
*) echo "DTYPE=$dtype: bf16 or fp16" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- bloom-1b7 bloom-560m gpt-1b3 gpt-350m h4096
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"

# Samples a second of each step, and the most memory seen, of one run of ours.
ours() {
    : >"$work/log"
    "$BIN/train" $scale --backend cuda --num-layers "$L" --hidden-size "$h" --num-attention-heads "$n" \
        --seq-length 2048 --max-position-embeddings 2048 $position --vocab-size "$V" --pad-vocab-size-to "$V" \
        --micro-batch-size "$b" --global-batch-size "$b" --train-iters $((steps + 3)) --lr 1e-4 \
        --lr-decay-style constant --clip-grad 1.0 --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 \
        --split 100,0,0 --data-path "$work/data" --log-interval 1 $reduce \
        --init-method-std 0.01 >"$work/log" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        nvidia-smi -i "${CUDA_VISIBLE_DEVICES:-0}" --query-gpu=memory.used --format=csv,noheader,nounits >>"$work/memory"
        sleep 0.3
    done
    wait $pid || { tail -n 3 "$work/log"; exit 1; }
    samples_per_s "$work/log" 4 >>"$work/rates"
}

for row in "$@"; do
    position="--position-embedding-type alibi --embed-layernorm" arch=bloom V=250880
    case $row in
    bloom-1b7) h=2048 L=24 n=16 b=8 ;;
    bloom-560m) h=1024 L=24 n=16 b=8 ;;
    gpt-1b3) h=2048 L=24 n=16 b=16 V=50304 arch=gpt position="--position-embedding-type absolute" ;;
    gpt-350m) h=1024 L=24 n=16 b=16 V=50304 arch=gpt position="--position-embedding-type absolute" ;;
    h4096) h=4096 L=12 n=32 b=4 ;;
    *) echo "$row: no such row" >&2; exit 2 ;;
    esac
    "$BENCH/mktokens" "$work/data" $((2049 * b * (steps + 4))) $V
    : >"$work/rates"; : >"$work/memory"; : >"$work/peer"
    ours
    if [ "${PEER:-1}" = 1 ]; then
        "$python" tests/bench/peers/torch_gpu.py --arch $arch --hidden $h --layers $L --heads $n --vocab $V --mbs $b --dtype $dtype \
            2>/dev/null | tail -n 1 >"$work/peer"
        ours
    fi
    awk -v row="$row" -v dtype=$dtype -v h=$h -v L=$L -v V=$V -v b=$b -v memory="$(sort -n "$work/memory" | tail -n 1)" \
        -v peer="$(cat "$work/peer")" "$awk_median"'
        { rate["ours", NR] = $1 }
        END {
            tokens = 2048 * median(rate, "ours")
            flops = 72 * tokens * L * h * h * (1 + 2048 / (6 * h) + V / (12 * L * h)) * 1e-12
            printf "%-11s %s ours %7.0f tokens/s %6.1f TFLOP/s %6.1f GiB", row, dtype, tokens, flops, memory / 1024
            their = peer
            if (sub(/.*"(model_)?tflops[a-z_]*": */, "", their)) {
                sub(/[,}].*/, "", their)
                printf "; torch.compile %6.1f TFLOP/s: %.3f times", their, flops / their
            }
            printf "\n"
            printf "{\"bench\": \"train_gpu\", \"row\": \"%s\", \"dtype\": \"%s\", \"steps\": %d, \"tokens_per_s\": %.0f, \"tflops\": %.1f, \"memory_gib\": %.1f, \"peer\": %s}\n", row, dtype, NR, tokens, flops, memory / 1024, peer ? peer : "null" >>"'"$out"'"
        }' "$work/rates"
done
