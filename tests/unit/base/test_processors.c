/* test_processors.c - which processors count: quotas of control groups of both versions, and OMP_NUM_THREADS */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/processors.h"
#include "tests/lib/scratch.h"

static void write_file(const char *name, const char *text)
{
    char *path = str_fmt("%s/%s", scratch, name);
    FILE *f;

    for (char *slash = strchr(path + strlen(scratch) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    free(path);
}

static int quota(const char *groups, const char *mount)
{
    char *list = str_fmt("%s/groups", scratch), *dir = str_fmt("%s/%s", scratch, mount);
    int n;

    write_file("groups", groups);
    n = processors_quota(list, dir);
    free(dir);
    free(list);
    return n;
}

static void test_version_2(void **state)
{
    (void)state;
    write_file("v2/cpu.max", "max 100000\n");
    write_file("v2/a/cpu.max", "350000 100000\n");
    write_file("v2/a/b/cpu.max", "max 100000\n");
    write_file("v2/a/b/c/cpu.max", "50000 100000\n");
    write_file("v2/d/cpu.max", "800000 100000\n");
    assert_int_equal(quota("0::/\n", "v2"), INT_MAX);
    assert_int_equal(quota("0::/a\n", "v2"), 3);                /* 3.5 processors: three threads can run all the time */
    assert_int_equal(quota("0::/a/b\n", "v2"), 3);              /* the parent's quota applies to its children */
    assert_int_equal(quota("0::/a/b/c\n", "v2"), 1);            /* half a processor */
    assert_int_equal(quota("0::/d\n", "v2"), 8);
    assert_int_equal(quota("0::/not/visible/here\n", "v2"), INT_MAX);
    /* A container without a group namespace: only its own group is mounted, as the root. */
    write_file("inside/cpu.max", "200000 100000\n");
    assert_int_equal(quota("0::/docker/0123\n", "inside"), 2);
}

static void test_version_1(void **state)
{
    (void)state;
    write_file("v1/cpu/cpu.cfs_quota_us", "-1\n");
    write_file("v1/cpu/cpu.cfs_period_us", "100000\n");
    write_file("v1/cpu/job/cpu.cfs_quota_us", "400000\n");
    write_file("v1/cpu/job/cpu.cfs_period_us", "100000\n");
    write_file("v1/unified/x/cpu.max", "200000 100000\n");
    assert_int_equal(quota("3:cpuset:/job\n4:cpu,cpuacct:/job\n", "v1"), 4);
    assert_int_equal(quota("3:cpuset:/job\n2:cpuacct:/job\n1:cpu:/\n", "v1"), INT_MAX);
    assert_int_equal(quota("1:cpu:/job\n0::/x\n", "v1"), 2);    /* both versions mounted: the smaller one */
    assert_int_equal(quota("garbage\n:\n", "v1"), INT_MAX);
    assert_int_equal(quota("", "nowhere"), INT_MAX);
}

static void test_default_threads(void **state)
{
    int all;

    (void)state;
    unsetenv("OMP_NUM_THREADS");
    all = processors_default_threads(1);
    assert_true(all >= 1 && all <= processors_allowed());
    assert_int_equal(processors_default_threads(1 << 20), 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(processors_default_threads(1), 1);
    setenv("OMP_NUM_THREADS", "1,4", 1);
    assert_int_equal(processors_default_threads(1), 1);
    setenv("OMP_NUM_THREADS", "100000", 1);                     /* never more than the existing processors */
    assert_int_equal(processors_default_threads(1), all);
    setenv("OMP_NUM_THREADS", "many", 1);
    assert_int_equal(processors_default_threads(1), all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_2), cmocka_unit_test(test_version_1), cmocka_unit_test(test_default_threads),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
