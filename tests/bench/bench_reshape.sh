#!/bin/sh
# bench_reshape.sh - reshape and merge-tp beside cp and beside what the disk can do at all
#
# Three changes of topology, each of a checkpoint of its own:
#   nodes   TP 4, PP 12, DP 8 -> DP 4: 48 to 24 nodes, with fewer and smaller layers
#   merge   TP 4 -> TP 1 (merge-tp): rows of row-parallel layers are put together
#   split   TP 1 -> TP 4: the same rows are dealt out again
# In each of three rounds, one after the other, cache cold:
#   ours    the tool
#   cp      cp -r of the same input bytes
#   floor   dd reading as many bytes as ours reads, and dd writing as many as ours writes into
#           room taken before, both O_DIRECT with 16 MiB blocks, started together, until both have ended
# Every time includes syncing the file system. dd writes zeros: right for a disk that does
# not compress; where one does, the floor is too good. Prints text and a JSON line for each.
#
# SIZE_GB (4) of optimizer state, 12 bytes per parameter; DIR (build/bench) on the disk to be
# measured, with room for 4 times that; THREADS (all cores); ROUNDS (3); CASES (all three);
# KEEP=1 leaves the inputs for the next run.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-4} dir=${DIR:-build/bench} threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3}
cases=${CASES:-nodes merge split}
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf out copy big floor.out *.times limit.log; [ -n "${KEEP:-}" ] || rm -rf reshape-in reshape-in.made' EXIT

one_case() { # NAME SHAPE LAYERS STEP COMMAND...
    name=$1
    # shellcheck disable=SC2086
    make_once reshape-in $2 --layers "$(layers_for "$size_gb" "$3" "$4" $2)"
    shift 4
    tag=reshape-in/global_step20
    rm -rf big out copy floor.out ./*.times
    cat $tag/* >big
    in_bytes=$(stat -c %s big)
    for round in $(seq "$rounds"); do
        cold
        measured ours "$@" -q --threads "$threads" $tag out
        out_bytes=$(bytes_in out)
        rm -rf out
        cold
        measured cp cp -r $tag copy
        rm -rf copy
        cold
        fallocate -l "$out_bytes" floor.out
        floor_of_dd "$out_bytes"
        echo "$name, round $round: ours $(last ours.times) s, cp $(last cp.times) s, floor $(last floor.times) s"
    done
    rm -f big
    limit=$(limited "$@" -q --threads 2 $tag out)
    rm -rf out
    report "$name"
}

report() { # NAME
    awk -v name="$1" -v in_bytes="$in_bytes" -v out_bytes="$out_bytes" -v threads="$threads" -v limit="$limit" "$awk_times"'
    END {
        o = median(wall, "ours"); c = median(wall, "cp"); f = median(wall, "floor"); u = median(cpu, "ours")
        most = rss["ours"]
        moved = (in_bytes + out_bytes) * 1e-9
        printf "%s: %.2f GB read, %.2f GB written, %d threads, medians of %d\n", name, in_bytes * 1e-9, out_bytes * 1e-9, threads, n["ours"]
        printf "  ours     %7.2f s  %5.2f GB/s moved, cpu %.3f s/GB moved, at most %.0f MB\n", o, moved / o, u / moved, most * 1e-6
        printf "  cp -r    %7.2f s  ours is %.2f times as fast\n", c, c / o
        printf "  floor    %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "  under a limit of 256 MB: %s\n", limit
        printf "{\"bench\": \"reshape\", \"case\": \"%s\", \"read_bytes\": %.0f, \"write_bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", name, in_bytes, out_bytes, threads, n["ours"]
        printf "\"wall_s\": %.3f, \"cpu_s\": %.3f, \"cpu_s_per_gb_moved\": %.4f, \"max_rss_bytes\": %.0f, ", o, u, u / moved, most
        printf "\"cp_wall_s\": %.3f, \"floor_wall_s\": %.3f, \"times_cp\": %.3f, \"share_of_floor\": %.3f, ", c, f, c / o, f / o
        printf "\"under_256mb\": %s}\n", limit == "passed" ? "true" : (limit ~ /^failed/ ? "false" : "null")
    }' ours.times cp.times floor.times
}

plain="--hidden 2048 --heads 16 --seq 2048 --vocab 30000 --pp 2 --dp 2"
for case in $cases; do
    case $case in
    nodes) one_case nodes "--hidden 1536 --heads 16 --seq 2048 --vocab 20000 --partition type:transformer --tp 4 --pp 12 --dp 8" 12 12 "$BIN/reshape" --target-dp 4 ;;
    merge) one_case merge "$plain --tp 4" 2 1 "$BIN/merge-tp" ;;
    split) one_case split "$plain --tp 1" 2 1 "$BIN/reshape" --target-tp 4 ;;
    *) echo "CASES: nodes, merge, split" >&2; exit 2 ;;
    esac
done
