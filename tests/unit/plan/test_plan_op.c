/* test_plan_op.c - items whose elements are converted during the copy: fp32 to bf16 and fp16 */
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

enum { ELEMS = 300000, DST_BYTES = 1 << 20 };

static char scratch[] = "/tmp/shardkit-plan-op-XXXXXX";
static float values[ELEMS];
static uint16_t want[2][ELEMS];         /* bf16, fp16 */

static char *in_scratch(const char *name)
{
    return path_join(scratch, name);
}

/* Every kind of number: ties, subnormals, infinities, NaN, and what rounds up to infinity. */
static void make_values(void)
{
    static const uint32_t special[] = {
        0x3f808000, 0x3f818000, 0x3f80ffff, 0x00000001, 0x80008000, 0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff,
        0x7f7fffff, 0x80000000, 0x33000000, 0x477ff000, 0x387fe000,
    };

    for (int i = 0; i < ELEMS; i++) {
        uint32_t u = (uint32_t)rand() * 2654435761u;

        if (i % 10 == 0)
            u = special[(size_t)(i / 10) % (sizeof special / sizeof *special)];
        memcpy(&values[i], &u, sizeof u);
        want[0][i] = f32_to_bf16(values[i]);
        want[1][i] = f32_to_f16(values[i]);
    }
}

struct job {
    enum plan_op op;
    int first, n;                       /* elements */
    uint64_t dst_at;
    uint64_t chunk;
    bool buffered, replicas;
};

static struct seen {
    unsigned char bytes[2 * ELEMS];
    _Atomic uint64_t n;
} seen;

static int look(void *ctx, const struct plan_item *it, uint64_t from, const void *p, uint64_t len, struct err *e)
{
    (void)ctx;
    (void)e;
    if (it->user) {
        memcpy(seen.bytes + from, p, len);
        seen.n += len;
    }
    return 0;
}

static void run_job(const struct job *j, const char *src, const char *dst)
{
    struct files *f = files_new();
    struct err e = {0};
    int file = files_add_path(f, src, &e), fd = open(dst, O_RDWR | O_CREAT | O_TRUNC, 0666);
    int rec = files_add_record(f, &(struct record){ .file = file, .len = sizeof values, .has_crc = true,
                                                    .crc = crc_bytes(0, values, sizeof values), .name = "data/0" });
    struct extent x = { rec, 0, sizeof values };
    struct tmap_slice s[2] = { { .len = sizeof values, .n_extents = 1, .extent = &x },
                               { .len = sizeof values, .n_extents = 1, .extent = &x } };
    struct tmap m = { .op = j->replicas ? TMAP_REPLICAS : TMAP_CONCAT, .dtype = DTYPE_F32, .len = sizeof values,
                      .n_slices = j->replicas ? 2 : 1, .slice = s };
    struct plan *p = plan_new(f);
    struct exec_opts o = { .threads = 2, .mem_bytes = 8 << 20, .chunk_bytes = j->chunk, .buffered = j->buffered,
                           .look = look };
    const uint16_t *right = want[j->op == PLAN_F32_TO_F16] + j->first;
    unsigned char *got = xmalloc(DST_BYTES);
    uint64_t len = 2 * (uint64_t)j->n;
    struct exec_stats st;
    int i;

    assert_true(file >= 0 && ftruncate(fd, DST_BYTES) == 0);
    i = plan_add(p, &(struct plan_range){ .map = &m, .from = 4 * (uint64_t)j->first, .len = 4 * (uint64_t)j->n,
                                          .policy = REPLICAS_FAIL, .name = "w", .user = &seen }, plan_add_dst(p, dst),
                 j->dst_at);
    plan_item(p, i)->op = j->op;
    plan_close(p);
    assert_int_equal(plan_write_bytes(p), len);
    seen.n = 0;
    if (exec_run(p, &o, &st, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(st.write_bytes, len);
    assert_int_equal(plan_check_records(p, &e), 0);
    assert_int_equal(plan_item(p, i)->crc.acc, crc_bytes(0, right, len));
    assert_int_equal(plan_item(p, i)->crc.seen, len);
    assert_int_equal(pread(fd, got, DST_BYTES, 0), DST_BYTES);
    assert_memory_equal(got + j->dst_at, right, len);
    for (uint64_t k = 0; k < DST_BYTES; k++)
        if ((k < j->dst_at || k >= j->dst_at + len) && got[k])
            fail_msg("byte %d outside the item was written", (int)k);
    assert_int_equal(seen.n, len);
    assert_memory_equal(seen.bytes + 2 * (uint64_t)j->first, right, len);
    close(fd);
    free(got);
    plan_free(p);
    files_free(f);
}

static void test_conversions(void **state)
{
    static const struct { int first, n; uint64_t dst_at; } ranges[] = {
        { 0, ELEMS, 0 }, { 0, ELEMS, 4096 }, { 7, 299990, 64 }, { 1, 100, 4094 }, { 100000, 70001, 8190 }, { 5, 1, 2 },
    };
    char *src = in_scratch("src"), *dst = in_scratch("dst");

    (void)state;
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (int v = 0; v < 16; v++)
            run_job(&(struct job){ .op = v & 1 ? PLAN_F32_TO_BF16 : PLAN_F32_TO_F16, .first = ranges[r].first,
                                   .n = ranges[r].n, .dst_at = ranges[r].dst_at, .buffered = v & 2, .replicas = v & 4,
                                   .chunk = v & 8 ? 1 << 20 : 65536 }, src, dst);
    free(src);
    free(dst);
}

static int begin(void **state)
{
    FILE *f;
    char *src;

    (void)state;
    if (!mkdtemp(scratch))
        return -1;
    make_values();
    src = in_scratch("src");
    f = fopen(src, "w");
    free(src);
    return !f || fwrite(values, 1, sizeof values, f) != sizeof values || fclose(f) != 0;
}

static int end(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_conversions) };

    return cmocka_run_group_tests(tests, begin, end);
}
