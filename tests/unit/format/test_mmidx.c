/* test_mmidx.c - datasets of the reference trainer and of shardkit's writer, intact and damaged; NumPy arrays */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/format/mmidx.h"
#include "libcommon/format/npy.h"

#define TEXT "tests/data/text/text_document"

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/mmidx-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

static char *in_dir(const char *name)
{
    static char path[4][300];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void expect_same_file(const char *a, const char *b)
{
    struct err e = {0};
    uint64_t na, nb;
    char *pa = file_slurp(a, 1 << 26, &na, &e), *pb = file_slurp(b, 1 << 26, &nb, &e);

    if (!pa || !pb)
        fail_msg("%s", e.msg);
    assert_int_equal(na, nb);
    assert_memory_equal(pa, pb, na);
    free(pa);
    free(pb);
}

/* Write dir/name.idx and .bin. Expects the message, with "DIR" for the folder, or success if it is NULL. */
static void expect_open(const uint8_t *idx, size_t n_idx, size_t n_bin, const char *want)
{
    struct err e = {0};
    struct mmidx *m;
    char text[1100], *zeros = calloc(1, n_bin + 1);

    put(in_dir("x.idx"), idx, n_idx);
    put(in_dir("x.bin"), zeros, n_bin);
    free(zeros);
    m = mmidx_open(in_dir("x"), &e);
    if (!want) {
        if (!m)
            fail_msg("%s", e.msg);
    } else {
        assert_null(m);
        assert_int_equal(e.kind, ERR_DATA);
        snprintf(text, sizeof text, "%s/%s", dir, want);
        for (char *p; (p = strstr(text, "DIR"));) {     /* the second file that a message may name */
            char rest[600];

            snprintf(rest, sizeof rest, "%s", p + 3);
            snprintf(p, sizeof text - (size_t)(p - text), "%s%s", dir, rest);
        }
        assert_string_equal(e.msg, text);
    }
    mmidx_close(m);
}

static void test_reference_data(void **state)
{
    struct err e = {0};
    struct mmidx *m = mmidx_open(TEXT, &e);
    int64_t tokens[4], sum = 0;

    (void)state;
    if (!m)
        fail_msg("%s", e.msg);
    assert_int_equal(mmidx_form(m), MMIDX_MMAP);
    assert_int_equal(mmidx_type(m), MMIDX_U16);
    assert_int_equal(mmidx_n(m), 83);
    assert_int_equal(mmidx_n_docs(m), 83);
    assert_int_equal(mmidx_len(m, 0), 0x12a5);
    for (int64_t i = 0; i < mmidx_n(m); i++) {
        sum += mmidx_len(m, i);
        mmidx_read(m, i, mmidx_len(m, i) - 1, 1, tokens);
        assert_int_equal(tokens[0], 256);               /* each document ends with end-of-document */
    }
    assert_int_equal(sum, mmidx_tokens(m));
    assert_int_equal(sum * 2, 813300);
    mmidx_close(m);
}

/* Write sequences 0 .. n - 1, with two of them in document 1. */
static void write_toy(const char *prefix, enum mmidx_form form, enum mmidx_type type)
{
    static const int len[] = { 5, 9, 3, 0, 12, 7, 1, 8, 4, 10, 6, 2, 11 };
    struct err e = {0};
    struct mmidx_writer *w = mmidx_create(prefix, form, type, &e);

    assert_non_null(w);
    for (int s = 0; s < 13; s++) {
        int32_t t[16];

        for (int i = 0; i < len[s]; i++)
            t[i] = (7 * s + i) % 128;
        assert_int_equal(mmidx_put(w, t, len[s], &e), 0);
        if (s != 1)
            mmidx_end_document(w);
    }
    if (mmidx_commit(w, &e) < 0)
        fail_msg("%s", e.msg);
    mmidx_writer_free(w);
}

static void check_toy(const char *prefix, enum mmidx_form form, enum mmidx_type type)
{
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);
    int64_t t[16];

    if (!m)
        fail_msg("%s", e.msg);
    assert_int_equal(mmidx_form(m), form);
    assert_int_equal(mmidx_type(m), type);
    assert_int_equal(mmidx_n(m), 13);
    assert_int_equal(mmidx_n_docs(m), 12);
    assert_int_equal(mmidx_tokens(m), 78);
    assert_int_equal(mmidx_len(m, 3), 0);
    mmidx_read(m, 12, 4, 3, t);
    for (int i = 0; i < 3; i++)
        assert_int_equal(t[i], (7 * 12 + 4 + i) % 128);
    mmidx_close(m);
}

