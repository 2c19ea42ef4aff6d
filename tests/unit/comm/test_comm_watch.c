/* test_comm_watch.c - ranks that die, abort, hang or are stopped: all ranks end soon, and the reason is reported */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "libcommon/comm/comm.h"
#include "tests/lib/ranks.h"

enum { SIZE = 4, GIVES_UP = 50, HANG, LOST, CRASHED };

static struct comm_world *world;
static atomic_int *n_at_work;   /* ranks that have completed a collective; shared with them */

static void on_abort(void *arg, const struct watch_end *end)
{
    int known = 0;

    (void)arg;
    for (int r = 0; end->doing && r < comm_place(world)->size; r++)
        known += end->doing[r].known && *end->doing[r].text;
    fprintf(stderr, "last words of %d: %.30s; by %d, signal %d, %d known\n", comm_place(world)->rank, end->reason,
            end->rank, end->signal, known);
}

static void on_abort_hang(void *arg, const struct watch_end *end)
{
    (void)arg;
    (void)end;
    sleep(100);
}

static void on_stall(void *arg, const char *text)
{
    (void)arg;
    fprintf(stderr, "told %d: %.300s\n", comm_place(world)->rank, text ? text : "nothing");
}

struct trouble {
    const char *what;           /* "run", "abort", "crash", "sleep", "read", "leave", "dump", "late" */
    int who;
    double hang_s, stall_s;
    bool hang_in_words;         /* on_abort does not return */
};

/* Run small collectives until a failure or signal ends the job. */
static int do_trouble(int rank, int size, void *arg)
{
    const struct trouble *t = arg;
    struct comm_options o = {.hang_timeout_s = t->hang_s, .on_abort = t->hang_in_words ? on_abort_hang : on_abort,
                             .stall_notice_s = t->stall_s, .on_stall = on_stall,
                             .statuses = { .lost = LOST, .crashed = CRASHED, .hang = HANG }};
    struct err e = {0};

    (void)size;
    if (comm_world_open(&o, &world, &e) < 0) {
        fprintf(stderr, "open: %s\n", e.msg);
        return 7;
    }
    for (int i = 0;; i++) {
        float x[100] = {0};

        watch_phase(comm_watch(world), "forward", 17, 5);
        if (rank == t->who && i == 20) {
            if (strcmp(t->what, "abort") == 0)
                comm_abort(world, GIVES_UP, "no more data");
            if (strcmp(t->what, "crash") == 0) {
                watch_crashed(comm_watch(world), SIGSEGV);
                sleep(100);
            }
            if (strcmp(t->what, "sleep") == 0)
                sleep(100);
            if (strcmp(t->what, "late") == 0)
                sleep(3);
            if (strcmp(t->what, "read") == 0) {
                watch_outside(comm_watch(world), "sample", 1234, "data/text");
                sleep(100);
            }
            if (strcmp(t->what, "leave") == 0)
                return 0;
            if (strcmp(t->what, "dump") == 0)
                watch_dump(comm_watch(world));
        }
        if (comm_all_reduce(comm_world_group(world), &(struct comm_data){ x, x, 100, DTYPE_F32, COMM_SUM }, NULL,
                            &e) < 0)
            comm_abort(world, 1, e.msg);
        if (i == 0)
            atomic_fetch_add(n_at_work, 1);
        usleep(5000);
    }
}

static void start(struct ranks *j, struct trouble t)
{
    atomic_store(n_at_work, 0);
    ranks_start(j, SIZE, do_trouble, &t);
}

/* Wait until all ranks have begun work. Returns the time in seconds from the start. */
static double all_at_work(const struct ranks *j)
{
    for (int i = 0; i < 6000 && atomic_load(n_at_work) < SIZE; i++)
        usleep(5000);
    return ranks_now_s() - j->start_s;
}

static int count(const char *text, const char *word)
{
    int n = 0;

    for (; (text = strstr(text, word)); text++)
        n++;
    return n;
}

/* Wait until `text` has been printed n times, at most 30 s. The caller checks whether it has. Returns the time as
 * above. */
static double until_said(const struct ranks *j, const char *text, int n)
{
    bool done = false;

    for (int i = 0; i < 600 && !done; i++) {
        char *said = ranks_said(j);

        done = count(said, text) >= n;
        free(said);
        usleep(50000);
    }
    return ranks_now_s() - j->start_s;
}

