/*
 * status_inspect.c - the verb status: check a run of train from outside, through the files that it writes
 */
#include "tools/run-watch/status_inspect.h"

#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/text.h"

/* Read the log that the options name. If they name none, read the event files. */
static void read_history(struct runwatch *w, const char *dir, struct history *h)
{
    char *own = path_join(dir, "tensorboard");
    const char *events = w->events ? w->events : access(own, F_OK) == 0 ? own : NULL;
    struct err e = {0};
    int rc = 0;

    if (w->log)
        rc = history_read_log(h, w->log, &e);
    else if (events)
        rc = history_read_events(h, events, w->now_s, &e);
    else
        round_unknown(w, "history", NULL, "loss and throughput: needs the run's log (--log FILE) or its TensorBoard "
                                          "files (--events DIR)");
    if (rc < 0)
        round_unknown(w, "history", NULL, "%s", e.msg);
    else if (h->n == 0 && (w->log || events))
        round_report_ok(w, "history", w->log ? w->log : events, "no iteration yet");
    free(own);
}

static void add_facts(struct runwatch *w, const struct status_run *s)
{
    json_object_set_new(w->facts, "iteration", s->iteration < 0 ? json_null() : json_integer(s->iteration));
    json_object_set_new(w->facts, "phase", text_json(s->phase));
    json_object_set_new(w->facts, "stop_reason", text_json(s->stop_reason));
    json_object_set_new(w->facts, "heartbeat_age_s", json_real(w->now_s - s->updated_s));
    json_object_set_new(w->facts, "last_complete_tag", text_json(s->tag));
}

int status_inspect(struct runwatch *w, struct err *e)
{
    char *dir = realpath(w->arg[0], NULL);
    struct history h = {0};
    struct status_run s = {0};
    int rc = -1;

    w->scope = str_fmt("status %s", dir ? dir : w->arg[0]);
    if (!dir) {
        err_sys(e, w->arg[0], "cannot be read");
        goto out;
    }
    if (status_run_read(&s, dir, e) < 0)
        goto out;
    add_facts(w, &s);
    read_history(w, dir, &h);
    status_alive(w, dir, &s, &h);
    status_numbers(w, &h, !s.stop_reason);
    status_saves(w, dir, &s);
    rc = 0;
out:
    status_run_free(&s);
    history_free(&h);
    free(dir);
    return rc;
}
