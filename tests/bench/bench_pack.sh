#!/bin/sh
# bench_pack.sh - ckpt-backup copy --pack beside zstd -1 and restic: ratio, and bytes a second of one core
#
# On the same checkpoint, a trained one: random weights as they are initialised have exponents and zeros that no
# training leaves. CKPT names a tag folder; else a BLOOM of SIZE (hidden,layers,heads,vocab: 256,4,8,8192) is trained
# for STEPS (200) first. In each of ROUNDS (3) rounds, one after the other, in DIR (a folder in memory):
#   ours    copy --pack, which unpacks once more before it counts; verify, which unpacks; packing alone is the difference
#   zstd    zstd -1 of all the files in a row, and zstd -d
#   restic  init and backup (its own compression), and check --read-data, where restic is installed
# Rates are raw bytes by CPU seconds, user and system: what one core does. Prints text and a JSON line.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size=${SIZE:-256,4,8,8192} steps=${STEPS:-200} rounds=${ROUNDS:-3} threads=${THREADS:-$(nproc)}
[ -n "${DIR:-}" ] || { [ -w /dev/shm ] && DIR=/dev/shm; } || DIR=${TMPDIR:-/tmp}
work=$(mktemp -d "$DIR/shardkit-pack-XXXXXX")
trap 'rm -rf "$work"' EXIT

train() {
    IFS=, read -r hidden layers heads vocab <<END
$size
END
    cp tests/data/text/owt_slice.bin tests/data/text/owt_slice.idx "$work"
    "$BIN/train" --bf16 --num-layers "$layers" --hidden-size "$hidden" --num-attention-heads "$heads" \
        --seq-length 128 --max-position-embeddings 128 --position-embedding-type alibi --embed-layernorm \
        --vocab-size "$vocab" --pad-vocab-size-to "$vocab" --micro-batch-size 4 --global-batch-size 4 \
        --train-iters "$steps" --lr 1e-3 --lr-warmup-iters $((steps / 10)) --lr-decay-style cosine --clip-grad 1.0 \
        --weight-decay 0.1 --adam-beta2 0.95 --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 \
        --split 100,0,0 --data-path "$work/owt_slice" --threads "$threads" --save "$work/run" \
        --save-interval "$steps" >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
    ckpt=$work/run/global_step$steps what="BLOOM $size after $steps steps"
}
ckpt=${CKPT:-} what=${CKPT:-}
[ -n "$ckpt" ] || train

cd "$work"
bytes=$(find "$ckpt" -type f -exec cat {} + | wc -c)
export RESTIC_PASSWORD=bench
restic=$(command -v restic || true)
for round in $(seq "$rounds"); do
    rm -rf place restic
    "$BENCH/measure" copy.times "$BIN/ckpt-backup" copy --pack -q --threads "$threads" "$ckpt" place
    "$BENCH/measure" verify.times "$BIN/ckpt-backup" verify -q --threads "$threads" place >/dev/null
    "$BENCH/measure" zstd.times sh -c 'find "$1" -type f -exec cat {} + | zstd -1 -T1 -q -f -o all.zst' - "$ckpt"
    "$BENCH/measure" unzstd.times zstd -d -q -f all.zst -o /dev/null
    [ -z "$restic" ] && continue
    restic -q --no-cache init --repo restic >/dev/null
    "$BENCH/measure" restic.times restic -q --no-cache --repo restic backup "$ckpt"
    "$BENCH/measure" check.times restic -q --no-cache --repo restic check --read-data >/dev/null
done
touch restic.times check.times
ours=$(cat place/*.pack | wc -c) zstd=$(wc -c <all.zst) other=0
[ -z "$restic" ] || other=$(find restic -type f -exec cat {} + | wc -c)
out=$work/out
"$BIN/ckpt-backup" restore -q place "$(basename "$ckpt").pack" "$out"
diff -r "$ckpt" "$out" && echo "restored: every byte is the same"

awk -v bytes="$bytes" -v ours="$ours" -v zstd="$zstd" -v other="$other" -v what="$what" -v threads="$threads" "$awk_times"'
    function rate(s) { return s > 0 ? bytes * 1e-9 / s : 0 }
    function row(name, size, pack, back) {
        printf "  %-28s %8.1f MB  %5.2f x  %6.2f GB/s  %6.2f GB/s\n", name, size * 1e-6, bytes / size, rate(pack), rate(back)
    }
    END {
        copy = median(cpu, "copy"); verify = median(cpu, "verify")
        printf "%s: %.1f MB; rates of one core, packing and unpacking, medians of %d\n", what, bytes * 1e-6, n["copy"]
        row("ours", ours, copy - verify, verify)
        row("ours, unpacked once more", ours, copy, verify)
        row("zstd -1", zstd, median(cpu, "zstd"), median(cpu, "unzstd"))
        if (other) row("restic", other, median(cpu, "restic"), median(cpu, "check"))
        else print "  restic is not installed: not compared"
        printf "{\"bench\": \"pack\", \"bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", bytes, threads, n["copy"]
        printf "\"packed_bytes\": %.0f, \"zstd_bytes\": %.0f, \"restic_bytes\": %s, ", ours, zstd, other ? other : "null"
        printf "\"pack_cpu_s\": %.3f, \"copy_cpu_s\": %.3f, \"unpack_cpu_s\": %.3f, ", copy - verify, copy, verify
        printf "\"zstd_cpu_s\": %.3f, \"unzstd_cpu_s\": %.3f}\n", median(cpu, "zstd"), median(cpu, "unzstd")
    }' copy.times verify.times zstd.times unzstd.times restic.times check.times
