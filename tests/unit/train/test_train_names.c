/*
 * test_train_names.c - load a model under Transformers' names into every rank's memory, checked element by element
 *
 * The reference is the files themselves. Every element of every buffer is compared with the tensor in DeepSpeed's
 * form, at an index that the test computes from the structure of GPT-2. Moments are checked as well as masters and
 * weights.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/trainjob.h"

/* hidden 6, 2 heads, one layer of ffn 10, 29 tokens; queries, keys and values of GPT-2's in one matrix of [6, 18]. */
#define ZERO2 "tests/data/zero/zero2-elastic-gpt2-3ranks/ckpt/global_step5"
enum { HEADS = 2, LANES = 3 };

static const char *const names[ROLE_N] = {
    [ROLE_WORD] = "transformer.wte.weight", [ROLE_POSITION] = "transformer.wpe.weight",
    [ROLE_NORM1_W] = "transformer.h.0.ln_1.weight", [ROLE_NORM1_B] = "transformer.h.0.ln_1.bias",
    [ROLE_QKV_W] = "transformer.h.0.attn.c_attn.weight", [ROLE_QKV_B] = "transformer.h.0.attn.c_attn.bias",
    [ROLE_DENSE_W] = "transformer.h.0.attn.c_proj.weight", [ROLE_DENSE_B] = "transformer.h.0.attn.c_proj.bias",
    [ROLE_NORM2_W] = "transformer.h.0.ln_2.weight", [ROLE_NORM2_B] = "transformer.h.0.ln_2.bias",
    [ROLE_UP_W] = "transformer.h.0.mlp.c_fc.weight", [ROLE_UP_B] = "transformer.h.0.mlp.c_fc.bias",
    [ROLE_DOWN_W] = "transformer.h.0.mlp.c_proj.weight", [ROLE_DOWN_B] = "transformer.h.0.mlp.c_proj.bias",
    [ROLE_FINAL_NORM_W] = "transformer.ln_f.weight", [ROLE_FINAL_NORM_B] = "transformer.ln_f.bias",
};

/* A state of the files' tensor, whole. Caller frees. */
static float *read_tensor(const struct source *s, enum role r, enum state st)
{
    const struct param *p = source_param(s, names[r]);
    float *x;
    struct err e = {0};

    assert_non_null(p);
    assert_non_null(p->state[st]);
    x = xmalloc(p->state[st]->len);
    job_must(tmap_read(p->state[st], s->files, (struct tmap_range){ 0, 0, p->state[st]->len }, x, &e) == 0, &e);
    return x;
}

/* Row of query, key and value by (head, kind, lane) to its place by (kind, head, lane). */
static int64_t by_kind(int64_t row)
{
    return row / LANES % 3 * HEADS * LANES + row / (3 * LANES) * LANES + row % LANES;
}

/* Element `i` of a rank's slice of a parameter, in the files' tensor; -1: a row of padding. */
static int64_t place_of(const struct stage_param *p, int tp, int64_t i)
{
    const bool transposed = p->role == ROLE_QKV_W || p->role == ROLE_DENSE_W || p->role == ROLE_UP_W ||
                            p->role == ROLE_DOWN_W;
    const int64_t cols = p->ndim > 1 ? p->slice[1] : 1, whole = p->ndim > 1 ? p->shape[1] : 1;
    int64_t row = i / cols, col = i % cols;

    if (p->split && p->merge == MERGE_CAT1)
        col += tp * cols;
    else if (p->split)
        row += tp * p->slice[0];
    if (p->role == ROLE_WORD && row >= 29)
        return -1;
    if (p->role == ROLE_QKV_W || p->role == ROLE_QKV_B)
        row = by_kind(row);
    return transposed ? col * p->shape[0] + row : row * whole + col;
}

