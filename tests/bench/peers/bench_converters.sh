#!/bin/sh
# bench_converters.sh - shardkit's conversions next to the programs that people use today, in one run
#
# Makes a made-up model of SIZE_GB (1) of masters and moments: its fp32 weights as DCP folder (FSDP2), and all of it as
# ZeRO-3 checkpoint, of RANKS (4) each. Then runs each pair ROUNDS (3) times, alternately, with inputs in the page cache:
#   dcp-torch        torch.distributed.checkpoint.format_utils.dcp_to_torch_save        | export-hf --format bin
#   dcp-merge        accelerate.utils.merge_fsdp_weights, to safetensors                | export-hf
#   zero3-fp32       deepspeed.utils.zero_to_fp32, masters to safetensors               | export-hf --dtype fp32
#   zero3-universal  deepspeed.checkpoint.ds_to_universal with a worker for each core   | ds2universal
# Prints one line per pair: seconds and peak memory of each (the largest process), and the ratios; then what was converted
# and the same figures as rows of a table. converters.txt next to this script has these last lines of the newest run that
# was kept, and README.md has its rows (tests/cli/readme-figures). PYTHON is a Python that has torch, deepspeed and
# accelerate; a pair whose module is absent is named and left out. DIR (build/bench) is the folder that is worked in, KEEP=1
# leaves the inputs for the next run.
set -eu
cd "$(dirname "$0")/../../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-1} ranks=${RANKS:-4} rounds=${ROUNDS:-3} dir=${DIR:-build/bench} python=${PYTHON:-python3}
peers=$PWD/tests/bench/peers
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf conv-in conv-uni conv-weights out out.part* conv-*.times conv-rows
      [ -n "${KEEP:-}" ] || rm -rf conv-dcp conv-zero3 conv.made' EXIT

make_inputs() {
    shape="--hidden 1024 --heads 16 --seq 1024 --vocab 50257 --tp 1 --pp 1 --dp 2"
    # shellcheck disable=SC2086
    layers=$(layers_for "$size_gb" 1 1 $shape)
    [ "$(cat conv.made 2>/dev/null)" = "$shape $layers $ranks" ] && return
    rm -rf conv-dcp conv-zero3 conv.made
    # shellcheck disable=SC2086
    "$BENCH/mkckpt" $shape --layers "$layers" conv-in
    "$BIN/reshape" -q --to dcp --ranks "$ranks" conv-in/global_step20 conv-dcp 2>/dev/null
    rm -rf conv-in
    "$BIN/ds2universal" -q conv-dcp conv-uni/global_step20 2>/dev/null
    "$BIN/reshape" -q --to zero3 --ranks "$ranks" conv-uni/global_step20 conv-zero3/global_step20
    "$BIN/export-hf" -q --dtype fp32 conv-dcp conv-weights 2>/dev/null
    rm -rf conv-dcp
    "$BIN/reshape" -q --to dcp --weights-only --ranks "$ranks" conv-weights conv-dcp
    rm -rf conv-weights
    echo global_step20 >conv-zero3/latest
    rm -rf conv-uni
    echo "$shape $layers $ranks" >conv.made
}

ours() {    # PAIR
    case $1 in
        dcp-merge) set -- export-hf -q conv-dcp out ;;
        dcp-torch) set -- export-hf -q --format bin conv-dcp out ;;
        zero3-fp32) set -- export-hf -q --dtype fp32 conv-zero3 out ;;
        zero3-universal) set -- ds2universal -q conv-zero3 out/global_step20 ;;
    esac
    tool=$1
    shift
    "$BENCH/measure" conv-ours.times "$BIN/$tool" "$@" 2>conv.log || cat conv.log >&2
}

# The least of the runs in FILE: "seconds megabytes"
least() { sort -g "$1" | awk 'NR == 1 { printf "%.2f %.0f", $1, $4 / 1e6 }'; }

pair() {    # NAME MODULE
    if ! "$python" -c "import $2" 2>/dev/null; then
        echo "$1: skipped, $python has no $2"
        return
    fi
    rm -f conv-ours.times conv-peer.times
    for _ in $(seq "$rounds"); do
        rm -rf out
        "$BENCH/measure" conv-peer.times "$python" "$peers/converters.py" "$1" conv-dcp conv-zero3 out >conv.log 2>&1 ||
            { cat conv.log >&2; return 1; }
        rm -rf out
        ours "$1"
    done
    echo "$1 $(least conv-peer.times) $(least conv-ours.times)" | awk '{
        printf "%-16s peer %7.2f s %6d MB   shardkit %6.2f s %5d MB   %.1f times faster, %.0f times less memory\n",
               $1, $2, $3, $4, $5, $2 / $4, $3 / $5 }'
    case $1 in
        dcp-torch) title="FSDP2 to one file | torch format_utils" ;;
        dcp-merge) title="FSDP2 to safetensors | accelerate merge" ;;
        zero3-fp32) title="ZeRO-3 to fp32 safetensors | DeepSpeed zero_to_fp32" ;;
        zero3-universal) title="ZeRO-3 to universal | DeepSpeed ds_to_universal" ;;
    esac
    echo "$(least conv-peer.times) $(least conv-ours.times)" | awk -v title="$title" '
        function thousands(n) { return n < 1000 ? n "" : int(n / 1000) sprintf(",%03d", n % 1000) }
        { printf "| %s: %.1f s, %s MB | %.2f s, %s MB |\n", title, $1, thousands($2), $3, thousands($4) }' >>conv-rows
}

make_inputs
echo "$(bytes_in conv-dcp) $(bytes_in conv-zero3)" | awk -v ranks="$ranks" -v cores="$(nproc)" '{
    printf "%d cores, %d ranks, %.0f M parameters: %.2f GB of DCP, %.2f GB of ZeRO-3\n", cores, ranks, $1 / 4e6, $1 / 1e9, $2 / 1e9 }' >conv-rows
find conv-dcp conv-zero3 -type f -exec cat {} + >/dev/null
pair dcp-torch torch
pair dcp-merge accelerate
pair zero3-fp32 deepspeed
pair zero3-universal deepspeed
cat conv-rows
