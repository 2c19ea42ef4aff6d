#!/bin/sh
# kill.sh - SIGKILL at random moments: OUT is absent or complete, IN is unchanged, --resume gives the same result
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-20}
[ -n "${SOAK:-}" ] && kills=500

"$TBIN/bench/mkckpt" --layers 4 --hidden 512 --heads 8 --vocab 20000 --tp 2 --pp 2 --dp 2 --steps 7 "$W/in" >/dev/null || exit 1
in=$W/in/global_step7
before=$(cd "$W/in" && find . -type f | sort | xargs cksum)
for form in pt hdf5; do
    check "$form without a kill" ds2universal -q --format $form "$in" "$W/ref-$form"
done

state_of() { (cd "$1" && find . -type f ! -name manifest.json | sort | xargs cksum); }

# one_kill FORM MS: kill one run after MS milliseconds, check the result, then resume the run.
one_kill() {
    form=$1 ms=$2 out=$W/out
    ds2universal -q --format "$form" "$in" "$out" 2>/dev/null &
    pid=$!
    sleep "$(printf '0.%03d' "$ms")"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    if [ -e "$out" ] && ! diff -r "$out" "$W/ref-$form" >/dev/null; then
        fail "$form killed after $ms ms: OUT is there and wrong"
    fi
    check "$form killed after $ms ms: resume" ds2universal -q --resume --format "$form" "$in" "$out"
    check "$form killed after $ms ms: same bytes" diff -r "$out" "$W/ref-$form"
    [ -e "$out.part" ] || [ -e "$out.part.job" ] && fail "$form killed after $ms ms: leftovers"
    rm -rf "$out"
}

i=0
while [ $i -lt "$kills" ]; do
    one_kill pt "$(random 250)"
    [ $((i % 4)) -eq 3 ] && one_kill hdf5 "$(random 250)"
    i=$((i + 1))
done

# Kill runs that replace an older OUT: the old or the new one must be there.
i=0
while [ $i -lt $((kills / 4)) ]; do
    cp -r "$W/ref-hdf5" "$W/out"
    ds2universal -q --force "$in" "$W/out" 2>/dev/null & pid=$!
    sleep "$(printf '0.%03d' "$(random 250)")"
    kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
    if diff -r "$W/out" "$W/ref-hdf5" >/dev/null || diff -r "$W/out" "$W/ref-pt" >/dev/null; then pass
    else fail "killed while replacing: OUT is neither the old nor the new one"; fi
    check "killed while replacing: resume" ds2universal -q --resume --force "$in" "$W/out"
    check "killed while replacing: the new bytes" diff -r "$W/out" "$W/ref-pt"
    check "killed while replacing: no leftovers" [ "$(echo "$W"/out*)" = "$W/out" ]
    rm -rf "$W"/out*
    i=$((i + 1))
done

after=$(cd "$W/in" && find . -type f | sort | xargs cksum)
check "input untouched" [ "$before" = "$after" ]
finish
