/*
 * device.cuh - device code shared by kernels: elements of T, 16-byte packs, dropout, block sums
 */
#ifndef SHARDKIT_KERNELS_CUDA_DEVICE_CUH
#define SHARDKIT_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "kernels/cuda/common.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* Execute a statement with T = bf16, f16 or float. */
#define WITH_T(t, ...)                                     \
    do {                                                   \
        if ((t) == DTYPE_BF16) {                           \
            using T = bf16;                                \
            __VA_ARGS__;                                   \
        } else if ((t) == DTYPE_F16) {                     \
            using T = f16;                                 \
            __VA_ARGS__;                                   \
        } else {                                           \
            using T = float;                               \
            __VA_ARGS__;                                   \
        }                                                  \
    } while (0)

/* Execute a statement with G = f16 or float, the possible types of parameters' gradients. */
#define WITH_G(t, ...)                                     \
    do {                                                   \
        if ((t) == DTYPE_F16) {                            \
            using G = f16;                                 \
            __VA_ARGS__;                                   \
        } else {                                           \
            using G = float;                               \
            __VA_ARGS__;                                   \
        }                                                  \
    } while (0)

/* Execute a statement with T, and with G, the type of gradients. G is T if `grad_t` is set and T is f16, else float. */
#define WITH_T_AND_G(t, grad_t, ...)                       \
    do {                                                   \
        if ((grad_t) && (t) == DTYPE_F16) {                \
            using T = f16;                                 \
            using G = f16;                                 \
            __VA_ARGS__;                                   \
        } else {                                           \
            using G = float;                               \
            WITH_T(t, __VA_ARGS__);                        \
        }                                                  \
    } while (0)

/* ---- elements ---- */

static __device__ __forceinline__ float up(float x) { return x; }
static __device__ __forceinline__ float up(bf16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ float up(f16 x) { return __half2float(x); }

template <typename T> __device__ __forceinline__ T down(float x);
template <> __device__ __forceinline__ float down<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 down<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ f16 down<f16>(float x) { return __float2half_rn(x); }

/*
 * N elements that are loaded and stored together. They take 16 bytes, or fewer if the alignment of the data does not
 * allow that.
 */
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T v[N];
};
template <typename T> struct wide {
    static const int n = 16 / sizeof(T);        /* number of elements in 16 bytes */
};

/* The code uses uint4 explicitly, because otherwise the compiler reads shared memory two bytes at a time. */
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

/*
 * Set N elements of a parameter's gradient to `sum`, or add `sum` to them. For fp32, grad_begin() starts the sum with
 * the old values. For fp16, grad_end() adds the old values to the rounded sum.
 */
template <typename G, int N> __device__ __forceinline__ void grad_begin(float (&sum)[N], const G *to, bool add)
{
    if (std::is_same<G, float>::value && add)
        load(sum, to);
}

template <typename G, int N> __device__ __forceinline__ void grad_end(G *to, float (&sum)[N], bool add)
{
    float old[N];

    if (!std::is_same<G, float>::value && add) {
        load(old, to);
        #pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] = old[j] + up(down<G>(sum[j]));
    }
    store(to, sum);
}

/*
 * Set one element of a parameter's gradient to `sum` or, with `add`, add `sum` to the element. The sum is rounded
 * before the addition.
 */
template <typename G> __device__ __forceinline__ void grad_put(G *to, float sum, bool add)
{
    *to = down<G>((add ? up(*to) : 0) + up(down<G>(sum)));
}

static inline bool aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* ---- random numbers: Philox4x32 ---- */

/*
 * The keys of all rounds of Philox. They are passed as kernel arguments, so they are in constant memory and need no
 * registers.
 */
template <int ROUNDS> struct philox_keys {
    uint32_t x[ROUNDS], y[ROUNDS];
};

template <int ROUNDS> static inline struct philox_keys<ROUNDS> philox_keys_of(const uint32_t key[2])
{
    struct philox_keys<ROUNDS> k;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        k.x[i] = key[0] + i * 0x9E3779B9u;
        k.y[i] = key[1] + i * 0xBB67AE85u;
    }
    return k;
}

/* Returns the Philox block for a counter of four words. */
template <int ROUNDS> __device__ __forceinline__ uint4 philox(const struct philox_keys<ROUNDS> &k, uint4 c)
{
    #pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c.x, b = (uint64_t)0xCD9E8D57u * c.z;

        c = make_uint4((uint32_t)(b >> 32) ^ c.y ^ k.x[i], (uint32_t)b, (uint32_t)(a >> 32) ^ c.w ^ k.y[i],
                       (uint32_t)a);
    }
    return c;
}

/* Returns block number `at` of the stream that a key defines. */
template <int ROUNDS> __device__ __forceinline__ uint4 philox_at(const struct philox_keys<ROUNDS> &k, uint64_t at)
{
    return philox(k, make_uint4((uint32_t)at, (uint32_t)(at >> 32), 0, 0));
}

