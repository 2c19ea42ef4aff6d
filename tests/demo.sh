#!/bin/sh
# demo.sh - what `make demo` does: trains a small model, stops it, looks into its checkpoint, goes on
# with half the ranks, runs every tool on what was trained; then converts a larger checkpoint every way
#
# Works in a temporary folder (about 1 GB) that is removed at the end; KEEP=1 keeps it. The plot of the training stays
# as build/demo.svg, the page of the run as build/demo.html, two of its steps as build/demo-trace.json, and the trained
# checkpoint as build/demo-ckpt. BIN and TBIN are the folders of tools and of test programs.
set -u
export LC_ALL=C                         # numbers with a point, sorting by byte
cd "$(dirname "$0")/.." || exit 1
root=$PWD
BIN=${BIN:-$root/bin}
TBIN=${TBIN:-$root/build/release/tests}
work=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-demo-XXXXXX")
trap '[ -n "${KEEP:-}" ] || rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
W=$work/.train
. tests/lib/train.sh                    # launch
PATH=$BIN:$PATH
cd "$work" || exit 1
problems=0
done_list=$work/.done

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }

problem() {
    echo "demo: $*" >&2
    problems=$((problems + 1))
}

# step WANTED-STATUS WHAT COMMAND...: run the command, keep its time for the end.
step() {
    want=$1 what=$2
    shift 2
    begin=$(date +%s%N)
    "$@"
    got=$?
    ms=$((($(date +%s%N) - begin) / 1000000))
    printf '%6d.%03d s  %s\n' $((ms / 1000)) $((ms % 1000)) "$what" >>"$done_list"
    [ $got -eq "$want" ] || problem "exit status $got, expected $want"
}

# The same, with the command printed first.
show() {
    printf '$ '
    (shift 2; echo "$*")
    step "$@"
}

# ---- training ------------------------------------------------------------------------

# digest KILL_AT: the trainer's log on stdin, cut down to one line an evaluation. What it does not
# know it prints as it is. Makes the kill switch once iteration KILL_AT is over.
digest() {
    iteration=0 samples=0 loss=0 valid='' sets=0
    header='  iteration  samples   loss  | English   German   French  Spanish
'
    while IFS= read -r line; do
        case $line in
        " iteration "*)
            # shellcheck disable=SC2086
            set -- "$1" $line           # iteration N/ TOTAL | consumed samples: S | ...
            iteration=${3%/} samples=$8 loss=${line#*lm loss: }
            if [ "$iteration" -eq "$1" ]; then
                : >kill-switch
                echo "  (iteration $iteration: somebody runs \"touch kill-switch\")"
            fi ;;
        *" loss at iteration "*)
            value=${line##*value: }
            valid="$valid $(printf '%8.3f' "${value%% *}")" sets=$((sets + 1))
            if [ $sets -eq 4 ]; then
                printf '%s  %9d %8d %6.3f  |%s\n' "$header" "$iteration" "$samples" "${loss%% *}" "${valid# }"
                header='' valid='' sets=0
            fi ;;
        *" loss at the end of training "* | ---* | "  "*" ..."* | "time (ms)"* | "using world size"* | \
        "setting training"* | "[before the start"* | " checkpoint version"* | " > using checkpoint"* | "")
            ;;
        *) printf '  %s\n' "${line#  }" ;;
        esac
    done
}

# train_on RANKS LOG KILL_AT OPTION...: one training run; its exit status.
train_on() {
    ranks=$1 log=$2 kill_at=$3
    shift 3
    if [ "$ranks" -eq 1 ]; then printf '$ train'
    elif [ "${LAUNCH:-}" != sockets ] && command -v mpirun >/dev/null; then printf '$ mpirun -n %d train' "$ranks"
    else printf '$ RANK=0..%d WORLD_SIZE=%d train' $((ranks - 1)) "$ranks"; fi
    printf ' %s' --config train.conf
    for option; do
        case $option in -*) printf ' \\\n     ' ;; esac
        printf ' %s' "$option"
    done
    echo
    { launch "$ranks" --config train.conf "$@" 2>&1; echo $? >.status; } | tee "$log" | digest "$kill_at"
    return "$(cat .status)"
}