/* Expect that all ranks end within `seconds` of `since`, none with status 0, and that `text` was printed. */
static void expect_end(struct ranks *j, double since_s, double seconds, int spared, const char *text)
{
    bool in_time = ranks_wait(j, seconds + 20);
    char *said = ranks_said(j);

    if (!in_time)
        fail_msg("not everybody left; said:\n%s", said);
    for (int r = 0; r < SIZE; r++) {
        if (j->status[r] == 0 && r != spared)
            fail_msg("rank %d left with status 0; said:\n%s", r, said);
        if (j->ended_s[r] > since_s + seconds)
            fail_msg("rank %d left after %.1f s of %.1f; said:\n%s", r, j->ended_s[r] - since_s, seconds, said);
    }
    if (!strstr(said, text))
        fail_msg("expected to read '%s' in:\n%s", text, said);
    free(said);
}

static void expect_status(const struct ranks *j, int spared, int status)
{
    for (int r = 0; r < SIZE; r++)
        if (r != spared && (!WIFEXITED(j->status[r]) || WEXITSTATUS(j->status[r]) != status))
            fail_msg("rank %d left with wait status %#x, not with exit status %d", r, (unsigned)j->status[r], status);
}

static void kill_one(int who, int sig, const char *fmt)
{
    char host[64] = "", text[200];
    struct ranks j;
    double at;
    pid_t pid;

    gethostname(host, sizeof host - 1);
    start(&j, (struct trouble){.what = "run", .who = -1});
    at = all_at_work(&j);
    pid = j.pid[who];
    kill(pid, sig);
    snprintf(text, sizeof text, fmt, who, host, (long)pid);
    expect_end(&j, at, 5, -1, text);
    expect_status(&j, who, LOST);
    ranks_end(&j);
}

static void signal_others(const struct ranks *j, int who, int sig)
{
    for (int r = 0; r < SIZE; r++)
        if (r != who)
            kill(j->pid[r], sig);
}

/*
 * A launcher that detects the death of a rank ends the others, perhaps before they detect it themselves. Here they
 * are stopped, so they cannot. The rank that died first must be named all the same, and no other.
 */
static void test_killed_and_all_ended(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 2) {
        char text[64], *said;
        struct ranks j;
        double at;

        start(&j, (struct trouble){.what = "run", .who = -1});
        at = all_at_work(&j);
        signal_others(&j, who, SIGSTOP);
        kill(j.pid[who], SIGKILL);
        signal_others(&j, who, SIGTERM);
        signal_others(&j, who, SIGCONT);
        snprintf(text, sizeof text, "rank %d (host ", who);
        expect_end(&j, at, 6, -1, text);
        said = ranks_said(&j);
        if (count(said, " died: its connection closed without a goodbye") < 1 || count(said, " died: ") > 2)
            fail_msg("killed: %d; said:\n%s", who, said);
        for (int r = 0; r < SIZE; r++) {
            snprintf(text, sizeof text, "rank %d (host ", r);
            if (r != who && strncmp(said, text, strlen(text)) == 0)
                fail_msg("killed: %d; said:\n%s", who, said);
        }
        free(said);
        ranks_end(&j);
    }
}

/* All ranks are ended from outside: one line is printed, and each rank dies of the signal or after the line. */
static void test_all_terminated(void **state)
{
    struct ranks j;
    double at;
    char *said;

    (void)state;
    start(&j, (struct trouble){.what = "run", .who = -1});
    at = all_at_work(&j);
    signal_others(&j, -1, SIGTERM);
    expect_end(&j, at, 6, -1, ") died: SIGTERM ended it; ending the job\n");
    said = ranks_said(&j);
    assert_int_equal(count(said, " died: "), 1);
    free(said);
    ranks_end(&j);
}

