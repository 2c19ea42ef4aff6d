/*
 * test_pack.c - packed files: any bytes survive a round trip, and every damaged byte is detected
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

#include "libcommon/base/crc.h"
#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pack/pack.h"
#include "libcommon/format/pack/planes.h"

static uint32_t rng = 1;

static uint32_t next_random(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 17;
    rng ^= rng << 5;
    return rng;
}

/* ---- planes ---- */

static void planes_round(struct planes *p, const uint8_t *raw, uint32_t n, int width)
{
    uint8_t *packed = malloc(planes_bound(n)), *back = malloc(n);
    uint32_t len = planes_pack(p, raw, n, width, packed);

    assert_true(len <= planes_bound(n));
    memset(back, 0x5a, n);
    assert_int_equal(planes_unpack(p, packed, len, width, back, n), 0);
    assert_memory_equal(back, raw, n);
    assert_int_equal(planes_unpack(p, packed, len - 1, width, back, n), -1);
    free(packed);
    free(back);
}

static void test_planes(void **state)
{
    enum { MOST = 1 << 18 };
    struct planes *p = planes_new(MOST);
    uint8_t *raw = malloc(MOST);

    (void)state;
    for (uint32_t i = 0; i < 65536; i++)
        put_le16(raw + 2 * i, (uint16_t)i);             /* every bf16 and every fp16 */
    planes_round(p, raw, 131072, 2);
    for (uint32_t i = 0; i < 65536; i++)
        put_le32(raw + 4 * i, i << 16 | (i * 40503 & 0xffff));  /* NaNs with payloads, denormals, infinities */
    for (int width = 1; width <= 4; width *= 2)
        planes_round(p, raw, MOST, width);
    memset(raw, 7, MOST);
    for (int width = 1; width <= 4; width *= 2)
        planes_round(p, raw, MOST, width);
    for (uint32_t i = 0; i < MOST; i++)
        raw[i] = (uint8_t)next_random();
    for (int width = 1; width <= 4; width *= 2)
        for (uint32_t n = 1; n <= 70; n++)
            planes_round(p, raw + n, n * (uint32_t)width, width);
    free(raw);
    planes_free(p);
}

/* The format defines which byte is in which plane: exponents of 1.0f, 2.0f, sign after the mantissa. */
static void test_planes_format(void **state)
{
    static const uint8_t raw[8] = { 0, 0, 0x80, 0xbf, 1, 0, 0, 0x40 };  /* -1.0, 2.0000002 */
    static const uint8_t expected[24] = { 2 << 2, 0, 0, 0, 1 << 2 | 2, 0, 0, 0, 1 << 2 | 2, 0, 0, 0, 2 << 2, 0, 0, 0,
                                          1, 2, 0, 0, 0x7f, 0x80 };
    struct planes *p = planes_new(64);
    uint8_t packed[64];

    (void)state;
    assert_int_equal(planes_pack(p, raw, 8, 4, packed), 22);
    assert_memory_equal(packed, expected, 22);
    planes_free(p);
}

/* ---- guesses ---- */

static void test_guess_is_rounding(void **state)
{
    enum { N = 19 };                    /* full groups of eight, and a remainder */
    uint8_t ref[4 * N], raw[2 * N];
    uint32_t x = 0;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < N; i++, x += 65521u * 3) {
            uint32_t bits = i % 5 == 4 ? 0x7f800000 + (x & 0x80000001) : i % 5 == 3 ? x << 16 | 0x8000 : x;
            float f;

            memcpy(&f, &bits, sizeof f);
            put_le32(ref + 4 * i, bits);
            put_le16(raw + 2 * i, (uint16_t)(f32_to_bf16(f) ^ (i % 7 == 6 ? 0x8001 : 0)));
        }
        assert_int_equal(guess_apply(PACK_ROUND_BF16, ref, raw, 2 * N), 2);
        for (int i = 0; i < N; i++)
            assert_int_equal(get_le16(raw + 2 * i), i % 7 == 6 ? 0x8001 : 0);
    }
}

