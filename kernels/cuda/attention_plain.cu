/*
 * attention_plain.cu - causal attention for every head dimension, dtype and GPU, not optimised
 *
 * The formulas are those of kernels/cpu. Each warp computes the result for one token: a query, or a key in the gradient
 * of keys. The block holds a tile of TILE tokens of the other kind in shared memory, as fp32. Lane j computes the score
 * of the warp's token with token j of the tile. Then each lane sums its share of the head's elements over the tile.
 */
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/device.cuh"

#define TILE  32                        /* tokens in shared memory, one per lane */
#define WARPS 8                         /* tokens that a block computes, one per warp */
#define SHARE (CUDA_ATTENTION_MAX_HD / 32)      /* number of elements of a head that a lane sums */

struct plain_args {
    const void *q, *k, *v, *o, *d_o;
    void *out, *dq, *dk, *dv;
    const float *bias, *dot;
    float *lse;
    int s, heads, hd;
    int64_t token_stride, head_stride;
    float scale, round_unit;
    struct dropout drop;
    uint32_t sample0;
    int head0;
};

/*
 * Returns the score for a dot product, rounded to T if round_unit requires that. The forward and the backward pass use
 * this function, so they get the same bits.
 */
template <typename T>
static __device__ __forceinline__ float plain_score(const struct plain_args &a, float dot, float bias)
{
    float x = fmaf(dot, a.scale, bias);

    return sizeof(T) == 2 && a.round_unit != 0 ? a.round_unit * (float)down<T>(x / a.round_unit) : x;
}

/* ---- addresses ---- */

/* The head and the sample that a block processes, and the token of the warp. */
struct plain_place {
    int sample, head, row, token, lane;
};

static __device__ __forceinline__ struct plain_place plain_place_of(const struct plain_args &a)
{
    struct plain_place p;

    p.row = (int)blockIdx.y;
    p.sample = p.row / a.heads;
    p.head = p.row % a.heads;
    p.token = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    p.lane = (int)threadIdx.x % 32;
    return p;
}

/* in_row() returns the index of the first element of a token's row in q, k or v. out_row() returns this index in o. */
static __device__ __forceinline__ int64_t in_row(const struct plain_args &a, const struct plain_place &p, int token)
{
    return ((int64_t)p.sample * a.s + token) * a.token_stride + p.head * a.head_stride;
}
static __device__ __forceinline__ int64_t out_row(const struct plain_args &a, const struct plain_place &p, int token)
{
    return (((int64_t)p.sample * a.s + token) * a.heads + p.head) * a.hd;
}

/* Returns the dropout factor of a pair of query and key. */
static __device__ __forceinline__ float keep_factor(const struct plain_args &a, const struct plain_place &p, int query,
                                                    int key)
{
    if (!(a.drop.keep > 0))
        return 1;
    uint32_t kept[1];

    drop_patches<1>(kept, a.drop, (uint32_t)key / 16, 0, (uint32_t)query / 2, (uint32_t)(a.head0 + p.head),
                    a.sample0 + (uint32_t)p.sample);
    return kept[0] >> (query % 2 * 16 + key % 16) & 1 ? a.drop.keep : 0;
}

/* ---- building blocks ---- */

/*
 * Load rows t0 .. t0 + TILE into shared memory. Rows after the end of the sample are set to zero. Rows are hd + 1
 * floats apart, so that lanes access different banks.
 */
template <typename T, bool OUT>
static __device__ void tile_load(float *to, const struct plain_args &a, const struct plain_place &p, const void *from,
                                 int t0)
{
    for (int i = (int)threadIdx.x; i < TILE * a.hd; i += 32 * WARPS) {
        int token = t0 + i / a.hd, d = i % a.hd;
        int64_t at = OUT ? out_row(a, p, token) : in_row(a, p, token);

        to[i / a.hd * (a.hd + 1) + d] = token < a.s ? up(((const T *)from)[at + d]) : 0;
    }
}

