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
# SIZE_GB (4) of optimizer state, 12 bytes a parameter; DIR (build/bench) on the disk to be
# measured, with room for 4 times that; THREADS (all cores); ROUNDS (3); CASES (all three);
# KEEP=1 leaves the inputs for the next run.
set -eu
cd "$(dirname "$0")/../.."
size_gb=${SIZE_GB:-4} dir=${DIR:-build/bench} threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3}
cases=${CASES:-nodes merge split}
tools=$PWD/bin bench=$PWD/build/release/tests/bench
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf out copy big floor.out *.times limit.log; [ -n "${KEEP:-}" ] || rm -rf reshape-in reshape-in.made' EXIT

# make SHAPE LAYERS STEP: reshape-in, with as many layers as the size takes.
make_input() {
    layers=$2
    # shellcheck disable=SC2086
    while bytes=$("$bench/mkckpt" $1 --layers $layers --dry-run); awk "BEGIN { exit !($bytes < $size_gb * 1e9) }"; do
        layers=$((layers + $3))
    done
    [ "$(cat reshape-in.made 2>/dev/null)" = "$1 $layers" ] && return
    rm -rf reshape-in reshape-in.made
    # shellcheck disable=SC2086
    "$bench/mkckpt" $1 --layers $layers reshape-in
    echo "$1 $layers" >reshape-in.made
}

cold() {
    sync
    if ! { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then "$bench/dropcache" .; fi
    sleep 1
}

# Once with 256 MB and not a byte more, page cache included, where cgroups may be made.
limited() { # COMMAND...
    limit="not tried: no memory cgroup to make here"
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup/unified /sys/fs/cgroup; do
        case $(stat -f -c %T $root 2>/dev/null) in cgroup*) ;; *) continue ;; esac
        cg=$root/shardkit-bench-$$
        mkdir $cg 2>/dev/null || continue
        for knob in memory.max memory.limit_in_bytes; do
            [ -f $cg/$knob ] && { echo 268435456 >$cg/$knob; } 2>/dev/null || continue
            if sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh $cg "$@" 2>limit.log >/dev/null; then limit=passed
            else limit="failed: $(tail -n 1 limit.log)"; fi
            rm -rf out
        done
        rmdir $cg
        [ "${limit#not}" = "$limit" ] && break
    done
}

one_case() { # NAME SHAPE LAYERS STEP COMMAND...
    name=$1
    make_input "$2" "$3" "$4"
    shift 4
    tag=reshape-in/global_step20
    rm -rf big out copy floor.out ./*.times
    cat $tag/* >big
    in_bytes=$(stat -c %s big)
    for round in $(seq "$rounds"); do
        cold
        "$bench/measure" ours.times sh -c '"$@" && sync -f .' sh "$@" -q --threads "$threads" $tag out
        out_bytes=$(find out -type f -printf '%s\n' | awk '{ n += $1 } END { printf "%.0f", n }')
        rm -rf out
        cold
        "$bench/measure" cp.times sh -c 'cp -r '$tag' copy && sync -f .'
        rm -rf copy
        cold
        fallocate -l "$out_bytes" floor.out
        "$bench/measure" floor.times sh -c '
            dd if=big of=/dev/null iflag=direct bs=16M status=none &
            dd if=/dev/zero of=floor.out oflag=direct bs=16M conv=notrunc,fsync iflag=count_bytes count='"$out_bytes"' status=none
            wait; sync -f .'
        rm -f floor.out
        echo "$name, round $round: ours $(tail -n1 ours.times | cut -d' ' -f1) s, cp $(tail -n1 cp.times | cut -d' ' -f1) s, floor $(tail -n1 floor.times | cut -d' ' -f1) s"
    done
    rm -f big
    limited "$@" -q --threads 2 $tag out
    report "$name"
}

report() { # NAME
    awk -v name="$1" -v in_bytes="$in_bytes" -v out_bytes="$out_bytes" -v threads="$threads" -v limit="$limit" '
    function median(a, n,   i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    {
        w = FILENAME
        sub(/\.times$/, "", w)
        n[w]++
        if (w == "ours") { wall[n[w]] = $1; cpu[n[w]] = $2 + $3; if ($4 > rss) rss = $4 }
        if (w == "cp") cp[n[w]] = $1
        if (w == "floor") fl[n[w]] = $1
    }
    END {
        o = median(wall, n["ours"]); c = median(cp, n["cp"]); f = median(fl, n["floor"]); u = median(cpu, n["ours"])
        moved = (in_bytes + out_bytes) * 1e-9
        printf "%s: %.2f GB read, %.2f GB written, %d threads, medians of %d\n", name, in_bytes * 1e-9, out_bytes * 1e-9, threads, n["ours"]
        printf "  ours     %7.2f s  %5.2f GB/s moved, cpu %.3f s/GB moved, at most %.0f MB\n", o, moved / o, u / moved, rss * 1e-6
        printf "  cp -r    %7.2f s  ours is %.2f times as fast\n", c, c / o
        printf "  floor    %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "  under a limit of 256 MB: %s\n", limit
        printf "{\"bench\": \"reshape\", \"case\": \"%s\", \"read_bytes\": %.0f, \"write_bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", name, in_bytes, out_bytes, threads, n["ours"]
        printf "\"wall_s\": %.3f, \"cpu_s\": %.3f, \"cpu_s_per_gb_moved\": %.4f, \"max_rss_bytes\": %.0f, ", o, u, u / moved, rss
        printf "\"cp_wall_s\": %.3f, \"floor_wall_s\": %.3f, \"times_cp\": %.3f, \"share_of_floor\": %.3f, ", c, f, c / o, f / o
        printf "\"under_256mb\": %s}\n", limit == "passed" ? "true" : (limit ~ /^failed/ ? "false" : "null")
    }' ours.times cp.times floor.times
}

plain="--hidden 2048 --heads 16 --seq 2048 --vocab 30000 --pp 2 --dp 2"
for case in $cases; do
    case $case in
    nodes) one_case nodes "--hidden 1536 --heads 16 --seq 2048 --vocab 20000 --partition type:transformer --tp 4 --pp 12 --dp 8" 12 12 "$tools/reshape" --target-dp 4 ;;
    merge) one_case merge "$plain --tp 4" 2 1 "$tools/merge-tp" ;;
    split) one_case split "$plain --tp 1" 2 1 "$tools/reshape" --target-tp 4 ;;
    *) echo "CASES: nodes, merge, split" >&2; exit 2 ;;
    esac
done
