/*
 * folder.c - write the files of a folder as the layout describes them
 *
 * First the layout describes every file. The file is laid out, and the ranges that fill it (fills) become items of the
 * plan. Then the executor fills the storages. At the end the CRC of each storage is combined from the CRCs of its
 * items, the layout describes the files again so that their headers can be written, and the layout writes its small
 * files.
 */
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/write/folder.h"

#include <stdlib.h>
#include <string.h>

/* The columns or the part of its tensor that an item holds, see struct folder_fill. */
struct folder_cut {
    uint64_t row_len, column_at, column_len;
    const struct tensor_runs *part_of;
};

/*
 * One item of the plan: where its bytes are in the folder, and in the tensor to which they belong. There may be
 * hundreds of thousands, so members that few items need are allocated apart.
 */
struct folder_item {
    struct sink_item pub;
    int n_places;
    int tensor;                         /* index of the tensor whose digest includes the bytes; -1: none */
    struct folder_place one;            /* the place of an item that has one */
    const struct folder_place *several; /* [n_places]: those of an item that has more; otherwise NULL */
    uint64_t in;
    const struct folder_cut *cut;       /* NULL: the item holds adjacent bytes of its tensor */
    struct crc_sum share;               /* the item's share in the digest of the tensor, if the digest is computed while
                                         * the bytes are written */
};

static const struct folder_place *folder_item_place(const struct folder_item *it, int i)
{
    return it->several ? &it->several[i] : &it->one;
}

struct folder_writer {
    struct folder f;
    struct sink_ops *ops;
    struct arena *arena;                /* this arena also holds the items, because the plan keeps pointers to them */
    bool begun;
    int n_files;                        /* result of ops->begin() */
    struct err begin_err;               /* error of ops->begin(), if n_files is -1 */
    struct folder_file *file;           /* [n_files] */
    int n_tensors;
    struct folder_tensor *tensor;
};

/* ---- before anything is written ---- */

/*
 * Make the layout prepare its description. Only the first call does this. Later calls return the result of the first
 * call.
 */
static int begin_folder(struct folder_writer *w, const struct source *s, const struct sink_opts *o, struct err *e)
{
    if (!w->begun) {
        w->begun = true;
        w->n_files = w->f.ops->begin(w->f.ctx, s, o, &w->begin_err);
        if (w->n_files >= 0)
            w->n_tensors = w->f.ops->tensors(w->f.ctx, &w->tensor);
    }
    if (w->n_files >= 0)
        return 0;
    *e = w->begin_err;
    return -1;
}

/* An error is ignored here, because prepare() fails with the same error. */
static uint64_t folder_sink_estimate(const struct sink *k, const struct source *s)
{
    struct folder_writer *w = k->priv;
    uint64_t bytes = 1 << 20;           /* allowance for the manifest and folders */
    struct err ignored = {0};

    if (begin_folder(w, s, &k->o, &ignored) < 0)
        return 0;
    for (int i = 0; i < w->n_files; i++) {
        struct folder_desc d;

        folder_desc_init(&d, NULL);
        if (w->f.ops->describe(w->f.ctx, i, &d, &ignored) == 0)
            bytes += align_up(folder_file_size(&d), 4096);
        folder_desc_free(&d);
    }
    return bytes + (w->f.ops->extra_bytes ? w->f.ops->extra_bytes(w->f.ctx) : 0);
}

/* ---- the plan ---- */

/* Create the folders inside OUT that contain the file `name`. */
static int make_parent_folder(const char *path, const char *name, struct err *e)
{
    char *parent;
    int rc;

    if (!strchr(name, '/'))
        return 0;
    parent = path_parent(path);
    rc = dir_make(parent, e);
    free(parent);
    return rc;
}

static struct folder_item *new_folder_item(struct folder_writer *w, const struct folder_fill *f)
{
    struct folder_item *it = arena_alloc(w->arena, sizeof *it);
    const struct folder_place *to = f->n_outs ? f->out : &f->to;
    const int first = to->file;
    struct folder_place *place;
    struct folder_cut *cut;

    *it = (struct folder_item){ .n_places = f->n_outs ? f->n_outs : first >= 0, .tensor = f->tensor, .one = *to,
                                .in = f->in };
    it->pub = (struct sink_item){ .param = f->param < 0 ? 0 : f->param, .state = f->state,
                                  .file = first < 0 ? NULL : w->file[first].name,
                                  .repeated = f->repeated || f->param < 0 };
    if (it->n_places > 1) {
        it->several = place = arena_alloc(w->arena, (size_t)it->n_places * sizeof *place);
        memcpy(place, to, (size_t)it->n_places * sizeof *place);
    }
    if (f->row_len || f->part_of) {
        it->cut = cut = arena_alloc(w->arena, sizeof *cut);
        *cut = (struct folder_cut){ f->row_len, f->column_at, f->column_len, f->part_of };
    }
    return it;
}

