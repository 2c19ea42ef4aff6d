/* test_plan.c - plans without files: which bytes count once, which gaps are filled, and the totals */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/plan.h"

enum { LEN = 1000 };
static unsigned char data[LEN];

struct world {
    struct files *files;
    struct plan *plan;
    int record;
};

static struct world new_world(bool has_crc, uint32_t crc_error)
{
    struct world w = { .files = files_new() };
    int file = files_add_mem(w.files, data, LEN, "a.pt");

    /* Add another record before it, so that numbers and indices cannot be confused. */
    files_add_record(w.files, &(struct record){ .file = file, .len = 10, .has_crc = true, .crc = 0, .name = "data/0" });
    w.record = files_add_record(w.files, &(struct record){ .file = file, .len = LEN, .has_crc = has_crc,
                                                           .crc = crc_bytes(0, data, LEN) ^ crc_error,
                                                           .name = "data/3" });
    w.plan = plan_new(w.files);
    return w;
}

static void end_world(struct world *w)
{
    plan_free(w->plan);
    files_free(w->files);
}

/* An item of one extent. The map belongs to the caller. */
struct one {
    struct extent x;
    struct tmap_slice s;
    struct tmap m;
};

static int add_one(struct world *w, struct one *o, uint64_t at, uint64_t len, const char *name)
{
    o->x = (struct extent){ w->record, at, len };
    o->s = (struct tmap_slice){ .len = len, .n_extents = 1, .extent = &o->x };
    o->m = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = len, .n_slices = 1, .slice = &o->s };
    return plan_add(w->plan, &(struct plan_range){ .map = &o->m, .len = len, .policy = REPLICAS_FIRST, .name = name },
                    -1, 0);
}

/* Do the work of an executor, one byte range at a time. Returns the first failure. */
static int play(struct world *w, uint64_t most, struct err *e)
{
    for (int i = 0; i < plan_n(w->plan); i++) {
        const struct plan_item *it = plan_item(w->plan, i);
        struct tmap_cursor c;
        struct tmap_piece pc;

        if (it->done)
            continue;
        tmap_begin(&c, it->map, it->from, it->len, -1);
        while (tmap_next(&c, most, &pc))
            for (uint64_t skip = 0, n; skip < pc.src.len; skip += n) {
                struct extent x;
                bool counts;

                n = plan_counted(w->plan, i, &pc, skip, &counts);
                assert_true(n > 0 && n <= pc.src.len - skip);
                x = (struct extent){ pc.src.record, pc.src.at + skip, n };
                if (counts && plan_record_add(w->plan, i, &x, crc_bytes(0, data + x.at, n), e) < 0)
                    return -1;
            }
    }
    return 0;
}

static void test_gaps(void **state)
{
    struct world w = new_world(true, 0);
    struct err e = {0};
    struct one a, b;

    (void)state;
    add_one(&w, &a, 100, 200, "a");
    add_one(&w, &b, 500, 400, "b");
    plan_close(w.plan);
    assert_int_equal(plan_n(w.plan), 3);
    const struct plan_item *gap = plan_item(w.plan, 2);

    assert_string_equal(gap->name, "padding of data/3 in a.pt");
    assert_int_equal(gap->len, 100 + 200 + 100);
    assert_int_equal(gap->dst, -1);
    assert_int_equal(gap->number, 2);
    assert_int_equal(plan_read_bytes(w.plan), LEN);
    assert_int_equal(plan_write_bytes(w.plan), 0);
    assert_int_equal(plan_check_records(w.plan, &e), -1);
    assert_string_equal(e.msg, "a.pt: at byte 0: record data/3: 0 of 1000 bytes were checked");
    err_clear(&e);
    assert_int_equal(play(&w, 7, &e), 0);
    assert_int_equal(plan_check_records(w.plan, &e), 0);
    end_world(&w);
}

static void test_no_crc_no_gaps(void **state)
{
    struct world w = new_world(false, 0);
    struct err e = {0};
    struct one a;

    (void)state;
    add_one(&w, &a, 100, 200, "a");
    plan_close(w.plan);
    assert_int_equal(plan_n(w.plan), 1);
    assert_int_equal(play(&w, 64, &e), 0);
    assert_int_equal(plan_check_records(w.plan, &e), 0);
    end_world(&w);
}

static void test_corrupt(void **state)
{
    struct world w = new_world(true, 1);
    struct err e = {0};
    struct one a;
    char want[200];

    (void)state;
    add_one(&w, &a, 0, LEN, "3.w fp32");
    plan_close(w.plan);
    assert_int_equal(play(&w, 300, &e), -1);
    snprintf(want, sizeof want,
             "a.pt: at byte 0: record data/3 is corrupt (crc %08x, expected %08x), read for 3.w fp32",
             crc_bytes(0, data, LEN), crc_bytes(0, data, LEN) ^ 1);
    assert_string_equal(e.msg, want);
    assert_int_equal(e.kind, ERR_DATA);
    err_clear(&e);
    assert_int_equal(plan_check_records(w.plan, &e), -1);
    end_world(&w);
}

/* Whichever item completes the record, the first item that reads it is named. */
static void test_corrupt_of_two(void **state)
{
    struct world w = new_world(true, 1);
    struct err e = {0};
    struct one a, b;

    (void)state;
    add_one(&w, &a, 0, 400, "first");
    add_one(&w, &b, 400, LEN - 400, "second");
    plan_close(w.plan);
    assert_int_equal(play(&w, 300, &e), -1);
    assert_non_null(strstr(e.msg, "read for first"));
    end_world(&w);
}

