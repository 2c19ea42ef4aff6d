/*
 * delta_block.c - subtract, split and compress blocks of numbers, and the way back
 */
#include "libcommon/format/delta/delta_block.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/delta/delta.h"
#include "libcommon/format/pack/planes.h"

/* How a block is packed: its first byte. */
enum block_method { BLOCK_PLANES, BLOCK_ZSTD };
enum { ZSTD_LEVEL = 3 };

struct delta_coder {
    ZSTD_CCtx *pack;
    ZSTD_DCtx *unpack;
    struct planes *planes;
    uint8_t *diff;              /* [DELTA_BLOCK]: the differences */
    /* [DELTA_BLOCK]: the same bytes in planes: byte k of all numbers follows byte k - 1 of all numbers */
    uint8_t *split;
    uint8_t *room;              /* for the second method */
};

struct delta_coder *delta_coder_new(void)
{
    struct delta_coder *k = xcalloc(1, sizeof *k);

    k->pack = ZSTD_createCCtx();
    k->unpack = ZSTD_createDCtx();
    k->planes = planes_new(DELTA_BLOCK);
    k->diff = xmalloc(DELTA_BLOCK);
    k->split = xmalloc(DELTA_BLOCK);
    k->room = xmalloc(ZSTD_compressBound(DELTA_BLOCK));
    if (!k->pack || !k->unpack)
        abort();                /* a few hundred KiB could not be allocated, so the program aborts like xmalloc() */
    return k;
}

void delta_coder_free(struct delta_coder *k)
{
    if (!k)
        return;
    ZSTD_freeCCtx(k->pack);
    ZSTD_freeDCtx(k->unpack);
    planes_free(k->planes);
    free(k->diff);
    free(k->split);
    free(k->room);
    free(k);
}

uint32_t delta_block_bound(uint32_t n)
{
    const uint32_t planes = planes_bound(n), whole = (uint32_t)ZSTD_compressBound(n);

    return 1 + (planes > whole ? planes : whole);
}

/* ---- differences ---- */

/*
 * Defines the two directions for one width. The sign of x, repeated in all bits, inverts the magnitude of a negative
 * number. This map is its own inverse.
 */
