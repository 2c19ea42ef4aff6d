/*
 * wgmma.cuh - matrix products of a warpgroup on Hopper's tensor cores
 *
 * A product adds a [64, 16] b [16, n] in bf16 or fp16 to an fp32 accumulator that is distributed over 128 threads
 * (PTX ISA, "wgmma.mma_async"). In the thread at warp w, lane 4 g + i, the element d[4 j + 2 r + c] is row 16 w + 8 r +
 * g, column 8 j + 2 i + c of the result. If adjacent columns are packed in pairs, at two bytes per element, they have
 * exactly the layout of an operand a in registers, so the accumulators of one product can be the input of the next.
 *
 * Operands in shared memory are split into columns of `width` elements, 64 or 32. Each column is a sequence of rows
 * of 2 * width bytes, whose 16-byte units are swizzled as the copy engine does it:
 *     unit u of row r is stored at unit u ^ (r % 8) (width 64), u ^ (r / 2 % 4) (width 32)
 * An operand begins at a multiple of 8 rows. "Across" means that the sum runs over rows instead of along them.
 *
 * Products are asynchronous: between wgmma_begin() and the wgmma_wait() that covers them nothing may access their
 * registers or operands. wgmma_fence_registers() after the wait informs the compiler.
 */
#ifndef SHARDKIT_KERNELS_CUDA_WGMMA_CUH
#define SHARDKIT_KERNELS_CUDA_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* wgmma exists only for sm_90a. For other targets this code compiles to kernels that are never launched. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

/*
 * Returns the descriptor of an operand at the address `at` in shared memory. `rows` is the number of rows in each
 * column of the operand. It is used only if the sum runs across.
 */
template <int WIDTH> __device__ __forceinline__ uint64_t wgmma_operand(uint32_t at, int rows)
{
    uint64_t next_column = (uint64_t)rows * WIDTH * 2 / 16, next_rows = 8 * WIDTH * 2 / 16;
    uint64_t swizzle = WIDTH == 64 ? 1 : 2;

    return (at & 0x3FFFF) >> 4 | next_column << 16 | next_rows << 32 | swizzle << 62;
}

/*
 * Return the distance from the start of an operand to step k of the sum, in units of a descriptor. A step has 16
 * elements. wgmma_along() is for sums along the rows, wgmma_across() for sums across the rows.
 */
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
/* Wait until at most LEFT of the last committed groups are unfinished. */
template <int LEFT> __device__ __forceinline__ void wgmma_wait(void)
{
#if HOPPER
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
#endif
}
/* Declare that the registers d get their values here. Without this the compiler would read them before the wait. */
template <int N> __device__ __forceinline__ void wgmma_fence_registers(float (&d)[N])
{
    #pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Add the product a b to d or, if `add` is 0, set d to it. a is in shared memory or in registers. */
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
