/* optimizer.c - reduce, norm, clip, AdamW, gather */
#include <math.h>
#include <stdlib.h>

#include "tools/train/optimizer.h"

struct optimizer {
    const struct stage *g;
    struct stage_state st;
    const struct kernels *k;
    struct optimizer_groups c;
    struct optimizer_opts o;
    char *pool;
    float *grad;                /* [shard_n] averaged gradients of what this rank owns; DP 1: the flat buffer itself */
    void *wire;                 /* bf16 [largest bucket], then [its part]: gradients as they travel */
    double *sums;               /* [n_ids] sum of squares of each parameter of the model */
    double *tmp;
    struct kernel_adamw *step;
    double *host_sums;
};

static int64_t largest_bucket(const struct stage *g)
{
    int64_t n = 0;

    for (int i = 0; i < g->n_buckets; i++)
        n = g->bucket[i].n > n ? g->bucket[i].n : n;
    return n;
}

static int64_t largest_run(const struct stage *g)
{
    int64_t n = 0;

    for (int i = 0; i < g->n_runs; i++)
        n = g->run[i].n > n ? g->run[i].n : n;
    return n;
}

static uint64_t wire_elems(const struct stage *g, const struct optimizer_opts *o)
{
    int64_t n = largest_bucket(g);

    if (o->reduce != DTYPE_BF16)
        return 0;
    return (uint64_t)(g->topo.dp > 1 ? n + n / g->topo.dp : n);
}

static uint64_t grad_bytes(const struct stage *g)
{
    return g->topo.dp > 1 ? align_up((uint64_t)g->shard_n * 4, 256) : 0;
}

/* kernels' scratch for the norm is asked of them; this is for the plan printed before anything is allocated. */
uint64_t optimizer_bytes(const struct stage *g, const struct optimizer_opts *o)
{
    return grad_bytes(g) + align_up(wire_elems(g, o) * 2, 256) +
           align_up((uint64_t)g->n_ids * 8, 256) + 256;
}

struct optimizer *optimizer_new(const struct stage *g, const struct stage_state *st, const struct kernels *k,
                                const struct optimizer_groups *c, const struct optimizer_opts *o, struct err *e)
{
    struct optimizer *p = xcalloc(1, sizeof *p);
    char *at;

    p->g = g;
    p->st = *st;
    p->k = k;
    p->c = *c;
    p->o = *o;
    p->host_sums = xcalloc((size_t)g->n_ids, sizeof *p->host_sums);
    p->pool = k->dev->alloc(optimizer_bytes(g, o) + (uint64_t)k->sumsq_scratch(largest_run(g)) * sizeof(double), e);
    if (!p->pool) {
        optimizer_free(p);
        return NULL;
    }
    at = p->pool;
    p->grad = g->topo.dp > 1 ? (float *)(void *)at : st->grads;
    at += grad_bytes(g);
    p->wire = at;
    at += align_up(wire_elems(g, o) * 2, 256);
    p->sums = (double *)(void *)at;
    at += align_up((uint64_t)g->n_ids * 8, 256);
    p->step = (struct kernel_adamw *)(void *)at;
    at += 256;
    p->tmp = (double *)(void *)at;
    return p;
}

void optimizer_free(struct optimizer *p)
{
    if (!p)
        return;
    p->k->dev->free(p->pool);
    free(p->host_sums);
    free(p);
}

/* Both uses of the word embedding: in the first stage's rows and in the head. */
static int add_tied(struct optimizer *p, const float *head_grad, struct dev_stream *s, struct err *e)
{
    const struct stage_param *word = stage_get(p->g, -1, ROLE_WORD);

    if (head_grad)
        p->k->add(p->st.grads + word->at, head_grad, word->n, s);
    if (!p->c.tied)
        return 0;
    return comm_all_reduce(p->c.tied, p->st.grads + word->at, p->st.grads + word->at, word->n, DTYPE_F32, COMM_SUM, s,
                           e);
}

/* Gradients as they would be had they travelled in bf16. */
static void round_part(struct optimizer *p, float *x, int64_t n, struct dev_stream *s)
{
    p->k->cast(p->wire, DTYPE_BF16, x, DTYPE_F32, n, s);
    p->k->cast(x, DTYPE_F32, p->wire, DTYPE_BF16, n, s);
}

