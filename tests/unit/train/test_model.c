/* test_model.c - the whole stage forward and backward on one rank: gradients by finite differences, recomputation,
 * accumulation */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/train/network/model.h"

enum { B = 2, S = 19, V = 50 };

struct rig {
    struct stage *g;
    struct stage_state st;
    struct model *m;
    struct model_opts o;
    int32_t tokens[B * S], labels[B * S];
    float weight[B * S];
    void *d;
};

static struct comm_world *world;
static const struct kernels *k;

static uint64_t seed = 1;
static double uniform(void)             /* in [-1, 1) */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)seed / 9223372036854775808.0;
}

static void rig_open(struct rig *r, const char *position, struct model_opts o)
{
    struct model_config c = { .n_layers = 3, .hidden = 24, .n_heads = 3, .ffn_hidden = 40, .seq_len = S,
                              .max_positions = S + 3, .vocab = V, .embed_layernorm = !strcmp(position, "alibi") };
    struct err e = {0};
    int blocks[1] = { 3 };

    strcpy(c.position, position);
    o.b = B;
    o.s = S;
    o.n_slots = 1;
    o.eps = 1e-5f;
    o.head_rows = 16;                   /* several chunks, the last one short */
    r->o = o;
    r->g = stage_new(&c, (struct topology){ 1, 1, 1 }, 0, 0, 0, blocks);
    r->st.weights = k->dev->alloc((uint64_t)r->g->flat_n * 4, &e);
    r->st.grads = k->dev->alloc((uint64_t)r->g->flat_n * 4, &e);
    r->d = k->dev->alloc(B * S * 24 * 4, &e);
    memset(r->st.weights, 0, (size_t)r->g->flat_n * (size_t)dtype_size(o.t));
    memset(r->st.grads, 0, (size_t)r->g->flat_n * 4);
    seed = 7;
    for (int i = 0; i < r->g->n_params; i++) {
        const struct stage_param *p = &r->g->param[i];

        for (int64_t j = 0; j < p->n; j++) {
            float x = (float)(uniform() * 0.4 + (p->ndim == 1 && strstr(p->name, "weight") ? 1 : 0));

            if (o.t == DTYPE_F32)
                ((float *)r->st.weights)[p->at + j] = x;
            else
                ((uint16_t *)r->st.weights)[p->at + j] = f32_to_bf16(x);
        }
    }
    for (int i = 0; i < B * S; i++) {
        r->tokens[i] = (int32_t)((uniform() + 1) / 2 * V);
        r->labels[i] = (int32_t)((uniform() + 1) / 2 * V);
        r->weight[i] = i % 5 ? 1.0f / 30 : 0;
    }
    r->m = model_new(r->g, &r->st, k, comm_world_group(world), &o, &e);
    assert_non_null(r->m);
}

static void rig_close(struct rig *r)
{
    model_free(r->m);
    k->dev->free(r->st.weights);
    k->dev->free(r->st.grads);
    k->dev->free(r->d);
    stage_free(r->g);
}

static double pass(struct rig *r, bool training, bool add)
{
    struct micro_batch mb = { .tokens = r->tokens, .labels = r->labels, .weight = r->weight, .grad_weight = r->weight,
                              .sample0 = 6, .step = 3, .training = training, .add = add };
    struct err e = {0};

    model_loss_begin(r->m, NULL);
    assert_int_equal(model_forward(r->m, 0, &mb, NULL, &e), 0);
    if (training)
        assert_int_equal(model_backward(r->m, 0, &mb, r->d, NULL, &e), 0);
    return *model_loss(r->m);
}

/* Both uses of the embedding. */
static double gradient(const struct rig *r, const struct stage_param *p, int64_t j)
{
    const float *grads = r->st.grads, *head = model_head_grad(r->m);

    return grads[p->at + j] + (p->role == ROLE_WORD ? head[j] : 0);
}

/*
 * For each parameter, the derivative along a random direction against the central
 * difference of the loss. In fp32 the loss (about 4) is good to 5e-7 and the step moves it
 * by some 1e-2, so the difference is good to 1e-4; its third-order term is about as large.
 */
