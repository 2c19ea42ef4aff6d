/*
 * ending.c - the end of a run: the final report, the final status, and the release of what the run holds
 *
 * A run ends in one of three ways: in order (ending_leave() with a result of 0), by a failure that every rank has seen,
 * after which all ranks exit in order, or because the watch aborts the job (ending_on_abort()). Launchers kill the
 * remaining ranks of an aborted job within a second, so what others need most is written first.
 */
#include "tools/train/ending.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/cli/cli.h"
#include "tools/train/checkpoint/savelock.h"
#include "tools/train/guard/crash.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/run/setup.h"
#include "tools/train/trace/trace.h"

/* True if this process has written the final report or the final status. Only then it must sync this file to disk. */
static atomic_bool wrote_report, wrote_status;

static void print_failure(const struct err *e) { cli_printf(stderr, "%s: %s\n", cli_typed_name("train"), e->msg); }

static int exit_status(const struct trainer *t, const struct err *e)
{
    return e->kind == ERR_USAGE ? EXIT_USAGE : t->failure.cause ? (int)t->failure.cause : CAUSE_FAILED;
}

int ending_report_failure(const struct trainer *t, const struct err *e)
{
    print_failure(e);
    return exit_status(t, e);
}

/* ---- the report of a failure ---- */

/*
 * Write the report of a failure. Returns the path of the report, also if another rank has written it. Returns NULL if
 * there is no report.
 */
static const char *write_failure_report(const struct trainer *t, const struct report_incident *x)
{
    static char path[PATH_MAX];

    if (!t->report.world)
        return NULL;
    report_path(&t->report, x->file, path);
    if (report_write(&t->report, x))
        wrote_report = true;
    return access(path, F_OK) == 0 ? path : NULL;
}

/*
 * Wait for up to a second until rank 0 has written the report, because rank 0's report has more information than this
 * rank's.
 */
