/*
 * philox.h - Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) and the dropout masks
 * generated from it
 */
#ifndef SHARDKIT_KERNELS_CPU_PHILOX_H
#define SHARDKIT_KERNELS_CPU_PHILOX_H

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/vmath.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_K0 0x9E3779B9u
#define PHILOX_K1 0xBB67AE85u

/*
 * Several Philox blocks are computed at once. Each 64-bit lane holds a word of one block in its lower half. The upper
 * half may contain any bits, because the multiplication 32 x 32 -> 64 does not read them, and no operation shifts them
 * down.
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

/* Apply the rounds of Philox to the counters c in place. Then c[w] is word w of each block. */
ALWAYS_INLINE void philox_rounds(philox_vec c[4], const uint32_t key[2], int rounds)
{
    const philox_vec zero = { 0 }, m0 = zero + PHILOX_M0, m1 = zero + PHILOX_M1;
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < rounds; round++) {
        philox_vec a = PHILOX_MULTIPLY(c[0], m0), b = PHILOX_MULTIPLY(c[2], m1);

        c[0] = b >> 32 ^ c[1] ^ (zero + k0);
        c[1] = b;
        c[2] = a >> 32 ^ c[3] ^ (zero + k1);
        c[3] = a;
        k0 += PHILOX_K0;
        k1 += PHILOX_K1;
    }
}

/* Returns a vector with the elements first, first + step, first + 2 * step, ... */
ALWAYS_INLINE philox_vec philox_count(uint64_t first, uint64_t step)
{
    philox_vec c = { 0 };

    for (unsigned i = 0; i < PHILOX_LANES; i++)
        c[i] = first + i * step;
    return c;
}

/* Compute the Philox blocks number at .. at + PHILOX_LANES of the stream that `key` defines. */
ALWAYS_INLINE void philox_blocks(uint32_t out[4 * PHILOX_LANES], uint64_t at, const uint32_t key[2], int rounds)
{
    philox_vec n = philox_count(at, 1), c[4] = { n, n >> 32 };

    philox_rounds(c, key, rounds);
    for (int i = 0; i < PHILOX_LANES; i++)
        for (int w = 0; w < 4; w++)
            out[4 * i + w] = (uint32_t)c[w][i];
}

/* ---- dropout as in kernels.h; values are multiplied by a mask, so that a dropped NaN is still NaN ---- */

#define DROP_ROUNDS 7
#define DROP_RUN    256                 /* number of elements that drop_run() processes at once */

ALWAYS_INLINE bool drop_active(const struct kernel_dropout *d)
{
    return d && d->p > 0;
}

/*
 * Set mask[j] to the dropout factor of element i + j of a hidden tensor, for j < n <= DROP_RUN. The factor is 1 / (1 -
 * p) for kept elements and 0 for dropped ones.
 */
static inline void drop_run(float *mask, const struct kernel_dropout *d, int64_t i, int64_t n)
{
    uint32_t word[DROP_RUN / 2 + 8 * PHILOX_LANES], limit = kernel_dropout_limit(d->p);
    float both[DROP_RUN + 16], keep = kernel_dropout_keep(d->p);
    int64_t skip = i % 8;

    for (int64_t j = 0; j < skip + n; j += 8 * PHILOX_LANES)
        philox_blocks(word + j / 2, (uint64_t)(i + j) / 8, d->key, DROP_ROUNDS);
    for (int64_t j = 0; j < (skip + n + 1) / 2; j++) {
        both[2 * j] = (word[j] & 0xffff) >= limit ? keep : 0.0f;
        both[2 * j + 1] = word[j] >> 16 >= limit ? keep : 0.0f;
    }
    memcpy(mask, both + skip, (size_t)n * sizeof *mask);
}

/*
 * Determine which elements attention dropout keeps. Each lane processes a patch of 2 queries by 16 keys. The keys of
 * lane l begin at 16 * (group + l). Bit query % 2 * 16 + key % 16 of the result is set if the element is kept. The
 * random numbers of all 32 elements are compared with the limit at once, from the lowest bit to the highest.
 */
ALWAYS_INLINE philox_vec drop_patches(const struct kernel_dropout *d, uint32_t sample, uint32_t head, uint32_t pair,
                                      uint32_t group)
{
    const philox_vec zero = { 0 };
    uint32_t limit = kernel_dropout_limit(d->p);
    philox_vec kept = ~zero;

    for (unsigned j = 0; j < 4; j++) {
        philox_vec c[4] = { philox_count(4 * group + j, 4), zero + pair, zero + head, zero + sample };

        philox_rounds(c, d->key, DROP_ROUNDS);
        for (unsigned w = 0; w < 4; w++)
            kept = limit >> (4 * j + w) & 1 ? kept & c[w] : kept | c[w];
    }
    return kept;
}

/*
 * A tile for attention dropout. It consists of queries q0 .. q0 + nq and keys k0 .. k0 + nk of a head of a sample. q0
 * must be even and k0 a multiple of 16.
 */
struct drop_place {
    int64_t sample, head;
    int64_t q0, nq, k0, nk;
};

/*
 * Set mask[q * ld + k] to the dropout factor of each element of the tile `at`: 1 / (1 - p) or 0. sample and head are
 * numbered as in kernels.h. Whole units of 2 queries by 16 keys are written.
 */
static inline void drop_tile(float *mask, int64_t ld, const struct kernel_dropout *d, const struct drop_place *at)
{
    const uint32_t sample = (uint32_t)at->sample, head = (uint32_t)at->head;
    const int64_t q0 = at->q0, nq = at->nq, k0 = at->k0, nk = at->nk;
    float keep = kernel_dropout_keep(d->p);
    uint32_t weight[16];

    for (unsigned i = 0; i < 16; i++)
        weight[i] = 1u << i;
    for (int64_t q = 0; q < nq; q += 2)
        for (int64_t k = 0; k < nk; k += 16 * PHILOX_LANES) {
            philox_vec kept = drop_patches(d, sample, head, (uint32_t)((q0 + q) / 2), (uint32_t)((k0 + k) / 16));

            for (int i = 0; i < PHILOX_LANES && k + 16 * i < nk; i++) {
                float *row = mask + q * ld + k + 16 * i;
                uint32_t low = (uint32_t)kept[i], high = low >> 16;

                for (int j = 0; j < 16; j++) {
                    row[j] = low & weight[j] ? keep : 0.0f;
                    row[ld + j] = high & weight[j] ? keep : 0.0f;
                }
            }
        }
}

#endif
