#include "tests/lib/ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/files.h"

double ranks_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void ranks_clear_env(void)
{
    static const char *const names[] = {
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "PMI_RANK",
        "PMI_SIZE",
        "PMIX_RANK",
        "MPI_LOCALRANKID",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

int ranks_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        abort();
    close(fd);
    return ntohs(a.sin_port);
}

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void be_rank(const struct ranks *j, int rank, rank_fn *fn, void *arg)
{
    int fd = open(j->log, O_WRONLY | O_APPEND);

    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(99);
    close(fd);
    ranks_clear_env();
    set_number("RANK", rank);
    set_number("WORLD_SIZE", j->size);
    set_number("MASTER_PORT", j->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    exit(fn(rank, j->size, arg));
}

void ranks_start(struct ranks *j, int size, rank_fn *fn, void *arg)
{
    int fd;

    memset(j, 0, sizeof *j);
    j->size = size;
    j->port = ranks_free_port();
    snprintf(j->log, sizeof j->log, "/tmp/shardkit-ranks-XXXXXX");
    fd = mkstemp(j->log);
    if (fd < 0)
        abort();
    close(fd);
    j->start_s = ranks_now_s();
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        j->pid[r] = fork();
        if (j->pid[r] < 0)
            abort();
        if (j->pid[r] == 0)
            be_rank(j, r, fn, arg);
    }
}

bool ranks_wait(struct ranks *j, double timeout_s)
{
    double until = ranks_now_s() + timeout_s;
    bool in_time = true;
    int left = 0;

    for (int r = 0; r < j->size; r++)
        left += j->pid[r] > 0;
    while (left) {
        for (int r = 0; r < j->size; r++) {
            if (j->pid[r] <= 0 || waitpid(j->pid[r], &j->status[r], WNOHANG) != j->pid[r])
                continue;
            j->ended_s[r] = ranks_now_s() - j->start_s;
            j->pid[r] = 0;
            left--;
        }
        if (left && in_time && ranks_now_s() > until) {
            in_time = false;
            for (int r = 0; r < j->size; r++)
                if (j->pid[r] > 0)
                    kill(j->pid[r], SIGKILL);
        }
        if (left)
            usleep(2000);
    }
    return in_time;
}

char *ranks_said(const struct ranks *j)
{
    struct err e = {0};
    uint64_t n;
    char *text = file_slurp(j->log, 1 << 20, &n, &e);

    if (!text)
        abort();
    return text;
}

void ranks_end(struct ranks *j)
{
    unlink(j->log);
}

bool ranks_run(int size, rank_fn *fn, void *arg)
{
    const char *slowness = getenv("SLOWNESS");
    struct ranks j;
    bool good;
    char *said;

    ranks_start(&j, size, fn, arg);
    good = ranks_wait(&j, 120.0 * (slowness && atoi(slowness) > 0 ? atoi(slowness) : 1));
    for (int r = 0; r < size; r++)
        good &= WIFEXITED(j.status[r]) && WEXITSTATUS(j.status[r]) == 0;
    if (!good) {
        said = ranks_said(&j);
        printf("%d ranks said:\n%s", size, said);
        for (int r = 0; r < size; r++)
            printf("rank %d: wait status %x after %.1f s\n", r, (unsigned)j.status[r], j.ended_s[r]);
        free(said);
    }
    ranks_end(&j);
    return good;
}
