/*
 * merge_parts.c - read the list of fused parameters into a table, sorted by name
 */
#include "libcommon/model/merge_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* Limits for damaged files. Real lists have two or three entries per layer, each with three parts. */
enum { ENTRIES_MAX = 1 << 14, PARTS_MAX = 64 };
static const int64_t ROWS_MAX = (int64_t)1 << 40;

struct merge_parts_list {
    int n, cap;
    struct merge_parts *entry;          /* sorted by name */
};

char *merge_parts_name(const char *text)
{
    char *name = xstrdup(text), *to = name;

    for (const char *s = text + 1; *text == '^' && *s; s++) {
        if (*s == '$' && !s[1]) {
            *to = 0;
            return name;
        }
        if (*s == '\\' && ispunct((unsigned char)s[1]))
            s++;
        else if (strchr("\\.^$*+?{}[]|()", *s))
            break;
        *to++ = *s;
    }
    free(name);
    return NULL;
}

/* The sources of the row counts of an entry's parts: sub_param_shard_widths, and the entry's `shape`. */
struct sub_params {
    const struct pk *widths, *shape;
};

static int compare_merge_parts(const void *a, const void *b)
{
    return strcmp(((const struct merge_parts *)a)->name, ((const struct merge_parts *)b)->name);
}

static int refuse_sub_params(const char *pattern, const char *why, const char *file, struct report *r)
{
    report_add(r, SEV_ERROR, "universal_info", file, ERR_NO_BYTE, NULL,
               "parameter_with_sub_params of universal_checkpoint_info: %.80s: %s, which is not supported",
               pattern ? pattern : "an entry without a pattern", why);
    return -1;
}

/* Returns the sum of a list of row counts, or -1 if `widths` is not such a list. */
static int64_t sum_rows(const struct pk *widths)
{
    uint32_t n = 0;
    struct pk **width = pk_items(widths, &n);
    int64_t rows, sum = 0;

    for (uint32_t i = 0; width && i < n; i++) {
        if (!pk_as_int(width[i], &rows) || rows < 0 || rows > ROWS_MAX || sum > ROWS_MAX)
            return -1;
        sum += rows;
    }
    return width ? sum : -1;
}

/*
 * Compare the widths of the parts with the entry's `shape`. The first member of `shape` is the list of the parts' rows
 * or, in older versions, the number of parts. Returns false if they disagree.
 */
static bool widths_fit_shape(const struct merge_parts *p, const struct pk *shape)
{
    uint32_t n_dims = 0, n = 0;
    struct pk **dim = pk_items(shape, &n_dims), **part = dim && n_dims ? pk_items(dim[0], &n) : NULL;
    int64_t rows;

    if (!part)
        return !dim || n_dims == 0 || !pk_as_int(dim[0], &rows) || rows == p->n;
    for (uint32_t k = 0; k < n && n == (uint32_t)p->n; k++)
        if (!pk_as_int(part[k], &rows) || rows != sum_rows(p->widths[k]))
            return false;
    return n == (uint32_t)p->n;
}

/* Parse one pattern of an entry whose parameters are divided by rows, and add it to the list. */
static int parse_sub_params_pattern(struct merge_parts_list *l, const struct sub_params *in, const char *pattern,
                                    const char *file, struct report *r)
{
    struct merge_parts p = { .name = pattern ? merge_parts_name(pattern) : NULL };
    uint32_t n = 0;
    bool named;

    p.widths = pattern ? pk_items(pk_get(in->widths, pattern), &n) : NULL;
    p.n = (int)n;
    if (p.name && p.widths && n > 0 && n <= PARTS_MAX && !widths_fit_shape(&p, in->shape)) {
        free(p.name);
        report_add(r, SEV_ERROR, "universal_info", file, ERR_NO_BYTE, NULL,
                   "universal_checkpoint_info: %.80s: parameter_with_sub_params and sub_param_shard_widths give its "
                   "parts different rows", pattern);
        return -1;
    }
    if (p.name && p.widths && n > 0 && n <= PARTS_MAX && l->n < ENTRIES_MAX) {
        ARRAY_ROOM(l->entry, l->cap, l->n + 1);
        l->entry[l->n++] = p;
        return 0;
    }
    named = p.name != NULL;
    free(p.name);
    return refuse_sub_params(pattern,
                             named ? "sub_param_shard_widths do not give the rows per part and rank"
                                   : "a pattern that does not match one complete parameter name",
                             file, r);
}

