/* test_tfevents_read.c - read scalars of event files: values survive a round trip; torn, flipped and hostile files
 * end in an error, in bounded time */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/tfevents.h"
#include "libcommon/format/tfevents_read.h"

static char dir[256], *path;
static char *whole;
static uint64_t size;

enum { N_VALUES = 3 };
static const char *const tags[N_VALUES] = { "lm-loss-training/lm loss", "a", "iteration-time/samples per second" };

struct seen {
    int n, n_equal;             /* in all; as they were written, in this order */
    double wall_s;
};

static void see(void *ctx, const struct tfevents_value *v)
{
    struct seen *s = ctx;

    s->n_equal += s->n < N_VALUES && strcmp(v->tag, tags[s->n]) == 0 && v->step == 10 + s->n &&
                  v->value == (float)(s->n + 1) / 4;
    s->n++;
    s->wall_s = v->wall_s;
}

/* A file of a version, three scalars and a text between them. */
static int make_file(void **state)
{
    struct tfevents *t;
    struct err e = {0};

    (void)state;
    snprintf(dir, sizeof dir, "%s/tfread-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir) || !(t = tfevents_open(dir, 1, 0, &e)))
        return -1;
    path = xstrdup(tfevents_path(t));
    for (int i = 0; i < N_VALUES; i++) {
        tfevents_scalar(t, tags[i], (double)(i + 1) / 4, 10 + i);
        if (i == 1)
            tfevents_text(t, "args", "text", 10);
    }
    return tfevents_close(t, &e) < 0 || !(whole = file_slurp(path, 1 << 20, &size, &e)) ? -1 : 0;
}

static int remove_file(void **state)
{
    struct err e = {0};

    (void)state;
    free(whole);
    free(path);
    return dir_remove(dir, &e);
}

static int read_bytes(const void *p, uint64_t n, struct seen *s, struct err *e)
{
    char *file = path_join(dir, "changed");
    FILE *f = fopen(file, "w");
    int rc;

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    *s = (struct seen){0};
    *e = (struct err){0};
    rc = tfevents_read(file, 0, see, s, e);
    free(file);
    return rc;
}

static void test_values(void **state)
{
    struct seen s = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(tfevents_read(path, 0, see, &s, &e), 0);
    assert_int_equal(s.n, N_VALUES);
    assert_int_equal(s.n_equal, N_VALUES);
    s = (struct seen){ .wall_s = s.wall_s };
    assert_int_equal(tfevents_read(path, s.wall_s + 1, see, &s, &e), 0);
    assert_int_equal(s.n, 0);
    assert_int_equal(tfevents_read("/none", 0, see, &s, &e), -1);
    assert_int_equal(e.kind, ERR_SYS);
}

/* While it is written it may end anywhere; what is whole comes. */
static void test_torn(void **state)
{
    struct seen s;
    struct err e;
    int before = 0;

    (void)state;
    for (uint64_t n = 0; n <= size; n++) {
        assert_int_equal(read_bytes(whole, n, &s, &e), 0);
        assert_int_equal(s.n, s.n_equal);
        assert_in_range(s.n, before, before + 1);
        before = s.n;
    }
    assert_int_equal(before, N_VALUES);
}

static void test_flipped(void **state)
{
    char *copy = xmalloc(size);
    struct seen s;
    struct err e;

    (void)state;
    for (uint64_t i = 0; i < size; i++) {
        memcpy(copy, whole, size);
        copy[i] ^= (char)(1 << (i % 8));
        assert_int_equal(read_bytes(copy, size, &s, &e), -1);
        assert_int_equal(e.kind, ERR_DATA);
        assert_non_null(strstr(e.msg, "at byte "));
        assert_int_equal(s.n, s.n_equal);
    }
    free(copy);
}

/* Sums that hold over messages that do not: an error or other values, never a read outside (ASan sees). */
static void test_hostile(void **state)
{
    static const uint8_t words[] = { 0x00, 0x7f, 0x80, 0xff, 0x0a, 0x2a };
    uint8_t *copy = xmalloc(size);
    struct seen s;
    struct err e;

    (void)state;
    for (uint64_t at = 0, n; at < size; at += n + 16) {
        n = get_le64(whole + at);
        for (uint64_t i = 0; i < n * sizeof words; i++) {
            memcpy(copy, whole, size);
            copy[at + 12 + i / sizeof words] = words[i % sizeof words];
            put_le32(copy + at + 12 + n, tfevents_mask(tfevents_crc32c(copy + at + 12, n)));
            if (read_bytes(copy, size, &s, &e) < 0)
                assert_non_null(strstr(e.msg, "is damaged"));
            assert_in_range(s.n, 0, N_VALUES + 1);
        }
    }
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values), cmocka_unit_test(test_torn), cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_hostile),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
