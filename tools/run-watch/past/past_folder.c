/*
 * past_folder.c - read a run's folder of checkpoints
 *
 *   status.json              the state of the run
 *   reports/RUN/NAME.json    why a job ended, and incidents after which it continued (train(1), FILES)
 *   global_stepN/            checkpoints that exist now
 *   tensorboard/             event files
 */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/run-watch/past/past.h"

/* largest size of a report that is read; sufficient for a report about many ranks */
static const uint64_t max_bytes = 64 << 20;

/*
 * Call `each` with the path of every entry of a folder. A missing folder counts as empty. If a call fails, the other
 * entries are still processed, and for_each() returns -1 with the first error in *e. Otherwise it returns the bitwise
 * OR of the results of all calls.
 */
static int for_each(const char *dir, int (*each)(struct past *p, const char *path, const char *name, struct err *e),
                    struct past *p, struct err *e)
{
    DIR *d = opendir(dir);
    int rc = 0;

    if (!d)
        return 0;
    for (struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.') {
            char *path = path_join(dir, entry->d_name);
            int is = each(p, path, entry->d_name, e);

            rc = rc < 0 || is < 0 ? -1 : rc | is;
            free(path);
        }
    closedir(d);
    return rc;
}

static json_t *read_json_object(const char *path, struct err *e)
{
    uint64_t size;
    char *text = file_slurp(path, max_bytes, &size, e);
    json_error_t why;
    json_t *o;

    if (!text)
        return NULL;
    o = json_loadb(text, size, 0, &why);
    free(text);
    if (json_is_object(o))
        return o;
    json_decref(o);
    err_data(e, path, ERR_NO_BYTE, "is no object of JSON");
    return NULL;
}

static double get_json_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static int add_report(struct past *p, const char *path, const char *name, struct err *e)
{
    const char *cause, *message;
    char *text;
    json_t *o;

    if (!str_ends(name, ".json"))
        return 0;
    o = read_json_object(path, e);
    if (!o)
        return -1;
    cause = json_string_value(json_object_get(o, "cause"));
    message = json_string_value(json_object_get(o, "message"));
    text = str_fmt("%s%s%s", cause ? cause : name, message ? ": " : "", message ? message : "");
    past_add_event(p, PAST_INCIDENT, (int64_t)get_json_number(o, "iteration", -1),
                   get_json_number(o, "time_s", (double)NAN), text);
    free(text);
    json_decref(o);
    return 0;
}

static int add_reports(struct past *p, const char *path, const char *name, struct err *e)
{
    (void)name;
    return for_each(path, add_report, p, e);
}

/*
 * Add an event for the save of a checkpoint folder. Its time is the modification time of the folder, which is renamed
 * when the checkpoint is complete.
 */
static int add_save(struct past *p, const char *path, const char *name, struct err *e)
{
    static const char tag[] = "global_step";
    struct stat st;
    char *end;
    long long step;

    (void)e;
    if (!str_starts(name, tag) || stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return 0;
    step = strtoll(name + sizeof tag - 1, &end, 10);
    if (end != name + sizeof tag - 1 && !*end)
        past_add_event(p, PAST_SAVE, step, (double)st.st_mtim.tv_sec, "")->kept = true;
    return 0;
}

static int read_folder(struct past *p, const char *dir, struct err *e)
{
    char *status = path_join(dir, "status.json"), *reports = path_join(dir, "reports");
    char *events = path_join(dir, "tensorboard");
    int rc = 0;

    /* Report the parts of the folder that cannot be read, and read the others. */
    if (access(dir, R_OK | X_OK) < 0) {
        err_sys(e, dir, "cannot be read");
        rc = -1;
    }
    if (access(status, F_OK) == 0) {
        json_decref(p->status);
        p->status = read_json_object(status, e);
        rc = p->status ? rc : -1;
        p->train_iters = (int64_t)get_json_number(p->status, "train_iters", (double)p->train_iters);
    }
    if (for_each(reports, add_reports, p, e) < 0)
        rc = -1;
    if (for_each(dir, add_save, p, e) < 0)
        rc = -1;
    if (p->n == 0 && access(events, F_OK) == 0 && past_read_events(p, events, e) < 0)
        rc = -1;
    free(status);
    free(reports);
    free(events);
    return rc;
}

static int is_event_file(struct past *p, const char *path, const char *name, struct err *e)
{
    (void)p;
    (void)path;
    (void)e;
    return strstr(name, "tfevents") != NULL;
}

int past_read(struct past *p, const char *path, struct err *e)
{
    struct stat st;

    if (stat(path, &st) < 0) {
        err_sys(e, path, "cannot be read");
        return -1;
    }
    if (!S_ISDIR(st.st_mode))
        return past_read_log(p, path, e);
    if (for_each(path, is_event_file, p, e) <= 0)
        return read_folder(p, path, e);
    return p->n ? 0 : past_read_events(p, path, e);
}
