/*
 * guess.c - bytes from the bytes they were made of
 */
#include "libcommon/format/pack/guess.h"

#include <string.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/mem.h"

uint64_t guess_ref_bytes(enum pack_guess g, uint64_t n)
{
    return g == PACK_NO_GUESS ? 0 : g == PACK_SAME ? n : 2 * n;
}

/* As base/dtype.c has it; here in a form that compilers make vectors of, and that may not change. */
static inline uint16_t round_bf16(uint32_t x)
{
    uint32_t up = (x + 0x7fff + (x >> 16 & 1)) >> 16, nan = x >> 16 | 0x40;

    return (uint16_t)((x & 0x7fffffff) > 0x7f800000 ? nan : up);
}

static uint32_t apply_bf16(const uint8_t *ref, uint8_t *raw, uint32_t n)
{
    uint32_t other = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint16_t x = get_le16(raw + 2 * i) ^ round_bf16(get_le32(ref + 4 * (size_t)i));

        put_le16(raw + 2 * i, x);
        other += x != 0;
    }
    return other;
}

static uint32_t apply_f16(const uint8_t *ref, uint8_t *raw, uint32_t n)
{
    uint32_t other = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = get_le32(ref + 4 * (size_t)i);
        float value;
        uint16_t x;

        memcpy(&value, &bits, sizeof value);
        x = get_le16(raw + 2 * i) ^ f32_to_f16(value);
        put_le16(raw + 2 * i, x);
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
