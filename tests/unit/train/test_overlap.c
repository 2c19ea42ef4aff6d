/*
 * test_overlap.c - work of the optimizer during the passes changes no bit, and the waits for it are neither too
 * late nor too early
 *
 * Whole steps on a device that does such work as late as possible (latenet.h) are compared with the same steps
 * without any overlap.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "tests/lib/latenet.h"
#include "tests/lib/ranks.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/network/pipeline_schedule.h"

enum { B = 2, S = 8, M = B * S, V = 48, BLOCKS = 6, MICRO = 3, STEPS = 3 };

struct shape {
    struct topology topo;
    enum dtype t, reduce;               /* of fp16 reduced in fp16 gradients are fp16, too */
    const char *position;
    bool sequence_parallel;
};

/* One rank, and what it is at the moment. */
struct seat {
    const struct shape *x;
    struct comm_world *world;
    struct comm *tp, *dp, *pipe, *tied;
    struct comm *open[8];               /* these and their twins */
    int n_open;
    const struct kernels *k;
    int pp, d, t;
    int32_t tokens[BLOCKS][M], labels[BLOCKS][M];       /* by slot */
    float weight[M];
    int step;

    struct stage *g;
    struct stage_state st;
    struct model *m;
    struct pipeline *p;
    struct optimizer *o;
    bool overlap;
    int done;                           /* latenet_done("dp") when the step before had ended */
    int n_reductions;                   /* blocks reported so far in this step */
};

/* What is left of a run. */
struct result {
    double norm[STEPS], loss[STEPS], valid[STEPS];
    void *weights, *seen;               /* the second as they were after the first step */
    float *master, *exp_avg, *exp_avg_sq;
};

/* In a child cmocka cannot fail. */
static void demand(bool ok, const char *what, const struct err *e)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s\n", what, e ? e->msg : "");
    _exit(1);
}

/* ---- hooks: the optimizer's, watched ---- */

/* Buckets that passes up to `place` have to wait for. */
static int buckets_needed(const struct stage *g, int place)
{
    int n = g->first, blocks = place - g->first_block + 1;

    if (blocks > 0)
        n += blocks < g->n_blocks ? blocks : g->n_blocks;
    return n + (g->last && place == BLOCKS);
}

static int ready(void *ctx, int place, struct dev_stream *s, struct err *e)
{
    struct seat *x = ctx;
    const int before = latenet_done("dp") - x->done, needed = buckets_needed(x->g, place);

    if (optimizer_weights_ready(x->o, place, s, e) < 0)
        return -1;
    if (x->overlap && x->step > 0 && x->n_reductions == 0)
        demand(latenet_done("dp") - x->done == (before > needed ? before : needed), "a bucket for each place", NULL);
    return 0;
}

static int done(void *ctx, int block, struct dev_stream *s, struct err *e)
{
    struct seat *x = ctx;
    const int last = x->g->first_block + x->g->n_blocks - 1;

    demand(block == last - x->n_reductions++, "blocks from the last to the first", NULL);
    return optimizer_grads_done(x->o, block, s, e);
}

/* ---- a run ---- */

static struct comm *group(struct seat *x, const char *name, int n, int first, int stride)
{
    char *twin = str_fmt("%s's twin", name);
    struct err e = {0};
    struct comm *c, *host;
    int rank[RANKS_MAX];

    for (int i = 0; i < n; i++)
        rank[i] = first + i * stride;
    c = comm_create(x->world, name, rank, n, &e);
    demand(c != NULL, name, &e);
    host = comm_create(x->world, twin, rank, n, &e);
    demand(host != NULL, twin, &e);
    latenet_twin(name, host);
    free(twin);
    x->open[x->n_open++] = c;
    x->open[x->n_open++] = host;
    return c;
}

static void make_groups(struct seat *x)
{
    const struct topology p = x->x->topo;

    x->tp = group(x, "tp", p.tp, topo_rank(p, x->pp, x->d, 0), 1);
    x->dp = group(x, "dp", p.dp, topo_rank(p, x->pp, 0, x->t), p.tp);
    x->pipe = group(x, "pp", p.pp, topo_rank(p, 0, x->d, x->t), p.dp * p.tp);
    if (p.pp > 1)
        x->tied = group(x, "tied", 2, topo_rank(p, 0, x->d, x->t), (p.pp - 1) * p.dp * p.tp);
}

