/* test_tmap_slice.c - columns of mapped tensors, compared with a slice of the tensor itself; zeros */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap_slice.h"

enum { BYTES = 60000, SLICES_MAX = 4, EXTENTS_MAX = 6 };

static unsigned char bytes[BYTES];

static uint64_t below(uint64_t n)
{
    return n ? (uint64_t)rand() % n : 0;
}

/* A slice of len bytes in a few extents of record 0. */
static void make_slice(struct arena *a, struct tmap_slice *s, uint64_t len)
{
    s->len = len;
    s->extent = arena_alloc(a, EXTENTS_MAX * sizeof *s->extent);
    for (uint64_t left = len; left || s->n_extents == 0;) {
        uint64_t part = s->n_extents == EXTENTS_MAX - 1 ? left : below(left + 1);

        s->extent[s->n_extents++] = (struct extent){ 0, below(BYTES - part), part };
        left -= part;
    }
}

static struct tmap *make_map(struct arena *a, enum tmap_op op, uint64_t rows, uint64_t *row)
{
    struct tmap *m = arena_alloc(a, sizeof *m);

    *m = (struct tmap){ .op = op, .dtype = DTYPE_U8, .n_slices = 1 + (int)below(SLICES_MAX) };
    m->slice = arena_alloc(a, SLICES_MAX * sizeof *m->slice);
    *row = op == TMAP_INTERLEAVE ? 0 : (1 + below(20)) * (uint64_t)m->n_slices;
    for (int k = 0; k < m->n_slices; k++) {
        uint64_t part = 1 + below(50);

        if (op == TMAP_INTERLEAVE)
            *row += m->slice[k].row_part = part;
        make_slice(a, &m->slice[k], op == TMAP_INTERLEAVE ? rows * part
                                  : op == TMAP_CONCAT ? rows * *row / (uint64_t)m->n_slices : rows * *row);
    }
    m->len = rows * *row;
    m->row = op == TMAP_INTERLEAVE ? *row : 0;
    return m;
}

static void test_columns(void **state)
{
    static unsigned char whole[BYTES], got[BYTES];
    struct files *f = files_new();
    struct err e = {0};

    (void)state;
    files_add_record(f, &(struct record){ .file = files_add_mem(f, bytes, BYTES, "memory"), .len = BYTES,
                                          .name = "data/0" });
    for (int round = 0; round < 3000; round++) {
        struct arena *a = arena_new(0);
        uint64_t rows, row, at, len;
        struct tmap *m, *c;
        int replica;

        srand((unsigned)round);
        rows = 1 + below(30);
        m = make_map(a, (enum tmap_op)below(3), rows, &row);
        at = below(row);
        len = 1 + below(row - at);
        c = tmap_slice_columns(a, m, row, at, len);
        replica = m->op == TMAP_REPLICAS ? (int)below((uint64_t)m->n_slices) : 0;
        assert_int_equal(c->len, rows * len);
        assert_int_equal(c->op == TMAP_REPLICAS, m->op == TMAP_REPLICAS);
        assert_int_equal(tmap_read(m, f, (struct tmap_range){ replica, 0, m->len }, whole, &e), 0);
        assert_int_equal(tmap_read(c, f, (struct tmap_range){ replica, 0, c->len }, got, &e), 0);
        for (uint64_t r = 0; r < rows; r++)
            if (memcmp(got + r * len, whole + r * row + at, len) != 0)
                fail_msg("round %d: row %d of columns [%d, +%d) of %d", round, (int)r, (int)at, (int)len, (int)row);
        arena_free(a);
    }
    files_free(f);
}

/* All of one source slice: no window, its extents as they are, so nothing is read piecemeal. */
static void test_whole_slice(void **state)
{
    struct arena *a = arena_new(0);
    struct tmap_slice s[2] = { { .len = 40, .row_part = 4, .n_extents = 1, .extent = &(struct extent){ 0, 0, 40 } },
                               { .len = 60, .row_part = 6, .n_extents = 1, .extent = &(struct extent){ 0, 40, 60 } } };
    struct tmap m = { .op = TMAP_INTERLEAVE, .dtype = DTYPE_U8, .len = 100, .row = 10, .n_slices = 2, .slice = s };
    struct tmap *c = tmap_slice_columns(a, &m, 10, 4, 6);

    (void)state;
    assert_int_equal(c->op, TMAP_CONCAT);
    assert_int_equal(c->n_slices, 1);
    assert_int_equal(c->slice[0].window_row, 0);
    assert_ptr_equal(c->slice[0].extent, s[1].extent);
    arena_free(a);
}

static void test_zeros(void **state)
{
    static unsigned char got[200000];
    struct arena *a = arena_new(0);
    struct files *f = files_new();
    struct err e = {0};
    int record = -1;

    (void)state;
    for (uint64_t len = 1; len <= sizeof got; len = len * 7 + 3) {
        struct tmap *z = tmap_slice_zeros(a, f, &record, DTYPE_F32, len);

        memset(got, 1, sizeof got);
        assert_int_equal(z->len, len);
        assert_int_equal(tmap_read(z, f, (struct tmap_range){ 0, 0, len }, got, &e), 0);
        for (uint64_t i = 0; i < len; i++)
            assert_int_equal(got[i], 0);
    }
    assert_int_equal(files_n_records(f), 1);
    files_free(f);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns), cmocka_unit_test(test_whole_slice), cmocka_unit_test(test_zeros),
    };

    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(rand() >> 7);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
