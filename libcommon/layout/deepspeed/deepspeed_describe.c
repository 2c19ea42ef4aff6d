/*
 * deepspeed_describe.c - describe the layer and zero files of a target, and write its mp_rank files
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_folder.h"

/* ---- the files ---- */

static struct ds_folder_file *add_ds_folder_file(struct ds_folder *w)
{
    struct ds_folder_file *f = &w->file[w->n_files++];

    *f = (struct ds_folder_file){ .layer = -1, .pp = -1, .tp = -1, .dp = -1 };
    return f;
}

static void list_layer_files(struct ds_folder *w)
{
    const struct ds_target *t = w->t;

    for (int i = 0; i < t->n_params; i++)
        for (int tp = 0; tp < t->topo.tp && (i == 0 || t->param[i].layer != t->param[i - 1].layer); tp++) {
            struct ds_folder_file *f = add_ds_folder_file(w);

            f->layer = t->param[i].layer;
            f->tp = tp;
            f->next_tp = 1;
        }
}

static void list_zero_shard_files(struct ds_folder *w)
{
    const struct ds_target *t = w->t;

    for (int pp = 0; pp < t->topo.pp; pp++)
        for (int tp = 0; tp < t->topo.tp; tp++)
            for (int dp = 0; dp < t->topo.dp; dp++)
                *add_ds_folder_file(w) = (struct ds_folder_file){ -1, pp, tp, dp, .next_tp = t->topo.dp };
}

static int begin_ds_folder(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    struct ds_folder *w = ctx;

    (void)s;
    (void)o;
    (void)e;
    w->file = arena_alloc(w->arena, (size_t)ds_target_n_files(w->t) * sizeof *w->file);
    list_layer_files(w);
    if (w->t->optimizer)
        list_zero_shard_files(w);
    w->columns = arena_alloc(w->arena, (size_t)w->t->n_params * STATE_N * (size_t)w->t->topo.tp * sizeof *w->columns);
    return w->n_files;
}

static int describe_ds_file(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    struct ds_folder *w = ctx;
    const struct ds_folder_file *f = &w->file[file];
    const struct ds spelling = { .bf16_prefix = w->t->bf16_prefix, .joined = w->t->joined };
    struct ds_tree x;
    char buf[96];

    (void)e;
    if (f->layer >= 0) {
        ds_tree_layer(w->t, f->layer, &x);
        ds_describe_file(d, ds_layer_name(f->layer, f->tp, buf), &x);
    } else {
        ds_tree_zero(w->t, f->pp, f->dp, &x);
        ds_describe_file(d, ds_zero_name(&spelling, topo_mp(w->t->topo, f->pp, f->tp), f->dp, buf), &x);
    }
    if (d->keep)
        ds_add_fills(w, file, &x, d);
    ds_tree_free(&x);
    return 0;
}

/* ---- the tensors that a reader of the result finds ---- */

static int list_ds_tensors(void *ctx, struct folder_tensor **out)
{
    struct ds_folder *w = ctx;
    const int n_states = w->t->n_params * STATE_N;
    struct folder_tensor *x = xcalloc((size_t)n_states + 1, sizeof *x);
    int n = 0;

    w->number = arena_alloc(w->arena, (size_t)n_states * sizeof *w->number + 1);
    for (int i = 0; i < n_states; i++) {
        const struct ds_tparam *p = &w->t->param[i / STATE_N];
        enum state st = (enum state)(i % STATE_N);
        struct sink_tensor *t = &x[n].of;

        w->number[i] = -1;
        if (st != STATE_BF16 && !w->t->optimizer)
            continue;
        *t = (struct sink_tensor){ .name = p->name, .param = p->param, .state = st, .ndim = p->ndim,
                                   .dtype = st == STATE_BF16 ? w->t->weights : DTYPE_F32 };
        memcpy(t->shape, p->shape, sizeof t->shape);
        t->len = (uint64_t)shape_bytes(p->ndim, p->shape, t->dtype);
        x[n].same_as = -1;
        w->number[i] = n++;
    }
    *out = x;
    return n;
}

/* ---- the mp_rank files ---- */

static int write_mp_rank(const struct ds_target *t, const char *dir, int pp, int tp, struct err *e)
{
    struct arena *a = arena_new(0);
    const struct pt *tensors;
    char name[96];
    struct pk *root = ds_tree_mp(t, a, pp, tp, &tensors, e);
    int rc = -1;

    if (root)
        rc = ds_file_write(dir, ds_mp_name(topo_mp(t->topo, pp, tp), name), root, tensors, source_files(t->src), e);
    arena_free(a);
    return rc;
}

static uint64_t mp_rank_bytes(void *ctx)
{
    const struct ds_target *t = ((const struct ds_folder *)ctx)->t;
    const struct source_file *mp = ds_mp_file(t->src, 0, 0);
    uint8_t *bytes = NULL;
    uint64_t size = mp ? files_size(source_files(t->src), mp->file) : 0;
    struct err e = {0};

    if (t->made && pt_build("mp_rank_00_model_states", t->mp_root, NULL, source_files(t->src), &bytes, &size, &e) < 0)
        size = 0;
    free(bytes);
    return size ? (uint64_t)(t->topo.pp * t->topo.tp) * align_up(size + 4096, 4096) : 0;
}

static int finish_ds_folder(void *ctx, const struct folder_written *w, struct err *e)
{
    const struct ds_target *t = ((const struct ds_folder *)ctx)->t;

    for (int pp = 0; pp < t->topo.pp; pp++)
        for (int tp = 0; tp < t->topo.tp; tp++)
            if (write_mp_rank(t, w->dir, pp, tp, e) < 0)
                return -1;
    return 0;
}

/* ---- the folder ---- */

static void close_ds_folder(void *ctx)
{
    arena_free(((struct ds_folder *)ctx)->arena);
    free(ctx);
}

static const struct folder_ops ds_folder_ops = {
    .name = "deepspeed",
    .begin = begin_ds_folder,
    .describe = describe_ds_file,
    .tensors = list_ds_tensors,
    .extra_bytes = mp_rank_bytes,
    .finish = finish_ds_folder,
    .close = close_ds_folder,
};

struct sink *deepspeed_sink(const struct sink_opts *o, const struct ds_target *t)
{
    struct ds_folder *w = xcalloc(1, sizeof *w);
    struct sink *k;

    w->t = t;
    w->arena = arena_new(0);
    w->zeros = -1;
    k = folder_sink(o, &(struct folder){ .ops = &ds_folder_ops, .ctx = w, .overflow = " weights", .by_rows = true });
    k->no_optimizer = !t->optimizer;
    return k;
}
