/* test_repair.c - resolve copies that drifted: the rules element by element, compared with plain loops */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <math.h>

#include "libcommon/base/files.h"
#include "libcommon/check/repair.h"
#include "libcommon/check/replicas_report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/plan/tmap.h"

enum { RANKS = 3, ELEMS = 100 };

static char scratch[] = "/tmp/shardkit-repair-XXXXXX";

/* One parameter whose copies are in memory: a source without anything else. */
struct made {
    struct source s;
    struct param param;
    float flat[STATE_N][RANKS][ELEMS];
    uint16_t bf16[RANKS][ELEMS];
    struct tmap map[STATE_N];
    struct tmap_slice slice[STATE_N][RANKS];
    struct extent x[STATE_N][RANKS];
};

/* Fill in equal copies, with weights that are their rounded masters. */
static void fill(struct made *m)
{
    memset(m, 0, sizeof *m);
    for (int st = STATE_FP32; st < STATE_N; st++)
        for (int k = 0; k < RANKS; k++)
            for (int i = 0; i < ELEMS; i++)
                m->flat[st][k][i] = (float)(i + 1) * (st == STATE_FP32 ? 0.37f : st == STATE_EXP_AVG ? -1e-3f : 1e-6f);
    for (int k = 0; k < RANKS; k++)
        for (int i = 0; i < ELEMS; i++)
            m->bf16[k][i] = f32_to_bf16(m->flat[STATE_FP32][k][i]);
}

/* Make its maps, after the values were set. */
static void open_made(struct made *m)
{
    m->s = (struct source){ .layout = &deepspeed_layout, .path = (char *)"made", .tag = (char *)"made",
                            .files = files_new(), .arena = arena_new(0),
                            .topo = { .tp = RANKS, .pp = 1, .dp = 1 }, .n_params = 1, .param = &m->param };
    m->param = (struct param){ .name = "3.input_layernorm.weight", .ndim = 1, .shape = { ELEMS } };
    for (int st = 0; st < STATE_N; st++) {
        uint64_t len = ELEMS * (st == STATE_BF16 ? sizeof(uint16_t) : sizeof(float));

        for (int k = 0; k < RANKS; k++) {
            const void *p = st == STATE_BF16 ? (const void *)m->bf16[k] : (const void *)m->flat[st][k];
            int file = files_add_mem(m->s.files, p, len, "copy");

            m->x[st][k] = (struct extent){ files_add_record(m->s.files, &(struct record){ .file = file, .len = len,
                                                                                          .name = "data/0" }), 0, len };
            m->slice[st][k] = (struct tmap_slice){ .len = len, .n_extents = 1, .extent = &m->x[st][k] };
        }
        m->map[st] = (struct tmap){ .op = TMAP_REPLICAS, .dtype = st == STATE_BF16 ? DTYPE_BF16 : DTYPE_F32, .len = len,
                                    .n_slices = RANKS, .slice = m->slice[st] };
        m->param.state[st] = &m->map[st];
    }
}

struct result {
    float flat[STATE_N][ELEMS];
    uint16_t bf16[ELEMS];
    struct repair repaired;
};

static void repair(struct made *m, enum replica_policy how, struct result *out)
{
    struct replicas_opts o = { .threads = 2, .state = -1 };
    struct replicas r;
    struct err e = {0};

    open_made(m);
    assert_int_equal(replicas_check(&m->s, &o, &r, &e), 0);
    assert_int_equal(repair_run(&m->s, &r, &(struct repair_opts){ how, scratch, NULL }, &out->repaired, &e), 0);
    for (int st = 0; st < STATE_N; st++) {
        void *to = st == STATE_BF16 ? (void *)out->bf16 : (void *)out->flat[st];
        const struct tmap *now = m->param.state[st];

        assert_int_equal(now->len, m->map[st].len);
        if (tmap_read(now, m->s.files, (struct tmap_range){ 0, 0, now->len }, to, &e) < 0)
            fail_msg("%s", e.msg);
    }
    replicas_free(&r);
}

static void close_made(struct made *m, struct result *r)
{
    repair_free(&r->repaired);
    files_free(m->s.files);
    arena_free(m->s.arena);
}

static const struct repair_state *told(const struct result *r, enum state st)
{
    for (int i = 0; i < r->repaired.n; i++)
        if (r->repaired.state[i].state == st)
            return &r->repaired.state[i];
    return NULL;
}

static struct made made, other;

/* Different states drifted on different ranks: the one rank that agrees with most others supplies all states. */
static void test_majority_of_all_states(void **state)
{
    struct result r;

    (void)state;
    fill(&made);
    fill(&other);
    made.flat[STATE_FP32][0][5] += 1;
    made.bf16[0][5] = f32_to_bf16(made.flat[STATE_FP32][0][5]);
    made.flat[STATE_EXP_AVG][1][5] = 7;
    made.flat[STATE_EXP_AVG_SQ][2][9] = 8;              /* ranks 0 and 1 agree in everything here */
    made.flat[STATE_EXP_AVG_SQ][1][11] = 9;             /* all three differ, so the lowest rank is used */
    made.flat[STATE_EXP_AVG_SQ][2][11] = 10;
    repair(&made, REPLICAS_MAJORITY, &r);
    for (int st = STATE_FP32; st < STATE_N; st++)
        assert_memory_equal(r.flat[st], other.flat[st][0], sizeof r.flat[st]);
    assert_memory_equal(r.bf16, other.bf16[0], sizeof r.bf16);
    assert_int_equal(r.repaired.n, 4);
    assert_int_equal(r.repaired.n_params, 1);
    assert_int_equal(told(&r, STATE_FP32)->rank[0].n_changed, 1);
    assert_int_equal(told(&r, STATE_FP32)->rank[1].n_changed, 0);
    assert_true(told(&r, STATE_FP32)->all.max_abs == 1);
    assert_int_equal(told(&r, STATE_EXP_AVG_SQ)->rank[2].n_changed, 2);
    close_made(&made, &r);
}

