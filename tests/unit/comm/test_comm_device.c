/*
 * test_comm_device.c - collectives and messages of device buffers, on a device of threads (fakedev.h)
 *
 * Streams run concurrently with the host and with each other, so wrong ordering and deadlocks become visible.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/comm/comm.h"
#include "tests/lib/commcheck.h"
#include "tests/lib/fakedev.h"
#include "tests/lib/ranks.h"

/* A delay that is long compared with those that a busy machine causes for a thread that need not wait. */
enum { DELAY_MS = 800 };
static const double soon_s = 0.4;

static struct comm_world *open_world(struct fakenet *n, bool prompt, double hang_s)
{
    const struct comm_options o = { .hang_timeout_s = hang_s };
    struct comm_world *w;
    struct err e = {0};

    if (comm_world_open(&o, &w, &e) < 0) {
        fprintf(stderr, "open: %s\n", e.msg);
        exit(97);
    }
    comm_use_device(w, fakenet_open(n, prompt));
    return w;
}

static int close_world(struct comm_world *w)
{
    comm_use_device(w, NULL);
    comm_world_close(w);
    return 0;
}

/* Each test's ranks have their own net. */
static void run_ranks(int size, rank_fn *fn)
{
    struct fakenet *n = fakenet_new();

    if (!ranks_run(size, fn, n))
        fail_msg("%d ranks: see above", size);
}

/* ---- everything that comm.h promises of any transport ---- */

static int do_all(int rank, int size, void *arg)
{
    struct comm_world *w = open_world(arg, true, 60);
    struct err e = {0};

    (void)rank;
    EXPECT(commcheck_all(w, size == 2 ? COMMCHECK_USUAL : COMMCHECK_BRIEF, &e) == 0);
    return close_world(w);
}

static void test_everything(void **state)
{
    static const int sizes[] = { 1, 2, 3, 5 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        run_ranks(sizes[i], do_all);
}

/* ---- in the caller's stream ---- */

static void fill(float *x, int n, float v)
{
    for (int i = 0; i < n; i++)
        x[i] = v;
}

static bool all_are(const float *x, int n, float v)
{
    for (int i = 0; i < n; i++)
        if (!(x[i] == v))
            return false;
    return true;
}

/* Calls only queue: their work runs after earlier work of the stream and before later work. */
static int do_queue(int rank, int size, void *arg)
{
    enum { N = 20000 };
    struct comm_world *w = open_world(arg, false, 60);
    struct comm *all = comm_world_group(w);
    struct dev_stream *s = fakedev.stream_new();
    struct err e = {0};
    float *x = xcalloc(N, 4), *y = xcalloc(N, 4), *z = xcalloc(N, 4), *parts = xcalloc((size_t)N * (size_t)size, 4);
    double since;

    /* The first call makes the link and may wait for that. */
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, y, 1, DTYPE_F32, COMM_SUM }, s,
                           &e) == 0 && comm_sync(all, s, &e) == 0);
    fill(z, N, (float)(rank + 1));
    since = ranks_now_s();
    fakedev_delay(s, DELAY_MS);
    fakedev.copy(x, z, N * 4, s);
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, y, N, DTYPE_F32, COMM_SUM }, s, &e) == 0);
    EXPECT(comm_all_gather(all, &(struct comm_data){ .in = x, .out = parts, .n = N, .t = DTYPE_F32 }, s, &e) == 0);
    fakedev.zero(x, N * 4, s);
    EXPECT(comm_broadcast(all, &(struct comm_data){ .out = x, .n = N, .t = DTYPE_F32 }, size - 1, s, &e) == 0);
    EXPECT(ranks_now_s() - since < soon_s);
    EXPECT(y[0] == 0 && parts[0] == 0);
    EXPECT(comm_sync(all, s, &e) == 0);
    EXPECT(ranks_now_s() - since > 0.9e-3 * DELAY_MS);
    EXPECT(all_are(y, N, (float)(size * (size + 1) / 2)));
    for (int r = 0; r < size; r++)
        EXPECT(all_are(parts + r * N, N, (float)(r + 1)));
    EXPECT(all_are(x, N, 0));
    fakedev.stream_free(s);
    free(x);
    free(y);
    free(z);
    free(parts);
    return close_world(w);
}

