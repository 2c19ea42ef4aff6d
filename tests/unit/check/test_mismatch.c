/* test_mismatch.c - weights, masters and moments, divided by rows and by columns: the same elements are compared */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/check/mismatch.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/layout/layouts.h"

enum { ROWS = 8, COLUMNS = 8, PIECES = 2 };
enum cut { BY_ROWS, BY_COLUMNS };

struct made {
    struct source s;
    struct param param;
    float flat[STATE_N][ROWS][COLUMNS];
    char bytes[STATE_N][PIECES][ROWS * COLUMNS * 4];
};

/* Add the pieces of a state, each in its own file. The maps are those of a layout that stores boxes. */
static void add_state(struct made *m, enum state st, enum cut cut)
{
    const int64_t shape[] = { ROWS, COLUMNS };
    const enum dtype dtype = st == STATE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    const struct tile_tensor t = { dtype, 2, shape };
    const uint64_t size = (uint64_t)dtype_size(dtype);
    struct tile_chunk *chunk = arena_alloc(m->s.arena, PIECES * sizeof *chunk);
    struct tile_flaw flaw;

    for (int k = 0; k < PIECES; k++) {
        struct tile_chunk *c = &chunk[k];
        char *to = m->bytes[st][k];
        struct record record;
        int64_t *at = arena_alloc(m->s.arena, 2 * sizeof *at), *len = arena_alloc(m->s.arena, 2 * sizeof *len);

        len[0] = ROWS;
        len[1] = COLUMNS;
        len[cut] /= PIECES;
        at[cut] = k * len[cut];
        *c = (struct tile_chunk){ .at = at, .len = len, .n_extents = 1 };
        for (int64_t i = c->at[0]; i < c->at[0] + c->len[0]; i++)
            for (int64_t j = c->at[1]; j < c->at[1] + c->len[1]; j++, to += size) {
                const uint16_t half = f32_to_bf16(m->flat[st][i][j]);

                memcpy(to, st == STATE_BF16 ? (const void *)&half : &m->flat[st][i][j], size);
            }
        record = (struct record){ .len = (uint64_t)(to - m->bytes[st][k]), .name = "data/0" };
        record.file = files_add_mem(m->s.files, m->bytes[st][k], record.len, "piece");
        c->extent = arena_alloc(m->s.arena, sizeof *c->extent);
        *c->extent = (struct extent){ files_add_record(m->s.files, &record), 0, record.len };
    }
    m->param.state[st] = tile_map(m->s.arena, &t, chunk, PIECES, &flaw);
    assert_non_null(m->param.state[st]);
}

/* Describe one group, with Adam's betas. */
static const struct optim_groups *groups_of(struct arena *a)
{
    struct optim_groups *groups = arena_alloc(a, sizeof *groups);
    struct pk *group = pk_dict(a), *betas = pk_list(a);

    pk_add(a, betas, pk_float(a, 0.9));
    pk_add(a, betas, pk_float(a, 0.95));
    pk_set_str(a, group, "betas", betas);
    *groups = (struct optim_groups){ .n = 1, .how = OPTIM_GROUPS_UNLISTED,
                                     .group = arena_alloc(a, sizeof *groups->group) };
    groups->group[0] = (struct optim_group){ .settings = group };
    return groups;
}

/* Return the number of findings about a tensor whose states have these values, each divided by `cut`. All must
 * have this code. */
static int n_found(struct made *m, const enum cut cut[STATE_N], const char *code)
{
    const struct mismatch_opts o = { .threads = 1 };
    struct report *r = report_new();
    int n = 0;

    m->s = (struct source){ .path = (char *)"made", .files = files_new(), .arena = arena_new(0),
                            .layout = &torchdist_layout, .n_params = 1, .param = &m->param };
    m->param = (struct param){ .name = "decoder.layers.0.mlp.linear_fc1.weight", .ndim = 2,
                               .shape = { ROWS, COLUMNS } };
    m->s.groups = groups_of(m->s.arena);
    for (int st = 0; st < STATE_N; st++)
        add_state(m, (enum state)st, cut[st]);
    mismatch_sample(&m->s, &o, r);
    for (int i = 0; i < report_n(r); i++)
        n += strcmp(report_get(r, i)->code, code) == 0;
    assert_int_equal(n, report_n(r));
    report_free(r);
    files_free(m->s.files);
    arena_free(m->s.arena);
    return n;
}

/* Fill in values of one save: no two elements are alike, and each has its own size of gradients. */
static void fill(struct made *m)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            const float x = (float)(1 + i * COLUMNS + j);

            m->flat[STATE_BF16][i][j] = m->flat[STATE_FP32][i][j] = x * 0.37f;
            m->flat[STATE_EXP_AVG][i][j] = x * x * x;
            m->flat[STATE_EXP_AVG_SQ][i][j] = x * x * x * x * x * x;
        }
}

static const enum cut cuts[][STATE_N] = {
    { [STATE_BF16] = BY_ROWS, [STATE_FP32] = BY_ROWS, [STATE_EXP_AVG] = BY_ROWS, [STATE_EXP_AVG_SQ] = BY_ROWS },
    { [STATE_BF16] = BY_COLUMNS, [STATE_FP32] = BY_COLUMNS, [STATE_EXP_AVG] = BY_COLUMNS,
      [STATE_EXP_AVG_SQ] = BY_COLUMNS },
    { [STATE_BF16] = BY_ROWS, [STATE_FP32] = BY_COLUMNS, [STATE_EXP_AVG] = BY_ROWS, [STATE_EXP_AVG_SQ] = BY_COLUMNS },
    { [STATE_BF16] = BY_COLUMNS, [STATE_FP32] = BY_ROWS, [STATE_EXP_AVG] = BY_COLUMNS, [STATE_EXP_AVG_SQ] = BY_ROWS },
};
enum { CUTS = sizeof cuts / sizeof *cuts };

static void of_one_save(void **state)
{
    struct made m;

    (void)state;
    fill(&m);
    for (int i = 0; i < CUTS; i++)
        assert_int_equal(n_found(&m, cuts[i], "none"), 0);
}

static void of_two_saves(void **state)
{
    struct made m;

    (void)state;
    fill(&m);
    for (int i = 0; i < ROWS; i++)
        m.flat[STATE_FP32][i][COLUMNS - 1] *= 2;
    for (int i = 0; i < CUTS; i++)
        assert_int_equal(n_found(&m, cuts[i], "bf16_master"), 1);
    fill(&m);
    for (int i = 0; i < ROWS; i++)
        m.flat[STATE_EXP_AVG][i][0] *= 100;
    for (int i = 0; i < CUTS; i++)
        assert_true(n_found(&m, cuts[i], "moments") > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(of_one_save), cmocka_unit_test(of_two_saves) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
