/*
 * edit_dcp.c - entries by the parameters that their keys name
 */
#include "libcommon/layout/edit/edit_dcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/dcp/dcp_names.h"
#include "libcommon/layout/edit/edit_anew.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_source.h"
#include "libcommon/layout/torchdist/torchdist_target.h"

struct rewriting {
    struct edit *x;
    const struct edit_states *list;
    struct source *to;
    struct dcp_target *was, *t;
    int cap;
};

/* ---- whose an entry is ---- */

/* "param_groups.NAME.lr", as one key: the parameter. */
static const struct param *grouped(const struct source *s, const char *key)
{
    static const char head[] = "param_groups.";
    const char *from = str_starts(key, head) ? key + sizeof head - 1 : NULL, *dot = from ? strrchr(from, '.') : NULL;
    const struct param *p;
    char *name;

    if (!dot)
        return NULL;
    name = xstrdup(from);
    name[dot - from] = '\0';
    p = source_param(s, name);
    free(name);
    return p;
}

static const struct param *owner_of(const struct rewriting *w, int i)
{
    const struct dcp_entry *en = &w->was->table.entry[i];
    const char *fqn, *what;
    const struct param *p = w->was->part[i].param;

    if (!p && dcp_names_optimizer(w->x->arena, en, &fqn, &what))
        p = source_param(w->x->s, fqn);
    for (int k = 0; k < en->n_path && !p; k++) {
        p = source_param(w->x->s, en->path[k]);
        p = p ? p : grouped(w->x->s, en->path[k]);
    }
    return p;
}

/* The text with the parameter's new name in place of its own, in the arena; NULL: it is not in it, in whole keys. */
static const char *with_name(struct arena *a, const char *text, const char *was, const char *name)
{
    const size_t n = strlen(was);

    for (const char *at = text; (at = strstr(at, was)) != NULL; at++)
        if ((at == text || at[-1] == '.') && (at[n] == '\0' || at[n] == '.'))
            return arena_fmt(a, "%.*s%s%s", (int)(at - text), text, name, at + n);
    return NULL;
}

/* ---- entries ---- */

static void add(struct rewriting *w, const struct dcp_entry *en, const struct dcp_part *part)
{
    struct dcp_target *t = w->t;

    if (t->table.n == w->cap) {
        struct dcp_entry *entry = arena_alloc(t->arena, (2 * (size_t)w->cap + 64) * sizeof *entry);
        struct dcp_part *parts = arena_alloc(t->arena, (2 * (size_t)w->cap + 64) * sizeof *parts);

        if (w->cap) {
            memcpy(entry, t->table.entry, (size_t)w->cap * sizeof *entry);
            memcpy(parts, t->part, (size_t)w->cap * sizeof *parts);
        }
        t->table.entry = entry;
        t->part = parts;
        w->cap = 2 * w->cap + 64;
    }
    t->table.entry[t->table.n] = *en;
    t->part[t->table.n++] = *part;
}

/* Entry i, of parameter p, as that of the list's tensor k. */
static int add_as(struct rewriting *w, int i, const struct param *p, int k, struct err *e)
{
    struct arena *a = w->t->arena;
    const struct edit_new *t = &w->list->tensor[k];
    struct dcp_entry en = w->was->table.entry[i];
    struct dcp_part part = w->was->part[i];
    const char *name = with_name(a, en.name, p->name, t->name);
    const char **path = arena_alloc(a, ((size_t)en.n_path + 1) * sizeof *path);
    bool found = en.n_path == 0;

    for (int c = 0; c < en.n_path; c++) {
        const char *key = found ? NULL : with_name(a, en.path[c], p->name, t->name);

        path[c] = key ? key : en.path[c];
        found = found || key;
    }
    if (en.n_whole || !name || !found) {
        err_usage(e, "%s: holds parameter %s in a form that cannot get another one's: reshape to another "
                  "layout first", en.name, p->name);
        return -1;
    }
    en.name = name;
    en.path = path;
    if (part.param) {
        part.param = &w->to->param[k];
        part.map = t->map[part.state];
        memcpy(en.shape, t->shape, sizeof en.shape);
    }
    add(w, &en, &part);
    return 0;
}

/* A group's list of names, with the new ones. */
static struct pk *new_names(const struct rewriting *w, const struct pk *was)
{
    struct pk *list, **item;
    uint32_t n = 0;
    bool any = false;

    if (!was || was->type != PK_LIST)
        return NULL;
    item = pk_items(was, &n);
    list = pk_list(w->t->arena);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = pk_as_str(item[i]);
        const struct param *p = name ? source_param(w->x->s, name) : NULL;

        any = any || p;
        if (!p)
            pk_add(w->t->arena, list, item[i]);
        for (int k = 0; p && k < w->list->n; k++)
            if (&w->x->s->param[w->list->tensor[k].param] == p)
                pk_add(w->t->arena, list, pk_str(w->t->arena, w->list->tensor[k].name));
    }
    return any ? list : NULL;
}

static int rewrite(struct rewriting *w, int i, struct err *e)
{
    const struct param *p = owner_of(w, i);
    struct dcp_part part = w->was->part[i];

    if (part.row) {
        err_usage(e, "%s: holds a row of parameters, which are not edited one by one", w->was->table.entry[i].name);
        return -1;
    }
    if (!p) {
        const struct pk *names = new_names(w, part.tree);

        part.tree = names ? names : part.tree;
        add(w, &w->was->table.entry[i], &part);
    }
    for (int k = 0; p && k < w->list->n; k++)
        if (&w->x->s->param[w->list->tensor[k].param] == p && add_as(w, i, p, k, e) < 0)
            return -1;
    return 0;
}

