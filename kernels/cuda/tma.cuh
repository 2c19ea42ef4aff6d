/*
 * tma.cuh - Hopper's copy engine, and the barriers in shared memory that signal its completion
 *
 * The tiles of a tensor are described once on the host (attention_map()); a single thread fetches a tile. Elements
 * outside of the tensor are read as zeros, and are not written by stores. See PTX ISA, "mbarrier" and
 * "cp.async.bulk.tensor".
 */
#ifndef SHARDKIT_KERNELS_CUDA_TMA_CUH
#define SHARDKIT_KERNELS_CUDA_TMA_CUH

#include <cuda.h>
#include <stdint.h>

#include "kernels/cuda/wgmma.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/*
 * ---- barriers: a phase of a barrier ends when `count` threads have arrived and all announced bytes have been copied
 * ----
 */

typedef uint64_t barrier;

static __device__ __forceinline__ void barrier_init(barrier *b, int count)
{
#if HOPPER
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
#endif
}
/*
 * Make initialised barriers visible to the copy engine. Must be called after all barriers are initialised and before
 * the block's __syncthreads().
 */
static __device__ __forceinline__ void barrier_init_done(void)
{
#if HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
static __device__ __forceinline__ void barrier_arrive(barrier *b)
{
#if HOPPER
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#endif
}
/*
 * Arrive at a barrier once per warp. Lane 0 arrives. __syncwarp() orders the accesses of all lanes before this arrival,
 * which makes them visible to the waiting threads. compute-sanitizer's racecheck (13.0) does not take __syncwarp() into
 * account. It attributes only lane 0's own accesses to the arrival, and reports the accesses of the other lanes as
 * hazards.
 */
static __device__ __forceinline__ void barrier_arrive_warp(barrier *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(b);
}
/* Arrive, and keep the phase open until `bytes` more bytes have been copied. */
static __device__ __forceinline__ void barrier_expect(barrier *b, uint32_t bytes)
{
#if HOPPER
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
#endif
}
/*
 * Wait until the phase with this parity has ended. The first phase has parity 0. On a new barrier, waiting for parity 1
 * returns at once.
 */
static __device__ __forceinline__ void barrier_wait(barrier *b, uint32_t parity)
{
#if HOPPER
    uint32_t done = 0;

    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
#endif
}

/*
 * The current position in a ring of N stages, and the parity of the current round through the ring. Each stage has its
 * own barriers.
 */
template <int N> struct ring {
    int at;
    uint32_t parity;

    __device__ __forceinline__ void next(void)
    {
        if (++at == N) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* ---- named barriers, for some of the warps of a block; number 0 is __syncthreads() ---- */

static __device__ __forceinline__ void group_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void group_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- tiles ---- */

/* Fetch the tile whose first element has the coordinates (element, head, token, sample). */
static __device__ __forceinline__ void tma_load(void *to, const CUtensorMap *map, barrier *b, int element, int head,
                                                int token, int sample)
{
#if HOPPER
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(b)), "r"(element), "r"(head), "r"(token), "r"(sample)
                 : "memory");
#endif
}
/*
 * Order this thread's accesses to shared memory before those of the copy engine. After each thread has called this
 * function and passed a barrier, the copy engine may read what the threads wrote, and may overwrite what the threads
 * read. In the terms of PTX, threads and copy engine are different proxies, and a barrier alone does not order two
 * proxies. The fence is not needed after wgmma products, because these belong to the proxy of the copy engine.
 */
static __device__ __forceinline__ void tma_fence(void)
{
#if HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
static __device__ __forceinline__ void tma_store(const CUtensorMap *map, const void *from, int element, int head,
                                                 int token, int sample)
{
#if HOPPER
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(element), "r"(head), "r"(token), "r"(sample)
                 : "memory");
#endif
}
static __device__ __forceinline__ void tma_commit(void)
{
#if HOPPER
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/* Wait until the copy engine has read the source of all stores of this thread. The source may then be overwritten. */
static __device__ __forceinline__ void tma_wait_read(void)
{
#if HOPPER
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

/* ---- registers: a warpgroup releases registers, or acquires registers that other warpgroups have released ---- */

template <int N> __device__ __forceinline__ void registers_lower(void)
{
#if HOPPER
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
#endif
}
template <int N> __device__ __forceinline__ void registers_raise(void)
{
#if HOPPER
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
#endif
}

#endif
