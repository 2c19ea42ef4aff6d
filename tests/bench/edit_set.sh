#!/bin/sh
# edit_set.sh [SIZE] - what `ckpt-edit set` writes beside links, of checkpoints of about SIZE GB (default 10)
#
# 3D shards, and a folder of torch.distributed made of them. Makes the checkpoints in $TMPDIR and removes them again:
# only for who asks. Prints their bytes, those of OUT that are in files of its own (the others are links), those that
# the process wrote, and the time.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
trap 'rm -rf "$W"' EXIT
size=${1:-10}
layers=$((size * 13 / 10))
[ $layers -gt 0 ] || layers=1
"$TBIN/bench/mkckpt" --layers $layers --hidden 2048 --heads 16 --vocab 8000 --tp 2 --pp 1 --dp 2 "$W/in" >"$W/log" 2>&1 ||
    { cat "$W/log"; exit 1; }

# measure LAYOUT IN KEY
measure() {
    out=$W/out
    all=$(du -sb "$2" | cut -f1)
    sync
    begun=$(date +%s.%N)
    # Of the process itself: /proc/self/io behind it, in the same shell.
    written=$(sh -c "ckpt-edit -q set $3=1e-4 '$2' '$out' && sed -n 's/^wchar: //p' /proc/\$\$/io")
    ended=$(date +%s.%N)
    own=$(find "$out" -type f -links 1 -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }')
    linked=$(find "$out" -type f -links +1 | wc -l)
    echo "$1: $all bytes in IN; $own bytes in files of OUT's own, $linked files linked; $written bytes written in all," \
        "$(echo "$ended - $begun" | bc) s"
    [ "$own" -lt 1000000 ] && pass || fail "$1: set writes $own bytes beside links"
    check "$1: OUT has it" grep -qx 0.0001 <<END
$(case $1 in dcp) ckpt-inspect cat "$out" "$3" ;; *) ckpt-inspect args "$out" "$3" | sed 's/.* //' ;; esac)
END
    rm -rf "$out"
}
measure "3D shards" "$W/in/global_step20" lr
reshape -q --to dcp --ranks 4 "$W/in/global_step20" "$W/dcp" && rm -rf "$W/in" || exit 1
measure dcp "$W/dcp" optim.param_groups.0.lr
finish
