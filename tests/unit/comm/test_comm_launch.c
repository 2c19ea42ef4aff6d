/* test_comm_launch.c - which launcher is used, which rank of how many this is, and joins that must not succeed */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "libcommon/comm/comm.h"
#include "libcommon/comm/launch.h"
#include "tests/lib/ranks.h"

/* Put "A=1 B=2" into an otherwise empty set of launcher variables, and find the launcher. */
static int find(const char *vars, struct launch *l, struct err *e)
{
    char text[400], *save = NULL;

    ranks_clear_env();
    snprintf(text, sizeof text, "%s", vars);
    for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *value = strchr(p, '=');

        *value++ = '\0';
        setenv(p, value, 1);
    }
    memset(e, 0, sizeof *e);
    return launch_find(l, e);
}

#define IS(vars, want_kind, want_rank, want_size, want_local)                   \
    do {                                                                        \
        if (find(vars, &l, &e) < 0)                                             \
            fail_msg("%s: %s", vars, e.msg);                                    \
        assert_int_equal(l.kind, want_kind);                                    \
        assert_int_equal(l.rank, want_rank);                                    \
        assert_int_equal(l.size, want_size);                                    \
        assert_int_equal(l.local_rank, want_local);                             \
    } while (0)

static void test_launchers(void **state)
{
    struct launch l;
    struct err e;

    (void)state;
    IS("", LAUNCH_ALONE, 0, 1, -1);
    IS("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
       "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2", LAUNCH_MPIRUN, 3, 8, 1);
    assert_true(l.pmi && l.local_size == 2);
    IS("RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 MASTER_ADDR=node1 MASTER_PORT=6000", LAUNCH_TORCHRUN, 3, 8, 3);
    assert_string_equal(l.master, "node1");
    assert_int_equal(l.port, 6000);
    /* torchrun on each of the nodes that srun or mpirun started: the inner launcher counts. */
    IS("TORCHELASTIC_RUN_ID=x RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
       "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", LAUNCH_TORCHRUN, 3, 8, 3);
    IS("SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_STEP_NODELIST=r1n[07-08,12] SLURM_JOB_ID=77 "
       "SLURM_STEP_ID=3", LAUNCH_SRUN, 9, 16, 1);
    assert_string_equal(l.master, "r1n07");
    assert_int_equal(l.port, 20000 + 77 * 16 + 3);
    assert_false(l.pmi);
    IS("SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=9 SLURM_LOCALID=1 MASTER_ADDR=a MASTER_PORT=5 PMIX_RANK=9",
       LAUNCH_SRUN, 9, 16, 1);
    assert_true(l.pmi && l.port == 5 && strcmp(l.master, "a") == 0);
    /* A batch script and a step of one task are one process. */
    IS("SLURM_NTASKS=16 SLURM_PROCID=0 SLURM_LOCALID=0", LAUNCH_ALONE, 0, 1, -1);
    IS("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", LAUNCH_ALONE, 0, 1, -1);
    IS("PMI_RANK=1 PMI_SIZE=4", LAUNCH_MPIRUN, 1, 4, -1);
    assert_string_equal(l.size_name, "PMI_SIZE");
    IS("RANK=0 WORLD_SIZE=1", LAUNCH_TORCHRUN, 0, 1, -1);
    unsetenv("SLURM_NTASKS");
}

static void refused(const char *vars, const char *text)
{
    struct launch l;
    struct err e;

    if (find(vars, &l, &e) == 0)
        fail_msg("%s: accepted", vars);
    assert_int_equal(e.kind, ERR_USAGE);
    assert_string_equal(e.msg, text);
}

static void test_contradictions(void **state)
{
    (void)state;
    refused("RANK=8 WORLD_SIZE=8", "environment: RANK=8 does not fit WORLD_SIZE=8");
    refused("RANK=x WORLD_SIZE=8", "environment: RANK=x: expected a number from 0 to 2147483647");
    refused("RANK=0 WORLD_SIZE=0", "environment: RANK=0 does not fit WORLD_SIZE=0");
    refused("WORLD_SIZE=8", "environment: WORLD_SIZE=8 is set but RANK is not");
    refused("OMPI_COMM_WORLD_SIZE=8", "environment: OMPI_COMM_WORLD_SIZE is set but OMPI_COMM_WORLD_RANK is not");
    refused("RANK=0 WORLD_SIZE=2 MASTER_PORT=70000",
            "environment: MASTER_PORT=70000: expected a number from 0 to 65535");
    refused("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_STEP_NODELIST=a[1",
            "environment: SLURM_STEP_NODELIST=a[1: no host name at its beginning");
}