/* Existing packed files depend on these values. */
static void test_guess_frozen(void **state)
{
    static const struct { uint32_t x; uint16_t bf16, f16; } row[] = {
        { 0x3f800000, 0x3f80, 0x3c00 }, { 0x3f808000, 0x3f80, 0x3c04 }, { 0x3f818000, 0x3f82, 0x3c0c },
        { 0x80000000, 0x8000, 0x8000 }, { 0x00000001, 0x0000, 0x0000 }, { 0x7f7fffff, 0x7f80, 0x7c00 },
        { 0x7f800001, 0x7fc0, 0x7e00 }, { 0xffa12345, 0xffe1, 0xfe00 }, { 0xff800000, 0xff80, 0xfc00 },
        { 0x477fefff, 0x4780, 0x7bff }, { 0x477ff000, 0x4780, 0x7c00 }, { 0x33000000, 0x3300, 0x0000 },
        { 0x33000001, 0x3300, 0x0001 }, { 0x387fe000, 0x3880, 0x0400 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint8_t ref[4], raw[2] = {0};

        put_le32(ref, row[i].x);
        guess_apply(PACK_ROUND_BF16, ref, raw, 2);
        assert_int_equal(get_le16(raw), row[i].bf16);
        memset(raw, 0, 2);
        guess_apply(PACK_ROUND_F16, ref, raw, 2);
        assert_int_equal(get_le16(raw), row[i].f16);
    }
}

/* ---- whole files ---- */

enum { N_FILES = 6 };
struct set {
    char in[64], out[96], *packed;
    struct pack_index x;
    uint8_t *bytes[N_FILES];
};

static void add_run(struct pack_index *x, struct pack_run r)
{
    ARRAY_ROOM(x->run, x->cap_runs, x->n_runs + 1);
    x->run[x->n_runs++] = r;
}

static int add_ref(struct pack_index *x, int file, uint64_t at, uint64_t len)
{
    ARRAY_ROOM(x->ref, x->cap_refs, x->n_refs + 1);
    x->ref[x->n_refs] = (struct pack_ref){ file, at, len };
    return x->n_refs++;
}

static float master(uint32_t i)
{
    uint32_t bits = i % 997 == 0 ? i << 16 | i : 0x3c000000 | (next_random() & 0x83ffffff);
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/*
 * Make masters, weights that are the rounded masters except for some (in bf16 after 8 bytes of text, and in fp16),
 * a copy of the masters, an empty file, and text. Each has n numbers.
 */
static void make_set(struct set *s, uint32_t n)
{
    static const char *const names[N_FILES] = { "a/masters", "b", "copy", "empty", "half", "text" };
    uint64_t size[N_FILES] = { 4 * (uint64_t)n, 8 + 2 * (uint64_t)n, 4 * (uint64_t)n, 0, 2 * (uint64_t)n, 17 };
    struct err e = {0};
    int ref;

    *s = (struct set){ .in = "/tmp/shardkit-pack-XXXXXX" };
    assert_non_null(mkdtemp(s->in));
    snprintf(s->out, sizeof s->out, "%s/out", s->in);
    s->packed = path_join(s->in, "packed");
    for (int i = 0; i < N_FILES; i++)
        s->bytes[i] = calloc(1, size[i] + 1);
    for (uint32_t i = 0; i < n; i++) {
        float f = master(i);

        memcpy(s->bytes[0] + 4 * (size_t)i, &f, 4);
        put_le16(s->bytes[1] + 8 + 2 * (size_t)i, i % 1000 == 999 ? 0x7fff : f32_to_bf16(f));
        put_le16(s->bytes[4] + 2 * (size_t)i, f32_to_f16(f));
    }
    memcpy(s->bytes[1], "8 bytes.", 8);
    memcpy(s->bytes[2], s->bytes[0], size[2]);
    memcpy(s->bytes[5], "text text text 17", 17);
    s->x.file = xcalloc(N_FILES, sizeof *s->x.file);
    s->x.n_files = N_FILES;
    for (int i = 0; i < N_FILES; i++) {
        char *in = path_join(s->in, names[i]), *out = path_join(s->out, names[i]), *parent = path_parent(in);

        s->x.file[i] = (struct pack_file){ .name = xstrdup(names[i]), .size_bytes = size[i] };
        assert_int_equal(dir_make(parent, &e), 0);
        assert_int_equal(file_replace(in, s->bytes[i], size[i], &e), 0);
        free(parent);
        parent = path_parent(out);
        assert_int_equal(dir_make(parent, &e), 0);
        assert_int_equal(file_replace(out, "", 0, &e), 0);
        free(parent);
        free(in);
        free(out);
    }
    add_run(&s->x, (struct pack_run){ .file = 0, .len = size[0], .width = 4 });
    add_run(&s->x, (struct pack_run){ .file = 1, .len = 8, .width = 1 });
    ref = add_ref(&s->x, 0, 0, 4 * (n / 3));            /* in two pieces */
    if (n / 3 == 0)
        s->x.n_refs--;
    add_ref(&s->x, 0, 4 * (n / 3), size[0] - 4 * (n / 3));
    add_run(&s->x, (struct pack_run){ .file = 1, .at = 8, .len = size[1] - 8, .width = 2, .guess = PACK_ROUND_BF16,
                                      .first_ref = ref, .n_refs = s->x.n_refs - ref });
    ref = add_ref(&s->x, 0, 0, size[0]);
    add_run(&s->x, (struct pack_run){ .file = 2, .len = size[2], .width = 4, .guess = PACK_SAME, .first_ref = ref,
                                      .n_refs = 1 });
    ref = add_ref(&s->x, 0, 0, size[0]);
    add_run(&s->x, (struct pack_run){ .file = 4, .len = size[4], .width = 2, .guess = PACK_ROUND_F16,
                                      .first_ref = ref, .n_refs = 1 });
    add_run(&s->x, (struct pack_run){ .file = 5, .len = 17, .width = 1 });
}

static void drop_set(struct set *s)
{
    struct err e = {0};

    assert_int_equal(dir_remove(s->in, &e), 0);
    pack_index_free(&s->x);
    for (int i = 0; i < N_FILES; i++)
        free(s->bytes[i]);
    free(s->packed);
}

static void write_set(struct set *s, int threads)
{
    struct err e = {0};

    if (pack_write(s->packed, s->in, &s->x, &(struct pack_opts){ .threads = threads }, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Unpack the set. Returns 0 if all bytes are right, or -1 and *e if it is refused. Fails if bytes are wrong. */
static int unpack_set(const struct set *s, struct err *e)
{
    struct pack *p = pack_open(s->packed, e);
    int rc = p ? pack_unpack(p, s->out, &(struct pack_opts){ .threads = 2 }, NULL, e) : -1;

    for (int i = 0; i < N_FILES && rc == 0; i++) {
        char *path = path_join(s->out, s->x.file[i].name);
        uint64_t size;
        char *back = file_slurp(path, 1 << 26, &size, e);

        assert_non_null(back);
        assert_int_equal(size, s->x.file[i].size_bytes);
        assert_memory_equal(back, s->bytes[i], size);
        assert_int_equal(pack_index(p)->file[i].crc, crc_bytes(0, back, size));
        free(back);
        free(path);
    }
    pack_close(p);
    return rc;
}

static void test_files(void **state)
{
    /* Sizes around the borders of frames of masters and of weights. */
    static const uint32_t n[] = { 1, 2, 5, 1000, PACK_FRAME / 4 - 1, PACK_FRAME / 4, PACK_FRAME / 4 + 1,
                                  PACK_FRAME / 2 - 4, PACK_FRAME / 2 + 1, PACK_FRAME + 3 };

    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        struct err e = {0};
        uint64_t size;
        char *whole;
        struct pack *p;
        struct set s;

        make_set(&s, n[i]);
        write_set(&s, 3);
        if (unpack_set(&s, &e) < 0)
            fail_msg("%s", e.msg);
        whole = file_slurp(s.packed, 1 << 26, &size, &e);
        p = pack_open(s.packed, &e);
        assert_int_equal(size, pack_size(p));
        assert_int_equal(pack_crc(p), crc_bytes(0, whole, size));
        assert_int_equal(pack_range_crc(pack_index(p), 1, 8, 2 * n[i]), crc_bytes(0, s.bytes[1] + 8, 2 * n[i]));
        /* Weights and the copy are stored only as exceptions; masters shrink little. */
        if (n[i] >= 1000)
            assert_true(size < 4 * (uint64_t)n[i] + n[i] / 20 + 2000);
        pack_close(p);
        free(whole);
        drop_set(&s);
    }
}

static void test_same_at_any_threads(void **state)
{
    uint64_t size[2];
    struct err e = {0};
    char *whole[2];
    struct set s;

    (void)state;
    make_set(&s, 2 * PACK_FRAME + 77);
    for (int i = 0; i < 2; i++) {
        free(s.x.frame);
        write_set(&s, i ? 7 : 1);
        whole[i] = file_slurp(s.packed, 1 << 26, &size[i], &e);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(whole[0], whole[1], size[0]);
    free(whole[0]);
    free(whole[1]);
    drop_set(&s);
}

/* A wrong guess costs only space. */
static void test_guess_that_is_wrong(void **state)
{
    struct err e = {0};
    struct set s;
    char *path;

    (void)state;
    make_set(&s, 5000);
    for (uint32_t i = 0; i < 20000; i++)
        s.bytes[0][i] = (uint8_t)next_random();
    path = path_join(s.in, "a/masters");
    assert_int_equal(file_replace(path, s.bytes[0], 20000, &e), 0);
    s.x.run[3].guess = PACK_ROUND_F16;                  /* for four-byte numbers: no guess applies */
    write_set(&s, 2);
    assert_int_equal(unpack_set(&s, &e), 0);
    free(path);
    drop_set(&s);
}

/* ---- damage ---- */

/* Write without a sync, unlike file_replace(), because thousands of files are written. */
static void overwrite(const char *path, const void *bytes, uint64_t size)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void expect_refused(const struct set *s, const char *what, uint64_t at)
{
    struct err e = {0};

    if (unpack_set(s, &e) == 0)
        fail_msg("%s at byte %llu: taken for sound", what, (unsigned long long)at);
    if (e.kind != ERR_DATA || !strstr(e.msg, s->packed))
        fail_msg("%s at byte %llu: %s", what, (unsigned long long)at, e.msg);
}

static void test_flips(void **state)
{
    struct err e = {0};
    uint64_t size;
    struct set s;
    char *whole;

    (void)state;
    make_set(&s, 150);
    write_set(&s, 1);
    whole = file_slurp(s.packed, 1 << 20, &size, &e);
    for (uint64_t at = 0; at < size; at++) {
        whole[at] ^= (char)(1 << at % 8);
        overwrite(s.packed, whole, size);
        expect_refused(&s, "a flip", at);
        whole[at] ^= (char)(1 << at % 8);
    }
    for (uint64_t n = 0; n < size; n += 1 + n / 50) {
        overwrite(s.packed, whole, n);
        expect_refused(&s, "cut short", n);
    }
    free(whole);
    drop_set(&s);
}

/* A hostile writer: every CRC is right, but the contents are false. The file is refused, or harmless. */
static void test_hostile(void **state)
{
    struct err e = {0};
    uint64_t size, index_at;
    struct set s;
    char *whole;

    (void)state;
    make_set(&s, 150);
    write_set(&s, 1);
    whole = file_slurp(s.packed, 1 << 20, &size, &e);
    index_at = get_le64(whole + size - 32);
    for (int round = 0; round < 3000; round++) {
        uint8_t *bad = malloc(size);
        uint64_t at = 32 + next_random() % (size - 64);
        struct pack *p;

        memcpy(bad, whole, size);
        bad[at] = round % 3 == 0 ? 0xff : (uint8_t)next_random();
        put_le32(bad + size - 16, crc_bytes(0, bad + index_at, size - 32 - index_at));
        put_le32(bad + size - 4, crc_bytes(0, bad + size - 32, 28));
        overwrite(s.packed, bad, size);
        p = pack_open(s.packed, &e);
        if (p && pack_unpack(p, NULL, &(struct pack_opts){ .threads = 1 }, NULL, &e) == 0)
            err_clear(&e);
        pack_close(p);
        err_clear(&e);
        free(bad);
    }
    free(whole);
    drop_set(&s);
}

/* The report lists each of several faults with its own byte. */
static void test_report(void **state)
{
    struct report *r = report_new();
    struct err e = {0};
    struct pack *p;
    uint64_t size;
    struct set s;
    char *whole;

    (void)state;
    make_set(&s, 2 * PACK_FRAME);
    write_set(&s, 2);
    whole = file_slurp(s.packed, 1 << 26, &size, &e);
    whole[100] ^= 1;                                    /* in the first frame of the masters */
    overwrite(s.packed, whole, size);
    p = pack_open(s.packed, &e);
    assert_non_null(p);
    assert_int_equal(pack_unpack(p, NULL, &(struct pack_opts){ .threads = 2 }, r, &e), 0);
    /* That frame, and those derived from it: of the weights, the copy, the halves. */
    assert_int_equal(report_count(r, SEV_ERROR), 4);
    for (int i = 0; i < report_n(r); i++)
        assert_non_null(strstr(report_get(r, i)->text, " are lost: the frame "));
    pack_close(p);
    report_free(r);
    free(whole);
    drop_set(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planes),
        cmocka_unit_test(test_planes_format),
        cmocka_unit_test(test_guess_is_rounding),
        cmocka_unit_test(test_guess_frozen),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_same_at_any_threads),
        cmocka_unit_test(test_guess_that_is_wrong),
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_report),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
