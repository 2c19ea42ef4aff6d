/* test_archive.c - checkpoints inside tar archives, plain and compressed */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>

#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "tests/lib/memzip.h"

struct member {
    const char *name;
    const void *bytes;
    uint64_t size;
    int type;                           /* 0: regular */
    const char *link;
};

typedef int (*filter_fn)(struct archive *);

/* Write a tar of the members to a new temporary path. A NULL filter means no compression. The caller unlinks and
 * frees the path. */
static char *make_tar(const struct member *m, filter_fn filter, int (*format)(struct archive *))
{
    char *path = xstrdup("/tmp/shardkit-test-XXXXXX");
    struct archive *a = archive_write_new();
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    format(a);
    if (filter)
        assert_int_equal(filter(a), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(a, fd), ARCHIVE_OK);
    for (; m->name; m++) {
        struct archive_entry *x = archive_entry_new();

        archive_entry_set_pathname(x, m->name);
        archive_entry_set_size(x, (la_int64_t)m->size);
        archive_entry_set_filetype(x, m->type ? (unsigned)m->type : AE_IFREG);
        archive_entry_set_perm(x, 0644);
        if (m->link && m->type)
            archive_entry_set_symlink(x, m->link);
        else if (m->link)
            archive_entry_set_hardlink(x, m->link);
        assert_int_equal(archive_write_header(a, x), ARCHIVE_OK);
        if (m->size)
            assert_int_equal(archive_write_data(a, m->bytes, m->size), (la_ssize_t)m->size);
        archive_entry_free(x);
    }
    archive_write_close(a);
    archive_write_free(a);
    close(fd);
    return path;
}

static char long_name[300];

