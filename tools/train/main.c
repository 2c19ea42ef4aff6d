/*
 * train - pre-training with tensor, pipeline and data parallelism: the phases of a run
 */
#include "tools/train/checkpoint/writer.h"
#include "tools/train/ending.h"
#include "tools/train/health/preflight.h"
#include "tools/train/run/loop.h"
#include "tools/train/run/setup.h"
#include "tools/train/start.h"

/* The struct is static, because signal handlers and the watch's thread access it until the process ends. */
static struct trainer train;

/* Run the job. *why receives the reason why it ended. Returns -1 on failure. */
static int run(struct trainer *t, enum status_reason *why, struct err *e)
{
    int rc = start_log(t, why, e);

    if (rc)
        return rc < 0 ? -1 : 0;
    if (t->o.preflight)
        return trainer_setup_preflight(t, e) < 0 ? -1 : preflight_run(t, e);
    if (trainer_setup(t, e) < 0) {
        if (e->kind != ERR_STOP)
            return -1;
        err_clear(e);
        return start_check_stop(t, why, e) < 0 ? -1 : 0;
    }
    return t->o.dry_run ? 0 : trainer_run(t, why, e);
}

int main(int argc, char **argv)
{
    struct trainer *t = &train;
    enum status_reason why = STATUS_FINISHED;
    struct err e = {0};
    int rc, status;

    if (start_process(t, argc, argv, &status)) {
        if (start_join(t, &status)) {
            rc = run(t, &why, &e);
            status = ending_leave(t, rc, why, &e);
        }
        writer_end(t->saves.writer);
    }
    options_free(&t->o);
    return status;
}
