#!/bin/sh
# train_device.sh - a trainer whose device runs concurrently with the host, as a GPU does, on a device of threads
# (fakegpu.c)
#
# Losses equal the CPU's to the last digit in every topology, with saves, digests and a trace during the run. A device
# that hangs is reported with its rank and its operation. The trace of rank 1 is larger than a message that is sent at
# once.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
case $BIN in *debug*) skip "a program with sanitizers loads no such library" ;; esac
if ! ${CC:-cc} -std=gnu11 -O1 -shared -fPIC -I. -o "$W/fakegpu.so" tests/fault/shim/fakegpu.c tests/lib/fakedev.c -lpthread ||
   ! ${CC:-cc} -shared -o "$W/libcuda.so.1" -x c /dev/null; then
    skip "no compiler"
fi
SMALL="--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 257 --bf16 --micro-batch-size 2
    --global-batch-size 8 --train-iters 16 --lr 2e-3 --min-lr 2e-4 --seq-length 32 --max-position-embeddings 32
    --eval-interval 10 --eval-iters 2 --split 949,50,1 --log-interval 1 --threads 1
    --data-path $DATA_DIR/text_document"

# on_device RANKS RUN ARGS...: train on the device; the log is $W/RUN.log.
on_device() {
    n=$1 run=$2; shift 2
    # shellcheck disable=SC2086
    SHARDKIT_CUDA=$W/fakegpu.so LD_LIBRARY_PATH=$W FAKEGPU_NET=$W/$run.net \
        launch "$n" $SMALL --backend cuda --save "$W/$run" "$@" >"$W/$run.log" 2>&1
    status=$?
    rm -f "$W/$run.net"
    tail -n 20 "$W/$run.log"
    return $status
}
# same_as_cpu RANKS RUN ARGS...: compare losses and norms with a CPU run of the same topology.
same_as_cpu() {
    n=$1 run=$2; shift 2
    # shellcheck disable=SC2086
    launch "$n" $SMALL --backend cpu "$@" >"$W/cpu.log" 2>&1
    series "$W/$run.log" >"$W/a"; series "$W/cpu.log" >"$W/b"; [ "$(wc -l <"$W/a")" -eq 17 ] && diff "$W/b" "$W/a"
}

runs() {
    label=$1 ranks=$2; shift 2
    check "$label" on_device "$ranks" "$label" --save-interval 5 --digest-interval 5 --trace 10-12 --stall-notice 10 \
        --collective-timeout 60 "$@"
    check "$label: as on the CPU" same_as_cpu "$ranks" "$label" "$@"
    check "$label: its trace is there" test -s "$W/$label/trace-10-12.json"
    rm -rf "${W:?}/$label"
}
runs one 1
# Otherwise Open MPI would let the receiver fetch the data by itself, where the kernel allows it.
OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma,xpmem,knem
export OMPI_MCA_btl_vader_single_copy_mechanism OMPI_MCA_smsc
runs tp2 2 --tensor-model-parallel-size 2
LAUNCH=sockets
runs tp2-sockets 2 --tensor-model-parallel-size 2 --sequence-parallel
runs dp2 2
# The data that ranks read for each other must arrive in the right place: two devices continue as two CPUs do.
goes_on() {
    # shellcheck disable=SC2086
    launch 2 $SMALL --backend cpu --save "$W/from" --save-interval 100 --exit-iterations 2 >"$W/from.log" 2>&1
    on_device 2 onward --save-interval 100 --load "$W/from" --exit-iterations 3 && launch 2 $SMALL --backend cpu --load "$W/from" \
        --exit-iterations 3 >"$W/cpu.log" 2>&1 || return 1
    grep ' on each of 2 ranks' "$W/onward.log"
    series "$W/onward.log" >"$W/a"; series "$W/cpu.log" >"$W/b"; [ "$(wc -l <"$W/a")" -eq 3 ] && diff "$W/b" "$W/a"
}
check "dp2 goes on from a checkpoint: as on the CPU" goes_on
quick || runs tp2-pp2 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --replay-check 7

# stands NAME WORDS: the device of rank 1 hangs in NAME; the job ends and reports rank 1.
stands() {
    FAKEGPU_STANDS=$1
    export FAKEGPU_STANDS
    on_device 2 stands --tensor-model-parallel-size 2 --save-interval 5 --digest-interval 1 --stall-notice 2 --collective-timeout 5
    [ $? -eq 41 ] && grep -E "$2" "$W/stands.log"
}
check "a device that stands in its passes is told" stands attention \
    '^rank 1 \(host [^)]*GPU-fake-1[^)]*\) has waited [0-9]* s in .*, in '
# Digests are queued after the passes, and the wait for the norm includes them.
check "a device that stands in digests is told" stands digest_runs \
    '^rank 1 \(host [^)]*GPU-fake-1[^)]*\) has waited [0-9]* s in .*, in optimizer of iteration 1'
check "a device that stands in a save's copy is told" stands save \
    '^rank 1 \(host [^)]*GPU-fake-1[^)]*\) has waited [0-9]* s for the state to be copied for a save of '
finish
