/*
 * test_zero.c - padding of ZeRO-3: a rank's share of each parameter is padded with arbitrary memory contents
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/mutants/mutate.h"
#include "tests/lib/mutants/tensor_lines.h"

enum { RANKS = 4, STATES = 3 };

struct count {
    const char *dir;
    char *was;
    int n_free;                         /* elements that no tensor depends on */
};

static char *lines_of(const char *dir)
{
    struct err e = {0};
    struct source *s = source_open(dir, &(struct source_opts){ .threads = 1 }, NULL, &e);
    char *lines;

    if (!s)
        fail_msg("%s", e.msg);
    lines = tensor_lines_of(s);
    source_close(s);
    return lines;
}

static void look(const struct mutate_file *f, void *ctx)
{
    struct count *c = ctx;
    char *now;

    mutate_put(c->dir, f);
    now = lines_of(c->dir);
    c->n_free += strcmp(now, c->was) == 0;
    free(now);
}

/* What the last rank has of padding, of all trained parameters and their three states. */
static int padding_of(const char *dir)
{
    struct err e = {0};
    struct source *s = source_open(dir, &(struct source_opts){ .threads = 1 }, NULL, &e);
    int64_t sum = 0;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        int64_t n = 1, each, last;

        for (int d = 0; d < p->ndim; d++)
            n *= p->shape[d];
        each = (n + RANKS - 1) / RANKS;
        last = n - (RANKS - 1) * each;
        if (p->state[STATE_EXP_AVG])
            sum += STATES * (each - (last > 0 ? last : 0));
    }
    source_close(s);
    return (int)sum;
}

static void test_padding(void **state)
{
    static struct mutate_set set;
    char dir[40];
    struct count c = { .dir = dir };
    struct err e = {0};

    (void)state;
    snprintf(dir, sizeof dir, "%s/shardkit-zero-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(dir));
    mutate_load(&set, "tests/data/zero/zero3-gpt2-4ranks/ckpt/global_step5");
    for (int i = 0; i < set.n; i++)
        mutate_put(dir, &set.file[i]);
    c.was = lines_of(dir);
    for (int i = 0; i < set.n; i++)
        if (strstr(set.file[i].name, "rank_3") && strstr(set.file[i].name, "optim"))
            mutate_each_element(&set.file[i], look, &c);
    assert_true(c.n_free > 0);
    assert_int_equal(c.n_free, padding_of("tests/data/zero/zero3-gpt2-4ranks/ckpt/global_step5"));
    free(c.was);
    assert_int_equal(dir_remove(dir, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_padding) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
