/* optimizer.c - reduce the gradients, compute their norm, clip, apply AdamW, gather the weights */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "tools/train/network/optimizer.h"

/* The state of a bucket's gradients within a step. */
enum reduction { LOCAL, UNDER_WAY, AVERAGED };

struct optimizer {
    const struct stage *g;
    struct stage_state st;
    const struct kernels *k;
    struct optimizer_groups c;
    struct optimizer_opts o;
    char *pool;
    enum dtype grads;           /* type of the flat gradient buffer and of `grad` */
    /*
     * [shard_n] averaged gradients of the elements that this rank owns. With one data-parallel rank, this is the flat
     * gradient buffer itself.
     */
    void *grad;
    /* buffer for gradients that are rounded to 16 bits before they are sent; see wire_elems() */
    uint16_t *wire;
    int64_t block_wire;         /* number of elements of `wire` that the bucket of one block uses */
    double *sums;               /* [n_ids] sum of squares of the gradients, for each parameter of the model */
    /* The elements that this rank contributes to a norm. Each element of the model is counted by exactly one rank. */
    struct kernel_runs *counted;
    struct kernel_runs **updated;       /* [n_buckets] the runs of elements that AdamW updates */
    struct kernel_adamw *step;
    /* [n_ids + 1]: copy of `sums` in host memory, and one more number that is reduced together with them. */
    double *host_sums;
    enum reduction *reduction;  /* [n_buckets] */
    /* [n_buckets] operations that were started during the passes and not completed */
    struct comm_req **reducing, **gathering;
    void (*gate)(void *ctx, int bucket);        /* see optimizer_gate(); may be NULL */
    void *gate_ctx;
    int not_ready;              /* the weights of buckets 0 .. not_ready may not have been gathered yet */
};

static enum dtype grad_dtype(const struct optimizer_opts *o) { return o->grad_t ? o->t : DTYPE_F32; }
/* Returns true if gradients are rounded before they are sent. */
static bool rounds(const struct optimizer_opts *o) { return o->reduce != grad_dtype(o); }

/*
 * Returns the number of elements that the largest bucket needs in the wire buffer: the bucket as it is sent, and this
 * rank's part of the sum. If `blocks` is set, only buckets of blocks are considered, otherwise only the others.
 */
static int64_t largest_wire(const struct stage *g, bool blocks)
{
    int64_t n = 0;

    for (int i = 0; i < g->n_buckets; i++)
        if ((g->bucket[i].block >= 0) == blocks && g->bucket[i].n > n)
            n = g->bucket[i].n;
    return g->topo.dp > 1 ? n + n / g->topo.dp : n;
}

/*
 * Returns the number of elements of the wire buffer. With overlap, the buckets of two blocks are being reduced at the
 * same time. The other buckets are sent later and use the same memory.
 */
static uint64_t wire_elems(const struct stage *g, const struct optimizer_opts *o)
{
    const uint64_t block = (uint64_t)largest_wire(g, true), other = (uint64_t)largest_wire(g, false);

    if (!rounds(o))
        return 0;
    return max_u64(other, g->topo.dp > 1 && o->overlap_reduce ? 2 * block : block);
}

/*
 * Returns the size in bytes of the memory in which other ranks' parts of a sum arrive (see comm_share()): a rank's part
 * of the largest bucket, or less if that is large enough to keep a link busy.
 */
static uint64_t optimizer_sum_room(const struct stage *g, const struct optimizer_opts *o)
{
    uint64_t part = 0;

    for (int i = 0; i < g->n_buckets; i++)
        part = max_u64(part, (uint64_t)(g->bucket[i].n / g->topo.dp * dtype_size(o->reduce)));
    return min_u64(align_up(part, 256), 32 << 20);
}

static uint64_t grad_bytes(const struct stage *g, const struct optimizer_opts *o)
{
    return g->topo.dp > 1 ? align_up((uint64_t)(g->shard_n * dtype_size(grad_dtype(o))), 256) : 0;
}

