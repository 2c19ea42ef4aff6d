#!/bin/sh
# reports.sh - ranks that die, crash or hang: exit status, report.json, stacks, alarm
#
# In each case one rank of three receives a signal in the middle of training. All ranks that can still exit do so with
# the status of the cause. A report names the rank at fault and the activity of each rank, and the alarm runs once.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
LAUNCH=sockets

# begin NAME N OPTIONS...: start N ranks that train until a failure; pid0, pid1, ... are their process ids.
begin() {
    dir=$W/$1 n=$2; shift 2
    port=$((20000 + $(random 10000))) rank=0
    while [ $rank -lt "$n" ]; do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$BIN/train" --num-layers 1 --hidden-size 16 --num-attention-heads 2 --vocab-size 257 $COMMON \
            --global-batch-size 12 --train-samples 5000000 --eval-iters 0 --data-path "$DATA_DIR/text_document" \
            --save "$dir" --save-interval 10 --alarm-command 'env | grep ^TRAIN_ | sort >>"$TRAIN_REPORT.env"; echo called' \
            "$@" >>"$dir.log" 2>&1 &
        eval "pid$rank=$!"
        rank=$((rank + 1))
    done
    n=0
    until grep -q "${ready:-successfully saved}" "$dir.log" || [ $n -gt 1200 ]; do n=$((n + 1)); sleep 0.1; done
    grep -q "${ready:-successfully saved}" "$dir.log" || { cat "$dir.log"; fail "$dir does not train"; finish; }
}
# ended NAME STATUS RANK...: these ranks exit with STATUS.
ended() {
    case=$1 want=$2; shift 2
    for rank in "$@"; do
        eval "wait \$pid$rank"; got=$?
        check "$case: rank $rank leaves with status $got, expected $want" [ $got -eq "$want" ]
    done
    report=$(ls "$dir"/reports/*/report.json 2>/dev/null)
    check "$case: a report" [ -s "$report" ]
    run=$(dirname "$report")
    n=0
    until grep -qs called "$run/alarm.log" || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done
    check "$case: one alarm" [ "$(cat "$run/alarm.log")" = called ]
    check "$case: it knows the cause" [ "$(grep -c "^TRAIN_EXIT_STATUS=$want$" "$report.env")" = 1 ]
    check "$case: nothing half-done" [ -z "$(ls -A "$run" | grep part)" ]
    ! command -v jq >/dev/null || check "$case: JSON" jq -e ".form == \"train-report-1\" and .exit_status == $want" "$report"
}
# says NAME TEXT: the report contains TEXT.
says() { check "$1: $2" grep -qF -- "$2" "$report"; }

begin lost 3
kill -9 $pid2
ended lost 42 0 1
says lost "\"cause\":\"lost\",\"exit_status\":42,\"message\":\"rank 2 (host "
says lost "\"rank\":2,\"host\":\"$(uname -n)\",\"pid\":$pid2,\"gpu\":null,\"signal\":null"
says lost "\"last_save\":\"global_step"
says lost "\"answers\":false,\"in_call\":false,\"waits_for\":null,\"doing\":null,\"stacks\":\"rank00002.txt\"}]}"
check "lost: rank 1 said what it did" grep -Eq '"rank":1,"host":"[^"]*","pid":[0-9]*,"gpu":null,"answers":true' "$report"
check "lost: stacks of who lives" grep -q "train(.*trainer_run\|train(.*main" "$run/rank00000.txt" "$run/rank00001.txt"
check "lost: status.json" grep -q "\"cause\":\"lost\",\"report\":\"$report\"" "$dir/status.json"

begin first 3
kill -9 $pid0
ended first 42 1 2
says first "\"rank\":0,\"host\":\"$(uname -n)\",\"pid\":$pid0,"
check "first: another wrote it" grep -q '"written_by":[12]' "$report"
check "first: it knows what is saved" grep -Eq '"iteration":[1-9][0-9]*,.*"last_save":"global_step[0-9]+"' "$report"

begin crash 3
kill -SEGV $pid1
ended crash 43 0 1 2
says crash "crashed: SIGSEGV; ending the job\",\"rank\":1,"
says crash "\"signal\":\"SIGSEGV\""
check "crash: its stack" grep -q "^crashed: SIGSEGV, address " "$run/rank00001.txt"
check "crash: with names" grep -q "train(main" "$run/rank00001.txt"

begin root 3
kill -ABRT $pid0
ended root 43 0 1 2
says root "crashed: SIGABRT; ending the job\",\"rank\":0,"
says root "\"written_by\":0,"
check "root: status.json" grep -q "\"cause\":\"crash\",\"report\":\"$report\"" "$dir/status.json"

begin hang 3 --collective-timeout 3
kill -STOP $pid1
ended hang 41 0 2
says hang "\"rank\":1,\"host\":\"$(uname -n)\",\"pid\":$pid1,"
check "hang: whom rank 0 waits for" grep -q '"in_call":true,"waits_for":[12],"doing":"has waited [0-9]* s in ' "$report"

begin alone 1
kill -FPE $pid0
ended alone 43 0
says alone "\"signal\":\"SIGFPE\""

begin well 2
kill -TERM $pid0
wait $pid0; check "well: status 0" [ $? -eq 0 ]
wait $pid1
check "well: no reports" [ ! -e "$dir/reports" ]

# dumps NAME MS: a core file, if enabled, shows the signal, even where the disk takes longer than the final report
# may.
dumps() {           # NAME MS
    (ulimit -c unlimited 2>/dev/null || exit 0
     cd "$W" && ready=" iteration " BADIO_SLOW=$2 LD_PRELOAD=${slow:-} begin "$1" 1 &&
         kill -SEGV $pid0 && wait $pid0; [ $? -eq 139 ])
    check "core: $1 dies of the signal" [ $? -eq 0 ]
}
dumps dump 0
slow=$W/badio.so
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$slow" tests/fault/shim/badio.c -ldl 2>"$W/log"; then
    dumps slowly 1600
    # The slow disk must not lose any other output either.
    export LD_PRELOAD="$slow" BADIO_SLOW=4000
    ready="^ iteration " begin busy 2 --save-interval 1000000
    unset LD_PRELOAD BADIO_SLOW
    kill -9 $pid1
    ended busy 42 0
    check "busy: stacks" grep -q "train(.*main" "$run/rank00000.txt"
    check "busy: status.json" grep -q "\"cause\":\"lost\",\"report\":\"$report\"" "$dir/status.json"
    # If a disk cannot sync, this is reported, and the written data is there.
    export LD_PRELOAD="$slow" BADIO=fsync:1+:5 BADIO_AT=.json
    ready="^ iteration " begin unsynced 2 --save-interval 1000000
    unset LD_PRELOAD BADIO BADIO_AT
    kill -9 $pid1
    ended unsynced 42 0
    for file in report status; do
        check "unsynced: $file.json" grep -q "^train: .*/$file.json: cannot sync: Input/output error" "$dir.log"
    done
    # A stopped rank is ended as well.
    export LD_PRELOAD="$slow" BADIO_SLOW=2500
    ready="^ iteration " begin stops 2 --save-interval 1000000 --collective-timeout 15
    unset LD_PRELOAD BADIO_SLOW
    kill -STOP $pid1
    ended stops 41 0
    wait $pid1; check "stops: rank 1 is ended" [ $? -eq 137 ]
    # A rank is lost while the report of an orderly end is being written slowly. The report stays that of the orderly
    # end.
    export LD_PRELOAD="$slow" BADIO_SLOW_RENAME=1500 BADIO_AT=status.json BADIO_SLOW_UNMAP=9000
    ready="^ iteration " begin tells 2 --save-interval 1000000
    unset LD_PRELOAD BADIO_SLOW_RENAME BADIO_AT BADIO_SLOW_UNMAP
    kill -TERM $pid0
    n=0
    until grep -qs '"stop_reason":"signal"' "$dir"/status.json.*.part || [ $n -gt 3000 ]; do n=$((n + 1)); sleep 0.02; done
    kill -9 $pid1
    ended tells 42 0
    check "tells: status.json" grep -q '"stop_reason":"failed".*"cause":"lost"' "$dir/status.json"
    check "tells: no lock" [ ! -e "$dir/train.lock" ]
    # A rank is lost after everything is saved and reported, while rank 0 waits for it to exit.
    mkdir "$W/here" && cd "$W/here" || exit 1
    export LD_PRELOAD="$slow" BADIO_SLOW_UNMAP=6000
    begin late 2
    unset LD_PRELOAD BADIO_SLOW_UNMAP
    kill -TERM $pid0
    n=0
    # The lock is removed after the end is reported.
    until [ ! -e "$dir/train.lock" ] || [ $n -gt 600 ]; do n=$((n + 1)); sleep 0.1; done
    check "late: it is told" grep -q '"stop_reason":"signal"' "$dir/status.json"
    kill -9 $pid1
    ended late 42 0
    check "late: status.json says how the run ended" grep -q '"phase":"stop".*"stop_reason":"signal"' "$dir/status.json"
    check "late: and lies nowhere else" [ -z "$(ls -A)" ]
    cd "$OLDPWD" || exit 1
else
    fail "badio.c: $(cat "$W/log")"
fi
finish
