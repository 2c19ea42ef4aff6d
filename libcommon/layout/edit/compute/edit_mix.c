/*
 * edit_mix.c - list the states to mix, and compute their weighted sums
 */
#include "libcommon/layout/edit/compute/edit_mix.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/compute/edit_compute.h"
#include "libcommon/plan/reader.h"
#include "libcommon/plan/stats.h"

enum { AT_A_TIME = 1 << 16 };           /* number of elements in a block */

/* ---- the list of states ---- */

static bool is_mixed_weight_state(enum state st)
{
    return st == STATE_BF16 || st == STATE_FP32;
}

static bool is_mixed(const struct source *s, const struct edit_mix *m, const struct param *p, enum state st)
{
    return p->state[st] && dtype_is_float(p->state[st]->dtype) &&
           (is_mixed_weight_state(st) || m->moments) && !edit_second_name(s, p, st);
}

static int refuse_mixed_shape(const struct param *p, const struct source *s, const struct param *q,
                              const struct source *t, struct err *e)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];

    err_usage(e, "%s has shape %s in %s, but %s in %s", p->name, shape_text(p->ndim, p->shape, a), s->path,
              shape_text(q->ndim, q->shape, b), t->path);
    return -1;
}

/*
 * Returns the state from which the new state `st` of p is computed. For 16-bit weights this is STATE_FP32, if there is
 * an fp32 master weight.
 */
static enum state mixed_from(const struct param *p, enum state st)
{
    return st == STATE_BF16 && p->state[STATE_FP32] ? STATE_FP32 : st;
}

/* Check that checkpoint `t` has the parameter c->p of `s` in the same shape, with the state that is needed. */
static int check_pair(const struct source *s, const struct edit_computed *c, const struct source *t, struct err *e)
{
    const struct param *p = c->p, *q = source_param(t, p->name);
    const enum state from = mixed_from(p, c->state);

    if (!q) {
        err_usage(e, "%s: has no %s, which is in %s", t->path, p->name, s->path);
        return -1;
    }
    if (!shape_equal(q->ndim, q->shape, p->ndim, p->shape))
        return refuse_mixed_shape(p, s, q, t, e);
    if (!q->state[from] || !dtype_is_float(q->state[from]->dtype)) {
        err_usage(e, "%s: has no %s of %s, which is in %s", t->path, state_name(from), p->name, s->path);
        return -1;
    }
    return 0;
}

/* Check that `s` has all parameters of checkpoint `t`; otherwise the mix would silently lose some. */
static int check_mixed_param_names(const struct source *s, const struct source *t, struct err *e)
{
    for (int i = 0; i < t->n_params; i++)
        if (!source_param(s, t->param[i].name)) {
            err_usage(e, "%s: has no %s, which is in %s", s->path, t->param[i].name, t->path);
            return -1;
        }
    return 0;
}

/* Returns 1 if two tensors have the same bytes, 0 if not. Returns -1 if one of the two cannot be read. */
static int compare_tensor_bytes(const struct tmap *a, struct files *a_files, const struct tmap *b,
                                struct files *b_files, struct err *e)
{
    enum { BLOCK = 1 << 20 };
    struct reader *ra, *rb;
    uint8_t *buf;
    int same = a->len == b->len && a->dtype == b->dtype;

    if (!same)
        return 0;
    ra = reader_new(a, a_files, REPLICAS_FIRST, 0, a->len);
    rb = reader_new(b, b_files, REPLICAS_FIRST, 0, b->len);
    buf = xmalloc(2 * BLOCK);
    for (uint64_t at = 0, n; at < a->len && same == 1; at += n) {
        n = min_u64(BLOCK, a->len - at);
        if (reader_read(ra, at, n, buf, e) < 0 || reader_read(rb, at, n, buf + BLOCK, e) < 0)
            same = -1;
        else if (memcmp(buf, buf + BLOCK, n) != 0)
            same = 0;
    }
    reader_free(ra);
    reader_free(rb);
    free(buf);
    return same;
}

/*
 * Check weights of types that cannot be averaged: they must be equal in all checkpoints. The first checkpoint's are
 * kept.
 */
static int check_kept(const struct source *s, const struct edit_mix *m, const struct param *p, enum state st,
                      struct err *e)
{
    const struct tmap *a = p->state[st];

    for (int k = 1; k < m->n; k++) {
        const struct source *t = m->part[k].s;
        const struct param *q = source_param(t, p->name);
        const int same = q && q->state[st] ? compare_tensor_bytes(a, s->files, q->state[st], t->files, e) : 0;

        if (same == 0)
            err_usage(e, "%s has type %s, which cannot be averaged, and its values in %s and %s differ", p->name,
                      dtype_name(a->dtype), s->path, t->path);
        if (same <= 0)
            return -1;
    }
    return 0;
}

static int check_all_kept(const struct source *s, const struct edit_mix *m, struct err *e)
{
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct tmap *map = s->param[i].state[st];

            if (map && is_mixed_weight_state((enum state)st) && !dtype_is_float(map->dtype) &&
                check_kept(s, m, &s->param[i], (enum state)st, e) < 0)
                return -1;
        }
    return 0;
}

/*
 * List the states to mix, in the order of the parameters. Returns their number, or -1 with ERR_USAGE if the checkpoints
 * do not match.
 */
