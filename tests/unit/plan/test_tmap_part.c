/* test_tmap_part.c - parts of tensor maps, compared with the bytes of the whole maps: every operation, one range or
 * many */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap_slice.h"

/* A tensor [LAYERS][ROWS][COLS] of bytes. */
enum { LAYERS = 3, ROWS = 12, COLS = 8, ROW = COLS, LAYER = ROWS * ROW, ALL = LAYERS * LAYER, RECORD = 4096 };

struct rig {
    struct files *files;
    struct arena *arena;
    int record;
    unsigned char bytes[RECORD];
    uint64_t used;
};

static void rig_open(struct rig *r)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < RECORD; i++)
        r->bytes[i] = (unsigned char)rand();
    r->files = files_new();
    r->arena = arena_new(0);
    r->record = files_add_record(r->files, &(struct record){ .file = files_add_mem(r->files, r->bytes, RECORD, "rig"),
                                                             .len = RECORD, .name = "rig" });
}

static void rig_close(struct rig *r)
{
    files_free(r->files);
    arena_free(r->arena);
}

/* A slice of len bytes in extents of 5 and more, apart from each other. */
static void add_slice(struct rig *r, struct tmap *m, uint64_t len)
{
    struct tmap_slice *s = &m->slice[m->n_slices++];

    *s = (struct tmap_slice){ .len = len };
    s->extent = arena_alloc(r->arena, (len + 1) * sizeof *s->extent);
    while (len) {
        uint64_t n = min_u64(len, 5 + (uint64_t)rand() % 200);

        s->extent[s->n_extents++] = (struct extent){ r->record, r->used, n };
        r->used += n + 1;
        len -= n;
    }
}

/*
 * A map of bytes with two slices. Bytes are not added up: loops over op leave out TMAP_SUM, which follows
 * TMAP_REPLICAS.
 */
static struct tmap *make(struct rig *r, enum tmap_op op)
{
    struct tmap *m = arena_alloc(r->arena, sizeof *m);

    *m = (struct tmap){ .op = op, .dtype = DTYPE_U8, .len = ALL, .row = op == TMAP_INTERLEAVE ? ROW : 0 };
    m->slice = arena_alloc(r->arena, 8 * sizeof *m->slice);
    r->used = 0;
    for (int k = 0; k < 2; k++)
        if (op == TMAP_CONCAT) {
            add_slice(r, m, k ? ALL - 100 : 100);
        } else if (op == TMAP_REPLICAS) {
            add_slice(r, m, ALL);
        } else if (op == TMAP_INTERLEAVE) {
            add_slice(r, m, LAYERS * ROWS * (k ? 5u : 3u));
            m->slice[k].row_part = k ? 5 : 3;
        } else {
            /* Of every layer the first 4 rows, and the others: as tensor ranks cut stacked layers. */
            struct tmap_box *b = arena_alloc(r->arena, sizeof *b);
            uint64_t rows = k ? ROWS - 4 : 4;

            add_slice(r, m, LAYERS * rows * ROW);
            b->n = 2;
            b->level[0] = (struct tmap_level){ LAYER, 0, LAYERS, rows * ROW };
            b->level[1] = (struct tmap_level){ 1, k ? 4 * ROW : 0, rows * ROW, 1 };
            m->slice[k].box = b;
        }
    return m;
}

static void read_all(struct rig *r, const struct tmap *m, int replica, unsigned char *buf)
{
    struct err e = {0};

    assert_int_equal(tmap_read(m, r->files, (struct tmap_range){ replica, 0, m->len }, buf, &e), 0);
}

static void compare(struct rig *r, const struct tmap_part *part, int n)
{
    unsigned char whole[ALL], want[2 * ALL], got[2 * ALL];
    const struct tmap *m = part->map, *to = tmap_parts(r->arena, part, n);
    int copies = to->op == TMAP_REPLICAS ? to->n_slices : 1;
    uint64_t len = 0;

    for (int c = 0; c < copies; c++) {
        len = 0;
        read_all(r, m, c, whole);
        for (int i = 0; i < n; len += part[i++].len)
            memcpy(want + len, whole + part[i].at, part[i].len);
        assert_int_equal(to->len, len);
        read_all(r, to, c, got);
        assert_memory_equal(got, want, len);
    }
}

static void test_one(void **state)
{
    struct rig r;

    (void)state;
    for (enum tmap_op op = TMAP_CONCAT; op <= TMAP_BOXES; op += op == TMAP_REPLICAS ? 2 : 1)
        for (int round = 0; round < 20; round++) {
            rig_open(&r);
            struct tmap *m = make(&r, op);

            for (uint64_t l = 0; l < LAYERS; l++) {
                struct tmap_part layer = { m, l * LAYER, LAYER }, rows = { m, l * LAYER + 3 * ROW, 4 * ROW };
                struct tmap_part inside = { tmap_parts(r.arena, &layer, 1), 2 * ROW, 7 * ROW };

                compare(&r, &layer, 1);
                compare(&r, &rows, 1);
                compare(&r, &inside, 1);
                /* A layer of such a tensor is as many slices as before: no extent for each row. */
                assert_int_equal(inside.map->op, op);
            }
            rig_close(&r);
        }
}

static void test_many(void **state)
{
    struct rig r;

    (void)state;
    for (enum tmap_op op = TMAP_CONCAT; op <= TMAP_BOXES; op += op == TMAP_REPLICAS ? 2 : 1) {
        struct tmap_part part[ROWS];

        rig_open(&r);
        struct tmap *m = make(&r, op);

        for (int i = 0; i < ROWS; i++)
            part[i] = (struct tmap_part){ m, (uint64_t)((i * 5) % ROWS) * ROW + LAYER, ROW };
        compare(&r, part, ROWS);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_one), cmocka_unit_test(test_many) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