static void test_queue(void **state)
{
    (void)state;
    run_ranks(2, do_queue);
    run_ranks(3, do_queue);
}

/* ---- concurrently with the stream ---- */

static int do_beside(int rank, int size, void *arg)
{
    enum { PART = 5000 };
    struct comm_world *w = open_world(arg, false, 60);
    struct comm *all = comm_world_group(w), *one = comm_create(w, "one", &rank, 1, &(struct err){0});
    struct dev_stream *s = fakedev.stream_new(), *other = fakedev.stream_new();
    struct comm_req *req[3] = { NULL, NULL, NULL };
    struct err e = {0};
    const int n = PART * size;
    float *x = xcalloc((size_t)n, 4), *y = xcalloc((size_t)n, 4), *z = xcalloc((size_t)n, 4);
    double since;

    EXPECT(comm_all_reduce_start(all, &(struct comm_data){ x, y, 1, DTYPE_F32, COMM_SUM }, s, &req[0], &e) == 0);
    EXPECT(fakenet_last_sms() > 0);     /* it leaves SMs for other work */
    EXPECT(comm_wait(&req[0], s, &e) == 0 && req[0] == NULL && comm_sync(all, s, &e) == 0);

    /* The work runs after the work queued before it ... */
    for (int i = 0; i < n; i++)
        z[i] = (float)(i % 1000 + rank);
    since = ranks_now_s();
    fakedev_delay(s, DELAY_MS);
    fakedev.copy(x, z, (uint64_t)n * 4, s);
    EXPECT(comm_reduce_scatter_start(all, &(struct comm_data){ x, x + rank * PART, PART, DTYPE_F32, COMM_SUM }, s,
                                     &req[0], &e) == 0);
    EXPECT(comm_all_gather_start(all, &(struct comm_data){ .in = x + rank * PART, .out = x, .n = PART, .t = DTYPE_F32 },
                                 s, &req[1], &e) == 0);
    EXPECT(comm_all_reduce_start(all, &(struct comm_data){ z, y, n, DTYPE_F32, COMM_SUM }, s, &req[2], &e) == 0);
    EXPECT(ranks_now_s() - since < soon_s && req[0] && req[1] && req[2]);
    /* ... but not before later work: `other` has all of it while s waits. */
    fakedev_delay(s, 3 * DELAY_MS);
    for (int i = 0; i < 3; i++)
        EXPECT(comm_wait(&req[i], other, &e) == 0 && req[i] == NULL);
    EXPECT(comm_sync(all, other, &e) == 0);
    EXPECT(ranks_now_s() - since > 0.9e-3 * DELAY_MS && ranks_now_s() - since < 3e-3 * DELAY_MS);
    for (int i = 0; i < n; i++)
        EXPECT(x[i] == (float)(size * (i % 1000) + size * (size - 1) / 2) && y[i] == x[i]);
    EXPECT(comm_sync(all, s, &e) == 0);

    /* comm_wait() delays the work that is queued after it. */
    if (rank == 0)
        fakedev_delay(s, DELAY_MS);
    EXPECT(comm_all_reduce_start(all, &(struct comm_data){ z, y, n, DTYPE_F32, COMM_MAX }, s, &req[0], &e) == 0);
    EXPECT(comm_wait(&req[0], s, &e) == 0);
    fakedev.copy(x, y, (uint64_t)n * 4, s);
    EXPECT(comm_sync(all, s, &e) == 0);
    for (int i = 0; i < n; i++)
        EXPECT(x[i] == (float)(i % 1000 + size - 1));

    /* An empty reduction starts no request. */
    EXPECT(comm_all_reduce_start(all, &(struct comm_data){ z, y, 0, DTYPE_F32, COMM_SUM }, s, &req[0],
                                 &e) == 0 && !req[0]);
    EXPECT(comm_all_gather_start(one, &(struct comm_data){ .in = z, .out = x, .n = n, .t = DTYPE_F32 }, s, &req[0],
                                 &e) == 0 && !req[0]);
    EXPECT(comm_sync(all, s, &e) == 0 && memcmp(x, z, (size_t)n * 4) == 0);
    comm_close(one);
    fakedev.stream_free(s);
    fakedev.stream_free(other);
    free(x);
    free(y);
    free(z);
    return close_world(w);
}