static void plan_folder_fill(struct sink *k, const struct folder_fill *f, struct plan *plan)
{
    struct folder_writer *w = k->priv;
    struct folder_item *it = new_folder_item(w, f);
    const struct plan_range r = { .map = f->map, .from = f->from, .len = f->len, .name = f->name, .user = it,
                                  .policy = k->o.replicas };
    struct plan_out *out = xcalloc((size_t)it->n_places + 1, sizeof *out);
    struct plan_item *pi;

    out->dst = -1;
    for (int i = 0; i < it->n_places; i++) {
        const struct folder_place *to = folder_item_place(it, i);
        const struct folder_file *file = &w->file[to->file];

        out[i] = (struct plan_out){ .dst = file->dst, .at = file->storage[to->storage].at + to->at };
    }
    pi = plan_item(plan, f->n_outs > 1 ? plan_add_columns(plan, &r, f->part, out, f->n_outs)
                                       : plan_add(plan, &r, out->dst, out->at));
    pi->op = f->op;
    pi->transpose_row = f->transpose_row;
    free(out);
}

/*
 * Lay out file i, and make plan items from its fills. If a fill may write to files that are not laid out yet, the fills
 * are appended to `later` and planned later.
 */
static int lay_out_folder_file(struct sink *k, int i, struct plan *plan, struct folder_desc *later, struct err *e)
{
    struct folder_writer *w = k->priv;
    struct folder_desc d;
    char *path = NULL;
    int rc;

    folder_desc_init(&d, w->arena);
    rc = w->f.ops->describe(w->f.ctx, i, &d, e);
    if (rc == 0 && d.n_boxes > 0) {
        w->file[i] = folder_file_lay_out(w->arena, &d);
        path = path_join(k->dir, d.name);
        w->file[i].dst = plan_add_sized(plan, path, w->file[i].size);
        rc = k->o.part == 0 ? make_parent_folder(path, d.name, e) : 0;
    }
    for (int n = 0; n < d.n_fills && rc == 0; n++) {
        if (w->f.by_rows)
            folder_add_fill(later, &d.fill[n]);
        else
            plan_folder_fill(k, &d.fill[n], plan);
    }
    folder_desc_free(&d);
    free(path);
    return rc;
}

static int folder_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan,
                               struct err *e)
{
    struct folder_writer *w = k->priv;
    struct folder_desc later;
    int rc = 0;

    k->src = s;
    k->dir = xstrdup(dir);
    if (begin_folder(w, s, &k->o, e) < 0)
        return -1;
    folder_desc_init(&later, w->arena);
    w->file = arena_alloc(w->arena, (size_t)w->n_files * sizeof *w->file + 1);
    for (int i = 0; i < w->n_files && rc == 0; i++)
        rc = lay_out_folder_file(k, i, plan, &later, e);
    for (int i = 0; i < later.n_fills && rc == 0; i++)
        plan_folder_fill(k, &later.fill[i], plan);
    folder_desc_free(&later);
    return rc;
}

/* ---- while the plan runs ---- */

/*
 * The item holds a rectangular part of its tensor of `total` bytes. Add `len` bytes of it, from byte `from` of the item
 * on, to it->share.
 */
static void add_part_to_share(struct folder_item *it, uint64_t total, uint64_t from, const char *b, uint64_t len)
{
    const struct tensor_runs *r = it->cut->part_of;

    for (uint64_t at = from, n; at < from + len; at += n) {
        n = min_u64(r->run - at % r->run, from + len - at);
        crc_sum_add(&it->share, total, tensor_runs_place(r, at / r->run) + at % r->run, n,
                    crc_bytes(0, b + (at - from), n));
    }
}

/*
 * Add `len` bytes of an item to it->share. The bytes begin at byte `from` of the item, which holds some columns of its
 * tensor. The rows of the item are not adjacent in the tensor, but their ends are one whole row apart. The sum is
 * therefore computed by Horner's rule. If a chunk ends inside a row, the last part is added separately.
 */
static void add_columns_to_share(struct folder_item *it, uint64_t total, uint64_t from, const char *b, uint64_t len)
{
    const struct folder_cut *x = it->cut;
    const uint64_t part = x->column_len, end = from + len, tail = min_u64(end % part, len);
    const uint32_t by_row = crc_factor(x->row_len);
    uint32_t sum = 0;

    while (from < end - tail) {
        uint64_t n = part - from % part;

        sum = crc_times(sum, by_row) ^ crc_bytes(0, b, n);
        b += n;
        from += n;
    }
    if (len > tail)
        crc_sum_merge(&it->share, len - tail,
                      crc_shift(sum, total - ((from / part - 1) * x->row_len + x->column_at + part)));
    if (tail)
        crc_sum_add(&it->share, total, from / part * x->row_len + x->column_at + from % part, tail,
                    crc_bytes(0, b, tail));
}

static void folder_sink_on_bytes(struct sink *k, const struct plan_item *pi, uint64_t from, const void *bytes,
                                 uint64_t len)
{
    const struct folder_writer *w = k->priv;
    struct folder_item *it = pi->user;
    const uint64_t total = it->tensor < 0 ? 0 : w->tensor[it->tensor].of.len;

    if (it->tensor < 0)
        return;
    if (it->cut && it->cut->part_of)
        add_part_to_share(it, total, from, bytes, len);
    else if (it->cut)
        add_columns_to_share(it, total, from, bytes, len);
    else if (pi->n_outs)
        crc_sum_add(&it->share, total, it->in + from - plan_out_bytes(pi, pi->from), len,
                    crc_bytes(0, bytes, len));
}