static void test_first_host(void **state)
{
    static const char *const lists[][2] = {
        {"a", "a"}, {"a,b", "a"}, {"n[1-4]", "n1"}, {"n[03,05-9],x", "n03"}, {"r[1-4]n[02,05]-ib,x", "r1n02-ib"},
        {"jean-zay-iam[01-52]", "jean-zay-iam01"},
    };
    char host[32], tiny[4];

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_true(launch_first_host(lists[i][0], host, sizeof host));
        assert_string_equal(host, lists[i][1]);
    }
    assert_false(launch_first_host("", host, sizeof host));
    assert_false(launch_first_host(",a", host, sizeof host));
    assert_false(launch_first_host("n[1", host, sizeof host));
    assert_false(launch_first_host("n[1-", host, sizeof host));
    assert_false(launch_first_host("abcd", tiny, sizeof tiny));
}

/* ---- joins that fail ---- */

/* The argument is the rank that does not join, or sends other data. */
static int do_join(int rank, int size, void *arg)
{
    struct comm_options o = {.join_timeout_s = 1};
    const char *who = arg;
    struct comm_world *w;
    struct err e = {0};

    (void)size;
    if (strcmp(who, "missing") == 0 && rank == 2)
        return 0;
    if (strcmp(who, "root") == 0 && rank == 0)
        return 0;
    if (strcmp(who, "size") == 0 && rank == 1)
        setenv("WORLD_SIZE", "4", 1);
    if (strcmp(who, "twice") == 0 && rank == 2)
        setenv("RANK", "1", 1);
    if (strcmp(who, "nobody") == 0)
        unsetenv("MASTER_ADDR");
    if (comm_world_open(&o, &w, &e) == 0)
        return 3;
    fprintf(stderr, "%s\n", e.msg);
    return e.kind == ERR_USAGE ? 2 : 1;
}

static void expect_join_fails(const char *who, int root_status, const char *text)
{
    char name[16], *said;
    struct ranks j;

    snprintf(name, sizeof name, "%s", who);
    ranks_start(&j, 3, do_join, name);
    assert_true(ranks_wait(&j, 30));
    for (int r = 0; r < 3; r++)
        if (WEXITSTATUS(j.status[r]) == 3)
            fail_msg("%s: rank %d got in", who, r);
    if (WEXITSTATUS(j.status[0]) != root_status)
        fail_msg("%s: rank 0 ended with %d", who, WEXITSTATUS(j.status[0]));
    said = ranks_said(&j);
    if (!strstr(said, text))
        fail_msg("%s: expected to read '%s' in:\n%s", who, text, said);
    free(said);
    ranks_end(&j);
}

static void test_joins_that_fail(void **state)
{
    (void)state;
    expect_join_fails("missing", 1, "not connected: rank 2\n");
    expect_join_fails("root", 0, "no rank 0 at 127.0.0.1:");
    expect_join_fails("size", 2, "start: a process reports that it is rank 1 of 4, but rank 0 has WORLD_SIZE=3\n");
    expect_join_fails("twice", 2, "start: two processes claim rank 1 of 3\n");
    expect_join_fails("nobody", 2, "environment: WORLD_SIZE=3, but MASTER_ADDR is not set\n");
}

/* Foreign connections to the port do no harm. All ranks but 0 join once the pipe that *arg names has ended. */
static int do_join_late(int rank, int size, void *arg)
{
    const int *gate = arg;
    struct comm_world *w;
    struct err e = {0};
    char byte;

    (void)size;
    close(gate[1]);
    if (rank && read(gate[0], &byte, 1) != 0)
        return 1;
    if (comm_world_open(NULL, &w, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    comm_world_close(w);
    return 0;
}

static void knock(int port, const char *word)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int tries = 0; tries < 4000; tries++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
            assert_int_equal(write(fd, word, strlen(word)), strlen(word));
            close(fd);
            return;
        }
        close(fd);
        usleep(5000);
    }
    fail_msg("nobody listens");
}

static void test_strangers(void **state)
{
    struct ranks j;
    int gate[2];

    (void)state;
    assert_int_equal(pipe(gate), 0);
    ranks_start(&j, 3, do_join_late, gate);
    knock(j.port, "");
    knock(j.port, "GET / HTTP/1.1\r\nHost: here, and long enough for a hello\r\n\r\n");
    close(gate[0]);
    close(gate[1]);
    assert_true(ranks_wait(&j, 30));
    for (int r = 0; r < 3; r++)
        assert_int_equal(j.status[r], 0);
    ranks_end(&j);
}