#define DEFINE_WIDTH(bits)                                                                                           \
    static inline uint##bits##_t order##bits(uint##bits##_t x, uint##bits##_t magnitude)                             \
    {                                                                                                                \
        return (uint##bits##_t)(x ^ ((uint##bits##_t)(0 - (x >> (bits - 1))) & magnitude));                          \
    }                                                                                                                \
    static void subtract##bits(const uint8_t *base, const uint8_t *result, uint32_t n, uint##bits##_t magnitude,     \
                               uint8_t *diff)                                                                        \
    {                                                                                                                \
        for (uint32_t i = 0; i < n; i += bits / 8) {                                                                 \
            uint##bits##_t a, b, d;                                                                                  \
                                                                                                                     \
            memcpy(&a, base + i, sizeof a);                                                                          \
            memcpy(&b, result + i, sizeof b);                                                                        \
            d = (uint##bits##_t)(order##bits(b, magnitude) - order##bits(a, magnitude));                             \
            d = (uint##bits##_t)((d << 1) ^ (uint##bits##_t)(0 - (d >> (bits - 1))));                                \
            memcpy(diff + i, &d, sizeof d);                                                                          \
        }                                                                                                            \
    }                                                                                                                \
    static void add##bits(const uint8_t *diff, uint32_t n, uint##bits##_t magnitude, uint8_t *bytes)                 \
    {                                                                                                                \
        for (uint32_t i = 0; i < n; i += bits / 8) {                                                                 \
            uint##bits##_t a, d;                                                                                     \
                                                                                                                     \
            memcpy(&a, bytes + i, sizeof a);                                                                         \
            memcpy(&d, diff + i, sizeof d);                                                                          \
            d = (uint##bits##_t)((d >> 1) ^ (uint##bits##_t)(0 - (d & 1)));                                          \
            a = order##bits((uint##bits##_t)(order##bits(a, magnitude) + d), magnitude);                             \
            memcpy(bytes + i, &a, sizeof a);                                                                         \
        }                                                                                                            \
    }

DEFINE_WIDTH(8)
DEFINE_WIDTH(16)
DEFINE_WIDTH(32)
DEFINE_WIDTH(64)

/*
 * Returns the size in bytes of the numbers that are subtracted. For a complex type, these are its real and imaginary
 * parts.
 */
static int delta_width(enum dtype t)
{
    return dtype_size(dtype_real(t));
}

/* Returns the bits of the magnitude, which order() inverts in negative numbers. Returns 0 for integers and for bits. */
static uint64_t magnitude_bits(enum dtype t)
{
    return dtype_is_signed_magnitude(dtype_real(t)) ? UINT64_MAX >> (65 - 8 * delta_width(t)) : 0;
}

static void subtract_numbers(enum dtype t, const uint8_t *base, const uint8_t *result, uint32_t n, uint8_t *diff)
{
    const uint64_t m = magnitude_bits(t);

    switch (delta_width(t)) {
    case 1: subtract8(base, result, n, (uint8_t)m, diff); return;
    case 2: subtract16(base, result, n, (uint16_t)m, diff); return;
    case 4: subtract32(base, result, n, (uint32_t)m, diff); return;
    default: subtract64(base, result, n, m, diff); return;
    }
}

static void add_numbers(enum dtype t, const uint8_t *diff, uint32_t n, uint8_t *bytes)
{
    const uint64_t m = magnitude_bits(t);

    switch (delta_width(t)) {
    case 1: add8(diff, n, (uint8_t)m, bytes); return;
    case 2: add16(diff, n, (uint16_t)m, bytes); return;
    case 4: add32(diff, n, (uint32_t)m, bytes); return;
    default: add64(diff, n, m, bytes); return;
    }
}

/* ---- the packed block ---- */

static void split_bytes(const uint8_t *diff, uint32_t n, uint32_t width, uint8_t *split)
{
    const uint32_t each = n / width;

    for (uint32_t k = 0; k < width; k++)
        for (uint32_t i = 0; i < each; i++)
            split[k * each + i] = diff[i * width + k];
}

static void join_bytes(const uint8_t *split, uint32_t n, uint32_t width, uint8_t *diff)
{
    const uint32_t each = n / width;

    for (uint32_t k = 0; k < width; k++)
        for (uint32_t i = 0; i < each; i++)
            diff[i * width + k] = split[k * each + i];
}

/*
 * Planes are fast, but a plane needs at least one bit per number. A block that needs less than two bits per number has
 * long runs of 0, which zstd finds.
 */
static bool is_worth_zstd(uint32_t packed, uint32_t n, uint32_t width)
{
    return width > PLANES_MAX_WIDTH || packed < n / width / 4;
}

uint32_t delta_block_pack(struct delta_coder *k, enum dtype t, const uint8_t *base, const uint8_t *result, uint32_t n,
                          uint8_t *out)
{
    const uint32_t width = (uint32_t)delta_width(t);
    uint32_t len = UINT32_MAX;
    size_t whole;

    subtract_numbers(t, base, result, n, k->diff);
    if (width <= PLANES_MAX_WIDTH) {
        out[0] = BLOCK_PLANES;
        len = planes_pack(k->planes, k->diff, n, (int)width, out + 1);
    }
    if (!is_worth_zstd(len, n, width))
        return 1 + len;
    split_bytes(k->diff, n, width, k->split);
    whole = ZSTD_compressCCtx(k->pack, k->room, ZSTD_compressBound(DELTA_BLOCK), k->split, n, ZSTD_LEVEL);
    if (ZSTD_isError(whole))
        abort();                /* the output has room, so only memory can be short */
    if (whole < len) {
        out[0] = BLOCK_ZSTD;
        memcpy(out + 1, k->room, whole);
        len = (uint32_t)whole;
    }
    return 1 + len;
}

int delta_block_unpack(struct delta_coder *k, enum dtype t, const uint8_t *packed, uint32_t len, uint8_t *bytes,
                       uint32_t n)
{
    const uint32_t width = (uint32_t)delta_width(t);

    if (len < 1 || n > DELTA_BLOCK || n % width)
        return -1;
    if (packed[0] == BLOCK_PLANES && width <= PLANES_MAX_WIDTH) {
        if (planes_unpack(k->planes, packed + 1, len - 1, (int)width, k->diff, n) < 0)
            return -1;
    } else if (packed[0] == BLOCK_ZSTD) {
        if (ZSTD_decompressDCtx(k->unpack, k->split, n, packed + 1, len - 1) != n)
            return -1;
        join_bytes(k->split, n, width, k->diff);
    } else {
        return -1;
    }
    add_numbers(t, k->diff, n, bytes);
    return 0;
}
