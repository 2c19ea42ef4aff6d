/*
 * tmap_slice.c - build maps of some rows or columns of a mapped tensor
 */
#include "libcommon/plan/tmap_slice.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/*
 * The rows of the tensor have `row` bytes. Set *to to the part of slice `from` that is in bytes [at, at+len) of each
 * row.
 */
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

/* Join all slices of a concatenation into one slice, because a row may extend over several slices. */
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

/*
 * Cut columns out of an interleaved map whose row consists of one row of the matrix from each slice. Each slice is cut
 * in the same way.
 */
static void cut_alternating(const struct tmap *m, uint64_t row, uint64_t at, uint64_t len, struct tmap *to)
{
    for (int k = 0; k < m->n_slices; k++) {
        assert(m->slice[k].row_part == row);
        cut_columns(&m->slice[k], m->slice[k].len / row, row, at, len, &to->slice[k]);
    }
    to->row = len * (uint64_t)m->n_slices;
}

/* Cut the slices of an interleaved map that are partly or completely in bytes [at, at+len) of each row. */
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

/* The runs of bytes of the result, with their offsets in the result. */
struct row_runs {
    struct row_run {
        uint64_t dst;
        struct extent x;
    } *run;
    size_t n, cap;
    uint64_t base;              /* offset in the result of the part that is being cut */
};

static int add_runs(void *ctx, const struct tmap_piece *p)
{
    struct row_runs *r = ctx;

    for (uint64_t i = 0; i < p->n; i++) {
        struct extent x = { p->src.record, p->src.at + i * p->run, p->run };

        ARRAY_ROOM(r->run, r->cap, r->n + 1);
        r->run[r->n++] = (struct row_run){ r->base + p->dst + i * p->stride, x };
    }
    return 0;
}

static int by_dst(const void *a, const void *b)
{
    const struct row_run *x = a, *y = b;

    return x->dst < y->dst ? -1 : x->dst > y->dst;
}

/* Sort the runs by offset, and make them the extents of the slice. Frees the runs. */
static void store_row_runs(struct arena *a, struct row_runs *r, struct tmap_slice *s)
{
    if (r->n)
        qsort(r->run, r->n, sizeof *r->run, by_dst);
    s->extent = arena_alloc(a, (r->n + 1) * sizeof *s->extent);
    for (size_t i = 0; i < r->n; i++) {
        struct extent *last = s->n_extents ? &s->extent[s->n_extents - 1] : NULL;

        if (last && last->record == r->run[i].x.record && last->at + last->len == r->run[i].x.at)
            last->len += r->run[i].x.len;
        else
            s->extent[s->n_extents++] = r->run[i].x;
    }
    free(r->run);
}

/*
 * Cut columns out of a map of boxes. The cut may be at any position in a box, so each run of each row becomes one
 * extent.
 */
static void cut_boxes(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, struct tmap *to)
{
    struct row_runs all = {0};
    uint64_t rows = m->len / row, len = to->len / rows;

    for (uint64_t i = 0; i < rows; i++, all.base += len)
        tmap_gather(m, i * row + at, len, -1, add_runs, &all);
    *to->slice = (struct tmap_slice){ .len = to->len };
    store_row_runs(a, &all, to->slice);
    to->op = TMAP_CONCAT;
    to->n_slices = 1;
}

struct tmap *tmap_slice_columns(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, uint64_t len)
{
    struct tmap *to = arena_alloc(a, sizeof *to);
    uint64_t rows = m->len / row;

