/*
 * edit_rows.c - write the new rows of a vocabulary to a spool file, and add them to the maps of its tensors
 */
#include "libcommon/layout/edit/edit_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/ckpt/verdict.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/plan/tmap_slice.h"

static int64_t positive_int_arg(const struct pk *args, const char *key)
{
    int64_t v;

    return pk_as_int(pk_get(args, key), &v) && v > 0 && v <= INT32_MAX ? v : 0;
}

int64_t edit_rows_padded(const struct pk *args, int tp, int64_t tokens)
{
    const int64_t asked = positive_int_arg(args, "pad_vocab_size_to"),
                  by = positive_int_arg(args, "make_vocab_size_divisible_by");
    const int64_t unit = (by ? by : 128) * (tp > 0 ? tp : 1);

    return asked >= tokens ? asked : (tokens + unit - 1) / unit * unit;
}

static uint64_t row_bytes(const struct edit_new *t, enum state st)
{
    return t->shape[0] ? t->map[st]->len / (uint64_t)t->shape[0] : 0;
}

uint64_t edit_rows_bytes(const struct edit_new *t, const struct edit_rows *q)
{
    uint64_t bytes = 0;

    for (int st = 0; st < STATE_N; st++)
        if (t->map[st] && q->tokens > q->tokens_was)
            bytes += (uint64_t)(q->tokens - q->tokens_was) * row_bytes(t, (enum state)st);
    return bytes;
}

/* ---- contents of new rows ---- */

/*
 * Compute the mean of the first `rows` rows of m, which are the rows of tokens. A row has n elements. The rows are
 * summed in their order, in fp64.
 */
static int mean_row(const struct edit *x, const struct tmap *m, int64_t rows, double *mean, uint64_t n, struct err *e)
{
    const int size = dtype_size(m->dtype);
    const uint64_t bytes = n * (uint64_t)size;
    uint8_t *row = xmalloc(bytes + 1);
    int rc = 0;

    memset(mean, 0, n * sizeof *mean);
    for (int64_t r = 0; r < rows && rc == 0; r++) {
        rc = tmap_read(m, source_files(x->s), (struct tmap_range){ 0, (uint64_t)r * bytes, bytes }, row, e);
        for (uint64_t i = 0; i < n && rc == 0; i++)
            mean[i] += dtype_value(m->dtype, row + i * (uint64_t)size);
    }
    for (uint64_t i = 0; i < n; i++)
        mean[i] /= (double)rows;
    free(row);
    return rc;
}

/* Returns the next number of a splitmix64 generator. The sequence depends only on *state. */
static uint64_t draw_splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/*
 * Returns a random number with normal distribution (mean 0): a Box-Muller transform of two uniform numbers in (0, 1].
 */
static double draw_normal_value(uint64_t *state, double std)
{
    const double a = (double)((draw_splitmix64(state) >> 11) + 1) / 9007199254740992.0;
    const double b = (double)((draw_splitmix64(state) >> 11) + 1) / 9007199254740992.0;

    return std * sqrt(-2 * log(a)) * cos(2 * 3.14159265358979323846 * b);
}

static int write_rows(const struct edit *x, const struct edit_new *t, enum state st, const struct edit_rows *q,
                      struct err *e)
{
    const struct tmap *m = t->map[st], *of = st == STATE_BF16 && t->map[STATE_FP32] ? t->map[STATE_FP32] : m;
    const uint64_t bytes = row_bytes(t, st), size = (uint64_t)dtype_size(m->dtype), n = bytes / size;
    const bool moment = st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;
    double *value = xcalloc(n + 1, sizeof *value);
    uint64_t seed = crc_bytes(0, t->name, strlen(t->name));
    uint8_t *row = xmalloc(bytes + 1);
    const struct verdict_of what = { .s = x->s, .param = t->name, .what = "the table with its new rows", .map = m,
                                     .trained = true,
                                     .severity = source_accepts_mismatch(x->s) ? SEV_WARNING : SEV_ERROR };
    struct values v = {0};
    int rc = q->init == EDIT_INIT_MEAN && !moment ? mean_row(x, of, q->tokens_was, value, n, e) : 0;

    for (int64_t r = q->tokens_was; r < q->tokens && rc == 0; r++) {
        for (uint64_t i = 0; i < n; i++) {
            if (q->init == EDIT_INIT_NORMAL && !moment)
                value[i] = draw_normal_value(&seed, q->std);
            dtype_put(m->dtype, value[i], row + i * size);
        }
        values_add(&v, m->dtype, row, bytes, false);
        rc = write_all_at(q->fd, row, bytes, q->at + (uint64_t)(r - q->tokens_was) * bytes);
        if (rc < 0)
            err_sys(e, "the temporary file next to the result", "cannot write");
    }
    free(row);
    free(value);
    return rc == 0 ? verdict_check_values(&what, &v, q->notes, e) : -1;
}

