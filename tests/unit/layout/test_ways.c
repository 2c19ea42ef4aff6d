/*
 * test_ways.c - conversion between layouts: the source's own names and shapes must not be misinterpreted
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/merge_slices.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp_groups.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/engine/zero_order.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/tmap.h"
#include "libcommon/layout/engine/zero_pickles.h"

/* A value of the caller's that is called like the engine's own: tensors stay those of one rank. */
static void test_world_size(void **state)
{
    struct err e = {0};
    struct source *s = source_open("tests/data/dcp/fsdp/ckpt", &(struct source_opts){ .threads = 1 }, NULL, &e);
    struct report *notes = report_new();
    const struct zero_import by_name = { .purpose = ZERO_FOR_NAMES, .weights = DTYPE_N };
    struct zero_pickles made;
    struct source_value *value;
    int64_t ranks = 0;
    int n_files;

    (void)state;
    assert_non_null(s);
    value = arena_alloc(s->arena, ((size_t)s->n_values + 1) * sizeof *value);
    memcpy(value, s->value, (size_t)s->n_values * sizeof *value);
    n_files = s->n_files;
    value[s->n_values++] = (struct source_value){ .name = "mp_world_size", .tree = pk_int(s->arena, 4) };
    s->value = value;
    assert_int_equal(zero_groups_resolve(s, &by_name, notes, &e), 0);
    zero_pickles_make(&made, s, &by_name, s->arena, notes);
    assert_true(pk_as_int(pk_get(made.model, "mp_world_size"), &ranks));
    assert_int_equal(ranks, 1);
    assert_int_equal(s->n_files, n_files);      /* nothing is forged into the source */
    assert_int_equal(s->zero_stage, 0);
    assert_null(s->run.optimizer);
    report_free(notes);
    source_close(s);
}

/* The settings of each parameter as an entry of its own: what shares them is a group, in the model's order. */
static void test_settings(void **state)
{
    struct err e = {0};
    struct source *s = source_open("tests/data/dcp/fsdp/ckpt", &(struct source_opts){ .threads = 1 }, NULL, &e);
    struct report *r = report_new();
    struct dcp_table table = {0};
    struct optim_groups groups;
    const char *own = "optim.";

    (void)state;
    assert_non_null(s);
    assert_int_equal(s->n_params, 2);
    table.entry = arena_alloc(s->arena, (size_t)s->n_params * sizeof *table.entry);
    s->value = arena_alloc(s->arena, (size_t)s->n_params * sizeof *s->value);
    s->n_values = 0;
    *s->names = (struct source_names){0};
    for (int i = 0; i < s->n_params; i++) {
        const char *name = arena_fmt(s->arena, "optim.param_groups.%s.lr", s->param[i].name);

        table.entry[table.n++] = (struct dcp_entry){ .name = name, .kind = DCP_ENTRY_OPTION, .optimizer = own,
                                                     .of = s->param[i].name, .what = "lr" };
        s->value[s->n_values++] = (struct source_value){ .name = name, .tree = pk_float(s->arena, i == 1 ? 2 : 1) };
    }
    s->dcp = &table;
    dcp_groups_read(&(struct dcp_naming){ .s = s, .table = &table, .path = "", .n_own = 1, .own = &own }, r);
    assert_int_equal(optim_groups_read(s, s->arena, &groups, &e), 0);
    assert_int_equal(groups.how, OPTIM_GROUPS_BY_SETTINGS);
    assert_int_equal(groups.n, 2);
    assert_int_equal(groups.group[0].n, 1);
    assert_string_equal(groups.group[1].param[0], s->param[1].name);
    report_free(r);
    source_close(s);
}

static void count_finding(struct report *r, const char *name, enum severity severity)
{
    int n = 0;

    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        n += strcmp(f->code, "groups") == 0 && f->severity == severity && strcmp(f->param, name) == 0;
    }
    assert_int_equal(n, 1);
}

/* A parameter that two groups list is an ERROR, moments that no group lists are a WARNING. */
static void test_groups_checked(void **state)
{
    struct err e = {0};
    struct source *s = source_open("tests/data/dcp/fsdp/ckpt", &(struct source_opts){ .threads = 1 }, NULL, &e);
    struct report *r = report_new();
    struct dcp_table table = {0};
    const char *own = "optim.";

    (void)state;
    assert_non_null(s);
    table.entry = arena_alloc(s->arena, 2 * sizeof *table.entry);
    s->value = arena_alloc(s->arena, 2 * sizeof *s->value);
    s->n_values = 0;
    *s->names = (struct source_names){0};
    for (int i = 0; i < 2; i++) {
        const char *name = arena_fmt(s->arena, "optim.param_groups.%d.params", i);
        struct pk *list = pk_list(s->arena);

        pk_add(s->arena, list, pk_str(s->arena, s->param[0].name));
        table.entry[table.n++] = (struct dcp_entry){ .name = name, .kind = DCP_ENTRY_OPTION, .optimizer = own,
                                                     .of = i ? "1" : "0", .what = "params" };
        s->value[s->n_values++] = (struct source_value){ .name = name, .tree = list };
    }
    s->dcp = &table;
    dcp_groups_read(&(struct dcp_naming){ .s = s, .table = &table, .path = "", .n_own = 1, .own = &own }, r);
    count_finding(r, s->param[0].name, SEV_ERROR);
    count_finding(r, s->param[1].name, SEV_WARNING);
    report_free(r);
    source_close(s);
}

/* Slices without rows, or with rows of nothing, joined by columns. */
static void test_nothing(void **state)
{
    static const int64_t shapes[][2] = { { 0, 8 }, { 8, 0 } };
    struct arena *a = arena_new(0);
    struct tmap_slice slice[2] = { { .n_extents = 0 }, { .n_extents = 0 } };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct param p = { .name = "w", .ndim = 2, .merge = MERGE_CAT1 };
        struct tmap m = { .dtype = DTYPE_F32, .n_slices = 2, .slice = slice };

        memcpy(p.shape, shapes[i], sizeof shapes[i]);
        assert_true(merge_shape(&p, 2, "path", NULL));
        merge_map(a, &p, false, &m);
        assert_int_equal(m.len, 0);
        assert_int_equal(m.op, TMAP_CONCAT);
    }
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_world_size), cmocka_unit_test(test_settings),
                                        cmocka_unit_test(test_groups_checked),
                                        cmocka_unit_test(test_nothing) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