static int list_mixed(struct source *s, const struct edit_mix *m, struct edit_computed *list, struct err *e)
{
    int n = 0;

    for (int k = 1; k < m->n; k++)
        if (check_mixed_param_names(s, m->part[k].s, e) < 0)
            return -1;
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            struct param *p = &s->param[i];

            if (!is_mixed(s, m, p, (enum state)st))
                continue;
            list[n] = (struct edit_computed){ .p = p, .state = (enum state)st, .len = p->state[st]->len };
            for (int k = 1; k < m->n; k++)
                if (check_pair(s, &list[n], m->part[k].s, e) < 0)
                    return -1;
            n++;
        }
    return check_all_kept(s, m, e) < 0 ? -1 : n;
}

/* ---- the sum ---- */

/* Readers and buffers for mixing one tensor. */
struct bench {
    struct reader **reader;             /* [m->n]: one reader for each checkpoint */
    double sum[AT_A_TIME];
    uint8_t bytes[AT_A_TIME * sizeof(double)];
};

static void add_some(double *sum, const void *bytes, uint64_t n, enum dtype t, const struct edit_mix_part *part)
{
    const int size = dtype_size(t);

    for (uint64_t i = 0; i < n; i++)
        sum[i] = part->keep * sum[i] + part->add * dtype_value(t, (const uint8_t *)bytes + i * (uint64_t)size);
}

/* Divide the sums, and round them to type t. For 16-bit types they are rounded to fp32 first. */
static void round_mean_values(const double *sum, double divide, uint64_t n, enum dtype t, void *bytes)
{
    for (uint64_t i = 0; i < n; i++)
        dtype_put(t, sum[i] / divide, (uint8_t *)bytes + i * (uint64_t)dtype_size(t));
}

static int mix_some(const struct edit_mix *m, const struct edit_computed *c, struct bench *b, uint64_t at, uint64_t n,
                    struct err *e)
{
    memset(b->sum, 0, sizeof b->sum);
    for (int i = 0; i < m->n; i++) {
        const struct param *p = source_param(m->part[i].s, c->p->name);
        const enum dtype t = p->state[mixed_from(c->p, c->state)]->dtype;
        const uint64_t size = (uint64_t)dtype_size(t);

        if (reader_read(b->reader[i], at * size, n * size, b->bytes, e) < 0)
            return -1;
        add_some(b->sum, b->bytes, n, t, &m->part[i]);
    }
    return 0;
}

/* Compute all elements of one state, block by block. */
static int mix_tensor(const void *ctx, const struct edit_computed *c, struct edit_output *out, struct err *e)
{
    const struct edit_mix *m = ctx;
    const enum dtype to = c->p->state[c->state]->dtype;
    const uint64_t size = (uint64_t)dtype_size(to), n_elems = c->p->state[c->state]->len / size;
    struct bench *b = xmalloc(sizeof *b);
    int rc = 0;

    b->reader = xcalloc((size_t)m->n, sizeof *b->reader);
    for (int i = 0; i < m->n; i++) {
        const struct param *p = source_param(m->part[i].s, c->p->name);

        const struct tmap *map = p->state[mixed_from(c->p, c->state)];

        b->reader[i] = reader_new(map, m->part[i].s->files, REPLICAS_AVERAGE, 0, map->len);
    }
    for (uint64_t at = 0, n; at < n_elems && rc == 0; at += n) {
        n = min_u64(AT_A_TIME, n_elems - at);
        rc = mix_some(m, c, b, at, n, e);
        if (rc == 0) {
            round_mean_values(b->sum, m->divide, n, to, b->bytes);
            rc = edit_output_add(out, b->bytes, n * size, e);
        }
    }
    for (int i = 0; i < m->n; i++)
        reader_free(b->reader[i]);
    free(b->reader);
    free(b);
    return rc;
}

/* Returns the path of the first checkpoint that has NaN or infinite values in the state from which c was computed. */
static const char *find_not_finite(const void *ctx, const struct edit_computed *c)
{
    const struct edit_mix *m = ctx;
    const char *path = NULL;

    for (int i = 0; i < m->n && !path; i++) {
        struct source *s = m->part[i].s;
        const struct tmap *map = source_param(s, c->p->name)->state[mixed_from(c->p, c->state)];
        struct stats_job job = { .a = map, .a_files = s->files, .len = map->len };
        const struct stats_opts o = { .threads = 1, .replicas = REPLICAS_FIRST, .stopped = m->stopped };
        struct err ignored = {0};

        if (stats_run(&job, 1, &o, &ignored) < 0)
            err_clear(&ignored);
        else if (job.stats.n_nan + job.stats.n_inf)
            path = s->path;
    }
    return path;
}

/* ---- apply the changes ---- */

int64_t edit_mix_bytes(struct source *s, const struct edit_mix *m, struct err *e)
{
    struct edit_computed *list = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *list);
    const int n = list_mixed(s, m, list, e);
    const int64_t bytes = n < 0 ? -1 : (int64_t)edit_computed_bytes(list, n);

    free(list);
    return bytes;
}

int edit_mix(struct edit *x, struct source *s, const struct edit_mix *m, int fd, struct err *e)
{
    const struct edit_compute how = { .tensor = mix_tensor, .ctx = m, .threads = m->threads, .stopped = m->stopped,
                                     .fd = fd, .blamed = find_not_finite, .notes = m->notes };
    struct edit_computed *list = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *list);
    const int n = list_mixed(s, m, list, e);
    const int rc = n < 0 ? -1 : edit_compute(x, s, &how, list, n, e);

    if (n < 0 && fd >= 0)
        files_add_fd(s->files, fd, 0, "new values");
    free(list);
    return rc;
}
