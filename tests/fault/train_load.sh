#!/bin/sh
# train_load.sh - data-parallel ranks share the reading of a checkpoint
#
# Every byte is read by one rank, even if files are divided in another way. All ranks have the weights that a single
# rank reads, those of the layer files where these differ from the masters. A flipped bit is found although no rank
# reads a whole record. A rank that cannot read, or has other files, ends the job.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
PATH=$TBIN/bench:$TBIN/tools:$PATH
LAUNCH=sockets
ELEMENTS=3946496
RUN="--data-path $DATA_DIR/text_document --split 949,50,1 --micro-batch-size 1 --global-batch-size 4 --train-samples 1200
    --bf16 --seq-length 64 --threads 1 --backend cpu --eval-iters 1 --eval-only --num-attention-heads 4
    --position-embedding-type alibi --embed-layernorm --override-lr-scheduler"
model() { name=$1; shift; mkckpt --layers 4 --hidden 256 --vocab 3000 "$@" "$W/$name" >/dev/null 2>&1; }

# load RANKS FOLDER ARGS...: write the logits of an evaluation to $W/logits, and the output to $W/said.
load() {
    n=$1 folder=$2; shift 2
    rm -f "$W/logits"
    # shellcheck disable=SC2086
    launch "$n" $RUN --load "$folder" --dump-logits "$W/logits" "$@" >"$W/said" 2>&1
}
# bytes N FOLDER ARGS...: four ranks read N bytes per element in total, and none much more than a quarter.
bytes() {
    want=$1; shift
    load 4 "$@" || { tail -n 5 "$W/said"; return 1; }
    awk -v n=$ELEMENTS -v want="$want" '
        function of(x, unit) { return x * (unit == "MB" ? 1e6 : 0) }
        /^  checkpoint: .* on each of 4 ranks/ {
            all = of($2, $3) / n; top = of($12, $13) / n; seen = 1
            printf "%.2f bytes an element, %.2f on one rank\n", all, top
        }
        END { exit !(seen && all > want - 0.1 && all < want + 0.1 && top >= all / 4 * 0.99 && top <= all / 4 * 1.05) }' "$W/said"
}
same() {        # FOLDER ARGS...: four ranks have the logits that one has
    { load 1 "$@" && mv "$W/logits" "$W/alone" && load 4 "$@" && cmp "$W/alone" "$W/logits"; } || { tail -n 5 "$W/said"; return 1; }
}

model dp4 --tp 1 --pp 1 --dp 4
model dp1 --tp 1 --pp 1 --dp 1
check "four ranks read 14 bytes an element" bytes 14 "$W/dp4"
check "... of one rank's files" bytes 14 "$W/dp1"
ds2universal -q "$W/dp4" "$W/universal"
check "... 12 where there are no weights but the masters" bytes 12 "$W/universal"
check "... which are rounded on their way" same "$W/universal"
cp -r "$W/dp4" "$W/mixed"
model other --tp 1 --pp 1 --dp 4 --seed 7
cp "$W"/other/global_step20/layer_* "$W/mixed/global_step20"
check "the layer files' weights are taken" same "$W/mixed" --accept-mismatch
load 1 "$W/dp4"
check "... and are others than the masters'" sh -c "! cmp -s '$W/logits' '$W/alone'"

# ---- damage ----
# ended TEXT NAME ...: the whole job of four ranks has ended in time, with one line that contains TEXT.
ended() {
    text=$1 name=$2; shift 2
    begun=$(date +%s)
    load 4 "$@"; status=$?
    [ $status -eq 1 ] || { fail "$name: exit status $status"; tail -n 5 "$W/said"; return; }
    [ "$(grep -c '^train: ' "$W/said")" -eq 1 ] && grep -q "^train: .*$text" "$W/said" && [ ! -e "$W/logits" ] &&
        [ $(($(date +%s) - begun)) -lt 30 ] && pass || { fail "$name"; tail -n 5 "$W/said"; }
}
for part in optim_states layer_04; do
    cp -r "$W/dp1" "$W/flipped"
    f=$(ls "$W"/flipped/global_step20/*$part*) at=$(($(stat -c %s "$f") / 2))
    byte=$(od -An -tu1 -j $at -N 1 "$f")
    # shellcheck disable=SC2059
    printf "\\$(printf %o $((byte ^ 16)))" | dd of="$f" bs=1 seek=$at conv=notrunc status=none
    ended "$(basename "$f").*is corrupt" "a flipped bit of $(basename "$f")" "$W/flipped"
    rm -rf "$W/flipped"
done

# ---- one rank of four ----
# Reading fails on that rank.
mkdir "$W/bin"
one() {         # SETTINGS: of rank 2
    printf '#!/bin/sh\n[ "$RANK" = 2 ] && %s\nexec "%s/train" "$@"\n' "$1" "$BIN" >"$W/bin/train"
    chmod +x "$W/bin/train"
}
tools=$BIN
BIN=$tools one "export LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0 BADIO=pread:3+:5 BADIO_LEAST=65536 BADIO_URING=0"
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl || skip "no shim"
BIN=$W/bin
ended "rank 2: .*cannot read .*Input/output error" "a rank's disk fails" "$W/dp1"
# That rank has other files.
BIN=$tools one "set -- \"\$@\" --load $W/other"
BIN=$W/bin
ended "do not see the same files" "a rank has another folder" "$W/dp4"
# A copy of the same files, as each host may have on its local disk.
cp -r "$W/dp4" "$W/copy"
BIN=$tools
load 1 "$W/dp4" && mv "$W/logits" "$W/alone"
one "set -- \"\$@\" --load $W/copy"
BIN=$W/bin
copied() { load 4 "$W/dp4" && cmp "$W/alone" "$W/logits" || { tail -n 5 "$W/said"; return 1; }; }
check "a rank has a copy of the folder elsewhere" copied
finish
