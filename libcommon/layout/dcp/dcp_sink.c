/*
 * dcp_sink.c - items are laid out file by file, tensors filled by the plan, values and .metadata written at the end
 *
 * Every item is an archive of its own, so its container is written as soon as its one tensor is there; an item without
 * its directory is an unfinished one, and a folder without .metadata an unfinished checkpoint.
 */
#include "libcommon/layout/dcp/dcp_sink.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/dcp_write.h"

#define PREFIX "archive"

/* One item of the result. */
struct dcp_piece {
    struct sink_item pub;
    const struct dcp_entry *en;
    const struct tmap *map;             /* NULL: a value */
    const struct param *param;          /* whose state it is; NULL: no parameter's */
    int rank;
    uint64_t at, size;                  /* in the rank's file */
    int64_t row, rows;                  /* of a tensor that is cut: which; rows -1: it is whole */
    uint64_t from, len;                 /* bytes of the tensor */
    uint8_t *bytes;                     /* a value's archive */
};

struct dcp_writer {
    int ranks;
    struct dcp_piece *piece;
    int n, cap;
    uint64_t *end;                      /* of each rank's file */
};

/* ---- what there will be ---- */

static struct dcp_piece *add_piece(struct dcp_writer *w, const struct dcp_entry *en, int rank)
{
    ARRAY_ROOM(w->piece, w->cap, w->n + 1);
    w->piece[w->n] = (struct dcp_piece){ .en = en, .rank = rank, .rows = -1 };
    return &w->piece[w->n++];
}

/* The tensor behind an entry; NULL: it is a value, *v. */
static const struct tmap *find_map(const struct source *s, const struct dcp_entry *en, struct source_hit *hit)
{
    if (!source_find(s, en->name, hit))
        return NULL;
    if (!hit->param)
        return hit->value->map;
    if (hit->state < 0)
        hit->state = param_named_state(hit->param);
    if (hit->state < 0)
        hit->state = hit->param->state[STATE_FP32] ? STATE_FP32 : STATE_BF16;
    return hit->param->state[hit->state];
}

/* Rows [row, row + rows) of it, or all. */
static void add_tensor(struct dcp_writer *w, const struct dcp_entry *en, const struct tmap *map,
                       const struct source_hit *hit, int number)
{
    int64_t n = hit->param && en->ndim > 0 ? en->shape[0] : -1, each = n > 0 ? (n + w->ranks - 1) / w->ranks : 0;
    uint64_t row = n > 0 ? map->len / (uint64_t)n : 0;

    for (int r = 0; r < (n > 0 ? w->ranks : 1) && r * each < (n > 0 ? n : 1); r++) {
        struct dcp_piece *p = add_piece(w, en, n > 0 ? r : number % w->ranks);

        p->map = map;
        p->param = hit->param;
        p->pub.state = hit->param ? (enum state)hit->state : STATE_FP32;
        p->len = map->len;
        if (n <= 0)
            continue;
        p->row = r * each;
        p->rows = each < n - p->row ? each : n - p->row;
        p->from = (uint64_t)p->row * row;
        p->len = (uint64_t)p->rows * row;
    }
}

static struct pt_image *make_image(const struct dcp_piece *p)
{
    struct arena *a = arena_new(0);
    int64_t shape[TENSOR_MAX_DIM];
    struct pt_new t = { .dtype = p->map->dtype, .ndim = p->en->ndim, .shape = shape };
    struct pt_image *im;

    memcpy(shape, p->en->shape, sizeof shape);
    if (p->rows >= 0)
        shape[0] = p->rows;
    t.storage_elems = (int64_t)(p->len / (uint64_t)dtype_size(t.dtype));
    im = pt_image_new(PREFIX, pt_new_tensor(a, &t), 1, &p->len);
    arena_free(a);
    return im;
}

static int add_value(struct dcp_writer *w, const struct source *s, const struct dcp_entry *en,
                     const struct source_value *v, struct err *e)
{
    struct dcp_piece *p = add_piece(w, en, w->n % w->ranks);

    return pt_build(PREFIX, v->tree, v->pt, s->files, &p->bytes, &p->size, e);
}

