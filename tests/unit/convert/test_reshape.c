/*
 * test_reshape.c - conversion of sharded checkpoints to another topology
 *
 * The results are compared with three references: files that the real trainer wrote (golden sets, reshaped to their
 * own topology), the generator's output for the target topology, and the conversion back, which must give the same
 * bytes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ptdiff.h"
#include "tests/lib/resh.h"

/* Keys that are valid for a single rank only: its random states, and the counts of its own stage. */
static const char *const rank_keys[] = { "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state",
                                         "rng_tracker_states", "args.gigaflos_no_embeds",
                                         "args.parameters_in_billions_no_embedding", NULL };

/* ---- golden sets ---- */

static void own_topology(const char *in, const char *name)
{
    char *out = resh_in_scratch(name), **names;
    struct ds_request q = resh_to_topology(0, 0, 0);
    int n;

    resh_do(in, out, &q);
    resh_expect_sound(out);
    resh_same_names(in, out, &names, &n);
    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        resh_same_file(in, out, names[i], NULL);
    ptdiff_list_free(names, n);
    free(out);
}

static void golden_own_topology(void **state)
{
    (void)state;
    own_topology("tests/data/bloom-tp2pp2dp2/global_step20", "bloom");
    own_topology("tests/data/gpt2-tp2pp2dp1/global_step20", "gpt2");
    /* The last stage of this set is the head alone, with one optimizer group. */
    own_topology("tests/data/bloom-headonly-tp1pp3dp2/global_step10", "headonly");
}

/* ---- against the generator at the target topology ---- */

/* The generator's batch grows with DP, and so does the number of consumed samples. A reshape does not change these. */
static const char *const batch_keys[] = {
    "args.global_batch_size", "args.consumed_train_samples", "args.consumed_train_tokens",
    "args.deepspeed_configuration", "lr_scheduler.num_steps", "lr_scheduler.num_tokens", "global_samples", "tokens",
    NULL,
};
/* The same list, for ranks whose random states the source does not have. */
static const char *const batch_and_rng_keys[] = {
    "args.global_batch_size", "args.consumed_train_samples", "args.consumed_train_tokens",
    "args.deepspeed_configuration", "lr_scheduler.num_steps", "lr_scheduler.num_tokens", "global_samples", "tokens",
    "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state", "rng_tracker_states", NULL,
};

static bool has_rank(const char *name, struct topology target, struct topology source)
{
    int mp;

    return sscanf(name, "mp_rank_%d_", &mp) != 1 || (mp / target.tp < source.pp && mp % target.tp < source.tp);
}

static void expect_like_generated(struct ckptgen a, struct ckptgen b)
{
    char *in = resh_generate(&a, "a"), *want = resh_generate(&b, "b"), *out = resh_in_scratch("out"), **names;
    struct ds_request q = resh_to_topology(b.topo.tp, b.topo.pp, b.topo.dp);
    int n;

    /* The generator distributes layers as newer versions do, whatever version it records. */
    q.balance_given = true;
    q.balance = PIPELINE_SPREAD;
    resh_do(in, out, &q);
    resh_expect_sound(out);
    resh_same_names(want, out, &names, &n);
    for (int i = 0; i < n; i++)
        resh_same_file(want, out, names[i], has_rank(names[i], b.topo, a.topo) ? batch_keys : batch_and_rng_keys);
    ptdiff_list_free(names, n);
    free(in);
    free(want);
    free(out);
}

struct pair {
    struct topology a, b;
};

static const struct pair generated[] = {
    {{2, 2, 2}, {2, 2, 2}}, {{2, 2, 2}, {4, 1, 3}}, {{4, 1, 3}, {1, 3, 2}}, {{1, 1, 1}, {8, 5, 1}},
    {{8, 1, 2}, {2, 4, 3}}, {{1, 3, 12}, {4, 2, 7}}, {{2, 5, 1}, {1, 1, 11}}, {{4, 3, 2}, {8, 2, 5}},
};

static void like_generated(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof generated / sizeof *generated; i++)
        expect_like_generated(resh_small_model(generated[i].a.tp, generated[i].a.pp, generated[i].a.dp),
                              resh_small_model(generated[i].b.tp, generated[i].b.pp, generated[i].b.dp));
}

