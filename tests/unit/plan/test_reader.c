/*
 * test_reader.c - read one tensor in parts: replicas are combined, and records read completely are checked
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/plan/reader.h"

/* Three copies, one of them off by a step. */
struct copies {
    float value[3][4];
    struct files *files;
    struct extent x[3];
    struct tmap_slice slice[3];
    struct tmap map;
};

static void copies_open(struct copies *c, uint32_t crc_of_last)
{
    static const float value[3][4] = { { 1, 2, 3, 4 }, { 1, 2, 6, 4 }, { 1, 2, 3, 4 } };

    *c = (struct copies){ .files = files_new() };
    memcpy(c->value, value, sizeof value);
    for (int k = 0; k < 3; k++) {
        int file = files_add_mem(c->files, c->value[k], 16, "copy");
        uint32_t crc = k == 2 ? crc_of_last : crc_bytes(0, c->value[k], 16);

        c->x[k] = (struct extent){ files_add_record(c->files, &(struct record){ .file = file, .len = 16,
                                                                                .has_crc = true, .crc = crc,
                                                                                .name = "r" }), 0, 16 };
        c->slice[k] = (struct tmap_slice){ .len = 16, .n_extents = 1, .extent = &c->x[k] };
    }
    c->map = (struct tmap){ .op = TMAP_REPLICAS, .dtype = DTYPE_F32, .len = 16, .n_slices = 3, .slice = c->slice };
}

static int read_part(const struct copies *c, enum replica_policy policy, uint64_t from, uint64_t len, float *to,
                     struct err *e)
{
    struct reader *r = reader_new(&c->map, c->files, policy, 0, 16);
    int rc = reader_read(r, from, len, to, e);

    reader_free(r);
    return rc;
}

static void copies_become_one(void **state)
{
    struct copies c;
    struct err e = {0};
    float got[4];

    (void)state;
    copies_open(&c, crc_bytes(0, (float[]){ 1, 2, 3, 4 }, 16));
    assert_return_code(read_part(&c, REPLICAS_AVERAGE, 0, 16, got, &e), 0);
    assert_true(got[2] == 4 && got[3] == 4);
    assert_return_code(read_part(&c, REPLICAS_MAJORITY, 8, 8, got, &e), 0);
    assert_true(got[0] == 3 && got[1] == 4);
    assert_return_code(read_part(&c, REPLICAS_FIRST, 8, 4, got, &e), 0);
    assert_true(got[0] == 3);
    assert_return_code(read_part(&c, REPLICAS_FAIL, 0, 8, got, &e), 0);
    assert_int_equal(read_part(&c, REPLICAS_FAIL, 0, 16, got, &e), -1);
    assert_string_equal(e.msg, "copy: at byte 0: the 3 tensor-parallel copies differ; " REPLICAS_NEXT_STEP);
    files_free(c.files);
}

/* A wrong CRC is reported by the read that completes the record, or by the first read if the reads are not in order. */
static void whole_records_are_checked(void **state)
{
    struct copies c;
    struct err e = {0};
    struct reader *r;
    uint32_t crc;
    float got[4];

    (void)state;
    copies_open(&c, 5);
    r = reader_new(&c.map, c.files, REPLICAS_MAJORITY, 0, 16);
    assert_return_code(reader_read(r, 0, 12, got, &e), 0);
    assert_false(reader_crc(r, &crc));
    assert_int_equal(reader_read(r, 12, 4, got, &e), -1);
    assert_non_null(strstr(e.msg, "copy: at byte 0: record r is corrupt"));
    reader_free(r);

    e = (struct err){0};
    r = reader_new(&c.map, c.files, REPLICAS_FIRST, 0, 16);        /* never sees the bad copy */
    assert_return_code(reader_read(r, 0, 8, got, &e), 0);
    assert_return_code(reader_read(r, 8, 8, got, &e), 0);
    assert_true(reader_crc(r, &crc));
    assert_int_equal(crc, crc_bytes(0, c.value[0], 16));
    reader_free(r);

    r = reader_new(&c.map, c.files, REPLICAS_MAJORITY, 0, 16);
    assert_int_equal(reader_read(r, 4, 12, got, &e), -1);
    assert_non_null(strstr(e.msg, "copy: at byte 0: record r is corrupt"));
    assert_false(reader_crc(r, &crc));
    reader_free(r);
    files_free(c.files);
}