static int list_pieces(struct dcp_writer *w, const struct source *s, struct err *e)
{
    for (int pass = 0; pass < 2; pass++)        /* values first, as torch has them */
        for (int i = 0; i < s->dcp->n; i++) {
            const struct dcp_entry *en = &s->dcp->entry[i];
            struct source_hit hit = {0};
            const struct tmap *map = find_map(s, en, &hit);

            if (en->is_tensor ? !map : !hit.value || !hit.value->tree) {
                err_data(e, s->path, ERR_NO_BYTE, "%s cannot be read whole", en->name);
                return -1;
            }
            if (pass == 1 && en->is_tensor)
                add_tensor(w, en, map, &hit, i);
            else if (pass == 0 && !en->is_tensor && add_value(w, s, en, hit.value, e) < 0)
                return -1;
        }
    for (int i = 0; i < w->n; i++) {
        struct dcp_piece *p = &w->piece[i];
        struct pt_image *im = p->map ? make_image(p) : NULL;

        p->size = im ? pt_image_size(im) : p->size;
        p->at = w->end[p->rank];
        w->end[p->rank] += p->size;
        pt_image_free(im);
    }
    return 0;
}

static char *file_of(const struct dcp_piece *p)
{
    return str_fmt("__%d_0.distcp", p->rank);
}

static int prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan, struct err *e)
{
    struct dcp_writer *w = k->priv;
    int *dst = xcalloc((size_t)w->ranks, sizeof *dst), rc;

    k->src = s;
    k->dir = xstrdup(dir);
    rc = list_pieces(w, s, e);
    for (int r = 0; r < w->ranks && rc == 0; r++) {
        char *path = str_fmt("%s/__%d_0.distcp", dir, r);

        dst[r] = w->end[r] ? plan_add_sized(plan, path, w->end[r]) : -1;
        free(path);
    }
    for (int i = 0; i < w->n && rc == 0; i++) {
        struct dcp_piece *p = &w->piece[i];
        struct pt_image *im;

        p->pub.param = p->param ? (int)(p->param - s->param) : 0;
        p->pub.repeated = !p->param;    /* no parameter's: drift is none of its concerns */
        p->pub.priv = p;
        if (!p->map || p->len == 0)
            continue;
        im = make_image(p);
        plan_add(plan, &(struct plan_range){ .map = p->map, .from = p->from, .len = p->len, .name = p->en->name,
                                             .policy = k->o.replicas, .user = &p->pub },
                 dst[p->rank], p->at + pt_image_at(im, 0));
        pt_image_free(im);
    }
    free(dst);
    return rc;
}

static uint64_t estimate(const struct sink *k, const struct source *s)
{
    const struct dcp_writer *w = k->priv;
    uint64_t bytes = 1 << 20;

    for (int i = 0; i < s->dcp->n; i++) {
        struct source_hit hit;
        const struct tmap *m = find_map(s, &s->dcp->entry[i], &hit);

        /* A container round each item, and some lines of .metadata. */
        bytes += 4096 + (m ? m->len + (uint64_t)w->ranks * 2048 : 0);
    }
    return bytes;
}

/* ---- what surrounds the tensors ---- */

static int write_item(const struct sink *k, const struct dcp_piece *p, uint32_t crc, struct err *e)
{
    char *name = file_of(p), *path = path_join(k->dir, name);
    struct pt_image *im = p->map ? make_image(p) : NULL;
    const struct zip_run *run;
    int fd = open(path, O_WRONLY | O_CLOEXEC), rc = fd < 0 ? -1 : 0;

    if (im)
        pt_image_set_crc(im, 0, crc);
    for (int i = 0, n = im ? pt_image_runs(im, &run) : 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, p->at + run[i].at);
    if (!im && rc == 0)
        rc = write_all_at(fd, p->bytes, p->size, p->at);
    if (rc < 0)
        err_sys(e, path, "cannot write item %s", p->en->name);
    if (fd >= 0)
        close(fd);
    pt_image_free(im);
    free(path);
    free(name);
    return rc;
}

static int item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct sink_item *it = pi->user;

    return write_item(k, it->priv, pi->crc.acc, e);
}

