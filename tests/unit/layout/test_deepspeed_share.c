/*
 * test_deepspeed_share.c - a checkpoint from memory: a share as data, the input that is refused, and processes that
 * cooperate
 *
 * One process acts for two data-parallel ranks that hold all of a small model. test_train_checkpoint*.c check that
 * the files saved by training are right to the byte.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/plan/executor.h"
#include "libcommon/write/sink.h"
#include "tests/lib/scratch.h"

enum { RANKS = 2, PARAMS_MAX = 32, ELEMS_MAX = 1 << 14 };


static void must(bool ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

/* ---- a model of one block, DP 2, whose ranks hold a half of each parameter ---- */

struct model {
    struct source *src;
    struct ds_target *t;
    struct ds_held held[RANKS][PARAMS_MAX];
    float memory[RANKS][ELEMS_MAX];
    uint64_t bytes;
};

static struct param param_of(enum role r, const char *name)
{
    const struct param_dims dims = { 8, 8, 4, 16 };
    const struct param_row *row = param_row(r);
    struct param p = { .name = name, .ndim = row->ndim, .merge = row->merge };

    for (int d = 0; d < row->ndim; d++)
        p.shape[d] = param_dim(&dims, row->dims[d]);
    return p;
}

static struct source *make_source(void)
{
    static const enum role roles[] = { ROLE_WORD, ROLE_NORM1_W, ROLE_QKV_W, ROLE_DENSE_W, ROLE_FINAL_NORM_W };
    struct arena *a = arena_new(0);
    struct ds_new_run f = { .vocab = 8, .tokens = 8 };
    struct param param[5];
    struct source *s;

    for (int i = 0; i < 5; i++)
        param[i] = param_of(roles[i], i == 0 ? param_embedding_name(ROLE_WORD)
                            : arena_fmt(a, "%d.%s", i < 4 ? 3 : 5, param_row(roles[i])->key));
    f.args = pk_object(a, "argparse", "Namespace", pk_dict(a));
    pk_set_int(a, f.args, "num_attention_heads", 2);
    pk_set_int(a, f.args, "num_layers", 1);
    pk_set_int(a, f.args, "padded_vocab_size", 8);
    s = ds_new_run_source(param, 5, &f, false);
    arena_free(a);
    return s;
}

static void model_open(struct model *m)
{
    static const int blocks[] = { 1 };
    const struct ds_request q = { .topo = { .tp = 1, .pp = 1, .dp = RANKS },
                                  .stages = blocks,
                                  .n_stages = 1,
                                  .step = -1,
                                  .no_tensors = true,
                                  .weights = DTYPE_F32 };
    struct report *notes = report_new();
    struct err e = {0};

    memset(m, 0, sizeof *m);
    m->src = make_source();
    assert_int_equal(m->src->n_files, 0);       /* the target makes the trees of the files */
    assert_null(m->src->run.optimizer);
    assert_int_equal(m->src->groups->n, 3);
    m->t = ds_target_new(m->src, &q, notes, &e);
    must(m->t != NULL, &e);
    for (int i = 0; i < m->t->n_params; i++) {
        const int64_t n = m->t->param[i].slice_elems / RANKS;

        for (int r = 0; r < RANKS; r++) {
            struct ds_held *h = &m->held[r][i];

            *h = (struct ds_held){ .param = i, .from = r * n, .n = n };
            for (int st = 0; st < STATE_N; st++)
                h->at[st] = m->bytes + (uint64_t)(st * n) * sizeof(float);
            for (int64_t k = 0; k < STATE_N * n; k++)
                m->memory[r][m->bytes / sizeof(float) + (size_t)k] = (float)(i * 1000 + r * 500 + (int)k);
        }
        m->bytes += (uint64_t)(STATE_N * n) * sizeof(float);
    }
    assert_true(m->bytes <= sizeof m->memory[0]);
    report_free(notes);
}

static void model_close(struct model *m)
{
    ds_target_free(m->t);
    source_close(m->src);
}

static struct ds_share *share_of(const struct model *m, int dp, struct err *e)
{
    const struct ds_share_of of = { .dp = dp, .n_held = m->t->n_params, .held = m->held[dp] };

    return ds_share_new(m->t, &of, e);
}

/* ---- what is refused ---- */

static void outside(void **state)
{
    struct model *m = xmalloc(sizeof *m);
    struct err e = {0};

    (void)state;
    model_open(m);
    m->held[0][2].n += m->t->param[2].slice_elems;
    assert_null(share_of(m, 0, &e));
    assert_non_null(strstr(e.msg, "have no place in the files of stage 0"));
    model_close(m);
    free(m);
}

/* Every message that is cut short is refused, the whole one is the same share. */
static void cut_short(void **state)
{
    struct model *m = xmalloc(sizeof *m);
    struct strbuf sb = {0}, again = {0};
    struct ds_share *s, *back;
    struct err e = {0};

    (void)state;
    model_open(m);
    s = share_of(m, 0, &e);
    must(s != NULL, &e);
    ds_share_pack(s, &sb);
    for (size_t n = 0; n < sb.len; n += n < 64 ? 1 : 61) {
        char *exact = xmalloc(n + 1);

        memcpy(exact, sb.buf, n);
        err_clear(&e);
        assert_null(ds_share_unpack(exact, n, &e));
        assert_int_equal(e.kind, ERR_DATA);
        free(exact);
    }
    err_clear(&e);
    back = ds_share_unpack(sb.buf, sb.len, &e);
    must(back != NULL, &e);
    ds_share_pack(back, &again);
    assert_int_equal(again.len, sb.len);
    ds_share_free(back);
    ds_share_free(s);
    strbuf_free(&sb);
    strbuf_free(&again);
    model_close(m);
    free(m);
}

