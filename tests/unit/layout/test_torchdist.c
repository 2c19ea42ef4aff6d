/*
 * test_torchdist.c - folders of Megatron-core: layers of a stack by name; each damage is reported or changes no
 * tensor
 *
 * Megatron-core wrote tests/data/torchdist/stacked. tests/golden/forms/torchdist_check.py made
 * tests/data/torchdist/flat in its format.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/mutants/mutate.h"
#include "tests/lib/mutants/tensor_lines.h"

static const char flat[] = "tests/data/torchdist/flat/iter_0000001";
static const char stacked[] = "tests/data/torchdist/stacked/iter_0000002";

/* The lines of all tensors, of stacks and of their rows. */
static char *describe(const struct source *s)
{
    struct source whole = *s;
    char *rows = tensor_lines_of(s), *stacks, *all;

    whole.n_params = s->n_stacks;
    whole.param = xcalloc((size_t)s->n_stacks + 1, sizeof *whole.param);
    for (int i = 0; i < s->n_stacks; i++) {
        const struct source_stack *k = &s->stack[i];

        whole.param[i] = (struct param){ .name = k->whole.name, .ndim = k->whole.ndim };
        memcpy(whole.param[i].shape, k->whole.shape, sizeof k->whole.shape);
        whole.param[i].state[k->state] = (struct tmap *)k->whole.map;
    }
    stacks = tensor_lines_of(&whole);
    all = str_fmt("%s%s", rows, stacks);
    free(whole.param);
    free(stacks);
    free(rows);
    return all;
}

/* Is each tensor of `now`, whatever it is called, one of those that were? */
static bool all_known(const char *was, const char *now)
{
    char *copy = xstrdup(now), *save = NULL;
    bool known = true;

    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        known = known && strstr(was, strchr(line, ' '));
    free(copy);
    return known;
}

/* With the file as it is now in `dir`: an error of a line, or tensors that were there before. */
static bool is_refused(const char *dir, struct mutate_file *f, const char *was, uint64_t byte)
{
    struct source_opts o = { .threads = 1 };
    struct err e = {0};
    struct source *s;
    char *now;

    mutate_put(dir, f);
    s = source_open(dir, &o, NULL, &e);
    if (!s) {
        assert_true(e.kind == ERR_DATA && *e.msg && !strchr(e.msg, '\n'));
        return true;
    }
    now = describe(s);
    if (!all_known(was, now))
        fail_msg("%s: byte %llu: accepted, with\n%s", f->name, (unsigned long long)byte, now);
    free(now);
    source_close(s);
    return false;
}

/* A bit in each of every `step` bytes of a file, and now and then the file cut there. How many were refused. */
static int flip(const char *data, const char *name, uint64_t step, uint64_t *size)
{
    static struct mutate_set set;
    char dir[] = "/tmp/shardkit-torchdist-XXXXXX";
    struct mutate_file *f = NULL;
    struct source_opts o = { .threads = 1 };
    struct err e = {0};
    struct source *s;
    int n_refused = 0;
    char *was;

    assert_non_null(mkdtemp(dir));
    mutate_load(&set, data);
    for (int i = 0; i < set.n; i++) {
        mutate_put(dir, &set.file[i]);
        if (strcmp(set.file[i].name, name) == 0)
            f = &set.file[i];
    }
    assert_non_null(f);
    s = source_open(dir, &o, NULL, &e);
    assert_non_null(s);
    was = describe(s);
    source_close(s);
    *size = f->size;
    for (uint64_t i = 0; i < *size; i += step) {
        f->bytes[i] ^= (uint8_t)(1 << i % 8);
        n_refused += is_refused(dir, f, was, i);
        f->bytes[i] ^= (uint8_t)(1 << i % 8);
        f->size = i;
        if (i % (32 * step) == 0 && !is_refused(dir, f, was, i))
            fail_msg("%s: cut at byte %llu: accepted", name, (unsigned long long)i);
        f->size = *size;
    }
    mutate_free(&set);
    assert_int_equal(dir_remove(dir, &e), 0);
    free(was);
    return n_refused;
}

