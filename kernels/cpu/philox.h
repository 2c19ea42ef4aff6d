/*
 * philox.h - Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11)
 * and the dropout masks made of it
 */
#ifndef SHARDKIT_KERNELS_CPU_PHILOX_H
#define SHARDKIT_KERNELS_CPU_PHILOX_H

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/vmath.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_K0 0x9E3779B9u
#define PHILOX_K1 0xBB67AE85u

/*
 * Several blocks at once, one in each 64-bit lane, words in the lower halves. The upper ones may
 * hold anything: the multiplication 32 x 32 -> 64 does not read them, and nothing moves them down.
 */
#if defined(__AVX512F__)
#define PHILOX_LANES 8
typedef uint64_t philox_vec __attribute__((vector_size(64)));
#define PHILOX_MULTIPLY(a, b) ((philox_vec)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
#define PHILOX_LANES 4
typedef uint64_t philox_vec __attribute__((vector_size(32)));
#define PHILOX_MULTIPLY(a, b) ((philox_vec)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#elif defined(__SSE2__)
#define PHILOX_LANES 2
typedef uint64_t philox_vec __attribute__((vector_size(16)));
#define PHILOX_MULTIPLY(a, b) ((philox_vec)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#else
#define PHILOX_LANES 2
typedef uint64_t philox_vec __attribute__((vector_size(16)));
#define PHILOX_MULTIPLY(a, b) (((a) & 0xffffffffu) * ((b) & 0xffffffffu))
#endif

/* Blocks at .. at + PHILOX_LANES of the stream of `key` */
ALWAYS_INLINE void philox_blocks(uint32_t out[4 * PHILOX_LANES], uint64_t at, const uint32_t key[2])
{
    const philox_vec zero = { 0 }, m0 = zero + PHILOX_M0, m1 = zero + PHILOX_M1;
    philox_vec c0 = zero + at, c1, c2 = zero, c3 = zero;
    uint32_t k0 = key[0], k1 = key[1];

    for (unsigned i = 0; i < PHILOX_LANES; i++)
        c0[i] += i;
    c1 = c0 >> 32;
    for (int round = 0; round < 10; round++) {
        philox_vec a = PHILOX_MULTIPLY(c0, m0), b = PHILOX_MULTIPLY(c2, m1);

        c0 = b >> 32 ^ c1 ^ (zero + k0);
        c1 = b;
        c2 = a >> 32 ^ c3 ^ (zero + k1);
        c3 = a;
        k0 += PHILOX_K0;
        k1 += PHILOX_K1;
    }
    for (int i = 0; i < PHILOX_LANES; i++) {
        out[4 * i] = (uint32_t)c0[i];
        out[4 * i + 1] = (uint32_t)c1[i];
        out[4 * i + 2] = (uint32_t)c2[i];
        out[4 * i + 3] = (uint32_t)c3[i];
    }
}

#define DROP_RUN 256                    /* elements that drop_run() does at once */

ALWAYS_INLINE bool drop_active(const struct kernel_dropout *d)
{
    return d && d->p > 0;
}

/*
 * mask[j] = 1 / (1 - p) or 0 for elements i .. i + n of the tensor, n <= DROP_RUN.
 * Multiplied on, so a NaN is seen even where it was dropped.
 */
static inline void drop_run(float *mask, const struct kernel_dropout *d, int64_t i, int64_t n)
{
    uint32_t word[DROP_RUN + 8 * PHILOX_LANES];
    uint32_t limit = (uint32_t)((double)d->p * 0x1p32);
    int64_t skip = i % 4;
    float keep = 1.0f / (1.0f - d->p);

    for (int64_t j = 0; j < skip + n; j += 4 * PHILOX_LANES)
        philox_blocks(word + j, (uint64_t)(i + j) / 4, d->key);
    for (int64_t j = 0; j < n; j++)
        mask[j] = word[skip + j] >= limit ? keep : 0.0f;
}

#endif
