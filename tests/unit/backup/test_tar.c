/* test_tar.c - a backup's .tar: members far beyond 8 GiB and with long or non-ASCII names are at the offsets of the
 * receipt, for libarchive too */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/format/archive.h"
#include "tools/ckpt-backup/place/tar.h"

#define LONG_NAME \
    "zero/3.self_attention.query_key_value.weight.with.a.name.that.is.longer.than.a.header.has.room.for." \
    "and.longer.still.so.that.it.cannot.be.cut.in.two.either.because.no.slash.is.near.enough/fp32.pt"

/* Write only the headers. The rest of the file is a hole. */
static void write_heads(const char *path, const struct tar *t)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    for (int i = 0; i < t->n; i++) {
        assert_int_equal(fseeko(f, (off_t)t->head[i].at, SEEK_SET), 0);
        assert_int_equal(fwrite(t->head[i].bytes.buf, 1, t->head[i].bytes.len, f), t->head[i].bytes.len);
    }
    fclose(f);
}

static void test_members(void **state)
{
    static struct receipt_file file[] = {
        { .name = "a.pt", .size_bytes = 1, .mode = 0640 },
        { .name = "empty", .size_bytes = 0, .mode = 0640 },
        { .name = "big.pt",
          .size_bytes = (UINT64_C(9) << 30) + 5,
          .mode = 0644,
          .mtime_ns = INT64_C(1646000000123456789) },
        { .name = LONG_NAME, .size_bytes = 512, .mode = 0600 },
        { .name = "gr\xc3\xb6\xc3\x9f"
                  "e.pt",
          .size_bytes = 3,
          .mode = 0644 },
        { .name = "lati\xf1.pt", .size_bytes = 4, .mode = 0644 },
        { .name = "last.pt", .size_bytes = 513, .mode = 0644 },
    };
    struct receipt r = { .tag = "global_step7", .n_files = 7, .file = file };
    char path[] = "/tmp/shardkit-tar-XXXXXX";
    struct archive_member *m;
    struct files *f = files_new();
    struct err e = {0};
    struct tar t;

    (void)state;
    close(mkstemp(path));
    assert_int_equal(tar_place(&t, &r, &e), 0);
    write_heads(path, &t);
    assert_int_equal(archive_list(f, path, &m, &e), 7);
    for (int i = 0; i < 7; i++) {
        char name[512];
        uint64_t base;

        snprintf(name, sizeof name, "global_step7/%s", file[i].name);
        assert_string_equal(m[i].name, name);
        assert_int_equal(files_size(f, m[i].file), file[i].size_bytes);
        files_path(f, m[i].file, &base);
        assert_int_equal(base, file[i].at);
    }
    archive_list_free(m, 7);
    files_free(f);
    tar_free(&t);
    unlink(path);
}

static void test_control_characters(void **state)
{
    struct receipt_file file = { .name = "two\nlines.pt", .size_bytes = 1, .mode = 0640 };
    struct receipt r = { .tag = "global_step7", .n_files = 1, .file = &file };
    struct err e = {0};
    struct tar t;

    (void)state;
    assert_int_equal(tar_place(&t, &r, &e), -1);
    assert_non_null(strstr(e.msg, "its name has a control character"));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_members), cmocka_unit_test(test_control_characters) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