static void test_all_types_and_forms(void **state)
{
    static const enum mmidx_type types[] = { MMIDX_U8, MMIDX_I8, MMIDX_I16, MMIDX_I32, MMIDX_I64, MMIDX_U16 };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int form = MMIDX_MMAP; form <= MMIDX_LEGACY; form++) {
            write_toy(in_dir("toy"), (enum mmidx_form)form, types[i]);
            check_toy(in_dir("toy"), (enum mmidx_form)form, types[i]);
        }
}

/* Read the reference's file token by token and write it again. */
static void test_rewrite_is_equal(void **state)
{
    struct err e = {0};
    struct mmidx *m = mmidx_open(TEXT, &e);
    struct mmidx_writer *w = mmidx_create(in_dir("again"), MMIDX_MMAP, MMIDX_U16, &e);
    int64_t *wide = malloc(1 << 20);
    int32_t *t = malloc(1 << 20);

    (void)state;
    assert_true(m && w && wide && t);
    for (int64_t i = 0; i < mmidx_n(m); i++) {
        int64_t n = mmidx_len(m, i);

        assert_true(n <= 1 << 17);
        mmidx_read(m, i, 0, n, wide);
        for (int64_t k = 0; k < n; k++)
            t[k] = (int32_t)wide[k];
        assert_int_equal(mmidx_put(w, t, n, &e), 0);
        mmidx_end_document(w);
    }
    assert_int_equal(mmidx_written(w), 813300 + 1702);
    assert_int_equal(access(in_dir("again.bin"), F_OK), -1);    /* nothing before the commit */
    assert_int_equal(mmidx_commit(w, &e), 0);
    mmidx_writer_free(w);
    expect_same_file(TEXT ".bin", in_dir("again.bin"));
    expect_same_file(TEXT ".idx", in_dir("again.idx"));
    mmidx_close(m);
    free(wide);
    free(t);
}

/* Bytes that torch's struct.pack and numpy make of a legacy index of two sequences. */
static void test_legacy_bytes(void **state)
{
    static const uint64_t want[] = { 0x584449544e54ull | 0, 1, 4, 4, 2, 2, 3, 0, 1, 2, 0, 3, 4, 3, 1, 0, 1, 2 };
    const int32_t t[] = { 70000, -1, 2, 3 };
    struct err e = {0};
    struct mmidx_writer *w = mmidx_create(in_dir("old"), MMIDX_LEGACY, MMIDX_I32, &e);
    uint64_t size;
    char *p;

    (void)state;
    assert_non_null(w);
    assert_int_equal(mmidx_put(w, t, 3, &e), 0);
    mmidx_end_document(w);
    assert_int_equal(mmidx_put(w, t + 3, 1, &e), 0);
    mmidx_end_document(w);
    assert_int_equal(mmidx_commit(w, &e), 0);
    mmidx_writer_free(w);
    p = file_slurp(in_dir("old.idx"), 1 << 20, &size, &e);
    assert_non_null(p);
    assert_int_equal(size, sizeof want);
    assert_memory_equal(p, "TNTIDX\0\0", 8);
    for (size_t i = 1; i < sizeof want / sizeof *want; i++)
        assert_int_equal(get_le64(p + 8 * i), want[i]);
    free(p);
}

