/* test_zip.c - the zip directory and the bytes of the container, on files of three writers */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/zip.h"
#include "tests/lib/memzip.h"

static const char *const fixtures[] = { "layer_08.pt", "zoo_torch1.pt", "zoo_torch2.pt" };

/* Open `bytes`; expects the message, or success when it is NULL. */
static void expect_open(const uint8_t *bytes, uint64_t size, const char *want)
{
    struct files *f = files_new();
    struct err e = {0};
    struct zip *z = zip_open(f, files_add_mem(f, bytes, size, "x.pt"), &e);

    if (want) {
        assert_null(z);
        assert_int_equal(e.kind, ERR_DATA);
        assert_string_equal(e.msg, want);
    } else if (!z) {
        fail_msg("%s", e.msg);
    }
    zip_close(z);
    files_free(f);
}

/* Differences from the writer's container, their first text into `first`. */
static int container_findings(const uint8_t *bytes, uint64_t size, char first[300])
{
    struct files *f = files_new();
    struct report *r = report_new();
    struct err e = {0};
    int file = files_add_mem(f, bytes, size, "x.pt"), n;
    struct zip *z = zip_open(f, file, &e);

    assert_non_null(z);
    assert_int_equal(zip_check_container(z, f, file, r, &e), 0);
    n = report_n(r);
    first[0] = '\0';
    if (n) {
        char *text = finding_text(report_get(r, 0));

        snprintf(first, 300, "%s", text);
        free(text);
    }
    zip_close(z);
    report_free(r);
    files_free(f);
    return n;
}

static void test_torch_files(void **state)
{
    struct files *f = files_new();
    struct err e = {0};
    struct zip *z = zip_open(f, files_add_path(f, "tests/data/pt/layer_08.pt", &e), &e);
    const struct zip_entry *x;

    (void)state;
    assert_non_null(z);
    assert_int_equal(zip_n(z), 4);
    x = zip_find(z, "layer_08-model_00-model_states/data/1");
    assert_non_null(x);
    assert_int_equal(x->size, 128);
    assert_int_equal(x->at, 0x300);
    assert_int_equal(x->crc, 0x124a5139);
    assert_null(zip_find(z, "layer_08-model_00-model_states/data/2"));
    assert_int_equal(zip_writer(z), ZIP_TORCH);
    zip_close(z);
    files_free(f);
}

static void test_containers_are_right(void **state)
{
    char text[300];

    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        uint64_t size;
        uint8_t *bytes = memzip_load(fixtures[i], &size);

        if (container_findings(bytes, size, text))
            fail_msg("%s: %s", fixtures[i], text);
        free(bytes);
    }
}

static void test_container_messages(void **state)
{
    uint64_t size;
    uint8_t *bytes = memzip_load("layer_08.pt", &size), *longer;
    char text[300];

    (void)state;
    bytes[12] ^= 1;                     /* the first header's date */
    assert_int_equal(container_findings(bytes, size, text), 1);
    assert_string_equal(text, "x.pt: at byte 12: local header of record layer_08-model_00-model_states/data.pkl: "
                              "0x00 expected (as torch.save writes it), 0x01 found");
    bytes[12] ^= 1;
    bytes[0x284] ^= 0x80;               /* data/0's descriptor: its CRC */
    assert_int_equal(container_findings(bytes, size, text), 1);
    assert_string_equal(text, "x.pt: at byte 644: data descriptor of record layer_08-model_00-model_states/data/0: "
                              "0xc6 expected (as torch.save writes it), 0x46 found");
    bytes[0x284] ^= 0x80;
    bytes[0x1f0] = 'Y';
    assert_int_equal(container_findings(bytes, size, text), 1);
    assert_string_equal(text, "x.pt: at byte 496: filler before record layer_08-model_00-model_states/data/0: "
                              "0x5a expected (as torch.save writes it), 0x59 found");
    bytes[0x1f0] = 'Z';
    longer = xcalloc(1, size + 3);
    memcpy(longer, bytes, size);
    assert_int_equal(container_findings(longer, size + 3, text), 1);
    assert_string_equal(text,
                        "x.pt: at byte 1475: 3 bytes after the end of the zip archive, which torch.load ignores");
    free(longer);
    free(bytes);
}

