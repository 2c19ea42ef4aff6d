/* guess.c - predict bytes from the bytes from which they were derived */
#include "libcommon/format/pack/guess.h"

#include <string.h>

#include "libcommon/base/dtype.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

uint64_t guess_ref_bytes(enum pack_guess g, uint64_t n)
{
    return g == PACK_NO_GUESS ? 0 : g == PACK_SAME ? n : 2 * n;
}

/* The same functions as get_le16() etc., but inline, because these calls are most of the work of a guess. */
static inline uint32_t load16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t load32(const uint8_t *p)
{
    return load16(p) | load16(p + 2) << 16;
}

static inline void store16(uint8_t *p, uint16_t x)
{
    p[0] = (uint8_t)x;
    p[1] = (uint8_t)(x >> 8);
}

/* Rounds like f32_to_bf16() in base/dtype.c. This copy must never change, because it is part of the format. */
static inline uint16_t round_bf16(uint32_t x)
{
    uint32_t up = (x + 0x7fff + (x >> 16 & 1)) >> 16, nan = x >> 16 | 0x40;

    return (uint16_t)((x & 0x7fffffff) > 0x7f800000 ? nan : up);
}

#ifdef __SSE2__
/*
 * Round four fp32 masters to bf16. The results are in the low halves of the four lanes, sign-extended, as
 * _mm_packs_epi32() requires.
 */
static inline __m128i round4(const uint8_t *ref)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)ref), no_sign = _mm_set1_epi32(0x7fffffff);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(x, 16), _mm_set1_epi32(1));
    const __m128i up = _mm_add_epi32(x, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
    const __m128i nan = _mm_cmpgt_epi32(_mm_and_si128(x, no_sign), _mm_set1_epi32(0x7f800000));
    const __m128i quiet = _mm_or_si128(x, _mm_set1_epi32(0x400000));

    return _mm_srai_epi32(_mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, up)), 16);
}

/*
 * Process eight numbers per step. Returns the number of numbers processed, and adds the number of results that are not
 * zero to *other.
 */
static uint32_t apply_bf16_guess_simd(const uint8_t *ref, uint8_t *raw, uint32_t n, uint32_t *other)
{
    const __m128i zero = _mm_setzero_si128(), one = _mm_set1_epi16(1);
    __m128i right = zero;               /* number of correct guesses; each half has a counter of its own, because sad
                                         * adds up the bytes of each half */
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i *at = (__m128i *)(raw + 2 * (size_t)i);
        const uint8_t *from = ref + 4 * (size_t)i;
        __m128i x = _mm_xor_si128(_mm_loadu_si128(at), _mm_packs_epi32(round4(from), round4(from + 16)));

        _mm_storeu_si128(at, x);
        right = _mm_add_epi64(right, _mm_sad_epu8(_mm_and_si128(_mm_cmpeq_epi16(x, zero), one), zero));
    }
    right = _mm_add_epi64(right, _mm_srli_si128(right, 8));
    *other += i - (uint32_t)_mm_cvtsi128_si32(right);
    return i;
}
#else
static uint32_t apply_bf16_guess_simd(const uint8_t *ref, uint8_t *raw, uint32_t n, uint32_t *other)
{
    (void)ref, (void)raw, (void)n, (void)other;
    return 0;
}
#endif

static uint32_t apply_bf16(const uint8_t *ref, uint8_t *raw, uint32_t n)
{
    uint32_t other = 0;

    for (uint32_t i = apply_bf16_guess_simd(ref, raw, n, &other); i < n; i++) {
        uint16_t x = (uint16_t)load16(raw + 2 * (size_t)i) ^ round_bf16(load32(ref + 4 * (size_t)i));

        store16(raw + 2 * (size_t)i, x);
        other += x != 0;
    }
    return other;
}

static uint32_t apply_f16(const uint8_t *ref, uint8_t *raw, uint32_t n)
{
    uint32_t other = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = load32(ref + 4 * (size_t)i);
        float value;
        uint16_t x;

        memcpy(&value, &bits, sizeof value);
        x = (uint16_t)load16(raw + 2 * i) ^ f32_to_f16(value);
        store16(raw + 2 * i, x);
        other += x != 0;
    }
    return other;
}

uint32_t guess_apply(enum pack_guess g, const uint8_t *ref, uint8_t *raw, uint32_t n)
{
    uint32_t other = 0;

    if (g == PACK_ROUND_BF16)
        return apply_bf16(ref, raw, n / 2);
    if (g == PACK_ROUND_F16)
        return apply_f16(ref, raw, n / 2);
    for (uint32_t i = 0; i < n; i++) {
        raw[i] ^= ref[i];
        other += raw[i] != 0;
    }
    return other;
}
