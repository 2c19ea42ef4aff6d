#!/bin/sh
# roofline.sh ROW... - where each millisecond of a step goes, on one GPU, beside each kernel's limit
#
# Rows: bloom-1b7 bloom-560m (default: both), the shapes of bench_train_gpu.sh; STEPS (12) steps after 4. FOLDER
# (build/roofline) gets ROW.kernels (a line a kernel), ROW.csv (every launch) and ROW.md (classes and limits).
# Needs libcupti: where CUPTI says, else where CUDA or PYTHON's packages have it.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
out=${FOLDER:-build/roofline} python=${PYTHON:-python3}
steps=${STEPS:-12} inject=$(realpath "${KERNEL_TIMES:-${BENCH%/bench}/tools/libkernel_times.so}")
[ $# -gt 0 ] || set -- bloom-1b7 bloom-560m
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-roofline-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
packages=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
for folder in "${CUPTI:-}" /usr/local/cuda*/extras/CUPTI/lib64 /usr/local/cuda*/lib64 "$packages"/*/lib; do
    if ls "$folder"/libcupti.so.* >/dev/null 2>&1; then
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
        break
    fi
done
missing=$(ldd "$inject" | grep "not found" || true)
[ -z "$missing" ] || { echo "roofline.sh: $missing" >&2; exit 1; }

for row in "$@"; do
    V=250880
    case $row in
    bloom-1b7) h=2048 L=24 n=16 b=8 ;;
    bloom-560m) h=1024 L=24 n=16 b=8 ;;
    *) echo "$row: no such row" >&2; exit 2 ;;
    esac
    "$BENCH/mktokens" "$work/data" $((2049 * b * (steps + 8))) $V
    # shellcheck disable=SC2086
    CUDA_INJECTION64_PATH=$inject KERNEL_TIMES_SKIP=4 KERNEL_TIMES_OUT=$out/$row.kernels KERNEL_TIMES_TRACE=$out/$row.csv \
        "$BIN/train" --bf16 --backend cuda --num-layers $L --hidden-size $h --num-attention-heads $n --seq-length 2048 \
        --max-position-embeddings 2048 --position-embedding-type alibi --embed-layernorm --vocab-size $V \
        --pad-vocab-size-to $V --micro-batch-size $b --global-batch-size $b --train-iters $((steps + 5)) --lr 1e-4 \
        --lr-decay-style constant --clip-grad 1.0 --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 \
        --split 100,0,0 --data-path "$work/data" --log-interval 1 --grad-reduce-dtype fp32 --init-method-std 0.01 \
        ${TRAIN_OPTIONS:-} >"$work/log" 2>&1 || { tail -n 3 "$work/log" >&2; exit 1; }
    grep "kernel_times:" "$work/log" >&2 || true
    "$python" tests/bench/peers/roofline.py "$out/$row.csv" --hidden $h --layers $L --heads $n --vocab $V --batch $b >"$out/$row.md"
    echo "$row, samples a second with the recording: $(samples_per_s "$work/log" 5 | median)"
    cat "$out/$row.md"
    tail -n 1 "$out/$row.kernels"
done
