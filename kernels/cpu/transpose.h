/*
 * transpose.h - transpose rows of an operand, one square at a time
 *
 * Used to pack panels. The input is `rows` rows: the first begins at p, and consecutive rows are `ld` numbers apart.
 * The output is a sequence of slots that are `step` numbers apart: row r of slot s is stored at to[s * step + r].
 */
#ifndef SHARDKIT_KERNELS_CPU_TRANSPOSE_H
#define SHARDKIT_KERNELS_CPU_TRANSPOSE_H

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/vmath.h"

/* The contents of a slot: an fp32; a bf16 or fp16, which is widened to fp32; or a pair of bf16. */
enum form { FORM_F32, FORM_BF16, FORM_F16, FORM_PAIRS };

/* Returns the dtype of the operand. */
ALWAYS_INLINE enum dtype form_t(enum form form)
{
    return form == FORM_F32 ? DTYPE_F32 : form == FORM_F16 ? DTYPE_F16 : DTYPE_BF16;
}

#ifdef __AVX2__
/*
 * Transpose eight slots of `rows` <= 8 rows. Eight numbers per slot are stored in any case, in the order of the slots.
 * If there are fewer rows, the caller must overwrite the extra numbers later.
 */
ALWAYS_INLINE void transpose_8x8(uint32_t *to, int64_t step, const void *p, int64_t ld, int rows, enum form form)
{
    __m256 r[8], t[8];

    #pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const void *at = at_t(p, i * ld, form_t(form));

        r[i] = i >= rows ? _mm256_setzero_ps()
             : form == FORM_BF16
                 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16))
             : form == FORM_F16 ? _mm256_cvtph_ps(_mm_loadu_si128(at)) : _mm256_loadu_ps(at);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    #pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps((float *)to + i * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    #pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps((float *)to + (i + 4) * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
}
#endif

#ifdef __AVX512F__
/* Transpose sixteen slots of sixteen rows. Apart from the size, this function works like transpose_8x8(). */
ALWAYS_INLINE void transpose_16x16(uint32_t *to, int64_t step, const void *p, int64_t ld, int rows, enum form form)
{
    __m512i r[16], t[16];

    #pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const void *at = at_t(p, i * ld, form_t(form));

        r[i] = i >= rows ? _mm512_setzero_si512()
             : form == FORM_BF16 ? _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16)
             : form == FORM_F16 ? _mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256(at)))
             : _mm512_loadu_si512(at);
    }
    #pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    /* r[i + j]: column j of each 128 bits, rows i .. i + 3 */
    #pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    #pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        __m512i c = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd), d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);

        t[j] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[4 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
        t[8 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    #pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(to + i * step, t[i]);
}
#define TRANSPOSE_SIDE   16
#define turn_square transpose_16x16
#else
#define TRANSPOSE_SIDE   8
#define turn_square transpose_8x8
#endif

#endif
