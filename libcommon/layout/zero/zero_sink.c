/*
 * zero_sink.c - write model_states and optim_states of a target
 *
 * Phases: every file is laid out, and its items, each a range of a tensor, are added to the plan. The executor fills
 * the storages. At the end each storage's CRC is computed from its items, with padding as zeros, and headers are
 * written around the storages. Until then a file has no directory and is not a valid .pt.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed/deepspeed_file.h"
#include "libcommon/layout/zero/zero_tree.h"
#include "libcommon/write/sink.h"

/* One item: a run of one storage, and its position in the tensor. */
struct zero_item {
    struct sink_item pub;
    int file, storage;
    uint64_t at;                        /* offset in the storage, in bytes */
    bool counts;                        /* included in the tensor's digest, because it is not a copy of another item */
    uint64_t logical_at;                /* offset in the tensor, as written */
};

struct zero_writer {
    const struct zero_target *t;
    struct arena *arena;                /* holds the items as well, because the plan keeps pointers to them */
    int n_files;
    struct ds_file *file;               /* dp is the rank; layer is 0 for model_states, -1 for optim_states */
};

/* ---- the files ---- */

static void make_zero_file_tree(const struct zero_writer *w, const struct ds_file *f, struct arena *keep,
                                struct zero_tree *x)
{
    if (f->layer >= 0)
        zero_tree_model(w->t, f->dp, keep, x);
    else
        zero_tree_optim(w->t, f->dp, keep, x);
}

static void zero_add_sink_file(struct zero_writer *w, const char *name, bool model, int rank)
{
    struct ds_file *f = &w->file[w->n_files++];

    *f = ds_file_new(w->arena, name);
    f->layer = model ? 0 : -1;
    f->dp = rank;
}

static void zero_list_sink_files(struct zero_writer *w)
{
    const struct zero_shape *x = &w->t->shape;
    char name[96];

    if (w->file)
        return;
    w->file = arena_alloc(w->arena, 2 * (size_t)x->world * sizeof *w->file);
    if (x->stage < 3)
        zero_add_sink_file(w, "mp_rank_00_model_states.pt", true, 0);
    for (int r = 0; x->stage == 3 && r < x->world; r++) {
        snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_model_states.pt", r);
        zero_add_sink_file(w, name, true, r);
    }
    for (int r = 0; r < x->world && !w->t->weights_only; r++) {
        snprintf(name, sizeof name, "%szero_pp_rank_%d_mp_rank_00_optim_states.pt", w->t->bf16_names ? "bf16_" : "", r);
        zero_add_sink_file(w, name, false, r);
    }
}

static uint64_t zero_sink_estimate(const struct sink *k, const struct source *s)
{
    struct zero_writer *w = k->priv;
    uint64_t bytes = 1 << 20;           /* manifest, folder */

    (void)s;
    zero_list_sink_files(w);
    for (int i = 0; i < w->n_files; i++) {
        struct zero_tree x;

        make_zero_file_tree(w, &w->file[i], NULL, &x);
        bytes += align_up(ds_file_size(&w->file[i], &x.ds), 4096);
        zero_tree_free(&x);
    }
    return bytes;
}

/* ---- the plan ---- */

/*
 * Returns true if the item is included in the digest. Masters and moments are stored once in vectors. fp32 weights
 * of trained parameters are copies of the masters.
 */
static bool is_counted_fill(const struct zero_writer *w, const struct ds_file *f, const struct zero_fill *fill)
{
    return fill->param >= 0 && (f->layer < 0 || fill->state == STATE_BF16 || w->t->weights_only ||
                                !zero_target_trains(w->t, &w->t->src->param[fill->param]));
}

static void zero_add_plan_item(struct sink *k, int file, const struct zero_fill *fill, struct plan *plan)
{
    struct zero_writer *w = k->priv;
    struct ds_file *f = &w->file[file];
    struct zero_item *it = arena_alloc(w->arena, sizeof *it);
    struct plan_item *pi;
    int n;

    *it = (struct zero_item){
        .file = file, .storage = fill->storage, .at = fill->at, .counts = is_counted_fill(w, f, fill)
    };
    it->pub = (struct sink_item){ .param = fill->param < 0 ? 0 : fill->param, .state = fill->state, .file = f->name,
                                  .repeated = fill->param < 0 };
    n = plan_add(plan, &(struct plan_range){ .map = fill->map, .from = fill->from, .len = fill->len,
                                             .policy = k->o.replicas, .user = it, .name = f->name },
                 f->dst, f->at[fill->storage] + fill->at);
    pi = plan_item(plan, n);
    pi->op = fill->op;
    it->logical_at = plan_out_bytes(pi, fill->from);
}

static int zero_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan, struct err *e)
{
    struct zero_writer *w = k->priv;

    (void)e;
    k->src = s;
    k->dir = xstrdup(dir);
    zero_list_sink_files(w);
    for (int i = 0; i < w->n_files; i++) {
        struct ds_file *f = &w->file[i];
        char *path = path_join(dir, f->name);
        struct zero_tree x;

        make_zero_file_tree(w, f, w->arena, &x);
        ds_file_lay_out(w->arena, f, &x.ds);
        f->dst = plan_add_sized(plan, path, f->size);
        for (int n = 0; n < x.n; n++)
            zero_add_plan_item(k, i, &x.fill[n], plan);
        zero_tree_free(&x);
        free(path);
    }
    return 0;
}

