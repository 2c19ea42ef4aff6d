#!/bin/sh
# stall.sh - a rank that is stopped for a while is reported in a line and in status.json, long before the job is ended
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
status=$W/save/status.json
port=$((20000 + $(random 10000)))
stalled() { sed -n 's/.*"stalled":\("[^"]*"\|null\).*/\1/p' "$status" 2>/dev/null; }
is_stalled() { case $(stalled) in \"*) ;; *) return 1 ;; esac; }
goes_on() { [ "$(stalled)" = null ]; }
trains() { [ "$(grep -c '^ iteration ' "$W/job")" -gt "$1" ]; }
said() { grep -q "$1" "$W/job"; }
# Wait until a command is true, at most $1 tenths of a second.
until_true() {
    tenths=$1; shift
    while ! "$@"; do
        [ "$tenths" -gt 0 ] || return 1
        tenths=$((tenths - 1)); sleep 0.1
    done
}
: >"$W/job"
for rank in 0 1; do
    # shellcheck disable=SC2086
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$BIN/train" --num-layers 1 \
        --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON --global-batch-size 8 --train-samples 5000000 \
        --eval-iters 0 --data-path "$DATA_DIR/text_document" --save "$W/save" --save-interval 1000000 --stall-notice 1 --collective-timeout 12 \
        >>"$W/job" 2>&1 &
    eval "pid$rank=$!"
done
check "the job trains" until_true 300 trains 2
[ $failed -eq 0 ] || { cat "$W/job"; finish; }
# shellcheck disable=SC2154
kill -STOP "$pid1"
check "rank 1 is stopped: said" until_true 110 said "^rank 0 (host .*) has waited [1-4] s in .*; rank 1 (host .*, pid $pid1) does not answer: it is stopped, or its host is; the job is ended after 12 s"
check "rank 1 is stopped: in status.json" until_true 60 is_stalled
before=$(grep -c '^ iteration ' "$W/job")
kill -CONT "$pid1"
check "it goes on: said" until_true 50 said '^the job continues after [0-9]* s more'
check "it goes on: in status.json" until_true 60 goes_on
check "it goes on" until_true 50 trains "$((before + 2))"
# shellcheck disable=SC2154
kill -STOP "$pid0"
check "rank 0 is stopped: said" until_true 110 said "^rank 1 (host .*) has waited [0-9]* s in .*; rank 0 (host .*, pid $pid0) does not answer: it is stopped, or its host is"
check "rank 0 is stopped: in status.json" until_true 60 is_stalled
before=$(grep -c '^ iteration ' "$W/job")
kill -CONT "$pid0"
check "it goes on again" until_true 50 trains "$((before + 2))"
check "it goes on again: in status.json" until_true 60 goes_on
kill -STOP "$pid1"
check "and at last the job ends" until_true 250 said '^rank 1 (host [^)]*) does not answer: it is stopped, or its host is$'
kill -9 "$pid1" 2>/dev/null
wait "$pid0"
status=$?
check "with status 41, not $status" [ $status -eq 41 ]
wait "$pid1"
finish
