/*
 * status_run.c - parse the fields of status.json; their meaning is described in train(1), FILES
 */
#include "tools/run-watch/status_run.h"

#include <stdlib.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/run-watch/book.h"

static const uint64_t max_bytes = 1 << 20;

static const char *get_status_text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

int status_run_read(struct status_run *s, const char *dir, struct err *e)
{
    char *path = path_join(dir, "status.json"), *text;
    uint64_t size;
    int rc = -1;

    *s = (struct status_run){0};
    text = file_slurp(path, max_bytes, &size, e);
    if (!text)
        goto out;
    s->all = json_loadb(text, size, 0, NULL);
    if (!json_is_object(s->all) || book_number(s->all, "updated_s", 0) <= 0) {
        err_data(e, path, ERR_NO_BYTE, "is not a status file of train (%llu bytes)", (unsigned long long)size);
        goto out;
    }
    s->host = get_status_text(s->all, "host");
    s->phase = get_status_text(s->all, "phase");
    s->tag = get_status_text(s->all, "last_complete_tag");
    s->stalled = get_status_text(s->all, "stalled");
    s->stop_reason = get_status_text(s->all, "stop_reason");
    s->message = get_status_text(s->all, "message");
    s->started_s = book_number(s->all, "started_s", 0);
    s->updated_s = book_number(s->all, "updated_s", 0);
    s->iteration_s = book_number(s->all, "iteration_s", 0);
    s->iteration = (int64_t)book_number(s->all, "iteration", -1);
    s->pid = (int64_t)book_number(s->all, "pid", -1);
    rc = 0;
out:
    free(text);
    free(path);
    return rc;
}

void status_run_free(struct status_run *s)
{
    json_decref(s->all);
    *s = (struct status_run){0};
}
