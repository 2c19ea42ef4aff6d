/*
 * edit_rows.c - new rows are computed into a spool, and stand behind the old ones in the tensor's map
 */
#include "libcommon/layout/edit/edit_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/plan/tmap_slice.h"

static uint64_t row_bytes(const struct edit_new *t, enum state st)
{
    return t->shape[0] ? t->map[st]->len / (uint64_t)t->shape[0] : 0;
}

uint64_t edit_rows_bytes(const struct edit_new *t, int64_t rows)
{
    uint64_t bytes = 0;

    for (int st = 0; st < STATE_N; st++)
        if (t->map[st] && rows > t->shape[0])
            bytes += (uint64_t)(rows - t->shape[0]) * row_bytes(t, (enum state)st);
    return bytes;
}

/* ---- what a row holds ---- */

/* The sum of all rows, in their order, in fp64, by their number: one row. */
static int mean_row(const struct edit *x, const struct tmap *m, int64_t rows, double *mean, struct err *e)
{
    const int size = dtype_size(m->dtype);
    const uint64_t bytes = m->len / (uint64_t)rows, n = bytes / (uint64_t)size;
    uint8_t *row = xmalloc(bytes);
    int rc = 0;

    memset(mean, 0, n * sizeof *mean);
    for (int64_t r = 0; r < rows && rc == 0; r++) {
        rc = tmap_read(m, x->s->files, (struct tmap_range){ 0, (uint64_t)r * bytes, bytes }, row, e);
        for (uint64_t i = 0; i < n && rc == 0; i++)
            mean[i] += dtype_value(m->dtype, row + i * (uint64_t)size);
    }
    for (uint64_t i = 0; i < n; i++)
        mean[i] /= (double)rows;
    free(row);
    return rc;
}

/* splitmix64: a number decides the next, whatever else is drawn. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Box and Muller's: of two even numbers in (0, 1]. */
static double normal(uint64_t *state, double std)
{
    const double a = (double)((draw(state) >> 11) + 1) / 9007199254740992.0;
    const double b = (double)((draw(state) >> 11) + 1) / 9007199254740992.0;

    return std * sqrt(-2 * log(a)) * cos(2 * 3.14159265358979323846 * b);
}

static int write_rows(const struct edit *x, const struct edit_new *t, enum state st, const struct edit_rows *q,
                      struct err *e)
{
    const struct tmap *m = t->map[st];
    const uint64_t bytes = row_bytes(t, st), size = (uint64_t)dtype_size(m->dtype), n = bytes / size;
    const bool moment = st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;
    double *value = xcalloc(n + 1, sizeof *value);
    uint64_t seed = crc_bytes(0, t->name, strlen(t->name));
    uint8_t *row = xmalloc(bytes + 1);
    int rc = q->init == EDIT_INIT_MEAN && !moment ? mean_row(x, m, t->shape[0], value, e) : 0;

    for (int64_t r = t->shape[0]; r < q->rows && rc == 0; r++) {
        for (uint64_t i = 0; i < n; i++) {
            if (q->init == EDIT_INIT_NORMAL && !moment)
                value[i] = normal(&seed, q->std);
            dtype_put(m->dtype, value[i], row + i * size);
        }
        rc = write_all_at(q->fd, row, bytes, q->at + (uint64_t)(r - t->shape[0]) * bytes);
        if (rc < 0)
            err_sys(e, "the spool file beside the result", "cannot write");
    }
    free(row);
    free(value);
    return rc;
}

/* ---- the map ---- */

static const struct tmap *map_of(struct edit *x, const struct tmap *was, const struct extent *part, int n)
{
    struct tmap *m = arena_alloc(x->arena, sizeof *m);
    struct tmap_slice *slice = arena_alloc(x->arena, sizeof *slice);

    *slice = (struct tmap_slice){ .n_extents = n, .extent = arena_alloc(x->arena, (size_t)n * sizeof *part) };
    memcpy(slice->extent, part, (size_t)n * sizeof *part);
    for (int i = 0; i < n; i++)
        slice->len += part[i].len;
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = was->dtype, .len = slice->len, .n_slices = 1, .slice = slice };
    return m;
}

/* The old ones and what was written behind them. */
static const struct tmap *longer(struct edit *x, const struct tmap *m, uint64_t more, const struct edit_rows *q)
{
    struct extent part[2] = { m->slice->extent[0], { .len = more } };
    int zeros = -1;

    if (q->file < 0)                    /* nothing will be read: any bytes do */
        return tmap_slice_zeros(x->arena, x->s->files, &zeros, m->dtype, m->len + more);
    part[1].record = files_add_record(x->s->files, &(struct record){ .file = q->file, .at = q->at, .len = more,
                                                                     .name = "new rows" });
    return map_of(x, m, part, 2);
}

static int set_state(struct edit *x, struct edit_new *t, enum state st, struct edit_rows *q, struct err *e)
{
    const struct tmap *m = t->map[st];
    const uint64_t row = row_bytes(t, st);
    struct extent part;

    if (m->op != TMAP_CONCAT || m->n_slices != 1 || m->slice->n_extents != 1 || row == 0 ||
        !dtype_is_float(m->dtype)) {
        err_usage(e, "%s lies in pieces, or has no rows of floating point: their number cannot be changed", t->name);
        return -1;
    }
    part = m->slice->extent[0];
    if (q->rows < t->shape[0]) {
        part.len = (uint64_t)q->rows * row;
        t->map[st] = map_of(x, m, &part, 1);
    } else if (q->rows > t->shape[0]) {
        const uint64_t more = (uint64_t)(q->rows - t->shape[0]) * row;

        if (q->fd >= 0 && write_rows(x, t, st, q, e) < 0)
            return -1;
        t->map[st] = longer(x, m, more, q);
        q->at += more;
    }
    return 0;
}

int edit_rows_set(struct edit *x, struct edit_new *t, struct edit_rows *q, struct err *e)
{
    for (int st = 0; st < STATE_N; st++)
        if (t->map[st] && set_state(x, t, (enum state)st, q, e) < 0)
            return -1;
    t->shape[0] = q->rows;
    return 0;
}
