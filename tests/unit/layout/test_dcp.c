/*
 * test_dcp.c - folders of torch.distributed.checkpoint: each damage of .metadata is reported or changes no tensor
 *
 * torch wrote tests/data/dcp/mesh. tests/golden/formats_dcp.sh compares its tensors with torch's own list.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/mutants/mutate.h"
#include "tests/lib/mutants/tensor_lines.h"

static const char data[] = "tests/data/dcp/mesh/ckpt";

/* Lines of `now` that are in no line of `was`, names aside: a tensor of other bytes. */
static int count_wrong(const char *was, const char *now)
{
    int n = 0;

    for (const char *line = now; *line;) {
        size_t len = strcspn(line, "\n");
        const char *rest = memchr(line, ' ', len);
        char *what = str_fmt("%.*s\n", (int)(len - (size_t)(rest - line)), rest);

        n += strstr(was, what) == NULL;
        free(what);
        line += len + 1;
    }
    return n;
}

/* Bits all over .metadata: an error, or every tensor that is still there is one of those that were. */
static void test_flips(void **state)
{
    static struct mutate_set set;
    char dir[] = "/tmp/shardkit-dcp-XXXXXX";
    struct mutate_file *meta = NULL;
    struct source_opts o = { .threads = 1 };
    struct err e = {0};
    struct source *s;
    int n_refused = 0;
    char *was;

    (void)state;
    assert_non_null(mkdtemp(dir));
    mutate_load(&set, data);
    for (int i = 0; i < set.n; i++) {
        mutate_put(dir, &set.file[i]);
        if (strcmp(set.file[i].name, ".metadata") == 0)
            meta = &set.file[i];
    }
    assert_non_null(meta);
    s = source_open(dir, &o, NULL, &e);
    assert_non_null(s);
    was = tensor_lines_of(s);
    source_close(s);
    for (uint64_t i = 0; i < meta->size; i += 3) {
        meta->bytes[i] ^= (uint8_t)(1 << i % 8);
        mutate_put(dir, meta);
        meta->bytes[i] ^= (uint8_t)(1 << i % 8);
        memset(&e, 0, sizeof e);
        s = source_open(dir, &o, NULL, &e);
        if (s) {
            char *now = tensor_lines_of(s);

            if (count_wrong(was, now))
                fail_msg("byte %llu: accepted, with\n%s", (unsigned long long)i, now);
            free(now);
        } else {
            assert_true(e.kind == ERR_DATA);
            n_refused++;
        }
        source_close(s);
    }
    /* The rest is in names, in data that is not read (strides, versions), or in a tensor's place among the others. */
    assert_true(n_refused > (int)meta->size / 6);
    assert_int_equal(dir_remove(dir, &e), 0);
    free(was);
}

static void test_names(void **state)
{
    struct source_opts o = {0};
    struct err e = {0};
    struct source *s = source_open("tests/data/dcp/fsdp/ckpt", &o, NULL, &e);
    struct source_hit hit;
    double beta1, beta2;

    (void)state;
    assert_non_null(s);
    assert_int_equal(s->n_params, 2);
    assert_int_equal(s->run.iteration, 3);
    assert_int_equal(s->run.opt_step, 3);
    assert_true(source_find(s, "model.0.weight", &hit) && hit.param && hit.state == STATE_FP32);
    assert_true(source_find(s, "optim.state.1.weight.exp_avg_sq", &hit) && hit.state == STATE_EXP_AVG_SQ);
    assert_string_equal(hit.param->name, "1.weight");
    assert_true(source_find(s, "1.weight:exp_avg", &hit) && hit.state == STATE_EXP_AVG);
    assert_true(source_find(s, "1.weight", &hit) && hit.param && hit.state == -1);
    assert_true(source_find(s, "optim.state.1.weight.step", &hit) && hit.value && hit.value->map);
    assert_true(source_find(s, "optim.param_groups.0.betas", &hit) && hit.value && hit.value->tree);
    assert_false(source_find(s, "2.weight", &hit));
    assert_false(source_find(s, "", &hit));
    assert_int_equal(s->groups->n, 1);
    assert_int_equal(s->groups->how, OPTIM_GROUPS_LISTED);
    assert_int_equal(s->groups->group[0].n, 2);
    assert_string_equal(s->groups->group[0].param[0], s->param[0].name);
    assert_non_null(pk_get(optim_groups_settings(s, 0), "betas"));
    assert_null(optim_groups_settings(s, 1));
    assert_true(optim_settings_betas(optim_groups_settings(s, 0), &beta1, &beta2) && beta1 == 0.9 && beta2 == 0.999);
    assert_false(optim_settings_number(optim_groups_settings(s, 0), "betas", &beta1));
    assert_true(beta1 == 0.9);
    source_close(s);
}

