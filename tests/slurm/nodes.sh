#!/bin/sh
# nodes.sh - broken nodes: a spare in place, the job requeued without them, a smaller run, another batch host
. "$(dirname "$0")/lib.sh"
SUPERVISE_ARGS='--watch-seconds 5 --pause 1'
export SUPERVISE_ARGS

# A disk that went bad below the program, on one node alone.
head -c 4096 "$BIN/train" >"$W/broken" && chmod +x "$W/broken"
break_node() { on_node "$1" mount --bind "$W/broken" "$BIN/train"; }
mend_node() { on_node "$1" umount "$BIN/train"; }
nodes_of_start() { sed -n 's/.*: start '"$1"' on [0-9]* nodes (\([^)]*\)).*/\1/p' "$RUN/supervise/log" | tail -n 1; }

# ---- requeued: the job has no spare, there are idle nodes; meanwhile the others ----

break_node node1
new_run requeued
submit
check_until "a broken node is found before the start" 90 decided 'node1 is left out: its preflight: status [0-9]+'
check_until "the job is requeued without it" 60 \
    decided 'requeued without node1: 1 of 2 nodes are left, [0-9]+ are idle elsewhere'
check_until "which Slurm is told" 60 sh -c "scontrol show job $job | grep -q 'ExcNodeList=node1'"
requeued=$job requeued_run=$RUN requeued_s=$(date +%s)

# ---- a spare, which needs no queue ----

new_run spare
break_node node4
SPARES=2 submit --exclude=node1
check_until "a spare takes a broken node's place" 120 decided 'start 1 on 2 nodes '
mend_node node4
check "without node1 and node4" sh -c "case $(nodes_of_start 1) in *node4* | *node1*) exit 1 ;; esac"
check_until "and the run trains" 60 saved 20

# ---- the script's own host dies: Slurm requeues the job ----

first=$(squeue -h -j "$job" -o %B) at=$(iterations | tail -n 1) at_s=$(date +%s)
kill -KILL "$(cat "$CLUSTER/run/$first")"
check_until "the script's host dies: Slurm requeues the job" 90 sh -c "scontrol show job $job | grep -q 'Restarts=1'"
spare=$job spare_run=$RUN

# ---- the first again ----

RUN=$requeued_run job=$requeued
check_until "the requeued job starts" $((300 - ($(date +%s) - requeued_s))) decided 'start 1 on 2 nodes '
check_until "and trains, within five minutes" $((300 - ($(date +%s) - requeued_s))) saved 20
check "on other nodes" sh -c "! squeue -h -j $job -o %N | grep -q 'node1\|node\[1'"
scancel "$job"

RUN=$spare_run job=$spare
# shellcheck disable=SC2317
again() { [ "$(iterations | tail -n 1)" -gt $((at + SAVE_INTERVAL)) ]; }
check_until "that of the dead host trains again within five minutes" $((300 - ($(date +%s) - at_s))) again
check "on others" sh -c "! squeue -h -j $job -o %N | xargs scontrol show hostnames | grep -qx $first"
scancel "$job"
until_true 60 state_is "$job" CANCELLED

# ---- fewer: no spare, none idle, and the bad nodes of before are remembered ----

sh tests/slurm/cluster.sh start-node "$CLUSTER" "${first#node}" >/dev/null 2>&1
# shellcheck disable=SC2016
until_true 60 sh -c '[ $(sinfo -h -N -o %T | grep -c "^idle") -eq 6 ]'
new_run fewer
mkdir -p "$RUN/supervise"
echo "node2 $(date +%s) for a test" >"$RUN/supervise/bad"
# node1 is broken still; 3 of 4 nodes cannot divide a batch of 64, 2 can.
others=$(sbatch --parsable --nodes=2 --nodelist=node5,node6 --output=/dev/null --wrap 'sleep 600')
until_true 30 state_is "$others" RUNNING
NODES=4 MIN_NODES=2 submit
check_until "too few nodes, and none elsewhere" 120 decided 'goes on with 2 nodes in place of 4: 2 are left'
check_until "the run trains on them" 90 saved 20
check "with fewer replicas" grep -q 'data-parallel-size: 2' "$RUN/logs/main_log.txt"
touch "$RUN/kill-switch"
check_until "and ends in order" 60 state_is "$job" COMPLETED
rm "$RUN/kill-switch"
# The whole again, from what a quarter less wrote.
rm "$RUN/supervise/bad"
mend_node node1
at=$(latest)
NODES=4 submit
check_until "with all nodes it goes on at full size" 120 saved $((at + 20))
check "from there" decided "start 1 on 4 nodes .* from global_step$at\$"
scancel "$job" "$others"
has_sacct && sacct -D -X -o jobid,jobname%12,state%12,nodelist%20,comment%60
finish
