/*
 * test_plan_matrix.c - items that convert elements: every conversion, transposed and not, with every division into
 * chunks
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor.h"
#include "libcommon/plan/tmap_permute.h"
#include "libcommon/plan/tmap_slice.h"

enum { ROWS = 500, COLS = 230, ELEMS = ROWS * COLS, GUARD = 4096 + 50 };

static char scratch[] = "/tmp/shardkit-plan-matrix-XXXXXX";

static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

static void put_value(enum dtype t, uint8_t *to, float v)
{
    uint16_t half = t == DTYPE_BF16 ? f32_to_bf16(v) : f32_to_f16(v);

    if (t == DTYPE_F32)
        memcpy(to, &v, sizeof v);
    else
        memcpy(to, &half, sizeof half);
}

/* Fill in the elements of the source: large and small ones, so that fp16 overflows and flushes to zero. */
static void fill(enum dtype t, uint8_t *src)
{
    for (int i = 0; i < ELEMS; i++) {
        uint32_t u = (uint32_t)i * 2654435761u;
        float scale = t == DTYPE_F16 ? 4.0f : i % 3 ? 1.0f : i % 2 ? 1e7f : 1e-12f;
        float v = ((float)(u >> 8) / (1 << 24) - 0.5f) * scale;

        put_value(t, src + (size_t)i * (size_t)dtype_size(t), v);
    }
}

static float value(enum dtype t, const uint8_t *p)
{
    return (float)dtype_value(t, p);
}

struct job {
    enum dtype from, to;
    bool transposed, buffered;
    uint64_t chunk;
    int columns;                        /* of an item */
    uint64_t dst_at;
};

static char *in_scratch(const char *name)
{
    return path_join(scratch, name);
}

struct run {
    struct files *f;
    struct arena *a;
    struct plan *p;
    struct extent x;
    struct tmap_slice slice;
    struct tmap map;
};

static void begin(struct run *r, const char *src, uint64_t bytes, enum dtype type, const void *content)
{
    struct err e = {0};
    int file;

    r->f = files_new();
    r->a = arena_new(0);
    r->p = plan_new(r->f);
    file = files_add_path(r->f, src, &e);
    assert_true(file >= 0);
    r->x = (struct extent){ files_add_record(r->f, &(struct record){ .file = file, .len = bytes, .has_crc = true,
                                                                     .crc = crc_bytes(0, content, bytes),
                                                                     .name = "data/0" }), 0,
                            bytes };
    r->slice = (struct tmap_slice){ .len = bytes, .n_extents = 1, .extent = &r->x };
    r->map = (struct tmap){ .op = TMAP_CONCAT, .dtype = type, .len = bytes, .n_slices = 1, .slice = &r->slice };
}

static void end(struct run *r)
{
    plan_free(r->p);
    files_free(r->f);
    arena_free(r->a);
}

/* Add one item for each group of columns. The transposed ones are stored one after another. */
static void add_items(struct run *r, const struct job *j)
{
    uint64_t in = (uint64_t)dtype_size(j->from), out = (uint64_t)dtype_size(j->to);

    for (int c = 0; c < COLS && j->transposed; c += j->columns) {
        uint64_t n = (uint64_t)(COLS - c < j->columns ? COLS - c : j->columns);
        const struct tmap *m = tmap_slice_columns(r->a, &r->map, COLS * in, (uint64_t)c * in, n * in);
        int i = plan_add(r->p, &(struct plan_range){ .map = m, .len = m->len, .policy = REPLICAS_FIRST, .name = "m" },
                         0, j->dst_at + (uint64_t)c * ROWS * out);

        plan_item(r->p, i)->op = (enum plan_op)plan_op_of(j->from, j->to);
        plan_item(r->p, i)->transpose_row = n * in;
    }
    if (!j->transposed)
        plan_item(r->p, plan_add(r->p, &(struct plan_range){ .map = &r->map, .len = r->map.len,
                                                             .policy = REPLICAS_FIRST, .name = "m" }, 0,
                                 j->dst_at))->op =
            (enum plan_op)plan_op_of(j->from, j->to);
}

