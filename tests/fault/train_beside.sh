#!/bin/sh
# train_beside.sh - saves run concurrently with training: on a slow disk the run does not wait, and a save has the
# bits of a stop
#
# The test also covers a snapshot memory smaller than the state, and kills at any moment of copying or writing it.
# KILLS is the number of kills (6; 100 with SOAK=1).
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
unset SHARDKIT_SAVE_WHEN_BUSY
SMALL="--backend cpu --threads 1 --bf16 --num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length 32
    --max-position-embeddings 32 --position-embedding-type alibi --vocab-size 257 --micro-batch-size 1
    --global-batch-size 4 --lr 1e-3 --eval-iters 0 --log-interval 1 --data-path $DATA_DIR/text_document"
# The interposed library must be loaded before that of a sanitizer.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS
if ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    echo "no shared-object compiler: slow disks are not tested"
    finish
fi
# slow DIR OPTIONS...: train on a disk that takes 50 ms for every sync; a save does about twenty.
slow() { dir=$1; shift; env LD_PRELOAD="$W/badio.so" BADIO_SLOW=50 BADIO_URING=0 "$BIN/train" $SMALL --save "$dir" "$@" >"$dir.log" 2>&1; }
steps() { ls "$1" | sed -n 's/^global_step//p' | sort -n | tr '\n' ' '; }
skipped() { grep -c "^checkpoint of iteration [0-9]*: $2, that of iteration [0-9]* is still being written after [0-9.]* s (--save-when-busy" "$1.log"; }
field() { tr ',{}' '\n\n\n' <"$1/status.json" | sed -n "s/^\"$2\"://p"; }

# ---- skip, queue, wait ----
slow "$W/skip" --train-iters 40 --save-interval 5; status=$?
check "skip: exit status 0, not $status" [ $status -eq 0 ]
check "skip: the first and the last, at most one between: $(steps "$W/skip")" [ "$(steps "$W/skip" | grep -Ec '^5 ([0-9]+ )?40 $')" -eq 1 ]
check "skip: each other is told" [ $(($(skipped "$W/skip" skipped) + $(steps "$W/skip" | wc -w))) -eq 8 ]
check "skip: the last one is sound" ckpt-inspect verify -q "$W/skip"
# The log line of the first save shows that training waited for a small part of its duration.
check "skip: training did not stand" awk '/^  checkpoint: stall/ { exit !($3 < 0.2 && $8 > 0.5) }' "$W/skip.log"

# Wait until one is made this way, however long the disk takes.
slow "$W/queue" --train-iters 1000000 --save-interval 100 --save-when-busy queue --kill-switch-path "$W/kill" & pid=$!
between() { steps "$W/queue" 2>/dev/null | tr ' ' '\n' | grep -x '[0-9]*' | awk '$1 % 100' | wc -l; }
n=0; until [ "$(between)" -ge 1 ] || [ $n -gt 3000 ]; do n=$((n + 1)); sleep 0.1; done
made=$(between); : >"$W/kill"
wait $pid; status=$?
rm "$W/kill"
check "queue: exit status 0, not $status" [ $status -eq 0 ]
check "queue: told" [ "$(skipped "$W/queue" queued)" -ge 1 ]
check "queue: made when the disk was free: $(steps "$W/queue")" [ "$made" -ge 1 ]
at=$(field "$W/queue" iteration)
check "queue: the end is there" [ "$(cat "$W/queue/latest")" = "global_step$at" ]

slow "$W/wait" --train-iters 20 --save-interval 5 --save-when-busy wait
check "wait: all of them" [ "$(steps "$W/wait")" = "5 10 15 20 " ]
check "wait: training stood meanwhile" awk -v s="$(field "$W/wait" save_stall_s)" 'BEGIN { exit !(s > 0.2) }'
check "wait: each is told of, with what it cost" [ "$(grep -c '^  checkpoint: stall [0-9.]* s, [0-9.]* [kMG]*B in [0-9.]* s' "$W/wait.log")" -eq 4 ]

# ---- never skipped ----
slow "$W/listed" --train-iters 12 --save-schedule 1-9:3 --save-interval 4
check "what --save-schedule lists is waited for: $(steps "$W/listed")" [ "$(steps "$W/listed")" = "3 6 9 12 " ]
slow "$W/exit" --train-iters 40 --save-interval 5 --exit-interval 12
check "an exit saves: $(steps "$W/exit")" [ "$(steps "$W/exit")" = "5 12 " ]
for how in switch signal; do
    slow "$W/$how" --train-iters 100000 --save-interval 5 --kill-switch-path "$W/kill" & pid=$!
    n=0
    until [ -s "$W/$how.log" ] && [ "$(skipped "$W/$how" skipped)" -ge 1 ] || [ $n -gt 2400 ]; do
        n=$((n + 1)); sleep 0.05
    done
    if [ $how = switch ]; then : >"$W/kill"; else pkill -TERM -f "^$BIN/train .*--save $W/$how "; fi
    wait $pid
    rm -f "$W/kill"
    at=$(field "$W/$how" iteration)
    check "$how: saved where it stopped, at $at" [ "$(cat "$W/$how/latest")" = "global_step$at" ]
    check "$how: sound" ckpt-inspect verify -q "$W/$how"
done