static int zero_sink_item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct zero_item *it = pi->user;

    if (pi->n_overflow == 0)
        return 0;
    err_data(e, k->src->path, ERR_NO_BYTE, "parameter %s: %llu values are beyond 65504, the largest of fp16 weights",
             k->src->param[it->pub.param].name, (unsigned long long)pi->n_overflow);
    return -1;
}

/* ---- headers ---- */

/*
 * Compute the storages' CRCs. A storage's CRC is the sum of those of its pieces, each shifted by the bytes that
 * follow it. Bytes that no item fills are zeros, so each item is added as its difference to the CRC of a storage of
 * zeros.
 */
static void sum_zero_storage_crcs(struct zero_writer *w, struct plan *plan)
{
    for (int i = 0; i < w->n_files; i++)
        for (int s = 0; s < w->file[i].n; s++)
            w->file[i].sum[s].acc = crc_zeros(w->file[i].storage[s].len);
    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct zero_item *it = pi->user;
        uint64_t len = plan_out_bytes(pi, pi->len);

        if (it)
            w->file[it->file].sum[it->storage].acc ^=
                crc_shift(pi->crc.acc ^ crc_zeros(len), w->file[it->file].storage[it->storage].len - it->at - len);
    }
}

static int zero_sink_finish(struct sink *k, struct plan *plan, struct err *e)
{
    struct zero_writer *w = k->priv;
    int rc = 0;

    sum_zero_storage_crcs(w, plan);
    for (int i = 0; i < w->n_files && rc == 0; i++) {
        struct zero_tree x;

        make_zero_file_tree(w, &w->file[i], NULL, &x);
        rc = ds_file_seal(k->dir, &w->file[i], &x.ds, false, e);
        zero_tree_free(&x);
    }
    return rc == 0 && w->t->repair_log ? ds_file_write_log(k->dir, w->t->repair_log, e) : rc;
}

/* ---- digests ---- */

/* List the tensors that a reader of the result will find, each once. */
static int list_zero_sink_tensors(const struct zero_writer *w, struct sink_tensor *t, int *number)
{
    const struct source *s = w->t->src;
    int n = 0;

    for (int i = 0; i < s->n_params * STATE_N; i++) {
        const struct param *p = &s->param[i / STATE_N];
        enum state st = (enum state)(i % STATE_N);
        bool trained = zero_target_trains(w->t, p) && !w->t->weights_only;
        bool weights = st == (zero_target_weights_type(w->t, p) == DTYPE_F32 ? STATE_FP32 : STATE_BF16);

        number[i] = -1;
        if (zero_target_holder(w->t, p->name) || (!p->state[STATE_BF16] && !p->state[STATE_FP32]) ||
            (trained ? st == STATE_BF16 && (!weights || w->t->shape.stage == 3) : !weights))
            continue;
        number[i] = n;
        t[n] = (struct sink_tensor){ .name = p->name, .param = i / STATE_N, .state = st, .ndim = p->ndim,
                                     .dtype = st == STATE_BF16 ? w->t->weights
                                              : trained ? zero_target_vector(w->t, zero_target_group(w->t, p), st)
                                                        : DTYPE_F32 };
        memcpy(t[n].shape, p->shape, sizeof t[n].shape);
        t[n].len = (uint64_t)dtype_size(t[n].dtype);
        for (int d = 0; d < p->ndim; d++)
            t[n].len *= (uint64_t)p->shape[d];
        n++;
    }
    return n;
}

/* Add second names of weights, with the digests of their holders. */
static int list_shared(const struct zero_writer *w, struct sink_tensor *t, int n)
{
    const struct source *s = w->t->src;
    int all = n;

    for (int i = 0; i < s->n_params; i++) {
        const char *holder = zero_target_holder(w->t, s->param[i].name);

        for (int k = 0; holder && k < n; k++)
            if (strcmp(t[k].name, holder) == 0 && (t[k].state == STATE_BF16 || t[k].state == STATE_FP32)) {
                t[all] = t[k];
                t[all].param = i;
                t[all++].name = s->param[i].name;
            }
    }
    return all;
}

static int zero_sink_tensors(const struct sink *k, struct plan *plan, struct sink_tensor **out)
{
    const struct zero_writer *w = k->priv;
    const size_t room = (size_t)w->t->src->n_params * STATE_N + 1;
    struct sink_tensor *t = xcalloc(room, sizeof *t);
    int *number = xmalloc(room * sizeof *number), n = list_zero_sink_tensors(w, t, number);

    for (int i = 0; i < plan_n(plan); i++) {
        const struct plan_item *pi = plan_item(plan, i);
        const struct zero_item *it = pi->user;
        int at = it && it->counts ? number[it->pub.param * STATE_N + (int)it->pub.state] : -1;

        if (at >= 0)
            t[at].crc ^= crc_shift(pi->crc.acc, t[at].len - it->logical_at - plan_out_bytes(pi, pi->len));
    }
    free(number);
    *out = t;
    return list_shared(w, t, n);
}

/* ---- the sink ---- */

static void zero_sink_close(struct sink *k)
{
    struct zero_writer *w = k->priv;

    arena_free(w->arena);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "zero",
    .prepare = zero_sink_prepare,
    .item_done = zero_sink_item_done,
    .finish = zero_sink_finish,
    .close = zero_sink_close,
    .estimate = zero_sink_estimate,
    .tensors = zero_sink_tensors,
};

struct sink *zero_sink(const struct sink_opts *o, const struct zero_target *t)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct zero_writer *w = xcalloc(1, sizeof *w);

    w->t = t;
    w->arena = arena_new(0);
    k->ops = &ops;
    k->o = *o;
    k->priv = w;
    return k;
}
