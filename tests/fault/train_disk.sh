#!/bin/sh
# train_disk.sh - a folder that cannot hold checkpoints is detected at the start; later the run continues, reports
# why, and retries
#
# In one case the wall clock is set back again and again: the speed that a run reports must stay true.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
MODEL="--backend cpu --threads 1 --bf16 --num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length 32
    --max-position-embeddings 32 --position-embedding-type alibi --vocab-size 257 --micro-batch-size 1
    --global-batch-size 4 --train-samples 80 --lr 1e-3 --eval-iters 0 --log-interval 1
    --data-path $DATA_DIR/text_document --save-interval 4"
# The interposed library must be loaded before that of a sanitizer.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS
if ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    echo "no shared-object compiler: failing calls are not tested"
    finish
fi
# train1 BADIO AT DIR: train on one rank whose calls fail.
train1() { env LD_PRELOAD="$W/badio.so" BADIO_URING=0 BADIO="$1" BADIO_AT="$2" "$BIN/train" $MODEL --save "$3"; }

# ---- at the start: nothing is trained, the folder is unchanged ----
for call in mkdir rename open fsync; do
    # fsync receives no path; the first fsync is that of the lock.
    n=1 at=global_step
    [ $call = fsync ] && n=2 at=
    train1 "$call:$n+:13" "$at" "$W/start" >"$W/start.log" 2>&1; status=$?
    check "$call refused at the start: exit status 1, not $status" [ $status -eq 1 ]
    check "$call refused at the start: said" grep -q "^train: .*no checkpoint can be saved from host .*Permission denied" "$W/start.log"
    check "$call refused at the start: nothing is trained" [ "$(grep -c '^ iteration' "$W/start.log")" -eq 0 ]
    check "$call refused at the start: nothing is left" [ "$(ls -A "$W/start" | tr "\n" " ")" = "reports status.json " ]
    rm -rf "$W/start"
done

ln -s nowhere "$W/link"; echo mine >"$W/file"
for save in link file; do
    "$BIN/train" $MODEL --save "$W/$save" >"$W/no_folder.log" 2>&1; status=$?
    check "--save is a $save: exit status 1, not $status" [ $status -eq 1 ]
    check "--save is a $save: said" grep -q "^train: $W/$save: exists, but is not a folder" "$W/no_folder.log"
done
check "--save is a file: as it was" [ "$(cat "$W/file")" = mine ]

(ulimit -f 20; "$BIN/train" $MODEL --save "$W/limited" >"$W/limited.log" 2>&1); status=$?
check "limit of a file's size: exit status 1, not $status" [ $status -eq 1 ]
check "limit of a file's size: said" grep -q "File too large" "$W/limited.log"

# ---- later: a folder that cannot be created, as on a full disk ----
train1 mkdir:2:28 global_step "$W/once" >"$W/once.log" 2>&1; status=$?
check "one failing save: exit status 0, not $status" [ $status -eq 0 ]
check "one failing save: said once" [ "$(grep -c '^error: checkpoint of iteration 4: .*No space left' "$W/once.log")" -eq 1 ]
check "one failing save: the next ones go well" [ "$(ls -d "$W"/once/global_step* | wc -l)" -eq 4 ]
check "one failing save: sound" ckpt-inspect verify -q "$W/once"
train1 mkdir:2+:28 global_step "$W/all" >"$W/all.log" 2>&1; status=$?
check "all saves fail: exit status 45, not $status" [ $status -eq 45 ]
check "all saves fail: it trains to the end" grep -q "iteration *20/" "$W/all.log"
check "all saves fail: each is said, the last is tried again" [ "$(grep -c '^error: checkpoint of iteration .*No space left' "$W/all.log")" -eq 6 ]
check "all saves fail: the end" grep -q "^train: .*the checkpoint of iteration 20 could not be saved" "$W/all.log"
check "all saves fail: status.json" grep -q '"stop_reason":"failed"' "$W/all/status.json"

# ---- status.json, while a disk is full for a moment ----
train1 open:4:28 status.json "$W/status" >"$W/status.log" 2>&1; status=$?
check "a state that cannot be told: exit status 0, not $status" [ $status -eq 0 ]
check "a state that cannot be told: said once" \
    [ "$(grep -c '^warning: .*status.json.*No space left' "$W/status.log")" -eq 1 ]
check "a state that cannot be told: the next ones are" grep -q '"iteration":20,.*"stop_reason":"finished"' "$W/status/status.json"

# ---- the reported reason is the first one, of the rank at fault ----
WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $(random 10000)))
export WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
RANK=1 LOCAL_RANK=1 LD_PRELOAD="$W/badio.so" BADIO_URING=0 BADIO=pwrite:1+:28 "$BIN/train" $MODEL --save "$W/two" >/dev/null 2>&1 &
RANK=0 LOCAL_RANK=0 "$BIN/train" $MODEL --save "$W/two" >"$W/two.log" 2>&1
wait
check "another rank's disk: its reason" [ "$(grep -c '^error: checkpoint of iteration .*rank 1 could not write its part: .*No space left' "$W/two.log")" -eq 6 ]
check "another rank's disk: no other" [ "$(grep '^error' "$W/two.log" | grep -vc 'rank 1 could not write its part')" -eq 0 ]

# ---- the clock ----
unset WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
# shellcheck disable=SC2086
env LD_PRELOAD="$W/badio.so" BADIO_CLOCK=3600 "$BIN/train" ${MODEL% --save-interval*} --steps-per-print 4 --log-straggler-interval 4 \
    >"$W/clock.log" 2>&1
status=$?
check "the clock is set back: exit status 0, not $status" [ $status -eq 0 ]
check "... all iterations are told" \
    [ "$(grep -c '^ iteration.*elapsed time per iteration (s): [0-9]' "$W/clock.log")" -eq 20 ]
check "... no time and no rate is negative" [ "$(grep -c '^[^[].*[ =:]-[0-9]' "$W/clock.log")" -eq 0 ]

# ---- without io_uring, as in a container: plain reads and writes by more threads ----
for test in test_save_beside test_train_checkpoint test_train_checkpoint_ranks; do
    [ -x "$TBIN/$test" ] || { skip_part "without io_uring" "$test is not built"; continue; }
    check "$test without io_uring" env TMPDIR="$W" BADIO_URING=0 LD_PRELOAD="$W/badio.so" timeout -k 1 300 "$TBIN/$test"
done
finish