/* Returns the number of bytes of the pool. The lists of runs are small, and not included. */
static uint64_t pool_bytes(const struct stage *g, const struct optimizer_opts *o)
{
    return grad_bytes(g, o) + align_up(wire_elems(g, o) * 2, 256) + align_up((uint64_t)g->n_ids * 8, 256) + 256;
}

uint64_t optimizer_bytes(const struct stage *g, const struct optimizer_opts *o)
{
    return pool_bytes(g, o) + comm_share_bytes(g->topo.dp, optimizer_sum_room(g, o));
}

static bool is_counted_in_norm(const struct stage *g, const struct stage_param *q)
{
    return !q->tied_copy && !q->untrained && (q->split || g->tp == 0);
}

static int list_optimizer_runs(struct optimizer *p, struct err *e)
{
    const struct stage *g = p->g;
    struct kernel_run *all = xcalloc((size_t)g->n_runs + 1, sizeof *all);
    struct kernel_run *counted = xcalloc((size_t)g->n_runs + 1, sizeof *counted);
    int n_counted = 0, rc = 0;

    for (int i = 0; i < g->n_runs; i++) {
        const struct stage_run *r = &g->run[i];
        const struct stage_param *q = &g->param[r->param];

        all[i] = (struct kernel_run){ r->shard_at, r->n, q->at + r->from, q->id, q->decays ? p->o.weight_decay : 0 };
        if (is_counted_in_norm(g, q))
            counted[n_counted++] = all[i];
    }
    p->counted = p->k->runs_new(counted, n_counted, e);
    if (!p->counted)
        rc = -1;
    for (int i = 0, k = 0; i < g->n_buckets && rc == 0; i++) {
        int first = k;
        int64_t end = g->bucket[i].shard_at + g->bucket[i].n / g->topo.dp;

        while (k < g->n_runs && g->run[k].shard_at < end)
            k++;
        p->updated[i] = p->k->runs_new(all + first, k - first, e);
        rc = p->updated[i] ? 0 : -1;
    }
    free(all);
    free(counted);
    return rc;
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
    p->grads = grad_dtype(o);
    p->host_sums = xcalloc((size_t)g->n_ids + 1, sizeof *p->host_sums);
    p->block_wire = largest_wire(g, true);
    p->reduction = xcalloc((size_t)g->n_buckets, sizeof *p->reduction);
    p->reducing = xcalloc((size_t)g->n_buckets, sizeof *p->reducing);
    p->gathering = xcalloc((size_t)g->n_buckets, sizeof *p->gathering);
    p->not_ready = -1;
    p->updated = xcalloc((size_t)g->n_buckets, sizeof *p->updated);
    p->pool = k->dev->alloc(pool_bytes(g, o), e);
    if (!p->pool || list_optimizer_runs(p, e) < 0 ||
        comm_share(c->dp, st->weights, (uint64_t)(g->flat_n * dtype_size(o->t)), optimizer_sum_room(g, o), e) < 0) {
        optimizer_free(p);
        return NULL;
    }
    at = p->pool;
    p->grad = g->topo.dp > 1 ? at : st->grads;
    at += grad_bytes(g, o);
    p->wire = (uint16_t *)(void *)at;
    at += align_up(wire_elems(g, o) * 2, 256);
    p->sums = (double *)(void *)at;
    at += align_up((uint64_t)g->n_ids * 8, 256);
    p->step = (struct kernel_adamw *)(void *)at;
    return p;
}

void optimizer_free(struct optimizer *p)
{
    if (!p)
        return;
    p->k->runs_free(p->counted);
    for (int i = 0; i < p->g->n_buckets; i++)
        p->k->runs_free(p->updated[i]);
    free(p->updated);
    p->k->dev->free(p->pool);
    free(p->host_sums);
    free(p->reduction);
    free(p->reducing);
    free(p->gathering);
    free(p);
}

/* Returns the address of element `at` of a gradient buffer. */
static void *element(const struct optimizer *p, void *grads, int64_t at)
{
    return (char *)grads + at * dtype_size(p->grads);
}