static void test_what_it_is_instead(void **state)
{
    static const uint8_t legacy[] = { 0x80, 2,    0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                      0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e };
    uint8_t tar[512] = "name";

    (void)state;
    memcpy(tar + 257, "ustar", 5);
    expect_open(legacy, 0, "x.pt: not a zip archive, as torch's .pt files are; found an empty file");
    expect_open(legacy, sizeof legacy,
                "x.pt: not a zip archive, as torch's .pt files are; found legacy torch format, written before torch 1.6 or "
                "with _use_new_zipfile_serialization=False; re-save it with torch.load and torch.save");
    expect_open(tar, sizeof tar, "x.pt: not a zip archive, as torch's .pt files are; found a tar archive");
    expect_open((const uint8_t *)"PYTORCH1", 8,
                "x.pt: not a zip archive, as torch's .pt files are; found torch's preview-release container");
    expect_open((const uint8_t *)"\x80\2}.", 4, "x.pt: not a zip archive, as torch's .pt files are; found a bare pickle");
    expect_open((const uint8_t *)"{}", 2, "x.pt: not a zip archive, as torch's .pt files are");
    expect_open((const uint8_t *)"\0\0\0", 3, "x.pt: not a zip archive, as torch's .pt files are; found zeros");
}

/* However much of the end is missing, it is noticed. */
static void test_truncations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        uint64_t size;
        uint8_t *bytes = memzip_load(fixtures[i], &size);

        for (uint64_t n = 0; n < size; n += size < 2000 ? 1 : 13) {
            struct files *f = files_new();
            struct err e = {0};

            assert_null(zip_open(f, files_add_mem(f, bytes, n, "x.pt"), &e));
            assert_int_equal(e.kind, ERR_DATA);
            files_free(f);
        }
        free(bytes);
    }
}

static const struct memzip_record three[] = {
    {"p/data.pkl", "abc", 3}, {"p/data/0", "defgh", 5}, {"p/version", "3\n", 2}, {0},
};

/* Directory entry i of a zip made from `three`; all names are short. */
static uint8_t *central(uint8_t *file, uint64_t size, int i)
{
    uint8_t *p = file + get_le32(file + size - 22 + 16);

    while (i--)
        p += 46 + get_le16(p + 28);
    return p;
}

static void test_lies(void **state)
{
    uint64_t size;
    uint8_t *file = memzip_make(three, &size), *c1 = central(file, size, 1), *c2 = central(file, size, 2);
    uint8_t save[64];

    (void)state;
    expect_open(file, size, NULL);
    memcpy(save, c1, 64);

    put_le32(c1 + 20, 500);
    put_le32(c1 + 24, 500);
    expect_open(file, size, "x.pt: at byte 67: record p/data/0 claims bytes 128..628 but the next thing begins at 133");
    put_le32(c1 + 24, 6);
    expect_open(file, size,
                "x.pt: at byte 250: record p/data/0 is encrypted, on another disk, or stored with two sizes (6, 500)");
    memcpy(c1, save, 64);

    put_le32(c1 + 42, 0xfffffff0);
    expect_open(file, size, "x.pt: record p/data/0 claims bytes from 4294967280 but the next thing begins at 194");
    put_le32(c1 + 42, 133);
    expect_open(file, size, "x.pt: record p/data/0 claims bytes from 133 but the next thing begins at 133");
    put_le32(c1 + 42, 3);
    expect_open(file, size, "x.pt: record p/data.pkl claims bytes from 0 but the next thing begins at 3");
    memcpy(c1, save, 64);

    c1[46 + 7] = '\n';
    expect_open(file, size, "x.pt: at byte 250: damaged zip: a record name with control characters");
    memcpy(c1, save, 64);

    put_le16(c2 + 28, 0xffff);
    expect_open(file, size, "x.pt: at byte 304: damaged zip: a directory entry runs past the directory");
    free(file);
}

static void test_duplicate_name(void **state)
{
    static const struct memzip_record twice[] = { {"p/a", "1", 1}, {"p/b", "2", 1}, {"p/a", "3", 1}, {0} };
    uint64_t size;
    uint8_t *file = memzip_make(twice, &size);

    (void)state;
    expect_open(file, size, "x.pt: at byte 193: record p/a is contained twice in the zip directory");
    free(file);
}

