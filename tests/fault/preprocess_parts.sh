#!/bin/sh
# preprocess_parts.sh - processes that share the inputs of one dataset are killed at random moments
#
# ROUNDS is the number of datasets (3; 100 under SOAK). Each is written by 4 processes, most of which are killed at
# first. The final result is what one process writes, and no other file remains.
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

# Start all parts and kill those still running one after another, with pauses of up to a third of the time of a
# complete run.
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

# Add rounds if the machine is so fast that all parts finish before they are killed.
round=0 kills=0
while [ $round -lt "$rounds" ] || { [ $kills -eq 0 ] && [ $round -lt 50 ]; }; do
    volleys=0
    while [ ! -e four_text_document.idx ] && [ $volleys -lt 12 ]; do volley; volleys=$((volleys + 1)); done
    # The remaining parts are not killed. The results may be complete already, with only the folder left over.
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
