/* test_tile.c - tensors divided into random boxes, compared with their own elements; invalid tilings */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/plan/tmap_slice.h"

enum { MAX_CHUNKS = 64, MAX_ELEMS = 4096 };

/* Element i of the tensor is the number i; the chunks' records hold their elements row by row. */
struct made {
    int64_t shape[TENSOR_MAX_DIM];
    struct tile_tensor tensor;
    struct tile_chunk chunk[MAX_CHUNKS];
    int64_t at[MAX_CHUNKS][TENSOR_MAX_DIM], len[MAX_CHUNKS][TENSOR_MAX_DIM];
    struct extent extent[MAX_CHUNKS][2];
    uint32_t bytes[MAX_CHUNKS][MAX_ELEMS];
    int n, n_elems;
    struct files *files;
    struct arena *arena;
};

static int below(int n)
{
    return n > 0 ? rand() % n : 0;
}

/* Cut the box anywhere, again and again; now and then a side of it is empty. */
static void cut(struct made *m, const int64_t *at, const int64_t *len, int depth)
{
    int d = below(m->tensor.ndim);

    if (depth > 0 && m->tensor.ndim > 0 && m->n < MAX_CHUNKS / 2) {
        int64_t first[TENSOR_MAX_DIM], second[TENSOR_MAX_DIM], behind[TENSOR_MAX_DIM];
        int64_t part = below((int)len[d] + 1);

        memcpy(first, len, sizeof first);
        memcpy(second, len, sizeof second);
        memcpy(behind, at, sizeof behind);
        first[d] = part;
        second[d] = len[d] - part;
        behind[d] = at[d] + part;
        cut(m, at, first, depth - 1);
        cut(m, behind, second, depth - 1);
        return;
    }
    memcpy(m->at[m->n], at, sizeof m->at[m->n]);
    memcpy(m->len[m->n], len, sizeof m->len[m->n]);
    m->chunk[m->n] = (struct tile_chunk){ .at = m->at[m->n], .len = m->len[m->n] };
    m->n++;
}

/* The tensor's number of element i of the chunk. */
static uint32_t element(const struct made *m, const struct tile_chunk *c, int i)
{
    int64_t place = 0, stride = 1;

    for (int d = m->tensor.ndim - 1; d >= 0; d--) {
        place += (c->at[d] + i % c->len[d]) * stride;
        i /= (int)c->len[d];
        stride *= m->shape[d];
    }
    return (uint32_t)place;
}

static void fill(struct made *m, int k)
{
    struct tile_chunk *c = &m->chunk[k];
    int n = 1, half;

    for (int d = 0; d < m->tensor.ndim; d++)
        n *= (int)c->len[d];
    for (int i = 0; i < n; i++)
        m->bytes[k][i] = element(m, c, i);
    half = below(n + 1);
    for (int x = 0; x < 2; x++)
        m->extent[k][x] = (struct extent){
            .record = files_add_record(m->files, &(struct record){
                .file = files_add_mem(m->files, m->bytes[k] + (x ? half : 0), 4 * (uint64_t)(x ? n - half : half), "m"),
                .len = 4 * (uint64_t)(x ? n - half : half), .name = "r" }),
            .len = 4 * (uint64_t)(x ? n - half : half) };
    c->extent = m->extent[k];
    c->n_extents = 2;
}

static void make(struct made *m, int seed)
{
    static const int64_t start[TENSOR_MAX_DIM];

    srand((unsigned)seed);
    memset(m, 0, sizeof *m);
    m->files = files_new();
    m->arena = arena_new(0);
    m->tensor = (struct tile_tensor){ DTYPE_F32, below(6), m->shape };
    m->n_elems = 1;
    for (int d = 0; d < m->tensor.ndim; d++)
        m->n_elems *= (int)(m->shape[d] = 1 + below(m->tensor.ndim > 2 ? 5 : 20));
    cut(m, start, m->shape, below(5));
    for (int i = m->n - 1; i > 0; i--) {        /* in any order */
        struct tile_chunk t = m->chunk[i];
        int k = below(i + 1);

        m->chunk[i] = m->chunk[k];
        m->chunk[k] = t;
    }
    for (int k = 0; k < m->n; k++)
        fill(m, k);
}

