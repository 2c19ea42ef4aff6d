/*
 * wgmma.cuh - products of a warpgroup of Hopper's tensor cores
 *
 * A product adds a [64, 16] b [16, n] in bf16 or fp16 to an accumulator of fp32 that 128 threads hold
 * together (PTX ISA, "wgmma.mma_async"). Of thread (warp w, lane 4 g + i) d[4 j + 2 r + c] is
 * row 16 w + 8 r + g, column 8 j + 2 i + c. A pair of such columns packed to two bytes each is at once
 * what a product takes as its a from registers: accumulators of one product feed the next.
 *
 * Operands in shared memory are cut into columns of `width` elements, 64 or 32, each column a run of rows
 * of 2 * width bytes whose 16-byte units are swizzled as the copy engine does it:
 *     unit u of row r lies at unit u ^ (r % 8) (width 64), u ^ (r / 2 % 4) (width 32)
 * An operand begins at a multiple of 8 rows. "Across": its sum runs over rows, not along them.
 *
 * Products are asynchronous: between wgmma_begin() and the wgmma_wait() that covers them nothing
 * may touch their registers or operands. wgmma_settle() after the wait tells the compiler.
 */
#ifndef SHARDKIT_KERNELS_CUDA_WGMMA_CUH
#define SHARDKIT_KERNELS_CUDA_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* wgmma exists for sm_90a alone; code for other targets compiles to kernels that nobody launches. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

/* Describe an operand at shared address `at`; `rows` is the length of its columns, used when it runs across. */
template <int WIDTH> __device__ __forceinline__ uint64_t wgmma_operand(uint32_t at, int rows)
{
    uint64_t next_column = (uint64_t)rows * WIDTH * 2 / 16, next_rows = 8 * WIDTH * 2 / 16;
    uint64_t swizzle = WIDTH == 64 ? 1 : 2;

    return (at & 0x3FFFF) >> 4 | next_column << 16 | next_rows << 32 | swizzle << 62;
}

/* How far the next 16 elements of the sum are, in a descriptor's units: along the rows (step k of them), and across. */
template <int WIDTH> __device__ __forceinline__ uint64_t wgmma_along(int k, int rows)
{
    return (uint64_t)(k * 16 / WIDTH * rows * WIDTH * 2 + k * 16 % WIDTH * 2) / 16;
}
template <int WIDTH> __device__ __forceinline__ uint64_t wgmma_across(int k)
{
    return (uint64_t)(k * 16 * WIDTH * 2) / 16;
}

static __device__ __forceinline__ void wgmma_begin(void)
{
#if HOPPER
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}
static __device__ __forceinline__ void wgmma_commit(void)
{
#if HOPPER
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}
/* Until at most LEFT of the groups committed last are unfinished. */
template <int LEFT> __device__ __forceinline__ void wgmma_wait(void)
{
#if HOPPER
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
#endif
}
/* Registers have their values from here on; without this the compiler would read them above the wait. */
template <int N> __device__ __forceinline__ void wgmma_settle(float (&d)[N])
{
    #pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* d += a b, d = a b where `add` is 0; a from shared memory or from registers. */
template <typename T, int N> struct wgmma;

#define WGMMA_T    __nv_bfloat16
#define WGMMA_NAME "bf16"
#include "kernels/cuda/wgmma_types.cuh"
#undef WGMMA_T
#undef WGMMA_NAME
#define WGMMA_T    __half
#define WGMMA_NAME "f16"
#include "kernels/cuda/wgmma_types.cuh"
#undef WGMMA_T
#undef WGMMA_NAME

#endif
