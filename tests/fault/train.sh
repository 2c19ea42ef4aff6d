#!/bin/sh
# train.sh - a run that is killed at random moments and started again loses nothing
#
# One uninterrupted run is the reference. Other runs are interrupted again and again in the middle of steps and saves
# (SIGKILL to all ranks or to one, SIGTERM, SIGUSR1 to mpirun, the kill switch, a full disk) and started again with
# the same command. Every training line they print must be one of the reference, and the last checkpoint must have its
# bits. KILLS is the number of kills (20; 200 with SOAK=1).
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
kills=${KILLS:-20}
[ -n "${SOAK:-}" ] && kills=200
MODEL="--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --position-embedding-type alibi --embed-layernorm --vocab-size 257 --micro-batch-size 1 --global-batch-size 8
    --rampup-batch-size 4 4 40 --train-samples 440 --lr 1e-3 --lr-decay-style linear --lr-warmup-samples 40 --clip-grad 1.0 --seed 99
    --eval-interval 20 --eval-iters 1 --split 949,50,1 --log-interval 1 --threads 1 --bf16
    --attention-dropout 0.1 --hidden-dropout 0.1 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1
    --save-interval 3"
ranks=4

# begin DIR LOG OPTIONS...: start the run in the background; $job is the process id to wait for.
begin() {
    dir=$1 log=$2; shift 2
    # shellcheck disable=SC2086
    launch $ranks $MODEL --data-path "$DATA_DIR/text_document" --save "$dir" --load "$dir" \
        --kill-switch-path "$W/switch" "$@" >"$log" 2>&1 &
    job=$!
}
# trainers DIR: print the trainers that save into DIR, without their writers and mpirun. A writer has a parent of the
# same name.
trainers() { pgrep -f "^[^ ]*/train .*--save $1 " | while read -r p; do
    case $(ps -o comm= -p "$(ps -o ppid= -p "$p" | tr -d ' ')" 2>/dev/null) in train) ;; *) echo "$p" ;; esac; done; }

begin "$W/truth" "$W/truth.log"
wait $job || { fail "the uninterrupted run"; tail -n 5 "$W/truth.log"; finish; }
series "$W/truth.log" | sort >"$W/truth.series"
last=$(cat "$W/truth/latest")

# wait_for PID SECONDS: return the exit status of the process, or 999 if it does not end.
wait_for() {
    n=0
    while kill -0 "$1" 2>/dev/null; do
        n=$((n + 1))
        [ $n -gt $(($2 * 10)) ] && { pkill -KILL -f -- "--save $dir " ; return 200; }
        sleep 0.1
    done
    wait "$1"
}

# Print the lines of a log that the reference does not have.
strangers() { series "$1" | sort | comm -23 - "$W/truth.series"; }

strike() {  # HOW DIR: end the run; sets want (exit status) and says how
    # Send signals that request a stop only after the program has begun, because its first instructions cannot catch
    # any.
    case $1 in term|usr1) n=0; until [ -s "$W/log" ] || [ $n -gt 1200 ]; do n=$((n + 1)); sleep 0.05; done ;; esac
    case $1 in
    all) pkill -KILL -f -- "--save $2 "; want=any ;;
    one) kill -KILL "$(trainers "$2" | shuf -n 1)" 2>/dev/null; want=bad ;;
    term) trainers "$2" | xargs -r kill -TERM 2>/dev/null; want=good ;;
    usr1) if command -v mpirun >/dev/null; then pkill -USR1 -f "^mpirun .*--save $2 "; else trainers "$2" | xargs -r kill -USR1; fi; want=good ;;
    switch) : >"$W/switch"; want=good ;;
    esac
}

