/*
 * data_paths.c - parse weights, paths and splits in options and files
 */
#include "libcommon/model/data_paths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { MAX_FILE = 16 << 20 };
static const char blanks[] = " \t\r\n\v\f";

/* Parse a finite number that begins at p. *end receives the first character after it. Returns -1 if there is none. */
static int parse_finite_real(const char *p, double *out, const char **end)
{
    char *stop;

    *out = strtod(p, &stop);
    *end = stop;
    return stop > p && isfinite(*out) ? 0 : -1;
}

static struct data_group *add_data_group(struct data_groups *g, char *name)
{
    g->group = xrealloc(g->group, (size_t)(g->n + 1) * sizeof *g->group);
    g->group[g->n] = (struct data_group){ .name = name };
    return &g->group[g->n++];
}

static struct data_part *new_part(struct data_group *group, char *prefix, double weight)
{
    group->part = xrealloc(group->part, (size_t)(group->n + 1) * sizeof *group->part);
    group->part[group->n] = (struct data_part){ .prefix = prefix, .weight = weight, .split = -1 };
    return &group->part[group->n++];
}

/* ---- --split and --data-path ---- */

int data_parse_split(const char *text, double share[3], struct err *e)
{
    char sep = strchr(text, ',') ? ',' : '/';
    double sum = 0, v;
    const char *p = text;
    int n = 0;

    share[0] = share[1] = share[2] = 0;
    for (;;) {
        if (parse_finite_real(p, &v, &p) < 0 || v < 0)
            goto bad;
        if (n < 3)                      /* further numbers are ignored, as in the reference */
            share[n++] = v;
        p += strspn(p, blanks);
        if (!*p)
            break;
        if (*p++ != sep)
            goto bad;
    }
    for (int i = 0; i < 3; i++)
        sum += share[i];
    if (!(sum > 0))
        goto bad;
    for (int i = 0; i < 3; i++)
        share[i] /= sum;
    return 0;
bad:
    err_usage(e, "--split: '%s' is not up to three numbers like 949,50,1", text);
    return -1;
}

int data_add_paths(struct data_groups *g, int n, char *const *words, const double share[3], int split,
                   struct err *e)
{
    static const char *const names[] = { "train", "valid", "test" };
    struct data_group *group;

    if (n < 1 || (n > 1 && n % 2)) {
        err_usage(e, "--data-path: expected one path, or a weight and a path for each dataset");
        return -1;
    }
    group = add_data_group(g, xstrdup(names[split]));
    for (int i = 0; i < n; i += 2) {
        struct data_part *p;
        const char *end;
        double weight = 1;

        if (n > 1 && (parse_finite_real(words[i], &weight, &end) < 0 || *end || weight < 0)) {
            err_usage(e, "--data-path: '%s' is not a weight", words[i]);
            return -1;
        }
        p = new_part(group, xstrdup(words[n > 1 ? i + 1 : i]), weight);
        p->split = split;
        memcpy(p->share, share, sizeof p->share);
    }
    return 0;
}

/* ---- groups ---- */

static int bad_entry(const char *entry, size_t len, struct err *e)
{
    err_usage(e, "weighted split paths: '%.*s' is not WEIGHT START:END PREFIX with 0 <= START < END <= 1",
              (int)len, entry);
    return -1;
}

/* Parse one part "WEIGHT START:END PREFIX", `len` bytes long, and add it to the group. */
static int parse_data_part_range(struct data_group *group, const char *entry, size_t len, struct err *e)
{
    char *copy = xmalloc(len + 1), *word[4], *save = NULL;
    const char *p;
    double weight, start, end;
    int n = 0, rc = -1;

    memcpy(copy, entry, len);
    copy[len] = '\0';
    for (char *w = strtok_r(copy, blanks, &save); w; w = strtok_r(NULL, blanks, &save))
        if (n < 4)
            word[n++] = w;
    if (n == 3 && parse_finite_real(word[0], &weight, &p) == 0 && !*p && weight >= 0 &&
        parse_finite_real(word[1], &start, &p) == 0 && *p == ':' && parse_finite_real(p + 1, &end, &p) == 0 && !*p &&
        start >= 0 && start < end && end <= 1) {
        struct data_part *part = new_part(group, xstrdup(word[2]), weight);

        part->start = start;
        part->end = end;
        rc = 0;
    } else {
        bad_entry(entry, len, e);
    }
    free(copy);
    return rc;
}

int data_add_group(struct data_groups *g, const char *text, struct err *e)
{
    const char *colon = strchr(text, ':'), *name = text + strspn(text, blanks), *p;
    struct data_group *group;
    size_t len;

    if (!colon || name >= colon) {
        err_usage(e, "weighted split paths: '%s' does not begin with NAME:", text);
        return -1;
    }
    len = (size_t)(colon - name);
    while (strchr(blanks, name[len - 1]))
        len--;
    if (memchr(name, '/', len)) {       /* the name becomes part of a file name */
        err_usage(e, "weighted split paths: the name '%.*s' has a '/'", (int)len, name);
        return -1;
    }
    group = add_data_group(g, str_fmt("%.*s", (int)len, name));
    for (p = colon + 1;; p++) {
        size_t n = strcspn(p, ",");

        if (parse_data_part_range(group, p, n, e) < 0)
            return -1;
        p += n;
        if (!*p)
            return 0;
    }
}

int data_add_group_file(struct data_groups *g, const char *path, struct err *e)
{
    uint64_t size;
    char *text = file_slurp(path, MAX_FILE, &size, e), *p, *next;
    int rc = -1;

    if (!text)
        return -1;
    if (size < 3 || text[0] != '"' || text[size - 2] != '"' || text[size - 1] != '\n' ||
        strchr(text, '\n') != text + size - 1) {
        err_data(e, path, ERR_NO_BYTE, "expected one line of groups, each in double quotes");
        goto out;
    }
    text[size - 2] = '\0';
    for (p = text + 1; p; p = next) {
        next = strstr(p, "\" \"");
        if (next) {
            *next = '\0';
            next += 3;
        }
        if (data_add_group(g, p, e) < 0)
            goto out;
    }
    rc = 0;
out:
    free(text);
    return rc;
}

void data_groups_free(struct data_groups *g)
{
    for (int i = 0; i < g->n; i++) {
        for (int k = 0; k < g->group[i].n; k++)
            free(g->group[i].part[k].prefix);
        free(g->group[i].part);
        free(g->group[i].name);
    }
    free(g->group);
    *g = (struct data_groups){0};
}

/* ---- documents ---- */

void data_part_range(const struct data_part *p, int64_t n, int64_t *first, int64_t *end)
{
    int64_t bound[4] = {0}, surplus;

    if (p->split < 0) {
        *first = (int64_t)rint(p->start * (double)n);   /* like Python's round(), which rounds halves to even */
        *end = (int64_t)rint(p->end * (double)n);
        return;
    }
    for (int i = 0; i < 3; i++)
        bound[i + 1] = bound[i] + (int64_t)rint(p->share[i] * (double)n);
    surplus = bound[3] - n;
    for (int i = 1; i < 4; i++)
        bound[i] -= surplus;
    *first = bound[p->split];
    *end = bound[p->split + 1];
}
