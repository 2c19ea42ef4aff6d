/*
 * checkpoint_transpose.c - transpose columns into rows
 *
 * A chunk is a part of some columns of the stored matrix, row by row. For each column of the chunk, its elements are
 * copied to consecutive places in one row of the result. This reads only every cols-th element of the chunk at a time,
 * but the chunk is small enough to stay in the cache.
 */
#include "tools/train/checkpoint/checkpoint_transpose.h"

#include <string.h>

static int64_t min_columns(int64_t a, int64_t b) { return a < b ? a : b; }

int transpose_columns(const struct transpose_slice *s, int64_t from, int64_t n, struct transpose_part t[TRANSPOSE_MOST])
{
    const int64_t lanes = s->heads ? s->rows / (3 * s->heads) : 1, unit = s->heads ? 3 * lanes : 1;
    const int64_t first = from / s->in / unit, end = (from + n - 1) / s->in / unit + 1;         /* heads, or rows */

    if (!s->heads) {
        t[0] = (struct transpose_part){ .in = s->in, .at = s->first + first, .cols = end - first, .first = first,
                                        .run = 1, .step = 1, .from = from, .n = n };
        return 1;
    }
    for (int kind = 0; kind < 3; kind++)
        t[kind] = (struct transpose_part){ .in = s->in, .at = kind * (s->whole / 3) + s->first / 3 + first * lanes,
                                           .cols = (end - first) * lanes, .first = first * unit + kind * lanes,
                                           .run = lanes, .step = unit, .from = from, .n = n };
    return 3;
}

/* Copy `n` elements that are `stride` elements apart to consecutive places. */
static void copy_strided_run(char *dst, const char *src, int64_t n, int64_t stride, const struct transpose_chunk *c)
{
    const int64_t size = dtype_size(c->type);

    for (int64_t i = 0; i < n; i++, src += stride * size) {
        if (c->widen) {
            const float x = (float)dtype_value(c->type, src);

            memcpy(dst + i * (int64_t)sizeof x, &x, sizeof x);
        } else if (size == 2) {
            memcpy(dst + i * 2, src, 2);
        } else {
            memcpy(dst + i * 4, src, 4);
        }
    }
}

/* A block of the chunk: rows row .. row + n of the columns col .. end. `src` is the address of its first element. */
struct transpose_block {
    int64_t row, n, col, end;
    const char *src;
};

static void put_block(const struct transpose_part *t, const struct transpose_block *b, const struct transpose_chunk *c,
                      char *dst)
{
    const int64_t size = dtype_size(c->type), to = c->widen ? (int64_t)sizeof(float) : size;

    for (int64_t col = b->col; col < b->end; col++) {
        const int64_t place = (t->first + col / t->run * t->step + col % t->run) * t->in + b->row - t->from;
        const int64_t skip = place < 0 ? -place : 0, n = min_columns(b->n, t->n - place);

        if (skip < n)
            copy_strided_run(dst + (place + skip) * to, b->src + (skip * t->cols + col - b->col) * size, n - skip,
                             t->cols, c);
    }
}

void transpose_put(const struct transpose_part *t, const struct transpose_chunk *c, char *dst)
{
    const int64_t size = dtype_size(c->type), end = c->at + c->n;

    /*
     * The chunk may begin and end within a row. Process the rest of its first row, then its whole rows, then the part
     * of its last row.
     */
    for (int64_t at = c->at; at < end;) {
        struct transpose_block b = { .row = at / t->cols, .n = 1, .col = at % t->cols, .end = t->cols,
                                .src = (const char *)c->bytes + (at - c->at) * size };

        if (b.col == 0 && end - at >= t->cols)
            b.n = (end - at) / t->cols;
        else
            b.end = min_columns(t->cols, b.col + end - at);
        put_block(t, &b, c, dst);
        at += b.n * (b.end - b.col);
    }
}
