#!/bin/sh
# bench_ds2universal.sh - ds2universal beside cp and beside what the disk can do at all
#
# Makes a checkpoint, then in each of three rounds, one after the other, cache cold:
#   ours    ds2universal --format pt
#   cp      cp -r of the same input bytes
#   floor   dd reading as many bytes as ours reads, and dd writing as many as ours writes,
#           both O_DIRECT with 16 MiB blocks, started together, until both have ended
# Every time includes syncing the file system. dd writes zeros: right for a disk that does
# not compress; where one does, the floor is too good. Prints text and one JSON line.
#
# SIZE_GB (8.9) of optimizer state, 12 bytes per parameter; DIR (build/bench) on the disk to
# be measured, with room for 4 times that; THREADS (all cores); ROUNDS (3); KEEP=1 leaves
# the input for the next run.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-8.9} dir=${DIR:-build/bench} threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3}
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf out copy same big floor.out *.times limit.log; [ -n "${KEEP:-}" ] || rm -rf in in.made' EXIT

# h 2048, 16 heads, a vocabulary of 50,257: a layer is 0.6 GB of state. Enough of them for the size.
shape="--hidden 2048 --heads 16 --seq 2048 --vocab 50257 --tp 2 --pp 2 --dp 2"
# shellcheck disable=SC2086
make_once in $shape --layers "$(layers_for "$size_gb" 2 1 $shape)"

# What ours reads, as a folder for cp and as one file for dd. Layer files are not read.
tag=in/global_step20
rm -rf same big out copy floor.out ./*.times
mkdir same
ln $tag/*zero_pp_rank_* $tag/mp_rank_* same/
cat same/* >big
in_bytes=$(stat -c %s big)

ours() { measured "$1" "$BIN/ds2universal" -q --threads "$threads" --format "$1" $tag out; }

for round in $(seq "$rounds"); do
    cold
    ours pt
    out_bytes=$(bytes_in out)
    rm -rf out latest_universal
    cold
    measured cp cp -r same copy
    rm -rf copy
    cold
    floor_of_dd "$out_bytes"
    echo "round $round: ours $(last pt.times) s, cp $(last cp.times) s, floor $(last floor.times) s"
done
rm -f big

cold
ours hdf5
rm -rf out
cold
ours virtual
rm -rf out

# Once more with 256 MB.
limit=$(limited "$BIN/ds2universal" -q --threads 2 $tag out)
rm -rf out latest_universal

awk -v in_bytes="$in_bytes" -v out_bytes="$out_bytes" -v threads="$threads" -v limit="$limit" "$awk_times"'
    END {
        o = median(wall, "pt"); c = median(wall, "cp"); f = median(wall, "floor"); u = median(cpu, "pt")
        hdf5 = median(wall, "hdf5"); virt = median(wall, "virtual")
        moved = (in_bytes + out_bytes) * 1e-9       # read and written
        printf "%.2f GB read, %.2f GB written: %.3f x the input moved, %d threads, medians of %d\n", in_bytes * 1e-9, out_bytes * 1e-9, (in_bytes + out_bytes) / in_bytes, threads, n["pt"]
        printf "  ours     %7.2f s  %5.2f GB/s moved, cpu %.3f s/GB moved, at most %.0f MB\n", o, moved / o, u / moved, rss["pt"] * 1e-6
        printf "  cp -r    %7.2f s  ours is %.2f times as fast\n", c, c / o
        printf "  floor    %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "  hdf5     %7.2f s\n  virtual  %7.2f s, at most %.0f MB\n  under a limit of 256 MB: %s\n", hdf5, virt, rss["virtual"] * 1e-6, limit
        printf "{\"bench\": \"ds2universal\", \"read_bytes\": %.0f, \"write_bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", in_bytes, out_bytes, threads, n["pt"]
        printf "\"wall_s\": %.3f, \"cpu_s\": %.3f, \"cpu_s_per_gb_moved\": %.4f, \"max_rss_bytes\": %.0f, ", o, u, u / moved, rss["pt"]
        printf "\"cp_wall_s\": %.3f, \"floor_wall_s\": %.3f, \"times_cp\": %.3f, \"share_of_floor\": %.3f, ", c, f, c / o, f / o
        printf "\"hdf5_wall_s\": %.3f, \"virtual_wall_s\": %.3f, \"under_256mb\": %s}\n", hdf5, virt, limit == "passed" ? "true" : (limit ~ /^failed/ ? "false" : "null")
    }' pt.times cp.times floor.times hdf5.times virtual.times