static void check_output(struct run *r, const struct job *j, const uint8_t *src, const char *dst)
{
    uint64_t in = (uint64_t)dtype_size(j->from), out = (uint64_t)dtype_size(j->to), len = ELEMS * out, size;
    uint64_t overflow = 0, flushed = 0, counted[2] = {0};
    struct err e = {0};
    char *got = file_slurp(dst, 1 << 24, &size, &e);
    uint8_t *at;

    assert_int_equal(size, j->dst_at + len + GUARD);
    for (uint64_t i = 0; i < j->dst_at; i++)
        assert_int_equal(got[i], 0);
    for (uint64_t i = j->dst_at + len; i < size; i++)
        assert_int_equal(got[i], 0);
    at = (uint8_t *)got + j->dst_at;
    for (int row = 0; row < ROWS; row++)
        for (int col = 0; col < COLS; col++) {
            float v = value(j->from, src + (size_t)(row * COLS + col) * in);
            size_t place = (size_t)(j->transposed ? col * ROWS + row : row * COLS + col);
            uint8_t want[4];

            put_value(j->to, want, v);
            if (memcmp(want, at + place * out, out) != 0)
                fail_msg("%s to %s%s, row %d, column %d", dtype_name(j->from), dtype_name(j->to),
                         j->transposed ? " transposed" : "", row, col);
            overflow += j->to == DTYPE_F16 && (v > 65519.99f || v < -65519.99f);
            flushed += j->to == DTYPE_F16 && v != 0 && v > -2.98e-8f && v < 2.98e-8f;
        }
    for (int i = 0; i < plan_n(r->p); i++) {
        const struct plan_item *it = plan_item(r->p, i);

        if (it->dst < 0)
            continue;
        counted[0] += it->n_overflow;
        counted[1] += it->n_flushed;
        assert_int_equal(it->crc.seen, plan_out_bytes(it, it->len));
        assert_int_equal(it->crc.acc, crc_bytes(0, got + it->dst_at, plan_out_bytes(it, it->len)));
    }
    assert_int_equal(counted[0], j->from == j->to ? 0 : overflow);
    assert_int_equal(counted[1], j->from == j->to ? 0 : flushed);
    free(got);
}