static int parse_sub_params_entry(struct merge_parts_list *l, const struct pk *info, const struct pk *entry,
                                  const char *file, struct report *r)
{
    const struct sub_params in = { pk_get(info, "sub_param_shard_widths"), pk_get(entry, "shape") };
    uint32_t n = 0;
    struct pk **pattern = pk_items(pk_get(entry, "patterns"), &n);
    int64_t dim = -1;
    int rc = 0;

    if (!pattern || n == 0)
        return refuse_sub_params(NULL, "names no parameter", file, r);
    pk_as_int(pk_get(entry, "partition_dim"), &dim);
    if (dim != 0)
        return refuse_sub_params(pk_as_str(pattern[0]), "its parts are not cut by rows", file, r);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = parse_sub_params_pattern(l, &in, pk_as_str(pattern[i]), file, r);
    return rc;
}

/* Report keys of sub_param_shard_widths that no entry of the list uses. Returns false if there are any. */
static bool all_widths_used(const struct merge_parts_list *l, const struct pk *info, const char *file,
                            struct report *r)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(info, "sub_param_shard_widths"), &n);
    bool used = true;

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *pattern = pk_as_str(pair[2 * i]);
        char *name = pattern ? merge_parts_name(pattern) : NULL;

        if (!name || !merge_parts_find(l, name)) {
            report_add(r, SEV_ERROR, "universal_info", file, ERR_NO_BYTE, NULL,
                       "universal_checkpoint_info: sub_param_shard_widths has %.80s, parameter_with_sub_params does "
                       "not", pattern ? pattern : "a key that is no pattern");
            used = false;
        }
        free(name);
    }
    return used;
}

struct merge_parts_list *merge_parts_read(const struct pk *info, const char *file, struct report *r)
{
    struct merge_parts_list *l = xcalloc(1, sizeof *l);
    uint32_t n = 0;
    struct pk **entry = pk_items(pk_get(info, "parameter_with_sub_params"), &n);
    int rc = 0;

    for (uint32_t i = 0; entry && i < n && rc == 0; i++)
        rc = parse_sub_params_entry(l, info, entry[i], file, r);
    if (l->n)
        qsort(l->entry, (size_t)l->n, sizeof *l->entry, compare_merge_parts);
    for (int i = 1; i < l->n && rc == 0; i++)
        if (compare_merge_parts(&l->entry[i - 1], &l->entry[i]) == 0)
            rc = refuse_sub_params(l->entry[i].name, "is named by two entries", file, r);
    if (rc == 0 && all_widths_used(l, info, file, r))
        return l;
    merge_parts_free(l);
    return NULL;
}

void merge_parts_free(struct merge_parts_list *l)
{
    for (int i = 0; l && i < l->n; i++)
        free(l->entry[i].name);
    if (l)
        free(l->entry);
    free(l);
}

const struct merge_parts *merge_parts_find(const struct merge_parts_list *l, const char *name)
{
    const struct merge_parts key = { .name = (char *)name };

    return l->n ? bsearch(&key, l->entry, (size_t)l->n, sizeof *l->entry, compare_merge_parts) : NULL;
}

int64_t merge_parts_width(const struct merge_parts *p, int part, int rank, int tp)
{
    uint32_t n = 0;
    struct pk **width = pk_items(p->widths[part], &n);
    int64_t rows = -1;

    return width && n == (uint32_t)tp && pk_as_int(width[rank], &rows) && rows >= 0 && rows <= ROWS_MAX ? rows : -1;
}
