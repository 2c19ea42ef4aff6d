#!/bin/sh
# bench_tokens.sh - text in memory to tokens on one thread, beside quicktok (PyPI: quicktok-v1; left out where PYTHON
# does not have it), and the time to begin with its vocabularies
#
# ENCODINGS (qwen3, 152,000 tokens; o200k_base, 200,000) are quicktok's names. PROSE (tests/data/demo and docs) and CODE
# (sources of this folder) are files. Both programs take turns, RUNS (5) times; each run encodes all documents ROUNDS (7)
# times. A line has the medians of processor times: to begin, in the first round of a process, and in all rounds. Both
# must give the same tokens.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../../.."
. tests/bench/lib.sh
runs=${RUNS:-5} rounds=${ROUNDS:-7} python=${PYTHON:-python3} peer=$PWD/tests/bench/text/quicktok_tokens.py
"$python" -c 'import quicktok, numpy; quicktok.Tokenizer' 2>/dev/null ||
    { echo "no quicktok (quicktok-v1) in $python: left out"; exit 0; }
work=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/shardkit-tokens-XXXXXX")
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2086
"$python" "$peer" documents "$work/prose" ${PROSE:-tests/data/demo/*.txt docs/*.md README.md CHANGELOG.md}
# shellcheck disable=SC2046,SC2086
"$python" "$peer" documents "$work/code" ${CODE:-$(find libcommon kernels tools ops tests -name '*.[ch]' -o -name '*.py' -o -name '*.sh' | sort)}
cd "$work"
for encoding in ${ENCODINGS:-qwen3 o200k_base}; do
    "$python" "$peer" tokenizer "$encoding" tokenizer.json
    for text in prose code; do
        rm -f ./*.times
        i=0
        while [ $i -lt "$runs" ]; do
            "$python" "$peer" run "$encoding" "$rounds" $text theirs >>theirs.times
            "$BENCH/text/bench_tokens" tokenizer.json "$rounds" $text ours >>ours.times
            i=$((i + 1))
        done
        cmp ours theirs || { echo "$encoding, $text: other tokens"; exit 1; }
        for who in ours theirs; do
            for column in 1 2 3; do cut -d' ' -f$column $who.times | median; done | tr '\n' ' ' >$who
        done
        awk -v encoding="$encoding" -v text=$text -v bytes="$(wc -c <$text)" '
            { open[FNR == NR] = $1; first[FNR == NR] = $2; all[FNR == NR] = $3 }
            function rate(s) { return bytes / s / 1e6 }
            END {
                printf "%-12s %-6s %6.1f MB  begin %.3f s  first %6.1f MB/s  all %6.1f MB/s  quicktok %.3f s %6.1f %6.1f  ratio %.2f %.2f\n",
                       encoding, text, bytes / 1e6, open[1], rate(first[1]), rate(all[1]), open[0], rate(first[0]),
                       rate(all[0]), first[0] / first[1], all[0] / all[1]
                printf "{\"bench\": \"tokens\", \"vocabulary\": \"%s\", \"text\": \"%s\", \"mb\": %s, \"begin_s\": %s, \"first_s\": %s, \"all_s\": %s, \"peer_begin_s\": %s, \"peer_first_s\": %s, \"peer_all_s\": %s}\n",
                       encoding, text, bytes / 1e6, open[1], first[1], all[1], open[0], first[0], all[0]
            }' ours theirs
    done
done
