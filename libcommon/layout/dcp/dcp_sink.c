/*
 * dcp_sink.c - lay out the items file by file; the plan writes tensors; values and .metadata are written at the end
 *
 * Every item is an archive of its own, so its container is written as soon as its tensor is complete. An item
 * without a directory is unfinished, and so is a checkpoint without .metadata.
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
#include "libcommon/write/sink.h"

#define PREFIX "archive"

/* One item of the result. */
struct dcp_piece {
    struct sink_item pub;               /* of the plan item, in the first of the pieces that it writes */
    /* ... number of these pieces: the columns that its rows are distributed to; 0 in the others */
    int n_pieces;
    int entry;                          /* index in the target */
    const struct dcp_part *part;        /* of the entry, or of a row of it */
    int64_t layer;                      /* index of that row; -1 if none */
    int rank;
    uint64_t at, size;                  /* in the rank's file */
    bool cut;                           /* it is the box below of the tensor; otherwise the whole tensor */
    int64_t row, rows, column, columns;
    uint64_t from, len;                 /* bytes: offset of its complete rows in the tensor; size of the piece */
    /* if rows are distributed: digest of the bytes seen, by position in the tensor */
    struct crc_sum sum;
    uint8_t *bytes;                     /* a value's archive */
};

struct dcp_writer {
    const struct dcp_target *t;
    struct dcp_mesh mesh;
    int ranks;
    struct dcp_piece *piece;
    int n, cap;
    uint64_t *end;                      /* end of each rank's file */
};

/* ---- layout ---- */

/* Add a piece. `of` provides entry, part and layer. */
static struct dcp_piece *dcp_add_rank_piece(struct dcp_writer *w, const struct dcp_piece *of, int rank)
{
    ARRAY_ROOM(w->piece, w->cap, w->n + 1);
    w->piece[w->n] = *of;
    w->piece[w->n].rank = rank;
    return &w->piece[w->n++];
}

static const struct dcp_entry *dcp_piece_entry(const struct dcp_writer *w, const struct dcp_piece *p)
{
    return &w->t->table.entry[p->entry];
}

/* Returns the shape of the tensor that is split: the entry's, or that of a row of it. */
static const int64_t *dcp_piece_shape(const struct dcp_writer *w, const struct dcp_piece *p, int *ndim)
{
    const struct dcp_entry *en = dcp_piece_entry(w, p);

    *ndim = en->ndim - (p->layer >= 0);
    return en->shape + (p->layer >= 0);
}

/*
 * Add the pieces of rows [row, row + rows), the share of one row of ranks. Columns are distributed if the mesh's
 * second dimension divides them. Copies that are compared while they are read, and parts that are summed, keep their
 * rows whole: the executor can distribute columns only for plain maps.
 */
static void dcp_add_row_pieces(struct dcp_writer *w, const struct dcp_piece *of, int64_t row, int64_t rows,
                               int first_rank)
{
    int ndim;
    const int64_t *shape = dcp_piece_shape(w, of, &ndim);
    const uint64_t bytes = of->part->map->len / (uint64_t)shape[0];
    const bool divides = ndim > 1 && shape[1] > 0 && shape[1] % w->mesh.columns == 0;
    const int n = divides && !tmap_overlays(of->part->map) ? w->mesh.columns : 1;

    for (int c = 0; c < n; c++) {
        struct dcp_piece *p = dcp_add_rank_piece(w, of, first_rank + c);

        p->cut = true;
        p->n_pieces = c == 0 ? n : 0;
        p->row = row;
        p->rows = rows;
        p->columns = ndim > 1 ? shape[1] / n : 0;
        p->column = c * p->columns;
        p->from = (uint64_t)row * bytes;
        p->len = (uint64_t)rows * bytes / (uint64_t)n;
    }
}

/*
 * Split the states of parameters. A tensor without rows, of no type of weights, or that is not a parameter's, is
 * stored whole by one rank.
 */
static void add_one(struct dcp_writer *w, const struct dcp_piece *of)
{
    int ndim;
    const int64_t *shape = dcp_piece_shape(w, of, &ndim);
    const bool split = of->part->param && ndim > 0 && dtype_is_weight(w->t->table.entry[of->entry].dtype);
    int64_t n = split ? shape[0] : 0, each = (n + w->mesh.rows - 1) / w->mesh.rows;
    struct dcp_piece *p;

    for (int r = 0; r < w->mesh.rows && r * each < n; r++)
        dcp_add_row_pieces(w, of, r * each, each < n - r * each ? each : n - r * each, r * w->mesh.columns);
    if (n > 0)
        return;
    p = dcp_add_rank_piece(w, of, (int)((of->entry + (of->layer > 0 ? of->layer : 0)) % w->ranks));
    p->n_pieces = 1;
    p->len = of->part->map->len;
}

