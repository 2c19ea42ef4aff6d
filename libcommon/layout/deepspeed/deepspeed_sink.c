/*
 * deepspeed_sink.c - write the layer_*, mp_rank_* and zero files of another topology
 *
 * Phases: lay out every file and add its items to the plan; the executor fills the storages; at the end the CRC of
 * each storage is combined from its items, headers are written around the storages, and the small mp_rank files
 * follow. A shard without a directory is unfinished.
 */
#include "libcommon/layout/deepspeed/deepspeed_sink.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/write/sink.h"

/* ---- the files ---- */

static struct ds_file *dss_add_file(struct dss *w, const char *name)
{
    struct ds_file *f = &w->file[w->n_files++];

    *f = ds_file_new(w->arena, name);
    return f;
}

static void list_layers(struct dss *w)
{
    const struct ds_target *t = w->t;
    char buf[96];

    for (int i = 0; i < t->n_params; i++)
        for (int tp = 0; tp < t->topo.tp && (i == 0 || t->param[i].layer != t->param[i - 1].layer); tp++) {
            struct ds_file *f = dss_add_file(w, ds_layer_name(t->param[i].layer, tp, buf));

            f->layer = t->param[i].layer;
            f->tp = tp;
            f->next_tp = 1;
        }
}

static void list_shards(struct dss *w)
{
    const struct ds_target *t = w->t;
    const struct ds spelling = { .bf16_prefix = t->bf16_prefix, .joined = t->joined };
    char buf[96];

    for (int pp = 0; pp < t->topo.pp; pp++)
        for (int tp = 0; tp < t->topo.tp; tp++)
            for (int dp = 0; dp < t->topo.dp; dp++) {
                struct ds_file *f = dss_add_file(w, ds_zero_name(&spelling, topo_mp(t->topo, pp, tp), dp, buf));

                f->pp = pp;
                f->tp = tp;
                f->dp = dp;
                f->next_tp = t->topo.dp;
            }
}

/* Make the tree of a file. The result is the same at every call. */
static void dss_make_file_tree(const struct dss *w, const struct ds_file *f, struct ds_tree *x)
{
    if (f->layer >= 0)
        ds_tree_layer(w->t, f->layer, x);
    else
        ds_tree_zero(w->t, f->pp, f->dp, x);
}

static void dss_list_files(struct dss *w)
{
    if (w->file)
        return;
    w->file = arena_alloc(w->arena, (size_t)ds_target_n_files(w->t) * sizeof *w->file);
    list_layers(w);
    if (w->t->optimizer)
        list_shards(w);
}

/* ---- laying out ---- */

static uint64_t dss_estimate(const struct sink *k, const struct source *s)
{
    struct dss *w = k->priv;
    const struct source_file *mp = ds_mp_file(s, 0, 0);
    uint64_t n_mp = (uint64_t)(w->t->topo.pp * w->t->topo.tp), bytes = 1 << 20;     /* manifest, folders */

    dss_list_files(w);
    for (int i = 0; i < w->n_files; i++) {
        struct ds_tree x;

        dss_make_file_tree(w, &w->file[i], &x);
        bytes += align_up(ds_file_size(&w->file[i], &x), 4096);
        ds_tree_free(&x);
    }
    if (mp)
        bytes += n_mp * align_up(files_size(s->files, mp->file) + 4096, 4096);
    return bytes;
}

static void dss_lay_out_file(struct sink *k, struct ds_file *f, struct plan *plan)
{
    struct dss *w = k->priv;
    char *path = path_join(k->dir, f->name);
    struct ds_tree x;

    dss_make_file_tree(w, f, &x);
    ds_file_lay_out(w->arena, f, &x);
    f->dst = plan_add_sized(plan, path, f->size);
    ds_tree_free(&x);
    free(path);
}

static int dss_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan, struct err *e)
{
    struct dss *w = k->priv;

    (void)e;
    k->src = s;
    k->dir = xstrdup(dir);
    dss_list_files(w);
    w->columns = arena_alloc(w->arena, (size_t)w->t->n_params * STATE_N * (size_t)w->t->topo.tp * sizeof *w->columns);
    for (int i = 0; i < w->n_files; i++)
        dss_lay_out_file(k, &w->file[i], plan);
    for (int i = 0; i < w->n_files; i++)
        dss_plan_file(k, &w->file[i], plan);
    return 0;
}

/* ---- finished items ---- */

/* Store the CRC share of a row-parallel slice in the plan item, so that the journal records it. */
static int dss_item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct ds_target *t = ((const struct dss *)k->priv)->t;
    struct dss_item *it = pi->user;

    pi->share.acc = it->share.acc;
    if (pi->n_overflow == 0)
        return 0;
    err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: %llu values are beyond 65504, the largest of fp16 weights",
             t->param[it->param].from->name, (unsigned long long)pi->n_overflow);
    return -1;
}