/* ---- all of it ---- */

static int ranks_of(const struct source *s)
{
    int most = 0, rank;

    for (int i = 0; i < s->n_files; i++)
        if (sscanf(s->file[i].name, "__%6d_", &rank) == 1 && rank >= most)
            most = rank + 1;
    return most > 0 ? most : 1;
}

/* The target is the edit's from now on. */
static void write_anew(struct edit *x, struct source *src, struct dcp_target *t)
{
    x->anew = arena_alloc(x->arena, sizeof *x->anew);
    *x->anew = (struct edit_anew){ .src = src, .dcp = t, .ranks = ranks_of(x->s) };
    x->anew->what = arena_fmt(x->arena, "%s, %d ranks, %d parameters, %d entries", layout_name(x->s->kind),
                              x->anew->ranks, src->n_params, t->table.n);
}

int edit_dcp(struct edit *x, struct edit_states *list, struct err *e)
{
    struct rewriting w = { .x = x, .list = list, .to = edit_source_copy(x) };
    int rc;

    x->states = list;
    if (edit_states_check(x, list, e) < 0)
        return -1;
    w.was = dcp_target_same(x->s, e);
    if (!w.was)
        return -1;
    edit_source_list(x, w.to, list);
    w.t = dcp_target_empty(w.to);
    w.t->table.version = w.was->table.version;
    rc = 0;
    for (int i = 0; i < w.was->table.n && rc == 0; i++)
        rc = rewrite(&w, i, e);
    dcp_target_free(w.was);
    write_anew(x, w.to, w.t);
    return rc;
}

/* ---- without some entries ---- */

static struct dcp_target *target_same(struct edit *x, struct err *e)
{
    struct report *notes;
    struct dcp_target *t;

    if (x->s->kind == LAYOUT_DCP)
        return dcp_target_same(x->s, e);
    notes = report_new();               /* of what is made up, and that is nothing here */
    t = torchdist_target_new(x->s, TORCHDIST_PLAIN, notes, e);
    report_free(notes);
    return t;
}

/* FSDP2's are below "state" and "param_groups", Megatron-core's below "optimizer". */
static bool is_optimizers(struct edit *x, const struct dcp_entry *en)
{
    const char *fqn, *what;

    if (x->s->kind == LAYOUT_TORCHDIST)
        return str_starts(en->name, "optimizer.") || strstr(en->name, ".optimizer.") != NULL;
    for (int i = 0; i < en->n_path; i++)
        if (strcmp(en->path[i], "param_groups") == 0 || str_starts(en->path[i], "param_groups."))
            return true;
    return dcp_names_optimizer(x->arena, en, &fqn, &what);
}

/* Does each parameter still have a value? Of a stack each row is one's. */
static int check_values(const struct edit *x, const struct dcp_target *t, struct err *e)
{
    const struct source *s = x->s;
    bool *held = xcalloc((size_t)s->n_params + 1, sizeof *held);

    for (int k = 0; k < t->table.n; k++) {
        const struct dcp_part *part = &t->part[k];

        if (part->param)
            held[part->param - s->param] = true;
        for (int64_t i = 0; part->row && i < t->table.entry[k].shape[0]; i++)
            held[part->row[i].param - s->param] = true;
    }
    for (int i = 0; i < s->n_params && e->kind == ERR_NONE; i++)
        if (!held[i] && !s->param[i].copy && !s->param[i].shared_with)
            err_usage(e, "drop optimizer: %s has the values of %s among the optimizer's alone; export-hf writes "
                      "weights without the rest", s->path, s->param[i].name);
    free(held);
    return e->kind == ERR_NONE ? 0 : -1;
}

int edit_dcp_drop_optimizer(struct edit *x, struct err *e)
{
    struct dcp_target *t = target_same(x, e);
    int n = 0, was = t ? t->table.n : 0;

    for (int i = 0; i < was; i++)
        if (!is_optimizers(x, &t->table.entry[i])) {
            t->table.entry[n] = t->table.entry[i];
            t->part[n++] = t->part[i];
        }
    if (t)
        t->table.n = n;
    if (t && n == was)
        err_usage(e, "drop optimizer: %s has nothing of an optimizer's", x->s->path);
    if (!t || n == was || check_values(x, t, e) < 0) {
        dcp_target_free(t);
        return -1;
    }
    write_anew(x, x->s, t);
    return 0;
}

int edit_dcp_compact(struct edit *x, struct err *e)
{
    struct dcp_target *t = target_same(x, e);

    if (!t)
        return -1;
    write_anew(x, x->s, t);
    return 0;
}

static struct dcp_part *part_of(const struct edit *x, const char *entry)
{
    const struct dcp_target *t = x->anew->dcp;

    for (int i = 0; i < t->table.n; i++)
        if (strcmp(t->table.entry[i].name, entry) == 0)
            return &t->part[i];
    return NULL;
}

const struct pk *edit_dcp_value(const struct edit *x, const char *entry)
{
    const struct dcp_part *part = part_of(x, entry);

    return part ? part->tree : NULL;
}

void edit_dcp_set_value(struct edit *x, const char *entry, const struct pk *value)
{
    struct dcp_part *part = part_of(x, entry);

    part->tree = value;
    part->pt = NULL;                    /* read from JSON, it has no tensors */
}
