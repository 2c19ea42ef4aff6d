#!/bin/sh
# train_memory.sh - a CPU rank uses the memory that a dry run plans for it, including the snapshots of its saves
#
# QUICK=1 runs two of the four cases.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
MODEL="--backend cpu --threads 1 --bf16 --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128
    --max-position-embeddings 128 --position-embedding-type alibi --embed-layernorm --vocab-size 60000
    --micro-batch-size 2 --global-batch-size 4 --train-samples 400000 --lr 1e-4 --eval-iters 0 --log-interval 1
    --data-path $DATA_DIR/text_document"

# Convert "700.5 MB" and "1.2 GB" to bytes.
bytes() { awk '{ print $1 * ($2 == "GB" ? 1e9 : $2 == "MB" ? 1e6 : 1e3) }'; }
# Print the peaks of the ranks that have --status-file $W/s. Their writers share the snapshot and add little.
peaks() { for p in $(pgrep -f "^[^ ]*/train .*--status-file $W/s "); do
    case $(ps -o comm= -p "$(ps -o ppid= -p "$p" | tr -d ' ')" 2>/dev/null) in train) continue ;; esac
    awk '/^VmHWM:/ { print $2 * 1024 }' "/proc/$p/status"; done | sort -n; }

# plan_and_run NAME RANKS OPTIONS...: the plan of the fullest stage and the largest rank must agree within 5 %.
plan_and_run() {
    name=$1 n=$2; shift 2
    # shellcheck disable=SC2086
    train $MODEL "$@" --dry-run --dry-run-ranks "$n" >"$W/plan" 2>&1
    planned=$(sed -n 's/^memory of a rank of stage [0-9]*: \([0-9.]* [kMGT]B\):.*/\1/p' "$W/plan" | bytes | sort -n | tail -n 1)
    rm -f "$W/switch"; : >"$W/run"
    # shellcheck disable=SC2086
    launch "$n" $MODEL --status-file "$W/s" --kill-switch-path "$W/switch" "$@" >"$W/run" 2>&1 &
    job=$! i=0
    until [ "$(grep -c '^ iteration' "$W/run")" -ge 3 ] || [ $i -gt 1200 ]; do sleep 0.1; i=$((i + 1)); done
    took=$(peaks | tail -n 1)
    : >"$W/switch"; wait $job
    off=$(echo "$planned ${took:-0}" | awk '{ d = ($1 - $2) / $2 * 100; printf "%.1f", d < 0 ? -d : d }')
    check "$name: planned $planned, took $took: $off % off" [ "${off%.*}" -lt 5 ]
    rm -rf "$W/out"
}
quick || plan_and_run "without --save" 1
quick || plan_and_run "with --save" 1 --save "$W/out" --save-interval 1
plan_and_run "stages" 2 --save "$W/out" --save-interval 1 --pipeline-model-parallel-size 2
plan_and_run "data parallel" 2 --save "$W/out" --save-interval 1
finish
