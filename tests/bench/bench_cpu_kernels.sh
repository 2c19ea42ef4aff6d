#!/bin/sh
# bench_cpu_kernels.sh - matrix products beside OpenBLAS and oneDNN, the rest beside memcpy, on one thread and on all
cd "$(dirname "$0")/../.." || exit 1
. tests/bench/lib.sh

# Debian's OpenBLAS takes CPUs newer than itself for a Haswell: half their speed, no fair rival.
if grep -qw avx512f /proc/cpuinfo; then
    OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-SkylakeX}
    export OPENBLAS_CORETYPE
fi
for threads in 1 "$(nproc)"; do
    echo "-- $threads threads"
    "$BENCH/bench_gemm" -t "$threads" || exit 1
    "$BENCH/bench_kernels" "$threads" || exit 1
    [ "$(nproc)" -gt 1 ] || break
done