/* ---- what torch may write, and not every tool knows ---- */

typedef void alter_fn(struct arena *a, struct pk *state);

/* Open the folder with another .metadata. Returns NULL with *e set if it is refused. *now gets its description. */
static bool open_altered(alter_fn *alter, char **now, struct err *e)
{
    static struct mutate_set set;
    char dir[] = "/tmp/shardkit-dcp-XXXXXX";
    struct source_opts o = { .threads = 1 };
    struct err ignored = {0};
    struct source *s;

    assert_non_null(mkdtemp(dir));
    mutate_load(&set, "tests/data/dcp/fsdp/ckpt");
    for (int i = 0; i < set.n; i++) {
        struct mutate_file *f = &set.file[i];
        struct strbuf sb = {0};
        struct pk_tree tree;

        if (alter && strcmp(f->name, ".metadata") == 0) {
            assert_int_equal(pickle_parse(f->bytes, f->size, "metadata", &tree, e), 0);
            alter(tree.arena, tree.root->state);
            pickle_write(tree.root, &sb);
            pk_tree_free(&tree);
            mutate_put(dir, &(struct mutate_file){ .name = f->name, .bytes = (uint8_t *)sb.buf, .size = sb.len });
        } else {
            mutate_put(dir, f);
        }
        strbuf_free(&sb);
    }
    s = source_open(dir, &o, NULL, e);
    *now = s ? tensor_lines_of(s) : NULL;
    source_close(s);
    mutate_free(&set);
    assert_int_equal(dir_remove(dir, &ignored), 0);
    return *now;
}

static void no_paths(struct arena *a, struct pk *state) { pk_set_str(a, state, "planner_data", pk_none(a)); }

static void transform_one(struct arena *a, struct pk *state)
{
    uint32_t n;
    struct pk **place = pk_pairs(pk_get(state, "storage_data"), &n), *by = pk_list(a);

    assert_true(n > 0);
    pk_add(a, by, pk_str(a, "zstd"));
    pk_set_str(a, place[1]->state, "transform_descriptors", by);
}

static void test_metadata(void **state)
{
    struct err e = {0};
    char *was, *now;

    (void)state;
    assert_true(open_altered(NULL, &was, &e));
    assert_non_null(strstr(was, "\n1.weight f32 2 2 5 "));
    /* Without the paths names are found all the same. */
    assert_true(open_altered(no_paths, &now, &e));
    assert_string_equal(now, was);
    free(now);
    assert_false(open_altered(transform_one, &now, &e));
    assert_true(e.kind == ERR_DATA);
    assert_non_null(strstr(e.msg, "are transformed by [\"zstd\"], and others may be, too"));
    free(was);
}

/* ---- whose the entries are ---- */

/* All texts that begin with or hold a word, with another one in its place. */
struct swapping {
    struct arena *a;
    const char *from, *to;
    bool begins;
};

static struct pk *swap_text(void *ctx, const struct pk *v)
{
    const struct swapping *w = ctx;
    const char *s = v->type == PK_STR ? v->str : NULL, *at = s ? strstr(s, w->from) : NULL;

    return !at || (w->begins && at != s) ? NULL
           : pk_str(w->a, arena_fmt(w->a, "%.*s%s%s", (int)(at - s), s, w->to, at + strlen(w->from)));
}

static void swap_in(struct arena *a, struct pk *state, const char *key, const char *from, const char *to, bool begins)
{
    struct swapping w = { a, from, to, begins };

    pk_set_str(a, state, key, pk_copy_swap(a, pk_get(state, key), swap_text, &w));
}