# entropy WEIGHT PREFIX ...: nats per token of a blend when only the tokens' frequencies are known.
entropy() {
    while [ $# -gt 0 ]; do
        od -An -v -tu2 -w2 "$2.bin" | awk -v w="$1" '
            { n[$1]++ }
            END { for (t in n) print t, w * n[t] / NR }'
        shift 2
    done | awk '{ p[$1] += $2 } END { for (t in p) h -= p[t] * log(p[t]); printf "%.3f\n", h }'
}

# losses LOG: "iteration loss" of each training line.
losses() { sed -n 's/^ iteration *\([0-9]*\)\/.*lm loss: \([^ ]*\) .*/\1 \2/p' "$1"; }

# guesses LOGITS: what --dump-logits wrote, as text: lines of the data, and below each byte the one that the
# model held most likely there, from what stands before it.
guesses() {
    header=128                          # of a .npy file with so few numbers
    bytes=$(($(wc -c <"$1") - header)) n=$((($(wc -c <"$1.tokens.npy") - header) / 4))
    { od -An -v -td4 -w4 -j$header "$1.tokens.npy"; od -An -v -tf4 -w$((bytes / n)) -j$header "$1"; } |
        awk -v n=$n -v length_of=128 '
            function letter(t) { return t >= 32 && t < 127 ? sprintf("%c", t) : "." }
            NR <= n { token[NR - 1] = $1; next }
            {
                best = 1
                for (i = 2; i <= 257; i++)
                    if ($i > $best) best = i
                guess[NR - n] = best - 1        # for the token that follows
            }
            END {
                for (i = 0; i < n; i++)
                    if (i % length_of) { known++; right += guess[i] == token[i] }
                for (at = 0; at < 2 * length_of; at += length_of / 2) {
                    text = below = ""
                    for (i = at; i < at + length_of / 2; i++) {
                        text = text letter(token[i])
                        below = below (i % length_of ? letter(guess[i]) : " ")
                    }
                    printf "  text   %s\n  guess  %s\n", text, below
                }
                printf "  %d of %d bytes guessed, of text that it was not trained on\n", right, known
                exit right < known / 4
            }'
}

say "Real text: 222 paragraphs of a book in four languages, one dataset each"
for language in en de fr es; do
    show 0 "preprocess $language" preprocess --input "$root/tests/data/demo/$language.txt" --document line \
        --append-eod --output-prefix $language
done
en=en_text_document de=de_text_document fr=fr_text_document es=es_text_document
floor=$(entropy 0.4 $en 0.2 $de 0.2 $fr 0.2 $es)
echo "Entropy of single bytes, in nats: en $(entropy 1 $en), de $(entropy 1 $de), fr $(entropy 1 $fr)," \
    "es $(entropy 1 $es), the blend $floor."
echo "A model that learns nothing but how often each byte occurs ends there."

say "A BLOOM of 0.2 M parameters; the last tenth of each language is for validation"
cat >train.conf <<EOF
# the model
num_layers = 4
hidden_size = 64
num_attention_heads = 4
seq_length = 128
max_position_embeddings = 128
position_embedding_type = alibi
embed_layernorm
init_method_std = 0.07
pp_partition_method = type:transformer|embedding
bf16
# bytes, and one token that ends a document
vocab_size = 257
eod_id = 256
make_vocab_size_divisible_by = 8
train_weighted_split_paths = "TRAIN: 0.4 0:0.9 $en, 0.2 0:0.9 $de, 0.2 0:0.9 $fr, 0.2 0:0.9 $es"
valid_weighted_split_paths = "English: 1 0.9:1 $en" "German: 1 0.9:1 $de" "French: 1 0.9:1 $fr" "Spanish: 1 0.9:1 $es"
# the run
train_samples = 3600
micro_batch_size = 4
global_batch_size = 16
rampup_batch_size = 8 8 960
lr = 4e-3
min_lr = 4e-4
lr_decay_style = cosine
lr_warmup_samples = 320
adam_beta2 = 0.95
weight_decay = 0.1
attention_dropout = 0
hidden_dropout = 0
seed = 42
eval_interval = 40
eval_iters = 3
save_interval = 1000
kill_switch_path = kill-switch
log_interval = 1
threads = 1
EOF
sed 's/^/    /' train.conf | fold -s -w 79

say "Train on 8 ranks: tensor parallel 2, pipeline 2, data 2. Somebody will stop it"
step 0 "train on 8 ranks until the kill switch" train_on 8 first.log 130 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --save ckpt --trace 100-101
[ -f ckpt/latest ] || { tail -n 20 first.log; echo "demo: training left no checkpoint to go on with" >&2; exit 1; }
tag=$(cat ckpt/latest) stopped_at=${tag#global_step}
echo "The log has Megatron's lines, as this one (folded here):"
grep '^ iteration' first.log | tail -n 1 | fold -s -w 79
grep -q '"stop_reason":"kill-switch"' ckpt/status.json || problem "status.json does not say kill-switch"

say "What did it leave? Is it whole, are its copies the same?"
show 0 "inspect the checkpoint" ckpt-inspect ckpt
show 0 "verify it" ckpt-inspect verify ckpt
show 0 "compare its tensor-parallel copies" ckpt-inspect replicas ckpt

say "Convert it: one tensor a parameter, for any other topology or program"
show 0 "convert it" ds2universal "ckpt/$tag" "ckpt/${tag}_universal"
show 0 "compare: shards and converted" ckpt-inspect diff "ckpt/$tag" "ckpt/${tag}_universal"

say "Half of the nodes are gone: go on with 4 ranks, directly from the checkpoint of 8"
show 0 "take the kill switch away" rm kill-switch
step 0 "train on 4 ranks to the end" train_on 4 second.log 0 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --load ckpt --save half

say "As if nothing had happened?"
mkdir -p "$root/build"
for output in "" "--output=$root/build/demo.svg"; do
    run-watch plot ${output:+"$output"} --level "entropy of single bytes=$floor" \
        --title "A small BLOOM on four languages, stopped and continued with half the ranks" \
        "8 ranks (TP 2, PP 2, DP 2)=first.log" "4 ranks (TP 2, PP 2, DP 1)=second.log" ||
        problem "no plot"
done
echo
echo "  The same as SVG: build/demo.svg"
last=$(losses second.log | tail -n 10 | awk '{ s += $2 } END { printf "%.3f", s / NR }')
echo "  Mean loss of the last 10 iterations: $last; the entropy of single bytes is $floor"
awk "BEGIN { exit !($last < $floor - 0.5) }" || problem "the loss is not clearly below the unigram entropy"

say "The same ten iterations from that checkpoint on 8, 4 and 1 ranks"
upto=$((stopped_at + 10))
step 0 "train 10 iterations on 8 ranks" train_on 8 eight.log 0 --load ckpt --exit-interval $upto --eval-iters 0 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
step 0 "train 10 iterations on 1 rank" train_on 1 one.log 0 --load ckpt --exit-interval $upto --eval-iters 0
for log in eight second one; do
    losses $log.log | sed "s/^/$log /"
done | awk -v last=$upto '
    { loss[$1, $2] = $3 }
    END {
        print "  iteration   8 ranks   4 ranks    1 rank"
        for (i = last - 9; i <= last; i++) {
            e = loss["eight", i]; s = loss["second", i]; o = loss["one", i]
            printf "  %9d %9.5f %9.5f %9.5f\n", i, e, s, o
            if (e == "" || s == "" || o == "") missing = 1
            most = e > most + s ? e - s : s > most + e ? s - e : most
            most = e > most + o ? e - o : o > most + e ? o - e : most
        }
        printf "  largest difference %.5f: sums of bf16 are rounded in another order\n", most
        exit missing || most > 0.005
    }' || problem "the runs do not agree"

# ---- the other tools on what was trained ------------------------------------------------

say "The checkpoint of 8 ranks for half of them, and with its tensor ranks merged: the same tensors"
show 0 "reshape it to 4 ranks" reshape --target-dp 1 --certificate proof "ckpt/$tag" "fewer/$tag"
show 0 "compare" ckpt-inspect diff "ckpt/$tag" "fewer/$tag"
show 0 "verify it against the certificate" ckpt-inspect verify --certificate proof "fewer/$tag"
show 0 "merge its tensor ranks" merge-tp -q "ckpt/$tag" "merged/$tag"
show 0 "compare" ckpt-inspect diff "ckpt/$tag" "merged/$tag"

say "The trained model for Transformers, and back: the same files again"
show 0 "export it" export-hf half model
rows=$(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' model/config.json)
show 0 "import that for 2 ranks" export-hf --import --target-tp 2 --pad-vocab-size-to "$rows" --set-latest model back/global_step0
show 0 "export it again" export-hf back model-again
show 0 "compare the files" diff -r -x manifest.json model model-again && echo "  no difference (manifest.json says where they come from)"

say "What the imported model has to say: each byte of a text, guessed from those before it"
step 0 "run the imported model on 2 ranks" train_on 2 guess.log 0 --tensor-model-parallel-size 2 \
    --load back --finetune --override-lr-scheduler --eval-only true --dump-logits logits.npy
step 0 "print what it guesses" guesses logits.npy

# ---- a larger checkpoint ---------------------------------------------------------------

shape="--layers 4 --hidden 512 --heads 8 --seq 512 --vocab 8000 --tp 2 --pp 2 --dp 2"
say "A larger checkpoint of the same topology"
# shellcheck disable=SC2086
show 0 "make a larger checkpoint" "$TBIN/bench/mkckpt" $shape big
show 0 "inspect it" ckpt-inspect big

say "Where do the pieces of a parameter lie?"
show 0 "ls of two parameters" ckpt-inspect ls -v --param '3.self_attention.dense.*' big

say "Is it whole? Every file, rank, checksum, slice mapping and value"
show 0 "verify" ckpt-inspect verify big

say "To the universal form, three ways"
show 0 "convert to .pt files for DeepSpeed" ds2universal big/global_step20 universal-pt
show 0 "convert to one HDF5 file" ds2universal --format hdf5 big/global_step20 universal-hdf5
show 0 "convert to an HDF5 index that copies nothing" ds2universal --format virtual big/global_step20 universal-virtual
du -sh universal-* | sed 's/^/    /'

say "All hold the same tensors"
show 0 "diff: 3D shards and .pt" ckpt-inspect diff big/global_step20 universal-pt
show 0 "diff: .pt and HDF5" ckpt-inspect diff universal-pt universal-hdf5
show 0 "diff: .pt and the index" ckpt-inspect diff universal-pt universal-virtual

say "A run in which one LayerNorm of rank 1 has drifted by the last bit of 300 elements"
# shellcheck disable=SC2086
"$TBIN/bench/mkckpt" $shape --drift 4.post_attention_layernorm.weight:fp32:1:300 drifted 2>/dev/null
show 1 "replicas finds the drift (exit status 1)" ckpt-inspect replicas --state fp32 drifted

say "All of it on one page, and two steps of 8 ranks span by span"
cp ckpt/trace-100-101.json "$root/build/demo-trace.json" || problem "no trace"
show 0 "the page of the run" run-watch report --title "The demo's run: 8 ranks, then 4" --state none \
    -o "$root/build/demo.html" run=first.log run=second.log run=ckpt run=half

say "Done"
cat "$done_list"
[ -n "${KEEP:-}" ] && echo "kept: $work"
if [ $problems -gt 0 ]; then
    echo "demo: $problems steps did not go as they should" >&2
    exit 1
fi
echo "The steps for ui.perfetto.dev: $root/build/demo-trace.json"
echo "The run as a page: $root/build/demo.html"

# The trained checkpoint stays, for the first steps of a user.
rm -rf "$root/build/demo-ckpt" && cp -R half "$root/build/demo-ckpt" || exit 1
say "Try next:"
cat <<EOF
    ${BIN#"$root"/}/shardkit inspect build/demo-ckpt
    ${BIN#"$root"/}/shardkit convert build/demo-ckpt --to hf build/demo-model
    make -j && make install PREFIX=\$HOME/.local
EOF