/* The same on all ranks that hold it: a number of the parameter and the element. */
static float first_weight(const struct stage_param *p, int64_t i)
{
    uint32_t r = ((uint32_t)p->id * 7919u + (uint32_t)i * 31u + 17u) * 2654435761u;
    float v = ((float)(r >> 8) / (float)(1 << 24) - 0.5f) * 0.2f;

    return bf16_to_f32(f32_to_bf16(p->ndim == 1 && strstr(p->name, "weight") ? 1 + v : v));
}

static void fill(struct seat *x)
{
    for (int i = 0; i < x->g->n_params; i++) {
        const struct stage_param *p = &x->g->param[i];

        for (int64_t j = 0; j < p->n; j++) {
            const float w = first_weight(p, j);

            if (x->x->t == DTYPE_F32)
                ((float *)x->st.weights)[p->at + j] = w;
            else
                ((uint16_t *)x->st.weights)[p->at + j] = x->x->t == DTYPE_F16 ? f32_to_f16(w) : f32_to_bf16(w);
        }
    }
    for (int i = 0; i < x->g->n_runs; i++) {
        const struct stage_run *r = &x->g->run[i];

        for (int64_t j = 0; j < r->n; j++)
            x->st.master[r->shard_at + j] = first_weight(&x->g->param[r->param], r->from + j);
    }
}

static int batch(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e)
{
    struct seat *x = ctx;

    (void)e;
    for (int j = 0; j < M; j++) {
        x->tokens[slot][j] = (x->step * 131 + i * 37 + x->d * 17 + j * 5) % V;
        x->labels[slot][j] = (x->tokens[slot][j] * 7 + 3) % V;
        x->weight[j] = 1.0f / M;
    }
    *mb = (struct micro_batch){ .tokens = x->tokens[slot], .labels = x->labels[slot], .weight = x->weight,
                                .grad_weight = x->weight, .sample0 = i * B };
    return 0;
}

static bool grad_t(const struct seat *x) { return x->x->t == DTYPE_F16 && x->x->reduce == DTYPE_F16; }

static void begin(struct seat *x, bool overlap)
{
    const struct model_config c = { .n_layers = BLOCKS, .hidden = 16, .n_heads = 2, .ffn_hidden = 32, .seq_len = S,
                                    .max_positions = S, .vocab = V, .embed_layernorm = x->x->position[1] == 'l' };
    const struct model_opts mo = { .t = x->x->t,
                                   .grad_t = grad_t(x),
                                   .b = B,
                                   .s = S,
                                   .n_slots = pipeline_slots(x->x->topo, x->pp),
                                   .eps = 1e-5f,
                                   .sequence_parallel = x->x->sequence_parallel };
    const struct optimizer_opts oo = { .t = x->x->t,
                                       .grad_t = grad_t(x),
                                       .reduce = x->x->reduce,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .clip = 1,
                                       .overlap_reduce = overlap,
                                       .overlap_gather = overlap };
    const struct optimizer_groups groups = { comm_world_group(x->world), x->dp,
                                             x->pp == 0 || x->pp == x->x->topo.pp - 1 ? x->tied : NULL };
    struct model_config named = c;
    struct err e = {0};
    int blocks[RANKS_MAX];

    snprintf(named.position, sizeof named.position, "%s", x->x->position);
    for (int i = 0; i < x->x->topo.pp; i++)
        blocks[i] = BLOCKS / x->x->topo.pp;
    x->overlap = overlap;
    x->g = stage_new(&named, x->x->topo, x->pp, x->d, x->t, blocks);
    x->st = (struct stage_state){
        xcalloc((size_t)x->g->flat_n, 4), xcalloc((size_t)x->g->flat_n, 4), xcalloc((size_t)x->g->shard_n, 4),
        xcalloc((size_t)x->g->shard_n, 4), xcalloc((size_t)x->g->shard_n, 4),
    };
    fill(x);
    x->m = model_new(x->g, &x->st, x->k, x->tp, &mo, &e);
    x->p = pipeline_new(&(struct pipeline_parts){
        .stage = x->g, .model = x->m, .kernels = x->k, .opts = &mo, .group = x->pipe, .watch = comm_watch(x->world),
        .get = batch, .ctx = x,
    }, &e);
    x->o = optimizer_new(x->g, &x->st, x->k, &groups, &oo, &e);
    demand(x->m && x->p && x->o, "memory", &e);
    model_hook(x->m, &(struct model_hooks){ ready, done, x });
}

static void end(struct seat *x)
{
    optimizer_free(x->o);
    pipeline_free(x->p);
    model_free(x->m);
    stage_free(x->g);
    free(x->st.grads);
}

