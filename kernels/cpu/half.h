/*
 * half.h - conversion of runs of fp16 to fp32 and back
 *
 * Compilers (gcc 12 also with AVX512-FP16, clang 14 without) do not vectorise single conversions of fp16. vmath.h's
 * formulas, which do the conversion in integers, need some 30 instructions for both directions. F16C converts 8 or
 * 16 numbers at once. Kernels with many fp16 numbers therefore widen a run of them, compute in fp32, and round the
 * run. The results have the same bits, because all arithmetic is in fp32 and each result is rounded once.
 */
#ifndef SHARDKIT_KERNELS_CPU_HALF_H
#define SHARDKIT_KERNELS_CPU_HALF_H

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "kernels/cpu/vmath.h"

#define HALF_RUN 256                    /* size of a loop's local buffer */

/* Convert n numbers of fp16 to fp32. Returns `to`, which must not overlap `from`. */
ALWAYS_INLINE float *f16_widen(float *to, const void *from, int64_t n)
{
    const uint16_t *x = from;
    int64_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i))));
#elif defined __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i))));
#endif
    for (; i < n; i++)
        to[i] = f16_up(x[i]);
    return to;
}

ALWAYS_INLINE void f16_narrow(void *to, const float *from, int64_t n)
{
    uint16_t *y = to;
    int64_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((void *)(y + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        y[i] = f16_round(from[i]);
}

/* Round each of n numbers to fp16 and convert it back to fp32, in place. */
ALWAYS_INLINE void f16_round_run(float *x, int64_t n)
{
    int64_t i = 0;

#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(x + i, _mm512_cvtph_ps(_mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT)));
#elif defined __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT)));
#endif
    for (; i < n; i++)
        x[i] = f16_up(f16_round(x[i]));
}

/* Load elements i .. i + n of a tensor of T as fp32. */
ALWAYS_INLINE void load_run(float *x, const void *p, int64_t i, int64_t n, enum dtype t)
{
    if (t == DTYPE_F16)
        f16_widen(x, at_t(p, i, t), n);
    else
        for (int64_t j = 0; j < n; j++)
            x[j] = load_t(p, i + j, t);
}

ALWAYS_INLINE void store_run(void *p, int64_t i, const float *x, int64_t n, enum dtype t)
{
    if (t == DTYPE_F16)
        f16_narrow(out_t(p, i, t), x, n);
    else
        for (int64_t j = 0; j < n; j++)
            store_t(p, i + j, x[j], t);
}

/* Add elements i .. i + n of a tensor of T to x. */
ALWAYS_INLINE void add_run(float *x, const void *p, int64_t i, int64_t n, enum dtype t)
{
    if (t != DTYPE_F16)
        for (int64_t j = 0; j < n; j++)
            x[j] += load_t(p, i + j, t);
    for (int64_t j = 0; t == DTYPE_F16 && j < n; j += HALF_RUN) {
        const int64_t part = n - j < HALF_RUN ? n - j : HALF_RUN;
        float v[HALF_RUN];

        f16_widen(v, at_t(p, i + j, t), part);
        for (int64_t l = 0; l < part; l++)
            x[j + l] += v[l];
    }
}

#endif
