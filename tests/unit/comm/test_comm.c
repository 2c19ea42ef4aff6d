/* test_comm.c - groups, collectives and messages over TCP, in forked ranks; the arithmetic of a reduction */
#include <math.h>
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
#include "libcommon/comm/comm.h"
#include "libcommon/comm/reduce.h"
#include "tests/lib/commcheck.h"
#include "tests/lib/ranks.h"

static int open_world(struct comm_world **w, struct err *e)
{
    if (comm_world_open(NULL, w, e) == 0)
        return 0;
    fprintf(stderr, "open: %s\n", e->msg);
    return -1;
}

/* ---- arithmetic ---- */

static uint16_t bf16_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f32_to_bf16(f);
}

static void test_bf16_rounds_once(void **state)
{
    /* 1 + 2^-8 + 2^-8: each step alone would round back to 1. */
    uint16_t one = 0x3f80, small = bf16_of(0x3b800000), a[3] = {one, one, small}, b[3] = {small, 0x7f80, small};
    uint16_t c[3] = {small, 0xff80, one}, out[3];
    const void *in[3] = {a, b, c};

    (void)state;
    reduce_ranks(out, in, 3, 3, DTYPE_BF16, COMM_SUM);
    assert_int_equal(out[0], 0x3f81);
    assert_true(isnan(bf16_to_f32(out[1])));
    assert_int_equal(out[2], 0x3f81);
    reduce_ranks(out, in, 3, 3, DTYPE_BF16, COMM_MAX);
    assert_int_equal(out[0], one);
    assert_int_equal(out[1], 0x7f80);
}

/* Every 16-bit value is unchanged by a sum with -0, and every fp32 is rounded as base does it. */
static void check_all_values(enum dtype t, float (*widen)(uint16_t), uint16_t (*narrow)(float))
{
    uint16_t *x = xmalloc(65536 * 2), *other = xmalloc(65536 * 2), *out = xmalloc(65536 * 2);
    const void *in[2] = {x, other};

    for (int i = 0; i < 65536; i++) {
        x[i] = (uint16_t)i;
        other[i] = 0x8000;
    }
    reduce_ranks(out, in, 2, 65536, t, COMM_SUM);
    for (int i = 0; i < 65536; i++) {
        if (isnan(widen(x[i])))
            assert_true(isnan(widen(out[i])));
        else
            assert_int_equal(out[i], i);
    }
    for (int i = 0; i < 65536; i++)
        other[i] = (uint16_t)(i * 40503);
    reduce_ranks(out, in, 2, 65536, t, COMM_SUM);
    for (int i = 0; i < 65536; i++) {
        float sum = widen(x[i]) + widen(other[i]);

        if (isnan(sum))
            assert_true(isnan(widen(out[i])));
        else
            assert_int_equal(out[i], narrow(sum));
    }
    free(x);
    free(other);
    free(out);
}

static void test_16_bits_all_values(void **state)
{
    (void)state;
    check_all_values(DTYPE_BF16, bf16_to_f32, f32_to_bf16);
    check_all_values(DTYPE_F16, f16_to_f32, f32_to_f16);
}

static void test_order_and_wrap(void **state)
{
    float a[2] = {1e8f, 1}, b[2] = {1, NAN}, c[2] = {-1e8f, 3}, out[2];
    int64_t i[2] = {INT64_MAX, -5}, j[2] = {1, -7}, k[2];
    uint8_t u[2] = {200, 3}, v[2] = {100, 9}, m[2];

    (void)state;
    reduce_ranks(out, (const void *[]){a, b, c}, 3, 2, DTYPE_F32, COMM_SUM);
    assert_true(out[0] == 0);           /* (1e8 + 1) - 1e8: not 1, because 1e8 + 1 is 1e8 */
    assert_true(isnan(out[1]));
    reduce_ranks(out, (const void *[]){a, c, b}, 3, 2, DTYPE_F32, COMM_SUM);
    assert_true(out[0] == 1);
    reduce_ranks(out, (const void *[]){a, b, c}, 3, 2, DTYPE_F32, COMM_MAX);
    assert_true(out[0] == 1e8f && isnan(out[1]));
    reduce_ranks(out, (const void *[]){b, a, c}, 3, 2, DTYPE_F32, COMM_MAX);
    assert_true(isnan(out[1]));
    reduce_ranks(k, (const void *[]){i, j}, 2, 2, DTYPE_I64, COMM_SUM);
    assert_true(k[0] == INT64_MIN && k[1] == -12);
    reduce_ranks(k, (const void *[]){i, j}, 2, 2, DTYPE_I64, COMM_MAX);
    assert_true(k[0] == INT64_MAX && k[1] == -5);
    reduce_ranks(m, (const void *[]){u, v}, 2, 2, DTYPE_U8, COMM_SUM);
    assert_true(m[0] == 44 && m[1] == 12);
}

