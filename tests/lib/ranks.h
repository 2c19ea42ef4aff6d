/*
 * ranks.h - run a job of several processes inside a unit test, without a launcher
 *
 * Each rank is a fork with torchrun's variables set, so comm_world_open() connects over TCP on loopback. A file
 * collects the standard error of all ranks.
 */
#ifndef SHARDKIT_TESTS_RANKS_H
#define SHARDKIT_TESTS_RANKS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { RANKS_MAX = 32 };

struct ranks {
    int size, port;
    pid_t pid[RANKS_MAX];
    int status[RANKS_MAX];      /* from waitpid; valid after ranks_wait() */
    double ended_s[RANKS_MAX];  /* seconds after ranks_start() */
    double start_s;
    char log[64];               /* the file with the standard error of all ranks */
};

/* In a rank: if the condition is false, print it with the text of the struct err `e` in scope, and fail. */
#define EXPECT(what)                                                            \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, e.msg); \
            return 1;                                                           \
        }                                                                       \
    } while (0)

/* Run in each rank; the result is its exit status. */
typedef int rank_fn(int rank, int size, void *arg);

/* Unset every variable that a launcher may have set for this test process. */
void ranks_clear_env(void);
int ranks_free_port(void);
void ranks_start(struct ranks *j, int size, rank_fn *fn, void *arg);
/* Wait until all ranks have ended. After timeout_s, kill the remaining ones and return false. */
bool ranks_wait(struct ranks *j, double timeout_s);
/* Return the standard error of all ranks. The caller frees it. */
char *ranks_said(const struct ranks *j);
void ranks_end(struct ranks *j);        /* removes the log */
/* Start the ranks, wait up to 120 s times the variable SLOWNESS, and expect exit status 0 from all. On failure, print
 * their output and return false. */
bool ranks_run(int size, rank_fn *fn, void *arg);
double ranks_now_s(void);

#endif
