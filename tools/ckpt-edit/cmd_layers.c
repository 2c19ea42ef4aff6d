/* cmd_layers.c - the command layers: parse the list of layers */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/edit/edit_verbs.h"
#include "tools/ckpt-edit/ckptedit.h"

/*
 * Parse a list of layers such as "0-3,7,7". Returns the list, which the caller frees, or NULL if the text is not a
 * valid list.
 */
static int *read_list(const char *text, int n_layers, int *n, struct err *e)
{
    int *list = NULL;
    const char *p = text;
    int cap = 0;
    char *end;

    for (*n = 0;; p = end + 1) {
        int64_t a = strtoll(p, &end, 10), b = a;
        bool odd = end == p || !isdigit((unsigned char)*p);

        if (!odd && *end == '-') {
            p = end + 1;
            b = strtoll(p, &end, 10);
            odd = end == p || !isdigit((unsigned char)*p);
        }
        if (odd || (*end && *end != ',') || a >= n_layers || b >= n_layers || b < a) {
            err_usage(e, "layers %s: LIST must contain numbers and ranges from 0 to %d, such as 0-3,7",
                      text, n_layers - 1);
            free(list);
            return NULL;
        }
        for (int64_t k = a; k <= b; k++) {
            ARRAY_ROOM(list, cap, *n + 1);
            list[(*n)++] = (int)k;
        }
        if (!*end)
            return list;
    }
}

/* Return the layers that are not in the list. */
static int *others(const int *list, int n, int n_layers, int *n_others)
{
    int *rest = xcalloc((size_t)n_layers + 1, sizeof *rest);

    *n_others = 0;
    for (int k = 0; k < n_layers; k++) {
        bool listed = false;

        for (int i = 0; i < n; i++)
            listed = listed || list[i] == k;
        if (!listed)
            rest[(*n_others)++] = k;
    }
    return rest;
}

/*
 * Return the layers of the result, in their order in the result. The caller frees the list. Returns NULL if the
 * argument is not a valid list, or if no layer would be left.
 */
static int *layers_wanted(struct ckptedit *j, int n_layers, int *n, struct err *e)
{
    int *list = read_list(j->arg[1], n_layers, n, e), *rest;

    if (list && strcmp(j->arg[0], "drop") == 0) {
        rest = others(list, *n, n_layers, n);
        free(list);
        list = rest;
    }
    if (!list || *n > 0)
        return list;
    err_usage(e, "layers: the list would leave no layer");
    free(list);
    return NULL;
}

int change_layers(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct report *notes;
    int n_layers, n, rc;
    int *picked;

    (void)s;
    if (strcmp(j->arg[0], "drop") != 0 && strcmp(j->arg[0], "keep") != 0) {
        err_usage(e, "layers %s: the first argument must be keep or drop", j->arg[0]);
        return -1;
    }
    n_layers = edit_count_layers(x, e);
    picked = n_layers < 0 ? NULL : layers_wanted(j, n_layers, &n, e);
    if (!picked)
        return -1;
    notes = report_new();
    rc = edit_pick_layers(x, picked, n, notes, e);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    free(picked);
    return rc;
}
