# lib.sh - what the scripts of this folder share; sourced first. A cluster comes up and the script runs in it
#
# Needs what cluster.sh needs; else the script is skipped. Values of the job that all have: a BLOOM of two blocks on
# four CPU ranks of two nodes, 0.1 s an iteration. Like tests/fault it ends with `finish`.
cd "$(dirname "$0")/../.." || exit 1
if [ -z "${CLUSTER:-}" ]; then
    if ! why=$(sh tests/slurm/cluster.sh can); then
        echo "a Slurm of several nodes: $why: skipped"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    # Short: the database's socket lies below it.
    CLUSTER=$(mktemp -d /tmp/shardkit-slurm-XXXXXX)
    export CLUSTER
    trap 'sh tests/slurm/cluster.sh down "$CLUSTER"' EXIT
    trap 'exit 130' INT TERM
    sh tests/slurm/cluster.sh up "$CLUSTER" "${SLURM_NODES:-6}" || exit 1
    sh tests/slurm/cluster.sh in "$CLUSTER" sh "$0"
    status=$?
    sh tests/slurm/cluster.sh down "$CLUSTER"
    trap - EXIT             # which would make the folder again
    if [ $status -eq 0 ]; then rm -rf "$CLUSTER"; else echo "kept: $CLUSTER"; fi
    exit $status
fi
. tests/fault/lib.sh
KIT=$PWD/ops/slurm
has_sacct() { grep -q slurmdbd "$CLUSTER/slurm.conf"; }

cp tests/data/text/text_document* "$W"
RUN=$W/run JOB_NAME=run
export RUN JOB_NAME KIT DATA_PATH="$W/text_document"
export VOCAB_SIZE=257 NLAYERS=2 NHIDDEN=32 NHEADS=2 SEQ_LEN=128 PP=2 MBS=1 GBS=64
export TRAIN_SAMPLES=2_000_000 LR=1e-3 EVAL_ITERS=0 SAVE_INTERVAL=20 ATTENTION_DROPOUT=0 HIDDEN_DROPOUT=0
export NODES=2 TASKS_PER_NODE=2 GRES='' CPUS_PER_TASK=1 EXCLUSIVE=0 TIME=20 OUTPUT="$W/%x-%j.out"
# What two busy cores measure says nothing about speed.
export SHARDKIT_THREADS=1 SHARDKIT_BACKEND=cpu SLOW_NODES=keep

# Wait until a command is true, at most $1 seconds.
until_true() {
    tenths=$(($1 * 10)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$tenths" -gt 0 ] || return 1
        tenths=$((tenths - 2)); sleep 0.2
    done
}
# What a wait that was in vain should be read with.
show() {
    squeue -o '%i %j %T %r %N'
    tail -n 15 "$RUN/supervise/log"
    for out in "$W/$JOB_NAME"*.out; do
        grep -v '^ iteration\|^  [a-z_]* \.\.\|^\[20\|straggler' "$out" | tail -n 8
    done
}
check_until() {     # NAME SECONDS COMMAND...
    name=$1; shift
    if until_true "$@"; then pass; else fail "$name"; show 2>&1 | sed 's/^/    /'; fi
}
new_run() {         # NAME: a folder of its own, a name of its own
    RUN=$W/$1 JOB_NAME=$1
    export RUN JOB_NAME
    mkdir -p "$RUN"
}
# The id is left in $job.
# shellcheck disable=SC2034,SC2120
submit() { job=$(sh "$KIT/submit" --parsable "$@"); }
state_is() { [ "$(squeue -h -t all -j "$1" -o %T | sort -u)" = "$2" ]; }
reason_is() { [ "$(squeue -h -j "$1" -o %r)" = "$2" ]; }
decided() { grep -qE "SUPERVISE: job [0-9]+: $1" "$RUN/supervise/log"; }
latest() { sed 's/global_step//' "${SAVE:-$RUN/ckpt}/latest" 2>/dev/null || echo 0; }
saved() { [ "$(latest)" -ge "$1" ]; }
# Iterations that the main log has, in order.
iterations() { sed -n 's/^ iteration *\([0-9]*\)\/.*/\1/p' "$RUN/logs/main_log.txt"; }
stop_reason() { sed -n 's/.*"stop_reason":"\([^"]*\)".*/\1/p' "$RUN/ckpt/status.json"; }
# Steps that sacct knows: "NAME STATE".
steps() { ! has_sacct || sacct -n -P -D -j "$1" -o jobname,state | tr '|' ' '; }

# ---- breaking things ----

# The process of a rank of $job; its writer has the same variables and a larger number.
rank_pid() {        # RANK
    for pid in $(pgrep -x train | sort -n); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null >"$W/environ"
        if grep -qx "SLURM_PROCID=$1" "$W/environ" && grep -qx "SLURM_JOB_ID=$job" "$W/environ"; then
            echo "$pid"
            return
        fi
    done
}
node_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^SLURMD_NODENAME=//p'; }
# A command in the namespaces of a node.
on_node() {         # NODE COMMAND...
    ns=$(cat "$CLUSTER/run/$1"); shift
    nsenter --target "$ns" --mount --net --uts --pid -- "$@"
}
