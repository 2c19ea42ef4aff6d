/*
 * flat.cu - operations on flat buffers: sums, conversions, initial weights
 *
 * All of them are limited by memory bandwidth. A thread processes 16 bytes of fp32 at a time. Speed on an H200,
 * where a device copy has 4.23 TB/s: cast 4.28, add 4.35, scale 4.26. One pack per thread is sufficient, because there
 * are enough blocks to keep loads in flight.
 */
#include <math.h>

#include "kernels/cuda/device.cuh"

#define THREADS 256
#define QUAD    4                       /* number of fp32 in 16 bytes */

/* Returns the number of blocks for n elements if each thread processes `each` elements. */
static unsigned blocks_for(int64_t n, int64_t each)
{
    return (unsigned)max_i64(1, ceil_div(n, THREADS * each));
}

/* ---- sums in fp64 ---- */

/*
 * Set *out to the sum of x[i] * w[i] for i < n or, if w is NULL, to the sum of x[i]. The kernel runs in one block, so
 * the order of additions is fixed.
 */
static __global__ void __launch_bounds__(1024) sum_weighted(double *out, const float *x, const float *w, int64_t n)
{
    __shared__ double room[32];
    double sum = 0;

    #pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += 1024)
        sum += (double)x[i] * (w ? w[i] : 1.0f);
    sum = block_sum<32>(sum, room);
    if (threadIdx.x == 0)
        *out = sum;
}

static void weighted_sum(double *out, const float *x, const float *w, int64_t n, struct dev_stream *s)
{
    sum_weighted<<<1, 1024, 0, cuda_stream(s)>>>(out, x, w, n);
    cuda_launched("weighted_sum");
}

static __global__ void doubles_add(double *y, const double *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        y[i] += x[i];
}

static void sum_doubles(double *y, const double *x, int64_t n, struct dev_stream *s)
{
    doubles_add<<<blocks_for(n, 1), THREADS, 0, cuda_stream(s)>>>(y, x, n);
    cuda_launched("sum_doubles");
}

/* ---- conversions and sums of buffers ---- */

/*
 * Round to bf16. A NaN keeps its sign and leading bits, as on the CPU; the hardware's conversion would return a
 * standard NaN.
 */
static __device__ __forceinline__ bf16 cast_down(float x)
{
    return x == x ? __float2bfloat16_rn(x)
                  : __ushort_as_bfloat16((unsigned short)((__float_as_uint(x) | 0x400000) >> 16));
}

/*
 * y[i] = x[i] in another dtype; y[i] *= f; y[i] += x[i]. The kernels process whole packs of N elements per thread. The
 * remainder is processed with N = 1.
 */
static __device__ __forceinline__ void cast_one(float *y, bf16 x)
{
    *y = __uint_as_float((unsigned)__bfloat16_as_ushort(x) << 16);
}

static __device__ __forceinline__ void cast_one(bf16 *y, float x) { *y = cast_down(x); }
static __device__ __forceinline__ void cast_one(float *y, f16 x) { *y = up(x); }

static __device__ __forceinline__ void cast_one(f16 *y, float x)
{
    unsigned u = __float_as_uint(x);

    *y = x == x ? down<f16>(x) : __ushort_as_half((unsigned short)(u >> 16 & 0x8000 | u >> 13 & 0x3ff | 0x7e00));
}

template <typename TO, typename FROM, int N>
static __global__ void __launch_bounds__(THREADS) cast_packs(TO *y, const FROM *x, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= packs)
        return;
    pack<FROM, N> from = *(const pack<FROM, N> *)(x + i * N);
    pack<TO, N> to;

    #pragma unroll
    for (int j = 0; j < N; j++)
        cast_one(&to.v[j], from.v[j]);
    *(pack<TO, N> *)(y + i * N) = to;
}

template <typename G, int N>
static __global__ void __launch_bounds__(THREADS) scale_packs(G *y, float f, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float v[N];

    if (i >= packs)
        return;
    load(v, y + i * N);
    #pragma unroll
    for (int j = 0; j < N; j++)
        v[j] *= f;
    store(y + i * N, v);
}

