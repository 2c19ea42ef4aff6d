#!/bin/sh
# bench_save.sh [FOLDER...] - what a save costs a run, how fast it is written and loaded, beside fio (else dd) on the same disk
#
# FOLDERs (default: one in $TMPDIR) are on the disks to be measured; /dev/shm is memory. In each, with the same shape:
#   right   a save that training goes on beside has the bytes of one made by a stop at the same iteration; and so has
#           one that flows through a ring of RING (0.1) of its state
#   limit   fio writes as many bytes with as many processes, O_DIRECT where that works, synced; then reads them, uncached
#   cost    a run without saves, then the same with one each EVERY (25) of ITERS (50) iterations: stall as it is told, iterations
#           beside saves and without, seconds lost in all
#   load    the last one is loaded again, uncached, at the same topology and at another: rate, and seconds from the program's
#           start to the end of the first iteration
# On CPUs: RANKS (2) of one thread, data parallel, HIDDEN (512), LAYERS (8), SEQ (256), BATCH (2) a rank. BACKEND=cuda:
# BLOOM-1b7 (2048, 24, 2048, 8), RANKS GPUs. Each folder adds a JSON line to OUT (build/bench-save.jsonl). Status 1: wrong bytes.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
out=${OUT:-build/bench-save.jsonl}
ranks=${RANKS:-2} backend=${BACKEND:-cpu} iters=${ITERS:-50} every=${EVERY:-25}
if [ "$backend" = cuda ]; then
    : "${HIDDEN:=2048}" "${HEAD_DIM:=128}" "${LAYERS:=24}" "${SEQ:=2048}" "${BATCH:=8}" "${VOCAB:=250880}"
else
    : "${HIDDEN:=512}" "${LAYERS:=8}" "${SEQ:=256}" "${BATCH:=2}" "${VOCAB:=8192}"
fi
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
W=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-bench-XXXXXX")
folder=
trap 'rm -rf "$W" ${folder:+"$folder"}' EXIT
. tests/lib/train.sh
unset SHARDKIT_SAVE_WHEN_BUSY
[ $# -gt 0 ] || set -- "${TMPDIR:-/tmp}"
mkdir -p "$(dirname "$out")"
"$BENCH/mktokens" "$W/tokens" $(((SEQ + 1) * BATCH * ranks * (iters + 4))) "$VOCAB"

# run LOG RANKS OPTIONS...
run() {
    log=$1 n=$2; shift 2
    launch "$n" --bf16 --backend "$backend" --num-layers "$LAYERS" --hidden-size "$HIDDEN" --num-attention-heads $((HIDDEN / ${HEAD_DIM:-64})) \
        --seq-length "$SEQ" --max-position-embeddings "$SEQ" --position-embedding-type alibi --embed-layernorm \
        --vocab-size "$VOCAB" --pad-vocab-size-to "$VOCAB" --micro-batch-size "$BATCH" --global-batch-size $((BATCH * ranks)) \
        --lr 1e-4 --lr-decay-style constant --lr-decay-iters 100000 --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --split 100,0,0 --threads 1 \
        --data-path "$W/tokens" --log-interval 1 --init-method-std 0.01 "$@" >"$W/$log" 2>&1 ||
        { grep -E "^train: |rror" "$W/$log" >&2 || tail -n 5 "$W/$log" >&2; exit 1; }
}
# Only the newest checkpoint stays.
tidy() { while sleep 0.5; do for t in "$1"/global_step*[0-9]; do [ "${t##*/}" = "$(cat "$1/latest" 2>/dev/null)" ] || [ ! -e "$1/latest" ] || rm -rf "$t"; done; done; }
elapsed() { sed -n 's/.*elapsed time per iteration (s): \([0-9.]*\) .*/\1/p' "$W/$1" | tail -n +4; }
field() { sed -n "s/^  checkpoint: stall \([0-9.]*\) s, .* in \([0-9.]*\) s (\([0-9.]*\) GB.s).*/\\$2/p" "$W/$1" | median; }
loaded() { sed -n 's/.*load-checkpoint: \([0-9.]*\).*/\1/p' "$W/$1" | head -n 1; }
seconds() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.2f", b - a }'; }

# limit write|read FOLDER BYTES: GB/s
limit() {
    if command -v fio >/dev/null; then
        for direct in 1 0; do
            fio --name=limit --directory="$2" --rw="$1" --bs=4M --size=$(($3 / ranks)) --numjobs="$ranks" --direct=$direct --ioengine=libaio \
                --iodepth=8 --end_fsync=1 --group_reporting --output-format=terse --terse-version=3 2>/dev/null >"$W/fio" || continue
            awk -F';' -v k="$([ "$1" = read ] && echo 7 || echo 48)" '{ printf "%.3f", $k * 1024e-9 }' "$W/fio" && return
        done
    fi
    start=$(date +%s.%N)
    if [ "$1" = write ]; then dd if=/dev/zero of="$2/limit" bs=4M count=$(($3 >> 22)) conv=fsync status=none
    else dd if="$2/limit" of=/dev/null bs=4M status=none; fi
    awk -v n="$3" -v s="$(seconds "$start")" 'BEGIN { printf "%.3f", n * 1e-9 / s }'
}

right() {
    for how in beside ring stop; do
        more=
        case $how in stop) more="--exit-interval 2" ;; ring) more="--save-memory $ring" ;; esac
        # shellcheck disable=SC2086
        run right "$ranks" --train-iters 4 --save-interval 2 --save-schedule 2-2:2 --save "$folder/$how" $more
        rm -rf "$folder/$how/global_step4"
        if [ $how != beside ]; then
            for f in "$folder/beside/global_step2"/*layer_* "$folder/beside/global_step2"/*optim_states.pt; do
                cmp -s "$f" "$folder/$how/global_step2/${f##*/}" || { echo "$folder: $how: ${f##*/} has other bytes" >&2; exit 1; }
            done
            rm -rf "${folder:?}/$how"
        fi
    done
    rm -rf "$folder/beside"
}

