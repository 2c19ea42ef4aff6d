#!/bin/sh
# torchrun.sh - jobs started by the genuine torchrun, with each of its rendezvous methods
#
# Needs a Python with torch (tests/lib/python.sh); skipped without.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh && . tests/lib/train.sh
demo=$TBIN/tools/commdemo
need_python torch.distributed.run torch
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE
export OMP_NUM_THREADS=1
port=$((20000 + $(random 10000)))
torchrun() { timeout 120 "$python" -m torch.distributed.run --no_python "$@"; }
# The torchrun of Debian 12's torch 1.13 starts nothing.
torchrun --standalone --nproc_per_node 1 true >/dev/null 2>&1 || skip "torch.distributed.run of $python starts no program"

# worlds N: the log must have exactly N ranks, each of a world of N.
worlds() { [ "$(grep -c '^rank [0-9]* of' "$W/job")" -eq "$1" ] && [ "$(grep -c "^rank [0-9]* of $1," "$W/job")" -eq "$1" ]; }

# nodes N OPTIONS...: start N agents on this machine with two ranks each; %NODE% in an option is the agent's number.
nodes() {
    n=$1 pids='' bad=0 node=0; shift
    while [ $node -lt "$n" ]; do
        # shellcheck disable=SC2046
        torchrun --nnodes "$n" --nproc_per_node 2 $(echo "$@" | sed "s/%NODE%/$node/g") "$demo" where >"$W/node$node" 2>&1 &
        pids="$pids $!" node=$((node + 1))
    done
    for p in $pids; do wait "$p" || bad=1; done
    cat "$W"/node[0-9]* | tee "$W/job"
    return $bad
}

torchrun --standalone --nproc_per_node 4 "$demo" where >"$W/job" 2>&1 || { fail "--standalone runs"; tail -n 5 "$W/job"; }
check "--standalone: four ranks" worlds 4
torchrun --standalone --nproc_per_node 3 "$demo" check >"$W/job" 2>&1
check "--standalone: the collectives" grep -q '^checked$' "$W/job"
check "static, two hosts' agents" nodes 2 --node_rank %NODE% --master_addr 127.0.0.1 --master_port $port
check "static: four ranks" worlds 4
check "c10d, two hosts' agents" nodes 2 --rdzv_backend c10d --rdzv_id one --rdzv_endpoint 127.0.0.1:$((port + 1))
check "c10d: four ranks" worlds 4
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; export TORCH_DISABLE_SHARE_RDZV_TCP_STORE
check "c10d without its shared store" nodes 2 --rdzv_backend c10d --rdzv_id two --rdzv_endpoint 127.0.0.1:$((port + 2))
check "c10d without its shared store: four ranks" worlds 4
unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE

# A training run that saves; and two runs at the same time, neither of which receives a rank of the other.
# shellcheck disable=SC2086
training() {
    torchrun --standalone --nproc_per_node 2 "$BIN/train" --num-layers 2 --hidden-size 32 --num-attention-heads 2 \
        $GPT2 $COMMON --vocab-size 257 --exit-interval 2 --data-path "$DATA_DIR/text_document" \
        --save "$W/$1" --save-interval 100 >"$W/$1.log" 2>&1
}
training one & first=$!
training two; check "a run of two ranks" [ $? -eq 0 ]
wait $first; check "another at the same time" [ $? -eq 0 ]
check "both saved" [ "$(cat "$W/one/latest" "$W/two/latest" | tr -d '\n')" = global_step2global_step2 ]
series "$W/one.log" >"$W/one.series"; series "$W/two.log" >"$W/two.series"
check "and computed the same" cmp "$W/one.series" "$W/two.series"
check "in two iterations" [ "$(grep -c . "$W/one.series")" -ge 2 ]

# A rank that dies is named, and torchrun ends.
torchrun --standalone --nproc_per_node 4 "$demo" run >"$W/job" 2>&1 & job=$!
tenths=300
while [ "$(grep -c '^rank [0-9]* pid' "$W/job")" -lt 4 ] && [ $tenths -gt 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
kill -9 "$(sed -n 's/^rank 2 pid //p' "$W/job")"
wait $job; check "a job with a dead rank fails" [ $? -ne 0 ]
check "and names it" grep -q '^rank 2 (host .*) died: ' "$W/job"
finish
