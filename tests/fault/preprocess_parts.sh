#!/bin/sh
# preprocess_parts.sh - processes that share the inputs of one dataset are killed anywhere
#
# ROUNDS datasets (3; 100 under SOAK), each by 4 processes of which most are killed at first: what comes out in
# the end is what one process writes, and nothing is left beside it.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
rounds=${ROUNDS:-3}; [ -z "${SOAK:-}" ] || rounds=100
cd "$W" || exit 1
i=0
while [ $i -lt 8 ]; do
    awk -v i=$i 'BEGIN { srand(i); for (k = 0; k < 4000; k++) printf "{\"text\": \"document %d of %d, %s\"}\n", k, i, rand() }' |
        gzip -1 >shard$i
    i=$((i + 1))
done
begun=$(date +%s%N)
preprocess -q --input shard* --output-prefix one || fail "one process"
whole=$((($(date +%s%N) - begun) / 1000000))

# Start all parts; each is killed, if it still runs, one after up to a third of what the whole takes after the other.
volley() {
    pids=
    for part in 0 1 2 3; do
        preprocess -q --input shard* --output-prefix four --part $part/4 >>said 2>&1 &
        pids="$pids $!"
    done
    for pid in $pids; do
        ms=$(random $((whole / 3 + 1)))
        sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
        kill -9 "$pid" 2>/dev/null && kills=$((kills + 1))
        wait "$pid" 2>/dev/null
    done
}

# On a machine where all are done before they are killed, some rounds more.
round=0 kills=0
while [ $round -lt "$rounds" ] || { [ $kills -eq 0 ] && [ $round -lt 50 ]; }; do
    volleys=0
    while [ ! -e four_text_document.idx ] && [ $volleys -lt 12 ]; do volley; volleys=$((volleys + 1)); done
    # Whoever is left is not killed. The results may stand already, and only the folder be left.
    for part in 0 1 2 3; do
        [ ! -e four_text_document.idx ] || [ -e four.parts ] || continue
        preprocess -q --force --input shard* --output-prefix four --part $part/4 >>said 2>&1
    done
    check "round $round: tokens" cmp one_text_document.bin four_text_document.bin
    check "round $round: index" cmp one_text_document.idx four_text_document.idx
    ls -d four* | grep -v '^four_text_document\.\(bin\|idx\)$' >left
    check "round $round: nothing is left" test ! -s left
    [ -s left ] && { sed "s/^/    /" left; ls four.parts; tail -n 3 said; }
    rm -rf four*
    round=$((round + 1))
done
check "some were killed" test $kills -gt 0
finish