static void test_beside(void **state)
{
    (void)state;
    run_ranks(2, do_beside);
    run_ranks(3, do_beside);
}

/* Memory is shared if all members can share it, otherwise by none. Collectives work in either case. */
static int do_share(int rank, int size, void *arg)
{
    struct comm_world *w = open_world(arg, true, 60);
    struct comm *all = comm_world_group(w), *one = comm_create(w, "one", &rank, 1, &(struct err){0});
    struct comm_req *req = NULL;
    struct err e = {0};
    float x[100] = {0};

    for (int i = 0; i < 4; i++) {
        /* No rank, all but one that cannot offer, all but one that cannot share, every rank. */
        fakenet_can_share(i > 1 || (i == 1 && rank != 1), i == 3 || (i == 2 && rank != 0));
        EXPECT(comm_share(all, x, sizeof x, 64, &e) == 0);
        EXPECT(fakenet_shares() == (i == 3));
        fill(x, 100, 1);
        EXPECT(comm_all_reduce_start(all, &(struct comm_data){ x, x, 100, DTYPE_F32, COMM_SUM }, NULL, &req, &e) == 0);
        EXPECT(comm_wait(&req, NULL, &e) == 0 && all_are(x, 100, (float)size));
    }
    EXPECT(comm_share(one, x, sizeof x, 64, &e) == 0);
    comm_close(one);
    return close_world(w);
}

static void test_share(void **state)
{
    (void)state;
    run_ranks(3, do_share);
}

/* ---- messages ---- */

/* Neighbours send to each other at the same time, with more than one message in progress. Buffers are filled and
 * read in the stream. */
static int do_messages(int rank, int size, void *arg)
{
    enum { N = 12345, DEEP = 3, ROUNDS = 20 };
    struct comm_world *w = open_world(arg, false, 60);
    struct comm *all = comm_world_group(w);
    struct dev_stream *s = fakedev.stream_new();
    struct comm_req *out[DEEP] = { NULL }, *in[DEEP] = { NULL };
    struct err e = {0};
    const int other = rank ^ 1;
    static float send[DEEP][N], recv[DEEP][N], source[ROUNDS][N], got[ROUNDS][N];

    if (other >= size)
        return close_world(w);
    for (int i = 0; i < ROUNDS; i++)
        fill(source[i], N, (float)(100 * rank + i));
    for (int i = 0; i < ROUNDS; i++) {
        const int k = i % DEEP;

        EXPECT(comm_wait(&out[k], s, &e) == 0);
        if (i % 7 == rank)
            fakedev_delay(s, 20);
        fakedev.copy(send[k], source[i], sizeof send[k], s);
        EXPECT(comm_send_start(all, &(struct comm_data){ .in = send[k], .n = N, .t = DTYPE_F32 }, other, s, &out[k],
                               &e) == 0);
        EXPECT(comm_recv_start(all, &(struct comm_data){ .out = recv[k], .n = N, .t = DTYPE_F32 }, other, s, &in[k],
                               &e) == 0);
        EXPECT(comm_wait(&in[k], s, &e) == 0);
        fakedev.copy(got[i], recv[k], sizeof recv[k], s);
        fakedev.zero(recv[k], sizeof recv[k], s);
    }
    for (int k = 0; k < DEEP; k++)
        EXPECT(comm_wait(&out[k], s, &e) == 0);
    EXPECT(comm_sync(all, s, &e) == 0);
    for (int i = 0; i < ROUNDS; i++)
        EXPECT(all_are(got[i], N, (float)(100 * other + i)));
    fakedev.stream_free(s);
    return close_world(w);
}

