/*
 * commdemo - a job to start under a launcher, for tests and measurements
 *
 *   commdemo check              every collective, with the checks of the unit tests
 *   commdemo bench              latency and bandwidth; rank 0 prints one JSON line per size
 *   commdemo run                small collectives until a signal or failure ends the job; each rank prints its pid
 *   commdemo sleep RANK         the same, but RANK stops calling collectives after 0.3 s
 *   commdemo abort RANK         the same, but RANK aborts after 0.3 s
 *   commdemo dump               prints the table of all ranks once
 *   commdemo where              prints one line per rank that identifies it
 *
 * SIGUSR2 prints the table. COMMDEMO_TIMEOUT sets the timeout of the watchdog in seconds.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/comm/comm.h"
#include "tests/lib/commcheck.h"

static struct comm_world *world;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_dump(int sig)
{
    (void)sig;
    watch_dump(comm_watch(world));
}

/* ---- bench ---- */

/* Return the seconds of one all_reduce of n floats: the median of several rounds. */
static double time_all_reduce(struct comm *c, int64_t n, int rounds, struct err *e)
{
    float *x = xcalloc((size_t)n, sizeof *x);
    double median, s[5];

    for (int k = 0; k < 5; k++) {
        double start;

        if (comm_barrier(c, NULL, e) < 0)
            comm_abort(world, 1, e->msg);
        start = now_s();
        for (int i = 0; i < rounds; i++)
            if (comm_all_reduce(c, &(struct comm_data){ x, x, n, DTYPE_F32, COMM_SUM }, NULL, e) < 0)
                comm_abort(world, 1, e->msg);
        s[k] = (now_s() - start) / rounds;
        for (int j = k; j > 0 && s[j] < s[j - 1]; j--) {
            double swap = s[j];

            s[j] = s[j - 1];
            s[j - 1] = swap;
        }
    }
    median = s[2];
    free(x);
    return median;
}

static void bench(struct err *e)
{
    static const int64_t sizes[] = {8, 1024, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};
    struct comm *all = comm_world_group(world);
    int n = comm_size(all);
    double start;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t bytes = sizes[i];
        double s = time_all_reduce(all, bytes / 4, bytes < 65536 ? 200 : 10, e);

        if (comm_rank(all) == 0)
            printf(
                "{\"call\": \"all_reduce\", \"ranks\": %d, \"size_bytes\": %lld, \"wall_s\": %.9f, \"bus_gb_s\": %.3f}\n",
                n, (long long)bytes, s, 2.0 * (n - 1) / n * (double)bytes / s / 1e9);
    }
    start = now_s();
    for (int i = 0; i < 1000; i++)
        if (comm_barrier(all, NULL, e) < 0)
            comm_abort(world, 1, e->msg);
    if (comm_rank(all) == 0)
        printf("{\"call\": \"barrier\", \"ranks\": %d, \"wall_s\": %.9f}\n", n, (now_s() - start) / 1000);
}

/* ---- jobs with trouble ---- */

static void run(const char *what, int who, struct err *e)
{
    struct comm *all = comm_world_group(world);
    double start = now_s();

    printf("rank %d pid %ld\n", comm_rank(all), (long)getpid());
    fflush(stdout);
    for (int i = 0;; i++) {
        float x[100] = {1};

        watch_phase(comm_watch(world), "forward", i, 5);
        if (comm_all_reduce(all, &(struct comm_data){ x, x, 100, DTYPE_F32, COMM_SUM }, NULL, e) < 0)
            comm_abort(world, 1, e->msg);
        usleep(1000);
        if (now_s() - start < 0.3 || comm_rank(all) != who)
            continue;
        if (strcmp(what, "abort") == 0)
            comm_abort(world, 1, "no more data");
        if (strcmp(what, "sleep") == 0)
            sleep(1000);
    }
}

static void on_abort(void *arg, const struct watch_end *end)
{
    (void)arg;
    if (comm_place(world)->rank == 0)
        fprintf(stderr, "last words: %s\n", end->reason);
}

int main(int argc, char **argv)
{
    struct comm_options o = {.on_abort = on_abort};
    const char *what = argc > 1 ? argv[1] : "where", *timeout = getenv("COMMDEMO_TIMEOUT");
    struct err e = {0};

    o.hang_timeout_s = timeout ? atof(timeout) : 0;
    if (comm_world_open(&o, &world, &e) < 0) {
        fprintf(stderr, "commdemo: %s\n", e.msg);
        return e.kind == ERR_USAGE ? 2 : 1;
    }
    signal(SIGUSR2, on_dump);
    if (strcmp(what, "check") == 0) {
        if (commcheck_all(world, argc > 2 ? COMMCHECK_LARGE : COMMCHECK_USUAL, &e) < 0)
            comm_abort(world, 1, e.msg);
        if (comm_place(world)->rank == 0)
            printf("checked\n");
    } else if (strcmp(what, "bench") == 0) {
        bench(&e);
    } else if (strcmp(what, "dump") == 0) {
        if (comm_place(world)->rank == comm_place(world)->size - 1)
            watch_dump(comm_watch(world));
        sleep(3);                       /* the table is printed within 2 s */
    } else if (strcmp(what, "where") == 0) {
        const struct comm_place *p = comm_place(world);

        printf("rank %d of %d, local %d of %d, host %d of %d%s\n", p->rank, p->size, p->local_rank, p->local_size,
               p->node, p->n_nodes, p->crowded ? ", crowded" : "");
    } else {
        run(what, argc > 2 ? atoi(argv[2]) : -1, &e);
    }
    comm_world_close(world);
    return 0;
}