/* The source's table with the new chunks; pieces of an entry stand one behind the other. */
static void make_table(const struct dcp_writer *w, const struct source *s, struct arena *a, struct dcp_table *t)
{
    *t = *s->dcp;
    t->entry = arena_alloc(a, ((size_t)t->n + 1) * sizeof *t->entry);
    memcpy(t->entry, s->dcp->entry, (size_t)t->n * sizeof *t->entry);
    for (int i = 0; i < t->n; i++)
        t->entry[i].n_chunks = 0;
    for (int i = 0; i < w->n; i++) {
        const struct dcp_piece *p = &w->piece[i];
        struct dcp_entry *en = &t->entry[p->en - s->dcp->entry];
        struct dcp_chunk *c;
        char *name = file_of(p);

        if (en->n_chunks == 0)
            en->chunk = arena_alloc(a, (size_t)w->ranks * sizeof *en->chunk);
        c = &en->chunk[en->n_chunks++];
        memcpy(c->len, en->shape, sizeof c->len);
        if (p->rows >= 0) {
            c->at[0] = p->row;
            c->len[0] = p->rows;
        }
        c->place = (struct dcp_place){ .file = arena_fmt(a, "%s", name), .at = p->at, .len = p->size };
        free(name);
    }
}

static int finish(struct sink *k, struct plan *plan, struct err *e)
{
    struct dcp_writer *w = k->priv;
    struct arena *a = arena_new(0);
    struct strbuf sb = {0};
    struct dcp_table t;
    char *path = path_join(k->dir, DCP_METADATA);
    int rc = 0;

    (void)plan;
    for (int i = 0; i < w->n && rc == 0; i++)
        if (!w->piece[i].map || w->piece[i].len == 0)
            rc = write_item(k, &w->piece[i], 0, e);
    if (rc == 0) {
        make_table(w, k->src, a, &t);
        dcp_metadata_write(&t, &sb);
        rc = file_replace(path, sb.buf, sb.len, e);
    }
    free(path);
    strbuf_free(&sb);
    arena_free(a);
    return rc;
}

/* States of parameters, each summed up from its rows. */
static int tensors(const struct sink *k, struct plan *plan, struct sink_tensor **out)
{
    const struct source *s = k->src;
    int *number = xmalloc((size_t)s->n_params * STATE_N * sizeof *number + 1), n = 0;
    struct sink_tensor *t = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *t);

    for (int i = 0; i < s->n_params * STATE_N; i++) {
        const struct param *p = &s->param[i / STATE_N];
        const struct tmap *m = p->state[i % STATE_N];

        number[i] = m ? n : -1;
        if (!m)
            continue;
        t[n] = (struct sink_tensor){ .name = p->name, .param = i / STATE_N, .state = (enum state)(i % STATE_N),
                                     .ndim = p->ndim, .dtype = m->dtype, .len = m->len };
        memcpy(t[n++].shape, p->shape, sizeof p->shape);
    }
    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct sink_item *it = pi->user;
        const struct dcp_piece *p = it ? it->priv : NULL;
        struct sink_tensor *x = p && p->param ? &t[number[it->param * STATE_N + (int)it->state]] : NULL;

        if (x)
            x->crc ^= crc_shift(pi->crc.acc, x->len - p->from - p->len);
    }
    free(number);
    *out = t;
    return n;
}

/* ---- the sink ---- */

static void close_sink(struct sink *k)
{
    struct dcp_writer *w = k->priv;

    for (int i = 0; i < w->n; i++)
        free(w->piece[i].bytes);
    free(w->piece);
    free(w->end);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "dcp", .prepare = prepare, .item_done = item_done, .finish = finish, .close = close_sink,
    .estimate = estimate, .tensors = tensors,
};

struct sink *dcp_sink(const struct sink_opts *o, int ranks)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct dcp_writer *w = xcalloc(1, sizeof *w);

    w->ranks = ranks;
    w->end = xcalloc((size_t)ranks, sizeof *w->end);
    k->ops = &ops;
    k->o = *o;
    k->priv = w;
    return k;
}
