#!/bin/sh
# jobs.sh - training jobs on a real Slurm: submit, array, dependency, scancel, --signal, a train of jobs, test-n2
. "$(dirname "$0")/lib.sh"

# ---- two that take a minute: their time ends ----

new_run time-is-over
SIGNAL=B:USR1@60 TIME=2 REQUEUE_AT_END=1 submit
over=$job over_run=$RUN
new_run alone-time-is-over
SUPERVISE=0 SIGNAL=B:USR1@60 TIME=2 submit
alone=$job alone_run=$RUN

# ---- submit ----

new_run one
TRAIN_SAMPLES=1280 submit
check_until "it ends" 90 state_is "$job" COMPLETED
check "it has trained to the end" [ "$(stop_reason)" = finished ]
check "its configuration is kept" grep -q '^hidden-size = 32$' "$RUN/configs/$job.conf"
check "supervise says so" decided 'ended in order at iteration 20: finished; the last save is global_step20$'
if has_sacct; then
    # What Slurm knows is some time on its way to the database.
    # shellcheck disable=SC2317
    has_step() { steps "$job" | grep -qx "$1"; }
    check_until "sacct has each step under its name" 20 has_step 'train-1 COMPLETED'
    # shellcheck disable=SC2317
    sacct_says() { sacct -n -P -j "$job" -o comment | grep -q "$1"; }
    check_until "sacct has why it ended" 20 sacct_says 'ended in order at iteration 20'
fi
NODES=2 SPARES=0 new_run wrong-number
job=$(NODES=3 sbatch --parsable --nodes=2 --output="$W/wrong-number.out" "$KIT/train.sbatch")
check_until "a job of another number of nodes ends" 30 state_is "$job" FAILED
check "and says what is wrong" grep -q 'the job has 2 nodes, NODES=3 and SPARES=0 ask for 3' "$W/wrong-number.out"

# ---- array and dependency ----

new_run array
ARRAY=1-3%1 EXIT_ITERATIONS=10 submit
DEPENDENCY=array EXIT_ITERATIONS=5 sh "$KIT/submit" --parsable >"$W/next"
check_until "the next array waits for it" 20 reason_is "$(cat "$W/next")" Dependency
check_until "jobs of an array end" 240 state_is "$(cat "$W/next")" COMPLETED
iterations >"$W/got"
check "one after the other, each from where the last one ended" sh -c "seq 35 | cmp - '$W/got'"
check_exit "no job by that name to wait for" 1 'no job of the name nobody' env DEPENDENCY=nobody sh "$KIT/submit"

# ---- a train of jobs: the script is another file ----

new_run follow
# shellcheck disable=SC2016
sed 's/^job=/: "${SEEN:=one}"; echo "script $SEEN"; &/' "$KIT/train.sbatch" >"$W/script"
echo 'EXIT_ITERATIONS=3' >"$RUN/settings.sh"
OUTPUT=$W/follow.out JOB=$KIT/follow.sbatch SCRIPT=$W/script ARRAY=1-2%1 submit
check_until "the first has begun" 60 grep -q 'script one' "$W/follow.out"
sed 's/SEEN:=one/SEEN:=two/' "$W/script" >"$W/script.new" && mv "$W/script.new" "$W/script"
check_until "the second runs what the script is by then" 120 grep -q 'script two' "$W/follow.out"
check_until "both end" 90 state_is "$job" COMPLETED
check "with the settings of the run's folder" [ "$(latest)" = 6 ]

# ---- scancel ----

new_run cancelled
submit
check_until "it trains and saves" 90 saved 20
scancel "$job"
check_until "scancel ends it" 60 state_is "$job" CANCELLED
check_until "supervise knows that it was meant" 20 decided '(SIGTERM: the run is told|ended)'
check "it is not started again" sh -c "! grep -q 'start 2' '$RUN/supervise/log'"
check "what is saved is whole" ckpt-inspect verify -q "$RUN/ckpt"

# ---- the same script on two nodes ----

RUN=$W/main; export RUN; mkdir -p "$RUN"
JOB_NAME=main TEST_NLAYERS=2 TEST_NHIDDEN=32 TEST_NHEADS=2 TEST_SEQ_LEN=128 TEST_TP=1 TEST_GBS=8 TIME=10 \
    RECOMPUTE=none DTYPE=fp16 LOSS_SCALE=128 sh "$KIT/test-n2" submit-tr1-13B.sh >"$W/n2"
check "test-n2 submits two jobs" [ "$(wc -l <"$W/n2")" -eq 2 ]
RUN=$RUN/test-n2
check_until "which train, save and go on" 180 saved 40
check "with the settings of the submit file" grep -q '^fp16$' "$RUN"/configs/*.conf

# ---- the two from the beginning ----

RUN=$alone_run
check_until "without supervise: saved when the time was over" 150 state_is "$alone" COMPLETED
check "by the signal" [ "$(stop_reason)" = signal ]
RUN=$over_run
check_until "with it: requeued" 150 decided 'requeued.*: the time is over, the run is not'
check_until "and started again from there" 240 decided "start 1 on 2 nodes .* from global_step[0-9]+"
scancel "$over"
iterations >"$W/got"
check "no iteration was lost or done twice" sh -c "seq $(wc -l <"$W/got") | cmp - '$W/got'"
finish
