#!/bin/sh
# bench_train_cpu.sh - train beside PyTorch on the same CPU: tokens a second and memory
#
# The same BLOOM (ALiBi, embedding LayerNorm, tied head), batch, threads and optimizer, fp32 and
# bf16, ROUNDS (3) interleaved rounds, medians. PYTHON must have torch, else ours runs alone.
# SIZES="hidden,layers,heads,vocab,seq,batch ..." THREADS (all cores) STEPS (8)
set -eu
cd "$(dirname "$0")/../.."
sizes=${SIZES:-256,4,8,8192,256,4 512,6,8,8192,256,4} threads=${THREADS:-$(nproc)} steps=${STEPS:-8} rounds=${ROUNDS:-3}
BIN=${BIN:-$PWD/bin} measure=${TBIN:-$PWD/build/release/tests}/bench/measure
. tests/lib/python.sh
python=$(python_with torch)
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
cp tests/data/text/text_document.bin tests/data/text/text_document.idx "$work"

ours() {    # DTYPE: "tokens/s bytes" of one run
    [ "$1" = bf16 ] && flag=--bf16 || flag=
    # shellcheck disable=SC2086
    "$measure" "$work/times" "$BIN/train" $flag --num-layers "$layers" --hidden-size "$hidden" \
        --num-attention-heads "$heads" --seq-length "$seq" --max-position-embeddings "$seq" \
        --position-embedding-type alibi --embed-layernorm --vocab-size 257 --pad-vocab-size-to "$vocab" \
        --micro-batch-size "$batch" --global-batch-size "$batch" --train-iters $((steps + 2)) --lr 1e-3 \
        --lr-decay-style constant --clip-grad 1.0 --weight-decay 0.1 --adam-beta2 0.95 --attention-dropout 0 \
        --hidden-dropout 0 --eval-iters 0 --split 100,0,0 --data-path "$work/text_document" --log-interval 1 \
        --threads "$threads" >"$work/log"
    sed -n 's/.*samples per second: \([0-9.]*\) .*/\1/p' "$work/log" | tail -n +3 | sort -g |
        awk -v s="$seq" '{ x[NR] = $1 } END { printf "%.1f ", s * (NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2) }'
    tail -n 1 "$work/times" | cut -d' ' -f4
}

peer() {    # DTYPE
    "$python" tests/bench/peers/torch_cpu.py --hidden "$hidden" --layers "$layers" --heads "$heads" --vocab "$vocab" \
        --seq "$seq" --batch "$batch" --threads "$threads" --steps "$steps" --dtype "$1" 2>/dev/null |
        sed 's/.*"tokens_per_s": \([0-9.]*\),.*"max_rss_bytes": \([0-9]*\).*/\1 \2/'
}

for size in $sizes; do
    IFS=, read -r hidden layers heads vocab seq batch <<EOF
$size
EOF
    for dtype in fp32 bf16; do
        : >"$work/ours"; : >"$work/peer"
        for round in $(seq "$rounds"); do
            ours $dtype >>"$work/ours"
            [ -z "$python" ] || peer $dtype >>"$work/peer"
        done
        awk -v size="$size" -v dtype=$dtype -v threads="$threads" '
            function median(a, n,   i, j, t) {
                for (i = 2; i <= n; i++)
                    for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
                return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
            }
            FILENAME ~ /ours$/ { o[++no] = $1; if ($2 > om) om = $2 }
            FILENAME ~ /peer$/ { p[++np] = $1; if ($2 > pm) pm = $2 }
            END {
                ot = median(o, no); pt = np ? median(p, np) : 0
                printf "%s %s, %d threads: ours %.0f tokens/s, %.0f MB", size, dtype, threads, ot, om * 1e-6
                if (np) printf "; torch %.0f tokens/s, %.0f MB; %.2f times as fast, %.2f of the memory", pt, pm * 1e-6, ot / pt, om / pm
                printf "\n{\"bench\": \"train_cpu\", \"size\": \"%s\", \"dtype\": \"%s\", \"threads\": %d, \"rounds\": %d, \"tokens_per_s\": %.1f, \"max_rss_bytes\": %.0f", size, dtype, threads, no, ot, om
                if (np) printf ", \"peer_tokens_per_s\": %.1f, \"peer_max_rss_bytes\": %.0f, \"times_peer\": %.3f", pt, pm, ot / pt
                printf "}\n"
            }' "$work/ours" "$work/peer"
    done
done