static void end(struct made *m)
{
    arena_free(m->arena);
    files_free(m->files);
}

static void test_read(void **state)
{
    static struct made m;
    static uint32_t out[MAX_ELEMS];
    int n_boxes = 0;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct tile_flaw flaw;
        struct tmap *map;
        struct err e = {0};
        int from, len;

        make(&m, round);
        map = tile_map(m.arena, &m.tensor, m.chunk, m.n, &flaw);
        assert_non_null(map);
        n_boxes += map->op == TMAP_BOXES;
        assert_int_equal(map->len, 4 * m.n_elems);
        from = below(m.n_elems + 1);
        len = below(m.n_elems - from + 1);
        assert_int_equal(tmap_read(map, m.files, (struct tmap_range){ 0, 4 * (uint64_t)from, 4 * (uint64_t)len }, out,
                                   &e), 0);
        for (int i = 0; i < len; i++)
            if (out[i] != (uint32_t)(from + i))
                fail_msg("round %d: element %d is %u", round, from + i, out[i]);
        end(&m);
    }
    assert_true(n_boxes > 500);
}

/* Pieces cut short anywhere still cover each byte once. */
static void test_pieces(void **state)
{
    static struct made m;
    static unsigned char seen[4 * MAX_ELEMS];

    (void)state;
    for (int round = 0; round < 1000; round++) {
        struct tile_flaw flaw;
        struct tmap *map;
        struct tmap_cursor c;
        struct tmap_piece p;
        uint64_t from, len, n = 0;

        make(&m, round);
        map = tile_map(m.arena, &m.tensor, m.chunk, m.n, &flaw);
        from = (uint64_t)below((int)map->len + 1);
        len = (uint64_t)below((int)(map->len - from) + 1);
        memset(seen, 0, sizeof seen);
        tmap_begin(&c, map, from, len, -1);
        while (tmap_next(&c, 1 + (uint64_t)below(70), &p))
            for (uint64_t i = 0; i < p.src.len; i++) {
                uint64_t dst = p.dst + i / p.run * p.stride + i % p.run;

                assert_true(dst < len && !seen[dst]);
                seen[dst] = 1;
                n++;
            }
        assert_int_equal(n, len);
        end(&m);
    }
}

/* Each row as a tensor of its own; too many chunks are none. */
static void test_rows(void **state)
{
    static struct made m;
    static uint32_t out[MAX_ELEMS];

    (void)state;
    for (int round = 0; round < 1000; round++) {
        struct tile_tensor row;
        struct tile_chunk *c;
        struct tile_flaw flaw;
        struct err e = {0};
        int *first = NULL, *none = NULL, n;

        make(&m, round);
        row = (struct tile_tensor){ m.tensor.dtype, m.tensor.ndim - 1, m.shape + 1 };
        c = m.tensor.ndim ? tile_rows(m.arena, &m.tensor, m.chunk, m.n, MAX_ELEMS * MAX_CHUNKS, &first) : NULL;
        n = m.tensor.ndim ? m.n_elems / (int)m.shape[0] : 0;
        for (int r = 0; c && r < m.shape[0]; r++) {
            struct tmap *map = tile_map(m.arena, &row, c + first[r], first[r + 1] - first[r], &flaw);

            assert_non_null(map);
            assert_int_equal(map->len, 4 * n);
            assert_int_equal(tmap_read(map, m.files, (struct tmap_range){ 0, 0, map->len }, out, &e), 0);
            for (int i = 0; i < n; i++)
                if (out[i] != (uint32_t)(r * n + i))
                    fail_msg("round %d: row %d, element %d is %u", round, r, i, out[i]);
        }
        if (c)
            assert_null(tile_rows(m.arena, &m.tensor, m.chunk, m.n, m.shape[0] - 1, &none));
        free(c);
        free(first);
        end(&m);
    }
}