/* Load a row into the shared memory of the warp. */
template <typename T> static __device__ void row_load(float *to, const void *from, int64_t at, int hd, int lane)
{
    for (int d = lane; d < hd; d += 32)
        to[d] = up(((const T *)from)[at + d]);
}

static __device__ float dot_rows(const float *x, const float *y, int hd)
{
    float sum = 0;

    for (int d = 0; d < hd; d++)
        sum = fmaf(x[d], y[d], sum);
    return sum;
}

/* Add the sum of f * row j over all rows j of the tile to sum[], where f is the value of lane j. */
static __device__ __forceinline__ void add_rows(float (&sum)[SHARE], float f, const float *tile, int hd, int lane)
{
    for (int j = 0; j < TILE; j++) {
        float fj = __shfl_sync(0xffffffffu, f, j);

        #pragma unroll
        for (int i = 0; i < SHARE; i++)
            if (lane + 32 * i < hd)
                sum[i] = fmaf(fj, tile[j * (hd + 1) + lane + 32 * i], sum[i]);
    }
}

template <typename T> static __device__ __forceinline__ void row_store(void *to, int64_t at, const float (&x)[SHARE],
                                                                       float f, int hd, int lane)
{
    #pragma unroll
    for (int i = 0; i < SHARE; i++)
        if (lane + 32 * i < hd)
            ((T *)to)[at + lane + 32 * i] = down<T>(x[i] * f);
}