static void one_step(struct seat *x, struct result *r)
{
    const int started = latenet_started("dp"), n = x->g->n_blocks;
    const bool as_they_are = x->x->reduce == DTYPE_F32 || grad_t(x);
    double also = 0.5;
    struct err e = {0};

    x->n_reductions = 0;
    demand(pipeline_train(x->p, MICRO, x->step + 1, NULL, &e) == 0, "passes", &e);
    r->loss[x->step] = x->g->last ? *model_loss(x->m) : 0;
    demand(latenet_started("dp") - started == (x->overlap ? n : 0), "reductions begun in the last backward pass", NULL);
    /* Where they are rounded for it, two of them are on their way at most. */
    demand(!x->overlap || latenet_done("dp") == started + (as_they_are ? 0 : n > 2 ? n - 2 : 0),
           "reductions waited for there", NULL);
    demand(optimizer_reduce(x->o, model_head_grad(x->m), &r->norm[x->step], &also, NULL, &e) == 0, "reduction", &e);
    demand(also == topo_world(x->x->topo) * 0.5, "a number from each rank", NULL);
    demand(optimizer_update(x->o, &(struct optimizer_update){ 1e-2, x->step + 1, r->norm[x->step], 1 }, NULL, &e) == 0,
           "update", &e);
    demand(latenet_started("dp") == started + 2 * x->g->n_buckets, "a reduction and a gather of each bucket", NULL);
    demand(latenet_done("dp") == latenet_started("dp") - (x->overlap ? x->g->n_buckets : 0),
           "gathers waited for in the step", NULL);
    x->done = latenet_done("dp");
    x->n_reductions = 0;
}

/* All ranks learn of a value that is not finite; a step that is dropped leaves no trace. */
static void overflow(struct seat *x)
{
    const struct topology p = x->x->topo;
    const bool mine = x->pp == p.pp - 1 && x->d == p.dp - 1 && x->t == 0;
    const size_t bytes = (size_t)x->g->flat_n * (size_t)dtype_size(x->x->t);
    void *before = xmalloc(bytes);
    struct err e = {0};

    memcpy(before, x->st.weights, bytes);
    x->overlap = false;                 /* nothing is gathered: the hooks are not to expect it */
    for (int what = 0; what < 3; what++) {
        double norm, also = mine && what == 1 ? INFINITY : 0;

        x->n_reductions = 0;
        demand(pipeline_train(x->p, MICRO, STEPS + 1, NULL, &e) == 0, "passes", &e);
        if (mine && what == 0 && grad_t(x))
            ((uint16_t *)x->st.grads)[x->g->bucket[0].at] = 0x7c00;
        else if (mine && what == 0)
            ((float *)x->st.grads)[x->g->bucket[0].at] = INFINITY;
        demand(optimizer_reduce(x->o, model_head_grad(x->m), &norm, &also, NULL, &e) == 0, "reduction", &e);
        demand(!isfinite(norm) == (what == 0), "the norm tells of one rank's gradient", NULL);
        demand(!isfinite(also) == (what == 1), "and so does what travels with it", NULL);
    }
    demand(!memcmp(before, x->st.weights, bytes), "no update", NULL);
    free(before);
}

static struct result run(struct seat *x, bool overlap)
{
    const size_t bytes = (size_t)dtype_size(x->x->t);
    struct result r = {0};
    struct err e = {0};

    begin(x, overlap);
    for (x->step = 0; x->step < STEPS; x->step++) {
        one_step(x, &r);
        if (x->step == 0) {
            demand(optimizer_wait_for_weights(x->o, NULL, &e) == 0, "settle", &e);
            r.seen = xmalloc((size_t)x->g->flat_n * bytes);
            memcpy(r.seen, x->st.weights, (size_t)x->g->flat_n * bytes);
        }
        /* An evaluation reads weights, too. */
        if (x->step == 1) {
            demand(pipeline_eval(x->p, MICRO, NULL, &e) == 0, "evaluation", &e);
            r.valid[x->step] = x->g->last ? *model_loss(x->m) : 0;
        }
    }
    demand(optimizer_wait_for_weights(x->o, NULL, &e) == 0, "settle", &e);
    overflow(x);
    r.weights = x->st.weights;
    r.master = x->st.master;
    r.exp_avg = x->st.exp_avg;
    r.exp_avg_sq = x->st.exp_avg_sq;
    return r;
}

static void free_result(struct result *r)
{
    free(r->weights);
    free(r->seen);
    free(r->master);
    free(r->exp_avg);
    free(r->exp_avg_sq);
}

