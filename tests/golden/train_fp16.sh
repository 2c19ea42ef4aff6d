#!/bin/sh
# train_fp16.sh - training in fp16 continues as the reference did, from its step 20 and from new weights
#
# Loss scales, skipped steps and rates must equal the reference's to the digit, losses to 1e-4 and norms to 1e-3, in
# every topology. The reference itself varies by 2e-5 of a loss between topologies. TOPOLOGIES="tp,pp,dp ..." replaces
# the list; a suffix ",s" selects sequence parallelism. QUICK=1 runs part of it.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
all="1,1,2 2,2,2 4,1,1 1,4,1 2,1,4 2,2,1,s" ways="selective full beside" stops="2 5"
quick && all="1,1,2 2,2,2" ways=selective stops=
topologies=${TOPOLOGIES:-$all}
set=tests/data/gpt2-fp16-tp2pp2dp2 golden=tests/data/logs/gpt2-fp16-tp2pp2dp2.log
FP16="--position-embedding-type absolute --global-batch-size 16 --rampup-batch-size 4 4 96 --deepspeed
    --deepspeed_config $set/ds.json $(echo "$COMMON" | sed 's/--bf16/--fp16/')"
FRESH="--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 257"

# run NAME TP PP DP ARGS...: its log is $W/NAME.log.
run() {
    name=$1 tp=$2 pp=$3 dp=$4; shift 4
    # shellcheck disable=SC2086
    launch $((tp * pp * dp)) $FP16 --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" \
        --data-path "$DATA_DIR/text_document" "$@" >"$W/$name.log" 2>&1 ||
        fail "$name: $(tail -n 3 "$W/$name.log")"
}

# near A B LOSS NORM: the losses of two logs must be within LOSS, their norms within the relative difference NORM;
# both must have iterations 21 to 30.
near() {
    series "$1" >"$W/a"; series "$2" >"$W/b"
    awk -v l="$3" -v n="$4" '
        function abs(x) { return x < 0 ? -x : x }
        FNR == NR { loss[$1 $2 * ($1 == "valid")] = $1 == "valid" ? $3 : $2; norm[$1] = $3; next }
        $1 == "valid" { if (!(abs($3 - loss[$1 $2]) <= l)) { print "valid", $0, loss[$1 $2]; bad = 1 } next }
        $1 >= 21 && $1 <= 30 {
            seen++
            if (!(abs($2 - loss[$1 0]) <= l) || !(abs($3 - norm[$1]) <= n * norm[$1] + 1e-3)) {
                print $0, loss[$1 0], norm[$1]; bad = 1
            }
        }
        END { exit bad || seen != 10 }' "$W/a" "$W/b"
}
# Print the fields that must be exact, including those that the scale determines: iterations 21 to 30 of the golden
# log.
exactly() {
    { exact "$golden"; scales "$golden"; } | awk '$1 > 20' >"$W/want"
    { exact "$1"; scales "$1"; } | cmp "$W/want" - && ! grep OVERFLOW "$1"
}

first=
for topology in $topologies; do
    tp=${topology%%,*} rest=${topology#*,}
    pp=${rest%%,*} dp=${rest#*,}
    more=
    case $dp in *,s) dp=${dp%,s} more=--sequence-parallel ;; esac
    # shellcheck disable=SC2086
    run "$topology" "$tp" "$pp" "$dp" $more --exit-interval 30 --load $set --save "$W/$topology" --save-interval 100
    check "$topology: scales, rates, samples" exactly "$W/$topology.log"
    check "$topology: losses and norms" near "$golden" "$W/$topology.log" 1e-4 1e-3
    [ -z "$first" ] || check "$topology beside $first" near "$W/$first.log" "$W/$topology.log" 1e-4 0.002
    check "$topology: its checkpoint is sound" ckpt-inspect verify --strict "$W/$topology"
    first=${first:-$topology}
done

# The same without this peculiarity of the scale: iteration 26 counts twice as much.
run step-scale 1 1 2 --unscale-with-step-scale --exit-interval 30 --load $set
check "--unscale-with-step-scale: its losses" near "$W/$first.log" "$W/step-scale.log" 6e-3 0.02
check "--unscale-with-step-scale: from iteration 27 on" sh -c "
    awk 'FNR == NR { a[\$1] = \$0; next } \$1 > 20 && (a[\$1] == \$0) != (\$1 < 27) { print; bad = 1 } END { exit bad }' \
        '$W/a' '$W/b'"

run fp32-grads 2 2 1 --accumulate-allreduce-grads-in-fp32 --exit-interval 30 --load $set
check "--accumulate-allreduce-grads-in-fp32" near "$W/$first.log" "$W/fp32-grads.log" 1e-3 0.005

# BLOOM's family with dropout: the method of keeping activations changes no bit.
bloom="$FRESH --position-embedding-type alibi --embed-layernorm --hidden-dropout 0.1 --attention-dropout 0.1
    --exit-interval 8 --save-interval 8 --check-replicas 2 --log-params-norm"
# shellcheck disable=SC2086
run bloom 2 2 2 $bloom --save "$W/bloom"
check "bloom: skips until the scale fits" sh -c "grep -c OVERFLOW '$W/bloom.log' >'$W/n' && [ \$(cat '$W/n') -ge 3 ] && [ \$(cat '$W/n') -le 6 ]"
for how in $ways; do
    case $how in
    selective) how="--recompute-granularity selective" ;;
    full) how=--checkpoint-activations ;;
    beside) how="--overlap-grad-reduce --overlap-param-gather" ;;
    esac
    # shellcheck disable=SC2086
    run bloom-too 2 2 2 $bloom --save "$W/bloom-too" $how
    check "bloom: $how, bit for bit" ckpt-inspect diff --tensors-only "$W/bloom" "$W/bloom-too"
    rm -rf "$W/bloom-too"