static void test_killed(void **state)
{
    char *said;
    struct ranks j;
    double at;

    (void)state;
    kill_one(2, SIGKILL, "rank %d (host %s, pid %ld) died: its connection closed without a goodbye");
    kill_one(SIZE - 1, SIGINT, "rank %d (host %s, pid %ld) died: its connection closed without a goodbye");
    kill_one(SIZE - 1, SIGTERM, "rank %d (host %s, pid %ld) died: SIGTERM ended it");
    /* One line is printed, not one per rank, and all remaining ranks run their callback of the end. */
    start(&j, (struct trouble){.what = "run", .who = -1});
    at = all_at_work(&j);
    kill(j.pid[1], SIGKILL);
    expect_end(&j, at, 6, -1, "last words of 0: rank 1 (host");
    said = ranks_said(&j);
    assert_int_equal(count(said, " died: "), 1);
    assert_int_equal(count(said, "last words of"), 3);
    assert_int_equal(count(said, "; by 1, signal 0, "), 3);
    assert_int_equal(count(said, "; by 1, signal 0, 3 known"), 1);
    free(said);
    ranks_end(&j);
}

static void test_root_killed(void **state)
{
    (void)state;
    kill_one(0, SIGKILL, "rank %d (host %s, pid %ld) died: its connection closed without a goodbye");
}

/* Leaving with exit(0) in the middle counts as a death too. */
static void test_leaves(void **state)
{
    struct ranks j;

    (void)state;
    start(&j, (struct trouble){.what = "leave", .who = 1});
    expect_end(&j, 0, 15, 1, "died: its connection closed without a goodbye");
    ranks_end(&j);
}

static void test_gives_up(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 2) {
        char text[100], *said;
        struct ranks j;

        start(&j, (struct trouble){.what = "abort", .who = who});
        expect_end(&j, 0, 15, -1, ") failed: no more data\n");
        said = ranks_said(&j);
        snprintf(text, sizeof text, "rank %d (host ", who);
        assert_non_null(strstr(said, text));
        assert_int_equal(count(said, "failed: no more data\n"), 1);
        expect_status(&j, -1, GIVES_UP);
        free(said);
        ranks_end(&j);
    }
}

static void test_crashes(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 3) {
        char text[100], *said;
        struct ranks j;

        start(&j, (struct trouble){.what = "crash", .who = who});
        expect_end(&j, 0, 15, -1, ") crashed: SIGSEGV; ending the job\n");
        said = ranks_said(&j);
        snprintf(text, sizeof text, "; by %d, signal %d, %d known", who, SIGSEGV, SIZE);
        assert_int_equal(count(said, " crashed: "), 1);
        assert_int_equal(count(said, text), 1);
        expect_status(&j, -1, CRASHED);
        free(said);
        ranks_end(&j);
    }
}

/* The callback of the end hangs; the process ends all the same. */
static void test_last_words_hang(void **state)
{
    struct ranks j;

    (void)state;
    start(&j, (struct trouble){.what = "abort", .who = 3, .hang_in_words = true});
    expect_end(&j, 0, 20, -1, ") failed: no more data\n");
    expect_status(&j, -1, GIVES_UP);
    ranks_end(&j);
}

static void test_hangs(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 3) {
        char text[100], *said;
        struct ranks j;

        start(&j, (struct trouble){.what = "sleep", .who = who, .hang_s = 1});
        snprintf(text, sizeof text, "s in all_reduce #21 of group world for rank %d", who);
        expect_end(&j, 0, 20, -1, text);
        said = ranks_said(&j);
        /* The headline ends with the rank at fault, and the table has one line per rank. */
        assert_non_null(strstr(said, "has waited 1 s in all_reduce #21 of group world"));
        assert_non_null(strstr(said, ") is in forward of micro-batch 5 of iteration 17 since"));
        snprintf(text, sizeof text, "\nrank %d (host ", who);
        assert_non_null(strstr(said, text));
        assert_int_equal(count(said, "has waited "), SIZE);     /* headline, and all but one of the table */
        assert_int_equal(count(said, " since "), 2);
        expect_status(&j, -1, HANG);
        free(said);
        ranks_end(&j);
    }
}

/* A read that does not end is reported with the object it reads, whichever rank's time expires first. */
static void test_reads(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 3) {
        char text[100], *said, *headline;
        struct ranks j;

        start(&j, (struct trouble){.what = "read", .who = who, .hang_s = 1});
        snprintf(text, sizeof text, "\nrank %d (host ", who);
        expect_end(&j, 0, 20, -1, text);
        said = ranks_said(&j);
        headline = strchr(said, '\n');
        assert_non_null(headline);
        *headline = '\0';
        if (!strstr(said, " s for sample 1234 of data/text, in forward of micro-batch 5 of iteration 17"))
            fail_msg("the headline does not tell of the read: %s", said);
        assert_int_equal(count(headline + 1, "s for sample 1234 of data/text"), 1);
        assert_int_equal(count(headline + 1, "s in all_reduce #21 of group world"), SIZE - 1);
        free(said);
        ranks_end(&j);
    }
}

