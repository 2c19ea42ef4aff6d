#!/bin/sh
# bench_train_gpus.sh ROW... - BLOOM-7b1 on several GPUs of one host, and what that costs beside one GPU
#
# Rows (GPUs; micro-batch x micro-batches a step on each pipeline):
#   dp4 (4; 4 x 8)  tp2dp2 (4; 4 x 8)  pp2dp2 (4; 2 x 16)  tp2pp2 (4; 4 x 8)  tp4 (4; 4 x 8)
#   dp2 tp2 pp2 (2)                   the same on two GPUs; half the blocks, since 7b1 does not fit
#   one (1; 1 x 32)                   the whole 7b1 on one GPU: what fits with micro-batch 1
#   one-half (1; 4 x 8), dp4-half              half the blocks (L 15): equal work on each GPU
# Sequence 2048, bf16, AdamW with fp32 masters, fp32 gradient reduction, random tokens, no dropout, no recomputation.
# TFLOP/s a GPU = 72 tokens L h^2 (1 + s/(6h) + V/(12 L h)) / time / GPUs, medians over STEPS (6) steps after 2.
#
# Each row adds a JSON line to OUT (build/bench-gpus.jsonl); at the end all of its rows are shown, the last of
# each, with efficiency: rate a GPU over that of one GPU of the same host (one-half for halves, else one).
# TRAIN_OPTIONS are further options of train (--sequence-parallel, --pp-partition-method cost ...); LABEL
# is added to the row's name then. ROW_LIMIT (100) seconds a row. `bench_train_gpus.sh show` only shows.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
out=${OUT:-build/bench-gpus.jsonl} steps=${STEPS:-6}
s=2048 V=${VOCAB:-250880} h=${HIDDEN:-4096} n=${HEADS:-32} blocks=${LAYERS:-30}
[ $# -gt 0 ] || set -- one one-half dp4-half dp4 tp2dp2 pp2dp2 tp2pp2 tp4
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"
# NVLink multicast can put a host's GPUs out of service when a job dies in the middle.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"

# launch: train on all ranks of the row
launch() {
    if [ "$gpus" -gt 1 ]; then
        set -- mpirun --allow-run-as-root --bind-to none -x LD_LIBRARY_PATH -n "$gpus" "$BIN/train" "$@"
    else
        set -- "$BIN/train" "$@"
    fi
    timeout -k 5 "${ROW_LIMIT:-100}" "$@"
}

row() {
    dp=$((gpus / tp / pp)) L=$blocks
    case $1 in *-half | dp2 | tp2 | pp2) L=$((blocks / 2)) ;; esac
    [ -e "$work/data.bin" ] || "$BENCH/mktokens" "$work/data" $((2049 * 128 * (steps + 4))) "$V" || exit 1
    : >"$work/memory"
    # shellcheck disable=SC2086
    launch --bf16 --backend "${BACKEND:-cuda}" --num-layers $L --hidden-size "$h" --num-attention-heads "$n" --seq-length $s \
        --max-position-embeddings $s --position-embedding-type alibi --embed-layernorm --vocab-size "$V" \
        --pad-vocab-size-to "$V" --tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp \
        --micro-batch-size $b --global-batch-size $((b * M * dp)) --train-iters $((steps + 2)) --lr 1e-4 \
        --lr-decay-style constant --clip-grad 1.0 --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 \
        --split 100,0,0 --data-path "$work/data" --log-interval 1 --grad-reduce-dtype fp32 --init-method-std 0.01 \
        ${TRAIN_OPTIONS:-} >"$work/log" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | sort -n | tail -n 1 >>"$work/memory"
        sleep 0.5
    done
    if ! wait $pid; then
        echo "$1: failed: $({ grep -E '^train: |failed:|cannot|out of|[Ee]rror' "$work/log" || tail -n 3 "$work/log"; } | head -n 3 | cut -c 1-300)" >&2
        return 1
    fi
    samples_per_s "$work/log" 3 | awk -v row="$1${LABEL:+-$LABEL}" -v gpus=$gpus \
        -v tp=$tp -v pp=$pp -v dp=$dp -v b=$b -v M=$M -v h="$h" -v L=$L -v V="$V" -v s=$s \
        -v memory="$(sort -n "$work/memory" | tail -n 1)" -v options="${TRAIN_OPTIONS:-}" "$awk_median"'
        { rate["ours", NR] = $1 }
        END {
            tokens = s * median(rate, "ours")
            flops = 72 * tokens * L * h * h * (1 + s / (6 * h) + V / (12 * L * h)) * 1e-12 / gpus
            printf "{\"bench\": \"train_gpus\", \"row\": \"%s\", \"gpus\": %d, \"tp\": %d, \"pp\": %d, \"dp\": %d, \"layers\": %d, \"micro_batch\": %d, \"micro_batches\": %d, \"steps\": %d, \"tokens_per_s\": %.0f, \"tflops_per_gpu\": %.1f, \"memory_gib\": %.1f, \"options\": \"%s\"}\n",
                row, gpus, tp, pp, dp, L, b, M, NR, tokens, flops, memory / 1024, options
        }' | tee -a "$out"
}

show() {
    awk '
        function get(key,    v) {
            v = $0
            if (!sub(".*\"" key "\": \"?", "", v))
                return ""
            sub(/[",}].*/, "", v)
            return v
        }
        {
            name = get("row")
            if (!(name in rate))
                order[++n] = name
            rate[name] = get("tflops_per_gpu"); tokens[name] = get("tokens_per_s"); memory[name] = get("memory_gib")
            L[name] = get("layers"); shape[name] = get("micro_batch") " x " get("micro_batches"); options[name] = get("options")
            if (name ~ /^one/)
                base[L[name]] = rate[name]
        }
        END {
            printf "%-18s %3s %8s %16s %10s %6s  %s\n", "row", "L", "batch", "TFLOP/s a GPU", "tokens/s", "GiB", "of one GPU"
            for (i = 1; i <= n; i++) {
                name = order[i]
                share = base[L[name]] + 0 > 0 ? sprintf("%.3f", rate[name] / base[L[name]]) : ""
                printf "%-18s %3d %8s %16.1f %10d %6.1f  %-6s %s\n", name, L[name], shape[name], rate[name], tokens[name], memory[name],
                    share, options[name]
            }
        }' "$out"
}

failed=0
for row in "$@"; do
    tp=1 pp=1 b=4 M=8
    case $row in
    one) gpus=1 b=1 M=32 ;;
    one-half) gpus=1 ;;
    dp4 | dp4-half) gpus=4 ;;
    tp2dp2) gpus=4 tp=2 ;;
    pp2dp2) gpus=4 pp=2 b=2 M=16 ;;
    tp2pp2) gpus=4 tp=2 pp=2 ;;
    tp4) gpus=4 tp=4 ;;
    dp2) gpus=2 ;;
    tp2) gpus=2 tp=2 ;;
    pp2) gpus=2 pp=2 b=2 M=16 ;;
    show) continue ;;
    *) echo "$row: no such row" >&2; exit 2 ;;
    esac
    b=${MICRO_BATCH:-$b} M=${MICRO_BATCHES:-$M}
    row "$row" || failed=1
done
[ ! -s "$out" ] || show
exit $failed
