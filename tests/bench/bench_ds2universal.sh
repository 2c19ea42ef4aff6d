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
# SIZE_GB (8.9) of optimizer state, 12 bytes a parameter; DIR (build/bench) on the disk to
# be measured, with room for 4 times that; THREADS (all cores); ROUNDS (3); KEEP=1 leaves
# the input for the next run.
set -eu
cd "$(dirname "$0")/../.."
size_gb=${SIZE_GB:-8.9} dir=${DIR:-build/bench} threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3}
tools=$PWD/bin bench=$PWD/build/release/tests/bench
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf out copy same big floor.out *.times limit.log; [ -n "${KEEP:-}" ] || rm -rf in in.made' EXIT

# h 2048, 16 heads, a vocabulary of 50,257: a layer is 0.6 GB of state. Enough of them for the size.
shape="--hidden 2048 --heads 16 --seq 2048 --vocab 50257 --tp 2 --pp 2 --dp 2"
layers=2
# shellcheck disable=SC2086
while bytes=$("$bench/mkckpt" $shape --layers $layers --dry-run); awk "BEGIN { exit !($bytes < $size_gb * 1e9) }"; do
    layers=$((layers + 1))
done
if [ "$(cat in.made 2>/dev/null)" != "$shape $layers" ]; then
    rm -rf in in.made
    # shellcheck disable=SC2086
    "$bench/mkckpt" $shape --layers $layers in
    echo "$shape $layers" >in.made
fi

# What ours reads, as a folder for cp and as one file for dd. Layer files are not read.
tag=in/global_step20
rm -rf same big out copy floor.out ./*.times
mkdir same
ln $tag/*zero_pp_rank_* $tag/mp_rank_* same/
cat same/* >big
in_bytes=$(stat -c %s big)

cold() {
    sync
    if ! { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then "$bench/dropcache" .; fi
    sleep 1
}

ours() { "$bench/measure" "$1.times" sh -c '"$@" && sync -f .' sh \
             "$tools/ds2universal" -q --threads "$threads" --format "$1" $tag out; }

for round in $(seq "$rounds"); do
    cold
    ours pt
    out_bytes=$(find out -type f -printf '%s\n' | awk '{ n += $1 } END { printf "%.0f", n }')
    rm -rf out latest_universal
    cold
    "$bench/measure" cp.times sh -c 'cp -r same copy && sync -f .'
    rm -rf copy
    cold
    "$bench/measure" floor.times sh -c '
        dd if=big of=/dev/null iflag=direct bs=16M status=none &
        dd if=/dev/zero of=floor.out oflag=direct bs=16M conv=fsync iflag=count_bytes count='"$out_bytes"' status=none
        wait; sync -f .'
    rm -f floor.out
    echo "round $round: ours $(tail -n1 pt.times | cut -d' ' -f1) s, cp $(tail -n1 cp.times | cut -d' ' -f1) s, floor $(tail -n1 floor.times | cut -d' ' -f1) s"
done
rm -f big

cold
ours hdf5
rm -rf out
cold
ours virtual
rm -rf out

# Once more with 256 MB and not a byte more, page cache included, where cgroups may be made.
limit="not tried: no memory cgroup to make here"
for root in /sys/fs/cgroup/memory /sys/fs/cgroup/unified /sys/fs/cgroup; do
    case $(stat -f -c %T $root 2>/dev/null) in cgroup*) ;; *) continue ;; esac
    cg=$root/shardkit-bench-$$
    mkdir $cg 2>/dev/null || continue
    for knob in memory.max memory.limit_in_bytes; do
        [ -f $cg/$knob ] && { echo 268435456 >$cg/$knob; } 2>/dev/null || continue
        if sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh $cg \
            "$tools/ds2universal" -q --threads 2 $tag out 2>limit.log; then limit=passed
        else limit="failed: $(tail -n 1 limit.log)"; fi
        rm -rf out latest_universal
    done
    rmdir $cg
    [ "${limit#not}" = "$limit" ] && break
done

awk -v in_bytes="$in_bytes" -v out_bytes="$out_bytes" -v threads="$threads" -v limit="$limit" '
    function median(a, n,   i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    {
        w = FILENAME
        sub(/\.times$/, "", w)
        n[w]++
        if (w == "pt") { wall[n[w]] = $1; cpu[n[w]] = $2 + $3; if ($4 > rss) rss = $4 }
        if (w == "cp") cp[n[w]] = $1
        if (w == "floor") fl[n[w]] = $1
        if (w == "hdf5") hdf5 = $1
        if (w == "virtual") { virt = $1; vrss = $4 }
    }
    END {
        o = median(wall, n["pt"]); c = median(cp, n["cp"]); f = median(fl, n["floor"]); u = median(cpu, n["pt"])
        moved = (in_bytes + out_bytes) * 1e-9       # read and written
        printf "%.2f GB read, %.2f GB written: %.3f x the input moved, %d threads, medians of %d\n", in_bytes * 1e-9, out_bytes * 1e-9, (in_bytes + out_bytes) / in_bytes, threads, n["pt"]
        printf "  ours     %7.2f s  %5.2f GB/s moved, cpu %.3f s/GB moved, at most %.0f MB\n", o, moved / o, u / moved, rss * 1e-6
        printf "  cp -r    %7.2f s  ours is %.2f times as fast\n", c, c / o
        printf "  floor    %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "  hdf5     %7.2f s\n  virtual  %7.2f s, at most %.0f MB\n  under a limit of 256 MB: %s\n", hdf5, virt, vrss * 1e-6, limit
        printf "{\"bench\": \"ds2universal\", \"read_bytes\": %.0f, \"write_bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", in_bytes, out_bytes, threads, n["pt"]
        printf "\"wall_s\": %.3f, \"cpu_s\": %.3f, \"cpu_s_per_gb_moved\": %.4f, \"max_rss_bytes\": %.0f, ", o, u, u / moved, rss
        printf "\"cp_wall_s\": %.3f, \"floor_wall_s\": %.3f, \"times_cp\": %.3f, \"share_of_floor\": %.3f, ", c, f, c / o, f / o
        printf "\"hdf5_wall_s\": %.3f, \"virtual_wall_s\": %.3f, \"under_256mb\": %s}\n", hdf5, virt, limit == "passed" ? "true" : (limit ~ /^failed/ ? "false" : "null")
    }' pt.times cp.times floor.times hdf5.times virtual.times
