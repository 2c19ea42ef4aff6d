#!/bin/sh
# gpu_loss.sh DATA [FOLDER] - does the loss do what PyTorch's does?
#
# A BLOOM-560m from fresh weights on real text (DATA: prefix of .bin and .idx, from mktext.sh): ITERS (300)
# iterations of ours, and of PyTorch (peers/torch_loss.py) from the same weights over the same samples. Two
# right programs differ by where they round, and training lets that grow; so each is also run against
# itself, rounded elsewhere, and the larger of these two distances is what rounding does:
#   ours-again    micro-batches half as large, gradients not rounded to bf16
#   torch-again   the same, and fused kernels that round where separate ones would
# NOISE (both) may be ours or torch, to save the other run.
#
# FOLDER (build/loss) gets the logs, loss.csv, loss.svg and a JSON line in loss.json. Passes (status 0) when every
# learning rate is equal, the first losses, of equal weights, differ by at most FIRST (1e-3), and PyTorch's mean
# distance to ours is at most LIMIT (2) times what rounding does.
# The shape is what LAYERS HIDDEN HEADS SEQ VOCAB BATCH say; BACKEND=cpu and a small one need no GPU.
# PYTHON is one with torch; DTYPE=fp32 leaves bf16 out on both sides.
set -eu
export LC_ALL=C
[ $# -ge 1 ] || { echo "usage: gpu_loss.sh DATA [FOLDER]" >&2; exit 2; }
data=$(realpath "$1.bin") data=${data%.bin}
cd "$(dirname "$0")/../../.."
. tests/bench/lib.sh
out=${2:-build/loss}
python=${PYTHON:-python3}
L=${LAYERS:-24} h=${HIDDEN:-1024} n=${HEADS:-16} s=${SEQ:-2048} V=${VOCAB:-250880} b=${BATCH:-8}
iters=${ITERS:-300} warmup=$((${ITERS:-300} / 10)) lr=${LR:-3e-4} min_lr=${MIN_LR:-3e-5} seed=1234
dtype=${DTYPE:-bf16} bf16=--bf16 noise=${NOISE:-both}
[ "$dtype" = bf16 ] || bf16=
mkdir -p "$out"
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-loss-XXXXXX")
trap 'rm -rf "$work"' EXIT
# The index files are written beside the data: beside links to it.
ln -s "$data.bin" "$work/text.bin"
ln -s "$data.idx" "$work/text.idx"

say() { echo "$(date +%T) $*"; }

# ours LOG OPTION...
ours() {
    log=$1
    shift
    # shellcheck disable=SC2086
    "$BIN/train" $bf16 --backend "${BACKEND:-cuda}" --num-layers "$L" --hidden-size "$h" --num-attention-heads "$n" \
        --seq-length "$s" --max-position-embeddings "$s" --position-embedding-type alibi --embed-layernorm \
        --vocab-size "$V" --pad-vocab-size-to "$V" --global-batch-size "$b" --train-iters "$iters" \
        --lr "$lr" --min-lr "$min_lr" --lr-decay-style cosine --lr-warmup-iters "$warmup" --weight-decay 0.1 \
        --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --adam-initial-step 0 --seed $seed \
        --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --split 100,0,0 --data-path "$work/text" \
        --log-interval 1 ${TRAIN_OPTIONS:-} "$@" >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
}

# The first update has the learning rate 0, so what is saved behind it are the weights before it.
say "initial weights"
ours "$work/init.log" --micro-batch-size "$b" --save "$work/init" --save-interval 1000000 --exit-interval 1
say "ours, $iters iterations"
ours "$out/ours.log" --micro-batch-size "$b"

# torch LOG OPTION...
torch() {
    log=$1
    shift
    "$python" tests/bench/peers/torch_loss.py --weights "$work/init/global_step1" --data "$work/text" --seed $seed \
        --heads "$n" --seq "$s" --batch "$b" --iters "$iters" --lr "$lr" --min-lr "$min_lr" --warmup "$warmup" \
        --dtype "$dtype" "$@" >"$log" 2>"$work/torch.err" || { tail -n 5 "$work/torch.err" >&2; exit 1; }
}

say "PyTorch"
torch "$out/torch.log"
set -- "train=$out/ours.log" "PyTorch=$out/torch.log"
rm -f "$out/ours-again.log" "$out/torch-again.log"
if [ "$noise" != torch ]; then
    say "ours, rounded elsewhere"
    ours "$out/ours-again.log" --micro-batch-size $((b / 2)) --grad-reduce-dtype fp32
    set -- "$@" "train, rounded elsewhere=$out/ours-again.log"
fi
if [ "$noise" != ours ]; then
    say "PyTorch, rounded elsewhere"
    TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1 torch "$out/torch-again.log" --micro $((b / 2))
    set -- "$@" "PyTorch, rounded elsewhere=$out/torch-again.log"
fi
say "done"

# "iteration rate loss norm" of each training line
lines() {
    sed -n 's/^ iteration *\([0-9]*\)\/.*learning rate: \([^ ]*\) .*lm loss: \([^ ]*\) | grad norm: \([^ ]*\) .*/\1 \2 \3 \4/p' "$1"
}
for log in ours torch ours-again torch-again; do
    [ ! -f "$out/$log.log" ] || lines "$out/$log.log" | sed "s/^/$log /"
done | awk -v iters="$iters" -v first="${FIRST:-1e-3}" -v limit="${LIMIT:-2}" -v csv="$out/loss.csv" -v json="$out/loss.json" '
    function abs(x) { return x < 0 ? -x : x }
    # How far run a is from run b: mean and largest distance, signed mean of each fifth of the run (where it
    # keeps one sign, one of them drifts).
    function distance(a, b, name,    i, d, f, n, sum, most, fifth) {
        for (i = 1; i <= iters; i++) {
            if (loss[a, i] == "" || loss[b, i] == "") { print name ": no loss at iteration " i; bad = 1; return 0 }
            d = loss[a, i] - loss[b, i]
            f = int((i - 1) * 5 / iters)
            n[f]++
            fifth[f] += d
            sum += abs(d)
            most = abs(d) > most ? abs(d) : most
        }
        printf "%-24s %9.6f %9.6f %9.6f  %9.6f %9.6f %9.6f %9.6f %9.6f\n", name, loss[a, 1] - loss[b, 1], sum / iters, most,
            fifth[0] / n[0], fifth[1] / n[1], fifth[2] / n[2], fifth[3] / n[3], fifth[4] / n[4]
        printf "%s\"%s - %s\": {\"first\": %.6f, \"mean_abs\": %.6f, \"max_abs\": %.6f, \"drift\": [%.6f, %.6f, %.6f, %.6f, %.6f]}", \
            ", ", a, b, loss[a, 1] - loss[b, 1], sum / iters, most, fifth[0] / n[0], fifth[1] / n[1], fifth[2] / n[2], \
            fifth[3] / n[3], fifth[4] / n[4] >json
        return sum / iters
    }
    { rate[$1, $2] = $3; loss[$1, $2] = $4; norm[$1, $2] = $5; seen[$1] = 1 }
    END {
        print "iteration,ours,torch,ours_again,torch_again,ours_norm,torch_norm" >csv
        for (i = 1; i <= iters; i++) {
            printf "%d,%.5f,%.5f,%s,%s,%s,%s\n", i, loss["ours", i], loss["torch", i], loss["ours-again", i], \
                loss["torch-again", i], norm["ours", i], norm["torch", i] >csv
            if (rate["ours", i] != rate["torch", i]) { print "iteration " i ": learning rates " rate["ours", i] ", " rate["torch", i]; bad = 1 }
        }
        printf "{\"bench\": \"gpu_loss\", \"iterations\": %d, \"last_loss\": %.6f", iters, loss["ours", iters] >json
        printf "%-24s %9s %9s %9s  %s\n", "", "first", "mean |d|", "max |d|", "mean d of each fifth of the run"
        far = distance("torch", "ours", "PyTorch - ours")
        noise = seen["ours-again"] ? distance("ours-again", "ours", "ours, again - ours") : 0
        other = seen["torch-again"] ? distance("torch-again", "torch", "PyTorch, again - PyTorch") : 0
        noise = other > noise ? other : noise
        ratio = noise > 0 ? far / noise : far > 0 ? 1e9 : 0
        printf "PyTorch is %.2f times as far from ours as rounding takes a program from itself\n", ratio
        printf ", \"ratio\": %.2f}\n", ratio >json
        exit bad || !(abs(loss["torch", 1] - loss["ours", 1]) <= first && ratio <= limit)
    }' && rc=0 || rc=1
for output in "" "--output=$out/loss.svg"; do
    "$BIN/run-watch" plot ${output:+"$output"} --difference --title "${TITLE:-BLOOM-560m on English text: train and PyTorch}" "$@"
done
exit $rc
