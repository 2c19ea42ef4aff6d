#!/bin/sh
# bench_formats.sh - checkpoints of today's trainers into forms for use, beside what the disk can do at all
#
# Makes a made-up model as a folder of torch.distributed (FSDP2) and as ZeRO-3 checkpoint, masters and moments, then
# for each in ROUNDS rounds, cache cold:
#   dcp     export-hf: fp32 weights to safetensors
#   zero3   ds2universal: masters and moments to the universal form
#   floor   fio reading as many bytes as ours has to, and writing as many as ours writes, both at once, O_DIRECT, 4 MiB
#           blocks, 16 under way each; the longer of the two. Without fio: dd with 16 MiB blocks
# Ours includes opening, closing and syncing the file system. "read" counts what the disk was asked for, tables and blocks read
# twice among it, where nobody else uses it. Then once each in a cgroup of 256 MB, page cache included, where one may be made.
# Prints text and a JSON line for each.
#
# SIZE_GB (10) of masters and moments, 12 bytes per parameter; HIDDEN (2048); RANKS (8) of both; MESH of dcp instead (4x2, say);
# MEM (256M) for --mem; DIR (build/bench) on the disk to be measured, with room for 4 times SIZE_GB; THREADS (all cores); ROUNDS
# (3); KEEP=1 leaves the inputs for the next run.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-10} hidden=${HIDDEN:-2048} ranks=${RANKS:-8} mem=${MEM:-256M} dir=${DIR:-build/bench}
threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3}
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf formats-in formats-uni out out.part* big floor.out floor.json limit.log *.times
      [ -n "${KEEP:-}" ] || rm -rf formats-dcp formats-zero3 formats.made' EXIT

# Bytes that the disk of this folder was asked for so far; 0 where that is not told.
asked() {
    awk -v dev="$(stat -c %d .)" '$1 == int(dev / 256) && $2 == dev % 256 { n = $6 * 512 } END { printf "%.0f", n }' \
        /proc/diskstats
}

make_inputs() {
    shape="--hidden $hidden --heads 16 --seq 1024 --vocab 50257 --tp 1 --pp 1 --dp 2"
    # shellcheck disable=SC2086
    layers=$(layers_for "$size_gb" 1 1 $shape)
    made="$shape $layers $ranks ${MESH:-}"
    [ "$(cat formats.made 2>/dev/null)" = "$made" ] && return
    rm -rf formats-*
    # shellcheck disable=SC2086
    "$BENCH/mkckpt" $shape --layers "$layers" formats-in
    if [ -n "${MESH:-}" ]; then cut="--mesh $MESH"; else cut="--ranks $ranks"; fi
    # shellcheck disable=SC2086
    "$BIN/reshape" -q --to dcp $cut formats-in/global_step20 formats-dcp 2>/dev/null
    rm -rf formats-in
    "$BIN/ds2universal" -q formats-dcp formats-uni/global_step20 2>/dev/null
    "$BIN/reshape" -q --to zero3 --ranks "$ranks" formats-uni/global_step20 formats-zero3
    rm -rf formats-uni
    echo "$made" >formats.made
}

convert() {     # FORM MEM
    case $1 in
        dcp) "$BIN/export-hf" -q --threads "$threads" --mem "$2" formats-dcp out 2>/dev/null ;;
        zero3) "$BIN/ds2universal" -q --threads "$threads" --mem "$2" formats-zero3 out ;;
    esac
}

floor() {       # READ_BYTES WRITE_BYTES: seconds to floor.times
    if command -v fio >/dev/null; then
        fio --output=floor.json --output-format=json --ioengine=libaio --direct=1 --bs=4M --iodepth=16 \
            --name=read --rw=read --filename=big --size="$1" \
            --name=write --rw=write --filename=floor.out --size="$2" --end_fsync=1 >/dev/null 2>&1
        awk '/"job_runtime"/ { gsub(/[^0-9]/, ""); if ($0 + 0 > n) n = $0 + 0 } END { print n / 1000 }' floor.json >>floor.times
    else
        floor_of_dd "$2" "$1"
    fi
    rm -f floor.out
}

report() {      # FORM READ_BYTES WRITE_BYTES ASKED_BYTES LIMIT
    awk -v form="$1" -v in_bytes="$2" -v out_bytes="$3" -v asked="$4" -v limit="$5" -v threads="$threads" -v mem="$mem" "$awk_times"'
    END {
        o = median(wall, "ours"); f = median(wall, "floor"); u = median(cpu, "ours")
        moved = (in_bytes + out_bytes) * 1e-9
        printf "%s: %.2f GB to read, %.2f GB written, %d threads, --mem %s, medians of %d\n", form, in_bytes * 1e-9, out_bytes * 1e-9, threads, mem, n["ours"]
        printf "  ours     %7.2f s  %5.2f GB/s moved, cpu %.3f s/GB moved, at most %.0f MB, read %.3f times\n", o, moved / o, u / moved, rss["ours"] * 1e-6, asked / in_bytes
        printf "  floor    %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "  under a limit of 256 MB with --mem 96M: %s\n", limit
        printf "{\"bench\": \"formats\", \"form\": \"%s\", \"read_bytes\": %.0f, \"write_bytes\": %.0f, \"asked_bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", form, in_bytes, out_bytes, asked, threads, n["ours"]
        printf "\"wall_s\": %.3f, \"cpu_s\": %.3f, \"max_rss_bytes\": %.0f, \"floor_wall_s\": %.3f, \"share_of_floor\": %.3f, ", o, u, rss["ours"], f, f / o
        printf "\"under_256mb\": %s}\n", limit == "passed" ? "true" : (limit ~ /^failed/ ? "false" : "null")
    }' ours.times floor.times
}

make_inputs
for form in dcp zero3; do
    rm -rf out big floor.out ours.times floor.times
    cat formats-$form/*[tm]* >big               # .distcp, .pt, not .metadata
    cold
    convert $form "$mem"
    out_bytes=$(bytes_in out)
    # Of a folder of torch.distributed the weights alone are read: as many bytes as are written.
    if [ $form = dcp ]; then in_bytes=$out_bytes; else in_bytes=$(bytes_in formats-zero3); fi
    rm -rf out latest_universal
    for round in $(seq "$rounds"); do
        cold
        before=$(asked)
        case $form in
            dcp) measured ours "$BIN/export-hf" -q --threads "$threads" --mem "$mem" formats-dcp out 2>/dev/null ;;
            zero3) measured ours "$BIN/ds2universal" -q --threads "$threads" --mem "$mem" formats-zero3 out ;;
        esac
        asked_bytes=$(($(asked) - before))
        rm -rf out latest_universal
        cold
        floor "$in_bytes" "$out_bytes"
        echo "$form round $round: ours $(last ours.times) s, floor $(last floor.times) s"
    done
    rm -f big
    limit=$(limited convert $form 96M)
    rm -rf out latest_universal
    report $form "$in_bytes" "$out_bytes" "$asked_bytes" "$limit"
done
