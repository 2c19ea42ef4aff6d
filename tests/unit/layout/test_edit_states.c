/* test_edit_states.c - the list of tensors that an edit changes, and the verbs that each layout does or refuses */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/convert.h"
#include "tests/lib/scratch.h"

static const char *const folders[] = {
    "tests/data/dcp/fsdp/ckpt", "tests/data/torchdist-gpt2", "tests/data/zero/zero3-edge-2ranks/ckpt",
    "tests/data/bloom-tp2pp2dp2/global_step20_universal",
};

enum change { NOTHING, RENAME, COPY_WITH_NAME, SAME_NAME, DROP_FIRST, DROP_ALL };
static const struct {
    enum change change;
    const char *first, *second;         /* names in the result of the source's first two parameters; NULL if dropped */
    const char *refused;                /* part of the message; NULL if the list is accepted */
} cases[] = {
    { NOTHING, "0", "1", NULL },
    { RENAME, "renamed.weight", "1", NULL },
    { COPY_WITH_NAME, "0", "1", NULL },         /* the first entry of a parameter has its name */
    { DROP_FIRST, NULL, "1", NULL },
    { SAME_NAME, "1", "1", "two" },
    { DROP_ALL, NULL, NULL, "would remove every parameter" },
};

static void change_list(struct edit_states *to, enum change change)
{
    struct edit_new copy;

    switch (change) {
    case NOTHING:
        break;
    case RENAME:
        to->tensor[0].name = "renamed.weight";
        break;
    case COPY_WITH_NAME:
        copy = to->tensor[0];
        copy.name = "copied.weight";
        assert_string_equal(edit_states_add(to, &copy)->name, "copied.weight");
        break;
    case SAME_NAME:
        to->tensor[0].name = to->tensor[1].name;
        break;
    case DROP_FIRST:
        memmove(to->tensor, to->tensor + 1, (size_t)--to->n * sizeof *to->tensor);
        break;
    case DROP_ALL:
        to->n = 0;
        break;
    }
}

static void expect_name(const struct source *s, const struct edit_states *to, int param, const char *expected)
{
    const char *name = edit_states_name(to, s, s->param[param].name);

    if (expected && expected[1] == '\0')        /* the name of parameter 0 or 1 */
        expected = s->param[*expected - '0'].name;
    if (!expected)
        assert_null(name);
    else
        assert_string_equal(name, expected);
}

static void test_lists(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct err e = {0};
            struct source *s = source_open(folders[f], &(struct source_opts){ .hf = true }, NULL, &e);
            struct edit *x = s ? edit_new(s, &e) : NULL;
            struct report *notes = report_new();
            struct edit_states *to = x ? edit_states_new(x, "rename", &e) : NULL;
            int rc;

            if (!to)
                fail_msg("%s: %s", folders[f], e.msg);
            assert_int_equal(to->n, s->n_params);
            change_list(to, cases[i].change);
            expect_name(s, to, 0, cases[i].first);
            expect_name(s, to, 1, cases[i].second);
            assert_null(edit_states_name(to, s, NULL));
            rc = edit_states_apply(x, to, notes, &e);
            if (rc != (cases[i].refused ? -1 : 0) ||
                (rc < 0 && (e.kind != ERR_USAGE || !strstr(e.msg, cases[i].refused))))
                fail_msg("%s, case %zu: %d, '%s'", folders[f], i, rc, rc < 0 ? e.msg : "");
            report_free(notes);
            edit_free(x);
            source_close(s);
        }
}

/* ---- the verbs of each layout ---- */

enum verb { CAST, FILL, THIN, DROP_OPTIMIZER, DROP_RNG, SET, LAYERS, VOCAB, N_VERBS };

/* For each verb: NULL if the layout does it, else a part of the message. */
static const struct {
    const char *folder;
    const char *refused[N_VERBS];
} layouts[] = {
    { "tests/data/bloom-tp2pp2dp2/global_step20", { NULL } },
    { "tests/data/zero/zero3-edge-2ranks/ckpt", { [DROP_RNG] = "no random states" } },
    { "tests/data/bloom-tp2pp2dp2/global_step20_universal",
      { [CAST] = "has no zero/optimizer_state.pt", [DROP_OPTIMIZER] = "only in the optimizer files" } },
    { "tests/data/hf-tied",
      { [FILL] = "salvage does not apply to a hf", [DROP_OPTIMIZER] = "no files of an optimizer",
        [DROP_RNG] = "no random", [LAYERS] = "no parameter name of tests/data/hf-tied contains the number",
        [VOCAB] = "has no vocab_size" } },
    { "tests/data/hfstorage/tp-2x2",
      { [FILL] = "salvage does not apply to a hfstorage", [DROP_OPTIMIZER] = "no files of an optimizer",
        [DROP_RNG] = "no random", [VOCAB] = "has no vocab_size" } },
    { "tests/data/dcp/fsdp/ckpt", { [DROP_RNG] = "requires its random states", [VOCAB] = "has no vocab_size" } },
    { "tests/data/torchdist-gpt2",
      { [DROP_OPTIMIZER] = "has no entries of an optimizer", [DROP_RNG] = "requires its random states" } },
};