static void test_empty_dataset(void **state)
{
    struct err e = {0};
    struct mmidx_writer *w = mmidx_create(in_dir("none"), MMIDX_MMAP, MMIDX_U16, &e);
    struct mmidx *m;

    (void)state;
    assert_int_equal(mmidx_commit(w, &e), 0);
    mmidx_writer_free(w);
    m = mmidx_open(in_dir("none"), &e);
    if (!m)
        fail_msg("%s", e.msg);
    assert_int_equal(mmidx_n(m), 0);
    assert_int_equal(mmidx_n_docs(m), 0);
    mmidx_close(m);
}

static void test_writer_refuses(void **state)
{
    const int32_t big = 65536, negative = -1;
    struct err e = {0};
    struct mmidx_writer *w = mmidx_create(in_dir("refuse"), MMIDX_MMAP, MMIDX_U16, &e);

    (void)state;
    assert_int_equal(mmidx_put(w, &big, 1, &e), -1);
    assert_non_null(strstr(e.msg, "token 65536 does not fit into u16"));
    err_clear(&e);
    assert_int_equal(mmidx_put(w, &negative, 1, &e), -1);
    mmidx_writer_free(w);
    /* Without a commit the folder is unchanged. */
    assert_int_equal(access(in_dir("refuse.bin"), F_OK), -1);
    assert_int_equal(mmidx_type_for(65499), MMIDX_U16);
    assert_int_equal(mmidx_type_for(65500), MMIDX_I32);
}

/* ---- damage ---- */

static void test_messages(void **state)
{
    struct err e = {0};
    uint64_t n;
    uint8_t *p;

    (void)state;
    write_toy(in_dir("toy"), MMIDX_MMAP, MMIDX_U16);
    p = (uint8_t *)file_slurp(in_dir("toy.idx"), 1 << 20, &n, &e);
    assert_int_equal(n, 34 + 13 * 12 + 13 * 8);
    expect_open(p, n, 156, NULL);
    expect_open(p, 0, 156, "x.idx: at byte 0: no dataset index: it begins with neither MMIDIDX nor TNTIDX");
    expect_open(p, 33, 156, "x.idx: at byte 33: cut short: 34 bytes expected, the file has 33");
    expect_open(p, n - 1, 156, "x.idx: at byte 293: cut short: 294 bytes expected, the file has 293");
    expect_open(p, n, 154, "x.idx: at byte 82: sequence 12 ends at byte 156, DIR/x.bin has 154 bytes");
    expect_open(p, n, 158, "x.bin: at byte 156: 2 bytes follow the last sequence of DIR/x.idx");
    p[9] = 2;
    expect_open(p, n, 156, "x.idx: at byte 9: the version is 2, expected 1");
    p[9] = 1;
    p[17] = 7;
    expect_open(p, n, 156, "x.idx: at byte 17: type code 7, expected 1 to 5 or 8 (an integer type)");
    p[17] = 8;
    p[25] = 0x80;
    expect_open(p, n, 156, "x.idx: at byte 18: 9223372036854775821 sequences in a file of 294 bytes");
    p[25] = 0;
    p[34 + 4 + 3] = 0x80;
    expect_open(p, n, 156, "x.idx: at byte 38: sequence 1 has -2147483639 tokens, expected 0 to 2147483647");
    p[34 + 4 + 3] = 0;
    p[34 + 52 + 8]++;
    expect_open(p, n, 156, "x.idx: at byte 94: a sequence's place is 11, expected 10");
    p[34 + 52 + 8]--;
    p[34 + 156 + 16] = 0;
    expect_open(p, n, 156, "x.idx: at byte 206: document 2 starts at sequence 0, expected 1 to 13");
    free(p);
}

/* Flip every bit of both forms, and truncate to every length: the result is an error that names the file, or sound
 * data. */
