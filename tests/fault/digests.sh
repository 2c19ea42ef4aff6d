#!/bin/sh
# digests.sh - a bit flips in a rank's memory while a job trains: it is reported with its rank before the next step
# begins
#
# SOAK=1 runs 10,000 steps without a false alarm. tests/unit/train/test_digest_run.c makes many flips in whole steps.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/flip.so" tests/fault/shim/flip.c -ldl -lpthread 2>"$W/log" ||
    skip "no library to preload: $(cat "$W/log")"

# begin NAME N OPTIONS...: start N ranks. Rank $hit loads the library, which flips a bit once $W/NAME.now exists.
begin() {
    dir=$W/$1 n=$2; shift 2
    port=$((20000 + $(random 10000))) rank=0
    while [ $rank -lt "$n" ]; do
        preload=; [ $rank -ne "$hit" ] || preload=$W/flip.so
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            LD_PRELOAD=$preload FLIP="$dir.now:0:$at:$bit" ASAN_OPTIONS=verify_asan_link_order=0 \
            "$BIN/train" --num-layers 1 --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON \
            --global-batch-size 12 --train-samples 5000000 --eval-iters 0 --data-path "$DATA_DIR/text_document" \
            --save "$dir" --save-interval 10 "$@" >>"$dir.log" 2>&1 &
        eval "pid$rank=$!"
        rank=$((rank + 1))
    done
    n=0
    until grep -qs "^ iteration  *10/" "$dir.log" || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done
}
# told NAME STEPS PATTERN: the job ends with status 46 within this many steps of the last of $flips flips, and prints
# "train: PATTERN". Flips follow each other every half second until one has been reported.
reported() { ! kill -0 "$pid0" 2>/dev/null || grep -q '^train: ' "$dir.log"; }
told() {
    while :; do
        : >"$dir.now"
        n=0
        until reported || [ $n -ge 5 ]; do n=$((n + 1)); sleep 0.1; done
        flips=$((flips - 1))
        [ $flips -gt 0 ] && ! reported || break
        rm "$dir.now"; sleep 0.1
    done
    n=0
    while kill -0 "$pid0" 2>/dev/null && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
    kill -9 "$pid0" 2>/dev/null
    wait "$pid0"; got=$?
    # The length of the log at the time of the flip.
    before=$(head -c "$(cat "$dir.now.done")" "$dir.log" | grep -c '^ iteration')
    after=$(grep -c '^ iteration' "$dir.log")
    check "$1: status $got, expected 46" [ $got -eq 46 ]
    [ $got -eq 46 ] || kill -9 "$pid1" 2>/dev/null
    check "$1: within $2 steps, not $((after - before))" [ $((after - before)) -le $(($2 + 3)) ]
    check "$1: said" grep -Eq "^train: $3" "$dir.log"
    check "$1: reported" grep -Eq '"cause":"replicas","exit_status":46,.*"tensor":"[^"]+\.' "$dir"/reports/*/report.json
}

# The weights of one data-parallel rank of three, in the embedding. The update of each step gathers them again, so a
# flip after the step's digest is overwritten and harmless; the next flip counts. In a model this small the passes
# before the digest are a small part of a step, on a busy machine a tenth, so ten flips can all be overwritten.
at=4096 bit=6 hit=1 flips=100 step="training: iteration [0-9]*: "
begin weights 3 --digest-interval 1
told weights 1 "$step[^ ]*: weight: the copy of rank 1 \(host [^ ]*\) has other bits than 2 of its 2 others; tensors that differ: 1; the state"
check "weights: the rank" grep -q '"rank":1,"host":"' "$dir"/reports/*/report.json

# The lowest bit of the final norm's first weight, in the masters of one tensor rank of two, a third of the way
# through the state. The weights stay the same, and the masters drift.
at=1/3 bit=0 hit=1 flips=1
begin masters 2 --digest-interval 5 --tensor-model-parallel-size 2 --save-interval 1000000
told masters 5 "${step}5.weight: master: the copy of rank 0 \(host [^ ]*\) has other bits than that of rank 1 \(host [^ ]*\), and it is not known which is wrong"

# --check-replicas and saves find the same incident.
begin checked 2 --digest-interval 0 --tensor-model-parallel-size 2 --save-interval 1000000 --check-replicas 1
flips=1
told checked 1 "5.weight: fp32 of this replicated parameter differs between tensor rank 0 and 1 "
flips=1
begin saved 2 --digest-interval 0 --tensor-model-parallel-size 2
told saved 10 "5.weight: fp32 of this replicated parameter differs between tensor rank 0 and 1 "

# With digests switched off, nothing is checked.
begin off 2 --digest-interval 0 --tensor-model-parallel-size 2 --save-interval 1000000
check "off: trains on" [ -d "/proc/$pid0" ]
kill -9 "$pid0" "$pid1" 2>/dev/null

# A gradient that varies between repetitions, in the memory of one of two data-parallel ranks.
at=1/6 bit=100 hit=1
begin device 2 --replay-check 1 --digest-interval 0
: >"$dir.now"
wait "$pid0"; got=$?
check "device: status $got, expected 47" [ $got -eq 47 ]
[ $got -eq 47 ] || kill -9 "$pid1" 2>/dev/null
check "device: said" grep -Eq "^train: training: iteration [0-9]*: rank 1 \(host [^ ]*\) got other bits for the gradient of [^ ]* from the same work; tensors" "$dir.log"
check "device: reported" grep -q '"cause":"device","exit_status":47,.*"rank":1,' "$dir"/reports/*/report.json

# The checks do not change the results.
for check in 0 3; do
    launch 4 --num-layers 2 --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON --global-batch-size 8 \
        --train-samples 200 --eval-iters 0 --attention-dropout 0.1 --hidden-dropout 0.1 --tensor-model-parallel-size 2 \
        --data-path "$DATA_DIR/text_document" --replay-check $((check * 2 / 3)) --digest-interval $check >"$W/checked$check" 2>&1
    series "$W/checked$check" >"$W/series$check"
done
check "checks: 25 iterations" [ "$(wc -l <"$W/series0")" -eq 25 ]
check "checks: the same bits" cmp "$W/series0" "$W/series3"
cost='^copies were compared 8 times in [0-9.]* ms each, [0-9.]* % of the iterations. time$'
check "checks: what it took is told" grep -q "$cost" "$W/checked3"
check "checks: of none nothing" sh -c "! grep -q 'copies were compared' '$W/checked0'"

if [ -n "${SOAK:-}" ]; then
    hit=9
    # Digests at each step, and at some steps with those in between recorded.
    for every in 1 7; do
        begin long$every 4 --digest-interval $every --tensor-model-parallel-size 2 --save-interval 1000000 \
            --exit-interval 10000
        wait "$pid0"; check "long, every $every: no false alarm in 10,000 steps" [ $? -eq 0 ]
        check "long, every $every: they were taken" [ "$(grep -c '^ iteration' "$dir.log")" -eq 10000 ]
        looks=$((10000 / every))
        check "long, every $every: and looked at" grep -q "^copies were compared $looks times" "$dir.log"
        grep '^copies were compared' "$dir.log"
    done
fi
finish
