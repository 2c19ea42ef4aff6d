/*
 * test_train_checkpoint_ranks.c - saves by ranks that are processes and communicate
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/comm/comm.h"
#include "tests/lib/scratch.h"
#include "tests/lib/trainjob.h"

enum { TP = 2 };


/* In a child cmocka cannot fail: what is wrong goes to stderr and into the exit status. */
static void demand(bool ok, const char *what, const struct err *e)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s\n", what, e->msg);
    _exit(1);
}

struct seat {
    struct comm_world *world;
    struct job j;
    struct rank *me;
    int r;
};

static void sit_down(struct seat *s, const char *dir, int r)
{
    struct model_config m = job_small_model("alibi");
    const struct comm_options co = { .transport = COMM_TCP };
    const int blocks[] = { 5 };
    struct checkpoint_saver_opts o = { .dir = dir, .blocks = s->j.blocks, .weights = DTYPE_BF16, .dev = &job_other };
    struct report *notes = report_new();
    struct writer *w;
    struct err e = {0};

    w = writer_start(&e);
    demand(w != NULL, "writer", &e);
    setenv("RANK", r ? "1" : "0", 1);
    demand(comm_world_open(&co, &s->world, &e) == 0, "world", &e);
    job_new(&s->j, &m, (struct topology){ TP, 1, 1 }, blocks, DTYPE_BF16);
    job_fill(&s->j, 1);
    s->r = r;
    s->me = &s->j.rank[r];
    s->me->w = w;
    o.stage = s->me->s;
    o.state = &s->me->st;
    o.writer = w;
    o.world = o.tp = comm_world_group(s->world);
    o.watch = comm_watch(s->world);
    s->me->saver = checkpoint_saver_new(&o, notes, &e);
    demand(s->me->saver != NULL, "saver", &e);
    demand(checkpoint_save_bytes(s->me->saver) > 100000, "bytes of all ranks", &e);
    report_free(notes);
}

static _Noreturn void stand_up(struct seat *s)
{
    checkpoint_saver_free(s->me->saver);
    s->me->saver = NULL;
    comm_world_close(s->world);
    job_free(&s->j);
    _exit(0);
}

static float *bias_of(struct seat *s)
{
    const struct stage *st = s->me->s;

    for (int i = 0; i < st->n_runs; i++)
        if (!strcmp(st->param[st->run[i].param].name, "4.self_attention.dense.bias"))
            return s->me->st.exp_avg + st->run[i].shard_at;
    return NULL;
}

/* A save; then one copy drifts by a bit, and nothing is saved; then it is repaired. */
static _Noreturn void drifting_rank(const char *dir, int r)
{
    struct checkpoint_now now = job_fresh_now;
    struct checkpoint_saved before;
    struct seat s;
    struct err e = {0};

    sit_down(&s, dir, r);
    demand(checkpoint_save_poll(s.me->saver)->outcome == SAVE_NONE, "no save yet", &e);
    demand(checkpoint_save(s.me->saver, &now, &e) == 0, "first save", &e);
    demand(checkpoint_check_live(s.me->saver, &e) == 0, "equal replicas", &e);
    checkpoint_save_release(s.me->saver, 0);
    if (r == 1)
        bias_of(&s)[3] += 1e-6f;
    demand(checkpoint_check_live(s.me->saver, &e) == -1 &&
           strstr(e.msg, "4.self_attention.dense.bias: exp_avg of this replicated parameter differs between tensor "
                         "rank 0 and 1"), "drift is seen", &e);
    err_clear(&e);
    now.iteration = 8;
    demand(checkpoint_save_wait(s.me->saver, &before, &e) == 0, "wait for the save before", &e);
    demand(before.iteration == 7 && before.outcome == SAVE_COMPLETE, "the save before is complete", &before.err);
    demand(checkpoint_save(s.me->saver, &now, &e) == -1 && strstr(e.msg, "dense.bias"), "refusal", &e);
    err_clear(&e);
    if (r == 1)
        bias_of(&s)[3] = bias_of(&s)[3] - 1e-6f;
    job_fill(&s.j, 1);
    now.iteration = 9;
    demand(checkpoint_save(s.me->saver, &now, &e) == 0, "save after repair", &e);
    demand(checkpoint_save_wait(s.me->saver, &before, &e) == 0 && before.iteration == 9 &&
           before.outcome == SAVE_COMPLETE, "wait", &before.err);
    stand_up(&s);
}

/* Rank 1's writer is killed: rank 0 is notified, and the next checkpoint_save() fails on both. */
static _Noreturn void losing_rank(const char *dir, int r)
{
    struct checkpoint_now now = job_fresh_now;
    struct checkpoint_saved out;
    struct seat s;
    struct err e = {0};

    sit_down(&s, dir, r);
    if (r == 1)
        kill((pid_t)writer_pid(s.me->w), SIGSTOP);
    demand(checkpoint_save(s.me->saver, &now, &e) == 0, "save", &e);
    if (r == 1)
        kill((pid_t)writer_pid(s.me->w), SIGKILL);
    demand(checkpoint_save_wait(s.me->saver, &out, &e) == 0 && out.outcome == SAVE_FAILED, "failure is reported", &e);
    demand(strstr(out.err.msg, "rank 1 could not write its part: checkpoint writer: ") &&
           strstr(out.err.msg, "signal 9"), "with its reason", &out.err);
    stand_up(&s);
}

struct start {
    const char *dir;
    void (*body)(const char *dir, int r);
    pid_t pid[TP];
};

static void *fork_ranks(void *start)
{
    struct start *s = start;

    for (int r = 0; r < TP; r++) {
        s->pid[r] = fork();
        if (s->pid[r] == 0)
            s->body(s->dir, r);
    }
    return NULL;
}

static void start_ranks(const char *dir, void (*body)(const char *dir, int r))
{
    struct start s = { .dir = dir, .body = body };
    char port[16];

    snprintf(port, sizeof port, "%d", 20000 + (int)(getpid() * 7 % 10000) + (body == losing_rank));
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    job_in_thread(fork_ranks, &s);
    for (int r = 0; r < TP; r++) {
        int status;

        waitpid(s.pid[r], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail_msg("rank %d: status %x", r, (unsigned)status);
    }
}

static void drift_stops_a_save(void **state)
{
    char *dir = path_join(scratch, "drift"), *seven = path_join(dir, "global_step7");
    char *eight = path_join(dir, "global_step8");

    (void)state;
    start_ranks(dir, drifting_rank);
    job_expect_latest(dir, "global_step9");
    job_expect_clean(dir);
    job_expect_sound(seven);
    assert_int_equal(access(eight, F_OK), -1);
    free(dir);
    free(seven);
    free(eight);
}

static void lost_writer(void **state)
{
    char *dir = path_join(scratch, "lost"), *latest = path_join(dir, "latest");

    (void)state;
    start_ranks(dir, losing_rank);
    assert_int_equal(access(latest, F_OK), -1);
    job_expect_clean(dir);
    free(dir);
    free(latest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drift_stops_a_save),
        cmocka_unit_test(lost_writer),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