static int do_read_alone(int rank, int size, void *arg)
{
    struct comm_options o = {.hang_timeout_s = 1};
    struct err e = {0};

    (void)rank;
    (void)size;
    (void)arg;
    if (comm_world_open(&o, &world, &e) < 0)
        return 7;
    watch_outside(comm_watch(world), "the GPU", -1, NULL);
    watch_outside_end(comm_watch(world));
    usleep(1500000);                    /* computing has no limit */
    watch_outside(comm_watch(world), "the GPU", -1, NULL);
    sleep(100);
    return 0;
}

static void test_reads_alone(void **state)
{
    struct ranks j;
    char *said;

    (void)state;
    ranks_start(&j, 1, do_read_alone, NULL);
    assert_true(ranks_wait(&j, 20));
    assert_true(WIFEXITED(j.status[0]) && WEXITSTATUS(j.status[0]) == 1);
    assert_true(j.ended_s[0] > 2.4);
    said = ranks_said(&j);
    assert_non_null(strstr(said, ") has waited 1 s for the GPU, in start\n"));
    free(said);
    ranks_end(&j);
}

/* An operation without limit is reported and survived. One that only queues is limited while it is at a
 * micro-batch, and only then. */
static int do_long(int rank, int size, void *arg)
{
    struct comm_options o = {.hang_timeout_s = 2, .stall_notice_s = 1};
    struct err e = {0};

    (void)rank;
    (void)size;
    (void)arg;
    if (comm_world_open(&o, &world, &e) < 0)
        return 7;
    watch_outside_long(comm_watch(world), "the files of a save", -1, "out");
    sleep(3);
    watch_outside_end(comm_watch(world));
    watch_queues(comm_watch(world));
    watch_phase(comm_watch(world), "optimizer", 17, -1);
    sleep(3);
    watch_phase(comm_watch(world), "forward", 17, 5);
    sleep(100);
    return 0;
}

static void test_long(void **state)
{
    struct ranks j;
    char *said;

    (void)state;
    ranks_start(&j, 1, do_long, NULL);
    assert_true(ranks_wait(&j, 30));
    assert_true(WIFEXITED(j.status[0]) && WEXITSTATUS(j.status[0]) == 1);
    assert_true(j.ended_s[0] > 7.5);
    said = ranks_said(&j);
    assert_non_null(strstr(said, ") has waited 1 s for the files of a save of out, in start; the job waits on\n"));
    assert_non_null(strstr(said, "the job continues after "));
    assert_non_null(strstr(said, " of micro-batch 5 of iteration 17 since 1 s; the job is ended after 2 s\n"));
    assert_non_null(strstr(said, ") is in forward of micro-batch 5 of iteration 17 since 2 s\n"));
    assert_int_equal(count(said, "optimizer"), 0);
    free(said);
    ranks_end(&j);
}

/* After SIGSTOP the rank cannot answer, and cannot exit by itself. */
static void test_stopped(void **state)
{
    struct ranks j;
    double at;

    (void)state;
    start(&j, (struct trouble){.what = "run", .who = -1, .hang_s = 1});
    at = all_at_work(&j);
    kill(j.pid[2], SIGSTOP);
    expect_end(&j, at, 9, -1, ") does not answer: it is stopped, or its host is");
    assert_true(WIFSIGNALED(j.status[2]));
    ranks_end(&j);
}

/* A rank that is late for a while is reported once, and so is its arrival. */
static void test_late(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 3) {
        char text[100], *said;
        struct ranks j;
        double at;

        start(&j, (struct trouble){.what = "late", .who = who, .hang_s = 60, .stall_s = 1});
        at = until_said(&j, "told 0: nothing\n", 1);
        kill(j.pid[2], SIGKILL);
        expect_end(&j, at, 10, -1, "the job continues after ");
        said = ranks_said(&j);
        snprintf(text, sizeof text, "; rank %d (host ", who);
        assert_non_null(strstr(said, text));
        /* The line appears, and the same for the callback. */
        assert_int_equal(count(said, " has waited 1 s in all_reduce #21 of group world"), 2);
        assert_int_equal(count(said, "; the job is ended after 60 s\n"), 2);
        assert_int_equal(count(said, "told 0: rank "), 1);
        assert_int_equal(count(said, "told 0: nothing\n"), 1);
        assert_int_equal(count(said, "told "), 2);
        free(said);
        ranks_end(&j);
    }
}