/* This rank's part of bucket b, averaged over data-parallel ranks, into p->grad. */
static int reduce_bucket(struct optimizer *p, const struct stage_bucket *b, struct dev_stream *s, struct err *e)
{
    const int dp = p->g->topo.dp;
    const int64_t own = b->n / dp;
    float *out = p->grad + b->shard_at;
    uint16_t *part = (uint16_t *)p->wire + b->n;

    if (dp == 1) {
        if (p->o.reduce == DTYPE_BF16)
            round_part(p, out, own, s);
        return 0;
    }
    if (p->o.reduce == DTYPE_F32) {
        if (comm_reduce_scatter(p->c.dp, p->st.grads + b->at, out, own, DTYPE_F32, COMM_SUM, s, e) < 0)
            return -1;
        p->k->scale(out, 1.0f / (float)dp, own, s);
        return 0;
    }
    p->k->cast(p->wire, DTYPE_BF16, p->st.grads + b->at, DTYPE_F32, b->n, s);
    if (comm_reduce_scatter(p->c.dp, p->wire, part, own, DTYPE_BF16, COMM_SUM, s, e) < 0)
        return -1;
    p->k->cast(out, DTYPE_F32, part, DTYPE_BF16, own, s);
    p->k->scale(out, 1.0f / (float)dp, own, s);
    /* The reference divides in bf16; a power of two only changes the exponent. */
    if (dp & (dp - 1))
        round_part(p, out, own, s);
    return 0;
}

/* Sum of squares of a shard-shaped `x` over the whole model, on every rank; each element of each parameter once. */
static int sum_squares(struct optimizer *p, const float *x, double *sum, struct dev_stream *s, struct err *e)
{
    const struct stage *g = p->g;

    p->k->dev->zero(p->sums, (uint64_t)g->n_ids * sizeof(double), s);
    for (int i = 0; i < g->n_runs; i++) {
        const struct stage_run *r = &g->run[i];
        const struct stage_param *q = &g->param[r->param];

        if (q->tied_copy || q->untrained || (!q->split && g->tp > 0))
            continue;
        p->k->sumsq(p->sums + q->id, x + r->shard_at, r->n, p->tmp, s);
    }
    if (comm_sync(p->c.world, s, e) < 0)
        return -1;
    p->k->dev->copy(p->host_sums, p->sums, (uint64_t)g->n_ids * sizeof(double), s);
    p->k->dev->stream_sync(s);
    if (p->k->dev->check(e) < 0)
        return -1;
    /* On the host, where the order of additions is the ranks' and so the norm the same for every cut of the pipeline. */
    if (comm_host_all_reduce(p->c.world, p->host_sums, g->n_ids, DTYPE_F64, COMM_SUM, e) < 0)
        return -1;
    *sum = 0;
    for (int i = 0; i < g->n_ids; i++)
        *sum += p->host_sums[i];
    return 0;
}

int optimizer_params_norm(struct optimizer *p, double *norm, struct dev_stream *s, struct err *e)
{
    double sum;

    if (sum_squares(p, p->st.master, &sum, s, e) < 0)
        return -1;
    *norm = sqrt(sum);
    return 0;
}

static void update(struct optimizer *p, double lr, int64_t t, double scale, struct dev_stream *s)
{
    const struct kernel_adamw step = {
        .lr = (float)lr, .beta1 = p->o.beta1, .beta2 = p->o.beta2, .eps = p->o.eps,
        .c1 = (float)(1 - pow((double)p->o.beta1, (double)t)), .c2 = (float)(1 - pow((double)p->o.beta2, (double)t)),
        .grad_scale = (float)scale,
    };

    p->k->dev->copy(p->step, &step, sizeof step, s);
    for (int i = 0; i < p->g->n_runs; i++) {
        const struct stage_run *r = &p->g->run[i];
        const struct stage_param *q = &p->g->param[r->param];
        char *w = (char *)p->st.weights + (q->at + r->from) * dtype_size(p->o.t);

        p->k->adamw(p->st.master + r->shard_at, p->st.exp_avg + r->shard_at, p->st.exp_avg_sq + r->shard_at,
                    p->grad + r->shard_at, w, r->n, q->decays ? p->o.weight_decay : 0, p->step, p->o.t, s);
    }
}

static int gather(struct optimizer *p, struct dev_stream *s, struct err *e)
{
    const int dp = p->g->topo.dp, size = dtype_size(p->o.t);

    for (int i = p->g->n_buckets - 1; i >= 0 && dp > 1; i--) {
        const struct stage_bucket *b = &p->g->bucket[i];
        char *all = (char *)p->st.weights + b->at * size;

        if (comm_all_gather(p->c.dp, all + p->g->dp * (b->n / dp) * size, all, b->n / dp, p->o.t, s, e) < 0)
            return -1;
    }
    return 0;
}

int optimizer_step(struct optimizer *p, const float *head_grad, double lr, int64_t t, double *norm,
                   struct dev_stream *s, struct err *e)
{
    double sum, scale = 1;

    if (add_tied(p, head_grad, s, e) < 0)
        return -1;
    for (int i = 0; i < p->g->n_buckets; i++)
        if (reduce_bucket(p, &p->g->bucket[i], s, e) < 0)
            return -1;
    if (sum_squares(p, p->grad, &sum, s, e) < 0)
        return -1;
    *norm = sqrt(sum);
    if (!(*norm > 0) || !isfinite(*norm))
        return 1;
    if (p->o.clip > 0 && p->o.clip / (*norm + 1e-6) < 1)
        scale = p->o.clip / (*norm + 1e-6);
    update(p, lr, t, scale, s);
    return gather(p, s, e);
}
