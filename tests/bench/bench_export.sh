#!/bin/sh
# bench_export.sh - export-hf beside cp and beside what the disk can do at all
#
# Makes a BLOOM and a GPT-2 checkpoint, then for each in ROUNDS rounds, cache cold:
#   ours    export-hf (bf16 layer files to safetensors; GPT-2 transposes on the way)
#   cp      cp -r of the same input bytes
#   floor   dd reading as many bytes as ours reads, and dd writing as many as ours writes,
#           both O_DIRECT with 16 MiB blocks, started together, until both have ended
# then once each, for BLOOM: --dtype fp32 from the masters, and the import back.
# Every time includes syncing the file system. Prints text and a JSON line for each model.
#
# SIZE_GB (1.2) of bf16 weights; DIR (build/bench) on the disk to be measured, with room for
# 12 times that; THREADS (all cores); ROUNDS (3); KEEP=1 leaves the inputs for the next run.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
size_gb=${SIZE_GB:-1.2} dir=${DIR:-build/bench} threads=${THREADS:-$(nproc)} rounds=${ROUNDS:-3}
mkdir -p "$dir"
cd "$dir"
trap 'rm -rf hf back copy same big floor.out *.times; [ -n "${KEEP:-}" ] || rm -rf export-bloom* export-gpt2*' EXIT

# h 2048, 16 heads: a layer is 0.1 GB of weights.
make_input() {  # MODEL POSITIONS
    shape="--hidden 2048 --heads 16 --seq 2048 --vocab 50257 --tp 2 --pp 2 --dp 1 --positions $2"
    layers=$(awk "BEGIN { n = int(($size_gb - 0.2) / 0.1007 + 0.5); print n < 2 ? 2 : n }")
    # shellcheck disable=SC2086
    make_once "export-$1" $shape --layers "$layers"
}

report() {      # MODEL IN_BYTES OUT_BYTES
    awk -v model="$1" -v in_bytes="$2" -v out_bytes="$3" -v threads="$threads" "$awk_times"'
    END {
        o = median(wall, "ours"); c = median(wall, "cp"); f = median(wall, "floor"); u = median(cpu, "ours")
        most = rss["ours"]
        moved = (in_bytes + out_bytes) * 1e-9
        printf "%s: %.2f GB read, %.2f GB written, %d threads, medians of %d\n", model, in_bytes * 1e-9, out_bytes * 1e-9, threads, n["ours"]
        printf "  ours     %7.2f s  %5.2f GB/s moved, cpu %.3f s/GB moved, at most %.0f MB\n", o, moved / o, u / moved, most * 1e-6
        printf "  cp -r    %7.2f s  ours is %.2f times as fast\n", c, c / o
        printf "  floor    %7.2f s  ours is at %.0f %% of it\n", f, 100 * f / o
        printf "{\"bench\": \"export\", \"model\": \"%s\", \"read_bytes\": %.0f, \"write_bytes\": %.0f, \"threads\": %d, \"rounds\": %d, ", model, in_bytes, out_bytes, threads, n["ours"]
        printf "\"wall_s\": %.3f, \"cpu_s\": %.3f, \"max_rss_bytes\": %.0f, \"cp_wall_s\": %.3f, \"floor_wall_s\": %.3f, ", o, u, most, c, f
        printf "\"times_cp\": %.3f, \"share_of_floor\": %.3f}\n", c / o, f / o
    }' ours.times cp.times floor.times
}

for model in bloom gpt2; do
    make_input $model $([ $model = bloom ] && echo alibi || echo absolute)
    tag=export-$model/global_step20
    rm -rf same big hf back copy ./*.times
    mkdir same
    ln $tag/layer_* $tag/mp_rank_* same/
    cat same/* >big
    in_bytes=$(stat -c %s big)
    for round in $(seq "$rounds"); do
        cold
        measured ours "$BIN/export-hf" -q --threads "$threads" $tag hf
        out_bytes=$(bytes_in hf)
        rm -rf hf
        cold
        measured cp cp -r same copy
        rm -rf copy
        cold
        floor_of_dd "$out_bytes"
        echo "$model round $round: ours $(last ours.times) s, cp $(last cp.times) s, floor $(last floor.times) s"
    done
    rm -rf big same
    report $model "$in_bytes" "$out_bytes"
    cold
    measured fp32 "$BIN/export-hf" -q --threads "$threads" --dtype fp32 $tag hf
    echo "  fp32 from the masters: $(awk '{ printf "%.2f s, at most %.0f MB", $1, $4 * 1e-6 }' fp32.times)"
    rm -rf hf
    "$BIN/export-hf" -q $tag hf
    cold
    measured import "$BIN/export-hf" -q --threads "$threads" --import --target-tp 2 --target-pp 2 hf back/global_step0
    echo "  import, TP 2, PP 2: $(awk '{ printf "%.2f s, at most %.0f MB", $1, $4 * 1e-6 }' import.times)"
    rm -rf hf back
    [ -n "${KEEP:-}" ] || rm -rf export-$model export-$model.made
done
