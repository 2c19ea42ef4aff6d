#!/bin/sh
# bench_train_cpu.sh - train beside PyTorch on the same CPU: tokens a second, processor time a step, memory
#
# The same BLOOM (ALiBi, embedding LayerNorm, tied head), batch, threads and optimizer, fp32 and
# bf16, ROUNDS (3) interleaved rounds, medians. PYTHON must have torch, else ours runs alone.
# Processor time is what tells on a machine that has other work to do; of ours it is the difference of a long run and
# one of two iterations.
# SIZES="hidden,layers,heads,vocab,seq,batch ..." THREADS (all cores) STEPS (8)
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
sizes=${SIZES:-128,2,4,4096,128,2 256,4,8,8192,256,4 512,6,8,8192,256,4} threads=${THREADS:-$(nproc)} steps=${STEPS:-8}
rounds=${ROUNDS:-3}
. tests/lib/python.sh
python=$(python_with torch)
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
cp tests/data/text/text_document.bin tests/data/text/text_document.idx "$work"

train_for() {   # ITERATIONS: a log, and a line of times
    # shellcheck disable=SC2086
    "$BENCH/measure" "$work/times" "$BIN/train" $flag --num-layers "$layers" --hidden-size "$hidden" \
        --num-attention-heads "$heads" --seq-length "$seq" --max-position-embeddings "$seq" \
        --position-embedding-type alibi --embed-layernorm --vocab-size 257 --pad-vocab-size-to "$vocab" \
        --micro-batch-size "$batch" --global-batch-size "$batch" --train-iters "$1" --lr 1e-3 \
        --lr-decay-style constant --clip-grad 1.0 --weight-decay 0.1 --adam-beta2 0.95 --attention-dropout 0 \
        --hidden-dropout 0 --eval-iters 0 --split 100,0,0 --data-path "$work/text_document" --log-interval 1 \
        --threads "$threads" >"$work/log"
}

ours() {    # DTYPE: "tokens/s bytes CPU-seconds" of one run
    [ "$1" = bf16 ] && flag=--bf16 || flag=
    : >"$work/times"
    train_for 2
    train_for $((steps + 2))
    samples_per_s "$work/log" 3 | median | awk -v s="$seq" '{ printf "%.1f ", s * $1 }'
    awk -v n="$steps" '{ cpu[NR] = $2 + $3; bytes = $4 } END { print bytes, (cpu[2] - cpu[1]) / n }' "$work/times"
}

peer() {    # DTYPE
    "$python" tests/bench/peers/torch_cpu.py --hidden "$hidden" --layers "$layers" --heads "$heads" --vocab "$vocab" \
        --seq "$seq" --batch "$batch" --threads "$threads" --steps "$steps" --dtype "$1" 2>/dev/null >"$work/said"
    sed 's/.*"tokens_per_s": \([0-9.]*\),.*"cpu_s": \([0-9.]*\),.*"max_rss_bytes": \([0-9]*\).*/\1 \3 \2/' "$work/said"
}

for size in $sizes; do
    IFS=, read -r hidden layers heads vocab seq batch <<EOS
$size
EOS
    for dtype in fp32 bf16; do
        : >"$work/ours"; : >"$work/peer"
        for round in $(seq "$rounds"); do
            ours $dtype >>"$work/ours"
            [ -z "$python" ] || peer $dtype >>"$work/peer"
        done
        torch=$(sed -n 's/.*"peer": "\([^"]*\)".*/\1/p' "$work/said" 2>/dev/null || true)
        awk -v size="$size" -v dtype=$dtype -v threads="$threads" -v torch="$torch" "$awk_median"'
            { w = FILENAME; sub(/.*\//, "", w); rate[w, ++n[w]] = $1; cpu[w, n[w]] = $3; if ($2 > rss[w]) rss[w] = $2 }
            END {
                ot = median(rate, "ours"); ou = median(cpu, "ours"); om = rss["ours"]
                printf "%s %s, %d threads: ours %.0f tokens/s, %.4f CPU-s a step, %.0f MB", size, dtype, threads, ot, ou, om * 1e-6
                if (n["peer"]) {
                    pt = median(rate, "peer"); pu = median(cpu, "peer"); pm = rss["peer"]
                    printf "; %s %.0f tokens/s, %.4f CPU-s, %.0f MB; %.2f times as fast, %.2f by CPU time, %.2f of the memory",
                           torch, pt, pu, pm * 1e-6, ot / pt, pu / ou, om / pm
                }
                printf "\n{\"bench\": \"train_cpu\", \"size\": \"%s\", \"dtype\": \"%s\", \"threads\": %d, \"rounds\": %d, \"tokens_per_s\": %.1f, \"cpu_s\": %.5f, \"max_rss_bytes\": %.0f", size, dtype, threads, n["ours"], ot, ou, om
                if (n["peer"]) printf ", \"peer\": \"%s\", \"peer_tokens_per_s\": %.1f, \"peer_cpu_s\": %.5f, \"peer_max_rss_bytes\": %.0f, \"times_peer\": %.3f, \"times_peer_cpu\": %.3f", torch, pt, pu, pm, ot / pt, pu / ou
                printf "}\n"
            }' "$work/ours" "$work/peer"
    done
done
