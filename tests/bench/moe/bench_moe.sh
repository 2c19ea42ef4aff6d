#!/bin/sh
# bench_moe.sh - a model of 45,395 tensors: seconds and peak memory of listing, verifying and converting it
#
# The names and shapes are those of DeepSeek-V3 (mkmoe.py). It is listed in its real size (1.3 TB, sparse files), with
# the file names and headers in the page cache. It is verified and converted with widths divided by SCALE (16: 5.3 GB),
# beside `cat` of its files. The folder that Megatron-core's form is exported to must have the tensors of the first.
# DIR (build/bench) is the folder to work in, with room for three times the size. Needs python3. Each command adds a
# line to OUT (build/bench-moe.jsonl). Status 1: a command failed, or a tensor differs.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../../.."
. tests/bench/lib.sh
out=$PWD/${OUT:-build/bench-moe.jsonl} script=$PWD/tests/bench/moe/mkmoe.py scale=${SCALE:-16} dir=${DIR:-build/bench}
mkdir -p "$dir"
W=$(mktemp -d "$dir/moe-XXXXXX")
trap 'rm -rf "$W"' EXIT
W=$(cd "$W" && pwd)
cd "$W"
python3 "$script" real >real.size
python3 "$script" model "$scale" >model.size
read -r n files bytes <model.size
echo "$n tensors in $files files; $(cut -d' ' -f3 real.size) bytes, and $bytes bytes with widths divided by $scale"

# took NAME BYTES COMMAND...: run a command and print its seconds, its peak memory, and its rate if BYTES is not 0
took() {
    name=$1 size=$2
    shift 2
    "$BENCH/measure" "$name.times" "$@" >run.log 2>&1 || { echo "$name: failed: $(tail -n 1 run.log)"; exit 1; }
    tail -n 1 "$name.times" | awk -v name="$name" -v size="$size" -v out="$out" '{
        printf "%-12s %7.2f s  %6.2f s of processors  %5.0f MB", name, $1, $2 + $3, $4 / 1e6
        if (size) printf "  %5.2f GB/s", size / $1 / 1e9
        print ""
        printf "{\"bench\": \"moe\", \"command\": \"%s\", \"wall_s\": %s, \"cpu_s\": %.3f, \"peak_bytes\": %s}\n", name, $1,
            $2 + $3, $4 >>out }'
}
"$BIN/ckpt-inspect" ls real >/dev/null
took ls 0 "$BIN/ckpt-inspect" ls real
# shellcheck disable=SC2016
took cat "$bytes" sh -c 'cat model/*.safetensors | cat >/dev/null'
took verify "$bytes" "$BIN/ckpt-inspect" verify --mem 64M model
took fused "$bytes" "$BIN/export-hf" --mem 64M --experts fused model fused
rm -rf fused
took dcp "$bytes" "$BIN/reshape" --mem 64M --to dcp --ranks 4 model dcp
rm -rf dcp
took torchdist "$bytes" "$BIN/reshape" --mem 64M --to torchdist --ranks 4 model torchdist
took exported "$bytes" "$BIN/export-hf" --mem 64M --config model torchdist exported
"$BIN/ckpt-inspect" diff -q model exported >run.log 2>&1 || { echo "the tensors differ: $(tail -n 1 run.log)"; exit 1; }
