#!/bin/sh
# comm.sh - jobs of several ranks under mpirun and by variables: they communicate, and end together
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
demo=$TBIN/tools/commdemo
kills=${KILLS:-3}
[ -n "${SOAK:-}" ] && kills=50
# The job must inherit nothing from a job that runs this script.
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID COMMDEMO_TIMEOUT

mpi() { mpirun --allow-run-as-root --oversubscribe -n "$@"; }

# vars N COMMAND...: start N ranks as torchrun does. The status is 1 if one of them fails.
vars() {
    n=$1 port=$((20000 + $(random 10000))) pids='' bad=0 r=0; shift
    while [ $r -lt "$n" ]; do
        RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
        pids="$pids $!" r=$((r + 1))
    done
    for p in $pids; do wait "$p" || bad=1; done
    return $bad
}

# Wait until a command is true, at most $1 tenths of a second.
until_true() {
    tenths=$1; shift
    while ! "$@"; do
        [ "$tenths" -gt 0 ] || return 1
        tenths=$((tenths - 1)); sleep 0.1
    done
}
all_started() { [ "$(grep -c '^rank [0-9]* pid' "$W/job")" -eq "$1" ]; }
pid_of() { sed -n "s/^rank $1 pid //p" "$W/job"; }
none_left() {
    for p in $(sed -n 's/^rank [0-9]* pid //p' "$W/job"); do
        # A zombie has ended; its parent has not collected its status yet.
        case $(sed 's/.*) //' "/proc/$p/stat" 2>/dev/null) in ''|Z*|X*) ;; *) return 1 ;; esac
    done
}

BEFORE=:        # what signal_one does just before, given the rank
OR='^$'         # what may be said in place of its text: a pattern
# signal_one NAME SIGNAL RANK TEXT LAUNCHER N ARGS...: all ranks end within 5 s, the status is not 0, and TEXT is
# printed.
signal_one() {
    name=$1 signal=$2 rank=$3 text=$4; shift 4
    launcher=$1 ranks=$2
    : >"$W/job"         # the last job's ranks are not this one's
    "$@" >"$W/job" 2>&1 & job=$!
    if ! until_true 300 all_started "$ranks"; then
        fail "$name: not all ranks started"; cat "$W/job"; kill $job; wait $job; return
    fi
    sleep 0.2
    pid=$(pid_of "$rank")
    $BEFORE "$rank"
    kill -"$signal" "$pid"
    if until_true 50 none_left; then pass; else fail "$name ($launcher): ranks are left after 5 s"; fi
    wait $job; got=$?
    if [ $got -ne 0 ]; then pass; else fail "$name ($launcher): exit 0"; fi
    text=$(printf "$text" "$rank" "$(uname -n)" "$pid")
    if grep -qF "$text" "$W/job" || { [ "$OR" != '^$' ] && grep -q "$OR" "$W/job"; }; then pass
    else fail "$name ($launcher): expected to read '$text':"; sed 's/^/    /' "$W/job" | head -30; fi
}

# ---- by variables: no MPI needed ----

check "4 ranks by variables" vars 4 "$demo" check
i=0
while [ $i -lt "$kills" ]; do
    signal_one "killed" KILL $((i % 4)) 'rank %d (host %s, pid %d) died: ' vars 4 "$demo" run
    i=$((i + 1))
done

# ---- ranks that wait for others ----

# waits_for SIGNAL RANK: start one rank of two. After the signal it ends within a second, with its writer process.
waits_for() {
    signal=$1 rank=$2
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $(random 10000))) "$BIN/train" \
        --num-layers 1 --hidden-size 16 --num-attention-heads 1 --seq-length 16 --micro-batch-size 1 \
        --train-samples 4 --lr 1e-3 --data-path tests/data/text/text_document --vocab-size 257 --save "$W/save" \
        >"$W/job" 2>&1 & job=$!
    # A shell's jobs ignore SIGINT until they install a handler, which they do before they start their writer.
    until_true 300 has_child $job
    sleep 0.5
    kill -"$signal" $job
    if until_true 10 gone $job; then pass; else fail "rank $rank waits on after SIG$signal"; kill -9 $job; fi
    wait $job; got=$?
    if [ $got -gt 128 ]; then pass; else fail "rank $rank waiting, SIG$signal: exit $got, not of the signal"; fi
    check "SIG$signal leaves no writer behind" until_true 10 no_child_of $job
}
gone() { case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in ''|Z*|X*) ;; *) return 1 ;; esac; }
has_child() { pgrep -P "$1" >/dev/null; }
no_child_of() { ! grep -lqs "$W/save" /proc/[0-9]*/cmdline; }
waits_for TERM 1
waits_for INT 1
waits_for TERM 0
waits_for USR1 0

# ---- mpirun ----

# MPI does not free all of its memory. The unit tests detect leaks of shardkit itself.
export ASAN_OPTIONS=detect_leaks=0