/* ---- torchrun's own server at MASTER_PORT ---- */

/* Join as the workers of a torchrun whose agent holds MASTER_PORT, *arg. Reports the number of ranks in its world. */
static int do_join_beside(int rank, int size, void *arg)
{
    struct comm_options o = {.join_timeout_s = 20};
    char port[16];
    struct comm_world *w;
    struct err e = {0};
    int32_t ports = *(int *)arg, all[8];

    (void)rank;
    snprintf(port, sizeof port, "%d", *(int *)arg);
    setenv("MASTER_PORT", port, 1);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    if (comm_world_open(&o, &w, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        return e.kind == ERR_USAGE ? 2 : 1;
    }
    /* All ranks must belong to this job. */
    if (comm_host_all_gather(comm_world_group(w), &ports, all, sizeof ports, &e) < 0)
        return 4;
    for (int r = 0; r < size; r++)
        if (all[r] != ports)
            return 5;
    comm_world_close(w);
    return 0;
}

/* Listen without sending anything; a store, too, waits for its client to send first. Returns -1 if the port is not
 * free. */
static int hold(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0)
        return fd;
    close(fd);
    return -1;
}

static void expect_good_end(struct ranks *j)
{
    bool in_time = ranks_wait(j, 30);
    char *said = ranks_said(j);

    for (int r = 0; r < j->size; r++)
        if (!in_time || j->status[r])
            fail_msg("rank %d: wait status %x; said:\n%s", r, (unsigned)j->status[r], said);
    free(said);
    ranks_end(j);
}

/* Two jobs have adjacent ports: each finds its own rank 0, past both stores and the other job's rank 0. */
static void test_beside_a_store(void **state)
{
    struct ranks one, two;
    int port, next, fd = -1, fd_next = -1;

    (void)state;
    while (fd_next < 0) {
        close(fd);
        port = ranks_free_port();
        next = port + 1;
        fd = hold(port);
        fd_next = fd < 0 ? -1 : hold(next);
    }
    ranks_start(&one, 4, do_join_beside, &port);
    ranks_start(&two, 3, do_join_beside, &next);
    expect_good_end(&one);
    expect_good_end(&two);
    close(fd_next);
    /* The highest port number is reached, so ports before it are used. */
    close(fd);
    for (port = 65535; (fd = hold(port)) < 0;)
        port--;
    ranks_start(&one, 2, do_join_beside, &port);
    expect_good_end(&one);
    close(fd);
}

/* The listener at MASTER_PORT is not rank 0: this is reported, without an endless wait. */
static void test_stranger_as_root(void **state)
{
    struct ranks j;
    char *said;
    int fd;

    (void)state;
    ranks_start(&j, 2, do_join, (char[]){"root"});
    fd = hold(j.port);
    assert_true(fd >= 0);
    assert_true(ranks_wait(&j, 30));
    said = ranks_said(&j);
    if (!strstr(said, "what listens at port "))
        fail_msg("said:\n%s", said);
    assert_int_equal(WEXITSTATUS(j.status[1]), 1);
    free(said);
    ranks_end(&j);
    close(fd);
}

/* mpirun's variables are set, but the MPI is unaware of this process: otherwise eight trainings of one rank would
 * start. */
static int do_false_mpirun(int rank, int size, void *arg)
{
    struct comm_world *w;
    struct err e = {0};

    (void)rank;
    (void)size;
    (void)arg;
    ranks_clear_env();
    setenv("PMI_RANK", "2", 1);
    setenv("PMI_SIZE", "4", 1);
    if (comm_world_open(NULL, &w, &e) == 0)
        return 3;
    fprintf(stderr, "%s\n", e.msg);
    _exit(e.kind == ERR_USAGE ? 2 : 1);     /* not exit(): the sanitizer would count MPI's own leaks */
}

static void test_refuses_world_of_one(void **state)
{
    struct ranks j;
    char *said;

    (void)state;
    ranks_start(&j, 1, do_false_mpirun, NULL);
    assert_true(ranks_wait(&j, 60));
    said = ranks_said(&j);
    assert_non_null(strstr(said, "mpirun started 4 tasks (PMI_SIZE), but "));
    assert_int_equal(WEXITSTATUS(j.status[0]), 2);
    free(said);
    ranks_end(&j);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers), cmocka_unit_test(test_contradictions), cmocka_unit_test(test_first_host),
        cmocka_unit_test(test_joins_that_fail), cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_beside_a_store), cmocka_unit_test(test_stranger_as_root),
        cmocka_unit_test(test_refuses_world_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
