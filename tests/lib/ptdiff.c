#include "tests/lib/ptdiff.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pt.h"

struct side {
    struct files *f;
    struct pt *pt;
};

struct comparison {
    struct side a, b;
    const char *file;
    const char *const *except;
    struct strbuf path;
    char *found;                        /* the first difference */
};

static bool excepted(const struct comparison *c)
{
    for (int i = 0; c->except && c->except[i]; i++)
        if (!strcmp(c->except[i], c->path.buf))
            return true;
    return false;
}

static void differ(struct comparison *c, const char *how)
{
    if (!c->found)
        c->found = str_fmt("%s: %s: %s", c->file, c->path.buf, how);
}

static void same_tensor(struct comparison *c, const struct pt_tensor *x, const struct pt_tensor *y)
{
    size_t n = (size_t)x->n_elems * (size_t)dtype_size(x->dtype);
    struct err e = {0};
    char *p = xmalloc(n + 1), *q = xmalloc(n + 1);

    if (x->dtype != y->dtype || x->ndim != y->ndim || x->requires_grad != y->requires_grad || !y->contiguous ||
        memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape))
        differ(c, "tensors of another shape");
    else if (files_read_extent(c->a.f, &(struct extent){ x->record, x->at, n }, p, &e) < 0 ||
             files_read_extent(c->b.f, &(struct extent){ y->record, y->at, n }, q, &e) < 0)
        differ(c, e.msg);
    else if (memcmp(p, q, n))
        differ(c, "tensors of other values");
    free(p);
    free(q);
}

static void same_value(struct comparison *c, const struct pk *x, const struct pk *y);

static void same_below(struct comparison *c, const struct pk *x, const struct pk *y, const char *name)
{
    size_t len = c->path.len;

    strbuf_addf(&c->path, "%s%s", len ? "." : "", name);
    if (!x != !y)
        differ(c, "only one of them has it");
    else if (x && !excepted(c))
        same_value(c, x, y);
    c->path.len = len;
    c->path.buf[len] = '\0';
}

static void same_items(struct comparison *c, const struct pk *x, const struct pk *y)
{
    if (x->n != y->n)
        differ(c, "another number of items");
    for (uint32_t i = 0; i < x->n && !c->found; i++) {
        struct strbuf key = {0};

        if (x->type == PK_DICT) {
            if (x->item[2 * i]->type == PK_STR)
                strbuf_addf(&key, "%s", x->item[2 * i]->str);
            else
                pk_text(x->item[2 * i], &key);
            same_below(c, x->item[2 * i], y->item[2 * i], "(key)");
            same_below(c, x->item[2 * i + 1], y->item[2 * i + 1], key.buf);
        } else {
            strbuf_addf(&key, "%u", i);
            same_below(c, x->item[i], y->item[i], key.buf);
        }
        strbuf_free(&key);
    }
}

/* The state of an object and the pairs of an OrderedDict are visible to a reader directly, so they add no step to
 * the path. */
static void same_object(struct comparison *c, const struct pk *x, const struct pk *y)
{
    if (x->fn)
        same_below(c, x->fn, y->fn, "(fn)");
    same_below(c, x->args, y->args, "(args)");
    if (!x->state != !y->state || !x->fill != !y->fill) {
        differ(c, "another kind of object");
        return;
    }
    if (x->state)
        same_value(c, x->state, y->state);
    if (x->fill)
        same_value(c, x->fill, y->fill);
}

static void same_value(struct comparison *c, const struct pk *x, const struct pk *y)
{
    struct pt_tensor s, t;
    bool tensor = pt_tensor(c->a.pt, x, &s);

    if (x->type != y->type || tensor != pt_tensor(c->b.pt, y, &t)) {
        differ(c, "another type");
        return;
    }
    if (tensor) {
        same_tensor(c, &s, &t);
        return;
    }
    switch (x->type) {
    case PK_NONE:
        break;
    case PK_BOOL: case PK_INT: case PK_ROW:
        if (x->i != y->i)
            differ(c, "another number");
        break;
    case PK_FLOAT:
        if (memcmp(&x->f, &y->f, sizeof x->f))
            differ(c, "another number");
        break;
    case PK_STR: case PK_BYTES: case PK_BIGINT:
        if (x->len != y->len || memcmp(x->str, y->str, x->len))
            differ(c, "another text");
        break;
    case PK_GLOBAL:
        if (strcmp(x->module, y->module) || strcmp(x->name, y->name))
            differ(c, "another class");
        break;
    case PK_LIST: case PK_TUPLE: case PK_SET: case PK_DICT:
        same_items(c, x, y);
        break;
    case PK_CALL: case PK_OBJ: case PK_PERSID:
        same_object(c, x, y);
        break;
    }
}

