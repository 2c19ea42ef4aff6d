/*
 * ranks.h - a job of several processes inside a unit test, without any launcher
 *
 * Each rank is a fork with torchrun's variables set, so comm_world_open() meets over TCP
 * on loopback. What the ranks write to standard error is collected in a file.
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
    int status[RANKS_MAX];      /* of waitpid; valid after ranks_wait() */
    double ended_s[RANKS_MAX];  /* after ranks_start() */
    double start_s;
    char log[64];               /* the file with standard error of all */
};

/* In a rank: say what is wrong, with what the struct err `e` there tells, and fail. */
#define EXPECT(what)                                                            \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, e.msg); \
            return 1;                                                           \
        }                                                                       \
    } while (0)

/* Run in each rank; the result is its exit status. */
typedef int rank_fn(int rank, int size, void *arg);

/* Forget every variable that a launcher may have set for this test itself. */
void ranks_clear_env(void);
int ranks_free_port(void);
void ranks_start(struct ranks *j, int size, rank_fn *fn, void *arg);
/* Until all have ended; after timeout_s the rest is killed and false returned. */
bool ranks_wait(struct ranks *j, double timeout_s);
/* Everything that was said; malloc'd. */
char *ranks_said(const struct ranks *j);
void ranks_end(struct ranks *j);        /* removes the log */
/* Start, wait 120 s, expect 0 from everybody; prints what was said and returns false otherwise. */
bool ranks_run(int size, rank_fn *fn, void *arg);
double ranks_now_s(void);

#endif