done
# shellcheck disable=SC2086
run bloom-too 2 2 2 $bloom --save "$W/bloom-too" --sequence-parallel
check "bloom: --sequence-parallel" sh -c "scales() { sed -n 's/.*loss scale: \([^ ]*\) .*/\1/p' \"\$1\"; }
    scales '$W/bloom.log' >'$W/a'; scales '$W/bloom-too.log' | cmp - '$W/a'"
rm -rf "$W"/bloom*

# Another generator draws the new weights. The scale converges as the reference's did, within a factor of 2 of its
# value at the same iteration or an adjacent one (both change by factors of 2, not always at the same iteration).
# shellcheck disable=SC2086
run fresh 2 2 2 $FRESH --exit-interval 30 --save "$W/fresh" --save-interval 7
within() {
    scales "$golden" >"$W/want"
    scales "$1" | awk '
        function fits(x, y) { return x <= 2 * y && 2 * x >= y }
        FNR == NR { want[$1] = $2; next }
        { seen++; if (!fits($2, want[$1]) && !fits($2, want[$1 - 1]) && !fits($2, want[$1 + 1])) { print; bad = 1 } }
        END { exit bad || seen != 30 }' "$W/want" -
}
check "fresh: scales" within "$W/fresh.log"
check "fresh: the first overflows" sh -c "grep OVERFLOW '$W/fresh.log' | head -n 4 >'$W/told'; head -n 4 ${golden%.log}.overflow.log | cmp - '$W/told'"
skips=$(grep -c OVERFLOW "$W/fresh.log")
check "fresh: status.json counts the skips" grep -q "\"skipped_steps\":$skips," "$W/fresh/status.json"

# cmp_tails PATTERN NAME: the matching lines of run NAME must be the last ones of the uninterrupted run.
cmp_tails() {
    grep -o "$1" "$W/$2.log" >"$W/b"
    grep -o "$1" "$W/fresh.log" | tail -n "$(wc -l <"$W/b")" | cmp - "$W/b"
}
# A run stopped at any point, even immediately after an overflow, continues with the same bits.
last=$(awk '/OVERFLOW/ { over = 1; next } /^ iteration/ { if (over) { split($2, i, "/"); n = i[1] } over = 0 } END { print n }' "$W/fresh.log")
for stop in $stops "$last"; do
    # shellcheck disable=SC2086
    run stop 2 2 2 $FRESH --exit-interval "$stop" --save "$W/stop" --save-interval 100
    run again 2 2 2 --exit-interval 30 --load "$W/stop" --save "$W/again" --save-interval 100
    check "stopped at $stop: the same bits" ckpt-inspect diff --tensors-only "$W/fresh" "$W/again"
    check "stopped at $stop: the same losses and scales" cmp_tails "lm loss: [^ ]* | loss scale: [^ ]*" again
    [ "$stop" != "$last" ] || cp -r "$W/stop" "$W/behind"
    rm -rf "$W/stop" "$W/again"
done
run other 1 2 1 --exit-interval 30 --load "$W/behind"
check "behind an overflow, at another topology: the scales" cmp_tails "loss scale: [^ ]*" other
finish
