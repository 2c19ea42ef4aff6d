/* test_plan_columns.c - items that distribute the columns of a matrix to several places, compared with plain loops */
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
#include "libcommon/write/journal.h"

enum { SRC_BYTES = 3 << 20, DST_BYTES = 3 << 19, MAX_OUTS = 40, MAX_EXTENTS = 12 };

static char scratch[] = "/tmp/shardkit-columns-XXXXXX";
static unsigned char source[SRC_BYTES];

static char *in_scratch(const char *name)
{
    return path_join(scratch, name);
}

struct job {
    uint64_t part;                      /* bytes of a row for each destination */
    int n_outs;
    uint64_t rows, first;               /* rows of the map, and first row of the item */
    int n_slices;                       /* slices of the source: 1, or interleaved */
    uint64_t step;                      /* destination i begins at byte i * step */
    uint64_t chunk;
    bool buffered, no_uring, halve;     /* halve: fp32 to bf16 */
};

/* The contents of the map and the places of its pieces: slices are divided into extents in reverse file order. */
struct matrix {
    struct tmap map;
    struct tmap_slice slice[4];
    struct extent x[4][MAX_EXTENTS];
    unsigned char *bytes;               /* in logical order */
};

static void make_matrix(const struct job *j, int record, struct matrix *m)
{
    uint64_t row = j->part * (uint64_t)j->n_outs, len = j->rows * row, part = row / (uint64_t)j->n_slices,
             end = SRC_BYTES;

    m->bytes = xmalloc(len);
    m->map = (struct tmap){ .op = j->n_slices > 1 ? TMAP_INTERLEAVE : TMAP_CONCAT, .dtype = DTYPE_F32, .len = len,
                            .row = row, .n_slices = j->n_slices, .slice = m->slice };
    for (int k = 0; k < j->n_slices; k++) {
        uint64_t left = len / (uint64_t)j->n_slices, at = 0;

        m->slice[k] = (struct tmap_slice){ .len = left, .row_part = part, .extent = m->x[k] };
        while (left) {
            int i = m->slice[k].n_extents++;
            uint64_t n = i == MAX_EXTENTS - 1 ? left : min_u64(left, (uint64_t)(rand() % 60000 + 1) * 4);

            end -= n;
            m->x[k][i] = (struct extent){ record, end, n };
            for (uint64_t b = 0; b < n; b++, at++)
                m->bytes[at / part * row + (uint64_t)k * part + at % part] = source[end + b];
            left -= n;
        }
    }
}

/* Return the expected bytes of destination i. */
static unsigned char *expected(const struct job *j, const struct matrix *m, int i, uint64_t *len)
{
    uint64_t row = j->part * (uint64_t)j->n_outs, rows = j->rows - j->first;
    unsigned char *to = xmalloc(rows * j->part + 1);

    for (uint64_t r = 0; r < rows; r++)
        memcpy(to + r * j->part, m->bytes + (j->first + r) * row + (uint64_t)i * j->part, j->part);
    *len = rows * j->part;
    for (uint64_t k = 0; j->halve && k < rows * j->part / 4; k++) {
        uint16_t narrow;
        float x;

        memcpy(&x, to + 4 * k, sizeof x);
        narrow = f32_to_bf16(x);
        memcpy(to + 2 * k, &narrow, sizeof narrow);
    }
    *len = j->halve ? *len / 2 : *len;
    return to;
}

static void check_outs(const struct job *j, const struct matrix *m, const struct plan_item *it, char *const *path)
{
    for (int i = 0; i < j->n_outs; i++) {
        unsigned char *got = xcalloc(1, DST_BYTES);
        uint64_t len;
        unsigned char *want = expected(j, m, i, &len);
        int fd = open(path[i], O_RDONLY);

        assert_int_equal(pread(fd, got, DST_BYTES, 0), DST_BYTES);
        assert_memory_equal(got + it->out[i].at, want, len);
        for (uint64_t k = 0; k < DST_BYTES; k++)
            if ((k < it->out[i].at || k >= it->out[i].at + len) && got[k])
                fail_msg("destination %d: byte %d outside the item was written", i, (int)k);
        assert_int_equal(it->out[i].crc.acc, crc_bytes(0, want, len));
        assert_int_equal(it->out[i].crc.seen, len);
        close(fd);
        free(want);
        free(got);
    }
}

static struct plan *make_plan(const struct job *j, struct files *f, const struct matrix *m, char *const *path)
{
    struct plan *p = plan_new(f);
    struct plan_out out[MAX_OUTS];
    uint64_t row = j->part * (uint64_t)j->n_outs;
    int i;

    for (i = 0; i < j->n_outs; i++)
        out[i] = (struct plan_out){ .dst = plan_add_dst(p, path[i]), .at = (uint64_t)i * j->step };
    i = plan_add_columns(p, &(struct plan_range){ .map = &m->map, .from = j->first * row,
                                                  .len = (j->rows - j->first) * row, .policy = REPLICAS_FAIL,
                                                  .name = "w", .user = &source }, j->part, out, j->n_outs);
    plan_item(p, i)->op = j->halve ? PLAN_F32_TO_BF16 : PLAN_COPY;
    plan_close(p);
    return p;
}