/* ---- collectives ---- */

static int do_collectives(int rank, int size, void *arg)
{
    struct err e = {0};
    struct comm_world *w;

    EXPECT(open_world(&w, &e) == 0);
    EXPECT(comm_place(w)->rank == rank && comm_place(w)->size == size);
    EXPECT(comm_place(w)->local_size == size && comm_place(w)->n_nodes == 1);
    EXPECT(comm_place_of(w, size - 1)->rank == size - 1 && comm_place_of(w, rank)->pid == (long)getpid());
    EXPECT(commcheck_all(w, *(enum commcheck_size *)arg, &e) == 0);
    comm_world_close(w);
    return 0;
}

static void test_collectives(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        enum commcheck_size check = sizes[i] == 3 ? COMMCHECK_LARGE : COMMCHECK_USUAL;

        assert_true(ranks_run(sizes[i], do_collectives, &check));
    }
}

/* More members than exchange data pairwise: small sums use doubling steps. */
static int do_many(int rank, int size, void *arg)
{
    struct err e = {0};
    struct comm_world *w;
    int64_t want = 0;

    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    for (int r = 0; r < size; r++)
        want += r * 1000003;
    for (int n = 1; n < 3000; n = n * 5 + 1) {
        int64_t *x = xmalloc((size_t)n * sizeof *x);

        for (int i = 0; i < n; i++)
            x[i] = rank * 1000003;
        EXPECT(comm_all_reduce(comm_world_group(w), &(struct comm_data){ x, x, n, DTYPE_I64, COMM_SUM }, NULL,
                               &e) == 0);
        for (int i = 0; i < n; i++)
            EXPECT(x[i] == want);
        free(x);
    }
    EXPECT(commcheck_collectives(comm_world_group(w), COMMCHECK_BRIEF, &e) == 0);
    for (int i = 0; i < 20; i++)
        EXPECT(comm_barrier(comm_world_group(w), NULL, &e) == 0);
    comm_world_close(w);
    return 0;
}

static void test_many_ranks(void **state)
{
    (void)state;
    assert_true(ranks_run(19, do_many, NULL));
}

/* A barrier holds all ranks until the last has arrived. */
static int do_barrier(int rank, int size, void *arg)
{
    double came, left;                  /* one clock for all ranks; a wait is short for a rank that begins it late */
    struct err e = {0};
    struct comm_world *w;

    (void)size;
    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    EXPECT(comm_barrier(comm_world_group(w), NULL, &e) == 0);
    if (rank == 1)
        usleep(300000);
    came = ranks_now_s();
    EXPECT(comm_barrier(comm_world_group(w), NULL, &e) == 0);
    left = ranks_now_s();
    EXPECT(comm_host_broadcast(comm_world_group(w), &came, sizeof came, 1, &e) == 0);
    EXPECT(left > came);
    comm_world_close(w);
    return 0;
}

static void test_barrier(void **state)
{
    (void)state;
    assert_true(ranks_run(4, do_barrier, NULL));
}

/* ---- messages ---- */

enum { BIG = 4 << 20, MANY = 500 };

/*
 * Both ranks send 4 MB to each other before either receives. Then many small messages are in transit while
 * collectives of two groups run. Then they are received in order.
 */