/* A reshape keeps every convention that a set can have. */
static void like_generated_variants(void **state)
{
    (void)state;
    for (int v = 0; v < 10; v++) {
        struct ckptgen a = resh_small_model(2, 2, 3), b = resh_small_model(4, 3, 2);

        for (int k = 0; k < 2; k++) {
            struct ckptgen *g = k ? &b : &a;

            g->lnum = v == 0 ? CKPTGEN_LNUM_OLD : v == 1 ? CKPTGEN_LNUM_MSMD : CKPTGEN_LNUM_NEW;
            g->n_groups = v == 2 ? 2 : 3;
            g->step = v == 3 ? CKPTGEN_STEP_INT : v == 4 ? CKPTGEN_STEP_GROUP : CKPTGEN_STEP_TENSOR;
            g->no_mappings = v == 5;
            g->zero1 = v == 6;
            g->partition = v == 7 ? "type:transformer" : "type:transformer|embedding";
            g->absolute_positions = v == 8;
            g->embed_layernorm = v != 8;
            g->ds019 = v == 9;
        }
        expect_like_generated(a, b);
    }
}

/* ---- there and back ---- */

/* Reshape A0 -> B -> A0': the bytes must be the same, except for random states of ranks that B did not have. */
static void there_and_back(const char *a0, struct topology a, struct topology b)
{
    char *there = resh_in_scratch("there"), *back = resh_in_scratch("back"), **names;
    struct ds_request q = resh_to_topology(b.tp, b.pp, b.dp), r = resh_to_topology(a.tp, a.pp, a.dp);
    int n;

    resh_do(a0, there, &q);
    resh_do(there, back, &r);
    resh_same_digests(a0, there);
    resh_same_digests(a0, back);
    resh_same_names(a0, back, &names, &n);
    for (int i = 0; i < n; i++) {
        if (!has_rank(names[i], a, b))
            resh_same_file(a0, back, names[i], rank_keys);
        else if (!ptdiff_same_bytes(a0, back, names[i]))
            fail_msg("TP %d PP %d DP %d -> TP %d PP %d DP %d and back: %s differs", a.tp, a.pp, a.dp, b.tp, b.pp, b.dp,
                     names[i]);
    }
    ptdiff_list_free(names, n);
    free(there);
    free(back);
}

static void grid(void **state)
{
    static const struct topology from[] = { {2, 2, 2}, {1, 3, 5}, {4, 1, 1}, {8, 2, 1}, {1, 1, 12}, {2, 5, 3} };
    static const struct topology to[] = {
        {1, 1, 1}, {2, 1, 3}, {4, 1, 2}, {8, 1, 1}, {1, 2, 7}, {2, 2, 2}, {4, 3, 1}, {1, 4, 2}, {2, 5, 1}, {8, 2, 2},
        {1, 1, 11},
    };

    (void)state;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        struct ckptgen g = resh_small_model(from[i].tp, from[i].pp, from[i].dp);
        char *in = resh_generate(&g, "a"), *a0 = resh_in_scratch("a0");
        struct ds_request q = resh_to_topology(0, 0, 0);

        resh_do(in, a0, &q);
        for (size_t k = 0; k < sizeof to / sizeof *to; k++)
            there_and_back(a0, from[i], to[k]);
        free(in);
        free(a0);
    }
}

/* Tensor degrees that do not divide each other: groups of columns, and rows that partitions divide. */
static void uneven_tensor_ranks(void **state)
{
    static const struct topology from[] = { {4, 2, 1}, {3, 1, 5}, {1, 2, 7} };
    /* DP 61 and 97: partitions end inside a row that began in another partition. */
    static const struct topology to[] = { {6, 1, 61}, {4, 2, 3}, {2, 1, 97}, {12, 1, 2}, {3, 2, 1} };

    (void)state;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        struct ckptgen g = resh_small_model(from[i].tp, from[i].pp, from[i].dp);
        char *in, *a0 = resh_in_scratch("a0");
        struct ds_request q = resh_to_topology(0, 0, 0);

        g.hidden = 24;
        g.n_heads = 12;
        g.n_layers = 3;
        in = resh_generate(&g, "a");
        resh_do(in, a0, &q);
        resh_expect_sound(a0);
        for (size_t k = 0; k < sizeof to / sizeof *to; k++)
            there_and_back(a0, from[i], to[k]);
        free(in);
        free(a0);
    }
}

