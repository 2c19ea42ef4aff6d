/*
 * edit_mix.c - list the states to mix, and compute each of them into a spool, several in parallel
 */
#include "libcommon/layout/edit/edit_mix.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/plan/reader.h"

enum { AT_A_TIME = 1 << 16 };           /* elements */

/* One state of one parameter, with the source and the destination of its new elements. */
struct mixed {
    struct param *p;
    enum state to;
    enum state from;                    /* the state that is summed; for weights with masters, the masters */
    uint64_t at;                        /* offset in the spool */
    uint32_t crc;
};

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

    err_usage(e, "%s has shape %s in %s, %s in %s", p->name, shape_text(p->ndim, p->shape, a), s->path,
              shape_text(q->ndim, q->shape, b), t->path);
    return -1;
}

/* Check that checkpoint `t` has the parameter of `s` with the same shape and the required state. */
static int check_pair(const struct source *s, const struct mixed *k, const struct source *t, struct err *e)
{
    const struct param *p = k->p, *q = source_param(t, p->name);

    if (!q) {
        err_usage(e, "%s: has no %s, which is in %s", t->path, p->name, s->path);
        return -1;
    }
    if (!shape_equal(q->ndim, q->shape, p->ndim, p->shape))
        return refuse_mixed_shape(p, s, q, t, e);
    if (!q->state[k->from] || !dtype_is_float(q->state[k->from]->dtype)) {
        err_usage(e, "%s: has no %s of %s, which is in %s", t->path, state_name(k->from), p->name, s->path);
        return -1;
    }
    return 0;
}

/* Refuse parameters that only the other checkpoint has, because they would be lost silently. */
static int check_mixed_param_names(const struct source *s, const struct source *t, struct err *e)
{
    for (int i = 0; i < t->n_params; i++)
        if (!source_param(s, t->param[i].name)) {
            err_usage(e, "%s: has no %s, which is in %s", s->path, t->param[i].name, t->path);
            return -1;
        }
    return 0;
}

/* Returns 1 if two tensors hold the same bytes, 0 if not, -1 if they cannot be read. */
static int compare_tensor_bytes(const struct tmap *a, struct files *a_files, const struct tmap *b,
                                struct files *b_files, struct err *e)
{
    enum { BLOCK = 1 << 20 };
    struct reader *ra, *rb;
    uint8_t *buf;
    int same = a->len == b->len && a->dtype == b->dtype;

    if (!same)
        return 0;
    ra = reader_new(a, a_files, REPLICAS_FIRST);
    rb = reader_new(b, b_files, REPLICAS_FIRST);
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

/* Check that weights of types that are not averaged are the same in all checkpoints. OUT has those of the first. */
static int check_kept(const struct source *s, const struct edit_mix *m, const struct param *p, enum state st,
                      struct err *e)
{
    const struct tmap *a = p->state[st];