/* ---- a meeting ---- */

/* The messages of both ranks; the first rank receives that of the second changed by `spoiled`. */
struct table {
    char *told[RANKS];
    int me;
    const char *spoiled;
};

static int tell(void *ctx, const char *text, size_t n, struct err *e)
{
    struct table *t = ctx;

    (void)e;
    t->told[t->me] = str_fmt("%.*s", (int)n, text);
    return 0;
}

static char *hear(void *ctx, int dp, struct err *e)
{
    const struct table *t = ctx;

    if (t->spoiled)
        return xstrdup(t->spoiled);
    if (t->told[dp])
        return xstrdup(t->told[dp]);
    err_data(e, "meeting", ERR_NO_BYTE, "rank %d is late", dp);
    return NULL;
}

/* One rank's part up to the end of finish(); its outcome. */
static int save(const struct model *m, struct table *t, int dp, struct err *e)
{
    const struct exec_opts x = { .threads = 1, .mem_bytes = 1 << 20 };
    struct ds_save how = { .memory = m->memory[dp], .bytes = m->bytes,
                           .now = { .opt_step = 7, .decay = { .lr = 0.5 }, .clip_grad = 1 },
                           .rendezvous = { .tell = tell, .hear = hear, .ctx = t } };
    const struct pt *from = NULL;
    struct arena *a = arena_new(0);
    struct files *files = files_new();
    struct plan *plan = plan_new(files);
    struct ds_share *s = share_of(m, dp, e);
    struct exec_stats st;
    struct sink *k;
    int rc;

    must(s != NULL, e);
    t->me = dp;
    if (dp == 0) {
        how.mp_root = ds_tree_mp(m->t, a, 0, 0, &from, e);
        must(how.mp_root != NULL, e);
        how.mp = from;
        how.mp_files = m->src->files;
    }
    k = ds_share_sink(s, &how);
    must(k->ops->prepare(k, NULL, scratch, plan, e) == 0, e);
    plan_close(plan);
    must(exec_run(plan, &x, &st, e) == 0, e);
    rc = k->ops->finish(k, plan, e);
    k->ops->close(k);
    ds_share_free(s);
    plan_free(plan);
    files_free(files);
    arena_free(a);
    return rc;
}

static void table_clear(struct table *t)
{
    for (int r = 0; r < RANKS; r++)
        free(t->told[r]);
    *t = (struct table){0};
}

/* A storage is whole only with all parts, each once. */
static void others_words(void **state)
{
    struct model *m = xmalloc(sizeof *m);
    struct table t = { .spoiled = "0 0 5 1234\nen" };
    struct err e = {0};

    (void)state;
    model_open(m);
    assert_int_equal(save(m, &t, 0, &e), -1);
    assert_non_null(strstr(e.msg, "the data that rank 1 sent about its part are damaged"));
    err_clear(&e);
    table_clear(&t);
    t.spoiled = "end\n";
    assert_int_equal(save(m, &t, 0, &e), -1);
    assert_non_null(strstr(e.msg, "ranks wrote"));
    err_clear(&e);
    table_clear(&t);
    assert_int_equal(save(m, &t, 0, &e), -1);
    assert_non_null(strstr(e.msg, "rank 1 is late"));
    table_clear(&t);
    model_close(m);
    free(m);
}

static const struct param *find(const struct source *s, const char *name)
{
    const struct param *p = source_param(s, name);

    if (!p)
        fail_msg("%s is not there", name);
    return p;
}

/* Both ranks' parts, and the ordinary reader finds each value where it belongs. */
static void reads_back(void **state)
{
    struct model *m = xmalloc(sizeof *m);
    struct table t = {0}, late = {0};
    struct err e = {0};
    struct source *s;

    (void)state;
    model_open(m);
    /* Rank 1 writes, sends and receives too early; then rank 0 has both parts, and rank 1 when it receives again. */
    assert_int_equal(save(m, &late, 1, &e), -1);
    err_clear(&e);
    t.told[1] = late.told[1];
    must(save(m, &t, 0, &e) == 0, &e);
    t.told[1] = NULL;
    must(save(m, &t, 1, &e) == 0, &e);
    s = source_open(scratch, NULL, NULL, &e);
    must(s != NULL, &e);
    assert_int_equal(s->run.opt_step, 7);
    for (int i = 0; i < m->t->n_params; i++) {
        const struct param *p = find(s, m->t->param[i].name);
        const int64_t n = m->t->param[i].slice_elems;
        float *got = xmalloc((size_t)n * sizeof *got);

        for (int st = 0; st < STATE_N; st++) {
            const struct tmap_range all = { .len = (uint64_t)n * sizeof *got };

            must(tmap_read(p->state[st], s->files, all, got, &e) == 0, &e);
            for (int64_t k = 0; k < n; k++) {
                const int64_t half = n / RANKS, r = k / half;

                assert_true(got[k] == (float)(i * 1000 + r * 500 + st * half + k % half));
            }
        }
        free(got);
    }
    source_close(s);
    free(late.told[1]);
    late.told[1] = NULL;
    table_clear(&t);
    model_close(m);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outside),
        cmocka_unit_test(cut_short),
        cmocka_unit_test(others_words),
        cmocka_unit_test(reads_back),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
