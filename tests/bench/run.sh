#!/bin/sh
# run.sh - what `make bench` does: every benchmark, one after the other
cd "$(dirname "$0")/../.." || exit 1
rc=0
for b in tests/bench/bench_*.sh tests/bench/moe/bench_*.sh tests/bench/text/bench_*.sh; do
    echo "== $(basename "$b" .sh | sed s/^bench_//)"
    sh "$b" || rc=1
done
exit $rc
