#!/bin/sh
# kill_reshape.sh - SIGKILL at random moments of reshape and merge-tp: OUT is absent or complete, --resume gives the
# same result
#
# It covers every layout that reshape writes. Where OUT is replaced, the old or the new one is there.
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

# run_for MS COMMAND...: run the command and kill it after MS milliseconds.
run_for() {
    after=$(printf '0.%03d' "$1"); shift
    "$@" >/dev/null 2>&1 &
    pid=$!
    sleep "$after"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
}

# kills_of NAME IN COMMAND...: do one complete run, then runs that are killed, checked, and resumed.
kills_of() {
    what=$1 in=$W/$2/global_step7 ref=$W/ref-$1
    shift 2
    check "$what without a kill" "$@" -q "$in" "$ref"
    check "$what: sound" ckpt-inspect verify -q "$ref"
    i=0
    while [ $i -lt "$kills" ]; do
        ms=$(random 250)
        run_for "$ms" "$@" -q --certificate "$W/proof" "$in" "$W/out"
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

# kills_plain NAME IN OTHER COMMAND...: the same for layouts without a certificate, and for an OUT that is first made
# from OTHER.
kills_plain() {
    what=$1 in=$2 other=$3 ref=$W/ref-$1 old=$W/old-$1
    shift 3
    begun=$(date +%s%N)
    check "$what without a kill" "$@" -q "$in" "$ref"
    span=$((($(date +%s%N) - begun) / 1000000 + 20))
    [ $span -lt 900 ] || span=900
    check "$what: sound" ckpt-inspect verify -q "$ref"
    check "$what: another" "$@" -q "$other" "$old"
    i=0
    while [ $i -lt $((2 * kills)) ]; do
        ms=$(random $span)
        force=
        [ $((i % 2)) -eq 0 ] || { cp -r "$old" "$W/out"; force=--force; }
        run_for "$ms" "$@" -q $force "$in" "$W/out"
        if [ -e "$W/out" ]; then
            diff -r "$W/out" "$ref" >/dev/null || { [ -n "$force" ] && diff -r "$W/out" "$old" >/dev/null; } ||
                fail "$what killed after $ms ms: OUT is neither the new nor the old one"
        elif [ -n "$force" ]; then
            fail "$what killed after $ms ms: OUT is gone"
        fi
        check "$what killed after $ms ms: resume" "$@" -q --resume $force "$in" "$W/out"
        check "$what killed after $ms ms: same bytes" diff -r "$W/out" "$ref"
        check "$what killed after $ms ms: no leftovers" [ "$(echo "$W"/out*)" = "$W/out" ]
        rm -rf "$W"/out*
        i=$((i + 1))
    done
    rm -rf "$ref" "$old"
}

kills_of grow two reshape --target-tp 4 --target-pp 1 --target-dp 3
kills_of deal one reshape --target-tp 8 --target-pp 2 --target-dp 2
kills_of merge two merge-tp
kills_of repair four merge-tp --repair --replicas majority
zero=tests/data/zero torch=tests/data/dcp moe=tests/data/dsmoe
zero_before=$(find $zero $torch $moe -type f | sort | xargs cksum)
check "two for torch.distributed" reshape -q --accept-mismatch --to dcp --ranks 3 "$W/two/global_step7" "$W/dcp"
kills_plain dsmoe $moe/zero2 $moe/zero1 reshape --target-ep 1
kills_plain dcp "$W/dcp" $torch/fsdp/ckpt reshape --accept-mismatch --ranks 5
kills_plain to-dcp "$W/two/global_step7" "$W/one/global_step7" reshape --accept-mismatch --to dcp --ranks 2
kills_plain zero1 $zero/zero1-fp16-gpt2-2ranks/ckpt $zero/zero1-fp32-gpt2-2ranks/ckpt reshape --target-dp 40
kills_plain zero2 $zero/zero2-edge-3ranks/ckpt $zero/zero2-fp16-3ranks/ckpt reshape --target-dp 60
kills_plain zero3 $zero/zero3-edge-2ranks/ckpt $zero/zero3-gpt2-4ranks/ckpt reshape --target-dp 60
kills_plain zero2-3 $zero/zero2-fp16-3ranks/ckpt $zero/zero2-roundrobin-3ranks/ckpt reshape --to zero3 --target-dp 40
check "test data untouched" [ "$zero_before" = "$(find $zero $torch $moe -type f | sort | xargs cksum)" ]
check "input untouched" [ "$before" = "$(state_of)" ]
finish