/* Rank 0's values are kept in all states, whatever the others are. */
static void test_first(void **state)
{
    struct result r;

    (void)state;
    fill(&made);
    made.flat[STATE_FP32][0][5] += 1;
    made.bf16[0][5] = f32_to_bf16(made.flat[STATE_FP32][0][5]);
    made.flat[STATE_EXP_AVG][1][6] = 7;
    other = made;
    repair(&made, REPLICAS_FIRST, &r);
    for (int st = STATE_FP32; st < STATE_N; st++)
        assert_memory_equal(r.flat[st], other.flat[st][0], sizeof r.flat[st]);
    assert_memory_equal(r.bf16, other.bf16[0], sizeof r.bf16);
    assert_int_equal(told(&r, STATE_BF16)->all.n_changed, 1);
    assert_int_equal(told(&r, STATE_BF16)->rank[2].n_changed, 1);
    assert_null(told(&r, STATE_EXP_AVG_SQ));
    close_made(&made, &r);
}

/* Masters are averaged, and the weight is the rounded average, not the average of the weights. */
static void test_average_rounds_the_master(void **state)
{
    struct result r;
    float sum, mean;

    (void)state;
    fill(&made);
    for (int k = 0; k < RANKS; k++) {
        made.flat[STATE_FP32][k][5] = 1 + (float)k * 0.003f;
        made.bf16[k][5] = f32_to_bf16(made.flat[STATE_FP32][k][5]);
        made.flat[STATE_EXP_AVG][k][5] = (float)k;
    }
    repair(&made, REPLICAS_AVERAGE, &r);
    sum = made.flat[STATE_FP32][0][5] + made.flat[STATE_FP32][1][5] + made.flat[STATE_FP32][2][5];
    mean = sum / 3;
    assert_memory_equal(&r.flat[STATE_FP32][5], &mean, sizeof mean);
    assert_int_equal(r.bf16[5], f32_to_bf16(mean));
    assert_true(r.flat[STATE_EXP_AVG][5] == 1);
    assert_true(r.flat[STATE_EXP_AVG][4] == made.flat[STATE_EXP_AVG][0][4]);
    close_made(&made, &r);
}

/* One rank's weight differs: every policy rounds it from its master again. */
static void test_stray_weight(void **state)
{
    (void)state;
    for (int how = REPLICAS_AVERAGE; how < REPLICAS_FAIL; how++) {
        struct result r;

        fill(&made);
        made.bf16[0][5] ^= 1;
        repair(&made, (enum replica_policy)how, &r);
        assert_int_equal(r.bf16[5], made.bf16[1][5]);
        assert_int_equal(r.repaired.n, 1);
        assert_int_equal(told(&r, STATE_BF16)->rank[0].n_changed, 1);
        assert_int_equal(told(&r, STATE_BF16)->rank[1].n_changed, 0);
        close_made(&made, &r);
    }
}

/* Weights that were not rounded masters are resolved by themselves, and are left alone where all agree. */
static void test_unrounded_weights(void **state)
{
    struct result r;

    (void)state;
    fill(&made);
    for (int k = 0; k < RANKS; k++) {
        made.bf16[k][5] = k == 1 ? 0x4100 : 0x4000;     /* 8 and 2, the master is 2.22 */
        made.bf16[k][6] = 0x4180;                       /* equal everywhere, and far from the master */
    }
    repair(&made, REPLICAS_MAJORITY, &r);
    assert_int_equal(r.bf16[5], 0x4000);
    assert_int_equal(r.bf16[6], 0x4180);
    close_made(&made, &r);
    fill(&made);
    for (int k = 0; k < RANKS; k++)
        made.bf16[k][5] = k == 1 ? 0x4100 : 0x4000;
    repair(&made, REPLICAS_AVERAGE, &r);
    assert_int_equal(r.bf16[5], 0x4080);                /* 4 */
    close_made(&made, &r);
}

static void test_log(void **state)
{
    struct strbuf log = {0};
    struct result r;

    (void)state;
    fill(&made);
    made.flat[STATE_EXP_AVG][1][6] = NAN;
    for (int k = 0; k < RANKS; k++)
        made.flat[STATE_EXP_AVG][k][7] = k == 2 ? 1.5f : 1;
    repair(&made, REPLICAS_FIRST, &r);
    repair_log(&made.s, &r.repaired, REPLICAS_FIRST, &log);
    assert_non_null(strstr(log.buf, "{\"format\":\"shardkit-repair\",\"version\":1,\"tag\":\"made\",\"tp\":3,"));
    assert_non_null(strstr(log.buf, "\"policy\":\"first\",\"parameters\":1,\"states\":1}\n"));
    assert_non_null(strstr(log.buf,
                           "\"state\":\"exp_avg\",\"elements\":100,\"differed\":2,\"changed\":2,\"max_ulps\":null,"
                           "\"max_abs\":0.5,\"ranks\":[{\"rank\":1,\"changed\":1,\"max_ulps\":null,"));
    strbuf_free(&log);
    close_made(&made, &r);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(scratch);              /* the folder must be empty */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_majority_of_all_states), cmocka_unit_test(test_first),
        cmocka_unit_test(test_average_rounds_the_master), cmocka_unit_test(test_stray_weight),
        cmocka_unit_test(test_unrounded_weights), cmocka_unit_test(test_log),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
