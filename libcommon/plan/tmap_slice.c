/*
 * tmap_slice.c - rows or columns of a map as a map
 */
#include "libcommon/plan/tmap_slice.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The part of slice `from` in columns [at, at+len) of its own rows of `row` bytes. */
static void cut_columns(const struct tmap_slice *from, uint64_t rows, uint64_t row, uint64_t at, uint64_t len,
                        struct tmap_slice *to)
{
    assert(from->window_row == 0 && at + len <= row);
    *to = *from;
    to->len = rows * len;
    to->row_part = len;
    if (len == row)
        return;
    to->window_row = row;
    to->window_at = at;
    to->window_len = len;
}

/* All slices of a concatenation as one: rows may lie across their borders. */
static struct tmap_slice join_slices(struct arena *a, const struct tmap *m)
{
    struct tmap_slice all = { .len = m->len };
    int n = 0;

    if (m->n_slices == 1)
        return m->slice[0];
    for (int k = 0; k < m->n_slices; k++)
        n += m->slice[k].n_extents;
    all.extent = arena_alloc(a, (size_t)n * sizeof *all.extent);
    for (int k = 0; k < m->n_slices; k++) {
        memcpy(all.extent + all.n_extents, m->slice[k].extent,
               (size_t)m->slice[k].n_extents * sizeof *all.extent);
        all.n_extents += m->slice[k].n_extents;
    }
    return all;
}

/* The slices of an interleaved map that reach into columns [at, at+len). */
static void cut_interleaved(const struct tmap *m, uint64_t rows, uint64_t at, uint64_t len, struct tmap *to)
{
    uint64_t column = 0;

    to->op = TMAP_INTERLEAVE;
    to->row = len;
    to->n_slices = 0;
    for (int k = 0; k < m->n_slices; k++) {
        uint64_t part = m->slice[k].row_part, first = max_u64(at, column), end = min_u64(at + len, column + part);

        if (first < end)
            cut_columns(&m->slice[k], rows, part, first - column, end - first, &to->slice[to->n_slices++]);
        column += part;
    }
    if (to->n_slices > 1)
        return;
    to->op = TMAP_CONCAT;
    to->row = to->slice[0].row_part = 0;
}

/* What a row takes out of boxes, run by run. */
struct row_runs {
    struct row_run {
        uint64_t dst;
        struct extent x;
    } *run;
    size_t n, cap;
};

static int add_runs(void *ctx, const struct tmap_piece *p)
{
    struct row_runs *r = ctx;

    for (uint64_t i = 0; i < p->n; i++) {
        struct extent x = { p->src.record, p->src.at + i * p->run, p->run };

        ARRAY_ROOM(r->run, r->cap, r->n + 1);
        r->run[r->n++] = (struct row_run){ p->dst + i * p->stride, x };
    }
    return 0;
}

static int by_dst(const void *a, const void *b)
{
    const struct row_run *x = a, *y = b;

    return x->dst < y->dst ? -1 : x->dst > y->dst;
}

/* Boxes may be cut anywhere: an extent for each run of each row. */
static void cut_boxes(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, struct tmap *to)
{
    struct row_runs all = {0};
    struct tmap_slice *s = to->slice;

    for (uint64_t i = 0; i < m->len / row; i++) {
        size_t first = all.n;

        tmap_gather(m, i * row + at, to->len / (m->len / row), -1, add_runs, &all);
        if (all.n > first)
            qsort(all.run + first, all.n - first, sizeof *all.run, by_dst);
    }
    *s = (struct tmap_slice){ .len = to->len, .n_extents = (int)all.n };
    s->extent = arena_alloc(a, (all.n + 1) * sizeof *s->extent);
    for (size_t i = 0; i < all.n; i++)
        s->extent[i] = all.run[i].x;
    free(all.run);
    to->op = TMAP_CONCAT;
    to->n_slices = 1;
}

struct tmap *tmap_slice_columns(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, uint64_t len)
{
    struct tmap *to = arena_alloc(a, sizeof *to);
    uint64_t rows = m->len / row;

    assert(m->len % row == 0 && at + len <= row && (m->op != TMAP_INTERLEAVE || m->row == row));
    *to = (struct tmap){ .op = m->op, .dtype = m->dtype, .len = rows * len, .n_slices = m->n_slices };
    to->slice = arena_alloc(a, ((size_t)m->n_slices + 1) * sizeof *to->slice);
    switch (m->op) {
    case TMAP_INTERLEAVE:
        cut_interleaved(m, rows, at, len, to);
        break;
    case TMAP_REPLICAS:
        for (int k = 0; k < m->n_slices; k++)
            cut_columns(&m->slice[k], rows, row, at, len, &to->slice[k]);
        break;
    case TMAP_BOXES:
        cut_boxes(a, m, row, at, to);
        break;
    case TMAP_CONCAT: {
        struct tmap_slice all = join_slices(a, m);

        to->n_slices = 1;
        cut_columns(&all, rows, row, at, len, &to->slice[0]);
        break;
    }
    }
    return to;
}

/* ---- zeros ---- */

enum { ZERO_BYTES = 64 << 10 };

struct tmap *tmap_slice_zeros(struct arena *a, struct files *f, int *record, enum dtype dtype, uint64_t len)
{
    static const uint8_t zeros[ZERO_BYTES];
    struct tmap *m = arena_alloc(a, sizeof *m);
    struct tmap_slice *s = arena_alloc(a, sizeof *s);

    if (*record < 0)
        *record = files_add_record(f, &(struct record){ .file = files_add_mem(f, zeros, sizeof zeros, "zeros"),
                                                        .len = sizeof zeros, .name = "zeros" });
    *s = (struct tmap_slice){ .len = len, .n_extents = (int)((len + ZERO_BYTES - 1) / ZERO_BYTES) };
    s->extent = arena_alloc(a, (size_t)s->n_extents * sizeof *s->extent);
    for (int i = 0; i < s->n_extents; i++)
        s->extent[i] = (struct extent){ *record, 0, min_u64(ZERO_BYTES, len - (uint64_t)i * ZERO_BYTES) };
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = len, .n_slices = 1, .slice = s };
    return m;
}
