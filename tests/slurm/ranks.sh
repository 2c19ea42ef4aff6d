#!/bin/sh
# ranks.sh - a rank is killed, one is stopped, all are, a host dies: the run goes on, on other nodes, without a person
#
# One job of six nodes of two GPUs that needs two; a dead step still holds its GPUs, for Slurm. Each time: on other nodes within five minutes, at most one save interval lost,
# and the log says why.
# shellcheck disable=SC2317
. "$(dirname "$0")/lib.sh"

new_run ranks
GRES=gpu:2 NO_KILL=1 SPARES=4 COLLECTIVE_TIMEOUT=20 STALL_NOTICE=3 HANG_MINUTES=1 TIME=40 ALARM="cat >>$W/alarms" \
    SUPERVISE_ARGS='--watch-seconds 5 --pause 1' submit
check_until "it trains and saves" 120 saved 40
shown() { tr '\0' '\n' <"/proc/$(rank_pid "$1")/environ" | sed -n 's/^CUDA_VISIBLE_DEVICES=//p'; }
for rank in 0 3; do check "rank $rank sees its node's GPUs" [ "$(shown $rank)" = 0,1 ]; done

# What the run had, and which nodes it had it on, before something happens.
remember() {
    start=$(grep -c 'SUPERVISE.*: start [0-9]* on ' "$RUN/supervise/log")
    at_s=$(date +%s) at=$(iterations | tail -n 1)
    on=$(sed -n 's/.*: start [0-9]* on [0-9]* nodes (\([^)]*\)).*/\1/p' "$RUN/supervise/log" | tail -n 1)
}
# Where the start behind it went on from, and on which nodes.
resumed() { [ "$(grep -c 'SUPERVISE.*: start [0-9]* on ' "$RUN/supervise/log")" -gt "$start" ]; }
trains_on() { resumed && saved $((at + 1)); }
has_step() { steps "$job" | grep -qE "$1"; }
lived_through() {   # NAME CAUSE HOST: HOST is not among the nodes any more
    check_until "$1: it trains again within five minutes" $((300 - ($(date +%s) - at_s))) trains_on
    echo "$1: $(($(date +%s) - at_s)) s until a new checkpoint"
    check "$1: the log says why" decided "start $start failed: $2, status [0-9]+, $3: "
    next=$(grep ": start $((start + 1)) on " "$RUN/supervise/log")
    check "$1: not on $3 any more" sh -c "case '$next' in *[,\(]$3[,\)]*) exit 1 ;; esac"
    from=$(echo "$next" | sed -n 's/.* from global_step\([0-9]*\)$/\1/p')
    check "$1: from ${from:-nowhere} after $at, an interval of $SAVE_INTERVAL" \
        [ $((at - ${from:--9999})) -le $((SAVE_INTERVAL + 1)) ]
    # The step of a host that is gone has lost a node.
    if has_sacct; then
        # What Slurm knows is some time on its way to the database.
        check_until "$1: sacct has the step that failed" 20 \
            has_step "^train-$start (FAILED|CANCELLED.*|NODE_FAIL|RESIZING)$"
    fi
}

remember
pid=$(rank_pid 3) host=$(node_of "$pid")
kill -KILL "$pid"
lived_through "a rank is killed" lost "$host"

remember
pid=$(rank_pid 1) host=$(node_of "$pid")
kill -STOP "$pid"
check_until "a rank is stopped: an alarm" 60 grep -q 'SUPERVISE.*: hang: ' "$W/alarms"
echo "a rank is stopped: an alarm after $(($(date +%s) - at_s)) s"
lived_through "a rank is stopped" hang "$host"

# A host that is gone: all of its processes, its network. It is not the one that the job's script runs on.
remember
host=$(echo "$on" | tr , '\n' | grep -vx "$(squeue -h -j "$job" -o %B)" | head -n 1)
kill -KILL "$(cat "$CLUSTER/run/$host")"
lived_through "a host is gone" lost "$host"

# Nobody is left to tell: every rank stands still.
remember
for rank in 0 1 2 3; do kill -STOP "$(rank_pid $rank)"; done
check_until "all ranks are stopped: it is ended" 150 decided 'nothing has moved for 1 minutes: the step is ended'
check_until "all ranks are stopped: it trains again" 200 trains_on
check "all ranks are stopped: the log says why" decided "start $start failed: hang, status "

check "after all of that a rank still sees its node's GPUs" [ "$(shown 3)" = 0,1 ]
# From the whole of it no iteration is missing.
iterations | sort -nu >"$W/got"
check "every iteration was done" sh -c "seq $(wc -l <"$W/got") | cmp - '$W/got'"
touch "$RUN/kill-switch"
check_until "it ends" 60 state_is "$job" COMPLETED
check "in order" decided 'ended in order at iteration [0-9]+: kill-switch'
check "what is saved is whole" ckpt-inspect verify -q "$RUN/ckpt"
has_sacct && sacct -j "$job" -o jobid,jobname%16,state%16,exitcode,nodelist%24
grep SUPERVISE "$RUN/supervise/log"
finish