static void check_derivatives(struct rig *r)
{
    pass(r, true, false);
    for (int i = 0; i < r->g->n_params; i++) {
        const struct stage_param *p = &r->g->param[i];
        float *w = (float *)r->st.weights + p->at, *dir = malloc((size_t)p->n * sizeof *dir);
        double want = 0, size = 0, eps, up, down, got;

        for (int64_t j = 0; j < p->n; j++) {
            double g = gradient(r, p, j);

            dir[j] = (float)uniform();
            want += g * dir[j];
            size += g * g;
        }
        /* Along the gradient as well as across it, so the derivative is never near 0. */
        for (int64_t j = 0; j < p->n; j++) {
            double g = gradient(r, p, j) / sqrt(size + 1e-30) * sqrt((double)p->n);

            want += g * gradient(r, p, j);
            dir[j] += (float)g;
        }
        eps = 4e-3 / (fabs(want) + 1e-2);
        if (eps > 2e-2)
            eps = 2e-2;
        for (int64_t j = 0; j < p->n; j++)
            w[j] += (float)(eps * dir[j]);
        up = pass(r, false, false);
        for (int64_t j = 0; j < p->n; j++)
            w[j] -= (float)(2 * eps * dir[j]);
        down = pass(r, false, false);
        for (int64_t j = 0; j < p->n; j++)
            w[j] += (float)(eps * dir[j]);
        got = (up - down) / (2 * eps);
        if (!(fabs(got - want) <= 2e-3 * fabs(want) + 2e-4))
            fail_msg("%s: derivative %g, difference quotient %g", p->name, want, got);
        free(dir);
    }
}

static void test_derivatives_alibi(void **state)
{
    struct rig r = {0};

    (void)state;
    rig_open(&r, "alibi", (struct model_opts){ .t = DTYPE_F32 });
    check_derivatives(&r);
    rig_close(&r);
}

static void test_derivatives_positions(void **state)
{
    struct rig r = {0};

    (void)state;
    rig_open(&r, "absolute", (struct model_opts){ .t = DTYPE_F32 });
    check_derivatives(&r);
    rig_close(&r);
}

/* Gradients of a run with dropout, so that recomputed masks count; fp32 and bf16. */
static void test_recomputation_same_bits(void **state)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig r[3] = {{0}};

        for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
            rig_open(&r[how], "alibi", (struct model_opts){ .t = types[i], .recompute = (enum opts_recompute)how,
                                                            .hidden_dropout = 0.1f, .attention_dropout = 0.2f });
            pass(&r[how], true, false);
            assert_memory_equal(r[how].st.grads, r[0].st.grads, (size_t)r[0].g->flat_n * 4);
            assert_memory_equal(model_head_grad(r[how].m), model_head_grad(r[0].m), V * 24 * 4);
        }
        for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++)
            rig_close(&r[how]);
    }
}

static void test_dropout_changes_with_step_only(void **state)
{
    struct rig r = {0};
    double a, b;

    (void)state;
    rig_open(&r, "alibi", (struct model_opts){ .t = DTYPE_F32, .hidden_dropout = 0.1f });
    a = pass(&r, true, false);
    b = pass(&r, true, false);
    assert_true(a == b);
    assert_true(pass(&r, false, false) != a);
    rig_close(&r);
}

static void test_gradients_add(void **state)
{
    struct rig r = {0};
    float *once;

    (void)state;
    rig_open(&r, "absolute", (struct model_opts){ .t = DTYPE_F32 });
    pass(&r, true, false);
    once = malloc((size_t)r.g->flat_n * 4);
    memcpy(once, r.st.grads, (size_t)r.g->flat_n * 4);
    pass(&r, true, true);
    /* x + x is exact; the order of additions within one pass may differ when there is something to add to. */
    for (int i = 0; i < r.g->n_params; i++)
        for (int64_t j = 0; j < r.g->param[i].n; j++) {
            int64_t at = r.g->param[i].at + j;
            float twice = ((const float *)r.st.grads)[at];

            if (!(fabsf(twice - 2 * once[at]) <= 1e-5f * fabsf(once[at]) + 1e-8f))
                fail_msg("%s[%ld]: %g after %g", r.g->param[i].name, (long)j, twice, once[at]);
        }
    free(once);
    rig_close(&r);
}

static int open_all(void **state)
{
    struct err e = {0};
    struct comm_options co = {0};
    struct kernel_opts ko = { .threads = 2 };

    (void)state;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    k = kernels_cpu_open(&ko, &e);
    return k && comm_world_open(&co, &world, &e) == 0 ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    kernels_close(k);
    comm_world_close(world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_derivatives_alibi),
        cmocka_unit_test(test_derivatives_positions),
        cmocka_unit_test(test_recomputation_same_bits),
        cmocka_unit_test(test_dropout_changes_with_step_only),
        cmocka_unit_test(test_gradients_add),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