/* A large send waits until it is received, while the host and the caller's stream continue. */
static int do_patience(int rank, int size, void *arg)
{
    enum { N = 100000 };
    struct comm_world *w = open_world(arg, false, 60);
    struct comm *all = comm_world_group(w);
    struct dev_stream *s = fakedev.stream_new();
    struct comm_req *req = NULL;
    struct err e = {0};
    float *x = xcalloc(N, 4);
    double since;

    (void)size;
    EXPECT((rank ? comm_recv_start(all, &(struct comm_data){ .out = x, .n = 1, .t = DTYPE_F32 }, 0, s, &req, &e)
                 : comm_send_start(all, &(struct comm_data){ .in = x, .n = 1, .t = DTYPE_F32 }, 1, s, &req, &e)) == 0);
    EXPECT(comm_wait(&req, s, &e) == 0 && comm_barrier(all, s, &e) == 0);
    since = ranks_now_s();
    if (rank == 0) {
        fill(x, N, 7);
        EXPECT(comm_send_start(all, &(struct comm_data){ .in = x, .n = N, .t = DTYPE_F32 }, 1, s, &req, &e) == 0);
        EXPECT(comm_sync(all, s, &e) == 0 && ranks_now_s() - since < soon_s);
        EXPECT(comm_wait(&req, s, &e) == 0);
        EXPECT(comm_sync(all, s, &e) == 0 && ranks_now_s() - since > 0.9e-3 * DELAY_MS);
    } else {
        usleep(DELAY_MS * 1000);
        EXPECT(comm_recv_start(all, &(struct comm_data){ .out = x, .n = N, .t = DTYPE_F32 }, 0, s, &req, &e) == 0);
        EXPECT(comm_wait(&req, s, &e) == 0 && comm_sync(all, s, &e) == 0 && all_are(x, N, 7));
    }
    fakedev.stream_free(s);
    free(x);
    return close_world(w);
}

static void test_messages(void **state)
{
    (void)state;
    run_ranks(2, do_messages);
    run_ranks(4, do_messages);
    run_ranks(2, do_patience);
}

/*
 * Rank 0 receives more data than the connections hold. It receives everything before it queues its part of the
 * operation that the others' devices wait for. While they wait, the remaining data must continue to leave.
 */
static int do_loose(int rank, int size, void *arg)
{
    enum { PIECES = 400 };
    struct comm_world *w = open_world(arg, false, 20);
    struct comm *all = comm_world_group(w);
    char *piece = xcalloc(COMM_HOST_MAX, 1);
    struct err e = {0};
    float x[10] = {0};

    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL, &e) == 0 &&
           comm_barrier(all, NULL, &e) == 0);
    for (int i = 0; i < PIECES; i++)
        for (int r = 1; r < size; r++) {
            piece[0] = (char)(i + r);
            if (rank == r)
                EXPECT(comm_host_send(all, piece, COMM_HOST_MAX, 0, &e) == 0);
            if (rank == 0)
                EXPECT(comm_host_recv(all, piece, COMM_HOST_MAX, r, &e) == 0 && piece[0] == (char)(i + r));
        }
    x[0] = 1;
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL, &e) == 0);
    EXPECT(comm_sync(all, NULL, &e) == 0 && x[0] == (float)size);
    free(piece);
    return close_world(w);
}

static void test_loose(void **state)
{
    (void)state;
    run_ranks(3, do_loose);
}

/* ---- who waits for whom ---- */

/* Rank 0's device is slow. The streams of the others wait in a collective or for a concurrent one. With `prompt`
 * the host waits, too. */
