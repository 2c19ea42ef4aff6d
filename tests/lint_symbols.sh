#!/bin/sh
# lint_symbols.sh - what a file of the product offers, the product uses: no external symbol for tests alone
#
# Reads all of the product's objects in build/$B (release) by nm; what CUDA's sources name counts as used, for they need
# not be compiled here. A symbol that no other file uses is wrong when its own file does not use it either (only tests
# do, or nobody), and when no test does (static would do). Prints file and symbol, exit 1; sources without fresh objects
# are said, and then nothing is judged.
cd "$(dirname "$0")/.." || exit 1
objects=build/${B:-release}

# Windows for tests into what users see only as bytes or as a whole, and calls that make comm.h's set complete.
windows='mmidx_form mmidx_n_docs mmidx_tokens mmidx_type pt_dialect pt_tree safetensors_header_bytes safetensors_meta
    stream_packing tfevents_path plan_write_bytes trainlog_lost checkpoint_save_bytes writer_pid
    comm_broadcast comm_reduce_scatter comm_world_rank comm_host_send comm_host_recv'

stale=0 list=
for src in $(find libcommon kernels tools -name '*.c' | LC_ALL=C sort); do
    found=
    for o in "$objects/${src%.c}".o "$objects/${src%.c}".*.o; do
        [ -f "$o" ] && [ ! "$src" -nt "$o" ] && found="$found $o"
    done
    if [ -z "$found" ]; then stale=$((stale + 1)); else list="$list$found"; fi
done
if [ $stale -gt 0 ]; then
    echo "lint: $stale sources have no fresh objects in $objects, unused symbols not looked for" >&2
    exit 0
fi
words=$(mktemp) || exit 1
trap 'rm -f "$words"' EXIT
find tests -name '*.[ch]' -o -name '*.cu' | xargs cat | grep -oE '[a-z][a-z0-9_]+' | LC_ALL=C sort -u >"$words"
{
    find kernels/cuda -name '*.cu' -o -name '*.cuh' | xargs cat | grep -oE '[a-z][a-z0-9_]+' | LC_ALL=C sort -u | sed 's/^/cuda: U /'
    # The functions of the C interface are for other programs.
    grep -oE '[^a-z]sk_[a-z_]+\(' include/shardkit.h | tr -dc 'a-z_\n' | sed 's/^/include: U /'
    # shellcheck disable=SC2086
    nm -A -g $list 2>/dev/null
} | awk -v objects="$objects/" -v windows="$windows" -v words="$words" '
    # How often a file calls or names a function or table, its definition apart.
    function own_uses(file, name,    line, n) {
        while ((getline line < file) > 0)
            if (line !~ /^[ \t]*(\*|\/\*)/ && line ~ "(^|[^a-zA-Z0-9_])" name "([^a-zA-Z0-9_]|$)" &&
                line !~ "^(struct|enum|union) " name " \\{")
                n++
        close(file)
        return n - 1
    }
    BEGIN {
        while ((getline w < words) > 0) tested[w]
        split(windows, list, /[ \n]+/)
        for (i in list) window[list[i]]
    }
    {
        file = $1
        sub(/:.*/, "", file); sub(objects, "", file); sub(/(\.[a-z0-9]+)?\.o$/, ".c", file)
        if ($(NF - 1) ~ /^[TDBRC]$/ && $NF !~ /^(main$|\.gomp_)/) owner[$NF] = file
        else if ($(NF - 1) == "U") used[$NF]
    }
    END {
        for (s in owner) {
            if (s in used || s in window) continue
            if (!(s in tested)) why = "no other file uses it: static would do"
            else if (own_uses(owner[s], s) < 1) why = "only tests use it"
            else continue
            print owner[s] ": " s ": " why
            n++
        }
        exit n > 0
    }' | LC_ALL=C sort >"$words.out"
cat "$words.out" >&2
[ ! -s "$words.out" ]; rc=$?
rm -f "$words.out"
exit $rc