/*
 * Add the two gradients of the tied word embedding: one from its use at the input of the first stage, the other from
 * its use in the head of the last stage.
 */
static int add_tied(struct optimizer *p, const void *head_grad, struct dev_stream *s, struct err *e)
{
    const struct stage_param *word = stage_get(p->g, -1, ROLE_WORD);
    void *grad = word ? element(p, p->st.grads, word->at) : NULL;

    if (head_grad)
        p->k->add(grad, head_grad, word->n, p->grads, s);
    if (!p->c.tied)
        return 0;
    return comm_all_reduce(p->c.tied, &(struct comm_data){ grad, grad, word->n, p->grads, COMM_SUM }, s, e);
}

/* Returns the wire buffer for bucket i. Buckets of blocks use two buffers alternately. */
static uint16_t *wire_of(const struct optimizer *p, int i)
{
    const bool second = p->o.overlap_reduce && p->g->topo.dp > 1 && p->g->bucket[i].block >= 0 && i % 2;

    return p->wire + (second ? p->block_wire : 0);
}

/* Round n fp32 gradients x of bucket i to the 16-bit type in which they would be sent. */
static void round_part(struct optimizer *p, int i, void *x, int64_t n, struct dev_stream *s)
{
    uint16_t *wire = wire_of(p, i);

    p->k->cast(wire, p->o.reduce, x, DTYPE_F32, n, s);
    p->k->cast(x, DTYPE_F32, wire, p->o.reduce, n, s);
}

/*
 * Start to reduce bucket i over the data-parallel ranks. The result, which is this rank's part of the sum, is stored in
 * the wire buffer or in p->grad.
 */
static int reduce(struct optimizer *p, int i, struct dev_stream *s, struct err *e)
{
    const struct stage_bucket *b = &p->g->bucket[i];
    const int64_t own = b->n / p->g->topo.dp;
    void *in = element(p, p->st.grads, b->at), *out = element(p, p->grad, b->shard_at);
    uint16_t *wire = wire_of(p, i);

    p->reduction[i] = UNDER_WAY;
    /*
     * fp16 is divided by the number of ranks before the sum, as in the reference, because the sum may be out of range
     * when the average is not.
     */
    if (p->o.grad_t)
        p->k->scale(in, 1.0f / (float)p->g->topo.dp, b->n, p->grads, s);
    if (rounds(&p->o)) {
        p->k->cast(wire, p->o.reduce, in, DTYPE_F32, b->n, s);
        in = wire;
        out = wire + b->n;
    }
    return comm_reduce_scatter_start(p->c.dp, &(struct comm_data){ in, out, own, p->o.reduce, COMM_SUM }, s,
                                     &p->reducing[i], e);
}

/*
 * Complete the reduction of bucket i that reduce() has started, and store the average in p->grad. If no reduction of
 * this bucket is in progress, do nothing.
 */
static int average_bucket_grads(struct optimizer *p, int i, struct dev_stream *s, struct err *e)
{
    const struct stage_bucket *b = &p->g->bucket[i];
    const int dp = p->g->topo.dp;
    const int64_t own = b->n / dp;
    void *out = element(p, p->grad, b->shard_at);

    if (p->reduction[i] != UNDER_WAY)
        return 0;
    p->reduction[i] = AVERAGED;
    if (comm_wait(&p->reducing[i], s, e) < 0)
        return -1;
    if (p->o.grad_t)
        return 0;
    if (rounds(&p->o))
        p->k->cast(out, DTYPE_F32, wire_of(p, i) + b->n, p->o.reduce, own, s);
    p->k->scale(out, 1.0f / (float)dp, own, DTYPE_F32, s);
    /*
     * The reference divides in 16 bits, which rounds again. A division by a power of two changes only the exponent in
     * bf16, so in this case no rounding is needed.
     */
    if (rounds(&p->o) && (dp & (dp - 1) || p->o.reduce == DTYPE_F16))
        round_part(p, i, out, own, s);
    return 0;
}