static void flip_all(enum mmidx_form form)
{
    struct err e = {0};
    uint64_t n;
    uint8_t *p;
    int64_t refused = 0, t[16];

    write_toy(in_dir("toy"), form, MMIDX_U16);
    p = (uint8_t *)file_slurp(in_dir("toy.idx"), 1 << 20, &n, &e);
    for (uint64_t i = 0; i < 9 * n; i++) {
        struct mmidx *m;
        uint64_t len = i < 8 * n ? n : i - 8 * n;

        if (i < 8 * n)
            p[i / 8] ^= (uint8_t)(1 << i % 8);
        put(in_dir("toy.idx"), p, len);
        if (i < 8 * n)
            p[i / 8] ^= (uint8_t)(1 << i % 8);
        err_clear(&e);
        m = mmidx_open(in_dir("toy"), &e);
        if (!m) {
            assert_int_equal(e.kind, ERR_DATA);
            assert_non_null(strstr(e.msg, "/toy."));
            assert_non_null(strstr(e.msg, ": at byte "));
            refused++;
            continue;
        }
        for (int64_t s = 0; s < mmidx_n(m); s++)
            mmidx_read(m, s, 0, mmidx_len(m, s), t);
        mmidx_close(m);
    }
    /* The accepted flips are among the document entries: those of the legacy form are not read, and in the other
     * form a document may grow at the expense of its neighbour. */
    assert_in_range(refused, 9 * n - (form == MMIDX_MMAP ? 14 : 13 * 64), 9 * n);
    free(p);
}

static void test_flips(void **state)
{
    (void)state;
    flip_all(MMIDX_MMAP);
    flip_all(MMIDX_LEGACY);
}

static void test_missing(void **state)
{
    struct err e = {0};

    (void)state;
    assert_null(mmidx_open(in_dir("nowhere"), &e));
    assert_int_equal(e.kind, ERR_SYS);
    assert_non_null(strstr(e.msg, "/nowhere.idx: cannot open: No such file or directory"));
}

/* ---- npy ---- */

static void test_npy_reference(void **state)
{
    struct err e = {0};
    struct npy a;

    (void)state;
    assert_int_equal(npy_open(TEXT "_train_indexmap_1200ns_128sl_42s_sample_idx.npy", &a, &e), 0);
    assert_int_equal(a.type, NPY_I32);
    assert_int_equal(a.ndim, 2);
    assert_int_equal(a.shape[0], 2981);
    assert_int_equal(a.shape[1], 2);
    assert_int_equal(npy_save(in_dir("a.npy"), a.type, a.ndim, a.shape, a.data, &e), 0);
    expect_same_file(a.file.path, in_dir("a.npy"));
    npy_close(&a);
}

static void test_npy_damage(void **state)
{
    const int64_t shape = 5;
    const uint32_t data[] = { 1, 2, 3, 4, 5 };
    struct err e = {0};
    uint64_t n;
    struct npy a;
    char *p;

    (void)state;
    assert_int_equal(npy_save(in_dir("b.npy"), NPY_U32, 1, &shape, data, &e), 0);
    p = file_slurp(in_dir("b.npy"), 1 << 20, &n, &e);
    assert_int_equal(n, 128 + 20);
    for (uint64_t i = 0; i < 9 * n; i++) {
        if (i < 8 * n)
            p[i / 8] ^= (char)(1 << i % 8);
        put(in_dir("b.npy"), p, i < 8 * n ? n : i - 8 * n);
        if (i < 8 * n)
            p[i / 8] ^= (char)(1 << i % 8);
        err_clear(&e);
        if (npy_open(in_dir("b.npy"), &a, &e) < 0)
            assert_non_null(strstr(e.msg, "/b.npy: at byte "));
        else
            npy_close(&a);
    }
    put(in_dir("b.npy"), p, n - 4);
    err_clear(&e);
    assert_int_equal(npy_open(in_dir("b.npy"), &a, &e), -1);
    assert_non_null(strstr(e.msg, "b.npy: at byte 128: 16 bytes of data, the shape (5, 1) needs another number"));
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_data),
        cmocka_unit_test(test_all_types_and_forms),
        cmocka_unit_test(test_rewrite_is_equal),
        cmocka_unit_test(test_legacy_bytes),
        cmocka_unit_test(test_empty_dataset),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_npy_reference),
        cmocka_unit_test(test_npy_damage),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