static void dcp_add_tensor_pieces(struct dcp_writer *w, int entry)
{
    const struct dcp_part *part = &w->t->part[entry];

    if (!part->row)
        add_one(w, &(struct dcp_piece){ .entry = entry, .part = part, .layer = -1 });
    for (int64_t i = 0; part->row && i < w->t->table.entry[entry].shape[0]; i++)
        add_one(w, &(struct dcp_piece){ .entry = entry, .part = &part->row[i], .layer = i });
}

static void box_of(const struct dcp_writer *w, const struct dcp_piece *p, int64_t at[TENSOR_MAX_DIM],
                   int64_t len[TENSOR_MAX_DIM])
{
    const int below = p->layer >= 0;
    int ndim;

    dcp_piece_shape(w, p, &ndim);
    memset(at, 0, TENSOR_MAX_DIM * sizeof *at);
    memcpy(len, dcp_piece_entry(w, p)->shape, TENSOR_MAX_DIM * sizeof *len);
    if (below) {
        at[0] = p->layer;
        len[0] = 1;
    }
    if (!p->cut)
        return;
    at[below] = p->row;
    len[below] = p->rows;
    if (ndim > 1) {
        at[below + 1] = p->column;
        len[below + 1] = p->columns;
    }
}

static struct pt_image *dcp_piece_image(const struct dcp_writer *w, const struct dcp_piece *p)
{
    struct arena *a = arena_new(0);
    int64_t at[TENSOR_MAX_DIM], shape[TENSOR_MAX_DIM];
    struct pt_new t = { .dtype = p->part->map->dtype, .ndim = dcp_piece_entry(w, p)->ndim, .shape = shape };
    struct pt_image *im;

    box_of(w, p, at, shape);
    t.storage_elems = (int64_t)(p->len / (uint64_t)dtype_size(t.dtype));
    im = pt_image_new(PREFIX, pt_new_tensor(a, &t), 1, &p->len);
    arena_free(a);
    return im;
}

static int list_pieces(struct dcp_writer *w, const struct source *s, struct err *e)
{
    for (int pass = 0; pass < 2; pass++)        /* values first, as torch does */
        for (int i = 0; i < w->t->table.n; i++) {
            const struct dcp_part *part = &w->t->part[i];
            struct dcp_piece *p;

            if (pass == 1 && part->map)
                dcp_add_tensor_pieces(w, i);
            if (pass == 1 || part->map)
                continue;
            p = dcp_add_rank_piece(w, &(struct dcp_piece){ .entry = i, .part = part, .layer = -1 }, w->n % w->ranks);
            if (pt_build(PREFIX, part->tree, part->pt, s->files, &p->bytes, &p->size, e) < 0)
                return -1;
        }
    for (int i = 0; i < w->n; i++) {
        struct dcp_piece *p = &w->piece[i];
        struct pt_image *im = p->part->map ? dcp_piece_image(w, p) : NULL;

        p->size = im ? pt_image_size(im) : p->size;
        p->at = w->end[p->rank];
        w->end[p->rank] += p->size;
        pt_image_free(im);
    }
    return 0;
}

static char *dcp_rank_file(const struct dcp_piece *p)
{
    return str_fmt("__%d_0.distcp", p->rank);
}

/* Add the plan item of a piece and of the following ones, which have the same rows. */
static void dcp_add_plan_item(const struct sink *k, struct dcp_piece *p, struct plan *plan, const int *dst)
{
    const struct dcp_writer *w = k->priv;
    const struct plan_range r = { .map = p->part->map, .from = p->from, .len = p->len * (uint64_t)p->n_pieces,
                                  .name = dcp_piece_entry(w, p)->name, .policy = k->o.replicas, .user = &p->pub };
    struct plan_out *out = xcalloc((size_t)p->n_pieces, sizeof *out);

    p->pub.param = p->part->param ? (int)(p->part->param - w->t->src->param) : 0;
    p->pub.state = p->part->state;
    p->pub.repeated = !p->part->param || p->part->again;        /* not a parameter's, so drift does not apply to it */
    p->pub.priv = p;
    for (int c = 0; c < p->n_pieces; c++) {
        struct pt_image *im = dcp_piece_image(w, &p[c]);

        out[c] = (struct plan_out){ .dst = dst[p[c].rank], .at = p[c].at + pt_image_at(im, 0) };
        pt_image_free(im);
    }
    if (p->n_pieces > 1)
        plan_add_columns(plan, &r, p->len / (uint64_t)p->rows, out, p->n_pieces);
    else
        plan_add(plan, &r, out[0].dst, out[0].at);
    free(out);
}