int optimizer_grads_done(void *optimizer, int block, struct dev_stream *s, struct err *e)
{
    struct optimizer *p = optimizer;
    int i = 0;

    if (!p->o.overlap_reduce || p->g->topo.dp == 1)
        return 0;
    while (p->g->bucket[i].block != block)
        i++;
    /*
     * A rounded bucket uses the buffer of the bucket before the previous one. The reduction of that bucket must
     * therefore be complete.
     */
    if (rounds(&p->o) && i >= 2 && average_bucket_grads(p, i - 2, s, e) < 0)
        return -1;
    return reduce(p, i, s, e);
}

/* Start to reduce the buckets that have not been reduced, and average all buckets. */
static int reduce_rest(struct optimizer *p, struct dev_stream *s, struct err *e)
{
    const int n = p->g->n_buckets;

    for (int i = 0; i < n && !rounds(&p->o); i++)
        if (p->reduction[i] == LOCAL && reduce(p, i, s, e) < 0)
            return -1;
    /*
     * Average the buckets of blocks first. The reductions of the other buckets were started last, or use the same
     * buffers.
     */
    for (int i = 0; i < n; i++)
        if (p->g->bucket[i].block >= 0 && average_bucket_grads(p, i, s, e) < 0)
            return -1;
    for (int i = 0; i < n; i++) {
        if (p->reduction[i] == LOCAL && reduce(p, i, s, e) < 0)
            return -1;
        if (average_bucket_grads(p, i, s, e) < 0)
            return -1;
        p->reduction[i] = LOCAL;
    }
    return 0;
}

/*
 * Round all gradients. This is done if there is only one data-parallel rank: the gradients are then complete and not
 * sent, but must be rounded like gradients that are sent.
 */
static void round_all(struct optimizer *p, struct dev_stream *s)
{
    for (int i = 0; i < p->g->n_buckets && rounds(&p->o); i++)
        round_part(p, i, element(p, p->grad, p->g->bucket[i].shard_at), p->g->bucket[i].n, s);
}

/* The numbers whose squares are summed. */
struct squares {
    const void *x;              /* a buffer with the layout of the shard */
    enum dtype t;
    /* A number that is read after all queued work is done, and is replaced with its sum over all ranks. May be NULL. */
    double *also;
};

/* Compute the sum of squares over the whole model, on every rank. Each element of each parameter is counted once. */
static int sum_squares(struct optimizer *p, const struct squares *of, double *sum, struct dev_stream *s, struct err *e)
{
    const int n = p->g->n_ids;
    double *also = of->also;

    p->k->dev->zero(p->sums, (uint64_t)n * sizeof(double), s);
    p->k->sumsq_runs(p->sums, of->x, of->t, p->counted, s);
    if (comm_sync(p->c.world, s, e) < 0)
        return -1;
    p->k->dev->copy(p->host_sums, p->sums, (uint64_t)n * sizeof(double), s);
    p->k->dev->stream_sync(s);
    if (p->k->dev->check(e) < 0)
        return -1;
    p->host_sums[n] = also ? *also : 0;
    /*
     * The sum is computed on the host, in the order of the ranks. The norm is therefore the same for every partition
     * into pipeline stages.
     */
    if (comm_host_all_reduce(p->c.world, p->host_sums, n + 1, DTYPE_F64, COMM_SUM, e) < 0)
        return -1;
    *sum = 0;
    for (int i = 0; i < n; i++)
        *sum += p->host_sums[i];
    if (also)
        *also = p->host_sums[n];
    return 0;
}

int optimizer_params_norm(struct optimizer *p, double *norm, struct dev_stream *s, struct err *e)
{
    double sum;

    if (sum_squares(p, &(struct squares){ p->st.master, DTYPE_F32, NULL }, &sum, s, e) < 0)
        return -1;
    *norm = sqrt(sum);
    return 0;
}

