/*
 * train - pre-training with tensor, pipeline and data parallelism: the start and the end of a run
 */
#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/cli/cli.h"
#include "libcommon/comm/launch.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/checkpoint/savelock.h"
#include "tools/train/checkpoint/writer.h"
#include "tools/train/guard/crash.h"
#include "tools/train/guard/incident_report.h"
#include "tools/train/health/preflight.h"
#include "tools/train/log/cause.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/options/refusal.h"
#include "tools/train/run/loop.h"
#include "tools/train/run/savedir.h"
#include "tools/train/run/saving.h"
#include "tools/train/run/setup.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"
#include "tools/train/trace/trace.h"

/* static and one per process, because signal handlers and monitor threads access it */
static struct trainer train;

static int exit_status(const struct err *e)
{
    return e->kind == ERR_USAGE ? EXIT_USAGE : train.failure.cause ? (int)train.failure.cause : CAUSE_FAILED;
}

static int report_train_failure(const struct err *e)
{
    fprintf(stderr, "train: %s\n", e->msg);
    return exit_status(e);
}

static void dump_calls_on_signal(int sig)
{
    (void)sig;
    if (train.ranks.world)
        watch_dump(comm_watch(train.ranks.world));
}

/* Set if this process wrote the final report or the final status; it then syncs them to disk. */
static atomic_bool wrote_report, wrote_status;

/* Write the report of a failure. Returns its path if the file exists, even if another rank wrote it; else NULL. */
static const char *write_failure_report(struct trainer *t, const struct report_incident *x)
{
    static char path[PATH_MAX];

    if (!t->report.world)
        return NULL;
    report_path(&t->report, x->file, path);
    if (report_write(&t->report, x))
        wrote_report = true;
    return access(path, F_OK) == 0 ? path : NULL;
}

