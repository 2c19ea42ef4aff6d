#!/bin/sh
# retain.sh - --keep-last removes only checkpoints that may be removed; after a jump of the loss checkpoints are kept
#
# KILLS (6) is the number of rounds of a run that is killed at random moments while it saves and removes.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
run() {
    "$BIN/train" --num-layers 1 --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON --global-batch-size 4 \
        --train-samples 400000 --eval-iters 0 --data-path "$DATA_DIR/text_document" --save "$W/run" --load "$W/run" "$@"
}
steps() { (cd "$W/run" && ls -d global_step* | sed 's/global_step//' | sort -n | tr '\n' ' '); }

schedule="--save-interval 2 --save-schedule 1-10:5 --save-when-busy wait --keep-last 2"
check "12 iterations" run $schedule --exit-interval 12
check "the schedule's stay, and the last two: $(steps)" [ "$(steps)" = "5 10 12 " ]
: >"$W/run/keep-global_step12"
mkdir -p "$W/run/global_step3" "$W/run/.removed.global_step1/zero"
cp "$W"/run/global_step5/*model_states.pt "$W/run/global_step3"
check "20 iterations" run $schedule --exit-interval 20
check "what is kept by hand stays, and what is not whole: $(steps)" [ "$(steps)" = "3 5 10 12 18 20 " ]
check "leftovers go" [ ! -e "$W/run/.removed.global_step1" ]
check "the newest is sound" ckpt-inspect verify -q --strict "$W/run"
wait; sleep 1; rm -rf "$W/run"

i=0
while [ $i -lt "${KILLS:-6}" ]; do
    run --save-interval 1 --save-when-busy wait --keep-last 1 --exit-interval 100000 >"$W/killed.log" 2>&1 &
    job=$!
    sleep "$(printf '0.%d' $((5 + $(random 5))))"; sleep "$(printf '0.%02d' "$(random 100)")"
    pkill -KILL -P $job; sleep 0.5
    wait $job 2>/dev/null
    [ ! -e "$W/run/latest" ] || check "kill $i: what latest names is sound" ckpt-inspect verify -q --strict "$W/run/$(cat "$W/run/latest")"
    i=$((i + 1))
done
before=$(cat "$W/run/latest")
check "it goes on: $before" run --save-interval 1 --save-when-busy wait --keep-last 1 --exit-iterations 3
# A loss that jumped during the run keeps its checkpoints; this model is small enough for that.
unmarked() { for s in $(steps); do [ -e "$W/run/keep-global_step$s" ] || echo "$s"; done; }
check "one is left: $(steps)" [ "$(unmarked | wc -l)" -eq 1 ]
check "nothing is half removed" [ -z "$(ls -A "$W/run" | grep removed)" ]
wait; sleep 1; rm -rf "$W/run"

# Checkpoints of another run in the folder of --save, and one with a user's file.
check "another run" run --save-interval 2 --save-when-busy wait --exit-interval 6
mv "$W/run" "$W/other"
check "the run that is loaded" run --save-interval 4 --save-when-busy wait --exit-interval 8 --seed 7
check "it goes on beside the other" run --save-interval 2 --save-when-busy wait --keep-last 1 --exit-interval 14 --seed 7 --save "$W/other"
steps_of() { (cd "$1" && echo global_step*); }
check "the other's are kept: $(steps_of "$W/other")" [ "$(steps_of "$W/other")" = "global_step14 global_step2 global_step4 global_step6" ]
echo mine >"$W/other/global_step14/notes.txt"
run --save-interval 2 --save-when-busy wait --keep-last 1 --exit-interval 20 --seed 7 --save "$W/other" --load "$W/other" >"$W/notes.log" 2>&1
check "a foreign file keeps its folder: $(steps_of "$W/other")" [ -e "$W/other/global_step14/notes.txt" ]
check "it is named" grep -q "global_step14: .*notes.txt" "$W/notes.log"
wait; sleep 1; rm -rf "$W/run" "$W/other"

# The learning rate grows until the run diverges.
run --save-interval 5 --save-when-busy wait --keep-last 1 --exit-interval 200 --lr 20 --lr-warmup-samples 1000 --clip-grad 0 \
    --alarm-command 'echo "$TRAIN_CAUSE" "$TRAIN_EXIT_STATUS." >>"$TRAIN_REPORT.called"' >"$W/jump.log" 2>&1
check "a jump is said" grep -q "^warning: the loss jumped: .* at iteration [0-9]*, the median of the last 256 is" "$W/jump.log"
first=$(ls "$W"/run/reports/*/spike-step*.json | head -n 1)
check "it is reported" grep -q '"cause":"spike","exit_status":null,"message":"the loss jumped' "$first"
check "the alarm is called, once" [ "$(cat "$first.called")" = "spike ." ]
kept=$(cd "$W/run" && ls keep-* | sed 's/keep-//')
check "checkpoints before and behind it are kept: $kept" [ "$(echo "$kept" | wc -l)" -ge 2 ]
for k in $kept; do check "$k is there" ckpt-inspect verify -q "$W/run/$k"; done
finish
