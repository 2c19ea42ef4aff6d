/*
 * run_network.c - the memory of a rank's part of the model, and its initial weights (docs/training.md 1.10)
 *
 * The initial value of element i of parameter p depends only on (seed, p, i), where i is the index in the merged
 * tensor. A model therefore begins with the same bits in every topology. The fp32 master weights are equal to the
 * rounded weights, as in the reference, which draws random numbers in the dtype of the weights.
 */
#include "tools/train/run/run_network.h"

#include <math.h>
#include <stdlib.h>

#include "libcommon/base/hash.h"
#include "tools/train/options/train_options.h"

int run_network_allocate(struct run_network *net, const struct dev_ops *dev, struct err *e)
{
    const struct stage *g = net->stage;
    const uint64_t weights = align_up((uint64_t)g->flat_n * dtype_size(net->model_opts.t), 256);
    const uint64_t grads = align_up((uint64_t)g->flat_n * dtype_size(run_network_grads(net)), 256);
    const uint64_t shard = align_up((uint64_t)g->shard_n * 4, 256);
    char *at = net->memory = dev->alloc(weights + grads + 3 * shard, e);

    if (!at)
        return -1;
    dev->zero(at + weights, grads, NULL);
    net->state.weights = at;
    net->state.grads = at += weights;
    net->state.master = (float *)(void *)(at += grads);
    net->state.exp_avg = (float *)(void *)(at += shard);
    net->state.exp_avg_sq = (float *)(void *)(at + shard);
    return 0;
}

/* ---- initial weights ---- */

static bool is_gamma(enum role r)
{
    return r == ROLE_WORD_NORM_W || r == ROLE_NORM1_W || r == ROLE_NORM2_W || r == ROLE_FINAL_NORM_W;
}

/* What is needed to draw the initial values of any parameter. */
struct draw {
    const struct train_opts *o;
    const struct kernels *k;
    int n_layers, rank_tp;
    enum dtype weights;
    float *tmp;                 /* device memory for `room` elements, which is at least one row of any parameter */
    int64_t room;
};

/*
 * Draw the values of elements from .. from + n of this rank's slice of a parameter, and store them in d->tmp as fp32.
 * If the columns are split over ranks, the range must consist of whole rows.
 */
static void draw_param_values(const struct draw *d, const struct stage_param *p, int64_t from, int64_t n)
{
    const uint64_t key64 = hash_mix(hash_mix((uint64_t)d->o->seed) ^ (uint64_t)p->id);
    const uint32_t key[2] = { (uint32_t)key64, (uint32_t)(key64 >> 32) };
    double std = d->o->init_method_std;

    if (p->role == ROLE_DENSE_W || p->role == ROLE_DOWN_W)
        std /= sqrt(2.0 * d->n_layers);
    if (p->merge == MERGE_CAT1) {
        for (int64_t row = from / p->slice[1]; row < (from + n) / p->slice[1]; row++)
            d->k->normal(d->tmp + row * p->slice[1] - from, row * p->shape[1] + d->rank_tp * p->slice[1], p->slice[1],
                         (float)std, key, NULL);
        return;
    }
    d->k->normal(d->tmp, (p->split ? d->rank_tp * p->n : 0) + from, n, (float)std, key, NULL);
}

/* Set the initial weights of the parameter *p, whose memory begins at w. */
static void set_param(const struct draw *d, const struct stage_param *p, char *w)
{
    const int size = dtype_size(d->weights);

    if (p->ndim == 2) {
        const int64_t most = d->room - d->room % p->slice[1];

        for (int64_t from = 0, n; from < p->n; from += n) {
            n = p->n - from < most ? p->n - from : most;
            draw_param_values(d, p, from, n);
            d->k->cast(w + from * size, d->weights, d->tmp, DTYPE_F32, n, NULL);
        }
    } else if (is_gamma(p->role)) {
        float *ones = xmalloc((size_t)p->n * sizeof *ones);

        for (int64_t i = 0; i < p->n; i++)
            ones[i] = 1;
        d->k->dev->copy(d->tmp, ones, (uint64_t)p->n * sizeof *ones, NULL);
        d->k->cast(w, d->weights, d->tmp, DTYPE_F32, p->n, NULL);
        d->k->dev->stream_sync(NULL);
        free(ones);
    }
}

void run_network_init_weights(const struct run_network *net, const struct train_opts *o, const struct kernels *k)
{
    const struct stage *g = net->stage;
    const struct stage_state *st = &net->state;
    const enum dtype t = net->model_opts.t;
    const uint64_t grads = (uint64_t)(g->flat_n * dtype_size(run_network_grads(net)));
    /* Use the memory of the gradients as scratch memory, because there are no gradients yet. */
    const struct draw d = { .o = o, .k = k, .n_layers = (int)o->num_layers, .rank_tp = g->tp, .weights = t,
                            .tmp = st->grads, .room = (int64_t)(grads / sizeof(float)) };

    k->dev->zero(st->weights, (uint64_t)g->flat_n * dtype_size(t), NULL);
    k->dev->zero(st->master, (uint64_t)g->shard_n * 4, NULL);
    k->dev->zero(st->exp_avg, (uint64_t)g->shard_n * 4, NULL);
    k->dev->zero(st->exp_avg_sq, (uint64_t)g->shard_n * 4, NULL);
    for (int i = 0; i < g->n_params; i++)
        set_param(&d, &g->param[i], (char *)st->weights + g->param[i].at * dtype_size(t));
    k->dev->zero(st->grads, grads, NULL);
    for (int i = 0; i < g->n_runs; i++) {
        const struct stage_run *r = &g->run[i];

        k->cast(st->master + r->shard_at, DTYPE_F32,
                (char *)st->weights + (g->param[r->param].at + r->from) * dtype_size(t), t, r->n, NULL);
    }
    k->dev->stream_sync(NULL);
}
