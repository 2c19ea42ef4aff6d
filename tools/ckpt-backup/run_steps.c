/* run_steps.c - determine which folders of a run are its steps */
#include "tools/ckpt-backup/run_steps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-backup/rules/step_name.h"

void run_steps_add(struct run_steps *l, const char *run, const char *name)
{
    char *path = path_join(run, name), *plain = str_fmt("global_step%lld", (long long)step_name_number(name));
    struct stat st;
    bool is_step = step_name_number(name) >= 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode);

    /* global_step01 is not accepted, because it would be the same step as global_step1 */
    if (is_step)
        is_step = step_name_is_global(name) ? strcmp(name, plain) == 0 : layout_is_step(path);
    if (is_step) {
        ARRAY_ROOM(l->name, l->cap, l->n + 1);
        l->name[l->n++] = xstrdup(name);
    }
    free(plain);
    free(path);
}

static int by_step_number(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const int64_t m = step_name_number(x), n = step_name_number(y);

    return m != n ? (m > n) - (m < n) : strcmp(x, y);
}

/*
 * Set *latest to a name of the series that is that of the run, or to NULL if there is none. Returns -1 with *e set if
 * it is not known which.
 */
static int find_run_series(const struct run_steps *l, const char *run, char **latest, struct err *e)
{
    int first = -1, other = -1;

    if (*latest && step_name_number(*latest) >= 0)
        return 0;
    free(*latest);
    *latest = NULL;
    for (int i = 0; i < l->n; i++)
        if (step_name_is_global(l->name[i])) {
            *latest = xstrdup(l->name[i]);
            return 0;
        } else if (first < 0) {
            first = i;
        } else if (!step_name_same_series(l->name[first], l->name[i])) {
            other = i;
        }
    if (other >= 0) {
        err_data(e, run, ERR_NO_BYTE, "holds steps with two kinds of names, such as %s and %s, and no pointer file "
                                      "such as 'latest' names one of them; move those of one kind to another folder",
                 l->name[first], l->name[other]);
        return -1;
    }
    *latest = first < 0 ? NULL : xstrdup(l->name[first]);
    return 0;
}

static bool is_link(const char *run, const char *name)
{
    char *path = path_join(run, name);
    struct stat st;
    const bool yes = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);

    free(path);
    return yes;
}

/* Of folders with the same step keep one. The list is sorted by steps. */
static void ignore_duplicates(struct run_steps *l, const char *run, const char *latest)
{
    int n = 0;

    l->ignored = xcalloc((size_t)l->n + 1, sizeof *l->ignored);
    for (int i = 0; i < l->n; i++)
        if (n == 0 || step_name_number(l->name[n - 1]) != step_name_number(l->name[i])) {
            l->name[n++] = l->name[i];
        } else if (strcmp(l->name[n - 1], latest) != 0 &&
                   (strcmp(l->name[i], latest) == 0 || is_link(run, l->name[n - 1]))) {
            l->ignored[l->n_ignored++] = l->name[n - 1];
            l->name[n - 1] = l->name[i];
        } else {
            l->ignored[l->n_ignored++] = l->name[i];
        }
    l->n = n;
}

int run_steps_choose(struct run_steps *l, const char *run, char **latest, struct err *e)
{
    int n = 0;

    if (l->n)
        qsort(l->name, (size_t)l->n, sizeof *l->name, by_step_number);
    if (find_run_series(l, run, latest, e) < 0)
        return -1;
    for (int i = 0; i < l->n; i++)
        if (step_name_same_series(*latest, l->name[i]))
            l->name[n++] = l->name[i];
        else
            free(l->name[i]);
    l->n = n;
    ignore_duplicates(l, run, *latest);
    return 0;
}

void run_steps_free(struct run_steps *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->name[i]);
    for (int i = 0; i < l->n_ignored; i++)
        free(l->ignored[i]);
    free(l->name);
    free(l->ignored);
    *l = (struct run_steps){0};
}