# ---- the bits are those of a stop at the same iteration ----
BITS="--bf16 --num-layers 3 --hidden-size 128 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
    --position-embedding-type alibi --embed-layernorm --vocab-size 257 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3
    --eval-iters 0 --log-interval 1 --threads 1 --train-iters 8 --save-interval 4 --data-path $DATA_DIR/text_document"
# Half a million of the four million bytes per rank are in transit at once.
ring="--save-memory 0.0005"
for topology in 1.1.1 1.1.2 2.1.1 1.2.2; do
    tp=${topology%%.*} rest=${topology#*.}; pp=${rest%.*} dp=${rest#*.}
    for how in beside ring stop; do
        # shellcheck disable=SC2046
        launch $((tp * pp * dp)) $BITS --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" --save "$W/$how" \
            $([ $how = ring ] && echo "$ring") $([ $how = stop ] && echo --exit-interval 4) >"$W/$how.log" 2>&1 || fail "$topology, $how: exit status $?"
    done
    n=0
    for f in "$W"/stop/global_step4/*layer_* "$W"/stop/global_step4/*optim_states.pt; do
        for how in beside ring; do
            cmp -s "$f" "$W/$how/global_step4/${f##*/}" && n=$((n + 1)) || fail "$topology, $how: ${f##*/} has other bytes"
        done
    done
    check "TP, PP, DP $topology: the ring is reported" grep -q '^note: a save.s state, .* per rank, is copied through 500.* kB' "$W/ring.log"
    check "TP, PP, DP $topology: $n files with the bytes of a stop" [ $n -gt 0 ]
    rm -rf "$W/beside" "$W/ring" "$W/stop"
done

# ---- a writer that outlived its run renames its folder while the next run removes it ----
late="$W/late/global_step4" part="$W/late/global_step4.0badcafe.part"
slow "$W/late" --train-iters 4 --save-interval 4
files=$(ls "$late" | wc -l)
mv "$late" "$part" && rm "$W/late/latest"
env LD_PRELOAD="$W/badio.so" BADIO_SLOW_REMOVE=100 BADIO_URING=0 "$BIN/train" $SMALL --save "$W/late" --train-iters 1 --save-interval 1 \
    >"$W/late.log" 2>&1 & pid=$!
n=0; until [ "$(ls "$part" 2>/dev/null | wc -l)" -lt "$files" ] || [ $n -gt 3000 ]; do n=$((n + 1)); sleep 0.02; done
check "the next run had begun to remove it" [ $n -le 3000 ]
mv -T "$part" "$late" 2>/dev/null && found=$(ls "$late" | wc -l) || found=0
wait $pid; status=$?
check "published whole or not at all: $found of $files files" [ "$found" -eq 0 ]
check "the next run: exit status 0, not $status" [ $status -eq 0 ]
check "the next run: only its own is there: $(steps "$W/late")" [ "$(ls "$W/late" | grep -c step)" -eq 1 ]

# ---- killed during a save: the old or the new checkpoint is there, and nothing else is trained ----
kills=${KILLS:-6}
[ -n "${SOAK:-}" ] && kills=100
BITS=$(echo "$BITS" | sed 's/--train-iters 8/--train-iters 24/')
# shellcheck disable=SC2086
launch 2 $BITS --save "$W/truth" >"$W/truth.log" 2>&1 || fail "the run that nobody kills"
series "$W/truth.log" | sort >"$W/truth.series"
processes() { pgrep -f -- "/train .*--save $W/run " | while read -r p; do
    case $1.$(cat "/proc/$p/comm" 2>/dev/null) in any.*|writer.ckpt-writer|trainer.train) echo "$p" ;; esac; done; }
i=0
while [ $i -lt "$kills" ]; do
    how=$(printf 'any\ntrainer\nwriter\n' | sed -n "$((i % 3 + 1))p")
    # shellcheck disable=SC2086
    LD_PRELOAD="$W/badio.so" BADIO_SLOW_WRITE=5 BADIO_SLOW_REMOVE=20 BADIO_URING=0 launch_sockets 2 $BITS $ring --save-when-busy wait \
        --save "$W/run" --load "$W/run" >"$W/run.log" 2>&1 & job=$!
    sleep "$(printf '%d.%02d' $((1 + $(random 2))) "$(random 100)")"
    if [ $how = any ]; then kill -KILL $(processes any) 2>/dev/null; else kill -KILL "$(processes $how | shuf -n 1)" 2>/dev/null; fi
    wait $job
    odd=$(series "$W/run.log" | sort | comm -23 - "$W/truth.series")
    check "kill $i ($how): no other losses: $odd" [ -z "$odd" ]
    if [ -e "$W/run/latest" ]; then
        last=$(cat "$W/run/latest")
        # Do not use latest: a kill between the rename of a save and the update of latest leaves a newer step, a
        # warning.
        check "kill $i ($how): $last is sound" ckpt-inspect verify -q --strict "$W/run/$last"
    fi
    i=$((i + 1))
done
# shellcheck disable=SC2086
launch 2 $BITS $ring --save-when-busy wait --save "$W/run" --load "$W/run" >"$W/run.log" 2>&1
# A run that has nothing to save sets `latest`, too, if a kill had left its last step without it.
check "the end has the same bits" ckpt-inspect diff -q "$W/run" "$W/truth"
finish
