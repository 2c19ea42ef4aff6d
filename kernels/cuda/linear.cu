/* linear.cu - linear layers: choose the product, and apply the operations on each result before it is rounded */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/cuda_gemm.h"

#define THREADS 256

/* ---- GELU in a kernel of its own ---- */

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

/* Set y to gelu(pre) or, with SLOPE, multiply y by gelu'(pre). */
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

static void run(const struct cuda_gemm *g, struct dev_stream *s)
{
    /*
     * When cuBLASLt adds to 16-bit values, it rounds first the product and then the sum. This would be one rounding too
     * many.
     */
    bool twice = g->add && g->out != DTYPE_F32 && !g->grad;

    if (twice || !cuda_gemm_lt(g, s))
        cuda_gemm_plain(g, s);
}

/* y = x w^T (+ bias); all tensors have type T */
static struct cuda_gemm forward_of(const struct kernel_linear *l, enum dtype t)
{
    struct cuda_gemm g = {};

    g.m = l->m, g.n = l->n, g.k = l->k;
    g.a = l->x, g.b = l->w;
    g.in = g.out = t;
    g.y = l->y, g.bias = l->bias;
    return g;
}

static void linear(const struct kernel_linear *l, enum dtype t, struct dev_stream *s)
{
    struct cuda_gemm g = forward_of(l, t);

    run(&g, s);
}

/*
 * cuBLASLt computes product and GELU together if it can. It cannot for fp32, which requires an exact GELU, and for odd
 * sizes, for which the plain product is used. In both cases a separate kernel computes GELU.
 */
static void linear_gelu(const struct kernel_linear *l, enum dtype t, struct dev_stream *s)
{
    struct cuda_gemm g = forward_of(l, t);

    g.pre = l->pre;
    g.finish = GEMM_GELU;
    if (t != DTYPE_F32 && cuda_gemm_lt(&g, s))
        return;
    g.y = l->pre ? l->pre : l->y;
    g.pre = NULL;
    g.finish = GEMM_PLAIN;
    run(&g, s);
    gelu(l->y, g.y, l->m * l->n, t, s);
}

/* dx = dy w; all tensors have type T */
static struct cuda_gemm back_of(const struct kernel_linear_dx *l, enum dtype t)
{
    struct cuda_gemm g = {};

    g.m = l->m, g.n = l->k, g.k = l->n;
    g.a = l->dy, g.b = l->w;
    g.b_across = true;
    g.in = g.out = t;
    g.y = l->dx;
    return g;
}

static void linear_dx(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s)
{
    struct cuda_gemm g = back_of(l, t);

    g.add = l->add;
    run(&g, s);
}

static void linear_dx_gelu(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s)
{
    struct cuda_gemm g = back_of(l, t);

    if (t != DTYPE_F32) {
        g.pre = (void *)l->pre;
        g.finish = GEMM_SLOPE;
        run(&g, s);
        return;
    }
    run(&g, s);
    gelu_launch<true>(l->dx, l->pre, l->m * l->k, t, s);
}

static void linear_dw(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s)
{
    struct cuda_gemm g = {};

    g.m = l->n, g.n = l->k, g.k = l->m;
    g.a = l->dy, g.b = l->x;
    g.a_across = g.b_across = true;
    g.in = t, g.out = l->grad_t ? t : DTYPE_F32;
    g.y = l->dw, g.add = l->add, g.grad = l->grad_t;
    run(&g, s);
    if (l->dbias)
        cuda_bias_back(l, t, s);
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
