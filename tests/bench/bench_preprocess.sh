#!/bin/sh
# bench_preprocess.sh - a folder of .jsonl.zst shards to tokens: one process, 4 processes that share them, through a
# pipe, and beside Hugging Face's tokenizers (PYTHON with tokenizers and numpy; left out where there is none)
#
# SHARDS (30) of MB (2) megabytes of text each, like the Pile's: paragraphs of TEXT (tests/data/demo/*.txt) in
# another order in each. The vocabulary has GPT-2's form. THREADS (2). All four must give the same tokens.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
root=$PWD shards=${SHARDS:-30} mb=${MB:-2} threads=${THREADS:-2} python=${PYTHON:-python3}
vocab=$root/tests/data/text/bpe-vocab.json merges=$root/tests/data/text/bpe-merges.txt
PATH=$BIN:$BENCH:$PATH
command -v zstd >/dev/null || { echo "zstd is not installed"; exit 1; }
work=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/shardkit-tokens-XXXXXX")
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2086
cat ${TEXT:-tests/data/demo/*.txt} >"$work/text"
cd "$work"
i=0
while [ $i -lt "$shards" ]; do
    # Documents of one to six paragraphs, drawn by the shard's number.
    awk -v seed=$i -v want=$((mb * 1000000)) '
        length($0) { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/[\001-\037]/, " "); p[n++] = $0 }
        END {
            srand(seed)
            while (size < want) {
                text = ""
                for (k = int(rand() * 6) + 1; k > 0; k--) text = text p[int(rand() * n)] "\\n"
                size += length(text)
                print "{\"text\": \"" text "\", \"meta\": {\"set\": \"shard\"}}"
            }
        }' text | zstd -q -o "$(printf '%02d' $i).jsonl.zst"
    i=$((i + 1))
done
mb_text=$(zstdcat ./*.zst | wc -c | awk '{ printf "%.1f", $1 / 1e6 }')
echo "$shards shards, $mb_text MB of JSONL, $(cat ./*.zst | wc -c | awk '{ printf "%.1f", $1 / 1e6 }') MB packed, $threads threads"

report() {  # NAME SECONDS
    awk -v name="$1" -v s="$2" -v mb="$mb_text" 'BEGIN {
        printf "%-28s %8.2f s  %7.1f MB/s\n{\"bench\": \"preprocess\", \"how\": \"%s\", \"wall_s\": %s, \"mb\": %s}\n",
               name, s, mb / s, name, s, mb }'
}
timed() {   # NAME COMMAND...
    name=$1; shift
    measure times "$@" >/dev/null
    report "$name" "$(last times)"
}
gpt2="--vocab $vocab --merges $merges -q"
# shellcheck disable=SC2016
{
    timed "one process" preprocess $gpt2 -j "$threads" --input ./*.zst --output-prefix one
    timed "zstdcat | preprocess" sh -c 'zstdcat ./*.zst | preprocess "$@"' sh $gpt2 -j "$threads" --input - --output-prefix piped
    timed "4 processes" sh -c 'for i in 0 1 2 3; do preprocess "$@" --part $i/4 & done; wait' sh $gpt2 -j 1 --input ./*.zst \
        --output-prefix four
}
for made in piped four; do cmp one_text_document.bin ${made}_text_document.bin; cmp one_text_document.idx ${made}_text_document.idx; done
if "$python" -c 'import tokenizers, numpy' 2>/dev/null; then
    # shellcheck disable=SC2046
    set -- $("$python" "$root/tests/bench/peers/hf_tokens.py" "$vocab" "$merges" "$threads" ./*.zst)
    report "tokenizers $4" "$1"
    [ "$3" = "$(sha256sum <one_text_document.bin | cut -d' ' -f1)" ] || { echo "its tokens differ from ours"; exit 1; }
else
    echo "no tokenizers in $python: left out"
fi