static int do_messages(int rank, int size, void *arg)
{
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    struct comm_req *s = NULL, *r = NULL, *sent[MANY] = {0};
    struct err e = {0};
    struct comm_world *w;
    struct comm *all;
    char *out = xmalloc(BIG), *in = xmalloc(BIG);
    int32_t words[MANY], word;

    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    all = comm_world_group(w);
    memset(out, rank + 1, BIG);
    EXPECT(comm_send_start(all, &(struct comm_data){ .in = out, .n = BIG, .t = DTYPE_U8 }, next, NULL, &s, &e) == 0);
    EXPECT(comm_recv_start(all, &(struct comm_data){ .out = in, .n = BIG, .t = DTYPE_U8 }, before, NULL, &r, &e) == 0);
    EXPECT(comm_wait(&s, NULL, &e) == 0 && comm_wait(&r, NULL, &e) == 0 && !s && !r);
    for (int i = 0; i < BIG; i++)
        EXPECT(in[i] == before + 1);
    EXPECT(comm_wait(&s, NULL, &e) == 0);

    for (int i = 0; i < MANY; i++) {
        words[i] = rank * MANY + i;
        EXPECT(comm_send_start(all, &(struct comm_data){ .in = &words[i], .n = 1, .t = DTYPE_I32 }, next, NULL,
                               &sent[i], &e) == 0);
        if (i % 200 == 0)
            EXPECT(commcheck_collectives(all, COMMCHECK_BRIEF, &e) == 0);
    }
    for (int i = 0; i < MANY; i++) {
        EXPECT(comm_recv_start(all, &(struct comm_data){ .out = &word, .n = 1, .t = DTYPE_I32 }, before, NULL, &r,
                               &e) == 0);
        EXPECT(comm_wait(&r, NULL, &e) == 0);
        EXPECT(word == before * MANY + i);
    }
    for (int i = 0; i < MANY; i++)
        EXPECT(comm_wait(&sent[i], NULL, &e) == 0);
    EXPECT(commcheck_pipeline(all, 100, &e) == 0);
    comm_world_close(w);
    free(out);
    free(in);
    return 0;
}

static void test_messages(void **state)
{
    (void)state;
    assert_true(ranks_run(2, do_messages, NULL));
    assert_true(ranks_run(4, do_messages, NULL));
}

/*
 * A long message has arrived in part, because a message of another group after it was waited for. Its receive is
 * started only then.
 */
static int do_overtaken(int rank, int size, void *arg)
{
    const int both[] = {0, 1};
    struct comm_req *long_one = NULL, *short_one = NULL;
    struct err e = {0};
    struct comm_world *w;
    struct comm *a, *b;
    uint8_t *x = xmalloc(4 * BIG), word = 7;

    (void)size;
    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    EXPECT((a = comm_create(w, "a", both, 2, &e)) && (b = comm_create(w, "b", both, 2, &e)));
    for (int i = 0; i < 4 * BIG; i++)
        x[i] = rank ? 0 : (uint8_t)(i * 31 >> 3);
    if (rank == 0) {
        EXPECT(comm_send_start(a, &(struct comm_data){ .in = x, .n = 4 * BIG, .t = DTYPE_U8 }, 1, NULL, &long_one,
                               &e) == 0);
        EXPECT(comm_send_start(b, &(struct comm_data){ .in = &word, .n = 1, .t = DTYPE_U8 }, 1, NULL, &short_one,
                               &e) == 0);
    } else {
        word = 0;
        EXPECT(comm_recv_start(b, &(struct comm_data){ .out = &word, .n = 1, .t = DTYPE_U8 }, 0, NULL, &short_one,
                               &e) == 0);
        usleep(100000);
        EXPECT(comm_recv_start(a, &(struct comm_data){ .out = x, .n = 4 * BIG, .t = DTYPE_U8 }, 0, NULL, &long_one,
                               &e) == 0);
    }
    EXPECT(comm_wait(&short_one, NULL, &e) == 0 && word == 7);
    EXPECT(comm_wait(&long_one, NULL, &e) == 0);
    for (int i = 0; i < 4 * BIG; i++)
        EXPECT(x[i] == (uint8_t)(i * 31 >> 3));
    comm_close(a);
    comm_close(b);
    comm_world_close(w);
    free(x);
    return 0;
}

static void test_overtaken(void **state)
{
    (void)state;
    assert_true(ranks_run(2, do_overtaken, NULL));
}

