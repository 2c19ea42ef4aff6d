/*
 * dsmoe_describe.c - describe the folder of a target: the file of the model, those of the experts, and those of the
 * optimizer's ranks
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dsmoe/dsmoe_target.h"
#include "libcommon/write/folder.h"

struct dsmoe_folder {
    const struct dsmoe_target *t;
    /* [parameter * STATE_N + state]: index in the list of the result's tensors; -1 if there is none */
    int *number;
    bool copies_agree;                  /* the conversion fails if copies differ, so that any of them can be read */
};

/* ---- files: the model, the experts layer by layer, the optimizer's ranks ---- */

/* Make the tree of a file. Returns the file's name, in the tree's arena. */
static const char *make_tree(const struct dsmoe_folder *z, int file, struct arena *keep, struct zero_tree *x)
{
    const struct dsmoe_target *t = z->t;
    const int rank = file - 1 - t->n_experts;

    if (file == 0) {
        dsmoe_tree_model(t, keep, x);
        return "mp_rank_00_model_states.pt";
    }
    if (rank >= 0) {
        dsmoe_tree_optim(t, rank, keep, x);
        return t->sharded ? arena_fmt(x->ds.arena, "%szero_pp_rank_%d_mp_rank_00_optim_states.pt",
                                      t->bf16_prefix ? "bf16_" : "", rank)
                          : arena_fmt(x->ds.arena, "expp_rank_%d_mp_rank_00_optim_states.pt", rank);
    }
    dsmoe_tree_expert(t, file - 1, keep, x);
    return arena_fmt(x->ds.arena, "layer_%d_expert_%d_mp_rank_00_model_states.pt", t->expert[file - 1].layer,
                     t->expert[file - 1].expert);
}

/*
 * Returns true if no other fill writes the bytes of this one. Without ZeRO every rank has the states of parameters that
 * are not of experts, and the model's file those of rank 0.
 */
static bool is_first_fill(const struct dsmoe_folder *z, int file, const struct zero_fill *f)
{
    const struct param *p = source_param_at(z->t->src, f->param);
    const char *rest;
    int expert;

    if (f->map != p->state[f->state])
        return false;                   /* the weights next to masters of the same type */
    if (file <= z->t->n_experts)
        return f->map == dsmoe_weights(p);
    return z->t->sharded || file == 1 + z->t->n_experts || dsmoe_layer_of(&z->t->read, p->name, &expert, &rest);
}

/* Returns the map of a fill that is not the first, reduced to one of its copies if the first fill compares all. */
static const struct tmap *one_copy(const struct dsmoe_folder *z, const struct tmap *m, struct arena *keep)
{
    struct tmap *one;

    if (!z->copies_agree || m->op != TMAP_REPLICAS || !keep)
        return m;
    one = arena_alloc(keep, sizeof *one);
    *one = *m;
    one->op = TMAP_CONCAT;
    one->n_slices = 1;
    return one;
}

static int dsmoe_describe(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    const struct dsmoe_folder *z = ctx;
    struct zero_tree x;
    const char *name = make_tree(z, file, d->keep, &x);

    (void)e;
    ds_describe_file(d, name, &x.ds);
    for (int i = 0; i < x.n; i++) {
        const struct zero_fill *f = &x.fill[i];
        const bool first = f->param >= 0 && is_first_fill(z, file, f);

        folder_add_fill(d, &(struct folder_fill){
            .map = first ? f->map : one_copy(z, f->map, d->keep), .from = f->from, .len = f->len, .op = f->op,
            .name = d->name, .to = { file, f->storage, f->at }, .param = f->param, .state = f->state,
            .repeated = !first, .tensor = first ? z->number[f->param * STATE_N + (int)f->state] : -1, .in = f->from });
    }
    zero_tree_free(&x);
    return 0;
}

/* ---- the tensors that a reader of the result finds ---- */

static int dsmoe_tensors(void *ctx, struct folder_tensor **out)
{
    const struct dsmoe_folder *z = ctx;
    const struct source *s = z->t->src;
    struct folder_tensor *list = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *list);
    int n = 0;

    for (int i = 0; i < s->n_params * STATE_N; i++) {
        const struct param *p = &s->param[i / STATE_N], *of = p->shared_with ? source_param(s, p->shared_with) : p;
        const enum state st = (enum state)(i % STATE_N);

        z->number[i] = -1;
        if (!p->state[st] || !of->state[st])
            continue;
        list[n].of = (struct sink_tensor){ .name = p->name, .param = i / STATE_N, .state = st, .ndim = p->ndim,
                                           .dtype = of->state[st]->dtype, .len = of->state[st]->len };
        memcpy(list[n].of.shape, p->shape, sizeof p->shape);
        list[n].same_as = p->shared_with ? z->number[source_param_index(s, of) * STATE_N + (int)st] : -1;
        z->number[i] = n++;
    }
    *out = list;
    return n;
}

/* ---- the folder ---- */

static int begin_dsmoe_folder(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    struct dsmoe_folder *z = ctx;

    (void)s;
    (void)e;
    z->copies_agree = o->replicas == REPLICAS_FAIL;
    return 1 + z->t->n_experts + (z->t->sharded ? z->t->world : z->t->n_ep);
}

static void close_dsmoe_folder(void *ctx)
{
    struct dsmoe_folder *z = ctx;

    free(z->number);
    free(z);
}

static const struct folder_ops dsmoe_folder_ops = {
    .name = "dsmoe",
    .begin = begin_dsmoe_folder,
    .describe = dsmoe_describe,
    .tensors = dsmoe_tensors,
    .close = close_dsmoe_folder,
};

struct sink *dsmoe_sink(const struct sink_opts *o, const struct dsmoe_target *t)
{
    struct dsmoe_folder *z = xcalloc(1, sizeof *z);

    z->t = t;
    z->number = xmalloc(((size_t)t->src->n_params * STATE_N + 1) * sizeof *z->number);
    return folder_sink(o, &(struct folder){ .ops = &dsmoe_folder_ops, .ctx = z });
}