static void golden_there_and_back(void **state)
{
    char *a0 = resh_in_scratch("bloom");

    (void)state;
    there_and_back(a0, (struct topology){ 2, 2, 2 }, (struct topology){ 4, 3, 3 });
    there_and_back(a0, (struct topology){ 2, 2, 2 }, (struct topology){ 1, 1, 1 });
    free(a0);
    a0 = resh_in_scratch("gpt2");
    there_and_back(a0, (struct topology){ 2, 2, 1 }, (struct topology){ 4, 4, 2 });
    there_and_back(a0, (struct topology){ 2, 2, 1 }, (struct topology){ 1, 2, 5 });
    free(a0);
    a0 = resh_in_scratch("headonly");
    there_and_back(a0, (struct topology){ 1, 3, 2 }, (struct topology){ 2, 1, 3 });
    there_and_back(a0, (struct topology){ 1, 3, 2 }, (struct topology){ 4, 2, 1 });
    free(a0);
}

/* ---- from universal forms ---- */

/*
 * The weights of a sound set are its rounded masters, so even the layer files come out the same. The last stage's
 * position table is not in these forms, so the test uses bloom.
 */
static void from_universal(void **state)
{
    struct sink *(*const forms[])(const struct sink_opts *) = { universal_pt_sink, universal_hdf5_sink,
                                                                universal_virtual_sink };
    struct ckptgen g = resh_small_model(2, 2, 3);
    char *in = resh_generate(&g, "a"), *want = resh_in_scratch("want"), *mid = resh_in_scratch("mid"),
         *out = resh_in_scratch("out");
    struct ds_request q = resh_to_topology(4, 3, 2);

    (void)state;
    resh_do(in, want, &q);
    for (int i = 0; i < 3; i++) {
        char **names;
        int n;

        resh_to_universal(in, mid, forms[i]);
        resh_do(mid, out, &q);
        resh_expect_sound(out);
        resh_same_digests(want, out);
        resh_same_names(want, out, &names, &n);
        for (int k = 0; k < n; k++)
            if (!ptdiff_same_bytes(want, out, names[k]))
                fail_msg("from universal form %d: %s differs", i, names[k]);
        ptdiff_list_free(names, n);
    }
    free(in);
    free(want);
    free(mid);
    free(out);
}

/* The reference's own converter keeps neither step nor settings. They are filled in, and the tensors are the same. */
static void from_reference_universal(void **state)
{
    char *a0 = resh_in_scratch("bloom"), *out = resh_in_scratch("out"), **names;
    struct ds_request q = resh_to_topology(0, 0, 0);
    struct source *s;
    struct pk **groups;
    uint32_t n_groups = 0;
    double lr = 0;
    int n;

    (void)state;
    resh_do("tests/data/bloom-tp2pp2dp2/global_step20_universal", out, &q);
    resh_expect_sound(out);
    resh_same_digests(a0, out);
    resh_same_names(a0, out, &names, &n);
    for (int i = 0; i < n; i++)
        if (!strstr(names[i], "zero") && !ptdiff_same_bytes(a0, out, names[i]))
            fail_msg("%s differs", names[i]);
    ptdiff_list_free(names, n);
    s = resh_open_source(out);
    assert_int_equal(s->run.opt_step, 21);
    assert_int_equal(s->run.step_is_tensor, 1);
    /* As in the trainer's own shards: the schedule's rate after 20 iterations, not the maximum. */
    groups = pk_items(s->run.param_groups, &n_groups);
    assert_int_equal(n_groups, 3);
    for (uint32_t g = 0; g < n_groups; g++) {
        assert_true(pk_as_double(pk_get(groups[g], "lr"), &lr));
        assert_true(lr == 0.001978063698397256);
    }
    source_close(s);
    free(a0);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_own_topology), cmocka_unit_test(golden_there_and_back),
        cmocka_unit_test(like_generated), cmocka_unit_test(like_generated_variants), cmocka_unit_test(grid),
        cmocka_unit_test(uneven_tensor_ranks), cmocka_unit_test(from_universal),
        cmocka_unit_test(from_reference_universal),
    };

    return cmocka_run_group_tests(tests, resh_make_scratch, resh_remove_scratch);
}