/* Wait up to a second for rank 0 to write the report, because rank 0 has more information if it can still write. */
static void leave_it_to_rank_0(const struct trainer *t)
{
    char path[PATH_MAX];

    report_path(&t->report, "report.json", path);
    for (int i = 0; i < 50 && access(path, F_OK) < 0; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

/*
 * Write the report of the end. Normally rank 0 does this. If rank 0 was lost, some other ranks try, and the first
 * report is kept. Launchers kill the remaining ranks within a second, so the report is written first and the stacks
 * last. A rank that crashed has already written its own stacks.
 */
static const char *report_end(struct trainer *t, const struct watch_end *end)
{
    if (!t->report.world || (!trainer_is_rank0(t) && (end->rank != 0 || end->doing || t->ranks.place->local_rank > 1)))
        return NULL;
    if (!trainer_is_rank0(t) && end->status != CAUSE_LOST)
        leave_it_to_rank_0(t);
    return write_failure_report(t, &(struct report_incident){
        .cause = cause_name(end->status), .status = end->status, .message = end->reason, .file = "report.json",
        .rank = end->rank, .signal = end->signal, .doing = end->doing });
}

/*
 * Returns true if the status file belongs to this job. If another job has acquired the lock, this job must not write
 * the file.
 */
static bool is_status_ours(const struct trainer *t, struct err *e)
{
    return t->log.status_path && (!t->saves.lock || savelock_held(t->saves.lock, e));
}

/* Write the final status. If two threads get here, the first one wins. */
static void write_final_status(const struct trainer *t, const struct status *last)
{
    struct err e = {0};
    int rc = is_status_ours(t, &e) ? status_end(t->log.status_path, last, &e) : 1;

    if (rc == 0)
        wrote_status = true;
    else if (rc < 0 && !t->log.status_fails)
        fprintf(stderr, "train: %s\n", e.msg);
}

static void flush_events(const struct trainer *t)
{
    struct err e = {0};

    if (tfevents_flush(t->log.events, &e) < 0)
        fprintf(stderr, "train: %s\n", e.msg);
}

/* Sync what this process has written about the end to disk, so that it survives a failure of the host. */
static void sync_end(const struct trainer *t)
{
    struct err e = {0};

    if (wrote_report && report_sync(&t->report, "report.json", &e) < 0)
        fprintf(stderr, "train: %s\n", e.msg);
    err_clear(&e);
    if (wrote_status && status_sync(t->log.status_path, &e) < 0)
        fprintf(stderr, "train: %s\n", e.msg);
}

/*
 * Called when the job is being aborted. TensorBoard's curves are written last, because they may be stored on another
 * disk that hangs.
 */
static void on_abort(void *arg, const struct watch_end *end)
{
    const char *report = report_end(&train, end);
    struct status last = train.log.status;

    (void)arg;
    last.reason = STATUS_FAILED;
    last.message = end->reason;
    last.cause = cause_name(end->status);
    last.report = report;
    write_final_status(&train, &last);
    savelock_drop(train.saves.lock);
    if (!end->signal || end->rank != train.ranks.place->rank)
        report_stacks(&train.report, end->reason);
    flush_events(&train);
}

/* Called when no rank waits any more, so a busy disk may take long. */
static void on_left(void *arg)
{
    (void)arg;
    sync_end(&train);
}

/*
 * Called when the job makes no progress, or (text NULL) continues. Ranks other than 0 are informed only if rank 0
 * does not respond.
 */
static void on_stall(void *arg, const char *text)
{
    struct trainer *t = arg;
    const struct comm_place *root;
    char *path;
    struct err e = {0};
    int rc = 0;

    if (!t->ranks.place || trainer_is_check_only(t))
        return;
    root = comm_place_of(t->ranks.world, 0);
    path = t->o.status_file ? xstrdup(t->o.status_file) : t->o.save ? path_join(t->o.save, "status.json") : NULL;
    if (!trainer_is_rank0(t) && path)
        rc = status_stalled_for(path, root->host, root->pid, text, &e);
    else if (trainer_is_rank0(t) && is_status_ours(t, &e))
        rc = status_stalled(t->log.status_path, &t->log.status, text, &e);
    if (rc < 0)
        fprintf(stderr, "train: %s\n", e.msg);
    free(path);
}

/* hooks for --trace */
static void on_call(void *arg, const char *call, const char *group, bool outside)
{
    trace_call(((struct trainer *)arg)->trace, call, group, outside);
}

static void on_phase(void *arg, const char *phase, int micro_batch)
{
    trace_phase(((struct trainer *)arg)->trace, phase, micro_batch);
}

static void show_text_line(void *trainer, const char *line)
{
    struct trainer *t = trainer;

    show_line(&t->log, "%s", line);
}

static void on_lost_lock(void *arg, const char *reason)
{
    struct trainer *t = arg;

    comm_abort(t->ranks.world, CAUSE_FAILED, reason);
}

static bool is_stop_requested(void) { return status_stop_signal() != 0; }

/*
 * While ranks wait to connect, no work has begun that would have to be completed, so a signal ends the process at
 * once.
 */
static void let_signals_end_us(const struct launch *l)
{
    if (l->size == 1)
        return;
    status_release_signals();
    if (status_stop_signal())
        raise(status_stop_signal());
}

/* Join the job. Returns 0, the exit status if the options of any rank were refused, or -1. */
static int join_train_job(struct trainer *t, struct err *e)
{
    struct comm_options co = {
        .hang_timeout_s = t->o.collective_timeout > 0 ? (double)t->o.collective_timeout : -1, .on_abort = on_abort,
        .on_leave = crash_leave_core, .on_left = on_left,
        .stall_notice_s = t->o.stall_notice > 0 ? (double)t->o.stall_notice : -1, .on_stall = on_stall, .arg = t,
        .statuses = { .lost = CAUSE_LOST, .crashed = CAUSE_CRASH, .hang = CAUSE_HANG },
    };
    double start = -status_process_start();
    struct launch l;
    int refused;

    if (t->o.trace) {
        co.on_call = on_call;
        co.on_phase = on_phase;
    }
    if (launch_find(&l, e) < 0)
        return -1;
    let_signals_end_us(&l);
    if (comm_world_open(&co, &t->ranks.world, e) < 0)
        return -1;
    refused = refusal_share(t->ranks.world, NULL, e);
    if (refused > 0)
        comm_world_close(t->ranks.world);
    if (refused)
        return refused;
    t->ranks.place = comm_place(t->ranks.world);
    status_catch_signals(dump_calls_on_signal);
    if (comm_host_all_reduce(comm_world_group(t->ranks.world), &start, 1, DTYPE_F64, COMM_MAX, e) < 0)
        return -1;
    t->ranks.start_s = -start;
    return 0;
}

/* Lock the folder of --save, before anything in it is read or changed. */
static int lock_save(struct trainer *t, struct err *e)
{
    const struct savelock_opts o = {
        .dir = t->o.save, .say = show_text_line, .lost = on_lost_lock, .stopped = is_stop_requested, .arg = t
    };

    if (dir_make(t->o.save, e) < 0)
        return -1;
    t->saves.lock = savelock_acquire(&o, e);
    if (!t->saves.lock)
        return -1;
    checkpoint_latest(t->o.save, t->saves.complete_tag, sizeof t->saves.complete_tag);
    t->log.status.last_complete_tag = *t->saves.complete_tag ? t->saves.complete_tag : NULL;
    return 0;
}

/* Open rank 0's log, folder, events and status file. */
static int open_log(struct trainer *t, struct err *e)
{
    t->log.status.loss = NAN;
    t->log.status.lr = t->log.status.iteration_s = -1;
    if (!trainer_is_rank0(t))
        return 0;
    if (savedir_check_steps_early(t, e) < 0)
        return -1;
    t->log.lines = trainlog_open(t->o.log_file, !t->o.quiet || !t->o.log_file, e);
    if (!t->log.lines)
        return -1;
    if (trainer_is_check_only(t))
        return 0;
    if (t->o.save && lock_save(t, e) < 0)
        return -1;
    if (t->o.tensorboard_dir && !(t->log.events = tfevents_open(t->o.tensorboard_dir, t->o.tensorboard_queue_size,
                                                            TRAINLOG_TB_WAIT_S, e)))
        return -1;
    if (t->o.status_file)
        t->log.status_path = xstrdup(t->o.status_file);
    else if (t->o.save)
        t->log.status_path = path_join(t->o.save, "status.json");
    /*
     * The run may end before it has progress of its own; until then the status file keeps what the previous run
     * wrote.
     */
    if (t->log.status_path)
        status_recall(t->log.status_path, &t->log.status);
    return 0;
}

/* Open the log on rank 0. The other ranks wait for the result, and exit with rank 0 if it failed. */
static int open_log_for_all(struct trainer *t, struct err *e)
{
    struct err told = {0};

    if (open_log(t, &told) < 0)
        assert(told.kind != ERR_NONE);
    if (comm_host_broadcast(comm_world_group(t->ranks.world), &told, sizeof told, 0, e) < 0)
        return -1;
    if (told.kind == ERR_NONE || told.kind == ERR_STOP)  /* killed_at_start() handles the signal, like any early one */
        return 0;
    *e = told;
    t->failure.on_all_ranks = true;
    return -1;
}

/*
 * End the job before it has done anything if the kill switch exists (docs/training.md 6.1), or if a signal came early
 * or while the order of samples was being built.
 */
static int killed_at_start(struct trainer *t, enum status_reason *why, struct err *e)
{
    int64_t there[2] = { trainer_is_rank0(t) && status_kill_switch(t->o.kill_switch_path), status_stop_signal() };
    struct strbuf sb = {0};

    if (comm_host_all_reduce(comm_world_group(t->ranks.world), there, 2, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (there[0] || there[1])
        *why = there[0] ? STATUS_KILL_SWITCH : STATUS_SIGNAL;
    t->log.status.signal = (int)there[1];
    if (there[0] && trainer_is_rank0(t))
        trainlog_add_kill_switch(&sb, t->o.kill_switch_path, time(NULL));
    else if (there[1] && trainer_is_rank0(t))
        trainlog_add_exit_signal(&sb, (int)there[1], time(NULL));
    if (trainer_is_rank0(t))
        trainlog_flush(t->log.lines, &sb);
    strbuf_free(&sb);
    return 0;
}

/* Enable reports: from here on failures are reported. */
static int watch_out(struct trainer *t, struct err *e)
{
    t->report.iteration = &t->progress.iteration;
    t->report.phase = &t->log.status.phase;
    t->report.topo = &t->ranks.topo;
    t->report.alarm = t->o.alarm_command;
    if (report_open(&t->report, t->ranks.world, t->o.save, t->ranks.start_s, e) < 0)
        return -1;
    crash_catch(&t->report, comm_watch(t->ranks.world));
    return 0;
}

static int run_train_job(struct trainer *t, enum status_reason *why, struct err *e)
{
    *why = STATUS_FAILED;
    if (t->o.dry_run_ranks && t->ranks.place->size > 1) {
        err_usage(e, "--dry-run-ranks: %d processes were started, expected one", t->ranks.place->size);
        return -1;
    }
    if (trainer_is_check_only(t)) {
        status_release_signals();
        watch_catch_term(comm_watch(t->ranks.world));
    }
    /* With wrong options, nothing may be changed on disk. */
    if (options_check(&t->o, trainer_ranks_planned(t), OPTIONS_BEFORE_LOAD, e) < 0 || open_log_for_all(t, e) < 0 ||
        killed_at_start(t, why, e) < 0)
        return -1;
    if (*why != STATUS_FAILED)
        return 0;
    if (t->o.save && !trainer_is_check_only(t) && watch_out(t, e) < 0)
        return -1;
    show_phase(t, "start");
    if (t->o.preflight) {
        if (trainer_setup_preflight(t, e) < 0 || preflight_run(t, e) < 0)
            return -1;
        *why = STATUS_FINISHED;
        return 0;
    }
    if (trainer_setup(t, e) < 0) {
        if (e->kind != ERR_STOP)
            return -1;
        err_clear(e);
        return killed_at_start(t, why, e);
    }
    if (t->o.dry_run) {
        *why = STATUS_FINISHED;
        return 0;
    }
    return trainer_run(t, why, e);
}

/* Write the final status and release the lock, on rank 0. Programs that restart the job wait for the lock. */
static void end_log(struct trainer *t, enum status_reason why)
{
    struct status last;

    show_present(t, "stop");
    last = t->log.status;
    last.reason = why;
    write_final_status(t, &last);
    savelock_end(t->saves.lock);
    flush_events(t);
    sync_end(t);
}

static void close_log(struct trainer *t)
{
    struct err e = {0};

    if (tfevents_close(t->log.events, &e) < 0)
        fprintf(stderr, "train: %s\n", e.msg);
    trainlog_close(t->log.lines);
    savelock_free(t->saves.lock);
    free(t->log.status_path);
}

/* Free everything. A rank may be lost even now, so the objects that the watch's thread uses are freed last. */
static void leave_train_job(struct trainer *t, enum status_reason why)
{
    end_log(t, why);
    trainer_free(t);
    crash_release();
    comm_world_close(t->ranks.world);
    t->ranks.world = NULL;                    /* checked by the handler of SIGUSR2 */
    trace_free(t->trace);               /* after closing, because closing is traced, too */
    close_log(t);
}

/*
 * Handle a failure that every rank has seen (a wrong option, insufficient memory, a gradient that is not finite): one
 * rank reports it, the save in progress is completed, and all ranks exit in order.
 */
static int leave_together(struct trainer *t, enum status_reason why, const struct err *said)
{
    struct err e = {0};
    int rc = trainer_is_rank0(t) ? report_train_failure(said) : exit_status(said);

    t->log.status.message = said->msg;
    t->log.status.cause = rc == EXIT_USAGE ? NULL : cause_name(rc);
    if (trainer_is_rank0(t) && rc != EXIT_USAGE)
        t->log.status.report = write_failure_report(t, &(struct report_incident){
            .cause = t->log.status.cause, .status = rc, .message = said->msg, .file = "report.json",
            .rank = t->failure.culprit - 1, .tensor = *t->failure.tensor ? t->failure.tensor : NULL });
    if (comm_barrier(comm_world_group(t->ranks.world), NULL, &e) < 0 ||
        (saving_wait_for_save(t, &e) < 0 && !t->failure.not_finite))
        comm_abort(t->ranks.world, rc, e.msg);
    leave_train_job(t, why);
    return rc;
}

static int train_main(struct trainer *t)
{
    struct err e = {0};
    enum status_reason why;
    int rc = join_train_job(t, &e);

    if (rc)
        return rc < 0 ? report_train_failure(&e) : rc;
    if (run_train_job(t, &why, &e) < 0) {
        why = t->failure.not_finite || why == STATUS_NAN ? STATUS_NAN : STATUS_FAILED;
        t->failure.cause = why == STATUS_NAN ? CAUSE_NAN : t->failure.cause;
        if (why == STATUS_NAN || e.kind == ERR_USAGE || t->failure.on_all_ranks)
            return leave_together(t, why, &e);
        comm_abort(t->ranks.world, exit_status(&e), e.msg);
    }
    leave_train_job(t, why);
    return EXIT_OK;
}

/* Print the output of --help and similar options, once per job. */
static int print_option_answer(enum option_asked asked)
{
    struct launch l;
    struct err e = {0};

    return launch_find(&l, &e) == 0 && l.rank > 0 ? EXIT_OK : cli_answer(&options_table, asked);
}

/*
 * Execute this program again with a short spin count for OpenMP's threads, unless the user has chosen one. GNU's
 * runtime reads the variable before main(). By default, a thread that waits for another spins for up to 10 ms. On a
 * processor that is shared, the other thread cannot run meanwhile: on two busy processors, 160 samples of a small
 * model (hidden size 256) took 27 s, 4.5 s with a spin count of 300, and 6.1 s with one thread. On an idle machine a
 * count of 300 costs 6 %. Returns if there is nothing to do, or if the program cannot be executed again.
 */
static void limit_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    setenv("GOMP_SPINCOUNT", "300", 1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    struct trainer *t = &train;
    struct err e = {0};
    int rc;

    limit_spinning(argv);
    if (options_parse(&t->o, argc, argv, environ, &e) < 0) {
        rc = refusal_leave(&e);
        options_free(&t->o);
        return rc;
    }
    if (t->o.asked) {
        rc = print_option_answer(t->o.asked);
        options_free(&t->o);
        return rc;
    }
    if (t->o.umask >= 0)
        umask((mode_t)t->o.umask);
    /* Install the handlers before anything that takes time, and again after MPI has installed its own. */
    status_catch_signals(dump_calls_on_signal);
    if (t->o.save && !trainer_is_check_only(t) && !(t->saves.writer = writer_start(&e)))
        return report_train_failure(&e);
    rc = train_main(t);
    writer_end(t->saves.writer);
    options_free(&t->o);
    return rc;
}