/* Write a layout's runs into a sparse file and read them back through zip_open. */
static void check_sparse(struct zip_out *out, int n, bool want_zip64)
{
    struct zip_layout *l = zip_layout_new(out, n);
    const struct zip_run *run;
    char path[] = "/tmp/shardkit-test-XXXXXX", text[300] = "";
    int fd = mkstemp(path), n_runs, file;
    struct files *f = files_new();
    struct report *r = report_new();
    struct err e = {0};
    struct zip *z;
    uint8_t end[22];

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)zip_layout_size(l)), 0);
    n_runs = zip_layout_runs(l, &run);
    for (int i = 0; i < n_runs; i++)
        assert_int_equal(write_all_at(fd, run[i].bytes, run[i].len, run[i].at), 0);
    assert_int_equal(pread(fd, end, sizeof end, (off_t)zip_layout_size(l) - 42), sizeof end);
    assert_int_equal(get_le32(end) == 0x07064b50, want_zip64);
    close(fd);
    file = files_add_path(f, path, &e);
    z = zip_open(f, file, &e);
    unlink(path);
    if (!z)
        fail_msg("%s", e.msg);
    assert_int_equal(zip_writer(z), ZIP_SHARDKIT);
    for (int i = 0; i < n; i++) {
        const struct zip_entry *x = zip_entry(z, i);

        assert_string_equal(x->name, out[i].name);
        assert_true(x->size == out[i].size && x->at == out[i].at && x->crc == out[i].crc);
        assert_int_equal(x->at % (x->size >= 65536 ? 4096 : 64), 0);
    }
    assert_int_equal(zip_check_container(z, f, file, r, &e), 0);
    if (report_n(r))
        snprintf(text, sizeof text, "%s", report_get(r, 0)->text);
    assert_string_equal(text, "");
    zip_close(z);
    report_free(r);
    files_free(f);
    zip_layout_free(l);
}

static void test_layout_sizes(void **state)
{
    /* Around each limit: alignment, 32-bit sizes, 32-bit offsets. */
    struct zip_out small[] = { {"a", 0, 0, 0}, {"b", 65535, 7, 0}, {"c", 65536, 8, 0}, {"d", 1, 9, 0} };
    struct zip_out edge[] = { {"a", 4294967294, 7, 0}, {"b", 1, 8, 0} };
    struct zip_out wide[] = { {"a", 4294967295, 7, 0}, {"b", 1, 8, 0}, {"c", 5ull << 30, 9, 0} };
    struct zip_out far[] = { {"a", 3ull << 30, 7, 0}, {"b", 3ull << 30, 8, 0} };

    (void)state;
    check_sparse(small, 4, false);
    check_sparse(edge, 2, true);        /* the directory lies beyond 4 GiB */
    check_sparse(wide, 3, true);
    check_sparse(far, 2, true);
}

static void test_layout_many(void **state)
{
    enum { N = 70000 };
    struct zip_out *out = xcalloc(N, sizeof *out);
    struct arena *a = arena_new(0);

    (void)state;
    for (int i = 0; i < N; i++)
        out[i] = (struct zip_out){ .name = arena_fmt(a, "p/data/%d", i), .crc = (uint32_t)i };
    check_sparse(out, 65534, false);
    check_sparse(out, 65535, true);
    check_sparse(out, N, true);
    free(out);
    arena_free(a);
}

/*
 * A file of torch 2.11 with a storage of 4 GiB + 5 bytes, kept as its container bytes:
 * u64 file size, then runs of u64 offset, u64 length, bytes.
 */
static void test_torch_over_4g(void **state)
{
    uint64_t size;
    uint8_t *skel = memzip_load("over4g_torch2.skel", &size);
    char path[] = "/tmp/shardkit-test-XXXXXX";
    int fd = mkstemp(path), file;
    struct files *f = files_new();
    struct report *r = report_new();
    struct err e = {0};
    struct zip *z;

    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)get_le64(skel)), 0);
    for (uint64_t at = 8; at < size; at += 16 + get_le64(skel + at + 8))
        assert_int_equal(write_all_at(fd, skel + at + 16, get_le64(skel + at + 8), get_le64(skel + at)), 0);
    close(fd);
    file = files_add_path(f, path, &e);
    z = zip_open(f, file, &e);
    unlink(path);
    assert_non_null(z);
    assert_true(zip_find(z, "big/data/1")->size == (1ull << 32) + 5);
    assert_int_equal(zip_check_container(z, f, file, r, &e), 0);
    assert_int_equal(report_n(r), 0);
    zip_close(z);
    report_free(r);
    files_free(f);
    free(skel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_files),
        cmocka_unit_test(test_containers_are_right),
        cmocka_unit_test(test_container_messages),
        cmocka_unit_test(test_what_it_is_instead),
        cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_duplicate_name),
        cmocka_unit_test(test_layout_sizes),
        cmocka_unit_test(test_layout_many),
        cmocka_unit_test(test_torch_over_4g),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