static int dcp_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan, struct err *e)
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
    for (int i = 0; i < w->n && rc == 0; i++)
        if (w->piece[i].n_pieces > 0 && w->piece[i].len > 0)
            dcp_add_plan_item(k, &w->piece[i], plan, dst);
    free(dst);
    return rc;
}

/* Returns the number of tensors that the sink stores for an entry. */
static uint64_t pieces_of(const struct dcp_target *t, int entry)
{
    return t->part[entry].row ? (uint64_t)t->table.entry[entry].shape[0] : 1;
}

static uint64_t dcp_sink_estimate(const struct sink *k, const struct source *s)
{
    const struct dcp_writer *w = k->priv;
    uint64_t bytes = 1 << 20;

    (void)s;
    for (int i = 0; i < w->t->table.n; i++) {
        const struct tmap *m = w->t->part[i].map;

        /* A container around each item, and some lines of .metadata. */
        bytes += 4096 + (m ? m->len + (uint64_t)w->ranks * pieces_of(w->t, i) * 2048 : 0);
    }
    return bytes;
}

/* ---- the bytes around the tensors ---- */

static int write_item(const struct sink *k, const struct dcp_piece *p, uint32_t crc, struct err *e)
{
    const struct dcp_writer *w = k->priv;
    char *name = dcp_rank_file(p), *path = path_join(k->dir, name);
    struct pt_image *im = p->part->map ? dcp_piece_image(w, p) : NULL;
    const struct zip_run *run;
    int fd = open(path, O_WRONLY | O_CLOEXEC), rc = fd < 0 ? -1 : 0;

    if (im)
        pt_image_set_crc(im, 0, crc);
    for (int i = 0, n = im ? pt_image_runs(im, &run) : 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, p->at + run[i].at);
    if (!im && rc == 0)
        rc = write_all_at(fd, p->bytes, p->size, p->at);
    if (rc < 0)
        err_sys(e, path, "cannot write item %s", dcp_piece_entry(w, p)->name);
    if (fd >= 0)
        close(fd);
    pt_image_free(im);
    free(path);
    free(name);
    return rc;
}

static void dcp_sink_on_bytes(struct sink *k, const struct plan_item *pi, uint64_t from, const void *bytes,
                              uint64_t len)
{
    struct dcp_piece *p = ((const struct sink_item *)pi->user)->priv;

    (void)k;
    if (pi->n_outs)
        crc_sum_add(&p->sum, p->part->map->len, from, len, crc_bytes(0, bytes, len));
}

static int dcp_sink_item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct dcp_piece *p = ((const struct sink_item *)pi->user)->priv;
    int rc = 0;

    pi->share.acc = p->sum.acc;         /* saved in the journal */
    for (int c = 0; c < p->n_pieces && rc == 0; c++)
        rc = write_item(k, &p[c], pi->n_outs ? pi->out[c].crc.acc : pi->crc.acc, e);
    return rc;
}

/* Make the target's table with its chunks. The pieces of an entry are in order. */
static void make_chunked_table(const struct dcp_writer *w, struct arena *a, struct dcp_table *t)
{
    *t = w->t->table;
    t->entry = arena_alloc(a, ((size_t)t->n + 1) * sizeof *t->entry);
    memcpy(t->entry, w->t->table.entry, (size_t)t->n * sizeof *t->entry);
    for (int i = 0; i < t->n; i++)
        t->entry[i].n_chunks = 0;
    for (int i = 0; i < w->n; i++) {
        const struct dcp_piece *p = &w->piece[i];
        struct dcp_entry *en = &t->entry[p->entry];
        int64_t *box = arena_alloc(a, 2 * TENSOR_MAX_DIM * sizeof *box);
        struct dcp_chunk *c;
        char *name = dcp_rank_file(p);

        if (en->n_chunks == 0)
            en->chunk = arena_alloc(a, (size_t)w->ranks * pieces_of(w->t, p->entry) * sizeof *en->chunk);
        c = &en->chunk[en->n_chunks++];
        box_of(w, p, box, box + TENSOR_MAX_DIM);
        *c = (struct dcp_chunk){ box, box + TENSOR_MAX_DIM,
                                 { .file = arena_fmt(a, "%s", name), .at = p->at, .len = p->size } };
        free(name);
    }
}