/* Reverse the order of the layers. */
static int turn_layers(struct edit *x, struct report *notes, struct err *e)
{
    const int n = edit_count_layers(x, e);
    int *picked = xcalloc((size_t)(n < 0 ? 0 : n) + 1, sizeof *picked), rc;

    for (int i = 0; i < n; i++)
        picked[i] = n - 1 - i;
    rc = n < 0 ? -1 : edit_pick_layers(x, picked, n, notes, e);
    free(picked);
    return rc;
}

static int run_verb(struct edit *x, const struct source *s, enum verb verb, struct err *e)
{
    bool *hit = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *hit);
    /* Fewer rows need no spool. */
    struct edit_rows rows = { .tokens = 2, .rows = 2, .fd = -1, .file = -1, .zeros = -1 };
    struct report *notes = report_new();
    struct edit_thinned cut;
    int n, rc = 0;

    switch (verb) {
    case CAST:
        rc = edit_cast(x, s->param[0].state[STATE_BF16] && s->param[0].state[STATE_BF16]->dtype == DTYPE_F16
                              ? DTYPE_BF16 : DTYPE_F16, notes, e);
        break;
    case FILL:
        rc = edit_fill(x, hit, &n, notes, e);
        break;
    case THIN:
        rc = edit_thin(x, &cut, e);
        break;
    case DROP_OPTIMIZER:
        rc = edit_drop_optimizer(x, true, e);
        break;
    case DROP_RNG:
        rc = edit_drop_rng(x, e);
        break;
    case SET:
        for (int i = 0; i < edit_n_values_places(x) && rc == 0; i++)
            if (edit_value(x, i, "iteration", e))
                rc = edit_set_value(x, i, "iteration", pk_int(edit_arena(x), 7), e);
            else
                rc = e->kind == ERR_NONE ? 0 : -1;
        for (int i = 0; i < edit_n_values_places(x) && rc == 0; i++) {
            const struct pk *v = edit_value(x, i, "iteration", e);
            int64_t is;

            assert_true(!v || (pk_as_int(v, &is) && is == 7));
        }
        break;
    case LAYERS:
        rc = turn_layers(x, notes, e);
        break;
    case VOCAB:
        rc = edit_vocab_bytes(x, &rows, e) < 0 ? -1 : edit_vocab(x, &rows, notes, e);
        break;
    case N_VERBS:
        break;
    }
    report_free(notes);
    free(hit);
    return rc < 0 || edit_resolve_rewrite(x, e) < 0 ? -1 : 0;
}

/* Write the result, and open it as a complete checkpoint, whose manifest fits its files. */
static void write_and_open(struct edit *x, const char *folder, int verb)
{
    char *out = path_join(scratch, "out");
    const struct sink_opts so = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 2 };
    const struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                                    .progress = PROGRESS_NEVER };
    struct convert_result res;
    struct source *made = NULL;
    struct err e = {0};

    edit_place(x, &(struct edit_place){ .out = out });
    if (convert_run(edit_source(x), edit_sink(&so, x), &o, &res, &e) == 0)
        made = source_open(out, &(struct source_opts){ .hf = true }, NULL, &e);
    if (!made || res.n_items == 0)
        fail_msg("%s, verb %d, the result: '%s'", folder, verb, e.msg);
    source_close(made);
    assert_int_equal(dir_remove(out, &e), 0);
    free(out);
}

static void test_verbs(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof layouts / sizeof *layouts; f++)
        for (int verb = 0; verb < N_VERBS; verb++) {
            const char *refused = layouts[f].refused[verb];
            struct err e = {0};
            struct source *s = source_open(layouts[f].folder, &(struct source_opts){ .hf = true }, NULL, &e);
            struct edit *x = s ? edit_new(s, &e) : NULL;
            int rc;

            if (!x)
                fail_msg("%s: %s", layouts[f].folder, e.msg);
            rc = run_verb(x, s, (enum verb)verb, &e);
            if (rc != (refused ? -1 : 0) || (rc < 0 && !strstr(e.msg, refused)))
                fail_msg("%s, verb %d: %d, '%s'", layouts[f].folder, verb, rc, rc < 0 ? e.msg : "");
            if (rc == 0)
                write_and_open(x, layouts[f].folder, verb);
            edit_free(x);
            source_close(s);
        }
}

/* 3D shards have no such list. The message names the command. */
static void test_refused_layout(void **state)
{
    struct err e = {0};
    struct source *s = source_open("tests/data/bloom-tp2pp2dp2/global_step20", &(struct source_opts){0}, NULL, &e);
    struct edit *x = s ? edit_new(s, &e) : NULL;

    (void)state;
    assert_non_null(x);
    assert_null(edit_states_new(x, "rename", &e));
    assert_int_equal(e.kind, ERR_USAGE);
    assert_non_null(strstr(e.msg, "rename"));
    edit_free(x);
    source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_lists), cmocka_unit_test(test_verbs),
                                       cmocka_unit_test(test_refused_layout) };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
