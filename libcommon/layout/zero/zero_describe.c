/*
 * zero_describe.c - describe the folder of a ZeRO target: model_states and optim_states of every rank
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/ds_file.h"
#include "libcommon/layout/zero/zero_tree.h"
#include "libcommon/write/folder.h"

struct zero_folder {
    const struct zero_target *t;
    /* [parameter][state]: index of the tensor in the list of the result's tensors; -1 if there is none */
    int *number;
};

/* ---- files: the model_states, then the optim_states of each rank ---- */

static int zero_model_files(const struct zero_target *t)
{
    return t->shape.stage == 3 ? t->shape.world : 1;
}

static const char *zero_file_name(const struct zero_target *t, int file, char *buf, size_t room)
{
    const int n_model = zero_model_files(t);

    if (file >= n_model)
        snprintf(buf, room, "%szero_pp_rank_%d_mp_rank_00_optim_states.pt", t->bf16_names ? "bf16_" : "",
                 file - n_model);
    else if (t->shape.stage == 3)
        snprintf(buf, room, "zero_pp_rank_%d_mp_rank_00_model_states.pt", file);
    else
        snprintf(buf, room, "mp_rank_00_model_states.pt");
    return buf;
}

/*
 * Returns the index of the tensor whose digest includes the bytes of `fill`. Returns -1 if these bytes are only a copy
 * of bytes that another fill writes. Such copies are the fp32 weights of trained parameters in model_states, because
 * the vectors already have the master weights.
 */
static int zero_fill_tensor(const struct zero_folder *z, const struct zero_fill *fill, bool model)
{
    const struct zero_target *t = z->t;

    if (fill->param < 0 || (model && fill->state != STATE_BF16 && !t->weights_only &&
                            zero_target_trains(t, source_param_at(t->src, fill->param))))
        return -1;
    return z->number[fill->param * STATE_N + (int)fill->state];
}

/* Returns the offset in the written tensor (after a change of type) at which `fill` begins. */
static uint64_t zero_fill_offset(const struct zero_fill *fill)
{
    const struct plan_item as = { .map = fill->map, .op = fill->op };

    return plan_out_bytes(&as, fill->from);
}

static int zero_describe(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    const struct zero_folder *z = ctx;
    const int n_model = zero_model_files(z->t);
    const bool model = file < n_model;
    struct zero_tree x;
    char buf[96];

    (void)e;
    if (model)
        zero_tree_model(z->t, file, d->keep, &x);
    else
        zero_tree_optim(z->t, file - n_model, d->keep, &x);
    ds_describe_file(d, zero_file_name(z->t, file, buf, sizeof buf), &x.ds);
    for (int i = 0; i < x.n; i++) {
        const struct zero_fill *f = &x.fill[i];

        folder_add_fill(d, &(struct folder_fill){
            .map = f->map, .from = f->from, .len = f->len, .op = f->op, .name = d->name,
            .to = { file, f->storage, f->at }, .param = f->param, .state = f->state,
            .tensor = zero_fill_tensor(z, f, model), .in = zero_fill_offset(f),
        });
    }
    zero_tree_free(&x);
    return 0;
}

/* ---- the tensors that a reader of the result finds ---- */

/* List each tensor of the target once, and store its index in z->number. */
static int list_zero_tensors(const struct zero_folder *z, struct folder_tensor *out)
{
    const struct zero_target *t = z->t;
    const struct source *s = t->src;
    int n = 0;

    for (int i = 0; i < source_n_params(s) * STATE_N; i++) {
        const struct param *p = source_param_at(s, i / STATE_N);
        enum state st = (enum state)(i % STATE_N);
        bool trained = zero_target_trains(t, p) && !t->weights_only;
        bool weights = st == (zero_target_weights_type(t, p) == DTYPE_F32 ? STATE_FP32 : STATE_BF16);
        struct sink_tensor *of = &out[n].of;

        z->number[i] = -1;
        if (zero_target_holder(t, p->name) || (!p->state[STATE_BF16] && !p->state[STATE_FP32]) ||
            (trained ? st == STATE_BF16 && (!weights || t->shape.stage == 3) : !weights))
            continue;
        *of = (struct sink_tensor){ .name = p->name, .param = i / STATE_N, .state = st, .ndim = p->ndim,
                                    .dtype = st == STATE_BF16 ? t->weights
                                             : trained ? zero_target_vector(t, zero_target_group(t, p), st)
                                                       : DTYPE_F32 };
        memcpy(of->shape, p->shape, sizeof of->shape);
        of->len = (uint64_t)shape_bytes(p->ndim, p->shape, of->dtype);
        out[n].same_as = -1;
        z->number[i] = n++;
    }
    return n;
}

/* Append the other names of tied weights to out[], after the n tensors in it. Returns the number of all entries. */
static int list_zero_second_names(const struct zero_folder *z, struct folder_tensor *out, int n)
{
    const struct source *s = z->t->src;
    int all = n;

    for (int i = 0; i < source_n_params(s); i++) {
        const char *holder = zero_target_holder(z->t, source_param_at(s, i)->name);

        for (int k = 0; holder && k < n; k++)
            if (strcmp(out[k].of.name, holder) == 0 &&
                (out[k].of.state == STATE_BF16 || out[k].of.state == STATE_FP32)) {
                out[all] = (struct folder_tensor){ .of = out[k].of, .same_as = k };
                out[all].of.param = i;
                out[all++].of.name = source_param_at(s, i)->name;
            }
    }
    return all;
}

static int zero_tensors(void *ctx, struct folder_tensor **out)
{
    const struct zero_folder *z = ctx;

    *out = xcalloc((size_t)source_n_params(z->t->src) * STATE_N + 1, sizeof **out);
    return list_zero_second_names(z, *out, list_zero_tensors(z, *out));
}

/* ---- the folder ---- */

static int begin_zero_folder(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    const struct zero_target *t = ((const struct zero_folder *)ctx)->t;

    (void)s;
    (void)o;
    (void)e;
    return zero_model_files(t) + (t->weights_only ? 0 : t->shape.world);
}

static void close_zero_folder(void *ctx)
{
    struct zero_folder *z = ctx;

    free(z->number);
    free(z);
}

static const struct folder_ops zero_folder_ops = {
    .name = "zero",
    .begin = begin_zero_folder,
    .describe = zero_describe,
    .tensors = zero_tensors,
    .close = close_zero_folder,
};

struct sink *zero_sink(const struct sink_opts *o, const struct zero_target *t)
{
    struct zero_folder *z = xcalloc(1, sizeof *z);

    z->t = t;
    z->number = xmalloc(((size_t)source_n_params(t->src) * STATE_N + 1) * sizeof *z->number);
    return folder_sink(o, &(struct folder){ .ops = &zero_folder_ops, .ctx = z, .overflow = " weights" });
}
