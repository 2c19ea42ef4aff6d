/* history_events.c - read the newest of a run's TensorBoard event files; each start of a run writes its own file */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/tfevents_read.h"
#include "tools/run-watch/history.h"

static const double history_s = 7200;

/* Returns the point for the iteration of *v. If there is none, adds it. In most cases it is the last point. */
static struct history_point *point_at(struct history *h, const struct tfevents_value *v)
{
    if (h->n == 0 || h->point[h->n - 1].iteration != v->step) {
        ARRAY_ROOM(h->point, h->cap, h->n + 1);
        h->point[h->n++] = (struct history_point){ .iteration = v->step, .loss = (double)NAN };
    }
    h->point[h->n - 1].at_s = v->wall_s;
    return &h->point[h->n - 1];
}

static void add_history_value(void *ctx, const struct tfevents_value *v)
{
    struct history *h = ctx;

    if (strcmp(v->tag, "lm-loss-training/lm loss") == 0) {
        struct history_point *p = point_at(h, v);

        p->is_nan = !isfinite(v->value);
        p->loss = p->is_nan ? (double)NAN : (double)v->value;
    } else if (strcmp(v->tag, "iteration-time/samples per second") == 0) {
        point_at(h, v)->samples_per_s = (double)v->value;
    } else if (strcmp(v->tag, "iteration-time/iteration-time") == 0) {
        point_at(h, v)->iteration_s = (double)v->value;
    }
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct history_point *)a)->at_s, y = ((const struct history_point *)b)->at_s;

    return (x > y) - (x < y);
}

/* Compute the durations that are missing, from the times at which consecutive iterations ended. */
static void fill_lengths(struct history *h)
{
    for (int i = 1; i < h->n; i++) {
        struct history_point *p = &h->point[i], *q = p - 1;

        if (p->iteration_s <= 0 && p->iteration > q->iteration)
            p->iteration_s = (p->at_s - q->at_s) / (double)(p->iteration - q->iteration);
    }
}

static double modified_s(const char *path)
{
    struct stat st;

    return stat(path, &st) < 0 ? 0 : (double)st.st_mtim.tv_sec;
}

/* List the paths of the event files in the folder, in no particular order. */
static int list_event_files(const char *dir, char ***list, int *n, struct err *e)
{
    DIR *d = opendir(dir);
    int cap = 0;

    if (!d) {
        err_sys(e, dir, "cannot open");
        return -1;
    }
    for (struct dirent *entry; (entry = readdir(d));)
        if (strstr(entry->d_name, "tfevents")) {
            ARRAY_ROOM(*list, cap, *n + 1);
            (*list)[(*n)++] = path_join(dir, entry->d_name);
        }
    closedir(d);
    return 0;
}

int history_read_events(struct history *h, const char *dir, double now_s, struct err *e)
{
    char **file = NULL;
    int n = 0, rc = list_event_files(dir, &file, &n, e);
    double newest = 0;

    for (int i = 0; i < n; i++)
        newest = modified_s(file[i]) > newest ? modified_s(file[i]) : newest;
    /* If the run has stopped, read the last hours in which it was active. */
    if (newest > 0 && newest < now_s)
        now_s = newest;
    for (int i = 0; i < n && rc == 0; i++)
        if (modified_s(file[i]) >= now_s - history_s)
            rc = tfevents_read(file[i], now_s - history_s, add_history_value, h, e);
    for (int i = 0; i < n; i++)
        free(file[i]);
    free(file);
    h->dated = true;
    if (h->n > 1)
        qsort(h->point, (size_t)h->n, sizeof *h->point, by_time);
    fill_lengths(h);
    return rc;
}