/* Some columns of each row. */
static void test_columns(void **state)
{
    static struct made m;
    static uint32_t out[MAX_ELEMS];

    (void)state;
    for (int round = 0; round < 1000; round++) {
        struct tile_flaw flaw;
        struct tmap *map, *columns;
        struct err e = {0};
        int rows, row, at, len;

        make(&m, round);
        map = tile_map(m.arena, &m.tensor, m.chunk, m.n, &flaw);
        rows = m.tensor.ndim ? (int)m.shape[0] : 1;
        row = m.n_elems / rows;
        at = below(row);
        len = 1 + below(row - at);
        columns = tmap_slice_columns(m.arena, map, 4 * (uint64_t)row, 4 * (uint64_t)at, 4 * (uint64_t)len);
        assert_int_equal(columns->len, 4 * rows * len);
        assert_int_equal(tmap_read(columns, m.files, (struct tmap_range){ 0, 0, columns->len }, out, &e), 0);
        for (int i = 0; i < rows * len; i++)
            assert_int_equal(out[i], i / len * row + at + i % len);
        end(&m);
    }
}

static void test_flaws(void **state)
{
    static const int64_t shape[2] = { 4, 6 };
    struct tile_tensor t = { DTYPE_F32, 2, shape };
    int64_t at[3][2] = { { 0, 0 }, { 0, 3 }, { 2, 3 } }, len[3][2] = { { 4, 3 }, { 2, 3 }, { 2, 3 } };
    struct tile_chunk c[3] = { { .at = at[0], .len = len[0] }, { .at = at[1], .len = len[1] },
                               { .at = at[2], .len = len[2] } };
    struct arena *a = arena_new(0);
    struct tile_flaw flaw = {0};

    (void)state;
    assert_non_null(tile_map(a, &t, c, 3, &flaw));
    assert_null(tile_map(a, &t, c, 2, &flaw));
    assert_int_equal(flaw.what, TILE_GAP);
    assert_int_equal(flaw.n_missing, 6);
    at[2][0] = 1;
    assert_null(tile_map(a, &t, c, 3, &flaw));
    assert_int_equal(flaw.what, TILE_OVERLAP);
    assert_int_equal(flaw.chunk + flaw.other, 3);
    at[2][0] = 3;
    assert_null(tile_map(a, &t, c, 3, &flaw));
    assert_int_equal(flaw.what, TILE_OUTSIDE);
    assert_int_equal(flaw.chunk, 2);
    /* An empty one may stand at the very end, and is none of these. */
    at[2][0] = 2;
    memcpy(at[1], (int64_t[]){ 4, 0 }, sizeof at[1]);
    memcpy(len[1], (int64_t[]){ 0, 6 }, sizeof len[1]);
    assert_null(tile_map(a, &t, c, 3, &flaw));
    assert_int_equal(flaw.what, TILE_GAP);
    arena_free(a);
}

/* A number, twice; and a tensor without elements. */
static void test_small(void **state)
{
    static const int64_t none[1] = { 0 };
    struct tile_tensor number = { DTYPE_F32, 0, none }, empty = { DTYPE_F32, 1, none };
    struct extent x = { .len = 4 };
    struct tile_chunk c[2] = { { none, none, 1, &x }, { none, none, 1, &x } };
    struct arena *a = arena_new(0);
    struct tile_flaw flaw = {0};
    struct tmap *m;

    (void)state;
    assert_non_null(m = tile_map(a, &number, c, 1, &flaw));
    assert_int_equal(m->len, 4);
    assert_null(tile_map(a, &number, c, 2, &flaw));
    assert_int_equal(flaw.what, TILE_OVERLAP);
    assert_null(tile_map(a, &number, c, 0, &flaw));
    assert_int_equal(flaw.what, TILE_GAP);
    assert_non_null(m = tile_map(a, &empty, c, 1, &flaw));
    assert_int_equal(m->len, 0);
    assert_int_equal(m->n_slices, 0);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read), cmocka_unit_test(test_pieces), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_columns), cmocka_unit_test(test_flaws), cmocka_unit_test(test_small),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