/* A record that the range covers in part is checked before the first value is returned, once per table of files. */
static void parts_of_records_are_checked(void **state)
{
    struct copies c;
    struct err e = {0};
    struct reader *r;
    uint32_t crc;
    float got[4] = { -1, -1, -1, -1 };

    (void)state;
    copies_open(&c, 5);
    r = reader_new(&c.map, c.files, REPLICAS_AVERAGE, 4, 8);
    assert_int_equal(reader_read(r, 4, 4, got, &e), -1);
    assert_non_null(strstr(e.msg, "copy: at byte 0: record r is corrupt"));
    assert_true(got[0] == -1);
    reader_free(r);

    e = (struct err){0};
    r = reader_new(&c.map, c.files, REPLICAS_FIRST, 4, 8);
    assert_return_code(reader_read(r, 4, 4, got, &e), 0);
    assert_true(got[0] == 2);
    assert_return_code(reader_read(r, 8, 4, got, &e), 0);
    assert_false(reader_crc(r, &crc));
    reader_free(r);

    c.value[0][3] = 9;                  /* the record was checked: it is not read again as a whole */
    r = reader_new(&c.map, c.files, REPLICAS_FIRST, 0, 8);
    assert_return_code(reader_read(r, 4, 4, got, &e), 0);
    assert_return_code(reader_read(r, 0, 4, got, &e), 0);
    reader_free(r);
    files_free(c.files);
}

/* As torch's sum() of tensors: from 0 on, rounded to the type after each part. */
static void parts_are_added(void **state)
{
    static const struct { enum dtype dtype; uint16_t part[3], sum; } halves[] = {
        { DTYPE_F16, { 0x3c00, 0x3c00, 0x4000 }, 0x4400 },              /* 1 + 1 + 2 = 4 */
        { DTYPE_F16, { 0x6800, 0x3c00, 0x3c00 }, 0x6800 },              /* 2048 + 1 + 1: each 1 is rounded away */
        { DTYPE_F16, { 0x3c00, 0x3c00, 0x6800 }, 0x6801 },              /* ... but not together: 2050 */
        { DTYPE_F16, { 0x8000, 0x8000, 0x8000 }, 0x0000 },              /* 0 + -0 is 0 */
        { DTYPE_F16, { 0x7bff, 0x7bff, 0x0000 }, 0x7c00 },              /* too large: infinity */
        { DTYPE_BF16, { 0x3f80, 0x3f80, 0x4000 }, 0x4080 },
        { DTYPE_BF16, { 0x4380, 0x3f80, 0x3f80 }, 0x4380 },             /* 256 + 1 + 1 */
    };
    struct copies c;
    struct err e = {0};
    struct reader *r;
    double wide[2] = { 1, 1e-300 }, sum;
    float got[4];
    uint16_t half;
    uint32_t crc;

    (void)state;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        const void *part[3] = { &halves[i].part[0], &halves[i].part[1], &halves[i].part[2] };

        tmap_add(part, 3, 2, halves[i].dtype, &half);
        if (half != halves[i].sum)
            fail_msg("case %zu: got %04x, want %04x", i, half, halves[i].sum);
    }
    tmap_add((const void *[]){ &wide[0], &wide[1] }, 2, 8, DTYPE_F64, &sum);
    assert_true(sum == 1);

    copies_open(&c, crc_bytes(0, (float[]){ 1, 2, 3, 4 }, 16));
    c.map.op = TMAP_SUM;
    r = reader_new(&c.map, c.files, REPLICAS_FAIL, 0, 16);
    assert_return_code(reader_read(r, 0, 8, got, &e), 0);
    assert_return_code(reader_read(r, 8, 8, got + 2, &e), 0);
    for (int i = 0; i < 4; i++)
        assert_true(got[i] == c.value[0][i] + c.value[1][i] + c.value[2][i]);
    assert_true(reader_crc(r, &crc) && crc == crc_bytes(0, got, 16));
    reader_free(r);
    files_free(c.files);

    copies_open(&c, 5);                 /* the last part's record is damaged */
    c.map.op = TMAP_SUM;
    assert_int_equal(read_part(&c, REPLICAS_FIRST, 0, 16, got, &e), -1);
    assert_non_null(strstr(e.msg, "copy: at byte 0: record r is corrupt"));
    files_free(c.files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_added),
        cmocka_unit_test(copies_become_one), cmocka_unit_test(whole_records_are_checked),
        cmocka_unit_test(parts_of_records_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
