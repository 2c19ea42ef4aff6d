/*
 * tiles.c - packing for amx.h, see tiles.h
 *
 * A step of a panel is a square of AMX_SLOTS pairs by AMX_WIDTH rows. It lies in the operand either along, a row's
 * pairs after each other, or across, the even numbers of all rows in one line and the odd ones in the next; it is
 * wanted along for a, and for b across with the pairs put together. Squares at an edge are copied first, with
 * zeros where the operand ends.
 */
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <string.h>

#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vmath.h"

#define SQUARE (AMX_WIDTH * AMX_SLOTS)

/* to [16, to_ld] = from [16, ld], turned; both of pairs */
#ifdef __AVX512F__
ALWAYS_INLINE void turn_16x16(uint32_t *to, int64_t to_ld, const void *from, int64_t ld_bytes)
{
    __m512i r[16], t[16];

    #pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_si512((const char *)from + i * ld_bytes);
    #pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    /* r[4 i + j]: column j of each 128 bits, rows 4 i .. 4 i + 3 */
    #pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    #pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i x0 = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), x1 = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
        __m512i x2 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        __m512i x3 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);

        _mm512_storeu_si512(to + j * to_ld, _mm512_shuffle_i32x4(x0, x2, 0x88));
        _mm512_storeu_si512(to + (4 + j) * to_ld, _mm512_shuffle_i32x4(x1, x3, 0x88));
        _mm512_storeu_si512(to + (8 + j) * to_ld, _mm512_shuffle_i32x4(x0, x2, 0xdd));
        _mm512_storeu_si512(to + (12 + j) * to_ld, _mm512_shuffle_i32x4(x1, x3, 0xdd));
    }
}
#else
ALWAYS_INLINE void turn_16x16(uint32_t *to, int64_t to_ld, const void *from, int64_t ld_bytes)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            memcpy(to + j * to_ld + i, (const char *)from + i * ld_bytes + 4 * j, 4);
}
#endif

/* [AMX_SLOTS][AMX_WIDTH] pairs of lines that lie across */
ALWAYS_INLINE void pair_up(uint32_t *to, const uint16_t *from, int64_t ld)
{
    for (int s = 0; s < AMX_SLOTS; s++)
        for (int i = 0; i < AMX_WIDTH; i++)
            to[s * AMX_WIDTH + i] = from[2 * s * ld + i] | (uint32_t)from[(2 * s + 1) * ld + i] << 16;
}

ALWAYS_INLINE void square_a(uint32_t *to, const uint16_t *from, int64_t ld, bool across)
{
    uint32_t pairs[SQUARE];

    if (!across) {
        for (int i = 0; i < AMX_WIDTH; i++)
            memcpy(to + i * AMX_SLOTS, from + i * ld, 4 * AMX_SLOTS);
        return;
    }
    pair_up(pairs, from, ld);
    turn_16x16(to, AMX_SLOTS, pairs, 4 * AMX_WIDTH);
    turn_16x16(to + 16 * AMX_SLOTS, AMX_SLOTS, pairs + 16, 4 * AMX_WIDTH);
}

ALWAYS_INLINE void square_b(uint32_t *to, const uint16_t *from, int64_t ld, bool across)
{
    if (across) {
        pair_up(to, from, ld);
        return;
    }
    turn_16x16(to, AMX_WIDTH, from, 2 * ld);
    turn_16x16(to + 16, AMX_WIDTH, from + 16 * ld, 2 * ld);
}

/* n rows and nk numbers of `from`, the rest zeros */
ALWAYS_INLINE void edge_copy(uint16_t to[AMX_WIDTH * AMX_DEPTH], const uint16_t *from, const struct operand *x,
                             int64_t n, int64_t nk)
{
    int64_t lines = x->across ? nk : n, len = x->across ? n : nk;

    memset(to, 0, 2 * AMX_WIDTH * AMX_DEPTH);
    for (int64_t i = 0; i < lines; i++)
        memcpy(to + i * AMX_DEPTH, from + i * x->ld, 2 * (size_t)len);
}

ALWAYS_INLINE void square(uint32_t *to, const struct operand *x, struct operand_part p, bool is_a)
{
    const uint16_t *from = (const uint16_t *)x->p + (x->across ? p.k0 * x->ld + p.i0 : p.i0 * x->ld + p.k0);
    int64_t ld = x->ld;
    uint16_t edge[AMX_WIDTH * AMX_DEPTH];

    if (p.n < AMX_WIDTH || p.nk < AMX_DEPTH) {
        edge_copy(edge, from, x, min_i64(p.n, AMX_WIDTH), min_i64(p.nk, AMX_DEPTH));
        from = edge;
        ld = AMX_DEPTH;                 /* which is AMX_WIDTH as well */
    }
    if (is_a)
        square_a(to, from, ld, x->across);
    else
        square_b(to, from, ld, x->across);
}

/* Lines of memory are used up when they come: panel after panel when rows lie along, else step after step. */
ALWAYS_INLINE void pack(uint32_t *to, const struct operand *x, struct operand_part part, bool is_a)
{
    int64_t steps = (part.nk + AMX_DEPTH - 1) / AMX_DEPTH, panels = (part.n + AMX_WIDTH - 1) / AMX_WIDTH;

    for (int64_t at = 0; at < steps * panels; at++) {
        int64_t p = x->across ? at % panels : at / steps, s = x->across ? at / panels : at % steps;
        struct operand_part rest = {
            part.i0 + p * AMX_WIDTH, part.n - p * AMX_WIDTH, part.k0 + s * AMX_DEPTH, part.nk - s * AMX_DEPTH,
        };

        square(to + (p * steps + s) * SQUARE, x, rest, is_a);
    }
}

void tiles_pack_a(uint32_t *panels, const struct operand *x, struct operand_part part)
{
    pack(panels, x, part, true);
}

void tiles_pack_b(uint32_t *panels, const struct operand *x, struct operand_part part)
{
    pack(panels, x, part, false);
}