static void run_job(const struct job *j)
{
    uint64_t bytes = (uint64_t)ELEMS * (uint64_t)dtype_size(j->from);
    char *src = in_scratch("src"), *dst = in_scratch("dst");
    uint8_t *content = malloc(bytes);
    struct exec_opts o = { .threads = 3, .mem_bytes = 8 << 20, .chunk_bytes = j->chunk, .buffered = j->buffered };
    struct err e = {0};
    struct run r;
    int fd;

    fill(j->from, content);
    assert_int_equal(file_replace(src, content, bytes, &e), 0);
    fd = open(dst, O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_int_equal(ftruncate(fd, (off_t)(j->dst_at + (uint64_t)ELEMS * (uint64_t)dtype_size(j->to) + GUARD)), 0);
    close(fd);
    begin(&r, src, bytes, j->from, content);
    plan_add_dst(r.p, dst);
    add_items(&r, j);
    plan_close(r.p);
    if (exec_run(r.p, &o, NULL, &e) < 0 || plan_check_records(r.p, &e) < 0)
        fail_msg("%s", e.msg);
    check_output(&r, j, content, dst);
    end(&r);
    free(content);
    free(src);
    free(dst);
}

static void test_all(void **state)
{
    static const struct { uint64_t chunk; int columns; uint64_t dst_at; } cuts[] = {
        { 0, COLS, 0 }, { 1 << 14, COLS, 6 }, { 1 << 14, 100, 4096 }, { 1 << 16, 1, 50 }, { 1 << 13, 77, 10 },
    };

    (void)state;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
                for (int v = 0; v < 3; v++)
                    run_job(&(struct job){ types[from], types[to], v != 2, v == 1, cuts[c].chunk, cuts[c].columns,
                                           cuts[c].dst_at });
}

/* A matrix of more than one tile: each tile gives its own runs. */
static void test_large(void **state)
{
    enum { LARGE_ROWS = 9001, LARGE_COLS = 2048 };
    uint64_t bytes = (uint64_t)LARGE_ROWS * LARGE_COLS * 2;
    char *src = in_scratch("src"), *dst = in_scratch("dst");
    uint16_t *content = malloc(bytes), *got = malloc(bytes);
    struct exec_opts o = { .threads = 2, .mem_bytes = 64 << 20 };
    struct err e = {0};
    struct run r;
    int fd;

    (void)state;
    for (uint64_t i = 0; i < bytes / 2; i++)
        content[i] = (uint16_t)(i * 2654435761u >> 13);
    assert_int_equal(file_replace(src, content, bytes, &e), 0);
    fd = open(dst, O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_int_equal(ftruncate(fd, (off_t)bytes + 8), 0);
    begin(&r, src, bytes, DTYPE_BF16, content);
    plan_add_dst(r.p, dst);
    plan_item(r.p, plan_add(r.p, &(struct plan_range){ .map = &r.map, .len = bytes, .policy = REPLICAS_FIRST,
                                                       .name = "m" }, 0, 8))->transpose_row = LARGE_COLS * 2;
    plan_close(r.p);
    if (exec_run(r.p, &o, NULL, &e) < 0 || plan_check_records(r.p, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(pread(fd, got, bytes, 8), bytes);
    close(fd);
    assert_int_equal(plan_item(r.p, 0)->crc.acc, crc_bytes(0, got, bytes));
    for (uint64_t row = 0; row < LARGE_ROWS; row++)
        for (uint64_t col = 0; col < LARGE_COLS; col++)
            if (got[col * LARGE_ROWS + row] != content[row * LARGE_COLS + col])
                fail_msg("row %d, column %d", (int)row, (int)col);
    end(&r);
    free(content);
    free(got);
    free(src);
    free(dst);
}

/* ---- rows in another order ---- */

static void test_permute(void **state)
{
    enum { N = 24, RUN = 5 };           /* 24 runs of 5 bytes; a permutation of them */
    uint8_t src[N * RUN], got[N * RUN];
    struct arena *a = arena_new(0);
    struct files *f = files_new();
    int rec = files_add_record(f, &(struct record){ .file = files_add_mem(f, src, sizeof src, "m"), .len = sizeof src,
                                                    .name = "r" });
    /* Borders of extents and slices that do not coincide with borders of runs. */
    struct extent x[] = { { rec, 0, 7 }, { rec, 7, 50 }, { rec, 57, 63 } };
    struct tmap_slice s[] = { { .len = 57, .n_extents = 2, .extent = x }, { .len = 63, .n_extents = 1,
                                                                            .extent = x + 2 } };
    struct tmap m = { .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = sizeof src, .n_slices = 2, .slice = s };
    int64_t from[N];
    struct tmap *p;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (uint8_t)i;
    for (int i = 0; i < N; i++)
        from[i] = (i * 7 + 3) % N;
    p = tmap_permute(a, &m, RUN, from);
    assert_int_equal(p->len, sizeof src);
    assert_int_equal(tmap_read(p, f, (struct tmap_range){ 0, 0, sizeof got }, got, &e), 0);
    for (int i = 0; i < N; i++)
        assert_memory_equal(got + i * RUN, src + from[i] * RUN, RUN);
    /* Adjacent runs that stay adjacent stay one extent. */
    for (int i = 0; i < N; i++)
        from[i] = (i + 12) % N;
    p = tmap_permute(a, &m, RUN, from);
    assert_int_equal(p->slice[0].n_extents, 2);
    files_free(f);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all), cmocka_unit_test(test_large),
                                        cmocka_unit_test(test_permute) };
    struct err e = {0};
    int rc;

    if (!mkdtemp(scratch))
        return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    return dir_remove(scratch, &e) < 0 ? 1 : rc;
}