/* Random reads with any overlaps, in one item or several: every byte counts once. */
static void test_overlaps(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 500; seed++) {
        struct world w = new_world(true, 0);
        struct one many[6];
        struct extent x[5];
        struct tmap_slice s[2] = { { .extent = x }, { .extent = x + 2 } };
        struct tmap m = { .op = TMAP_CONCAT, .n_slices = 2, .slice = s };
        struct err e = {0};
        int n = 1 + (int)(seed % 6);
        uint64_t sum = 0;

        srand(seed);
        for (int i = 0; i < n; i++) {
            uint64_t at = (uint64_t)rand() % LEN;

            add_one(&w, &many[i], at, 1 + (uint64_t)rand() % (LEN - at), "one");
        }
        /* One item reads a record, including the same bytes twice, through several extents and slices. */
        for (int i = 0; i < 5; i++) {
            x[i] = (struct extent){ w.record, (uint64_t)rand() % 500, (uint64_t)rand() % 500 };
            s[i >= 2].len += x[i].len;
            s[i >= 2].n_extents++;
            if (i && seed % 3 == 0)
                x[i].at = x[0].at;
        }
        m.len = s[0].len + s[1].len;
        plan_add(w.plan, &(struct plan_range){ .map = &m, .len = m.len, .policy = REPLICAS_FIRST, .name = "several" },
                 -1, 0);
        plan_close(w.plan);
        assert_int_equal(play(&w, seed % 2 ? UINT64_MAX : 1 + seed % 50, &e), 0);
        assert_int_equal(plan_check_records(w.plan, &e), 0);
        for (int i = 0; i < plan_n(w.plan); i++) {
            int n_parts;
            struct plan_part *part = plan_item_parts(w.plan, i, &n_parts);

            assert_true(n_parts <= 1);
            sum += n_parts ? part->sum.seen : 0;
        }
        assert_int_equal(sum, LEN);
        end_world(&w);
    }
}

/* A resumed run adds the parts of the completed items, runs the rest, and gets the same sums. */
static void test_resume(void **state)
{
    static const uint64_t cut[] = { 0, 170, 400, 950 };
    struct world w[2] = { new_world(true, 0), new_world(true, 0) };
    struct one o[2][3];
    struct err e = {0};
    int n;

    (void)state;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 3; i++)
            add_one(&w[k], &o[k][i], cut[i], cut[i + 1] - cut[i] + 30, "o");
        plan_close(w[k].plan);
    }
    assert_int_equal(play(&w[0], 40, &e), 0);
    for (int i = 0; i < 2; i++) {
        struct plan_part *was = plan_item_parts(w[0].plan, i, &n);

        assert_int_equal(n, 1);
        plan_item(w[1].plan, i)->done = true;
        crc_sum_merge(plan_record_sum(w[1].plan, was->record), was->sum.seen, was->sum.acc);
    }
    assert_int_equal(plan_read_bytes(w[1].plan), plan_read_bytes(w[0].plan) - (170 + 30) - (230 + 30));
    assert_int_equal(play(&w[1], 64, &e), 0);
    assert_int_equal(plan_check_records(w[1].plan, &e), 0);
    end_world(&w[0]);
    end_world(&w[1]);
}

/* Three processes share a plan. Overlaps count once among all of them, and only together do they detect a wrong
 * CRC. */
static void test_shared(void **state)
{
    enum { N = 3 };

    (void)state;
    for (uint32_t wrong = 0; wrong < 2; wrong++) {
        struct plan_seen seen[N];
        struct world w[N];
        struct one o[N][3];
        struct err e = {0};
        int rc = 0;

        for (int k = 0; k < N; k++) {
            w[k] = new_world(true, wrong);
            add_one(&w[k], &o[k][0], 0, 400, "a");
            add_one(&w[k], &o[k][1], 300, 300, "b");
            add_one(&w[k], &o[k][2], 500, 450, "c");
            plan_close(w[k].plan);
            assert_int_equal(plan_mark(w[k].plan, ""), plan_mark(w[0].plan, ""));
            for (int i = 0; i < plan_n(w[k].plan); i++)
                plan_item(w[k].plan, i)->done = i % N != k;
            assert_int_equal(play(&w[k], 70, &e), 0);
            assert_int_equal(plan_seen(w[k].plan, NULL), 1);
            assert_int_equal(plan_seen(w[k].plan, &seen[k]), 1);
        }
        assert_int_equal(seen[0].bytes + seen[1].bytes + seen[2].bytes, LEN);
        for (int k = 1; k < N && rc == 0; k++)
            rc = plan_seen_add(w[0].plan, &seen[k], &e);
        assert_int_equal(rc, wrong ? -1 : 0);
        assert_int_equal(strncmp(e.msg, "a.pt: at byte 0: record data/3 is corrupt", wrong ? 41 : 0), 0);
        if (!wrong)
            assert_int_equal(plan_check_records(w[0].plan, &e), 0);
        for (int k = 0; k < N; k++)
            end_world(&w[k]);
    }
    struct world other = new_world(true, 0), one_less = new_world(true, 1);
    struct one a, b;

    add_one(&other, &a, 0, 400, "a");
    add_one(&one_less, &b, 0, 400, "a");
    plan_close(other.plan);
    plan_close(one_less.plan);
    assert_int_not_equal(plan_mark(other.plan, ""), plan_mark(one_less.plan, ""));
    end_world(&other);
    end_world(&one_less);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gaps), cmocka_unit_test(test_no_crc_no_gaps), cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_corrupt_of_two),
        cmocka_unit_test(test_overlaps), cmocka_unit_test(test_resume), cmocka_unit_test(test_shared),
    };

    for (int i = 0; i < LEN; i++)
        data[i] = (unsigned char)(i * 37 + i / 256);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