    for (int k = 1; k < m->n; k++) {
        const struct source *t = m->part[k].s;
        const struct param *q = source_param(t, p->name);
        const int same = q && q->state[st] ? compare_tensor_bytes(a, s->files, q->state[st], t->files, e) : 0;

        if (same == 0)
            err_usage(e, "%s is %s, which cannot be averaged, and differs between %s and %s", p->name,
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

/* Fill the list in the order of the parameters. Returns its length, or -1 if the checkpoints do not match. */
static int list_mixed(struct source *s, const struct edit_mix *m, struct mixed *list, struct err *e)
{
    uint64_t at = 0;
    int n = 0;

    for (int k = 1; k < m->n; k++)
        if (check_mixed_param_names(s, m->part[k].s, e) < 0)
            return -1;
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            struct param *p = &s->param[i];
            bool of_master = st == STATE_BF16 && p->state[STATE_FP32];

            if (!is_mixed(s, m, p, (enum state)st))
                continue;
            list[n] = (struct mixed){ p, (enum state)st, of_master ? STATE_FP32 : (enum state)st, at, 0 };
            for (int k = 1; k < m->n; k++)
                if (check_pair(s, &list[n], m->part[k].s, e) < 0)
                    return -1;
            at += p->state[st]->len;
            n++;
        }
    return n;
}

/* ---- the sum ---- */

/* The readers and buffers of one tensor. */
struct bench {
    struct reader **reader;             /* one per checkpoint */
    double sum[AT_A_TIME];
    uint8_t bytes[AT_A_TIME * sizeof(double)];
};

static void add_some(double *sum, const void *bytes, uint64_t n, enum dtype t, const struct edit_mix_part *part)
{
    const int size = dtype_size(t);

    for (uint64_t i = 0; i < n; i++)
        sum[i] = part->keep * sum[i] + part->add * dtype_value(t, (const uint8_t *)bytes + i * (uint64_t)size);
}

/* Round the sums to the target type, always by way of fp32. */
static void round_mean_values(const double *sum, double divide, uint64_t n, enum dtype t, void *bytes)
{
    for (uint64_t i = 0; i < n; i++)
        dtype_put(t, sum[i] / divide, (uint8_t *)bytes + i * (uint64_t)dtype_size(t));
}

static int mix_some(const struct edit_mix *m, const struct mixed *k, struct bench *b, uint64_t at, uint64_t n,
                    struct err *e)
{
    memset(b->sum, 0, sizeof b->sum);
    for (int i = 0; i < m->n; i++) {
        const enum dtype t = source_param(m->part[i].s, k->p->name)->state[k->from]->dtype;
        const uint64_t size = (uint64_t)dtype_size(t);

        if (reader_read(b->reader[i], at * size, n * size, b->bytes, e) < 0)
            return -1;
        add_some(b->sum, b->bytes, n, t, &m->part[i]);
    }
    return 0;
}

/* Compute all elements of one state and write them to the spool. */
static int mix_one(const struct edit_mix *m, struct mixed *k, int fd, struct err *e)
{
    const enum dtype to = k->p->state[k->to]->dtype;
    const uint64_t size = (uint64_t)dtype_size(to), n_elems = k->p->state[k->to]->len / size;
    struct bench *b = xmalloc(sizeof *b);
    int rc = 0;

    b->reader = xcalloc((size_t)m->n, sizeof *b->reader);
    for (int i = 0; i < m->n; i++)
        b->reader[i] = reader_new(source_param(m->part[i].s, k->p->name)->state[k->from], m->part[i].s->files,
                                  REPLICAS_AVERAGE);
    for (uint64_t at = 0, n; at < n_elems && rc == 0; at += n) {
        n = min_u64(AT_A_TIME, n_elems - at);
        if (m->stopped && m->stopped()) {
            err_stop(e);
            rc = -1;
        } else {
            rc = mix_some(m, k, b, at, n, e);
        }
        if (rc < 0)
            break;
        round_mean_values(b->sum, m->divide, n, to, b->bytes);
        k->crc = crc_bytes(k->crc, b->bytes, (size_t)(n * size));
        rc = write_all_at(fd, b->bytes, (size_t)(n * size), k->at + at * size);
        if (rc < 0)
            err_sys(e, "the temporary file next to the result", "cannot write");
    }
    for (int i = 0; i < m->n; i++)
        reader_free(b->reader[i]);
    free(b->reader);
    free(b);
    return rc;
}

/* Compute all states. If several fail, the error of the first in the list is returned. */
static int mix_all(const struct edit_mix *m, struct mixed *list, int n, int fd, struct err *e)
{
    struct err *each = xcalloc((size_t)n + 1, sizeof *each);
    bool stop = false;
    int rc = 0;

    #pragma omp parallel for schedule(dynamic) num_threads(m->threads > 0 ? m->threads : 1)
    for (int i = 0; i < n; i++) {
        bool stopped;

        #pragma omp atomic read
        stopped = stop;
        if (!stopped && mix_one(m, &list[i], fd, &each[i]) < 0) {
            #pragma omp atomic write
            stop = true;
        }
    }
    for (int i = 0; i < n && rc == 0; i++)
        if (each[i].kind != ERR_NONE) {
            *e = each[i];
            rc = -1;
        }
    free(each);
    return rc;
}

/* ---- apply the changes ---- */

static int change_all(struct edit *x, struct source *s, const struct mixed *list, int n, int file, struct err *e)
{
    for (int i = 0; i < n; i++) {
        const uint64_t len = list[i].p->state[list[i].to]->len;
        struct edit_from from = { .zero = file < 0, .crc = list[i].crc };

        if (file >= 0) {
            from.x.len = len;
            from.x.record = files_add_record(s->files, &(struct record){
                .file = file, .at = list[i].at, .len = len, .name = "new values" });
        }
        if (edit_tensor(x, list[i].p, list[i].to, &from, e) < 0)
            return -1;
    }
    return 0;
}

int64_t edit_mix_bytes(struct source *s, const struct edit_mix *m, struct err *e)
{
    struct mixed *list = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *list);
    int n = list_mixed(s, m, list, e);
    int64_t bytes = n >= 0 && check_all_kept(s, m, e) < 0 ? -1 : n;

    if (bytes > 0)
        bytes = (int64_t)(list[n - 1].at + list[n - 1].p->state[list[n - 1].to]->len);
    free(list);
    return bytes;
}

int edit_mix(struct edit *x, struct source *s, const struct edit_mix *m, int fd, struct err *e)
{
    struct mixed *list = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *list);
    int64_t bytes = edit_mix_bytes(s, m, e);
    int n = bytes < 0 ? -1 : list_mixed(s, m, list, e), file = -1, rc = n < 0 ? -1 : 0;

    if (rc == 0 && fd >= 0)
        rc = mix_all(m, list, n, fd, e);
    if (fd >= 0)
        file = files_add_fd(s->files, fd, bytes < 0 ? 0 : (uint64_t)bytes, "new values");
    if (rc == 0)
        rc = change_all(x, s, list, n, file, e);
    free(list);
    return rc;
}