/* A stopped rank is reported, as is its continuation. Another rank reports the silence of rank 0. */
static void test_stopped_for_a_while(void **state)
{
    (void)state;
    for (int who = 0; who < SIZE; who += 2) {
        char text[200], host[64] = "", *said;
        struct ranks j;
        double at;

        gethostname(host, sizeof host - 1);
        start(&j, (struct trouble){.what = "run", .who = -1, .hang_s = 60, .stall_s = 1});
        all_at_work(&j);
        kill(j.pid[who], SIGSTOP);
        snprintf(text, sizeof text, "; rank %d (host %s, pid %ld) does not answer: it is stopped, or its host is", who,
                 host, (long)j.pid[who]);
        until_said(&j, text, 2);        /* the line, and the same from the callback */
        kill(j.pid[who], SIGCONT);
        at = until_said(&j, "the job continues", 1);
        kill(j.pid[1], SIGKILL);
        expect_end(&j, at, 12, -1, text);
        said = ranks_said(&j);
        if (count(said, text) != 2 || count(said, "the job continues") != 1)
            fail_msg("stopped: %d; said:\n%s", who, said);
        assert_int_equal(count(said, who ? "told 0: rank " : "told 1: rank "), 1);
        free(said);
        ranks_end(&j);
    }
}

static void test_dump(void **state)
{
    for (int who = 0; who < SIZE; who += SIZE - 1) {
        char text[100], *said;
        struct ranks j;

        (void)state;
        start(&j, (struct trouble){.what = "dump", .who = who});
        for (int r = 0; r < SIZE; r++) {
            snprintf(text, sizeof text, "rank %d (host ", r);
            until_said(&j, text, 1);
        }
        said = ranks_said(&j);
        for (int r = 0; r < SIZE; r++) {
            snprintf(text, sizeof text, "rank %d (host ", r);
            if (count(said, text) != 1)
                fail_msg("rank %d is not in the table once:\n%s", r, said);
        }
        free(said);
        kill(j.pid[0], SIGKILL);
        assert_true(ranks_wait(&j, 10));
        ranks_end(&j);
    }
}

/* One process alone makes the same calls. */
static int do_alone(int rank, int size, void *arg)
{
    struct comm_options o = {.on_abort = on_abort};
    struct err e = {0};

    (void)rank;
    (void)size;
    if (comm_world_open(&o, &world, &e) < 0)
        return 7;
    if (!arg) {
        comm_world_close(world);
        return 0;
    }
    watch_dump(comm_watch(world));
    sleep(2);                           /* the table is printed within that time */
    comm_abort(world, 1, "alone");
}

static void test_alone(void **state)
{
    struct ranks j;
    char *said;

    assert_true(ranks_run(1, do_alone, NULL));
    ranks_start(&j, 1, do_alone, state);
    assert_true(ranks_wait(&j, 10));
    said = ranks_said(&j);
    assert_int_equal(WEXITSTATUS(j.status[0]), 1);
    assert_non_null(strstr(said, ") failed: alone\n"));
    assert_non_null(strstr(said, "last words of 0"));
    assert_non_null(strstr(said, ") is in start since"));
    free(said);
    ranks_end(&j);
}

static int share(void **state)
{
    (void)state;
    n_at_work = mmap(NULL, sizeof *n_at_work, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return n_at_work == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),         cmocka_unit_test(test_root_killed),
        cmocka_unit_test(test_leaves),         cmocka_unit_test(test_killed_and_all_ended),
        cmocka_unit_test(test_all_terminated), cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_crashes),        cmocka_unit_test(test_last_words_hang),
        cmocka_unit_test(test_hangs),          cmocka_unit_test(test_reads),
        cmocka_unit_test(test_reads_alone),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_late),           cmocka_unit_test(test_stopped_for_a_while),
        cmocka_unit_test(test_stopped),        cmocka_unit_test(test_dump),
        cmocka_unit_test(test_alone),
    };

    return cmocka_run_group_tests(tests, share, NULL);
}
