/*
 * gemm_tiles.c - pack operands for the products of amx.h
 *
 * A step of a panel is a square of AMX_SLOTS pairs by AMX_WIDTH rows. In the operand it is stored in one of two
 * ways. Along: the pairs of each row are consecutive. Across: one line has the even numbers of all rows, and the
 * next line the odd ones. Packed panels of a are stored along; packed panels of b are stored across, with the two
 * numbers of a pair combined. Squares at an edge are copied first, with zeros after the end of the operand.
 */
#include <string.h>

#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/transpose.h"

#define SQUARE (AMX_WIDTH * AMX_SLOTS)

#ifndef __AVX512F__
ALWAYS_INLINE void transpose_16x16(uint32_t *to, int64_t step, const void *p, int64_t ld, int rows, enum form form)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 16; j++)
            memcpy(to + j * step + i, (const uint32_t *)at_t(p, i * ld, form_t(form)) + j, 4);
}
#endif

/*
 * Combine each two adjacent lines of a square that is stored across into one line of pairs. The result is
 * to[AMX_SLOTS][AMX_WIDTH].
 */
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
    /* The function treats a pair as one number of 32 bits. */
    transpose_16x16(to, AMX_SLOTS, pairs, AMX_WIDTH, 16, FORM_F32);
    transpose_16x16(to + 16 * AMX_SLOTS, AMX_SLOTS, pairs + 16, AMX_WIDTH, 16, FORM_F32);
}

ALWAYS_INLINE void square_b(uint32_t *to, const uint16_t *from, int64_t ld, bool across)
{
    if (across) {
        pair_up(to, from, ld);
        return;
    }
    transpose_16x16(to, AMX_WIDTH, from, ld, 16, FORM_PAIRS);
    transpose_16x16(to + 16, AMX_WIDTH, from + 16 * ld, ld, 16, FORM_PAIRS);
}

/* Copy the first nk numbers of the first n rows of `from`, and set the rest of the square to zero. */
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
        ld = AMX_DEPTH;                 /* equal to AMX_WIDTH */
    }
    if (is_a)
        square_a(to, from, ld, x->across);
    else
        square_b(to, from, ld, x->across);
}

/*
 * Pack all squares of a part. If the rows are stored along, they are packed panel by panel, otherwise step by step. In
 * this order, each cache line that is loaded is used completely.
 */
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
