/* test_pipeline.c - layers per stage: the published divisions of both balancing algorithms, and the rules for a
 * valid one */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/model/pipeline_cuts.h"

enum { STAGES_MAX = 64 };

/* The trainer's own list since July 2022: cast, embedding, transpose, layers, undo, norm, head, cast. */
static struct pipeline_specs specs(int n_layers)
{
    return (struct pipeline_specs){ .n = n_layers + 7, .embedding = 1, .first_layer = 3, .n_layers = n_layers,
                                    .final_norm = n_layers + 4 };
}

static void expect(int n_layers, int pp, const char *method, enum pipeline_balance how, const int *want)
{
    struct pipeline_specs s = specs(n_layers);
    int got[STAGES_MAX];
    struct err e = {0};

    if (pipeline_cut(&s, method, how, pp, got, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < pp; i++)
        if (got[i] != want[i])
            fail_msg("%d layers, %d stages, %s: stage %d has %d layers, expected %d", n_layers, pp, method, i, got[i],
                     want[i]);
}

/* The table of the format's description: BLOOM-176B, a middling model, and the worked example. */
static void test_published_cuts(void **state)
{
    static const int bloom[] = { 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5 };
    static const int bloom_old[] = { 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 4 };
    static const int bloom_new[] = { 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5, 5 };

    (void)state;
    expect(70, 12, "type:transformer|embedding", PIPELINE_BOTTLENECK, bloom);
    expect(70, 12, "type:transformer|embedding", PIPELINE_SPREAD, bloom);
    expect(70, 12, "type:transformer", PIPELINE_BOTTLENECK, bloom_old);
    expect(70, 12, "type:transformer", PIPELINE_SPREAD, bloom_new);
    expect(30, 4, "type:transformer", PIPELINE_BOTTLENECK, (const int[]){ 8, 8, 8, 6 });
    expect(30, 4, "type:transformer", PIPELINE_SPREAD, (const int[]){ 8, 8, 7, 7 });
    expect(2, 2, "type:transformer", PIPELINE_BOTTLENECK, (const int[]){ 1, 1 });
    expect(2, 2, "type:transformer", PIPELINE_SPREAD, (const int[]){ 1, 1 });
}

/* Spec boundaries, not only layer counts. */
static void test_boundaries(void **state)
{
    static const int want[] = { 0, 8, 14, 20, 26, 32, 38, 44, 50, 56, 62, 68, 77 };
    int weight[77] = {0}, parts[13];

    (void)state;
    for (int i = 3; i < 73; i++)
        weight[i] = 1;
    weight[1] = weight[75] = 1;
    for (int how = 0; how < 2; how++) {
        pipeline_balanced(weight, 77, 12, (enum pipeline_balance)how, parts);
        assert_memory_equal(parts, want, sizeof want);
    }
    memset(weight, 0, sizeof weight);
    weight[3] = weight[4] = 1;
    for (int how = 0; how < 2; how++) {
        pipeline_balanced(weight, 9, 2, (enum pipeline_balance)how, parts);
        assert_memory_equal(parts, ((const int[]){ 0, 4, 9 }), 3 * sizeof *parts);
    }
}

/* Heaviest and lightest stage of a cut. */
static void extremes(const int *weight, const int *parts, int pp, int *max, int *min)
{
    *max = 0;
    *min = 1 << 30;
    for (int p = 0; p < pp; p++) {
        int sum = 0;

        assert_true(parts[p] <= parts[p + 1]);
        for (int i = parts[p]; i < parts[p + 1]; i++)
            sum += weight[i];
        *max = sum > *max ? sum : *max;
        *min = sum < *min ? sum : *min;
    }
}

/* Try every cut: none is better by the algorithm's own measure. */
static void best_of_all(const int *weight, int n, int pp, int *parts, int stage, int *least_max, int *least_spread)
{
    int max, min;

    if (stage == pp) {
        parts[pp] = n;
        extremes(weight, parts, pp, &max, &min);
        *least_max = max < *least_max ? max : *least_max;
        *least_spread = max - min < *least_spread ? max - min : *least_spread;
        return;
    }
    for (int at = parts[stage - 1] + 1; at <= n - (pp - stage); at++) {
        parts[stage] = at;
        best_of_all(weight, n, pp, parts, stage + 1, least_max, least_spread);
    }
}

static void test_optimal(void **state)
{
    (void)state;
    for (int L = 2; L <= 9; L++)
        for (int pp = 2; pp <= 4 && pp <= L; pp++)
            for (int ends = 0; ends < 2; ends++) {
                int weight[16] = {0}, parts[STAGES_MAX] = {0}, n = L + 7, max, min;
                int least_max = 1 << 30, least_spread = 1 << 30;

                for (int i = 0; i < L; i++)
                    weight[3 + i] = 1;
                weight[1] = weight[L + 5] = ends;
                best_of_all(weight, n, pp, parts, 1, &least_max, &least_spread);
                pipeline_balanced(weight, n, pp, PIPELINE_BOTTLENECK, parts);
                extremes(weight, parts, pp, &max, &min);
                assert_int_equal(max, least_max);
                pipeline_balanced(weight, n, pp, PIPELINE_SPREAD, parts);
                extremes(weight, parts, pp, &max, &min);
                assert_int_equal(max - min, least_spread);
            }
}

/* What a tensor rank trains of each spec: h, V and TP are those of the model. */
static struct pipeline_specs sized(int n_layers, int64_t h, int64_t V, int64_t tp)
{
    struct pipeline_specs s = specs(n_layers);

    s.embedding_elems = V / tp * h;
    s.layer_elems = 12 * h * h / tp + 7 * h / tp + 6 * h;
    s.final_norm_elems = 2 * h;
    return s;
}

static void expect_cut(struct pipeline_specs s, int pp, const char *method, enum pipeline_balance how, const int *want)
{
    int got[STAGES_MAX];
    struct err e = {0};

    if (pipeline_cut(&s, method, how, pp, got, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(got, want, (size_t)pp * sizeof *got);
}

/* Computed with the reference's functions as the format's description has them. */
static void test_parameters(void **state)
{
    static const int bloom[] = { 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5 };

    (void)state;
    for (int how = PIPELINE_BOTTLENECK; how <= PIPELINE_SPREAD; how++) {
        expect_cut(sized(70, 14336, 250880, 4), 12, "parameters", (enum pipeline_balance)how, bloom);
        expect_cut(sized(24, 1024, 50304, 2), 3, "Parameters", (enum pipeline_balance)how, (const int[]){ 7, 11, 6 });
    }
}

/* 15 specs: 7 and 8, or 8 and 7; 5, 5, 5. */
static void test_uniform(void **state)
{
    (void)state;
    expect_cut(specs(8), 2, "uniform", PIPELINE_BOTTLENECK, (const int[]){ 4, 4 });
    expect_cut(specs(8), 2, "Uniform", PIPELINE_SPREAD, (const int[]){ 5, 3 });
    expect_cut(specs(8), 3, "uniform", PIPELINE_SPREAD, (const int[]){ 2, 5, 1 });
    /* The rest went to the first stages before balancing by weights changed, and has nothing to do with it. */
    expect_cut(specs(8), 2, "uniform", PIPELINE_BETWEEN, (const int[]){ 5, 3 });
    expect_cut(specs(30), 4, "type:transformer", PIPELINE_BETWEEN, (const int[]){ 8, 8, 8, 6 });
    expect_cut(specs(70), 12, "uniform", PIPELINE_BOTTLENECK, (const int[]){ 3, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7 });
    expect_cut(specs(70), 12, "uniform", PIPELINE_SPREAD, (const int[]){ 4, 7, 7, 7, 7, 6, 6, 6, 6, 6, 6, 2 });
}

/* Stages that hold the embedding alone, or the head: the trainer of that time trains, saves and resumes them. */
static void test_lone_ends(void **state)
{
    static const struct { int L, pp, norm; const char *method; int want[8]; } t[] = {
        { 4, 4, 2, "type:transformer|embedding", { 1, 2, 1, 0 } },
        { 3, 3, 1, "type:transformer|embedding", { 1, 2, 0 } },
        { 5, 4, 2, "type:transformer|embedding", { 1, 2, 2, 0 } },
        { 6, 5, 3, "type:transformer|embedding", { 1, 2, 2, 1, 0 } },
        { 7, 5, 3, "type:transformer|embedding", { 1, 2, 2, 2, 0 } },
        { 11, 7, 5, "type:transformer|embedding", { 1, 2, 2, 2, 2, 2, 0 } },
        { 13, 8, 6, "type:transformer|embedding", { 1, 2, 2, 2, 2, 2, 2, 0 } },
        { 4, 4, 2, "uniform", { 0, 3, 1, 0 } },         /* LayerNorm after the last layer */
        { 8, 4, 3, "uniform", { 1, 4, 3, 0 } },         /* ... or with the head */
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct pipeline_specs s = specs(t[i].L);
        struct err e = {0};
        int got[8] = {0};

        assert_int_equal(pipeline_cut(&s, t[i].method, PIPELINE_SPREAD, t[i].pp, got, &e), t[i].norm);
        assert_memory_equal(got, t[i].want, sizeof got);
    }
}

/* The dearest stage of the best cut there is, by trying all of them. */
static double least_dearest(const struct pipeline_specs *s, int stages_left, int layers_left)
{
    double best = 1e300;

    if (stages_left == 1)
        return layers_left * s->layer_cost + s->head_cost;
    for (int n = 1; n <= layers_left - (stages_left - 1); n++) {
        double rest = least_dearest(s, stages_left - 1, layers_left - n), own = n * s->layer_cost;
        double dearest = own > rest ? own : rest;

        best = dearest < best ? dearest : best;
    }
    return best;
}

static void expect_cost_is_least(int L, int pp, int64_t V)
{
    struct pipeline_specs s = specs(L);
    struct err e = {0};
    double dearest = 0;
    int got[STAGES_MAX], sum = 0;

    pipeline_costs(&s, 64, 256, 128, V);
    assert_int_equal(pipeline_cut(&s, "cost", PIPELINE_SPREAD, pp, got, &e), pp - 1);
    for (int p = 0; p < pp; p++) {
        double cost = got[p] * s.layer_cost + (p == pp - 1 ? s.head_cost : 0);

        assert_true(got[p] >= 1);
        sum += got[p];
        dearest = cost > dearest ? cost : dearest;
        /* Of equal stages the earlier one has fewer, and none has two less than another. */
        if (p > 0 && p < pp - 1)
            assert_true(got[p] == got[p - 1] || got[p] == got[p - 1] + 1);
    }
    assert_int_equal(sum, L);
    if (!(dearest == least_dearest(&s, pp, L)))
        fail_msg("%d layers, %d stages, V %ld: the dearest stage costs %g, it could be %g", L, pp, (long)V, dearest,
                 least_dearest(&s, pp, L));
}

static void test_cost(void **state)
{
    static const struct { int L, pp; int64_t h, s, V; int want[4];
    } known[] = {
        { 24, 2, 2048, 2048, 250880, { 16, 8 } },      /* BLOOM-1b7: the head is worth 8.75 blocks */
        { 24, 4, 2048, 2048, 250880, { 7, 8, 8, 1 } }, /* the head alone outweighs a fourth: it gets the least block */
        { 30, 4, 4096, 2048, 250880, { 8, 9, 9, 4 } }, /* 7b1: 4.7 blocks */
        { 24, 4, 2048, 2048, 50304, { 6, 6, 7, 5 } }, /* GPT-2's: 1.75 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct pipeline_specs s = specs(known[i].L);

        pipeline_costs(&s, known[i].h, 4 * known[i].h, known[i].s, known[i].V);
        expect_cut(s, known[i].pp, "Cost", PIPELINE_BOTTLENECK, known[i].want);
        expect_cut(s, known[i].pp, "cost", PIPELINE_SPREAD, known[i].want);
    }
    for (int L = 1; L <= 10; L++)
        for (int pp = 1; pp <= 4 && pp <= L; pp++)
            for (int64_t V = 128; V <= 128 << 9; V *= 2)
                expect_cost_is_least(L, pp, V);
}

static void expect_refused(struct pipeline_specs s, const char *method, int pp, const char *want)
{
    int got[STAGES_MAX];
    struct err e = {0};

    assert_int_equal(pipeline_cut(&s, method, PIPELINE_SPREAD, pp, got, &e), -1);
    assert_int_equal(e.kind, ERR_USAGE);
    assert_string_equal(e.msg, want);
}

static void test_refusals(void **state)
{
    (void)state;
    expect_refused(specs(4), "type:transformer", 5, "4 layers cannot fill 5 pipeline stages");
    expect_refused(specs(4), "profile", 2,
                   "partition method 'profile' is not supported: expected " PIPELINE_METHODS);
    expect_refused(specs(4), "type:transformer|", 2,
                   "partition method 'type:transformer|' is not supported: expected " PIPELINE_METHODS);
    expect_refused(specs(4), "parameters", 2,
                   "partition method 'parameters': the parameters per layer are unknown, because sizes of the model "
                   "are missing");
    expect_refused(specs(4), "cost", 2, "partition method 'cost': the cost of layers is unknown, because sizes of the "
                                        "model are missing");
    expect_refused(specs(8), "uniform", 8, "'uniform' cuts 8 layers over 8 stages so that the embedding is not on the "
                   "first one, or its tied copy not on the last; give the layers of each stage");
    expect_refused(specs(5000), "type:transformer", 2, "5007 pipeline specs, at most 4096 supported");
    assert_true(pipeline_method_known("type:embedding|Transformer"));
    assert_false(pipeline_method_known("type:embedding"));
    assert_true(pipeline_method_known("uniform"));
    assert_true(pipeline_method_known("PARAMETERS"));
    assert_false(pipeline_method_known("profile"));
    assert_false(pipeline_method_known("type:"));
}

static void test_versions(void **state)
{
    (void)state;
    assert_int_equal(pipeline_balance_of("0.10.0"), PIPELINE_BOTTLENECK);
    assert_int_equal(pipeline_balance_of("0.10.1"), PIPELINE_BETWEEN);
    assert_int_equal(pipeline_balance_of("0.12.4"), PIPELINE_BETWEEN);
    assert_int_equal(pipeline_balance_of("0.12.5"), PIPELINE_SPREAD);
    assert_int_equal(pipeline_balance_of("0.7.1+abc"), PIPELINE_BOTTLENECK);
    assert_int_equal(pipeline_balance_of("1.0.0"), PIPELINE_SPREAD);
    assert_int_equal(pipeline_balance_of("0.0.0"), PIPELINE_SPREAD);
    assert_int_equal(pipeline_balance_of(""), PIPELINE_SPREAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_cuts), cmocka_unit_test(test_boundaries), cmocka_unit_test(test_optimal),
        cmocka_unit_test(test_parameters), cmocka_unit_test(test_uniform), cmocka_unit_test(test_lone_ends),
        cmocka_unit_test(test_cost), cmocka_unit_test(test_refusals), cmocka_unit_test(test_versions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