/* Receives are started together and waited for in another order. */
static int do_out_of_order(int rank, int size, void *arg)
{
    struct comm_req *q[3] = {0};
    struct err e = {0};
    struct comm_world *w;
    struct comm *all;
    int32_t x[3] = {10, 20, 30};

    (void)size;
    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    all = comm_world_group(w);
    for (int i = 0; i < 3; i++)
        EXPECT((rank ? comm_recv_start(all, &(struct comm_data){ .out = &x[i], .n = 1, .t = DTYPE_I32 }, 0, NULL, &q[i],
                                       &e)
                     : comm_send_start(all, &(struct comm_data){ .in = &x[i], .n = 1, .t = DTYPE_I32 }, 1, NULL, &q[i],
                                       &e)) == 0);
    for (int i = 2; i >= 0; i--)
        EXPECT(comm_wait(&q[i], NULL, &e) == 0);
    EXPECT(x[0] == 10 && x[1] == 20 && x[2] == 30);
    comm_world_close(w);
    return 0;
}

static void test_out_of_order(void **state)
{
    (void)state;
    assert_true(ranks_run(2, do_out_of_order, NULL));
}

/* Host values: a send takes a copy and returns, however late the receiver is. */
static int do_host(int rank, int size, void *arg)
{
    struct err e = {0};
    struct comm_world *w;
    struct comm *all;
    char *big = xmalloc(COMM_HOST_MAX + 1);
    char all_of[8 * 3], own[3] = {(char)rank, 'x', 'y'};

    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    all = comm_world_group(w);
    for (int i = 0; i < 40; i++) {
        memset(big, rank + i, COMM_HOST_MAX);
        EXPECT(comm_host_send(all, big, COMM_HOST_MAX, (rank + 1) % size, &e) == 0);
    }
    for (int i = 0; i < 40; i++) {
        EXPECT(comm_host_recv(all, big, COMM_HOST_MAX, (rank + size - 1) % size, &e) == 0);
        EXPECT(big[0] == (char)((rank + size - 1) % size + i) && big[COMM_HOST_MAX - 1] == big[0]);
    }
    EXPECT(comm_host_send(all, NULL, 0, (rank + 1) % size, &e) == 0);
    EXPECT(comm_host_recv(all, NULL, 0, (rank + size - 1) % size, &e) == 0);
    EXPECT(comm_host_all_gather(all, own, all_of, sizeof own, &e) == 0);
    for (int r = 0; r < size; r++)
        EXPECT(all_of[3 * r] == r && all_of[3 * r + 2] == 'y');
    EXPECT(comm_host_broadcast(all, own, sizeof own, size - 1, &e) == 0 && own[0] == size - 1);
    EXPECT(comm_host_send(all, big, COMM_HOST_MAX + 1, (rank + 1) % size, &e) < 0 && e.kind == ERR_USAGE);
    /* A message that no rank has received when the world closes would be an error. This one is received. */
    if (rank == 0)
        EXPECT(comm_host_send(all, "bye", 4, 1, &(struct err){0}) == 0);
    if (rank == 1)
        EXPECT(comm_host_recv(all, big, 4, 0, &(struct err){0}) == 0 && strcmp(big, "bye") == 0);
    comm_world_close(w);
    free(big);
    return 0;
}

static void test_host_values(void **state)
{
    (void)state;
    assert_true(ranks_run(3, do_host, NULL));
}

/* ---- calls that must be refused ---- */

static int do_wrong_calls(int rank, int size, void *arg)
{
    struct err e = {0};
    struct comm_world *w;
    struct comm *c;
    struct comm_req *q;
    float x[4] = {0};
    int twice[] = {rank, rank}, far[] = {rank, size}, others[] = {(rank + 1) % size};

    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
#define REFUSED(call, text) EXPECT((call) && e.kind == ERR_USAGE && strstr(e.msg, text)); err_clear(&e)
    REFUSED(!comm_create(w, "g", twice, 2, &e), "is in it twice");
    REFUSED(!comm_create(w, "g", far, 2, &e), "group g: rank 2 does not exist");
    REFUSED(!comm_create(w, "g", others, 1, &e), "makes it but is not in it");
    c = comm_world_group(w);
    REFUSED(comm_all_reduce(c, &(struct comm_data){ x, x, 2, DTYPE_I16, COMM_SUM }, NULL, &e) < 0, "cannot reduce i16");
    REFUSED(comm_broadcast(c, &(struct comm_data){ .out = x, .n = 2, .t = DTYPE_F32 }, 2, NULL, &e) < 0, "no member 2");
    REFUSED(comm_send_start(c, &(struct comm_data){ .in = x, .n = 1, .t = DTYPE_F32 }, rank, NULL, &q,
                            &e) < 0, "no other member");
    comm_world_close(w);
    return 0;
}