static void dss_sum_storages(struct dss *w, struct plan *plan)
{
    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct dss_item *it = pi->user;
        struct ds_file *f = it ? &w->file[it->file] : NULL;

        for (int k = 0; f && k < (pi->n_outs ? pi->n_outs : 1); k++, f += f->next_tp)
            crc_sum_add(&f->sum[it->storage], f->storage[it->storage].len, it->at, plan_share(pi),
                        pi->n_outs ? pi->out[k].crc.acc : pi->crc.acc);
    }
}

/* The file is not synced here: the whole folder is synced when it is published. */
static int dss_seal_file(struct sink *k, const struct ds_file *f, struct err *e)
{
    struct ds_tree x;
    int rc;

    dss_make_file_tree(k->priv, f, &x);
    rc = ds_file_seal(k->dir, f, &x, false, e);
    ds_tree_free(&x);
    return rc;
}

static int write_mp_rank(struct sink *k, int pp, int tp, struct err *e)
{
    const struct ds_target *t = ((const struct dss *)k->priv)->t;
    struct arena *a = arena_new(0);
    const struct source_file *from;
    struct pk *root = ds_tree_mp(t, a, pp, tp, &from, e);
    int rc = root ? ds_file_write_mp(k->dir, topo_mp(t->topo, pp, tp), root, from->pt, t->src->files, e) : -1;

    arena_free(a);
    return rc;
}

static int dss_finish(struct sink *k, struct plan *plan, struct err *e)
{
    struct dss *w = k->priv;

    dss_sum_storages(w, plan);
    for (int i = 0; i < w->n_files; i++)
        if (dss_seal_file(k, &w->file[i], e) < 0)
            return -1;
    for (int pp = 0; pp < w->t->topo.pp; pp++)
        for (int tp = 0; tp < w->t->topo.tp; tp++)
            if (write_mp_rank(k, pp, tp, e) < 0)
                return -1;
    return w->t->repair_log ? ds_file_write_log(k->dir, w->t->repair_log, e) : 0;
}

/* ---- digests ---- */

/* Add the item's contribution to the merged tensor's CRC. */
static void add_share(const struct dss_item *it, const struct plan_item *pi, struct sink_tensor *t)
{
    uint64_t len = plan_out_bytes(pi, pi->len);

    t->crc ^= it->by_columns ? pi->share.acc : crc_shift(pi->crc.acc, t->len - it->logical_at - len);
}

static int dss_tensors(const struct sink *k, struct plan *plan, struct sink_tensor **out)
{
    const struct dss *w = k->priv;
    int *number = xmalloc((size_t)w->t->n_params * STATE_N * sizeof *number), n = 0;
    struct sink_tensor *t = xcalloc((size_t)w->t->n_params * STATE_N + 1, sizeof *t);

    for (int i = 0; i < w->t->n_params * STATE_N; i++) {
        const struct ds_tparam *p = &w->t->param[i / STATE_N];
        enum state st = (enum state)(i % STATE_N);

        number[i] = -1;
        if (st != STATE_BF16 && !w->t->optimizer)
            continue;
        number[i] = n;
        t[n] = (struct sink_tensor){ .name = p->name, .param = p->param, .state = st, .ndim = p->ndim,
                                     .dtype = st == STATE_BF16 ? w->t->weights : DTYPE_F32 };
        memcpy(t[n].shape, p->shape, sizeof t[n].shape);
        t[n].len = (uint64_t)dtype_size(t[n].dtype);
        for (int d = 0; d < p->ndim; d++)
            t[n].len *= (uint64_t)p->shape[d];
        n++;
    }
    for (int i = 0; i < plan_n(plan); i++) {
        const struct dss_item *it = plan_item(plan, i)->user;

        if (it && it->counts)
            add_share(it, plan_item(plan, i), &t[number[it->param * STATE_N + (int)it->pub.state]]);
    }
    free(number);
    *out = t;
    return n;
}

/* ---- the sink ---- */

static void dss_close(struct sink *k)
{
    struct dss *w = k->priv;

    arena_free(w->arena);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "deepspeed", .prepare = dss_prepare, .item_done = dss_item_done, .finish = dss_finish, .close = dss_close,
    .estimate = dss_estimate, .look = dss_on_bytes, .tensors = dss_tensors,
};

struct sink *deepspeed_sink(const struct sink_opts *o, const struct ds_target *t)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct dss *w = xcalloc(1, sizeof *w);

    w->t = t;
    w->arena = arena_new(0);
    w->zeros = -1;
    k->ops = &ops;
    k->o = *o;
    k->priv = w;
    k->no_optimizer = !t->optimizer;
    return k;
}