static void wait_for_report_of_rank_0(const struct trainer *t)
{
    char path[PATH_MAX];

    report_path(&t->report, "report.json", path);
    for (int i = 0; i < 50 && access(path, F_OK) < 0; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

/*
 * Write the report of an aborted job. Normally rank 0 writes it. If rank 0 was lost, several other ranks try to write
 * it, and the first report is kept.
 */
static const char *report_abort(const struct trainer *t, const struct watch_end *end)
{
    if (!t->report.world ||
        (!trainer_is_rank0(t) && (end->rank != 0 || end->doing || t->ranks.place->local_rank > 1)))
        return NULL;
    if (!trainer_is_rank0(t) && end->status != CAUSE_LOST)
        wait_for_report_of_rank_0(t);
    return write_failure_report(t, &(struct report_incident){
        .cause = cause_name(end->status), .status = end->status, .message = end->reason, .file = "report.json",
        .rank = end->rank, .signal = end->signal, .doing = end->doing });
}

/* ---- the status file ---- */

/*
 * Returns true if status.json belongs to this job. If another job has taken over the lock of the folder, this job must
 * not write the file.
 */
static bool is_status_ours(const struct trainer *t, struct err *e)
{
    return t->log.status_path && (!t->saves.lock || savelock_held(t->saves.lock, e));
}

/* Write the final status. If two threads call this, the first one wins. */
static void write_final_status(const struct trainer *t, const struct status *last)
{
    struct err e = {0};
    int rc = is_status_ours(t, &e) ? status_end(t->log.status_path, last, &e) : 1;

    if (rc == 0)
        wrote_status = true;
    else if (rc < 0 && !t->log.status_fails)
        print_failure(&e);
}

static void flush_events(const struct trainer *t)
{
    struct err e = {0};

    if (tfevents_flush(t->log.events, &e) < 0)
        print_failure(&e);
}

/*
 * Sync the final report and status to disk, if this process has written them, so that they survive a failure of the
 * host.
 */
static void sync_end(const struct trainer *t)
{
    struct err e = {0};

    if (wrote_report && report_sync(&t->report, "report.json", &e) < 0)
        print_failure(&e);
    err_clear(&e);
    if (wrote_status && status_sync(t->log.status_path, &e) < 0)
        print_failure(&e);
}

/* ---- callbacks of the watch ---- */

/*
 * Write the report first and the stacks last, because a rank that crashed has already written its own stacks. Write the
 * curves for TensorBoard after the report, because they may be on another disk that hangs.
 */
void ending_on_abort(void *trainer, const struct watch_end *end)
{
    const struct trainer *t = trainer;
    const char *report = report_abort(t, end);
    struct status last = t->log.status;

    last.reason = STATUS_FAILED;
    last.message = end->reason;
    last.cause = cause_name(end->status);
    last.report = report;
    write_final_status(t, &last);
    savelock_drop(t->saves.lock);
    if (!end->signal || end->rank != t->ranks.place->rank)
        report_stacks(&t->report, end->reason);
    flush_events(t);
}

/* At this point no rank waits any more, so a sync to a busy disk may take long. */
void ending_on_left(void *trainer)
{
    sync_end(trainer);
}

/* On ranks other than 0, this is called only if rank 0 does not respond. */
void ending_on_stall(void *trainer, const char *text)
{
    const struct trainer *t = trainer;
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
        print_failure(&e);
    free(path);
}

/* ---- leaving ---- */

/*
 * On rank 0, write the final status and release the lock of the folder. Programs that restart the job wait until the
 * lock is released.
 */
static void end_log(struct trainer *t, enum status_reason why)
{
    struct status last;

    show_set_phase(t, "stop");
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
        print_failure(&e);
    trainlog_close(t->log.lines);
    savelock_free(t->saves.lock);
    free(t->log.status_path);
}

/* Free everything. Another rank may be lost meanwhile, so the objects that the watch's thread uses are freed last. */
static void leave_job(struct trainer *t, enum status_reason why)
{
    end_log(t, why);
    trainer_free(t);
    crash_release();
    comm_world_close(t->ranks.world);
    t->ranks.world = NULL;              /* the handler of SIGUSR2 checks this */
    trace_free(t->trace);               /* freed after the world is closed, because closing is traced, too */
    close_log(t);
}

/*
 * End the run after a failure that every rank has seen, such as a wrong option, a lack of memory, or a gradient that is
 * not finite. One rank reports the failure, the save in progress is completed, and all ranks exit in order.
 */
static int leave_together(struct trainer *t, enum status_reason why, const struct err *failure)
{
    struct err e = {0};
    int rc = trainer_is_rank0(t) ? ending_report_failure(t, failure) : exit_status(t, failure);

    t->log.status.message = failure->msg;
    t->log.status.cause = rc == EXIT_USAGE ? NULL : cause_name(rc);
    if (trainer_is_rank0(t) && rc != EXIT_USAGE)
        t->log.status.report = write_failure_report(t, &(struct report_incident){
            .cause = t->log.status.cause, .status = rc, .message = failure->msg, .file = "report.json",
            .rank = t->failure.culprit - 1, .tensor = *t->failure.tensor ? t->failure.tensor : NULL });
    if (comm_barrier(comm_world_group(t->ranks.world), NULL, &e) < 0 ||
        (saving_wait_for_save(t, &e) < 0 && !t->failure.not_finite))
        comm_abort(t->ranks.world, rc, e.msg);
    leave_job(t, why);
    return rc;
}

int ending_leave(struct trainer *t, int rc, enum status_reason why, const struct err *e)
{
    if (rc == 0) {
        leave_job(t, why);
        return EXIT_OK;
    }
    why = t->failure.not_finite || why == STATUS_NAN ? STATUS_NAN : STATUS_FAILED;
    t->failure.cause = why == STATUS_NAN ? CAUSE_NAN : t->failure.cause;
    if (why != STATUS_NAN && e->kind != ERR_USAGE && !t->failure.on_all_ranks)
        comm_abort(t->ranks.world, exit_status(t, e), e->msg);
    return leave_together(t, why, e);
}
