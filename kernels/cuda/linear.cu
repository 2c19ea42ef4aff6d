/*
 * linear.cu - linear layers: which product, and what is done to each result before it is rounded
 */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/gemm.h"

#define THREADS 256

/* ---- GELU by itself ---- */

template <typename T, int N, bool SLOPE>
static __global__ void __launch_bounds__(THREADS) gelu_packs(T *y, const T *pre, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float x[N], v[N];

    if (i >= packs)
        return;
    load(x, pre + i * N);
    if (SLOPE)
        load(v, y + i * N);
    #pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = SLOPE ? v[j] * gelu_slope<T>(x[j]) : gelu_of<T>(x[j]);
    store(y + i * N, v);
}

/* y = gelu(pre), or y *= gelu'(pre) */
template <bool SLOPE> static void gelu_launch(void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s)
{
    WITH_T(t, {
        const int N = wide<T>::n;
        int64_t packs = n / N, at = packs * N, rest = n - at;

        if (packs)
            gelu_packs<T, N, SLOPE><<<(unsigned)ceil_div(packs, THREADS), THREADS, 0, cuda_stream(s)>>>(
                (T *)y, (const T *)pre, packs);
        if (rest)
            gelu_packs<T, 1, SLOPE><<<1, THREADS, 0, cuda_stream(s)>>>((T *)y + at, (const T *)pre + at, rest);
    });
    cuda_launched("gelu");
}

static void gelu(void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s)
{
    gelu_launch<false>(y, pre, n, t, s);
}

/* ---- the layers ---- */

static void run(const struct gemm *g, struct dev_stream *s)
{
    /* Adding to bf16, cuBLASLt rounds the product first and the sum again. */
    bool twice = g->add && g->out == DTYPE_BF16;

    if (twice || !cuda_gemm_lt(g, s))
        cuda_gemm_plain(g, s);
}

static void linear(void *y, const void *x, const void *w, const void *bias, int64_t m, int64_t n, int64_t k,
                   enum dtype t, struct dev_stream *s)
{
    struct gemm g = { m, n, k, x, w, false, false, t, t, y, NULL, bias, false, GEMM_PLAIN };

    run(&g, s);
}

/* fp32 wants an exact GELU, which cuBLASLt's is not. What has odd sizes goes to the plain kernel, which fuses too. */
static void linear_gelu(void *y, void *pre, const void *x, const void *w, const void *bias, int64_t m, int64_t n,
                        int64_t k, enum dtype t, struct dev_stream *s)
{
    struct gemm g = { m, n, k, x, w, false, false, t, t, y, pre, bias, false, GEMM_GELU };

    if (t == DTYPE_BF16 && cuda_gemm_lt(&g, s))
        return;
    g.y = pre ? pre : y;
    g.pre = NULL;
    g.finish = GEMM_PLAIN;
    run(&g, s);
    gelu(y, g.y, m * n, t, s);
}

static void linear_dx(void *dx, const void *dy, const void *w, int64_t m, int64_t n, int64_t k, bool add,
                      enum dtype t, struct dev_stream *s)
{
    struct gemm g = { m, k, n, dy, w, false, true, t, t, dx, NULL, NULL, add, GEMM_PLAIN };

    run(&g, s);
}

static void linear_dx_gelu(void *dx, const void *dy, const void *w, const void *pre, int64_t m, int64_t n, int64_t k,
                           enum dtype t, struct dev_stream *s)
{
    struct gemm g = { m, k, n, dy, w, false, true, t, t, dx, (void *)pre, NULL, false, GEMM_SLOPE };

    if (t == DTYPE_BF16) {
        run(&g, s);
        return;
    }
    g.pre = NULL;
    g.finish = GEMM_PLAIN;
    run(&g, s);
    gelu_launch<true>(dx, pre, m * k, t, s);
}

static void linear_dw(float *dw, float *dbias, const void *dy, const void *x, int64_t m, int64_t n, int64_t k,
                      bool add, enum dtype t, struct dev_stream *s)
{
    struct gemm g = { n, k, m, dy, x, true, true, t, DTYPE_F32, dw, NULL, NULL, add, GEMM_PLAIN };

    run(&g, s);
    if (dbias)
        cuda_column_sums(dbias, dy, m, n, add, t, s);
}

void cuda_linear_fill(struct kernels *k)
{
    k->linear = linear;
    k->linear_gelu = linear_gelu;
    k->linear_dx = linear_dx;
    k->linear_dx_gelu = linear_dx_gelu;
    k->linear_dw = linear_dw;
    k->gelu = gelu;
}