if ! command -v mpirun >/dev/null; then
    echo "mpirun is missing: only jobs started by variables were tested"
    finish
fi
if mpi 2 "$demo" where 2>&1 | grep -q "no MPI library can be loaded"; then
    echo "the MPI library is missing: only jobs started by variables were tested"
    finish
fi
check_exit "8 ranks under mpirun" 0 checked mpi 8 "$demo" check
check_exit "3 ranks under mpirun" 0 checked mpi 3 "$demo" check large
check_exit "who is where" 0 "rank 2 of 3, local 2 of 3, host 0 of 1" mpi 3 "$demo" where
check_exit "one rank under mpirun" 0 "rank 0 of 1" mpi 1 "$demo" where
check_exit "another MPI's launcher" 2 "mpirun started 4 tasks (PMI_SIZE), but" env PMI_RANK=1 PMI_SIZE=4 "$demo" where

# The MPI library is loaded at run time: a file that is not there, one that is no MPI, one of an unknown interface.
check_exit "no such MPI library" 2 "no MPI library can be loaded (/no/libmpi.so: " env PMI_RANK=0 PMI_SIZE=2 \
    SHARDKIT_MPI=/no/libmpi.so "$demo" where
check_exit "a library that is no MPI" 2 "the MPI library has no MPI_Init_thread" env PMI_RANK=0 PMI_SIZE=2 \
    SHARDKIT_MPI=libm.so.6 "$demo" where
if command -v cc >/dev/null; then
    {
        echo '#include <string.h>'
        for f in Init_thread Finalize Comm_rank Comm_size Comm_dup Comm_free Comm_set_errhandler Comm_get_attr Isend Irecv \
            Testsome Get_count Error_string; do echo "int MPI_$f(void) { return 1; }"; done
        echo 'int MPI_Get_library_version(char *s, int *n) { strcpy(s, "Other MPI 1.0"); *n = 13; return 0; }'
    } >"$W/other.c"
    cc -shared -fPIC -w -o "$W/other.so" "$W/other.c"
    check_exit "an MPI of another interface" 2 "MPI library: Other MPI 1.0: expected Open MPI or" env PMI_RANK=0 PMI_SIZE=2 \
        SHARDKIT_MPI="$W/other.so" "$demo" where
fi
# MPICH's launcher gives no Open MPI a world, so these ranks reach each other by MPICH.
if command -v mpiexec.hydra >/dev/null; then
    check_exit "3 ranks under MPICH" 0 checked mpiexec.hydra -n 3 "$demo" check
    check_exit "who is where under MPICH" 0 "rank 2 of 3, local 2 of 3, host 0 of 1" mpiexec.hydra -n 3 "$demo" where
else
    echo "mpiexec.hydra is missing: MPICH was not tested"
fi

# The output of the other ranks passes through mpirun, which may end before it forwards that. Then it names the rank
# itself.
i=0
while [ $i -lt "$kills" ]; do
    OR="^mpirun noticed that process rank $((i % 8)) with PID .* exited on signal 9 "
    signal_one "killed" KILL $((i % 8)) 'rank %d (host %s, pid %d) died: ' mpi 8 "$demo" run
    i=$((i + 1))
done
OR='^$'
signal_one "killed" TERM 5 'rank %d (host %s, pid %d) died: ' mpi 8 "$demo" run
# mpirun ends the other ranks; on a busy machine this can happen before they detect the cause. Here they are stopped,
# with the signal pending until mpirun continues them, so they never detect it.
stop_others() {
    for r in 0 1 2 3; do
        [ $r -eq "$1" ] || kill -STOP "$(pid_of $r)"
        [ $r -eq "$1" ] || kill -TERM "$(pid_of $r)"
    done
}
BEFORE=stop_others OR='^mpirun noticed that process rank 0 with PID .* exited on signal 9 '
signal_one "killed, the others ended by mpirun first" KILL 0 'rank %d (host %s, pid %d) died: ' mpi 4 "$demo" run
OR='^mpirun noticed that process rank 3 with PID .* exited on signal 9 '
signal_one "killed, the others ended by mpirun first" KILL 3 'rank %d (host %s, pid %d) died: ' mpi 4 "$demo" run
BEFORE=: OR='^$'
# This timeout is longer than the delays between eight ranks on two busy cores.
COMMDEMO_TIMEOUT=3; export COMMDEMO_TIMEOUT
check_exit "a rank gives up" 1 "failed: no more data" mpi 8 "$demo" abort 3
check_exit "the others do not" 1 "last words: rank 3 (host $(uname -n)" mpi 8 "$demo" abort 3
check_exit "a rank sleeps" 1 "of group world for rank 5" mpi 8 "$demo" sleep 5
check_exit "and is named" 1 "; rank 5 (host $(uname -n), pid " mpi 8 "$demo" sleep 5
unset COMMDEMO_TIMEOUT
check_exit "a table of all" 0 "rank 6 (host $(uname -n), pid " mpi 8 "$demo" dump
finish
