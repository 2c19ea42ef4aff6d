/*
 * sets.c - the training, validation and test sets of a run
 */
#include "tools/train/run/sets.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/model/dataset.h"
#include "libcommon/model/gpt_index.h"
#include "tools/train/run/evaluate.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"

enum { N_SPLITS = SPLIT_TEST + 1 };

static int64_t samples_of(const struct trainer *t, enum options_split split)
{
    return split == SPLIT_TRAIN ? t->progress.schedule.train_samples
           : split == SPLIT_VALID ? schedule_valid_samples(&t->progress.schedule, &t->o)
                                  : schedule_test_samples(&t->progress.schedule, &t->o);
}

static bool wants(const struct trainer *t, enum options_split split)
{
    return split == SPLIT_TRAIN ? !t->o.eval_only : t->o.eval_iters > 0;
}

static struct dataset_opts opts_of(const struct trainer *t, enum options_split split)
{
    return (struct dataset_opts){
        .n_samples = samples_of(t, split), .s = t->o.seq_length, .seed = (uint32_t)t->o.seed,
        .cut = t->o.epoch_cutoff, .index_dir = t->o.index_dir,
    };
}

/* ---- building index files in a thread of rank 0 ---- */

/*
 * The state of the thread that builds index files. When the run ends, this thread may be abandoned in the middle of a
 * system call, so its state must not refer to the trainer.
 */
struct build_job {
    struct data_groups groups[N_SPLITS];
    struct dataset_opts opts[N_SPLITS];
    char *index_dir;
    int n_groups;
    atomic_int at_group;
    struct gpt_index_progress progress;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over;                  /* the thread has finished, and `err` has its outcome */
    struct err err;
};

/*
 * The interval in seconds at which what has been built so far is saved. A process that is killed loses no more than
 * this.
 */
enum { KEEP_S = 30 };

static void *build_dataset_indexes(void *arg)
{
    struct build_job *j = arg;
    struct err e = {0};
    int at = 0, rc = 0;

    for (int split = 0; split < N_SPLITS; split++)
        for (int i = 0; i < j->groups[split].n && rc == 0; i++) {
            struct dataset *d = NULL;

            atomic_store(&j->at_group, at++);
            rc = dataset_open(&j->groups[split].group[i], &j->opts[split], &d, &e);
            dataset_close(d);
        }
    pthread_mutex_lock(&j->lock);
    j->err = e;
    j->over = true;
    pthread_cond_signal(&j->ended);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static void build_job_free(struct build_job *j)
{
    for (int split = 0; split < N_SPLITS; split++)
        data_groups_free(&j->groups[split]);
    free(j->index_dir);
    free(j);
}

/*
 * Start the thread that builds the index files. Returns NULL with *e set if the thread cannot be started, or if the
 * data options are invalid.
 */
static struct build_job *job_start(const struct trainer *t, struct err *e)
{
    struct build_job *j = xcalloc(1, sizeof *j);
    sigset_t all, before;
    int rc = 0;

    j->index_dir = t->o.index_dir ? xstrdup(t->o.index_dir) : NULL;
    j->progress.keep_s = KEEP_S;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->ended, NULL);
    for (int split = 0; split < N_SPLITS && rc == 0; split++) {
        j->opts[split] = opts_of(t, (enum options_split)split);
        j->opts[split].index_dir = j->index_dir;
        j->opts[split].build = true;
        j->opts[split].progress = &j->progress;
        if (wants(t, (enum options_split)split))
            rc = options_data_groups(&t->o, (enum options_split)split, &j->groups[split], e);
        j->n_groups += j->groups[split].n;
    }
    /* Block all signals in this thread, so that the main thread handles them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (rc == 0 && pthread_create(&j->thread, NULL, build_dataset_indexes, j) != 0) {
        err_sys(e, "index", "cannot start a thread");
        rc = -1;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return j;
    build_job_free(j);
    return NULL;
}

/* Returns true if the build has ended. Waits for at most wait_ms milliseconds. */
static bool job_over(struct build_job *j, long wait_ms)
{
    struct timespec until;
    bool over;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += wait_ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&j->lock);
    while (!j->over && pthread_cond_timedwait(&j->ended, &j->lock, &until) == 0)
        ;
    over = j->over;
    pthread_mutex_unlock(&j->lock);
    return over;
}