i=0 dir=$W/run
while [ $i -lt "$kills" ]; do
    rm -f "$W/switch"
    how=$(printf 'all\none\nterm\nusr1\nswitch\ndisk\n' | sed -n "$((i % 6 + 1))p")
    if [ "$how" = disk ] && [ ! -e "$W/badio.so" ] &&
       ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl 2>/dev/null; then
        how=all
    fi
    before=$(cat "$dir/latest" 2>/dev/null)
    if [ "$how" = disk ]; then
        # The disk is full from the n-th write of each process on. The run continues, reports it, and ends with status
        # 45.
        BADIO="pwrite:$(random 200)+:28" BADIO_URING=0 LD_PRELOAD="$W/badio.so" ASAN_OPTIONS=verify_asan_link_order=0
        export BADIO BADIO_URING LD_PRELOAD ASAN_OPTIONS
        begin "$dir" "$W/log"
        unset BADIO BADIO_URING LD_PRELOAD ASAN_OPTIONS
        want=any
    else
        begin "$dir" "$W/log"
        sleep "$(printf '%d.%02d' "$(random 3)" "$(random 100)")"
        strike "$how" "$dir"
    fi
    wait_for $job 300; status=$?
    text="kill $i ($how, from ${before:-the start})"
    [ $status -eq 200 ] && fail "$text: does not end"
    odd=$(strangers "$W/log")
    if [ -n "$odd" ]; then fail "$text: other losses: $odd"; cp "$W/log" "$W/log-$i"; else pass; fi
    # After all ranks have ended well, mpirun no longer catches the signal that it would have forwarded to them.
    if [ "$how" = usr1 ] && [ $status -eq 138 ] && [ "$(cat "$dir/latest" 2>/dev/null)" = "$last" ]; then status=0; fi
    if [ $want = good ] && [ $status -ne 0 ]; then fail "$text: exit status $status"; tail -n 4 "$W/log"; fi
    # The run may have ended before it was interrupted.
    if [ $want = bad ] && [ $status -eq 0 ] && [ "$(cat "$dir/latest" 2>/dev/null)" != "$last" ]; then fail "$text: exit status 0"; fi
    if [ -e "$dir/latest" ]; then
        check "$text: what latest names is sound" ckpt-inspect verify -q --strict "$dir/$(cat "$dir/latest")"
    fi
    if [ "$(cat "$dir/latest" 2>/dev/null)" = "$last" ]; then
        check "$text: the end has the same bits" ckpt-inspect diff -q "$dir" "$W/truth"
        rm -rf "$dir"
    fi
    i=$((i + 1))
done
rm -f "$W/switch"
if [ -e "$dir" ]; then
    begin "$dir" "$W/log"
    wait $job || fail "the last run"
    check "the end has the same bits" ckpt-inspect diff -q "$dir" "$W/truth"
fi

# ---- a gradient that is not finite ends the run, with the save in progress and a dump of the batch that began it
# ----
# shellcheck disable=SC2086
launch 2 $MODEL --data-path "$DATA_DIR/text_document" --save "$W/nan" --save-interval 2 --lr 1e6 --lr-warmup-samples 0 \
    --clip-grad 0 --init-method-std 50 >"$W/nan.log" 2>&1
status=$?
check "not finite: exit status 44, not $status" [ $status -eq 44 ]
check "not finite: the cause" grep -q '"cause":"nan"' "$W/nan/status.json"
check "not finite: said" grep -q "gradient norm is .*nan" "$W/nan.log"
check "not finite: where" grep -Eq "it began with element [0-9]+ of (weight|activation|gradient) .* on rank [01] [(]host" "$W/nan.log"
check "not finite: a dump of each rank" [ "$(grep -l '"kind": "activation"' "$W"/nan/nan_iteration*.rank[01].json | wc -l)" -eq 2 ]
check "not finite: status.json" grep -q '"stop_reason":"nan"' "$W/nan/status.json"

# ---- failures that must be reported ----
damaged=$W/damaged
cp -r "$W/truth" "$damaged"
rm "$damaged/latest"
# shellcheck disable=SC2086
check_exit "tags without latest are not a fresh start" 1 "latest" "$BIN/train" $MODEL --data-path "$DATA_DIR/text_document" \
    --tensor-model-parallel-size 1 --load "$damaged"
printf 'global_step77' >"$damaged/latest"
# shellcheck disable=SC2086
check_exit "latest names nothing" 1 "global_step77" "$BIN/train" $MODEL --data-path "$DATA_DIR/text_document" \
    --tensor-model-parallel-size 1 --load "$damaged"
printf '%s' "$last" >"$damaged/latest"
f=$(ls "$damaged/$last"/*optim_states.pt | head -n 1)
dd if=/dev/zero of="$f" bs=1 seek=$(($(stat -c %s "$f") / 2)) count=64 conv=notrunc status=none
# shellcheck disable=SC2086
check_exit "a damaged shard" 1 "$(basename "$f")" "$BIN/train" $MODEL --data-path "$DATA_DIR/text_document" \
    --tensor-model-parallel-size 1 --load "$damaged"
# shellcheck disable=SC2086
launch 2 $MODEL --data-path "$DATA_DIR/text_document" --load "$damaged" >"$W/damaged.log" 2>&1
status=$?
check "a damaged shard of one rank: exit status 1, not $status" [ $status -eq 1 ]
# Rank 0 finds it if the samples of weights and masters differ; otherwise the rank that loads the shard finds it.
check "a damaged shard of one rank: who and what" \
    grep -Eq "^(train: rank [01]: |rank [01] [(]host .*[)] failed: ).*$(basename "$f")" "$W/damaged.log"
check "a damaged shard of one rank: nobody has loaded" [ "$(grep -c 'successfully loaded' "$W/damaged.log")" -eq 0 ]
finish
