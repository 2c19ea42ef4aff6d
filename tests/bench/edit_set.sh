#!/bin/sh
# edit_set.sh [SIZE] - what `ckpt-edit set` writes beside links, of a checkpoint of about SIZE GB (default 10)
#
# Makes the checkpoint in $TMPDIR and removes it again: only for who asks. Prints its bytes, those of OUT that are in
# files of its own (the others are links), those that the process wrote, and the time.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
trap 'rm -rf "$W"' EXIT
size=${1:-10}
layers=$((size * 13 / 10))
[ $layers -gt 0 ] || layers=1
"$TBIN/bench/mkckpt" --layers $layers --hidden 2048 --heads 16 --vocab 8000 --tp 2 --pp 1 --dp 2 "$W/in" >"$W/log" 2>&1 ||
    { cat "$W/log"; exit 1; }
in=$W/in/global_step20 out=$W/out
all=$(du -sb "$in" | cut -f1)
sync
begun=$(date +%s.%N)
# Of the process itself: /proc/self/io behind it, in the same shell.
written=$(sh -c "ckpt-edit -q set lr=1e-4 '$in' '$out' && sed -n 's/^wchar: //p' /proc/\$\$/io")
ended=$(date +%s.%N)
own=$(find "$out" -type f -links 1 -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }')
linked=$(find "$out" -type f -links +1 | wc -l)
echo "$all bytes in IN; $own bytes in files of OUT's own, $linked files linked; $written bytes written in all," \
    "$(echo "$ended - $begun" | bc) s"
[ "$own" -lt 1000000 ] && pass || fail "set writes $own bytes beside links"
check "OUT is sound" ckpt-inspect -q args "$out" lr
finish