static int times(int rank, struct fakenet *n, bool prompt)
{
    enum { ROUNDS = 4, SLOW_MS = 150 };
    struct comm_world *w = open_world(n, prompt, 60);
    struct comm *all = comm_world_group(w);
    struct dev_stream *s = prompt ? NULL : fakedev.stream_new();
    struct comm_req *req = NULL;
    struct err e = {0};
    float x[100] = {0};
    double waited;

    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 1, DTYPE_F32, COMM_SUM }, s,
                           &e) == 0 && comm_barrier(all, s, &e) == 0);
    EXPECT(comm_all_reduce_start(all, &(struct comm_data){ x, x, 1, DTYPE_F32, COMM_SUM }, s, &req,
                                 &e) == 0 && comm_wait(&req, s, &e) == 0);
    EXPECT(comm_barrier(all, s, &e) == 0);
    comm_time_waits(w);
    waited = comm_seconds_waiting(w);
    for (int i = 0; i < ROUNDS; i++) {
        fakedev_delay(s, rank == 0 ? SLOW_MS : 1);
        if (i % 2) {
            EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 100, DTYPE_F32, COMM_SUM }, s, &e) == 0);
        } else {
            EXPECT(comm_all_reduce_start(all, &(struct comm_data){ x, x, 100, DTYPE_F32, COMM_SUM }, s, &req, &e) == 0);
            EXPECT(comm_wait(&req, s, &e) == 0);
        }
    }
    EXPECT(comm_sync(all, s, &e) == 0);
    waited = comm_seconds_waiting(w) - waited;
    if (waited < (rank == 0 ? 0 : 0.8e-3) * SLOW_MS * ROUNDS ||
        waited > (rank == 0 ? 0.3e-3 : 1.4e-3) * SLOW_MS * ROUNDS) {
        fprintf(stderr, "rank %d has waited %.3f s\n", rank, waited);
        return 1;
    }
    fakedev.stream_free(s);
    return close_world(w);
}

static int do_times(int rank, int size, void *arg)
{
    (void)size;
    return times(rank, arg, false);
}

static int do_prompt_times(int rank, int size, void *arg)
{
    (void)size;
    return times(rank, arg, true);
}

static void test_times(void **state)
{
    (void)state;
    run_ranks(3, do_times);
    run_ranks(3, do_prompt_times);
}

/* ---- errors ---- */

static int do_errors(int rank, int size, void *arg)
{
    struct comm_world *w = open_world(arg, false, 60);
    struct comm *all = comm_world_group(w);
    struct err e = {0};
    float x[10] = {0};

    (void)rank;
    (void)size;
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL,
                           &e) == 0 && comm_barrier(all, NULL, &e) == 0);
    /* An error at once names the call (the first made the link) and the message of the net. */
    fakenet_refuse("fake 1.0, group world: unhandled error: out of rooms");
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL, &e) == -1);
    EXPECT(strcmp(e.msg, "all_reduce #4 of group world: fake 1.0, group world: unhandled error: out of rooms") == 0);
    err_clear(&e);
    /* An error after queuing is reported to the rank that waits for the device. */
    fakenet_fail("fake 1.0, group world: remote process has exited");
    EXPECT(comm_sync(all, NULL, &e) == -1);
    EXPECT(strcmp(e.msg, "fake 1.0, group world: remote process has exited") == 0);
    err_clear(&e);
    EXPECT(comm_barrier(all, NULL, &e) == 0);
    fakedev_fail("cuda 3 (fake, GPU-1, 0000:1b:00.0): queued work: an illegal memory access was encountered");
    EXPECT(comm_barrier(all, NULL, &e) == -1);
    EXPECT(strstr(e.msg, "GPU-1, 0000:1b:00.0): queued work: an illegal"));
    err_clear(&e);
    EXPECT(comm_barrier(all, NULL, &e) == 0);
    return close_world(w);
}

