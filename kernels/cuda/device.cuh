/*
 * device.cuh - what kernels share on the device: elements of T, 16-byte packs, Philox, sums of blocks
 */
#ifndef SHARDKIT_KERNELS_CUDA_DEVICE_CUH
#define SHARDKIT_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>

#include "kernels/cuda/common.h"

typedef __nv_bfloat16 bf16;

/* Run a statement with T = bf16 or float. */
#define WITH_T(t, ...)                                     \
    do {                                                   \
        if ((t) == DTYPE_BF16) {                           \
            using T = bf16;                                \
            __VA_ARGS__;                                   \
        } else {                                           \
            using T = float;                               \
            __VA_ARGS__;                                   \
        }                                                  \
    } while (0)

/* ---- elements ---- */

static __device__ __forceinline__ float up(float x) { return x; }
static __device__ __forceinline__ float up(bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T down(float x);
template <> __device__ __forceinline__ float down<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 down<bf16>(float x) { return __float2bfloat16_rn(x); }

/* N elements that move as one; of 16 bytes where memory allows, of one element where it does not. */
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T v[N];
};
template <typename T> struct wide {
    static const int n = 16 / sizeof(T);        /* elements of 16 bytes */
};

/* Left to itself the compiler reads shared memory two bytes at a time. */
template <typename T, int N> __device__ __forceinline__ pack<T, N> fetch_pack(const T *p)
{
    if constexpr (sizeof(pack<T, N>) == 16) {
        union {
            uint4 raw;
            pack<T, N> v;
        } u = { *(const uint4 *)p };

        return u.v;
    } else {
        return *(const pack<T, N> *)p;
    }
}

template <typename T, int N> __device__ __forceinline__ void unpack(float (&x)[N], const pack<T, N> &p)
{
    #pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = up(p.v[i]);
}

template <typename T, int N> __device__ __forceinline__ pack<T, N> packed(const float (&x)[N])
{
    pack<T, N> p;

    #pragma unroll
    for (int i = 0; i < N; i++)
        p.v[i] = down<T>(x[i]);
    return p;
}

template <typename T, int N> __device__ __forceinline__ void load(float (&x)[N], const T *p)
{
    unpack(x, fetch_pack<T, N>(p));
}

template <typename T, int N> __device__ __forceinline__ void store(T *p, const float (&x)[N])
{
    *(pack<T, N> *)p = packed<T>(x);
}

static inline bool aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* ---- random numbers: Philox4x32-10, as kernels.h says ---- */

static __device__ __forceinline__ uint4 philox(uint64_t at, uint32_t k0, uint32_t k1)
{
    uint32_t c0 = (uint32_t)at, c1 = (uint32_t)(at >> 32), c2 = 0, c3 = 0;

    #pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* struct kernel_dropout as kernels want it; keep == 0: no dropout. */
struct dropout {
    uint32_t limit, k0, k1;
    float keep;                         /* 1 / (1 - p) */
    int64_t row0;
};

static inline struct dropout dropout_of(const struct kernel_dropout *d)
{
    struct dropout r = {};

    if (!d || !(d->p > 0))
        return r;
    r.limit = (uint32_t)((double)d->p * 4294967296.0);
    r.k0 = d->key[0];
    r.k1 = d->key[1];
    r.keep = 1.0f / (1.0f - d->p);
    r.row0 = d->row0;
    return r;
}

static __device__ __forceinline__ uint32_t word_of(uint4 w, int i)
{
    return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}

/* x * mask, rounded: fused with what comes after, it would not be what the CPU gives. NaNs are seen even where dropped. */
static __device__ __forceinline__ float masked(float x, uint32_t word, const struct dropout &d)
{
    return __fmul_rn(x, word >= d.limit ? d.keep : 0.0f);
}

/* x[j] *= mask of element i + j */
template <int N> __device__ __forceinline__ void drop(float (&x)[N], const struct dropout &d, int64_t i)
{
    if (N % 4 == 0 && i % 4 == 0) {
        #pragma unroll
        for (int j = 0; j < N; j += 4) {
            uint4 w = philox((uint64_t)(i + j) / 4, d.k0, d.k1);

            x[j] = masked(x[j], w.x, d);
            x[j + 1] = masked(x[j + 1], w.y, d);
            x[j + 2] = masked(x[j + 2], w.z, d);
            x[j + 3] = masked(x[j + 3], w.w, d);
        }
        return;
    }
    #pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = masked(x[j], word_of(philox((uint64_t)(i + j) / 4, d.k0, d.k1), (int)((i + j) % 4)), d);
}

/* ---- sums, in an order that only the shape decides ---- */

template <typename V> __device__ __forceinline__ V warp_sum(V x)
{
    #pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;                           /* the same in all lanes: both halves add the same two numbers */
}

/* Of all threads of a block of WARPS warps, in all of them. `room` is shared memory of WARPS. */
template <int WARPS, typename V> __device__ __forceinline__ V block_sum(V x, V *room)
{
    V sum = 0;

    x = warp_sum(x);
    if (WARPS == 1)
        return x;
    __syncthreads();                    /* whoever still reads the last sum */
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += room[i];
    return sum;
}

/* ---- GELU in its tanh form (docs/training.md 1.6); see kernels/cpu/vmath.h for why this shape ---- */

#define GELU_2C    1.59576912f          /* 2 * 0.79788456 */
#define GELU_CUBIC 0.044715f

/* bf16 keeps 8 bits, so ex2.approx and rcp.approx (2 ulp of fp32) are as good as exact there. */
template <typename T> __device__ __forceinline__ float gelu_sigmoid(float x, float *e)
{
    float z = x * -GELU_2C * fmaf(GELU_CUBIC * x, x, 1.0f);

    z = z > 87.0f ? 87.0f : z;
    if (sizeof(T) == 2) {
        *e = __expf(z);
        return __fdividef(1.0f, 1.0f + *e);
    }
    *e = expf(z);
    return 1.0f / (1.0f + *e);
}

template <typename T> __device__ __forceinline__ float gelu_of(float x)
{
    float e;

    return x * gelu_sigmoid<T>(x, &e);
}

template <typename T> __device__ __forceinline__ float gelu_slope(float x)
{
    float e, sig, du2;

    x = x < -100.0f ? -100.0f : x;      /* constant from there on; x^2 of more could be infinite */
    x = x > 100.0f ? 100.0f : x;
    sig = gelu_sigmoid<T>(x, &e);
    du2 = fmaf(3 * GELU_2C * GELU_CUBIC * x, x, GELU_2C);       /* d(2u)/dx */
    return fmaf(x * sig, e * sig * du2, sig);
}

#endif