status=0
for disk in "$@"; do
    folder=$(mktemp -d "$disk/shardkit-bench-XXXXXX")
    run plan "$ranks" --train-iters 4 --save-interval 2 --save "$folder/none" --dry-run
    bytes=$(sed -n 's/^a checkpoint: \([0-9.]*\) \([kMGT]\)B/\1 \2/p' "$W/plan" | awk '{ printf "%d", $1 * ($2 == "G" ? 1e9 : $2 == "M" ? 1e6 : 1e3) }')
    ring=$(awk -v b="$bytes" -v n="$ranks" -v r="${RING:-0.1}" 'BEGIN { printf "%.6f", b * r / n * 1e-9 }')
    right
    write=$(limit write "$folder" "$bytes")
    "$BENCH/dropcache" "$folder"
    read=$(limit read "$folder" "$bytes")
    rm -f "$folder"/limit*
    run plain "$ranks" --train-iters "$iters"
    tidy "$folder/ck" & tidy=$!
    run saves "$ranks" --train-iters "$iters" --save-interval "$every" --save "$folder/ck"
    kill $tidy; wait $tidy 2>/dev/null || true
    grep -E '^  checkpoint: |^checkpoint of' "$W/saves" | sed 's/^/    /'
    "$BENCH/dropcache" "$folder"
    start=$(date +%s.%N)
    run again "$ranks" --train-iters $((iters + 1)) --load "$folder/ck"
    again_s=$(seconds "$start")
    "$BENCH/dropcache" "$folder"
    start=$(date +%s.%N)
    [ "$ranks" -gt 1 ] && other="--tensor-model-parallel-size $ranks" || other="--no-load-rng"
    # shellcheck disable=SC2086
    run other "$ranks" --train-iters $((iters + 1)) --load "$folder/ck" $other
    other_s=$(seconds "$start")
    awk -v disk="$disk" -v backend="$backend" -v ranks="$ranks" -v bytes="$bytes" -v write="$write" -v read="$read" -v every="$every" \
        -v plain="$(elapsed plain | median)" -v stall="$(field saves 1)" -v wall="$(field saves 2)" -v rate="$(field saves 3)" \
        -v beside="$(sed -n 's/^  checkpoint: .* at the same time, of \([0-9.]*\) s.*/\1/p' "$W/saves" | median)" \
        -v lost="$({ elapsed plain | awk '{ s += $1 } END { print s }'; elapsed saves | awk '{ s += $1 } END { print s }'; } | paste -sd' ' - | awk '{ print $2 - $1 }')" \
        -v begun="$(sed -n 's/.*save-checkpoint: \([0-9.]*\).*/\1/p' "$W/saves" | head -n 1)" \
        -v same="$(loaded again)" -v other="$(loaded other)" -v again_s="$again_s" -v other_s="$other_s" '
        BEGIN {
            # What training stood for: the first save waits for none before it.
            printf "%s: %d ranks on %s, %.1f GB a checkpoint, right to the byte\n", disk, ranks, backend, bytes * 1e-9
            printf "  save   begun in %.1f ms, stall %.3f s; iterations %.3f s beside, %.3f s without; %.3f s lost in all\n", begun, stall, beside, plain, lost
            printf "  write  %.2f s, %.2f GB/s; limit %.2f: %.2f of it\n", wall, rate, write, rate / write
            printf "  load   %.2f s, %.2f GB/s; limit %.2f: %.2f of it; %.1f s from start to first iteration\n", same / 1e3, bytes / same * 1e-6, read, bytes / same * 1e-6 / read, again_s
            printf "  other  %.2f s, %.2f GB/s: %.2f of it; %.1f s\n", other / 1e3, bytes / other * 1e-6, bytes / other * 1e-6 / read, other_s
            printf "{\"bench\": \"save\", \"disk\": \"%s\", \"backend\": \"%s\", \"ranks\": %d, \"size_bytes\": %.0f, \"every\": %d, \"begun_ms\": %.2f, \"stall_s\": %.4f, \"beside_s\": %.4f, \"alone_s\": %.4f, \"lost_s\": %.4f, \"write_s\": %.3f, \"write_gb_s\": %.3f, \"limit_write_gb_s\": %.3f, \"load_s\": %.3f, \"load_other_s\": %.3f, \"limit_read_gb_s\": %.3f, \"start_s\": %.2f, \"start_other_s\": %.2f}\n", disk, backend, ranks, bytes, every, begun, stall, beside, plain, lost, wall, rate, write, same / 1e3, other / 1e3, read, again_s, other_s >>"'"$out"'"
        }'
    rm -rf "$folder"
    folder=
done
exit $status