template <typename G, int N>
static __global__ void __launch_bounds__(THREADS) add_packs(G *y, const G *x, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float v[N], w[N];

    if (i >= packs)
        return;
    load(v, y + i * N);
    load(w, x + i * N);
    #pragma unroll
    for (int j = 0; j < N; j++)
        v[j] += w[j];
    store(y + i * N, v);
}

/*
 * Launch a kernel twice: for whole packs of N elements, and for the remainder. LAUNCH has the arguments N, first
 * element, number of packs.
 */
#define OVER_PACKS(N, n, LAUNCH)                                    \
    do {                                                            \
        int64_t whole_ = (n) / (N), rest_ = (n) - whole_ * (N);     \
        if (whole_)                                                 \
            LAUNCH(N, (int64_t)0, whole_);                          \
        if (rest_)                                                  \
            LAUNCH(1, whole_ * (N), rest_);                         \
    } while (0)

template <typename TO, typename FROM> static void cast_as(void *dst, const void *src, int64_t n, struct dev_stream *s)
{
#define CAST(N, at, packs)                                                          \
    cast_packs<TO, FROM, N><<<blocks_for(packs, 1), THREADS, 0, cuda_stream(s)>>>(  \
        (TO *)dst + (at), (const FROM *)src + (at), packs)
    OVER_PACKS(4, n, CAST);
#undef CAST
}

static void cast(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n, struct dev_stream *s)
{
    if (to == from) {
        cuda_dev.copy(dst, src, (uint64_t)n * (to == DTYPE_F32 ? 4 : 2), s);
        return;
    }
    if (to == DTYPE_F32)
        from == DTYPE_F16 ? cast_as<float, f16>(dst, src, n, s) : cast_as<float, bf16>(dst, src, n, s);
    else
        to == DTYPE_F16 ? cast_as<f16, float>(dst, src, n, s) : cast_as<bf16, float>(dst, src, n, s);
    cuda_launched("cast");
}

static void scale(void *x, float f, int64_t n, enum dtype t, struct dev_stream *s)
{
#define SCALE(N, at, packs) \
    scale_packs<G, N><<<blocks_for(packs, 1), THREADS, 0, cuda_stream(s)>>>((G *)x + (at), f, packs)
    WITH_G(t, OVER_PACKS(wide<G>::n, n, SCALE));
#undef SCALE
    cuda_launched("scale");
}

static void add(void *y, const void *x, int64_t n, enum dtype t, struct dev_stream *s)
{
#define ADD(N, at, packs) \
    add_packs<G, N><<<blocks_for(packs, 1), THREADS, 0, cuda_stream(s)>>>((G *)y + (at), (const G *)x + (at), packs)
    WITH_G(t, OVER_PACKS(wide<G>::n, n, ADD));
#undef ADD
    cuda_launched("add");
}

/* ---- initial weights ---- */

/*
 * Returns a uniform random number in the open interval (0, 1). It consists of 52 random bits plus half of the last bit.
 */
static __device__ double uniform(uint32_t high, uint32_t low)
{
    return ((double)(((uint64_t)high << 32 | low) >> 12) + 0.5) * 0x1p-52;
}

static __global__ void normal_each(float *x, int64_t first, int64_t n, float std, struct philox_keys<10> keys)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, at = first + i;

    if (i >= n)
        return;
    uint4 w = philox_at(keys, (uint64_t)at / 2);
    double radius = sqrt(-2 * log(uniform(w.x, w.y))), angle = 2 * M_PI * uniform(w.z, w.w);

    x[i] = std * (float)(radius * (at % 2 ? sin(angle) : cos(angle)));
}

static void normal(float *x, int64_t first, int64_t n, float std, const uint32_t key[2], struct dev_stream *s)
{
    normal_each<<<blocks_for(n, 1), THREADS, 0, cuda_stream(s)>>>(x, first, n, std, philox_keys_of<10>(key));
    cuda_launched("normal");
}

void cuda_flat_fill(struct kernels *k)
{
    k->weighted_sum = weighted_sum;
    k->sum_doubles = sum_doubles;
    k->cast = cast;
    k->scale = scale;
    k->add = add;
    k->normal = normal;
}
