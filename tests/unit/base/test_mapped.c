/* test_mapped.c - mapped files that are truncated, or whose pages cannot be read: an error with file and byte,
 * never SIGBUS */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mapped.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/dataset.h"

enum { BYTES = 5 * 65536 + 100 };       /* several pages of any size, and a part of one */

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/mapped-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

static char *put(const char *name)
{
    char *path = path_join(dir, name), *bytes = xmalloc(BYTES);
    struct err e = {0};

    memset(bytes, 7, BYTES);
    assert_int_equal(file_replace(path, bytes, BYTES, &e), 0);
    free(bytes);
    return path;
}

struct look {
    const struct mapped *m;
    uint64_t at;
    int found;
};

static int look(void *arg, struct err *e)
{
    struct look *l = arg;

    (void)e;
    l->found = l->m->p[l->at];
    return 0;
}

static void expect_end(const struct err *e, enum err_kind kind, const char *path, const char *rest)
{
    char want[700];

    snprintf(want, sizeof want, "%s: %s", path, rest);
    assert_int_equal(e->kind, kind);
    assert_string_equal(e->msg, want);
}

static void test_cut_short(void **state)
{
    char *path = put("cut");
    struct look l = { .at = BYTES - 1 };
    struct err e = {0};
    struct mapped m;

    (void)state;
    assert_int_equal(mapped_open(&m, path, &e), 0);
    l.m = &m;
    assert_int_equal(mapped_use(look, &l, &e), 0);
    assert_int_equal(l.found, 7);
    assert_int_equal(mapped_check(&m, &e), 0);
    /* The signal is handled each time, not only once. */
    assert_int_equal(truncate(path, 65536), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mapped_use(look, &l, &e), -1);
        expect_end(&e, ERR_DATA, path, "at byte 65536: became shorter while in use: it had 327780 bytes "
                   "when it was opened, now it has 65536");
        err_clear(&e);
    }
    l.at = 65535;
    assert_int_equal(mapped_use(look, &l, &e), 0);
    /* Within a page no signal is raised: zeros are read, and the check reports it. */
    assert_int_equal(truncate(path, 65500), 0);
    assert_int_equal(mapped_use(look, &l, &e), 0);
    assert_int_equal(l.found, 0);
    assert_int_equal(mapped_check(&m, &e), -1);
    expect_end(&e, ERR_DATA, path, "at byte 65500: became shorter while in use: it had 327780 bytes when "
               "it was opened, now it has 65500");
    mapped_close(&m);
    free(path);
}

/* The mapped file has been renamed or removed: its contents in memory are complete. */
static void test_replaced(void **state)
{
    char *path = put("replaced"), *other = put("other");
    struct look l = { .at = BYTES - 1 };
    struct err e = {0};
    struct mapped m;
    int fd;

    (void)state;
    assert_int_equal(mapped_open(&m, path, &e), 0);
    l.m = &m;
    fd = open(path, O_RDWR);
    assert_int_equal(truncate(other, 10), 0);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(mapped_use(look, &l, &e), 0);
    assert_int_equal(mapped_check(&m, &e), 0);
    /* A page cannot be read and no cause is visible, as with failing storage. */
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(mapped_use(look, &l, &e), -1);
    expect_end(&e, ERR_SYS, path, "cannot read at byte 327779: Input/output error");
    close(fd);
    mapped_close(&m);
    free(path);
    free(other);
}

static void *look_often(void *arg)
{
    struct look *l = arg;
    struct err e;
    int failed = 0;

    for (int i = 0; i < 1000; i++) {
        memset(&e, 0, sizeof e);
        failed += mapped_use(look, l, &e) < 0 && e.kind == ERR_DATA && str_starts(e.msg, l->m->path);
    }
    l->found = failed;
    return NULL;
}

static void test_threads(void **state)
{
    struct mapped m[4];
    struct look l[4];
    pthread_t t[4];
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        char name[32], *path;

        snprintf(name, sizeof name, "thread%d", i);
        path = put(name);
        assert_int_equal(mapped_open(&m[i], path, &e), 0);
        if (i % 2)
            assert_int_equal(truncate(path, 0), 0);
        l[i] = (struct look){ &m[i], 4096, 0 };
        assert_int_equal(pthread_create(&t[i], NULL, look_often, &l[i]), 0);
        free(path);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(l[i].found, i % 2 ? 1000 : 0);
        mapped_close(&m[i]);
    }
}

/* Outside of mapped_use() the signal has its previous effect. */
static void test_not_ours(void **state)
{
    char *path = put("plain");
    struct look l = { .at = 0 };
    struct err e = {0};
    struct mapped m;
    int status;
    pid_t pid;

    (void)state;
    assert_int_equal(mapped_open(&m, path, &e), 0);
    l.m = &m;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        signal(SIGBUS, SIG_DFL);
        if (mapped_use(look, &l, &e) < 0 || truncate(path, 0) < 0)
            _exit(3);
        _exit(m.p[70000]);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    mapped_close(&m);
    free(path);
}

/* Read samples of a set whose token file is truncated, at a page boundary and within a page. */
static void test_samples(void **state)
{
    const struct dataset_opts o = { .n_samples = 50, .s = 128, .seed = 1, .cut = 0.95, .build = true };
    struct data_part part = { .split = -1, .weight = 1, .start = 0, .end = 1 };
    struct data_group g = { .name = (char *)"train", .n = 1, .part = &part };
    int64_t tokens[129], n_failed[3] = {0};
    char *bin = path_join(dir, "text.bin");
    struct err e = {0};
    struct dataset *d;

    (void)state;
    part.prefix = path_join(dir, "text");
    for (int i = 0; i < 2; i++) {
        char *to = str_fmt("%s%s", part.prefix, i ? ".bin" : ".idx"), *bytes;
        uint64_t n;

        bytes =
            file_slurp(i ? "tests/data/text/text_document.bin" : "tests/data/text/text_document.idx", 1 << 26, &n, &e);
        assert_true(bytes && file_replace(to, bytes, n, &e) == 0);
        free(bytes);
        free(to);
    }
    assert_int_equal(dataset_open(&g, &o, &d, &e), 0);
    assert_non_null(d);
    for (int i = 0; i < 3; i++) {
        if (i)
            assert_int_equal(truncate(bin, i == 1 ? 100001 : 65536), 0);
        for (int64_t k = 0; k < dataset_samples(d); k++)
            if (dataset_get(d, k, tokens, &e) < 0) {
                assert_true(e.kind == ERR_DATA && str_starts(e.msg, bin) &&
                            strstr(e.msg, ": became shorter while in use: "));
                err_clear(&e);
                n_failed[i]++;
            }
    }
    /* All data of a file that has changed is refused, not only the missing part. */
    assert_true(n_failed[0] == 0 && n_failed[1] == dataset_samples(d) && n_failed[2] == dataset_samples(d));
    dataset_close(d);
    free(part.prefix);
    free(bin);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_short), cmocka_unit_test(test_replaced), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_not_ours), cmocka_unit_test(test_samples),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
