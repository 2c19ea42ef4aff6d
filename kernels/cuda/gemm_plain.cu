/*
 * gemm_plain.cu - a matrix product of any size and alignment
 *
 * Used for toy models and odd shapes, which cuBLASLt refuses. Each block computes a tile of 64 x 64 results, and each
 * thread 4 x 4 of these. The operands are in shared memory as fp32. Each result is summed in the order of k.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/cuda_gemm.h"

#define TILE  64
#define DEPTH 16                        /* number of elements of k that are loaded at a time */
#define EACH  4
#define SIDE  (TILE / EACH)

/*
 * Fetch rows at .. at + TILE and elements k0 .. k0 + DEPTH of an operand of n rows. Elements beyond the edges of the
 * operand are zeros.
 */
template <typename T>
__device__ __forceinline__ void fetch(float (&tile)[DEPTH][TILE + 4], const T *x, bool across, int64_t at, int64_t n,
                                      int64_t k0, int64_t k)
{
    for (int i = threadIdx.x; i < TILE * DEPTH; i += SIDE * SIDE) {
        /* Adjacent threads read adjacent memory. */
        int slot = across ? i / TILE : i % DEPTH, row = across ? i % TILE : i / DEPTH;
        int64_t r = at + row, c = k0 + slot;

        tile[slot][row] = r < n && c < k ? up(x[across ? c * n + r : r * k + c]) : 0.0f;
    }
}

template <typename T>
__device__ __forceinline__ void finish(const struct cuda_gemm &g, float sum, int64_t i, int64_t j)
{
    int64_t at = i * g.n + j;
    T *y = (T *)g.y;

    if (g.bias)
        sum += up(((const T *)g.bias)[j]);
    if (g.finish == GEMM_SLOPE)
        sum *= gelu_slope<T>(up(((const T *)g.pre)[at]));
    if (g.grad)
        sum = up(down<T>(sum));
    if (g.add)
        sum += up(y[at]);
    y[at] = down<T>(sum);
}

template <typename TI, typename TO>
static __global__ void __launch_bounds__(SIDE * SIDE) product(const struct cuda_gemm g)
{
    __shared__ float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
    int64_t i0 = (int64_t)blockIdx.y * TILE, j0 = (int64_t)blockIdx.x * TILE;
    int ti = threadIdx.x / SIDE * EACH, tj = threadIdx.x % SIDE * EACH;
    float sum[EACH][EACH] = {};

    for (int64_t k0 = 0; k0 < g.k; k0 += DEPTH) {
        fetch(a, (const TI *)g.a, g.a_across, i0, g.m, k0, g.k);
        fetch(b, (const TI *)g.b, g.b_across, j0, g.n, k0, g.k);
        __syncthreads();
        #pragma unroll
        for (int slot = 0; slot < DEPTH; slot++)
            #pragma unroll
            for (int i = 0; i < EACH; i++)
                #pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(a[slot][ti + i], b[slot][tj + j], sum[i][j]);
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < EACH; i++)
        #pragma unroll
        for (int j = 0; j < EACH; j++)
            if (i0 + ti + i < g.m && j0 + tj + j < g.n)
                finish<TO>(g, sum[i][j], i0 + ti + i, j0 + tj + j);
}

/* Maximum number of rows of tiles per launch, because the y dimension of a grid has 16 bits. */
#define MAX_GRID_Y 65535

void cuda_gemm_plain(const struct cuda_gemm *g, struct dev_stream *s)
{
    struct cuda_gemm part = *g;
    int64_t most = (int64_t)MAX_GRID_Y * TILE;

    if (!g->m || !g->n)
        return;
    if (g->m > most) {
        cuda_record_fault_text("gemm", "more rows than the plain kernel takes");
        return;
    }
    dim3 grid((unsigned)ceil_div(g->n, TILE), (unsigned)ceil_div(g->m, TILE));

    WITH_T(g->in, {
        if (g->in == g->out)
            product<T, T><<<grid, SIDE * SIDE, 0, cuda_stream(s)>>>(part);
        else
            product<T, float><<<grid, SIDE * SIDE, 0, cuda_stream(s)>>>(part);
    });
    cuda_launched("gemm");
}