static __device__ __forceinline__ float warp_max(float x)
{
    #pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* ---- kernels: shared memory has one or two tiles of TILE * (hd + 1) floats, and then one or two rows per warp ---- */

template <typename T> static __global__ void plain_forward(struct plain_args a)
{
    extern __shared__ float room[];
    struct plain_place p = plain_place_of(a);
    float *k = room, *v = k + TILE * (a.hd + 1), *q = v + TILE * (a.hd + 1) + (int)threadIdx.x / 32 * a.hd;
    float top = -INFINITY, sum = 0, o[SHARE] = {};
    int end = min((int)(blockIdx.x + 1) * WARPS, a.s);

    if (p.token < a.s)
        row_load<T>(q, a.q, in_row(a, p, p.token), a.hd, p.lane);
    for (int k0 = 0; k0 < end; k0 += TILE) {
        int key = k0 + p.lane;

        __syncthreads();
        tile_load<T, false>(k, a, p, a.k, k0);
        tile_load<T, false>(v, a, p, a.v, k0);
        __syncthreads();
        if (p.token >= a.s || k0 > p.token)
            continue;
        float score = -INFINITY;
        if (key <= p.token)
            score = plain_score<T>(a, dot_rows(q, k + p.lane * (a.hd + 1), a.hd),
                                   a.bias ? a.bias[(int64_t)p.head * a.s + key] : 0);
        float high = fmaxf(top, warp_max(score)), shrink = expf(top - high), prob = expf(score - high);

        top = high;
        sum = sum * shrink + warp_sum(prob);
        #pragma unroll
        for (int i = 0; i < SHARE; i++)
            o[i] *= shrink;
        add_rows(o, prob * (key <= p.token ? keep_factor(a, p, p.token, key) : 0), v, a.hd, p.lane);
    }
    if (p.token >= a.s)
        return;
    row_store<T>(a.out, out_row(a, p, p.token), o, 1 / sum, a.hd, p.lane);
    if (p.lane == 0)
        a.lse[(int64_t)p.row * a.s + p.token] = top + logf(sum);
}

template <typename T> static __global__ void plain_back_q(struct plain_args a)
{
    extern __shared__ float room[];
    struct plain_place p = plain_place_of(a);
    float *k = room, *v = k + TILE * (a.hd + 1), *q = v + TILE * (a.hd + 1) + (int)threadIdx.x / 32 * 2 * a.hd;
    float *d_o = q + a.hd, dq[SHARE] = {}, lse = 0, dot = 0;
    int end = min((int)(blockIdx.x + 1) * WARPS, a.s);

    if (p.token < a.s) {
        row_load<T>(q, a.q, in_row(a, p, p.token), a.hd, p.lane);
        row_load<T>(d_o, a.d_o, out_row(a, p, p.token), a.hd, p.lane);
        lse = a.lse[(int64_t)p.row * a.s + p.token];
        dot = a.dot[(int64_t)p.row * a.s + p.token];
    }
    for (int k0 = 0; k0 < end; k0 += TILE) {
        int key = k0 + p.lane;
        float ds = 0;

        __syncthreads();
        tile_load<T, false>(k, a, p, a.k, k0);
        tile_load<T, false>(v, a, p, a.v, k0);
        __syncthreads();
        if (p.token >= a.s || k0 > p.token)
            continue;
        if (key <= p.token) {
            float bias = a.bias ? a.bias[(int64_t)p.head * a.s + key] : 0;
            float prob = expf(plain_score<T>(a, dot_rows(q, k + p.lane * (a.hd + 1), a.hd), bias) - lse);

            ds = prob * (dot_rows(d_o, v + p.lane * (a.hd + 1), a.hd) * keep_factor(a, p, p.token, key) - dot);
        }
        add_rows(dq, ds, k, a.hd, p.lane);
    }
    if (p.token < a.s)
        row_store<T>(a.dq, in_row(a, p, p.token), dq, a.scale, a.hd, p.lane);
}

/* Here a warp's token is a key, and the tile holds queries. */
template <typename T> static __global__ void plain_back_kv(struct plain_args a)
{
    extern __shared__ float room[];
    struct plain_place p = plain_place_of(a);
    float *q = room, *d_o = q + TILE * (a.hd + 1), *k = d_o + TILE * (a.hd + 1) + (int)threadIdx.x / 32 * 2 * a.hd;
    float *v = k + a.hd, dk[SHARE] = {}, dv[SHARE] = {}, bias = 0;

    if (p.token < a.s) {
        row_load<T>(k, a.k, in_row(a, p, p.token), a.hd, p.lane);
        row_load<T>(v, a.v, in_row(a, p, p.token), a.hd, p.lane);
        bias = a.bias ? a.bias[(int64_t)p.head * a.s + p.token] : 0;
    }
    for (int q0 = (int)blockIdx.x * WARPS / TILE * TILE; q0 < a.s; q0 += TILE) {
        int query = q0 + p.lane;
        float prob = 0, ds = 0;

        __syncthreads();
        tile_load<T, false>(q, a, p, a.q, q0);
        tile_load<T, true>(d_o, a, p, a.d_o, q0);
        __syncthreads();
        if (p.token >= a.s || q0 + TILE <= p.token)
            continue;
        if (query < a.s && query >= p.token) {
            int64_t at = (int64_t)p.row * a.s + query;
            float keep = keep_factor(a, p, query, p.token);

            prob = expf(plain_score<T>(a, dot_rows(q + p.lane * (a.hd + 1), k, a.hd), bias) - a.lse[at]);
            ds = prob * (dot_rows(d_o + p.lane * (a.hd + 1), v, a.hd) * keep - a.dot[at]);
            prob *= keep;
        }
        add_rows(dv, prob, d_o, a.hd, p.lane);
        add_rows(dk, ds, q, a.hd, p.lane);
    }
    if (p.token >= a.s)
        return;
    row_store<T>(a.dk, in_row(a, p, p.token), dk, a.scale, a.hd, p.lane);
    row_store<T>(a.dv, in_row(a, p, p.token), dv, 1, a.hd, p.lane);
}

/* Each row, in memory order of (token, head), is processed by 16 lanes, which load N elements at a time. */
template <typename T, int N>
static __global__ void dots(float *dot, const struct plain_args a, int64_t rows)
{
    const T *o = (const T *)a.o, *d_o = (const T *)a.d_o;
    const int heads = a.heads, hd = a.hd, s = a.s;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 16;
    int lane = (int)threadIdx.x % 16;
    float sum = 0;

    if (row < rows)
        for (int d = lane * N; d < hd; d += 16 * N) {
            float x[N], y[N];

            load(x, o + row * hd + d);
            load(y, d_o + row * hd + d);
            #pragma unroll
            for (int i = 0; i < N; i++)
                sum = fmaf(x[i], y[i], sum);
        }
    #pragma unroll
    for (int i = 8; i > 0; i /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (row < rows && lane == 0) {
        int64_t token = row / heads;

        dot[(token / s * heads + row % heads) * s + token % s] = sum;
    }
}

/* ---- host code ---- */

static struct plain_args plain_args_of(const struct kernel_attention *a)
{
    struct plain_args p = {};

    p.q = a->q;
    p.k = a->k;
    p.v = a->v;
    p.out = a->o;
    p.lse = a->lse;
    p.bias = a->bias;
    p.s = a->s;
    p.heads = a->heads;
    p.hd = a->hd;
    p.token_stride = a->token_stride;
    p.head_stride = a->head_stride;
    p.scale = a->scale;
    p.round_unit = a->round_unit;
    p.drop = dropout_of(&a->drop);
    p.sample0 = (uint32_t)(a->drop.row0 / a->s);
    p.head0 = a->head0;
    return p;
}

/* Launch a kernel. `rows` is the number of rows that each warp needs in shared memory. */
static void plain_launch(void (*kernel)(struct plain_args), const struct kernel_attention *a,
                         const struct plain_args *p, int rows, struct dev_stream *s, const char *what)
{
    dim3 grid((unsigned)ceil_div(a->s, WARPS), (unsigned)(a->b * a->heads));
    size_t shared = (size_t)(2 * TILE * (a->hd + 1) + WARPS * rows * a->hd) * sizeof(float);

    cuda_record_fault(
        what, cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<grid, 32 * WARPS, shared, cuda_stream(s)>>>(*p);
    cuda_launched(what);
}

extern "C" void attention_forward_plain(const struct kernel_attention *a, enum dtype t, struct dev_stream *s)
{
    struct plain_args p = plain_args_of(a);

    WITH_T(t, plain_launch(plain_forward<T>, a, &p, 1, s, "attention"));
}

extern "C" void attention_back_q_plain(const struct kernel_attention *a, const struct kernel_attention_back *g,
                                       const float *dot, enum dtype t, struct dev_stream *s)
{
    struct plain_args p = plain_args_of(a);

    p.d_o = g->d_o;
    p.dq = g->dq;
    p.dot = dot;
    WITH_T(t, plain_launch(plain_back_q<T>, a, &p, 2, s, "attention's dq"));
}

extern "C" void attention_back_kv_plain(const struct kernel_attention *a, const struct kernel_attention_back *g,
                                        const float *dot, enum dtype t, struct dev_stream *s)
{
    struct plain_args p = plain_args_of(a);

    p.d_o = g->d_o;
    p.dk = g->dk;
    p.dv = g->dv;
    p.dot = dot;
    WITH_T(t, plain_launch(plain_back_kv<T>, a, &p, 2, s, "attention's dk and dv"));
}

template <typename T>
static void launch_dots(float *dot, const struct plain_args &p, int64_t rows, struct dev_stream *s)
{
    const int threads = 256;
    unsigned blocks = (unsigned)ceil_div(rows * 16, threads);

    if (p.hd % wide<T>::n == 0)
        dots<T, wide<T>::n><<<blocks, threads, 0, cuda_stream(s)>>>(dot, p, rows);
    else
        dots<T, 1><<<blocks, threads, 0, cuda_stream(s)>>>(dot, p, rows);
}

extern "C" void attention_dots(float *dot, const struct kernel_attention *a, const struct kernel_attention_back *g,
                               enum dtype t, struct dev_stream *s)
{
    int64_t rows = (int64_t)a->b * a->s * a->heads;
    struct plain_args p = plain_args_of(a);

    p.o = a->o;
    p.d_o = g->d_o;
    WITH_T(t, launch_dots<T>(dot, p, rows, s));
    cuda_launched("attention's dots");
}