static int folder_sink_item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct folder_writer *w = k->priv;
    const struct folder_item *it = pi->user;

    pi->share.acc = it->share.acc;      /* so that the journal saves it */
    if (pi->n_overflow == 0 || !w->f.overflow)
        return 0;
    err_data(e, source_path(k->src), ERR_NO_BYTE, "parameter %s: %llu values are above 65504, the largest number of "
                                                  "fp16%s",
             source_param_at(k->src, it->pub.param)->name, (unsigned long long)pi->n_overflow, w->f.overflow);
    return -1;
}

/* ---- after the plan has run ---- */

/*
 * Compute the CRCs of storages. The CRC of a storage is the sum of the CRCs of its pieces, each shifted by the number
 * of bytes that follow the piece. Bytes that no item writes are zeros. The computation therefore starts with the CRC of
 * a storage of zeros, and adds the difference from zeros for each item.
 */
static void sum_folder_storages(struct folder_writer *w, struct plan *plan)
{
    for (int i = 0; i < w->n_files; i++)
        for (int s = 0; s < w->file[i].n; s++)
            w->file[i].storage[s].sum.acc = crc_zeros(w->file[i].storage[s].len);
    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct folder_item *it = pi->user;

        for (int n = 0; it && n < it->n_places; n++) {
            const struct folder_place *to = folder_item_place(it, n);
            const uint64_t len = plan_share(pi), after = w->file[to->file].storage[to->storage].len - to->at - len;
            const uint32_t crc = pi->n_outs ? pi->out[n].crc.acc : pi->crc.acc;

            w->file[to->file].storage[to->storage].sum.acc ^= crc_shift(crc ^ crc_zeros(len), after);
        }
    }
}

static int seal_folder_file(const struct sink *k, int i, struct err *e)
{
    const struct folder_writer *w = k->priv;
    struct folder_desc d;
    int rc;

    if (w->file[i].size == 0)
        return 0;
    folder_desc_init(&d, NULL);
    rc = w->f.ops->describe(w->f.ctx, i, &d, e);
    if (rc == 0)
        rc = folder_file_seal(k->dir, &w->file[i], &d, false, e);
    folder_desc_free(&d);
    return rc;
}

static int folder_sink_finish(struct sink *k, struct plan *plan, struct err *e)
{
    struct folder_writer *w = k->priv;
    const struct folder_written done = { .dir = k->dir, .o = &k->o, .file = w->file, .plan = plan };

    sum_folder_storages(w, plan);
    for (int i = 0; i < w->n_files; i++)
        if (seal_folder_file(k, i, e) < 0)
            return -1;
    return w->f.ops->finish ? w->f.ops->finish(w->f.ctx, &done, e) : 0;
}

/*
 * Set *out to an array of the folder's tensors with their digests. The digest of a tensor is the XOR of the digests of
 * its plan items. A tensor with `same_as` has the digest of the tensor to which `same_as` refers. Returns the number of
 * tensors.
 */
static int folder_sink_tensors(const struct sink *k, struct plan *plan, struct sink_tensor **out)
{
    const struct folder_writer *w = k->priv;
    struct sink_tensor *t = xcalloc((size_t)w->n_tensors + 1, sizeof *t);

    for (int i = 0; i < w->n_tensors; i++)
        t[i] = w->tensor[i].of;
    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct folder_item *it = pi->user;

        if (it && it->tensor >= 0)
            t[it->tensor].crc ^= pi->n_outs || it->cut
                ? pi->share.acc
                : crc_shift(pi->crc.acc, w->tensor[it->tensor].of.len - it->in - plan_out_bytes(pi, pi->len));
    }
    for (int i = 0; i < w->n_tensors; i++)
        if (w->tensor[i].same_as >= 0)
            t[i].crc = t[w->tensor[i].same_as].crc;
    *out = t;
    return w->n_tensors;
}

/* ---- the sink ---- */

static void folder_sink_close(struct sink *k)
{
    struct folder_writer *w = k->priv;

    w->f.ops->close(w->f.ctx);
    arena_free(w->arena);
    free(w->tensor);
    free(w->ops);
    free(w);
    free(k->dir);
    free(k);
}

struct sink *folder_sink(const struct sink_opts *o, const struct folder *f)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct folder_writer *w = xcalloc(1, sizeof *w);

    w->f = *f;
    w->arena = arena_new(0);
    w->ops = xmalloc(sizeof *w->ops);
    *w->ops = (struct sink_ops){
        .name = f->ops->name, .prepare = folder_sink_prepare, .item_done = folder_sink_item_done,
        .finish = folder_sink_finish, .close = folder_sink_close, .estimate = folder_sink_estimate,
        .look = f->by_rows ? folder_sink_on_bytes : NULL, .tensors = folder_sink_tensors,
    };
    k->ops = w->ops;
    k->o = *o;
    k->priv = w;
    return k;
}