static void same(const struct seat *x, const struct result *a, const struct result *b)
{
    const size_t flat = (size_t)x->g->flat_n * (size_t)dtype_size(x->x->t), shard = (size_t)x->g->shard_n * 4;

    demand(!memcmp(a->norm, b->norm, sizeof a->norm), "norms", NULL);
    demand(!memcmp(a->loss, b->loss, sizeof a->loss) && !memcmp(a->valid, b->valid, sizeof a->valid), "losses", NULL);
    demand(!memcmp(a->seen, b->seen, flat), "weights after a step", NULL);
    demand(!memcmp(a->weights, b->weights, flat), "weights", NULL);
    demand(!memcmp(a->master, b->master, shard) && !memcmp(a->exp_avg, b->exp_avg, shard) &&
               !memcmp(a->exp_avg_sq, b->exp_avg_sq, shard),
           "masters and moments", NULL);
    demand(a->norm[0] > 0 && a->norm[1] != a->norm[0] && memcmp(a->seen, a->weights, flat), "a run that moves", NULL);
}

static int rank_main(int rank, int size, void *arg)
{
    const struct comm_options co = { .transport = COMM_TCP };
    const struct kernel_opts ko = { .threads = 1 };
    struct seat x = { .x = arg };
    const struct topology p = x.x->topo;
    struct result late, plain;
    struct err e = {0};

    (void)size;
    x.t = rank % p.tp;
    x.d = rank / p.tp % p.dp;
    x.pp = rank / (p.tp * p.dp);
    demand(comm_world_open(&co, &x.world, &e) == 0, "world", &e);
    comm_use_device(x.world, &late_net);
    x.k = kernels_cpu_open(&ko, &e);
    demand(x.k != NULL, "kernels", &e);
    make_groups(&x);
    plain = run(&x, false);
    end(&x);
    late = run(&x, true);
    demand(latenet_started("dp") == latenet_done("dp"), "everything was waited for", NULL);
    same(&x, &late, &plain);
    end(&x);
    free_result(&late);
    free_result(&plain);
    while (x.n_open > 0)
        comm_close(x.open[--x.n_open]);
    comm_use_device(x.world, NULL);
    kernels_close(x.k);
    comm_world_close(x.world);
    return 0;
}

/* ---- the shapes ---- */

static void check(int tp, int pp, int dp, enum dtype t, enum dtype reduce, const char *position, bool sequence_parallel)
{
    struct shape x = { { tp, pp, dp }, t, reduce, position, sequence_parallel };

    if (!ranks_run(tp * pp * dp, rank_main, &x))
        fail_msg("TP %d, PP %d, DP %d, %s, reduced in %s, %s%s", tp, pp, dp, dtype_name(t), dtype_name(reduce),
                 position, sequence_parallel ? ", sequence parallel" : "");
}

static void test_one_stage(void **state)
{
    (void)state;
    check(1, 1, 2, DTYPE_BF16, DTYPE_BF16, "alibi", false);
    check(1, 1, 2, DTYPE_BF16, DTYPE_F32, "alibi", false);
    check(1, 1, 2, DTYPE_F32, DTYPE_F32, "absolute", false);
    check(1, 1, 2, DTYPE_F16, DTYPE_F16, "absolute", false);
    check(1, 1, 2, DTYPE_F16, DTYPE_F32, "alibi", false);
}

/* Averages of three are rounded once more, in the room that the next bucket waits for. */
static void test_three_ranks(void **state)
{
    (void)state;
    check(1, 1, 3, DTYPE_BF16, DTYPE_BF16, "absolute", false);
    check(1, 1, 3, DTYPE_F32, DTYPE_F32, "alibi", false);
    check(1, 1, 3, DTYPE_F16, DTYPE_F16, "alibi", false);
}

static void test_two_stages(void **state)
{
    (void)state;
    check(1, 2, 2, DTYPE_BF16, DTYPE_BF16, "alibi", false);
    check(1, 2, 2, DTYPE_BF16, DTYPE_F32, "absolute", false);
    check(1, 2, 2, DTYPE_F16, DTYPE_F16, "absolute", false);
}

static void test_tensor_ranks(void **state)
{
    (void)state;
    check(2, 1, 2, DTYPE_BF16, DTYPE_BF16, "alibi", false);
    check(2, 1, 2, DTYPE_BF16, DTYPE_F32, "alibi", true);
    check(2, 1, 2, DTYPE_F16, DTYPE_F16, "alibi", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stage),
        cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_two_stages),
        cmocka_unit_test(test_tensor_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
