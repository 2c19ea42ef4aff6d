# lib.sh - functions shared by the fault scripts; sourced. Needs $BIN (tools) and $TBIN (test tools).
#
# A script runs its checks one after another with `check NAME COMMAND...`. It ends with `finish`, which prints "N
# passed, N failed" and keeps the scratch folder after a failure.
set -u
BIN=${BIN:-$PWD/bin}
TBIN=${TBIN:-$PWD/build/release/tests}
PATH=$BIN:$PATH
W=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-fault-XXXXXX")
# Ranks wait two seconds at most until mpirun has answered their MPI_Finalize(). A rank that has left without an answer,
# because mpirun got no processor, makes Open MPI's mpirun fail after a complete run, but for this setting.
OMPI_MCA_orte_allowed_exit_without_sync=1
export OMPI_MCA_orte_allowed_exit_without_sync
passed=0 failed=0 n_skipped=0

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAIL $*"; }

# check NAME COMMAND...: the command must succeed.
check() {
    name=$1; shift
    if "$@" >"$W/log" 2>&1; then pass; else fail "$name"; sed 's/^/    /' "$W/log" | tail -n 20; fi
}

# check_exit NAME STATUS TEXT COMMAND...: the command must exit with STATUS and print TEXT.
check_exit() {
    name=$1 want=$2 text=$3; shift 3
    "$@" >"$W/log" 2>&1; got=$?
    if [ $got -eq "$want" ] && grep -qF -- "$text" "$W/log"; then pass
    else fail "$name: exit $got (expected $want), expected to read '$text':"; sed 's/^/    /' "$W/log" | head -20; fi
}

# quick: succeed in `make test`, which has only minutes; fail in `make check`.
quick() { [ "${QUICK:-0}" = 1 ]; }

# random N: print a number from 0 to N - 1.
random() { echo $(($(od -An -N4 -tu4 /dev/urandom) % $1)); }

# kill_after MS PID: kill a job of this shell after MS. Succeeds if the job was still running, and counts it in
# n_killed.
n_killed=0
kill_after() {
    sleep "$(($1 / 1000)).$(printf '%03d' $(($1 % 1000)))"
    kill -KILL "$2" 2>/dev/null; wait "$2" 2>/dev/null
    [ $? -eq 137 ] && n_killed=$((n_killed + 1))
}

# skip WHY: end a script that cannot run on this machine.
skip() {
    rm -rf "$W"
    echo "$*: skipped"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

# skip_part WHAT WHY: name a part of the script that is not run here.
skip_part() { n_skipped=$((n_skipped + 1)); echo "$1: $2: skipped"; }

finish() {
    if [ $failed -eq 0 ]; then rm -rf "$W"; else echo "kept: $W"; fi
    [ $n_skipped -eq 0 ] && skipped= || skipped=", $n_skipped skipped"
    echo "$passed passed, $failed failed$skipped"
    [ $failed -eq 0 ]
    exit
}