/* ---- dropout as in kernels.h ---- */

#define DROP_ROUNDS 7

/* The values of struct kernel_dropout in the form that kernels use. keep is 0 if there is no dropout. */
struct dropout {
    uint32_t limit;                     /* the limit, shifted to the upper half of the word */
    float keep;                         /* factor for kept elements */
    struct philox_keys<DROP_ROUNDS> keys;
    uint32_t clear[16];                 /* clear[i]: all bits set if bit i of the limit is 0, else 0 */
    int64_t row0;
};

static inline struct dropout dropout_of(const struct kernel_dropout *d)
{
    struct dropout r = {};

    if (!d || !(d->p > 0))
        return r;
    uint32_t limit = kernel_dropout_limit(d->p);

    r.limit = limit << 16;
    r.keep = kernel_dropout_keep(d->p);
    r.keys = philox_keys_of<DROP_ROUNDS>(d->key);
    for (int i = 0; i < 16; i++)
        r.clear[i] = limit >> i & 1 ? 0 : ~0u;
    r.row0 = d->row0;
    return r;
}

static __device__ __forceinline__ uint32_t word_of(uint4 w, int i)
{
    return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}

/*
 * Multiply x[j] by the dropout factor of element i + j of a hidden tensor, for j < N; i must be a multiple of N. The
 * products are rounded separately. If they were fused with the next operation, the results would differ from the CPU's.
 * A dropped NaN is still NaN.
 */
template <int N> __device__ __forceinline__ void drop(float (&x)[N], const struct dropout &d, int64_t i)
{
    static_assert(8 % N == 0, "one block");
    uint4 block = philox_at(d.keys, (uint64_t)i / 8);
    int first = N == 8 ? 0 : (int)(i % 8);

    #pragma unroll
    for (int j = 0; j < N; j++) {
        uint32_t word = word_of(block, (first + j) / 2), u = (first + j) % 2 ? word : word << 16;

        x[j] = __fmul_rn(x[j], u >= d.limit ? d.keep : 0.0f);
    }
}

/*
 * Determine which elements attention dropout keeps, in N patches. A patch is 2 queries by 16 keys; `queries` and `keys`
 * count such units, and consecutive patches are `step` units of keys apart. The bits of a patch are in the order of
 * kernels.h. All 32 random numbers of a patch are compared with the limit at once, from the lowest bit up; `kept` is
 * the result for the bits compared so far. AT_ONCE (1 or 2) Philox blocks of each patch are computed at a time. The
 * code is a loop, because ptxas would move straight-line code below the wait for products that the code should overlap
 * with.
 */
template <int AT_ONCE, int N>
static __device__ __forceinline__ void drop_patches(uint32_t (&kept)[N], const struct dropout &d, uint32_t keys,
                                                    uint32_t step, uint32_t queries, uint32_t head, uint32_t sample)
{
    #pragma unroll
    for (int n = 0; n < N; n++)
        kept[n] = ~0u;
    #pragma unroll AT_ONCE
    for (int j = 0; j < 4; j++)
        #pragma unroll
        for (int n = 0; n < N; n++) {
            uint4 block = philox(d.keys, make_uint4(4 * (keys + n * step) + j, queries, head, sample));

            #pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t word = word_of(block, i), clear = d.clear[4 * j + i];

                kept[n] = (word & kept[n]) | (clear & (word | kept[n]));
            }
        }
}

/* ---- sums, in an order that depends only on the shape ---- */

template <typename V> __device__ __forceinline__ V warp_sum(V x)
{
    #pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;                           /* equal in all lanes, because both lanes of a pair add the same two numbers */
}

/*
 * Returns the sum of x over all threads of a block of WARPS warps, in every thread. `room` is shared memory for WARPS
 * elements.
 */
template <int WARPS, typename V> __device__ __forceinline__ V block_sum(V x, V *room)
{
    V sum = 0;

    x = warp_sum(x);
    if (WARPS == 1)
        return x;
    __syncthreads();                    /* wait until all threads have read the sum of the previous call */
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += room[i];
    return sum;
}

/* ---- GELU in its tanh form (docs/training.md 1.6); see kernels/cpu/vmath.h for the reasons ---- */

#define GELU_2C    1.59576912f          /* 2 * 0.79788456 */
#define GELU_CUBIC 0.044715f

/*
 * ex2.approx and rcp.approx are accurate to 2 ulp of fp32. This is sufficient for bf16, which has 8 significant bits,
 * and for fp16, which has 11.
 */
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

    x = x < -100.0f ? -100.0f : x;      /* constant beyond this range; x^2 of a larger x could be infinite */
    x = x > 100.0f ? 100.0f : x;
    sig = gelu_sigmoid<T>(x, &e);
    du2 = fmaf(3 * GELU_2C * GELU_CUBIC * x, x, GELU_2C);       /* d(2u)/dx */
    return fmaf(x * sig, e * sig * du2, sig);
}

#endif