static int write_extra(const char *dir, const struct dcp_extra *x, struct err *e)
{
    char *path = path_join(dir, x->name);
    int rc = file_replace(path, x->bytes, x->len, e);

    free(path);
    return rc;
}

static int dcp_sink_finish(struct sink *k, struct plan *plan, struct err *e)
{
    struct dcp_writer *w = k->priv;
    struct arena *a = arena_new(0);
    struct strbuf sb = {0};
    struct dcp_table t;
    char *path = path_join(k->dir, DCP_METADATA);
    int rc = 0;

    (void)plan;
    for (int i = 0; i < w->n && rc == 0; i++)
        if (!w->piece[i].part->map || w->piece[i].len == 0)
            rc = write_item(k, &w->piece[i], 0, e);
    if (rc == 0) {
        make_chunked_table(w, a, &t);
        dcp_metadata_write(&t, &sb);
        rc = file_replace(path, sb.buf, sb.len, e);
    }
    for (int i = 0; i < w->t->n_extras && rc == 0; i++)
        rc = write_extra(k->dir, &w->t->extra[i], e);
    free(path);
    strbuf_free(&sb);
    arena_free(a);
    return rc;
}

/* Returns the tensor as it will be read: a double is not a weight of 16 bits there, whatever the source calls it. */
static struct sink_tensor make_sink_tensor(const struct sink *k, const struct dcp_part *p, int ndim,
                                           const int64_t *shape)
{
    const enum state st = p->by_dtype ? dcp_state_of_dtype(p->map->dtype)
                        : p->state == STATE_BF16 && p->map->dtype == DTYPE_F64 ? STATE_FP32 : p->state;
    struct sink_tensor t = { .name = p->param->name, .param = (int)(p->param - k->src->param), .state = st,
                             .ndim = ndim, .dtype = p->map->dtype, .len = p->map->len };

    memcpy(t.shape, shape, (size_t)ndim * sizeof *shape);
    return t;
}

/* List the states of parameters. The digest of each is combined from its rows. */
static int dcp_sink_tensors(const struct sink *k, struct plan *plan, struct sink_tensor **out)
{
    const struct dcp_writer *w = k->priv;
    int *number = xmalloc((size_t)w->t->table.n * sizeof *number + 1), n = 0, cap = 0;

    *out = NULL;
    for (int i = 0; i < w->t->table.n; i++) {
        const struct dcp_part *p = &w->t->part[i];
        const struct dcp_entry *en = &w->t->table.entry[i];

        number[i] = p->param || p->row ? n : -1;
        ARRAY_ROOM(*out, cap, n + (int)pieces_of(w->t, i));
        for (int64_t r = 0; p->row && r < en->shape[0]; r++)
            (*out)[n++] = make_sink_tensor(k, &p->row[r], en->ndim - 1, en->shape + 1);
        if (p->param)
            (*out)[n++] = make_sink_tensor(k, p, en->ndim, en->shape);
    }
    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct sink_item *it = pi->user;
        const struct dcp_piece *p = it ? it->priv : NULL;
        struct sink_tensor *x = p && number[p->entry] >= 0 ? *out + number[p->entry] + (p->layer > 0 ? p->layer : 0)
                                                           : NULL;

        if (x)
            x->crc ^= pi->n_outs ? pi->share.acc : crc_shift(pi->crc.acc, x->len - p->from - pi->len);
    }
    free(number);
    return n;
}

/* ---- the sink ---- */

static void dcp_sink_close(struct sink *k)
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
    .name = "dcp",
    .prepare = dcp_sink_prepare,
    .item_done = dcp_sink_item_done,
    .finish = dcp_sink_finish,
    .close = dcp_sink_close,
    .estimate = dcp_sink_estimate,
    .look = dcp_sink_on_bytes,
    .tensors = dcp_sink_tensors,
};

struct sink *dcp_sink(const struct sink_opts *o, const struct dcp_target *t, struct dcp_mesh mesh)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct dcp_writer *w = xcalloc(1, sizeof *w);

    w->t = t;
    w->mesh = mesh;
    w->ranks = mesh.rows * mesh.columns;
    w->end = xcalloc((size_t)w->ranks, sizeof *w->end);
    k->ops = &ops;
    k->o = *o;
    k->priv = w;
    return k;
}