/* ---- the map ---- */

/*
 * Returns a map of the rows that write_rows() has written for a tensor. In a dry run no rows were written, and the map
 * reads as zeros.
 */
static const struct tmap *written_rows(struct edit *x, enum dtype dtype, uint64_t len, struct edit_rows *q)
{
    struct tmap *m = arena_alloc(x->arena, sizeof *m);
    struct tmap_slice *slice = arena_alloc(x->arena, sizeof *slice);

    if (q->file < 0)
        return tmap_slice_zeros(x->arena, source_files(x->s), &q->zeros, dtype, len);
    *slice = (struct tmap_slice){ .len = len, .n_extents = 1, .extent = arena_alloc(x->arena, sizeof *slice->extent) };
    slice->extent->record = files_add_record(source_files(x->s), &(struct record){ .file = q->file, .at = q->at,
                                                                                   .len = len, .name = "new rows" });
    slice->extent->len = len;
    q->at += len;
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = len, .n_slices = 1, .slice = slice };
    return m;
}

/* A map that is being assembled from parts. The rows before `end` are done. */
struct growing {
    struct edit *x;
    struct edit_rows *q;
    const struct tmap *was;
    uint64_t row;                       /* size of a row in bytes */
    int64_t end;
    int n;
    struct tmap_part part[5];
};

/*
 * Append rows to the map until it has `to` rows. These are the old tensor's rows with the same indices, new rows, or
 * zeros.
 */
enum rows_of { ROWS_OLD, ROWS_NEW, ROWS_ZERO };
static void add_to(struct growing *g, int64_t to, enum rows_of of)
{
    const uint64_t len = to > g->end ? (uint64_t)(to - g->end) * g->row : 0;
    struct tmap_part *p = &g->part[g->n];

    if (len == 0)
        return;
    *p = (struct tmap_part){ .map = g->was, .at = of == ROWS_OLD ? (uint64_t)g->end * g->row : 0, .len = len };
    if (of == ROWS_NEW)
        p->map = written_rows(g->x, g->was->dtype, len, g->q);
    else if (of == ROWS_ZERO)
        p->map = tmap_slice_zeros(g->x->arena, source_files(g->x->s), &g->q->zeros, g->was->dtype, len);
    g->n++;
    g->end = to;
}

static int64_t min_row_count(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/*
 * Returns the new map of a tensor: the rows of tokens that stay, then rows of new tokens, then padding rows. A padding
 * row that was padding before keeps its values. The other padding rows are zero.
 */
static const struct tmap *make_resized_rows_map(struct edit *x, const struct tmap *m, int64_t rows_was, uint64_t row,
                                                struct edit_rows *q)
{
    struct growing g = { .x = x, .q = q, .was = m, .row = row };

    add_to(&g, min_row_count(q->tokens_was, q->tokens), ROWS_OLD);
    add_to(&g, q->tokens, ROWS_NEW);
    add_to(&g, min_row_count(q->tokens_was, q->rows), ROWS_ZERO);
    add_to(&g, min_row_count(rows_was, q->rows), ROWS_OLD);
    add_to(&g, q->rows, ROWS_ZERO);
    return tmap_parts(x->arena, g.part, g.n);
}

int edit_rows_set(struct edit *x, struct edit_new *t, struct edit_rows *q, struct err *e)
{
    const struct tmap *to[STATE_N] = {0};

    for (int st = 0; st < STATE_N; st++) {
        const uint64_t row = t->map[st] ? row_bytes(t, (enum state)st) : 0;

        if (!t->map[st])
            continue;
        if (row == 0 || !dtype_is_float(t->map[st]->dtype)) {
            err_usage(e, "%s has no rows of floating-point numbers, so their number cannot be changed", t->name);
            return -1;
        }
        if (q->fd >= 0 && q->tokens > q->tokens_was && write_rows(x, t, (enum state)st, q, e) < 0)
            return -1;
        to[st] = make_resized_rows_map(x, t->map[st], t->shape[0], row, q);
    }
    memcpy(t->map, to, sizeof to);
    t->kept = min_row_count(q->tokens_was, q->tokens);
    t->shape[0] = q->rows;
    return 0;
}
