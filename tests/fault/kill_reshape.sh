#!/bin/sh
# kill_reshape.sh - SIGKILL at random moments of reshape and merge-tp: OUT is absent or whole, --resume ends the same
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-4}
quick && kills=1
[ -n "${SOAK:-}" ] && kills=200

model="--layers 4 --hidden 512 --heads 8 --vocab 20000 --steps 7"
"$TBIN/bench/mkckpt" $model --tp 2 --pp 2 --dp 2 "$W/two" >/dev/null 2>&1 || exit 1
"$TBIN/bench/mkckpt" $model --tp 1 --pp 1 --dp 3 "$W/one" >/dev/null 2>&1 || exit 1
"$TBIN/bench/mkckpt" $model --tp 4 --pp 1 --dp 1 --drift 4.input_layernorm.weight:fp32:1:9 "$W/four" >/dev/null 2>&1 || exit 1
state_of() { (cd "$W" && find two one four -type f | sort | xargs cksum); }
before=$(state_of)

# kills_of NAME IN COMMAND...: a whole run, then runs that are killed, looked at, and resumed.
kills_of() {
    what=$1 in=$W/$2/global_step7 ref=$W/ref-$1
    shift 2
    check "$what without a kill" "$@" -q "$in" "$ref"
    check "$what: sound" ckpt-inspect verify -q "$ref"
    i=0
    while [ $i -lt "$kills" ]; do
        ms=$(random 250)
        "$@" -q --certificate "$W/proof" "$in" "$W/out" >/dev/null 2>&1 &
        pid=$!
        sleep "$(printf '0.%03d' "$ms")"
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null
        if [ -e "$W/out" ] && ! diff -r "$W/out" "$ref" >/dev/null; then
            fail "$what killed after $ms ms: OUT is there and wrong"
        fi
        [ -e "$W/proof" ] && [ ! -e "$W/out" ] && fail "$what killed after $ms ms: a certificate of nothing"
        check "$what killed after $ms ms: resume" "$@" -q --resume --certificate "$W/proof" "$in" "$W/out"
        check "$what killed after $ms ms: same bytes" diff -r "$W/out" "$ref"
        check "$what killed after $ms ms: certificate" ckpt-inspect verify -q --certificate "$W/proof" "$W/out"
        [ -e "$W/out.part" ] || [ -e "$W/out.part.job" ] && fail "$what killed after $ms ms: leftovers"
        rm -rf "$W/out" "$W/proof"
        i=$((i + 1))
    done
}

kills_of grow two reshape --target-tp 4 --target-pp 1 --target-dp 3
kills_of deal one reshape --target-tp 8 --target-pp 2 --target-dp 2
kills_of merge two merge-tp
kills_of repair four merge-tp --repair --replicas majority
check "input untouched" [ "$before" = "$(state_of)" ]
finish
