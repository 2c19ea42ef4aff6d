#!/bin/sh
# kill_reshape.sh - SIGKILL at random moments of a reshape: OUT is absent or whole, --resume ends the same
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-8}
[ -n "${SOAK:-}" ] && kills=300

"$TBIN/bench/mkckpt" --layers 4 --hidden 512 --heads 8 --vocab 20000 --tp 2 --pp 2 --dp 2 --steps 7 "$W/in" >/dev/null || exit 1
in=$W/in/global_step7
before=$(cd "$W/in" && find . -type f | sort | xargs cksum)
shape="--target-tp 4 --target-pp 1 --target-dp 3"
check "without a kill" reshape -q $shape "$in" "$W/ref"
check "sound" ckpt-inspect verify -q "$W/ref"

i=0
while [ $i -lt "$kills" ]; do
    ms=$(random 250)
    reshape -q $shape "$in" "$W/out" 2>/dev/null &
    pid=$!
    sleep "$(printf '0.%03d' "$ms")"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    if [ -e "$W/out" ] && ! diff -r "$W/out" "$W/ref" >/dev/null; then
        fail "killed after $ms ms: OUT is there and wrong"
    fi
    check "killed after $ms ms: resume" reshape -q --resume $shape "$in" "$W/out"
    check "killed after $ms ms: same bytes" diff -r "$W/out" "$W/ref"
    [ -e "$W/out.part" ] || [ -e "$W/out.part.job" ] && fail "killed after $ms ms: leftovers"
    rm -rf "$W/out"
    i=$((i + 1))
done

# One byte of one shard wrong: named, no OUT, no leftovers.
bad=$in/bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt
printf '\377' | dd of="$bad" bs=1 seek=1000000 conv=notrunc 2>/dev/null
check_exit "a flipped byte" 1 "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt" reshape -q $shape "$in" "$W/out"
check "no OUT after it" [ ! -e "$W/out" ]
check "no leftovers after it" [ ! -e "$W/out.part" ]
check "weights do not need it" reshape -q --weights-only $shape "$in" "$W/weights"

rm "$bad"
check_exit "a missing shard" 1 "missing bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt" reshape -q $shape "$in" "$W/out"
finish
