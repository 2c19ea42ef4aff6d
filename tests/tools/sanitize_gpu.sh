#!/bin/sh
# sanitize_gpu.sh [TOOL...] - every kernel of the GPU under compute-sanitizer
#
# Tools: memcheck racecheck initcheck synccheck (default: all). Each runs cuda_check and bench_attention on
# small sizes; memcheck also a few steps of training. LIMIT (400) seconds a run. A run passes when the
# program ends well and the tool finds nothing. KEEP=FOLDER keeps the logs, SANITIZER_OPTIONS adds options.
#
# Left out, as the tool is wrong there (LEAVE_OUT=, empty, leaves nothing out: a newer one may be right):
# - racecheck of the attention kernels for Hopper. A lane arrives at an mbarrier for its warp, after
#   __syncwarp(); racecheck (13.0, and 13.5 as well) reports what the other lanes read and wrote before that, and
#   stops when every lane arrives for itself. With them left out, all of cuda_check takes 270 s, cuBLASLt's kernels
#   included, and nothing is found.
# - initcheck of training. It sees no store of the tensor copy engine, so what cuBLASLt's products wrote counts as
#   unwritten. cuda_check and bench_attention fill all but scratch memory before a kernel runs.
# - but for memcheck, cuBLASLt's kernels: they synchronise likewise, and are not ours. racecheck reports races in its
#   larger bf16 products (clusters of two blocks), also of lt_alone, which has no code of ours; memcheck nothing.
#   So lt_alone runs beside the others when nothing is left out: what it shows, too, is not our doing.
set -u
cd "$(dirname "$0")/../.." || exit 1
BIN=${BIN:-$PWD/bin} TBIN=${TBIN:-$PWD/build/release/tests}
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)}
[ -n "$sanitizer" ] || { echo "sanitize_gpu.sh: no compute-sanitizer" >&2; exit 1; }
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
work=${KEEP:-$(mktemp -d "${TMPDIR:-/tmp}/shardkit-sanitize-XXXXXX")}
mkdir -p "$work"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
# Index files are written next to the data, so work on a copy.
cp tests/data/text/text_document.bin tests/data/text/text_document.idx "$work"
passed=0 failed=0

# Parts of mangled names. A mangled name begins with a length: 7forwardI matches forward<...>, not
# plain_forward<...>.
theirs=kns=nvjet,kns=cutlass,kns=xmma,kns=sgemm,kns=cublas
hopper=kns=7forwardI,kns=7back_kvI,kns=6back_qI

# left_out TOOL: print the options that exclude kernels from TOOL.
left_out() {
    case $1 in
    memcheck) ;;
    racecheck) echo "--kernel-name-exclude ${LEAVE_OUT-$theirs,$hopper}" ;;
    *) echo "--kernel-name-exclude ${LEAVE_OUT-$theirs}" ;;
    esac | grep -v ' $'
}

# under TOOL NAME COMMAND...: run the command under TOOL.
under() {
    tool=$1 name=$2 begin=$(date +%s)
    shift 2
    # shellcheck disable=SC2086,SC2046
    timeout -k 5 "${LIMIT:-400}" "$sanitizer" --tool "$tool" --error-exitcode 77 $(left_out "$tool") \
        ${SANITIZER_OPTIONS:-} "$@" \
        >"$work/$tool-$name.log" 2>&1
    rc=$?
    summary=$(grep -E "SUMMARY" "$work/$tool-$name.log" | tail -n 1 | sed 's/^=*//')
    printf '%-9s %-15s status %d, %d s: %s\n' "$tool" "$name" $rc $(($(date +%s) - begin)) "${summary:-no summary}"
    if [ $rc -eq 0 ] && [ -n "$summary" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        grep -v "^=* *$" "$work/$tool-$name.log" | grep -E "^=|cuda_check|FAIL|cannot" | head -n 12
    fi
}

train() {
    under "$1" "train-$2" "$BIN/train" --backend cuda --bf16 --num-layers 2 --hidden-size "$3" --num-attention-heads "$4" \
        --seq-length 128 --max-position-embeddings 128 --position-embedding-type alibi --embed-layernorm \
        --vocab-size 257 --micro-batch-size 2 --global-batch-size 4 --train-iters 3 --lr 1e-3 --min-lr 1e-4 \
        --lr-decay-style cosine --attention-dropout "$5" --hidden-dropout "$5" --eval-iters 0 --split 100,0,0 \
        --data-path "$work/text_document" --log-interval 1 --init-method-std 0.02
}

for tool; do
    under "$tool" cuda_check "$TBIN/tools/cuda_check" small
    under "$tool" attention "$TBIN/bench/bench_attention" small
    [ -n "${LEAVE_OUT-all}" ] || under "$tool" lt_alone "$TBIN/tools/lt_alone"
    if [ "$tool" = memcheck ]; then
        train "$tool" hd64 256 4 0
        train "$tool" dropout 128 8 0.1
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