    assert(m->len % row == 0 && at + len <= row);
    assert(m->op != TMAP_INTERLEAVE || m->row == row || m->row == row * (uint64_t)m->n_slices);
    *to = (struct tmap){ .op = m->op, .dtype = m->dtype, .len = rows * len, .n_slices = m->n_slices };
    to->slice = arena_alloc(a, ((size_t)m->n_slices + 1) * sizeof *to->slice);
    switch (m->op) {
    case TMAP_INTERLEAVE:
        if (m->row == row)
            cut_interleaved(m, rows, at, len, to);
        else
            cut_alternating(m, row, at, len, to);
        break;
    case TMAP_REPLICAS: case TMAP_SUM:
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

/* ---- parts ---- */

void tmap_slice_cut(struct arena *a, const struct tmap_slice *from, uint64_t at, uint64_t len, struct tmap_slice *to)
{
    *to = *from;
    to->len = len;
    to->n_extents = 0;
    to->extent = arena_alloc(a, ((size_t)from->n_extents + 1) * sizeof *to->extent);
    for (int i = 0; i < from->n_extents && len; i++) {
        struct extent x = from->extent[i];

        if (at >= x.len) {
            at -= x.len;
            continue;
        }
        x.at += at;
        x.len = min_u64(x.len - at, len);
        at = 0;
        len -= x.len;
        to->extent[to->n_extents++] = x;
    }
}

/* Cut steps [at, at+len) of the outermost level out of a box. Returns false if the box contains none of these steps. */
static bool cut_box(struct arena *a, const struct tmap_slice *from, uint64_t at, uint64_t len, struct tmap_slice *to)
{
    const struct tmap_level *top = &from->box->level[0];
    uint64_t first = max_u64(top->at, at / top->stride);
    uint64_t end = min_u64(top->at + top->len, (at + len) / top->stride);
    struct tmap_box *b;

    if (first >= end)
        return false;
    tmap_slice_cut(a, from, (first - top->at) * top->inside, (end - first) * top->inside, to);
    b = arena_alloc(a, sizeof *b);
    *b = *from->box;
    b->level[0].at = first - at / top->stride;
    b->level[0].len = end - first;
    to->box = b;
    return true;
}

/* Returns true if the range can be cut out of each slice without changing the structure of the slice. */
static bool cuts_cleanly(const struct tmap_part *p)
{
    const struct tmap *m = p->map;

    for (int k = 0; k < m->n_slices; k++) {
        uint64_t step = m->op == TMAP_BOXES ? m->slice[k].box->level[0].stride : m->op == TMAP_INTERLEAVE ? m->row : 1;

        if (m->slice[k].window_row || p->at % step || p->len % step)
            return false;
    }
    return true;
}

static struct tmap *cut_map(struct arena *a, const struct tmap_part *p)
{
    const struct tmap *m = p->map;
    struct tmap *to = arena_alloc(a, sizeof *to);
    uint64_t begin = 0;

    *to = *m;
    to->len = p->len;
    to->n_slices = 0;
    to->slice = arena_alloc(a, ((size_t)m->n_slices + 1) * sizeof *to->slice);
    for (int k = 0; k < m->n_slices; begin += m->slice[k++].len) {
        const struct tmap_slice *s = &m->slice[k];
        struct tmap_slice *out = &to->slice[to->n_slices];
        uint64_t first = max_u64(p->at, begin), end = min_u64(p->at + p->len, begin + s->len);

        if (m->op == TMAP_BOXES)
            to->n_slices += cut_box(a, s, p->at, p->len, out);
        else if (m->op == TMAP_CONCAT && first < end)
            tmap_slice_cut(a, s, first - begin, end - first, &to->slice[to->n_slices++]);
        else if (tmap_overlays(m))
            tmap_slice_cut(a, s, p->at, p->len, &to->slice[to->n_slices++]);
        else if (m->op == TMAP_INTERLEAVE)
            tmap_slice_cut(a, s, p->at / m->row * s->row_part, p->len / m->row * s->row_part,
                           &to->slice[to->n_slices++]);
    }
    return to;
}

struct tmap *tmap_parts(struct arena *a, const struct tmap_part *part, int n)
{
    struct row_runs all = {0};
    struct tmap *to;

    if (n == 1 && cuts_cleanly(part))
        return cut_map(a, part);
    /* If the map has copies that should agree, only one copy is used, because the caller has already compared them. */
    for (int i = 0; i < n; i++) {
        assert(part[i].map->op != TMAP_SUM || part[i].map->n_slices == 1);     /* the sum is not in any single slice */
        tmap_gather(part[i].map, part[i].at, part[i].len, part[i].map->op == TMAP_REPLICAS ? 0 : -1, add_runs, &all);
        all.base += part[i].len;
    }
    to = arena_alloc(a, sizeof *to);
    *to = (struct tmap){ .op = TMAP_CONCAT, .dtype = part->map->dtype, .len = all.base, .n_slices = 1 };
    to->slice = arena_alloc(a, sizeof *to->slice);
    to->slice->len = all.base;
    store_row_runs(a, &all, to->slice);
    return to;
}

struct tmap *tmap_alternate_rows(struct arena *a, const struct tmap *x, const struct tmap *y, uint64_t row)
{
    const struct tmap *from[] = { x, y };
    struct tmap *to = arena_alloc(a, sizeof *to);

    *to = (struct tmap){ .op = TMAP_INTERLEAVE, .dtype = x->dtype, .len = x->len + y->len, .row = 2 * row,
                         .n_slices = 2 };
    assert(x->len == y->len && x->len % row == 0);
    to->slice = arena_alloc(a, 2 * sizeof *to->slice);
    for (int i = 0; i < 2; i++) {
        const struct tmap *m = from[i];

        if (m->op != TMAP_CONCAT || (m->n_slices > 1 && m->slice->window_row))
            m = tmap_parts(a, (struct tmap_part[]){ { m, 0, m->len }, { m, m->len, 0 } }, 2);
        to->slice[i] = join_slices(a, m);
        to->slice[i].row_part = row;
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

struct tmap *tmap_slice_record(struct arena *a, int record, enum dtype dtype, uint64_t len)
{
    struct tmap *m = arena_alloc(a, sizeof *m);
    struct tmap_slice *s = arena_alloc(a, sizeof *s);

    *s = (struct tmap_slice){ .len = len, .n_extents = 1, .extent = arena_alloc(a, sizeof *s->extent) };
    *s->extent = (struct extent){ .record = record, .len = len };
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = len, .n_slices = 1, .slice = s };
    return m;
}

struct tensor_runs tensor_runs_of(uint64_t elem, int ndim, const int64_t *shape, const int64_t *at, const int64_t *len)
{
    struct tensor_runs r = { .ndim = ndim, .outer = ndim, .run = elem, .n = 1, .at = at, .len = len };

    r.stride[ndim] = elem;
    for (int d = ndim - 1; d >= 0; d--)
        r.stride[d] = r.stride[d + 1] * (uint64_t)shape[d];
    /* this dimension is taken completely, so a run extends over it */
    while (r.outer > 0 && len[r.outer - 1] == shape[r.outer - 1])
        r.outer--;
    r.outer = r.outer > 0 ? r.outer - 1 : 0;
    for (int d = 0; d < ndim; d++)
        *(d < r.outer ? &r.n : &r.run) *= (uint64_t)len[d];
    return r;
}

uint64_t tensor_runs_place(const struct tensor_runs *r, uint64_t k)
{
    uint64_t place = r->outer < r->ndim ? (uint64_t)r->at[r->outer] * r->stride[r->outer + 1] : 0;

    for (int d = r->outer - 1; d >= 0; k /= (uint64_t)r->len[d--])
        place += ((uint64_t)r->at[d] + k % (uint64_t)r->len[d]) * r->stride[d + 1];
    return place;
}
