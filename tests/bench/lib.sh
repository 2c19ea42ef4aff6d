# lib.sh - what the benchmarks share; sourced in the repository's root, before anything goes elsewhere
#
# Gives BIN (the tools) and BENCH (the benchmarks' programs), unless the caller has set them; TBIN may name the folder
# that BENCH lies in. `measure` writes a line "wall user system peak-bytes" a run: in NAME.times here, in the folder
# that a script works in, which is on the disk to be measured. No function sets a variable of the script.
: "${BIN:=$PWD/bin}" "${BENCH:=${TBIN:-$PWD/build/release/tests}/bench}"

# Nothing of this folder is in the page cache any more; of the whole machine where we may.
cold() {
    sync
    if ! { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then "$BENCH/dropcache" .; fi
    sleep 1
}

# bytes_in PATH...: of the files there
bytes_in() { find "$@" -type f -printf '%s\n' | awk '{ n += $1 } END { printf "%.0f", n }'; }

# layers_for GB FIRST STEP SHAPE...: FIRST, FIRST + STEP ... layers, as many as GB of optimizer state take
layers_for() (
    gb=$1 tried=$2 step=$3
    shift 3
    while size=$("$BENCH/mkckpt" "$@" --layers "$tried" --dry-run); awk "BEGIN { exit !($size < $gb * 1e9) }"; do
        tried=$((tried + step))
    done
    echo "$tried"
)

# make_once FOLDER SHAPE...: a checkpoint, unless a run with KEEP=1 has left just that; FOLDER.made says what is there.
make_once() (
    to=${1:?}
    shift
    [ "$(cat "$to.made" 2>/dev/null)" = "$*" ] && return
    rm -rf "$to" "$to.made"
    "$BENCH/mkckpt" "$@" "$to"
    echo "$*" >"$to.made"
)

# measured NAME COMMAND...: with syncing the file system
measured() { "$BENCH/measure" "$1.times" sh -c 'shift; "$@" && sync -f .' sh "$@"; }

# What the disk can do at all, to floor.times: dd reads the file big and writes as many bytes as are said, at once.
# floor_of_dd WRITE_BYTES [READ_BYTES]: floor.out may be there already, as room that is taken; all of big if not said,
# else whole blocks, since what is read around the page cache cannot end within one
# shellcheck disable=SC2016
floor_of_dd() {
    "$BENCH/measure" floor.times sh -c '
        dd if=big of=/dev/null iflag=direct${2:+,count_bytes} bs=16M ${2:+count=$(($2 / 4096 * 4096))} status=none &
        dd if=/dev/zero of=floor.out oflag=direct bs=16M conv=notrunc,fsync iflag=count_bytes count="$1" status=none
        wait; sync -f .' sh "$@"
    rm -f floor.out
}

# last FILE: wall seconds of the newest run in it
last() { tail -n 1 "$1" | cut -d' ' -f1; }

# limited COMMAND...: a program or a function, with 256 MB and not a byte more, page cache included. Prints "passed", or
# why not; "not tried" where no cgroup may be made. The reason passes through limit.log.
limited() (
    limit="not tried: no memory cgroup to make here"
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup/unified /sys/fs/cgroup; do
        case $(stat -f -c %T $root 2>/dev/null) in cgroup*) ;; *) continue ;; esac
        cg=$root/shardkit-bench-$$
        mkdir $cg 2>/dev/null || continue
        for knob in memory.max memory.limit_in_bytes; do
            [ -f $cg/$knob ] && { echo 268435456 >$cg/$knob; } 2>/dev/null || continue
            # The subshell itself goes in, and a function with it: $$ would be the script.
            if (sh -c 'echo $PPID' >$cg/cgroup.procs && "$@") 2>limit.log >/dev/null; then limit=passed
            else limit="failed: $(tail -n 1 limit.log)"; fi
        done
        rmdir $cg
        [ "${limit#not}" = "$limit" ] && break
    done
    echo "$limit"
)

# samples_per_s LOG FIRST: of each step from the FIRST on, as train tells it
samples_per_s() { sed -n 's/.*samples per second: \([0-9.]*\) .*/\1/p' "$1" | tail -n +"$2"; }

# To be put before an awk program. median(v, name): of v[name, 1], v[name, 2] ...; 0 if there is none
awk_median='
    function median(v, name,   a, i, n, t) {
        while ((name, n + 1) in v) {
            t = v[name, ++n]
            for (i = n; i > 1 && a[i - 1] > t; i--) a[i] = a[i - 1]
            a[i] = t
        }
        return n == 0 ? 0 : n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }'

# The same, and what it reads are NAME.times: n[NAME] runs, wall[NAME, run] and cpu[NAME, run], the highest rss[NAME]
# shellcheck disable=SC2016,SC2034
awk_times=$awk_median'
    {
        w = FILENAME
        sub(/\.times$/, "", w)
        wall[w, ++n[w]] = $1 + 0
        cpu[w, n[w]] = $2 + $3
        if ($4 > rss[w]) rss[w] = $4
    }'

# The median of the numbers on stdin
median() { awk -v OFMT=%.9g "$awk_median"'{ x["", NR] = $1 } END { print median(x, "") }'; }