static void check_runs(const struct rank *r, const struct source *s)
{
    const float *const buf[STATE_N] = { NULL, r->st.master, r->st.exp_avg, r->st.exp_avg_sq };

    for (int k = 0; k < r->s->n_runs; k++)
        for (int st = STATE_FP32; st < STATE_N; st++) {
            const struct stage_run *run = &r->s->run[k];
            const struct stage_param *p = &r->s->param[run->param];
            float *want = read_tensor(s, p->role, (enum state)st);

            for (int64_t i = 0; i < run->n; i++) {
                const int64_t at = place_of(p, r->s->tp, run->from + i);
                const float due = at < 0 || (p->untrained && st != STATE_FP32) ? 0 : want[at];

                if (memcmp(&buf[st][run->shard_at + i], &due, sizeof due) != 0)
                    fail_msg("tp %d pp %d dp %d: %s %s: element %lld is %g, %g is due", r->s->tp, r->s->pp, r->s->dp,
                             p->name, state_name((enum state)st), (long long)(run->from + i),
                             (double)buf[st][run->shard_at + i], (double)due);
            }
            free(want);
        }
}

static void check_weights(const struct rank *r, const struct source *s, enum dtype weights)
{
    for (int k = 0; k < r->s->n_params; k++) {
        const struct stage_param *p = &r->s->param[k];
        float *want = read_tensor(s, p->role, STATE_FP32);

        for (int64_t i = 0; i < p->n; i++) {
            const int64_t at = place_of(p, r->s->tp, i);
            const float due = at < 0 ? 0 : want[at];
            const char *got = (const char *)r->st.weights + (p->at + i) * dtype_size(weights);
            char rounded[sizeof due];

            dtype_put(weights, (double)due, rounded);
            if (memcmp(got, rounded, (size_t)dtype_size(weights)) != 0)
                fail_msg("tp %d pp %d dp %d: %s: weight %lld is %g, %g is due", r->s->tp, r->s->pp, r->s->dp, p->name,
                         (long long)i, dtype_value(weights, got), (double)due);
        }
        free(want);
    }
}

static void load_at(struct topology topo, enum dtype weights, const struct dev_ops *dev)
{
    const struct checkpoint_from from = { .dir = ZERO2, .heads = HEADS };
    struct checkpoint_load_opts o = job_plain_load;
    struct report *notes = report_new();
    struct checkpoint *c = NULL;
    struct checkpoint_loaded loaded;
    struct model_config m;
    struct err e = {0};
    struct source *s = source_open(ZERO2, NULL, NULL, &e);
    struct job j;
    int blocks[JOB_RANKS_MAX] = { 1 };

    job_must(s && checkpoint_open(&from, &c, notes, &e) == 1, &e);
    job_must(checkpoint_check_mismatch(c, notes, &e) == 0, &e);
    m = checkpoint_info(c)->model;
    assert_true(checkpoint_info(c)->has_optimizer && checkpoint_info(c)->opt_step == 5);
    assert_true(m.n_layers == 1 && m.hidden == 6 && m.ffn_hidden == 10 && m.vocab == 29 && m.n_heads == HEADS);
    assert_string_equal(m.position, "absolute");
    m.vocab = 30;                       /* that two ranks can cut */
    o.weights = weights;
    o.dev = dev;
    job_new(&j, &m, topo, blocks, weights);
    job_must(job_load(&j, c, &o, notes, &loaded, &e) == 0, &e);
    assert_true(loaded.moments && loaded.opt_step == 5);
    for (int i = 0; i < j.n; i++) {
        check_runs(&j.rank[i], s);
        check_weights(&j.rank[i], s, weights);
    }
    job_free(&j);
    report_free(notes);
    checkpoint_close(c);
    source_close(s);
}

static void every_element(void **state)
{
    static const struct topology topo[] = { { 1, 1, 1 }, { 2, 1, 1 }, { 1, 2, 1 }, { 1, 1, 2 }, { 2, 1, 3 },
                                            { 2, 2, 2 } };

    (void)state;
    for (size_t i = 0; i < sizeof topo / sizeof *topo; i++)
        for (int other = 0; other < 2; other++) {
            load_at(topo[i], DTYPE_BF16, other ? &job_other : &job_host);
            load_at(topo[i], DTYPE_F32, other ? &job_other : &job_host);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_element) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