/* Flips that are not refused are in names, in data that is not read (plans, strides), or swap tensors' places. */
static void test_flips(void **state)
{
    uint64_t size;
    int n = flip(flat, ".metadata", 5, &size);

    (void)state;
    assert_true(n > (int)size / 10);
    n = flip(stacked, ".metadata", 83, &size);
    assert_true(n > (int)size / 300);
    n = flip(flat, "metadata.json", 1, &size);
    assert_true(n > (int)size / 2);
    flip(flat, "common.pt", 3, &size);
}

/* Rows of a stack by their own names, the stack by the files', objects as values. */
static void test_stacks(void **state)
{
    struct source_opts o = {0};
    struct err e = {0};
    struct source *s = source_open(stacked, &o, NULL, &e);
    struct source_hit hit;

    (void)state;
    assert_non_null(s);
    assert_int_equal(s->n_params, 3 + 2 * 6);
    assert_int_equal(s->run.opt_step, 2);
    assert_true(source_find(s, "decoder.layers.1.mlp.linear_fc1.weight", &hit) && hit.param && hit.state == -1);
    assert_int_equal(hit.param->ndim, 2);
    assert_true(source_find(s, "decoder.layers.mlp.linear_fc1.weight", &hit) && hit.stack && hit.value->ndim == 3);
    assert_int_equal(hit.stack->state, STATE_FP32);
    assert_string_equal(s->param[hit.stack->row[1]].name, "decoder.layers.1.mlp.linear_fc1.weight");
    assert_true(source_find(s, "optimizer.state.exp_avg.decoder.layers.1.mlp.linear_fc1.weight", &hit) && hit.param);
    assert_int_equal(hit.state, STATE_EXP_AVG);
    assert_true(source_find(s, "rng_state/shard_0.0_1.1", &hit) && hit.value && hit.value->tree && !hit.stack);
    assert_false(source_find(s, "decoder.layers.2.mlp.linear_fc1.weight", &hit));
    source_close(s);
}

/* common.pt holds the settings of the groups. Their parameters are by Megatron's rule, of all that have moments. */
static void test_groups(void **state)
{
    struct source_opts o = {0};
    struct err e = {0};
    struct source *s = source_open(stacked, &o, NULL, &e);
    struct optim_groups groups;
    int n = 0;

    (void)state;
    assert_non_null(s);
    assert_int_equal(s->groups->how, OPTIM_GROUPS_UNLISTED);
    assert_int_equal(optim_groups_read(s, s->arena, &groups, &e), 0);
    assert_int_equal(groups.how, OPTIM_GROUPS_BY_RULE);
    assert_int_equal(groups.n, s->groups->n);
    for (int g = 0; g < groups.n; g++) {
        assert_ptr_equal(groups.group[g].settings, optim_groups_settings(s, g));
        assert_null(pk_get(groups.group[g].settings, "params"));
        n += groups.group[g].n;
    }
    assert_int_equal(n, s->n_params);
    assert_null(s->run.param_groups);
    source_close(s);
}

/* The weight, not its master, is what has the key; moments are opened where they are wanted. */
static void test_states(void **state)
{
    struct source_opts o = {0}, weights = { .no_optimizer = true };
    struct err e = {0};
    struct source *s = source_open(flat, &o, NULL, &e);

    (void)state;
    assert_non_null(s);
    assert_int_equal(param_named_state(&s->param[0]), STATE_BF16);
    assert_non_null(s->param[1].state[STATE_EXP_AVG_SQ]);
    source_close(s);
    s = source_open(flat, &weights, NULL, &e);
    assert_non_null(s);
    assert_null(s->param[1].state[STATE_EXP_AVG_SQ]);
    source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips), cmocka_unit_test(test_stacks), cmocka_unit_test(test_states),
        cmocka_unit_test(test_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
