/*
 * past_events.c - read all of a run's TensorBoard event files; each start of a run writes its own file
 *
 * The names of the curves (tags) are those of Megatron-LM; docs/training.md 6.5 lists them.
 */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/tfevents_read.h"
#include "tools/run-watch/past/past.h"

static const struct { const char *name; enum past_value value; } tags[] = {
    { "lm-loss-training/lm loss", PAST_LOSS }, { "grad-norm/grad-norm", PAST_NORM },
    { "learning-rate/learning-rate", PAST_LR }, { "batch-size/batch-size", PAST_BATCH },
    { "loss-scale/loss-scale", PAST_SCALE }, { "iteration-time/samples per second", PAST_SAMPLES_S },
    { "iteration-time/TFLOPs per gpu (estimated)", PAST_TFLOPS },
};
static const char valid_tag[] = "lm-loss-validation/", valid_end[] = "/lm loss validation";

struct past_file {
    struct past *p;
    int from;                   /* index of the first point of this file */
};

static struct past_point *point_of(struct past_file *r, int64_t iteration, double at_s)
{
    struct past *p = r->p;
    struct past_point *x = NULL;

    /* Search only the last few points, because the values of one iteration are written together. */
    for (int i = p->n - 1; i >= r->from && i >= p->n - 4 && !x; i--)
        x = p->point[i].iteration == iteration ? &p->point[i] : NULL;
    if (!x) {
        x = past_add_point(p, iteration);
        x->first = p->n - 1 == r->from;
        x->at_s = at_s;
    }
    return x;
}

static void add_event_valid(struct past *p, const struct tfevents_value *v)
{
    char name[sizeof v->tag];
    const size_t begin = sizeof valid_tag - 1, end = sizeof valid_end - 1, len = strlen(v->tag);

    if (len <= begin + end || !str_ends(v->tag, valid_end))
        return;
    memcpy(name, v->tag + begin, len - begin - end);
    name[len - begin - end] = '\0';
    err_clean(name);
    past_add_valid(p, name, v->step, (double)v->value, v->wall_s);
}

static void add_event_value(void *ctx, const struct tfevents_value *v)
{
    struct past_file *r = ctx;

    if (str_starts(v->tag, valid_tag)) {
        add_event_valid(r->p, v);
    } else if (strcmp(v->tag, "steps-vs-samples/y=steps,x=samples") == 0) {
        point_of(r, (int64_t)v->value, v->wall_s)->samples = (double)v->step;
    } else if (strcmp(v->tag, "steps-vs-tokens/y=steps,x=tokens") == 0) {
        point_of(r, (int64_t)v->value, v->wall_s)->tokens = (double)v->step;
    } else if (strcmp(v->tag, "iteration-time/world_size") == 0 && v->value > 0) {
        char *text = str_fmt("world size %.0f", (double)v->value);

        past_add_event(r->p, PAST_START, -1, v->wall_s, text);
        free(text);
    } else {
        for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
            if (strcmp(v->tag, tags[i].name) == 0)
                point_of(r, v->step, v->wall_s)->v[tags[i].value] = (double)v->value;
    }
}

static int by_event_file_name(const void *a, const void *b)
{
    return str_natural_cmp(*(char *const *)a, *(char *const *)b);
}

int past_read_events(struct past *p, const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    char **file = NULL;
    int n = 0, cap = 0, rc = 0;

    if (!d) {
        err_sys(e, dir, "cannot open");
        return -1;
    }
    for (struct dirent *entry; (entry = readdir(d));)
        if (strstr(entry->d_name, "tfevents")) {
            ARRAY_ROOM(file, cap, n + 1);
            file[n++] = path_join(dir, entry->d_name);
        }
    closedir(d);
    /* Sort the files by name: the names contain the second in which each file was created. */
    if (n)
        qsort(file, (size_t)n, sizeof *file, by_event_file_name);
    for (int i = 0; i < n; i++) {
        struct past_file r = { p, p->n };

        if (rc == 0)
            rc = tfevents_read(file[i], 0, add_event_value, &r, e);
        free(file[i]);
    }
    free(file);
    return rc;
}
