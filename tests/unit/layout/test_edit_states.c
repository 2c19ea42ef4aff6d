/* test_edit_states.c - the list of tensors that an edit changes: names of the result, and lists that are refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/edit_states.h"
#include "libcommon/layout/layouts.h"

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
    { DROP_ALL, NULL, NULL, "nothing would be left" },
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
            struct edit_states *to = x ? edit_states_new(x, "rename", &e) : NULL;
            int rc;

            if (!to)
                fail_msg("%s: %s", folders[f], e.msg);
            assert_int_equal(to->n, s->n_params);
            change_list(to, cases[i].change);
            expect_name(s, to, 0, cases[i].first);
            expect_name(s, to, 1, cases[i].second);
            assert_null(edit_states_name(to, s, NULL));
            rc = edit_states_apply(x, to, &e);
            if (rc != (cases[i].refused ? -1 : 0) ||
                (rc < 0 && (e.kind != ERR_USAGE || !strstr(e.msg, cases[i].refused))))
                fail_msg("%s, case %zu: %d, '%s'", folders[f], i, rc, rc < 0 ? e.msg : "");
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_lists), cmocka_unit_test(test_refused_layout) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
