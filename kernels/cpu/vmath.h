/*
 * vmath.h - elementary functions, written so that loops over them are vectorised
 *
 * They have no branches, calls or tables. The result for a NaN is always a NaN, so that invalid values remain visible.
 */
#ifndef SHARDKIT_KERNELS_CPU_VMATH_H
#define SHARDKIT_KERNELS_CPU_VMATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/*
 * Compute a * b + c. If the machine has fused multiply-add, the result is rounded only once, both in vector code and in
 * scalar code.
 */
#ifdef __FMA__
#define MADD(a, b, c) __builtin_fmaf((a), (b), (c))
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#endif

ALWAYS_INLINE uint32_t f32_bits(float f)
{
    uint32_t u;

    __builtin_memcpy(&u, &f, sizeof u);
    return u;
}

ALWAYS_INLINE float bits_f32(uint32_t u)
{
    float f;

    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}

ALWAYS_INLINE float bf16_up(uint16_t x)
{
    return bits_f32((uint32_t)x << 16);
}

ALWAYS_INLINE uint16_t bf16_round(float x)
{
    uint32_t u = f32_bits(x);
    uint32_t even = u + 0x7fff + (u >> 16 & 1);

    return (uint16_t)((x == x ? even : u | 0x400000) >> 16);
}

/*
 * Convert fp16 to fp32 and back, with the same bits as the instructions of F16C, including NaNs. The code uses
 * integers, because compilers do not vectorise loops over those instructions. The conversion from fp32 distinguishes
 * four cases: the result is normal in fp16, a subnormal (a multiple of 2^-24), an overflow, or a NaN.
 */
ALWAYS_INLINE float f16_up(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, u = (uint32_t)(x & 0x7fff), normal = (u << 13) + 0x38000000;
    uint32_t small = f32_bits(bits_f32(normal + 0x800000) - 0x1p-14f);
    uint32_t v = u < 0x400 ? small : normal;

    v = u >= 0x7c00 ? u << 13 | 0x7f800000 | (u > 0x7c00 ? 0x400000 : 0) : v;
    return bits_f32(sign | v);
}

ALWAYS_INLINE uint16_t f16_round(float x)
{
    uint32_t u = f32_bits(x) & 0x7fffffff, sign = f32_bits(x) >> 16 & 0x8000;
    uint32_t normal = (u + 0xfff + (u >> 13 & 1) - 0x38000000) >> 13;
    /* the last bit of 1/2 in fp32 has the value 2^-24 */
    uint32_t small = f32_bits(bits_f32(u) + 0.5f) - 0x3f000000;
    uint32_t v = u < 0x38800000 ? small : normal;

    v = u >= 0x477ff000 ? 0x7c00 : v;
    v = u > 0x7f800000 ? (u >> 13 & 0x3ff) | 0x7e00 : v;
    return (uint16_t)(sign | v);
}

/* Access element i of a tensor of type T. `t` is a constant wherever these functions are inlined. */
ALWAYS_INLINE float load_t(const void *p, int64_t i, enum dtype t)
{
    return t == DTYPE_F32 ? ((const float *)p)[i]
         : t == DTYPE_BF16 ? bf16_up(((const uint16_t *)p)[i]) : f16_up(((const uint16_t *)p)[i]);
}

ALWAYS_INLINE void store_t(void *p, int64_t i, float v, enum dtype t)
{
    if (t == DTYPE_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = t == DTYPE_BF16 ? bf16_round(v) : f16_round(v);
}

/* Returns v rounded to T. */
ALWAYS_INLINE float round_t(float v, enum dtype t)
{
    return t == DTYPE_F32 ? v : t == DTYPE_BF16 ? bf16_up(bf16_round(v)) : f16_up(f16_round(v));
}

/* Returns the size of an element of T in bytes. */
ALWAYS_INLINE int bytes_t(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}

/* Returns the address of element i of a tensor of T. */
ALWAYS_INLINE const void *at_t(const void *p, int64_t i, enum dtype t)
{
    return (const char *)p + bytes_t(t) * i;
}

ALWAYS_INLINE void *out_t(void *p, int64_t i, enum dtype t)
{
    return (char *)p + bytes_t(t) * i;
}

/* Set element i of a parameter's gradient to v or, with `add`, add v to it. The gradient has type g. */
ALWAYS_INLINE void put_grad(void *p, int64_t i, float v, bool add, enum dtype g)
{
    store_t(p, i, (add ? load_t(p, i, g) : 0) + round_t(v, g), g);
}

/*
 * Returns e^x within 2 ulp. If the result is below the normal numbers, it is 0. With x = n ln 2 + r, |r| <= ln 2 / 2:
 * e^r is computed by its minimax polynomial (the coefficients of Moshier's Cephes expf), and multiplied by 2^n by
 * adding n to the exponent.
 */
ALWAYS_INLINE float exp_f32(float x)
{
    const float magic = 12582912.0f;            /* 1.5 * 2^23: after adding it, the low bits hold the nearest integer */
    float n = MADD(x, 1.44269504088896341f, magic);
    uint32_t shift = f32_bits(n) << 23;
    float r, p;

    n -= magic;
    r = MADD(n, -0.693359375f, x);              /* ln 2 in two parts; n times the first is exact */
    r = MADD(n, 2.12194440e-4f, r);
    p = MADD(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = MADD(p, r, 8.3334519073e-3f);
    p = MADD(p, r, 4.1665795894e-2f);
    p = MADD(p, r, 1.6666665459e-1f);
    p = MADD(p, r, 5.0000001201e-1f);
    p = MADD(p, r * r, r) + 1.0f;
    p = bits_f32(f32_bits(p) + shift);
    p = x < -87.3365447f ? 0.0f : p;
    p = x > 88.7228317f ? INFINITY : p;
    return x == x ? p : x;
}

/*
 * GELU in its tanh form (docs/training.md 1.6). With T = tanh(u) and sig = 1 / (1 + e^-2u): (1 + T) / 2 = sig and
 * (1 - T^2) / 4 = sig (1 - sig). These lose no digits where T is near -1. *e is e^-2u, limited to less than 2^126
 * so that 1 - sig = e * sig holds.
 */
#define GELU_2C    1.59576912f                  /* 2 * 0.79788456 */
#define GELU_CUBIC 0.044715f

ALWAYS_INLINE float gelu_sigmoid(float x, float *e)
{
    float z = x * -GELU_2C * MADD(GELU_CUBIC * x, x, 1.0f);

    *e = exp_f32(z > 87.0f ? 87.0f : z);
    return 1.0f / (1.0f + *e);
}

ALWAYS_INLINE float gelu_f32(float x)
{
    float e;

    return x * gelu_sigmoid(x, &e);
}

ALWAYS_INLINE float gelu_slope_f32(float x)
{
    float e, sig, du2;

    x = x < -100.0f ? -100.0f : x;      /* constant beyond this range; x^2 of a larger x could be infinite */
    x = x > 100.0f ? 100.0f : x;
    sig = gelu_sigmoid(x, &e);
    du2 = MADD(3 * GELU_2C * GELU_CUBIC * x, x, GELU_2C);    /* d(2u)/dx */

    return MADD(x * sig, e * sig * du2, sig);
}

#endif