static void test_wrong_calls(void **state)
{
    (void)state;
    assert_true(ranks_run(2, do_wrong_calls, NULL));
}

/* Both sides detect that their lists differ. */
static int do_lists_differ(int rank, int size, void *arg)
{
    int list[] = {0, 1, 2};
    struct err e = {0};
    struct comm_world *w;

    (void)size;
    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    EXPECT(!comm_create(w, rank == 1 ? "dp" : "tp", list, 3, &e));
    EXPECT(strstr(e.msg, "comm_create #0 of group ") && strstr(e.msg, "rank 1: makes a group with other members"));
    err_clear(&e);
    /* The world remains usable. */
    EXPECT(comm_barrier(comm_world_group(w), NULL, &e) == 0);
    comm_world_close(w);
    return 0;
}

static void test_lists_differ(void **state)
{
    (void)state;
    assert_true(ranks_run(3, do_lists_differ, NULL));
}

static int do_lengths_differ(int rank, int size, void *arg)
{
    struct err e = {0};
    struct comm_world *w;
    float x[8] = {0};

    (void)size;
    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    EXPECT(comm_all_reduce(comm_world_group(w), &(struct comm_data){ x, x, rank ? 8 : 7, DTYPE_F32, COMM_SUM }, NULL,
                           &e) < 0);
    EXPECT(strstr(e.msg, "all_reduce #1 of group world: rank "));
    EXPECT(strstr(e.msg, rank ? "rank 0: sent 28 bytes where 32 were expected" : "rank 1: sent 32 bytes where 28"));
    usleep(200000);                 /* let the other rank detect it as well, instead of this rank's end */
    _exit(0);
}

static void test_lengths_differ(void **state)
{
    struct ranks j;

    char *said;

    (void)state;
    ranks_start(&j, 2, do_lengths_differ, NULL);
    assert_true(ranks_wait(&j, 20));
    /* One rank exits first, which the other's monitor treats as a death. Neither prints "not so". */
    said = ranks_said(&j);
    assert_null(strstr(said, "not so"));
    free(said);
    ranks_end(&j);
}

/* Groups of one communicate with no other rank: one rank alone makes and uses them. */
static int do_group_of_one(int rank, int size, void *arg)
{
    struct err e = {0};
    struct comm_world *w;
    struct comm *own;
    int32_t x[2] = {rank, 7}, y[2] = {0};

    (void)size;
    (void)arg;
    EXPECT(open_world(&w, &e) == 0);
    if (rank == 1) {
        own = comm_create(w, "own", &rank, 1, &e);
        EXPECT(own && comm_size(own) == 1 && comm_rank(own) == 0);
        EXPECT(comm_all_reduce(own, &(struct comm_data){ x, y, 2, DTYPE_I32, COMM_SUM }, NULL,
                               &e) == 0 && y[0] == 1 && y[1] == 7);
        y[0] = 0;
        EXPECT(comm_reduce_scatter(own, &(struct comm_data){ x, y, 2, DTYPE_I32, COMM_SUM }, NULL,
                                   &e) == 0 && y[0] == 1);
        y[0] = 0;
        EXPECT(comm_all_gather(own, &(struct comm_data){ .in = x, .out = y, .n = 2, .t = DTYPE_I32 }, NULL,
                               &e) == 0 && y[0] == 1);
        EXPECT(comm_broadcast(own, &(struct comm_data){ .out = y, .n = 2, .t = DTYPE_I32 }, 0, NULL,
                              &e) == 0 && comm_barrier(own, NULL, &e) == 0);
        comm_close(own);
    }
    comm_world_close(w);
    return 0;
}

static void test_group_of_one(void **state)
{
    (void)state;
    assert_true(ranks_run(2, do_group_of_one, NULL));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_rounds_once), cmocka_unit_test(test_16_bits_all_values),
        cmocka_unit_test(test_order_and_wrap), cmocka_unit_test(test_collectives), cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_barrier), cmocka_unit_test(test_messages), cmocka_unit_test(test_overtaken),
        cmocka_unit_test(test_out_of_order),
        cmocka_unit_test(test_host_values), cmocka_unit_test(test_wrong_calls), cmocka_unit_test(test_lists_differ),
        cmocka_unit_test(test_lengths_differ), cmocka_unit_test(test_group_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