/* An unknown optimizer, with and without paths. */
static void unknown_states(struct arena *a, struct pk *state)
{
    static const char *const keys[] = { "state_dict_metadata", "storage_data", "planner_data" };

    for (int i = 0; i < 3; i++) {
        swap_in(a, state, keys[i], "exp_avg", "z", false);
        swap_in(a, state, keys[i], "step", "w", false);
    }
}

static void unknown_without_paths(struct arena *a, struct pk *state)
{
    unknown_states(a, state);
    no_paths(a, state);
}

/* torch.compile's key in names of weights, and none in the optimizer's. */
static void wrapped(struct arena *a, struct pk *state)
{
    no_paths(a, state);
    swap_in(a, state, "state_dict_metadata", "model.", "model._orig_mod.", true);
    swap_in(a, state, "storage_data", "model.", "model._orig_mod.", true);
}

/* Something is gone, from planner_data as well. */
static void without(struct arena *a, struct pk *state, const char *name)
{
    assert_true(pk_remove(pk_get(state, "state_dict_metadata"), name));
    pk_remove(pk_get(state, "planner_data"), name);
    (void)a;
}

static void no_weight(struct arena *a, struct pk *state) { without(a, state, "model.1.weight"); }
static void no_moment(struct arena *a, struct pk *state) { without(a, state, "optim.state.1.weight.exp_avg_sq"); }
static void no_step(struct arena *a, struct pk *state) { without(a, state, "optim.state.0.weight.step"); }

static void only_planned(struct arena *a, struct pk *state)
{
    pk_set_str(a, pk_get(state, "planner_data"), "model.2.weight", pk_tuple(a));
}

static void expect_refused(alter_fn *alter, const char *why)
{
    struct err e = {0};
    char *now;

    assert_false(open_altered(alter, &now, &e));
    if (!strstr(e.msg, why))
        fail_msg("'%s' is not in: %s", why, e.msg);
}

static void test_whose(void **state)
{
    alter_fn *const others[] = { unknown_states, unknown_without_paths };
    struct err e = {0};
    char *was, *now;

    (void)state;
    assert_true(open_altered(NULL, &was, &e));
    for (int i = 0; i < 2; i++) {
        assert_true(open_altered(others[i], &now, &e));
        assert_int_equal(count_wrong(was, now), 0);
        assert_non_null(strstr(now, "\n1.weight f32 2 2 5 "));
        assert_null(strstr(now, ".z"));
        free(now);
    }
    assert_true(open_altered(wrapped, &now, &e));
    assert_string_equal(now, was);
    free(now);
    free(was);
    expect_refused(no_weight, "parameter model.1.weight: optim.param_groups names it, and there is no tensor");
    expect_refused(no_moment, "parameter 1.weight: optim.state has its exp_avg and not its exp_avg_sq");
    expect_refused(no_step, "parameter 0.weight: optim.state has its exp_avg and not its step");
    expect_refused(only_planned, "parameter model.2.weight: planner_data names it, and state_dict_metadata has no");
}

/* The set is one: a share without elements, and items whose sizes are not in their local headers. */
static void test_set_has_them(void **state)
{
    static struct mutate_set set;
    int n_empty = 0, n_items = 0;

    (void)state;
    mutate_load(&set, "tests/data/dcp/fsdp/ckpt");
    for (int i = 0; i < set.n; i++) {
        const struct mutate_file *f = &set.file[i];
        struct dcp_table t;
        struct arena *a = arena_new(0);
        struct report *r = report_new();
        struct err e = {0};

        if (strcmp(f->name, ".metadata") == 0) {
            const struct dcp_pickle p = { f->name, f->bytes, f->size, NULL, "" };

            assert_int_equal(dcp_metadata_read(a, &p, &t, r, &e), 0);
            for (int k = 0; k < t.n; k++)
                for (int c = 0; c < t.entry[k].n_chunks && t.entry[k].is_tensor && t.entry[k].ndim; c++)
                    n_empty += t.entry[k].chunk[c].len[0] == 0;
        } else {
            assert_memory_equal(f->bytes, "PK\3\4", 4);
            n_items += get_le32(f->bytes + 18) == 0 && (f->bytes[6] & 8);
        }
        report_free(r);
        arena_free(a);
    }
    assert_true(n_empty > 0);
    assert_int_equal(n_items, set.n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips), cmocka_unit_test(test_names), cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_whose), cmocka_unit_test(test_set_has_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