/* A later run must find the item as the journal recorded it. */
static void check_journal(const struct job *j, struct files *f, const struct matrix *m, struct plan *done,
                          char *const *path)
{
    char *dir = in_scratch("job"), *file = path_join(dir, "journal.0");
    struct plan *p = make_plan(j, f, m, path);
    bool *finished = xcalloc((size_t)plan_n(p), sizeof *finished);
    struct err e = {0};
    struct journal *log;

    assert_int_equal(dir_make(dir, &e), 0);
    unlink(file);
    log = journal_open(file, done, scratch, &e);
    assert_non_null(log);
    journal_done(log, plan_item(done, 0));
    assert_int_equal(journal_close(log, &e), 0);
    assert_int_equal(journal_load(dir, p, finished, &e), 1);
    for (int i = 0; i < j->n_outs; i++) {
        assert_int_equal(plan_item(p, 0)->out[i].crc.acc, plan_item(done, 0)->out[i].crc.acc);
        assert_int_equal(plan_item(p, 0)->out[i].crc.seen, plan_item(done, 0)->out[i].crc.seen);
    }
    assert_int_equal(plan_write_bytes(p), 0);
    plan_free(p);
    free(finished);
    free(file);
    free(dir);
}

static void run_job(const struct job *j)
{
    struct files *f = files_new();
    struct err e = {0};
    char *src = in_scratch("source"), *path[MAX_OUTS];
    int file = files_add_path(f, src, &e);
    struct exec_opts o = { .threads = 2, .mem_bytes = 8 << 20, .chunk_bytes = j->chunk, .buffered = j->buffered,
                           .no_uring = j->no_uring };
    struct matrix m = {0};
    struct plan *p;
    uint64_t row = j->part * (uint64_t)j->n_outs, len = (j->rows - j->first) * row;

    for (int i = 0; i < j->n_outs; i++) {
        char *name = str_fmt("out%d", i);

        path[i] = in_scratch(name);
        free(name);
        assert_int_equal(file_reserve(path[i], DST_BYTES, false, &e), 0);
    }
    make_matrix(j, files_add_record(f, &(struct record){ .file = file, .len = SRC_BYTES, .has_crc = true,
                                                         .crc = crc_bytes(0, source, SRC_BYTES),
                                                         .name = "data/0" }), &m);
    p = make_plan(j, f, &m, path);
    assert_int_equal(plan_write_bytes(p), j->halve ? len / 2 : len);
    if (exec_run(p, &o, NULL, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(plan_check_records(p, &e), 0);
    check_outs(j, &m, plan_item(p, 0), path);
    if (!j->halve)
        assert_int_equal(plan_item(p, 0)->crc.acc, crc_bytes(0, m.bytes + j->first * row, len));
    if (j->chunk == 65536)              /* each of its syncs is slow */
        check_journal(j, f, &m, p, path);
    plan_free(p);
    files_free(f);
    for (int i = 0; i < j->n_outs; i++)
        free(path[i]);
    free(src);
    free(m.bytes);
}

static void test_shapes(void **state)
{
    /* part, outs, rows, first row, source slices, step: sizes near those of blocks, chunks and small writes. */
    static const struct { uint64_t part; int n_outs; uint64_t rows, first; int n_slices; uint64_t step; } shapes[] = {
        { 4096, 4, 100, 0, 1, 0 }, { 4096, 4, 100, 3, 2, 4096 }, { 1024, 2, 1000, 0, 1, 64 }, { 512, 4, 1024, 1, 4, 4 },
        { 20, 3, 30000, 7, 1, 12 }, { 65536, 2, 17, 0, 1, 8 }, { 300000, 2, 4, 0, 2, 4092 }, { 4, 40, 200, 0, 1, 100 },
        { 8, 7, 1, 0, 1, 0 }, { 12288, 2, 90, 89, 1, 4100 }, { 96, 8, 3000, 5, 3, 4096 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int v = 0; v < 16; v += v == 4 || v == 5 ? 1 : 2) {
            struct job j = { .part = shapes[i].part, .n_outs = shapes[i].n_outs, .rows = shapes[i].rows,
                             .first = shapes[i].first, .n_slices = shapes[i].n_slices, .step = shapes[i].step,
                             .chunk = v == 5 ? 65536 : v & 2 ? 4096 : 0, .buffered = v & 4, .no_uring = v & 8 };

            run_job(&j);
            j.halve = true;
            run_job(&j);
        }
}

/* A destination that cannot be written fails the run once, whatever other work is in progress. */
static void test_failing_destination(void **state)
{
    struct job j = { .part = 65536, .n_outs = 4, .rows = 12, .n_slices = 1 };
    char *src = in_scratch("source"),
         *path[] = { in_scratch("out0"), in_scratch("out1"), in_scratch("gone"), in_scratch("out3") };
    struct exec_opts o = { .threads = 2, .mem_bytes = 8 << 20 };
    struct files *f = files_new();
    struct err e = {0};
    struct matrix m = {0};
    int file = files_add_path(f, src, &e);
    struct plan *p;

    (void)state;
    make_matrix(&j, files_add_record(f, &(struct record){ .file = file, .len = SRC_BYTES, .has_crc = true,
                                                          .crc = crc_bytes(0, source, SRC_BYTES),
                                                          .name = "data/0" }), &m);
    p = make_plan(&j, f, &m, path);
    assert_int_equal(exec_run(p, &o, NULL, &e), -1);
    assert_int_equal(e.kind, ERR_SYS);
    assert_non_null(strstr(e.msg, "gone: cannot open for writing"));
    plan_free(p);
    files_free(f);
    for (int i = 0; i < 4; i++)
        free(path[i]);
    free(src);
    free(m.bytes);
}

static int set_up(void **state)
{
    struct err e = {0};
    char *src;
    int rc;

    (void)state;
    if (!mkdtemp(scratch))
        return -1;
    srand(7);
    for (int i = 0; i < SRC_BYTES; i++)
        source[i] = (unsigned char)rand();
    src = in_scratch("source");
    rc = file_replace(src, source, SRC_BYTES, &e);
    free(src);
    return rc;
}

static int tear_down(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_shapes), cmocka_unit_test(test_failing_destination) };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