/*
 * Returns how much of the work is done, in percent. The work is to build or find all index files. Returns -1 if nothing
 * has had to be built so far.
 */
static double job_percent(struct build_job *j)
{
    const double total = (double)atomic_load(&j->progress.total), done = (double)atomic_load(&j->progress.done);
    const int parts = atomic_load(&j->progress.n_parts);
    const double part = (atomic_load(&j->progress.part) + (total > 0 ? done / total : 0)) / (parts > 0 ? parts : 1);

    return total > 0 ? 100 * (atomic_load(&j->at_group) + part) / j->n_groups : -1;
}

/*
 * Get the outcome of the build, and free the job. If the thread was asked to stop and does not end soon, it is
 * abandoned with all its data.
 */
static int job_end(struct build_job *j, bool stopped, struct err *e)
{
    if (stopped)
        atomic_store(&j->progress.stop, true);
    if (stopped && !job_over(j, 300)) {
        pthread_detach(j->thread);
        err_stop(e);
        return -1;
    }
    pthread_join(j->thread, NULL);
    if (j->err.kind != ERR_NONE)
        *e = j->err;
    else if (stopped)
        err_stop(e);
    build_job_free(j);
    return e->kind == ERR_NONE ? 0 : -1;
}

/* What rank 0 has shown of the progress so far. */
struct build_shown {
    /* percent: the last value shown; -1: none. The other members are times from clock_s(). */
    double percent, begun_s, status_s, line_s;
};

static void show_build(struct trainer *t, struct build_shown *x, double percent)
{
    const double now = clock_s();

    if (percent < 0)
        return;
    if (x->begun_s < 0)
        x->begun_s = now;
    x->percent = t->log.status.percent = percent;
    /* Print no progress line about a build that takes less than 0.3 s. */
    if (now - x->begun_s < 0.3 || now - x->status_s < 1)
        return;
    x->status_s = now;
    show_phase(t, "index");
    if (x->line_s >= 0 && now - x->line_s < 60)
        return;
    x->line_s = now;
    show_line(&t->log, "building the order of samples: %.1f %%", percent);
}

/* What the ranks exchange while rank 0 builds. */
struct build_news {
    int64_t over, stop;
};

static int exchange_build_news(struct trainer *t, struct build_news *x, struct err *e)
{
    x->stop |= status_stop_signal() != 0;
    return comm_host_all_reduce(comm_world_group(t->ranks.world), &x->over, 2, DTYPE_I64, COMM_MAX, e);
}

static int build_and_show(struct trainer *t, struct build_job *j, struct err *e)
{
    struct build_shown shown = { -1, -1, -1, -1 };
    struct build_news x;

    do {
        double percent = -1, before = shown.percent;
        const double begun = clock_s();

        do {
            x = (struct build_news){ .over = job_over(j, 200), .stop = status_kill_switch(t->o.kill_switch_path) };
            percent = job_percent(j);
        } while (!x.over && !x.stop && !status_stop_signal() && percent == before && clock_s() > begun);
        show_build(t, &shown, percent);
        if (exchange_build_news(t, &x, e) < 0) {
            struct err ignored = {0};

            (void)!job_end(j, true, &ignored);
            return -1;
        }
    } while (!x.over && !x.stop);
    if (x.over && shown.line_s >= 0)
        show_line(&t->log, "built the order of samples in %.1f s", clock_s() - shown.begun_s);
    return job_end(j, !x.over, e);
}

static int wait_for_build(struct trainer *t, struct err *e)
{
    struct build_news x;

    do {
        x = (struct build_news){0};
        if (exchange_build_news(t, &x, e) < 0)
            return -1;
    } while (!x.over && !x.stop);
    return 0;
}