static void test_errors(void **state)
{
    (void)state;
    run_ranks(2, do_errors);
}

/* The net reports a lost peer while a rank waits for its device: the job ends and the message names the GPU. */
static int do_lost(int rank, int size, void *arg)
{
    struct comm_world *w = open_world(arg, false, 60);
    struct comm *all = comm_world_group(w);
    struct err e = {0};
    char name[40];
    float x[10] = {0};

    (void)size;
    snprintf(name, sizeof name, "GPU-%d at 0000:%02d:00.0", rank, rank);
    EXPECT(comm_name_device(w, name, &e) == 0);
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL,
                           &e) == 0 && comm_barrier(all, NULL, &e) == 0);
    if (rank != 1) {
        sleep(60);
        return 0;
    }
    EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL, &e) == 0);
    fakenet_fail("fake 1.0, group world: remote error");
    if (comm_sync(all, NULL, &e) < 0)
        comm_abort(w, 1, e.msg);
    return 0;
}

/* Expect that the job ends within `seconds`, with status 1 on every rank. Returns the output. */
static char *expect_failure(int size, rank_fn *fn, double seconds)
{
    struct ranks j;
    char *said;
    bool in_time;

    ranks_start(&j, size, fn, fakenet_new());
    in_time = ranks_wait(&j, seconds);
    said = ranks_said(&j);
    for (int r = 0; r < size; r++)
        if (!in_time || !WIFEXITED(j.status[r]) || WEXITSTATUS(j.status[r]) != 1)
            fail_msg("rank %d did not end with status 1; said:\n%s", r, said);
    ranks_end(&j);
    return said;
}

static void expect_words(const char *said, const char *want)
{
    if (!strstr(said, want))
        fail_msg("expected to read '%s' in:\n%s", want, said);
}

static void test_lost(void **state)
{
    char *said = expect_failure(3, do_lost, 20);

    (void)state;
    expect_words(said, "rank 1 (host ");
    expect_words(said, ", GPU-1 at 0000:01:00.0) failed: fake 1.0, group world: remote error");
    free(said);
}

/* Rank 2 never reaches the third all_reduce (the 5th call: names and the link used one each). The others wait in
 * it. */
static int do_hang(int rank, int size, void *arg)
{
    struct comm_world *w = open_world(arg, false, 1);
    struct comm *all = comm_world_group(w);
    struct err e = {0};
    float x[10] = {0};

    (void)size;
    EXPECT(comm_name_device(w, rank == 2 ? "GPU-two at 0000:02:00.0" : "", &e) == 0);
    for (int i = 0; i < 3; i++) {
        watch_phase(comm_watch(w), rank == 2 && i == 2 ? "optimizer" : "forward", 17, -1);
        if (rank == 2 && i == 2)
            sleep(60);
        EXPECT(comm_all_reduce(all, &(struct comm_data){ x, x, 10, DTYPE_F32, COMM_SUM }, NULL, &e) == 0);
        if (comm_sync(all, NULL, &e) < 0)
            comm_abort(w, 1, e.msg);
    }
    return 0;
}

static void test_hang(void **state)
{
    char *said = expect_failure(3, do_hang, 20), *headline = said;

    (void)state;
    expect_words(said, "\n");
    *strchr(headline, '\n') = '\0';
    expect_words(headline,
                 " has waited 1 s in all_reduce #5 of group world, in forward of iteration 17; rank 2 (host ");
    expect_words(headline, ", GPU-two at 0000:02:00.0) is in optimizer of iteration 17 since");
    expect_words(headline + strlen(headline) + 1, "rank 1 (host ");
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything), cmocka_unit_test(test_queue), cmocka_unit_test(test_beside),
        cmocka_unit_test(test_share), cmocka_unit_test(test_messages), cmocka_unit_test(test_loose),
        cmocka_unit_test(test_times), cmocka_unit_test(test_errors), cmocka_unit_test(test_lost),
        cmocka_unit_test(test_hang),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
