#!/bin/sh
# trouble.sh - the disk is full, the loss jumps, is no number, a node is slow, nothing helps: told, and done what can be
. "$(dirname "$0")/lib.sh"
SUPERVISE_ARGS='--watch-seconds 3 --pause 1'
export SUPERVISE_ARGS
fill() { head -c 100M /dev/zero >"$1" 2>/dev/null; }

# ---- the disk is full: while it trains, and while it is down ----

new_run disk
SAVE=$CLUSTER/small/ckpt
export SAVE
MAKE_ROOM="rm $CLUSTER/small/old" submit
check_until "it trains and saves" 120 saved 20
fill "$CLUSTER/small/old"
at=$(latest)
check_until "no room: told" 60 decided 'no room in .* for one more checkpoint: [0-9]+ MB free'
check_until "room is made" 60 decided 'there is room'
check_until "it saves again" 60 saved $((at + 40))
check "and was never stopped" sh -c "! grep -q 'start 2' '$RUN/supervise/log'"
# This time nobody makes room for a while, and a rank dies meanwhile.
fill "$CLUSTER/small/not-mine"
at=$(latest)
kill -KILL "$(rank_pid 1)"
# shellcheck disable=SC2317
waits() { [ "$(grep -c 'no room in ' "$RUN/supervise/log")" -ge 2 ]; }
check_until "a rank dies without room: it waits" 60 waits
rm "$CLUSTER/small/not-mine"
check_until "and starts again when there is" 120 saved $((at + 20))
check "from the last save" decided "start 2 on 2 nodes .* from global_step"
touch "$RUN/kill-switch"
check_until "it ends" 60 state_is "$job" COMPLETED
check "what is saved is whole" ckpt-inspect verify -q "$SAVE"
unset SAVE

# ---- the loss jumps: bytes of the token file were lost ----

new_run spike
mkdir "$RUN/data" && cp tests/data/text/text_document.* "$RUN/data"
DATA_PATH=$RUN/data/text_document LR=3e-3 submit
check_until "it trains" 180 saved 120
# Each letter becomes the next; byte 1 is half of the token between documents.
tr '\002-\377' '\003-\377\002' <tests/data/text/text_document.bin >"$W/noise"
dd if="$W/noise" of="$RUN/data/text_document.bin" conv=notrunc 2>/dev/null
at=$(iterations | tail -n 1)
check_until "a loss that jumps is told" 60 decided 'spike: '
check_until "by train, too, in a report that supervise reads" 60 decided 'spike: the loss jumped: '
check "within moments" [ $(($(iterations | tail -n 1) - at)) -lt 200 ]
dd if=tests/data/text/text_document.bin of="$RUN/data/text_document.bin" conv=notrunc 2>/dev/null
check "and the run goes on" sh -c "! grep -q 'start 2' '$RUN/supervise/log'"
scancel "$job"

# ---- no number: once more, then a person ----

new_run nan
# Gradients overflow, and the loss scale may not be smaller.
echo 'min-loss-scale = 4294967296' >"$RUN/more.conf"
DTYPE=fp16 INITIAL_LOSS_SCALE=4294967296 MORE_CONFIG=$RUN/more.conf SPARES=1 submit
check_until "a loss that is no number ends it" 120 decided 'start 1 failed: nan, status '
check_until "it is tried once more" 90 decided 'start 2 on '
check_until "then given up" 120 decided 'given up: nan twice behind none'
check_until "with the status of that" 30 state_is "$job" FAILED
submit
check_until "jobs that follow end at once" 60 state_is "$job" FAILED
check "and say why" decided "given up: .* nan twice behind none.*; rm $RUN/supervise/stopped to go on"

# ---- an option that is wrong: no start at all ----

new_run usage
# The check before submission would refuse it.
SUBMIT_CHECK=0 LR=none submit
check_until "an option that is wrong is told" 90 decided 'given up: wrong usage: train: --lr .*none'
check "and nothing was started" sh -c "! grep -q 'start 1' '$RUN/supervise/log'"
check_until "the status is that of wrong usage" 30 sh -c "scontrol show job $job | grep -q 'ExitCode=2:0'"

# ---- nothing helps: three times ----

new_run nothing
cat >"$W/train-not" <<'TEXT'
#!/bin/sh
case " $* " in *" --preflight "*) exec train "$@" ;; esac
echo nothing helps >&2
exit 1
TEXT
chmod +x "$W/train-not"
SUBMIT_CHECK=0 TRAIN=$W/train-not submit
check_until "three failures in a row are enough" 180 decided 'given up: 3 failures in a row without a checkpoint newer'
check_until "the job fails" 30 state_is "$job" FAILED

# ---- a slow node gives way ----

new_run slow
SPARES=1 SLOW_NODES=swap SUPERVISE_ARGS="$SUPERVISE_ARGS --preflight 0" submit
check_until "it trains" 90 saved 20
slowed=$(rank_pid 2) host=$(node_of "$(rank_pid 2)")
# Train needs a past to hold the present against.
check_until "it has run for a while" 120 saved 320
# Held up wherever it is, mostly at work, which is short of what it waits for. A busy machine may have made the run slow
# before, by somebody else; then it has to be well again first.
n=0
while kill -0 "$slowed" 2>/dev/null; do
    if [ $((n % 110)) -lt 60 ]; then kill -STOP "$slowed"; sleep 0.2; kill -CONT "$slowed"; sleep 0.03; else sleep 0.1; fi
    n=$((n + 1))
done & slower=$!
check_until "train tells who is slow, and supervise tells it" 240 \
    decided "slow: iterations take [0-9.]* % longer than .*; rank 2 \(host $host[,)]"
kill $slower && wait $slower 2>/dev/null
kill -CONT "$slowed"
# Twice more.
told=$RUN/ckpt/reports/x-$job
mkdir -p "$told"
for step in 1 2; do
    printf '{"form": "train-report-1", "cause": "slow", "exit_status": null, "message": "rank 2 is slow", "rank": 2, ' \
        >"$W/report"
    printf '"host": "%s", "ranks": []}\n' "$host" >>"$W/report"
    # As train does: nobody reads half of it.
    cp "$W/report" "$told/.part" && mv "$told/.part" "$told/slow-step$step.json"
done
check_until "a node told to be slow three times gives way" 60 decided "$host gives way to a spare"
check_until "behind a save" 90 decided 'start 2 on 2 nodes '
check "to the spare" sh -c "! grep 'start 2 on' '$RUN/supervise/log' | grep -q '[(,]${host}[,)]'"
check_until "and the run trains" 60 saved $(($(latest) + 20))
iterations >"$W/got"
check "no iteration was lost or done twice" sh -c "seq $(wc -l <"$W/got") | cmp - '$W/got'"
scancel "$job"
until_true 60 state_is "$job" CANCELLED
finish