/* Build the index files that are missing. Returns 0 if all index files exist. */
static int build_missing(struct trainer *t, struct err *e)
{
    struct err own = {0}, lost = {0};
    struct build_job *j = trainer_is_rank0(t) ? job_start(t, &own) : NULL;

    if (j)
        (void)!build_and_show(t, j, &own);
    else if (trainer_is_rank0(t))
        (void)!exchange_build_news(t, &(struct build_news){ .over = true }, &lost);
    else
        (void)!wait_for_build(t, &lost);
    if (lost.kind != ERR_NONE) {
        *e = lost;
        return -1;
    }
    if (comm_host_broadcast(comm_world_group(t->ranks.world), &own, sizeof own, 0, e) < 0)
        return -1;
    *e = own;
    return own.kind == ERR_NONE ? 0 : -1;
}

/* ---- opening ---- */

static int open_eval(struct trainer *t, enum options_split split, struct evaluate_set **set, int *count, struct err *e)
{
    const struct dataset_opts o = opts_of(t, split);
    struct data_groups g = {0};
    int rc = options_data_groups(&t->o, split, &g, e);

    *set = xcalloc((size_t)g.n + 1, sizeof **set);
    *count = 0;
    for (int i = 0; rc == 0 && i < g.n; i++) {
        struct evaluate_set *v = &(*set)[*count];

        rc = dataset_open(&g.group[i], &o, &v->data, e);
        if (rc < 0 || !v->data)
            continue;
        v->name = xstrdup(g.group[i].name);
        ++*count;
    }
    data_groups_free(&g);
    return rc;
}

static int open_train(struct trainer *t, struct err *e)
{
    const struct dataset_opts o = opts_of(t, SPLIT_TRAIN);
    struct data_groups g = {0};
    int rc = options_data_groups(&t->o, SPLIT_TRAIN, &g, e);

    if (rc == 0 && g.n > 0)
        rc = dataset_open(&g.group[0], &o, &t->sets.train, e);
    if (rc == 0 && !t->sets.train) {
        err_usage(e, "there is no training data: the data options leave it no document");
        rc = -1;
    }
    data_groups_free(&g);
    return rc;
}

static int open_all_datasets(struct trainer *t, struct err *e)
{
    if (wants(t, SPLIT_TRAIN) && open_train(t, e) < 0)
        return -1;
    if (wants(t, SPLIT_VALID) && (open_eval(t, SPLIT_VALID, &t->sets.valid, &t->sets.n_valid, e) < 0 ||
                                  open_eval(t, SPLIT_TEST, &t->sets.test, &t->sets.n_test, e) < 0))
        return -1;
    for (int i = 0; i < t->sets.n_valid; i++)
        t->sets.valid[i].at = t->progress.consumed_valid_samples / t->sets.n_valid;
    return 0;
}

/* Rank 0 opens the data sets first. If it fails, it broadcasts its error, so that all ranks report the same one. */
int sets_open(struct trainer *t, struct err *e)
{
    struct err own = {0};

    if (build_missing(t, e) < 0)
        return -1;
    if (trainer_is_rank0(t))
        (void)!open_all_datasets(t, &own);
    if (comm_host_broadcast(comm_world_group(t->ranks.world), &own, sizeof own, 0, e) < 0)
        return -1;
    if (own.kind != ERR_NONE) {
        *e = own;
        return -1;
    }
    return trainer_is_rank0(t) ? 0 : open_all_datasets(t, e);
}

static void close_sets(struct evaluate_set *set, int n)
{
    for (int i = 0; i < n; i++) {
        dataset_close(set[i].data);
        free(set[i].name);
    }
    free(set);
}

void sets_close(struct trainer *t)
{
    dataset_close(t->sets.train);
    close_sets(t->sets.valid, t->sets.n_valid);
    close_sets(t->sets.test, t->sets.n_test);
}
