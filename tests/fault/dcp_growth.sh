#!/bin/sh
# dcp_growth.sh - memory and time that a folder of torch.distributed.checkpoint in very many pieces needs
#
# A chunk is a line of .metadata, an archive in a file and a few table entries. It may need at most 600 bytes of
# memory in every command that opens it. A tensor that is written for 4 ranks may need at most 5100 bytes. A plain value
# is not compared with others: 8 times as many may take at most 16 times as long. tests/bench/bench_dcp.sh measures
# larger sets.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
few=20000 many=100000
for n in $few $many; do
    check "$n chunks are made" "$TBIN/bench/mkdcp" chunks $n "$W/c$n"
done
# bytes COMMAND: print the memory per additional chunk. The smallest of three runs counts, since the kernel may give a
# process huge pages that it uses in part.
bytes() {
    : >"$W/times"
    for run in 1 2 3; do
        for n in $few $many; do
            "$TBIN/bench/measure" "$W/times" ckpt-inspect "$@" -j 2 "$W/c$n" >"$W/said" 2>&1 ||
                echo "$*: run $run: $(cat "$W/said")" >&2
        done
    done
    awk -v n=$((many - few)) '{ k = NR % 2; if (!b[k] || $4 < b[k]) b[k] = $4 } END { printf "%d\n", (b[0] - b[1]) / n }' \
        "$W/times"
}
for command in ls verify; do
    per=$(bytes $command)
    echo "$command: $per bytes a chunk"
    check "$command takes at most 600 bytes a chunk, not $per" [ "$per" -le 600 ]
done
# The lines of few and many chunks alternate.
awk -v few=$few -v many=$many '{ if (!u[NR % 2] || $2 < u[NR % 2]) u[NR % 2] = $2 }
    END { printf "verify: %s s, %s s\n", u[1], u[0]; exit !(u[0] < 2 * many / few * u[1] + 0.2) }' "$W/times" >"$W/growth"
slow=$?
check "$((many / few)) times the chunks, at most $((2 * many / few)) times the time: $(cat "$W/growth")" [ $slow -eq 0 ]
check "all is sound" grep -q . "$W/said"
check "verify of $many chunks" ckpt-inspect verify --strict "$W/c$many"

few=5000 many=25000
for n in $few $many; do
    check "$n tensors are made" "$TBIN/bench/mkdcp" tensors $n "$W/t$n"
done
: >"$W/tensors"
for n in $few $many $few $many; do
    rm -rf "$W/d$n"
    check "$n tensors are written" "$TBIN/bench/measure" "$W/tensors" reshape -q -j 2 --mem 16M --to dcp --ranks 4 \
        "$W/t$n" "$W/d$n"
done
per=$(awk -v n=$((many - few)) '{ k = NR % 2; if (!b[k] || $4 < b[k]) b[k] = $4 }
    END { printf "%d\n", (b[0] - b[1]) / n }' "$W/tensors")
echo "dcp: $per bytes a tensor"
check "dcp takes at most 5100 bytes a tensor, not $per" [ "$per" -le 5100 ]
check "verify of $many tensors" ckpt-inspect verify "$W/d$many"

for n in 2000 16000; do
    check "$n values are made" "$TBIN/bench/mkdcp" values $n "$W/v$n"
    check "zero2 of $n values" "$TBIN/bench/measure" "$W/values" reshape -q --to zero2 --ranks 1 "$W/v$n" "$W/z$n"
done
awk '{ user[NR] = $2 } END { printf "zero2: %s s, %s s\n", user[1], user[2]; exit !(user[2] < 16 * user[1] + 0.2) }' \
    "$W/values" >"$W/growth"
slow=$?
cat "$W/growth"
check "8 times the values, at most 16 times the time: $(cat "$W/growth")" [ $slow -eq 0 ]
finish
