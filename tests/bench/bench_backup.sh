#!/bin/sh
# bench_backup.sh - ckpt-backup copy beside cp, rclone and what the disk can do at all
#
# A checkpoint is copied within one disk, in each of three rounds, one after the other, cache cold:
#   ours    ckpt-backup copy: read, written, read back around the page cache and compared
#   cp      cp -r of the same bytes, nothing compared
#   cmp     cp -r, then diff -r with a cold cache: what proves as much with common tools
#   rclone  rclone copy, then rclone check --download, where rclone is installed
#   floor   O_DIRECT, 4 MiB, nothing looked at: reading the source while as many bytes are written into room taken
#           before, then reading those; with fio (io_uring, 8 under way) where it is installed, else with dd
# Every time includes syncing the file system. Prints text and a JSON line.
#
# SIZE_GB (2) of optimizer state; DIR (build/bench) on the disk to be measured, with room for 3 times that; THREADS (all
# cores); ROUNDS (3); FORM (copy; tar, weights); PEERS=0: nothing but the floor beside ours; KEEP=1 leaves the input for
# the next run.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-2} dir=${DIR:-build/bench} threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3} form=${FORM:-copy}
mkdir -p "$dir"
cd "$dir"
tag=backup-in/global_step20
trap 'rm -rf store copy big floor.out ./*.times; [ -n "${KEEP:-}" ] || rm -rf backup-in' EXIT
rm -rf store copy ./*.times

if [ ! -d $tag ]; then
    shape="--hidden 2048 --heads 16 --seq 2048 --vocab 30000 --tp 2 --pp 2 --dp 2"
    # shellcheck disable=SC2086
    "$BENCH/mkckpt" $shape --layers "$(layers_for "$size_gb" 2 1 $shape)" backup-in
fi

# With fio the files that are read and written are those that dd would take.
direct() {  # read|write FILE
    if command -v fio >/dev/null; then
        fio --name=floor --filename="$2" --rw="$1" --bs=4M --direct=1 --ioengine=io_uring --iodepth=8 --size="$bytes" \
            --allow_file_create=0 --overwrite=1 --end_fsync=1 >/dev/null
    elif [ "$1" = read ]; then dd if="$2" of=/dev/null iflag=direct bs=4M status=none
    else dd if=/dev/zero of="$2" oflag=direct bs=4M conv=notrunc,fsync iflag=count_bytes count="$bytes" status=none
    fi
}
floor() { direct read big & direct write floor.out; wait; direct read floor.out; }

peers() {
    cold
    measured cp cp -r $tag copy
    cold
    "$BENCH/measure" diff.times diff -r $tag copy
    rm -rf copy
    if command -v rclone >/dev/null; then
        cold
        measured rclone rclone -q copy $tag copy 2>/dev/null
        cold
        "$BENCH/measure" check.times rclone -q check --download $tag copy 2>/dev/null
        rm -rf copy
    fi
}

cat $tag/* >big
bytes=$(($(stat -c %s big) / 4194304 * 4194304))
for round in $(seq "$rounds"); do
    cold
    measured ours "$BIN/ckpt-backup" "$form" -q --threads "$threads" $tag store
    rm -rf store
    if [ "${PEERS:-1}" = 1 ]; then peers; fi
    cold
    fallocate -l "$bytes" floor.out
    # measure wants a command: the shell's own clock does for functions.
    begun=$(date +%s%N)
    floor
    sync -f .
    echo "$begun $(date +%s%N)" | awk '{ printf "%.3f 0 0 0\n", ($2 - $1) * 1e-9 }' >>floor.times
    rm -f floor.out
    echo "round $round: ours $(last ours.times) s, floor $(last floor.times) s"
done
touch cp.times diff.times rclone.times check.times
awk -v bytes="$bytes" -v threads="$threads" -v form="$form" "$awk_times"'
    END {
        gb = bytes * 1e-9
        o = median(wall, "ours"); c = median(wall, "cp"); d = c + median(wall, "diff"); f = median(wall, "floor")
        r = median(wall, "rclone") + median(wall, "check")
        for (i = 1; i <= n["ours"]; i++) u += cpu["ours", i] / n["ours"]
        printf "%s of %.2f GB, %d threads, medians of %d\n", form, gb, threads, n["ours"]
        printf "  ours           %7.2f s  %5.2f GB/s, cpu %.3f s/GB, at most %.0f MB\n", o, gb / o, u / gb, rss["ours"] * 1e-6
        if (c) printf "  cp -r          %7.2f s  ours is %.2f times as fast\n", c, c / o
        if (c) printf "  cp -r, diff -r %7.2f s  ours is %.2f times as fast\n", d, d / o
        if (r) printf "  rclone, check  %7.2f s  ours is %.2f times as fast\n", r, r / o
        printf "  floor          %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "{\"bench\": \"backup\", \"form\": \"%s\", \"bytes\": %.0f, \"threads\": %d, \"rounds\": %d, \"wall_s\": %.3f, ", form, bytes, threads, n["ours"], o
        printf "\"cpu_s\": %.3f, \"max_rss_bytes\": %.0f, \"cp_wall_s\": %s, \"cp_diff_wall_s\": %s, ", u, rss["ours"], c ? sprintf("%.3f", c) : "null", c ? sprintf("%.3f", d) : "null"
        printf "\"rclone_wall_s\": %s, \"floor_wall_s\": %.3f, \"share_of_floor\": %.3f}\n", r ? sprintf("%.3f", r) : "null", f, f / o
    }' ours.times cp.times diff.times rclone.times check.times floor.times