static struct side open_side(struct comparison *c, const char *dir)
{
    struct side s = { .f = files_new() };
    char *path = path_join(dir, c->file);
    struct err e = {0};
    int file = files_add_path(s.f, path, &e);

    if (file >= 0)
        s.pt = pt_open(s.f, file, &e);
    if (!s.pt)
        differ(c, e.msg);
    free(path);
    return s;
}

/* Remove the entries that the trainers of 2022 did not write. test_reshape_contents.c inspects them. */
static void pass_over_additions(const struct comparison *c)
{
    static const char *const keys[] = { "universal_checkpoint_info", "ds_config" };
    struct pk *want = (struct pk *)pt_root(c->a.pt), *got = (struct pk *)pt_root(c->b.pt);      /* not shared with
                                                                                                 * any other tree */

    for (int i = 0; i < 2; i++) {
        const struct pk *x = pk_get(want, keys[i]), *y = pk_get(got, keys[i]);

        if (y && y->type == PK_DICT && (!x || (i == 1 && x->type == PK_STR))) {
            pk_remove(want, keys[i]);
            pk_remove(got, keys[i]);
        }
    }
}

char *ptdiff_file(const char *want_dir, const char *got_dir, const char *name, const char *const *except)
{
    struct comparison c = { .file = name, .except = except };

    strbuf_addf(&c.path, "%s", "");
    c.a = open_side(&c, want_dir);
    c.b = open_side(&c, got_dir);
    if (c.a.pt && c.b.pt)
        pass_over_additions(&c);
    if (c.a.pt && c.b.pt)
        same_value(&c, pt_root(c.a.pt), pt_root(c.b.pt));
    pt_close(c.a.pt);
    pt_close(c.b.pt);
    files_free(c.a.f);
    files_free(c.b.f);
    strbuf_free(&c.path);
    return c.found;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int ptdiff_list(const char *dir, char ***names)
{
    DIR *d = opendir(dir);
    const struct dirent *ent;
    int n = 0, cap = 0;

    *names = NULL;
    while (d && (ent = readdir(d)))
        if (str_ends(ent->d_name, ".pt")) {
            ARRAY_ROOM(*names, cap, n + 1);
            (*names)[n++] = xstrdup(ent->d_name);
        }
    if (d)
        closedir(d);
    if (n)
        qsort(*names, (size_t)n, sizeof **names, by_name);
    return n;
}

void ptdiff_list_free(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

char *ptdiff_folder(const char *want, const char *got, const char *const *except)
{
    char **a, **b, *found = NULL;
    int n = ptdiff_list(want, &a), m = ptdiff_list(got, &b);

    if (n == 0 || n != m)
        found = str_fmt("%s has %d files, %s %d", want, n, got, m);
    for (int i = 0; i < n && !found; i++)
        found = strcmp(a[i], b[i]) ? str_fmt("%s: %s where %s is expected", got, b[i], a[i])
                                   : ptdiff_file(want, got, a[i], except);
    ptdiff_list_free(a, n);
    ptdiff_list_free(b, m);
    return found;
}

bool ptdiff_same_bytes(const char *want_dir, const char *got_dir, const char *name)
{
    char *pa = path_join(want_dir, name), *pb = path_join(got_dir, name);
    uint64_t na = 0, nb = 0;
    struct err e = {0};
    char *x = file_slurp(pa, 1 << 28, &na, &e), *y = file_slurp(pb, 1 << 28, &nb, &e);
    bool same = x && y && na == nb && !memcmp(x, y, na);

    free(x);
    free(y);
    free(pa);
    free(pb);
    return same;
}
