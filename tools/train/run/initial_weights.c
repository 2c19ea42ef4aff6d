/*
 * initial_weights.c - initial weights (docs/training.md 1.10)
 *
 * Element i of parameter number p is a function of (seed, p, i) alone, where i is its index in the merged tensor, so
 * a model begins with the same bits in every topology. The masters are equal to the rounded weights, as in the
 * reference, which draws random numbers in the parameters' dtype.
 */
#include "tools/train/run/initial_weights.h"

#include <math.h>
#include <stdlib.h>

#include "libcommon/base/hash.h"
#include "tools/train/run/trainer.h"

static bool is_gamma(enum role r)
{
    return r == ROLE_WORD_NORM_W || r == ROLE_NORM1_W || r == ROLE_NORM2_W || r == ROLE_FINAL_NORM_W;
}

/*
 * Draw elements from .. from + n of this rank's slice of one parameter into x, in fp32. If the columns are split, the
 * range must consist of whole rows.
 */
static void draw_param_values(struct trainer *t, const struct stage_param *p, int64_t from, int64_t n, float *x)
{
    const uint64_t key64 = hash_mix(hash_mix((uint64_t)t->o.seed) ^ (uint64_t)p->id);
    const uint32_t key[2] = { (uint32_t)key64, (uint32_t)(key64 >> 32) };
    double std = t->o.init_method_std;

    if (p->role == ROLE_DENSE_W || p->role == ROLE_DOWN_W)
        std /= sqrt(2.0 * (double)t->model_config.n_layers);
    if (p->merge == MERGE_CAT1) {
        for (int64_t row = from / p->slice[1]; row < (from + n) / p->slice[1]; row++)
            t->k->normal(x + row * p->slice[1] - from, row * p->shape[1] + t->rank_tp * p->slice[1], p->slice[1],
                         (float)std, key, NULL);
        return;
    }
    t->k->normal(x, (p->split ? t->rank_tp * p->n : 0) + from, n, (float)std, key, NULL);
}

/* Initialize one parameter. tmp has space for `room` elements, which must be at least one row of any parameter. */
static void set_param(struct trainer *t, const struct stage_param *p, float *tmp, int64_t room)
{
    const int size = dtype_size(t->t);
    char *w = (char *)t->state.weights + p->at * size;

    if (p->ndim == 2) {
        const int64_t most = room - room % p->slice[1];

        for (int64_t from = 0, n; from < p->n; from += n) {
            n = p->n - from < most ? p->n - from : most;
            draw_param_values(t, p, from, n, tmp);
            t->k->cast(w + from * size, t->t, tmp, DTYPE_F32, n, NULL);
        }
    } else if (is_gamma(p->role)) {
        float *ones = xmalloc((size_t)p->n * sizeof *ones);

        for (int64_t i = 0; i < p->n; i++)
            ones[i] = 1;
        t->k->dev->copy(tmp, ones, (uint64_t)p->n * sizeof *ones, NULL);
        t->k->cast(w, t->t, tmp, DTYPE_F32, p->n, NULL);
        t->k->dev->stream_sync(NULL);
        free(ones);
    }
}

void initial_weights_set(struct trainer *t)
{
    const struct stage *g = t->stage;
    const uint64_t grads = (uint64_t)(g->flat_n * dtype_size(t->model_opts.grad_t ? t->t : DTYPE_F32));

    t->k->dev->zero(t->state.weights, (uint64_t)g->flat_n * dtype_size(t->t), NULL);
    t->k->dev->zero(t->state.master, (uint64_t)g->shard_n * 4, NULL);
    t->k->dev->zero(t->state.exp_avg, (uint64_t)g->shard_n * 4, NULL);
    t->k->dev->zero(t->state.exp_avg_sq, (uint64_t)g->shard_n * 4, NULL);
    /* The gradients are not in use yet, so their memory serves as scratch space. */
    for (int i = 0; i < g->n_params; i++)
        set_param(t, &g->param[i], t->state.grads, (int64_t)(grads / sizeof(float)));
    t->k->dev->zero(t->state.grads, grads, NULL);
    for (int i = 0; i < g->n_runs; i++) {
        const struct stage_run *r = &g->run[i];

        t->k->cast(t->state.master + r->shard_at, DTYPE_F32,
                   (char *)t->state.weights + (g->param[r->param].at + r->from) * dtype_size(t->t), t->t, r->n, NULL);
    }
    t->k->dev->stream_sync(NULL);
}