static void check_members(filter_fn filter, int (*format)(struct archive *), bool in_place)
{
    uint64_t size;
    uint8_t *pt_bytes = memzip_load("layer_08.pt", &size);
    const struct member members[] = {
        {"./step20/", NULL, 0, AE_IFDIR, NULL}, {"./step20/layer_08.pt", pt_bytes, size, 0, NULL},
        {"step20/empty", NULL, 0, 0, NULL}, {"latest", "step20", 6, 0, NULL}, {long_name, "x", 1, 0, NULL}, {0},
    };
    char *path, shown[128], got[8];
    struct files *f = files_new();
    struct err e = {0};
    struct archive_member *list;
    struct pt *pt;
    int n;

    memset(long_name, 'n', 250);
    path = make_tar(members, filter, format);
    assert_true(archive_is_tar(path));
    n = archive_list(f, path, &list, &e);
    if (n < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(n, 4);
    assert_string_equal(list[0].name, "step20/layer_08.pt");
    assert_string_equal(list[3].name, long_name);
    assert_true(files_size(f, list[0].file) == size && files_size(f, list[1].file) == 0);
    snprintf(shown, sizeof shown, "%s:step20/layer_08.pt", path);
    assert_string_equal(files_name(f, list[0].file), shown);
    if (in_place)
        assert_string_equal(files_path(f, list[0].file, NULL), path);
    else
        assert_null(files_path(f, list[0].file, NULL));
    pt = pt_open(f, list[0].file, &e);
    if (!pt)
        fail_msg("%s", e.msg);
    assert_int_equal(pt_check_records(pt, f, &e), 0);
    pt_close(pt);
    assert_int_equal(files_read(f, list[2].file, 0, got, 6, &e), 0);
    assert_memory_equal(got, "step20", 6);
    assert_int_equal(files_read(f, list[3].file, 0, got, 1, &e), 0);
    assert_memory_equal(got, "x", 1);
    archive_list_free(list, n);
    files_free(f);
    unlink(path);
    free(path);
    free(pt_bytes);
}

static void test_plain(void **state)
{
    (void)state;
    check_members(NULL, archive_write_set_format_pax, true);
    check_members(NULL, archive_write_set_format_gnutar, true);
}

static void test_compressed(void **state)
{
    static const filter_fn filters[] = { archive_write_add_filter_gzip, archive_write_add_filter_zstd,
        archive_write_add_filter_xz, archive_write_add_filter_bzip2, archive_write_add_filter_lz4 };

    (void)state;
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        check_members(filters[i], archive_write_set_format_pax, false);
}

static void expect_refused(const struct member *m, const char *want)
{
    char *path = make_tar(m, NULL, archive_write_set_format_pax_restricted);
    struct archive_member *list;
    struct files *f = files_new();
    struct err e = {0};

    assert_int_equal(archive_list(f, path, &list, &e), -1);
    assert_null(list);
    assert_int_equal(e.kind, ERR_DATA);
    if (!str_ends(e.msg, want))
        fail_msg("got '%s', want '... %s'", e.msg, want);
    files_free(f);
    unlink(path);
    free(path);
}

static void test_hostile(void **state)
{
    (void)state;
    expect_refused((struct member[]){ {"a/../../b", "x", 1, 0, NULL}, {0} }, "a member name with '..'");
    expect_refused((struct member[]){ {"..", "x", 1, 0, NULL}, {0} }, "a member name with '..'");
    expect_refused((struct member[]){ { "/etc/passwd", "x", 1, 0, NULL }, { 0 } },
                   "a member with an absolute name or none");
    expect_refused((struct member[]){ {"a\nb", "x", 1, 0, NULL}, {0} }, "a member name with control characters");
    expect_refused((struct member[]){ { "a", "x", 1, 0, NULL }, { "b", NULL, 0, 0, "a" }, { 0 } },
                   "a link, device or sparse file");
    expect_refused((struct member[]){ {"b", NULL, 0, AE_IFLNK, "/etc"}, {0} }, "a link, device or sparse file");
    expect_refused((struct member[]){ {"a", "x", 1, 0, NULL}, {"./a", "y", 1, 0, NULL}, {0} },
                   "member a is contained twice in the archive");
}

/* The part of the name before the NUL would be another name. */
static void test_nul(void **state)
{
    char name[200] = "", bytes[4096], *at;
    const struct member members[] = { {name, "x", 1, 0, NULL}, {0} };
    struct archive_member *list;
    struct files *f = files_new();
    struct err e = {0};
    char *path;
    FILE *file;
    size_t n;

    (void)state;
    memset(name, 'n', sizeof name - 1);
    path = make_tar(members, NULL, archive_write_set_format_pax);
    file = fopen(path, "r+");
    assert_non_null(file);
    n = fread(bytes, 1, sizeof bytes, file);
    at = memmem(bytes, n, " path=", 6);
    assert_non_null(at);
    fseek(file, at - bytes + 20, SEEK_SET);
    fputc('\0', file);
    fclose(file);
    assert_int_equal(archive_list(f, path, &list, &e), -1);
    assert_non_null(strstr(e.msg, "a member name with a NUL"));
    files_free(f);
    unlink(path);
    free(path);
}

/* Truncation at any place gives an error or a shorter list, never a member that extends past the end. */
static void test_truncated(void **state)
{
    static char bytes[3000];
    const struct member members[] = { {"a", bytes, sizeof bytes, 0, NULL}, {"b", bytes, 100, 0, NULL}, {0} };
    char *path = make_tar(members, NULL, archive_write_set_format_gnutar);

    (void)state;
    for (off_t len = 4600; len > 0; len -= 100) {
        struct archive_member *list;
        struct files *f = files_new();
        struct err e = {0};
        int n;

        assert_int_equal(truncate(path, len), 0);
        n = archive_list(f, path, &list, &e);
        assert_true(n < 2 || len >= 4096 + 100);
        for (int i = 0; i < n; i++)
            assert_int_equal(files_read(f, list[i].file, 0, bytes, files_size(f, list[i].file), &e), 0);
        if (n >= 0)
            archive_list_free(list, n);
        files_free(f);
    }
    unlink(path);
    free(path);
}

static void test_is_tar(void **state)
{
    (void)state;
    assert_false(archive_is_tar("tests/data/pt/layer_08.pt"));
    assert_false(archive_is_tar("tests/data/pt"));
    assert_false(archive_is_tar("tests/data/missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_is_tar),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