/* Start gathering the weights of bucket i from all data-parallel ranks. */
static int start_bucket_gather(struct optimizer *p, int i, struct dev_stream *s, struct err *e)
{
    const struct stage_bucket *b = &p->g->bucket[i];
    const int64_t own = b->n / p->g->topo.dp;
    const int size = dtype_size(p->o.t);
    char *all = (char *)p->st.weights + b->at * size, *mine = all + p->g->dp * own * size;

    if (p->g->topo.dp == 1)
        return 0;
    return comm_all_gather_start(p->c.dp, &(struct comm_data){ .in = mine, .out = all, .n = own, .t = p->o.t }, s,
                                 &p->gathering[i], e);
}

/*
 * Returns the factor by which gradients are multiplied. It combines the division by the loss scale and clipping
 * (docs/training.md 3.4, 3.6).
 */
static double factor_of(const struct optimizer *p, const struct optimizer_update *u)
{
    const double clip = p->o.clip / (u->norm / u->scale + 1e-6);

    return (p->o.clip > 0 && clip < 1 ? clip : 1) / u->scale;
}

void optimizer_gate(struct optimizer *p, void (*gate)(void *ctx, int bucket), void *ctx)
{
    p->gate = gate;
    p->gate_ctx = ctx;
}

/* Update the buckets in descending order, because the next forward pass reads their weights in this order. */
int optimizer_update(struct optimizer *p, const struct optimizer_update *u, struct dev_stream *s, struct err *e)
{
    const struct stage *g = p->g;
    const struct kernel_adamw step = {
        .lr = (float)u->lr, .beta1 = p->o.beta1, .beta2 = p->o.beta2, .eps = p->o.eps,
        .c1 = (float)(1 - pow((double)p->o.beta1, (double)u->t)),
        .c2 = (float)(1 - pow((double)p->o.beta2, (double)u->t)), .grad_scale = (float)factor_of(p, u),
    };

    assert(p->not_ready < 0);           /* the forward pass of this step has waited for the weights of all buckets */
    p->k->dev->copy(p->step, &step, sizeof step, s);
    for (int i = g->n_buckets - 1; i >= 0; i--) {
        if (p->gate)
            p->gate(p->gate_ctx, i);
        p->k->adamw(&(struct kernel_adamw_buffers){
            .p = p->st.master, .m = p->st.exp_avg, .v = p->st.exp_avg_sq, .g = p->grad, .w = p->st.weights,
            .grad_t = p->o.grad_t,
        }, p->updated[i], p->step, p->o.t, s);
        if (start_bucket_gather(p, i, s, e) < 0)
            return -1;
    }
    p->not_ready = g->n_buckets - 1;
    return p->o.overlap_gather ? 0 : optimizer_wait_for_weights(p, s, e);
}

/* Returns the first place (see struct model_hooks) at which the forward pass reads the weights of bucket i. */
static int first_bucket_place(const struct stage *g, int i)
{
    if (g->bucket[i].block >= 0)
        return g->bucket[i].block;
    return (g->norm || g->last) && i == 0 ? (int)g->model.n_layers : -1;
}

int optimizer_weights_ready(void *optimizer, int place, struct dev_stream *s, struct err *e)
{
    struct optimizer *p = optimizer;

    for (; p->not_ready >= 0 && first_bucket_place(p->g, p->not_ready) <= place; p->not_ready--)
        if (comm_wait(&p->gathering[p->not_ready], s, e) < 0)
            return -1;
    return 0;
}

int optimizer_wait_for_weights(struct optimizer *p, struct dev_stream *s, struct err *e)
{
    return optimizer_weights_ready(p, INT_MAX, s, e);
}

int optimizer_reduce(struct optimizer *p, const void *head_grad, double *norm, double *also, struct dev_stream *s,
                     struct err *e)
{
    double sum;

    if (add_tied(p, head_grad, s, e) < 0)
        return -1;
    if (p->g->topo.dp == 1)
        round_all(p, s);
    else if (reduce_rest(p, s, e) < 0)
        return -1;
    if (sum_squares(p, &(struct squares){ p->grad, p->grads, also }, &sum, s, e) < 0)
        return -1;
    *norm = sqrt(sum);
    return 0;
}
