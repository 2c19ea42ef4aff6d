#!/bin/sh
# replace.sh - kills while --force replaces OUT, at every rename and at removals
#
# The old or the new OUT is complete, the next run recovers, and files of other owners stay. The test runs with and
# without a file system that exchanges two names at once. Without the exchange, there is a moment in which OUT has no
# name.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh

if ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    echo "no shared-object compiler: kills at chosen calls are not tested"
    finish
fi
shim="env LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0 BADIO_URING=0"
"$TBIN/bench/mkckpt" --slim --layers 2 --steps 7 "$W/in" >/dev/null 2>&1 || exit 1
in=$W/in/global_step7
check "new" reshape -q --weights-only "$in" "$W/new"
check "old" reshape -q --weights-only --step 9 "$in" "$W/old"
convert="reshape -q -f --weights-only $in $W/out"

# one_is_whole: succeed if the complete old or new OUT is there: under its name or, if OUT is missing, as
# OUT.old.part.
one_is_whole() {
    at=$W/out
    [ -e "$at" ] || at=$W/out.old.part
    diff -r "$at" "$W/old" >/dev/null || diff -r "$at" "$W/new" >/dev/null
}

# Kill at CALL number N, then do the next run with OPTION.
killed_at() {   # EXCHANGE CALL N OPTION
    rm -rf "$W"/out*
    cp -r "$W/old" "$W/out"
    $shim BADIO_EXCHANGE="$1" BADIO="$2:$3:kill" $convert >/dev/null 2>&1
    status=$?
    what="exchange $1, killed at $2 $3, then -f ${4:-}"
    check "$what: one is whole" one_is_whole
    check "$what: next run" $shim BADIO_EXCHANGE="$1" $convert ${4:-}
    check "$what: the new bytes" diff -r "$W/out" "$W/new"
    check "$what: no leftovers" [ "$(echo "$W"/out*)" = "$W/out" ]
    return $status
}

for exchange in 1 0; do
    for option in '' --resume; do
        n=1
        while ! killed_at $exchange rename $n $option; do n=$((n + 1)); done
        check "there were renames to be killed at" [ $n -gt 4 ]
    done
    for n in 1 3 8 20; do killed_at $exchange unlinkat $n; done
done

# A run that may not replace OUT still restores the old one.
rm -rf "$W"/out*
cp -r "$W/old" "$W/out.old.part"
check_exit "no --force" 2 "exists already" reshape -q --weights-only "$in" "$W/out"
check "no --force: the old one is back" diff -r "$W/old" "$W/out"

# A foreign file that appears while OUT is being replaced is kept under another name and reported.
rm -rf "$W"/out* && cp -r "$W/old" "$W/out"
# The disk is slow, so that the run does not end before the check. The sleep lets the shell detect the end of the run.
$shim BADIO_SLOW=100 reshape -f --weights-only "$in" "$W/out" >"$W/said" 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null && [ ! -e "$W/out.part" ]; do sleep 0.01; done
kill -STOP $pid && echo mine >"$W/out/notes.txt" && kill -CONT $pid && wait $pid
if [ -e "$W/out/notes.txt" ] || [ -e "$W/out.kept/notes.txt" ]; then pass; else fail "notes written meanwhile are gone"; fi
[ ! -e "$W/out.kept" ] || check "what is kept is told" grep -q "out.kept: holds the replaced output" "$W/said"

# Killed while the state files of the job were removed: OUT has its name, some state files are gone, and --resume
# reports that OUT exists.
left() { rm -rf "$W/out.part.job" && mkdir "$W/out.part.job" && for f; do : >"$W/out.part.job/$f"; done; }
rm -rf "$W"/out* && check "a result" reshape -q --weights-only "$in" "$W/out"
cp -r "$W/out" "$W/whole"
for notes in "" "lock.0" "journal.0 lock.0" "ready publish"; do
    # shellcheck disable=SC2086
    left $notes
    check_exit "only '$notes' left of the notes: resumed" 0 "exists already and is complete" reshape --resume --weights-only "$in" "$W/out"
    check "only '$notes' left: no left-overs" [ "$(echo "$W"/out*)" = "$W/out" ]
    check "only '$notes' left: the same bytes" diff -r "$W/out" "$W/whole"
done
left fingerprint lock.0
check_exit "notes of a job that is not done" 2 "exists already" reshape --resume --weights-only "$in" "$W/out"
check "its notes stay" [ -e "$W/out.part.job/fingerprint" ]
left notes.txt
check_exit "notes that are not ours" 2 "notes.txt" reshape --resume --weights-only "$in" "$W/out"
check "they stay, too" [ -e "$W/out.part.job/notes.txt" ]
finish
