/*
 * edit_dcp.c - change the entries of a dcp folder with the parameters that their keys name
 */
#include "libcommon/layout/edit/dcp/edit_dcp.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/dcp/dcp_names.h"
#include "libcommon/layout/edit/dcp/edit_torchdist.h"

/* ---- the parameter of an entry ---- */

/*
 * If the key is a setting of a parameter, such as "param_groups.NAME.lr", returns the parameter NAME. Otherwise returns
 * NULL.
 */
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

static const struct param *find_entry_param(const struct relisting *w, int i)
{
    const struct dcp_entry *en = &w->x->s->dcp->entry[i];
    const struct param *p = w->x->entries->of->part[i].param;

    if (!p && en->kind == DCP_ENTRY_STATE)
        p = source_param(w->x->s, en->of);
    for (int k = 0; k < en->n_path && !p; k++) {
        p = source_param(w->x->s, en->path[k]);
        p = p ? p : grouped(w->x->s, en->path[k]);
    }
    return p;
}

/* ---- entries ---- */

/*
 * Add entry i, which belongs to parameter p, once more for tensor k of the list, with the name and the rows of that
 * tensor.
 */
static int add_as(struct relisting *w, int i, const struct param *p, int k, struct err *e)
{
    struct arena *a = w->x->arena;
    const char *to = w->list->tensor[k].name;
    struct edit_entry *n = edit_entries_add(w->x, i);
    const char *name = edit_with_name(a, n->en.name, p->name, to);
    const char **path = arena_alloc(a, ((size_t)n->en.n_path + 1) * sizeof *path);
    bool found = n->en.n_path == 0;

    for (int c = 0; c < n->en.n_path; c++) {
        const char *key = found ? NULL : edit_with_name(a, n->en.path[c], p->name, to);

        path[c] = key ? key : n->en.path[c];
        found = found || key;
    }
    if (!name || !found) {
        if (source_one_model(w->x->s, e) < 0)
            return -1;
        err_usage(e, "%s: parameter %s is stored in a form that this edit cannot change; edit the universal form that "
                     "ds2universal --format pt makes", n->en.name, p->name);
        return -1;
    }
    n->en.name = name;
    n->en.path = path;
    return edit_relist_rows(w, n, p, k, e);
}

/*
 * Returns a copy of `was`, a list of names, in which each parameter's name is replaced by the names of the tensors that
 * are made from this parameter. Returns NULL if `was` is not a list, or if no name changes.
 */
static struct pk *new_names(const struct relisting *w, const struct pk *was)
{
    struct arena *a = w->x->arena;
    struct pk *list, **item;
    uint32_t n = 0;
    bool other = false;

    if (!was || was->type != PK_LIST)
        return NULL;
    item = pk_items(was, &n);
    list = pk_list(a);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = pk_as_str(item[i]);
        const struct param *p = name ? source_param(w->x->s, name) : NULL;

        if (!p)
            pk_add(a, list, item[i]);
        for (int k = p ? w->first[p - w->x->s->param] : -1; k >= 0; k = w->next[k]) {
            const char *to = w->list->tensor[k].name;

            other = other || k != w->first[p - w->x->s->param] || strcmp(to, name) != 0;
            pk_add(a, list, pk_str(a, to));
        }
        other = other || (p && w->first[p - w->x->s->param] < 0);
    }
    return other ? list : NULL;
}

static int relist(struct relisting *w, int i, struct err *e)
{
    const struct param *p = find_entry_param(w, i);
    const struct pk *names = p ? NULL : new_names(w, w->x->entries->of->part[i].tree);
    struct edit_entry *n = p ? NULL : edit_entries_add(w->x, i);

    if (names)
        edit_entry_set(w->x, n, names, NULL);
    for (int k = p ? w->first[p - w->x->s->param] : -1; k >= 0; k = w->next[k])
        if (add_as(w, i, p, k, e) < 0)
            return -1;
    return 0;
}

/* ---- edit_dcp() ---- */

int edit_dcp(struct edit *x, struct edit_states *list, struct err *e)
{
    struct relisting w = { .x = x, .list = list };
    const bool cores = !x->s->layout->value_entries;

    x->states = list;
    if (edit_states_check(x, list, e) < 0 || edit_entries_begin(x, e) < 0)
        return -1;
    edit_relist_params(&w);
    if (cores)
        edit_relist_depths(&w);
    for (int i = 0; i < x->s->dcp->n; i++)
        if ((cores ? edit_relist_torchdist(&w, i, e) : relist(&w, i, e)) < 0)
            return -1;
    return edit_entries_resolve_files(x, e);
}

/* ---- drop the optimizer ---- */

static bool is_cores_optimizer(const struct source *s, const char *name)
{
    return !s->layout->value_entries && (str_starts(name, "optimizer.") || strstr(name, ".optimizer."));
}

/* The optimizer's entries are below "state" and "param_groups" in FSDP2, and below "optimizer" in Megatron-core. */
bool edit_dcp_is_optimizers(struct edit *x, const struct dcp_entry *en)
{
    return !x->s->layout->value_entries ? is_cores_optimizer(x->s, en->name) : en->kind != DCP_ENTRY_OTHER;
}

void edit_dcp_visit_parts(struct edit *x, int i, edit_dcp_visitor *visit, void *ctx)
{
    const struct dcp_part *part = &x->entries->of->part[i];

    if (part->param)
        visit(ctx, x, part);
    for (int64_t r = 0; part->row && r < x->s->dcp->entry[i].shape[0]; r++)
        visit(ctx, x, &part->row[r]);
}

static void record_held_param(void *ctx, struct edit *x, const struct dcp_part *part)
{
    ((bool *)ctx)[part->param - x->s->param] = true;
}

/* Remove the state's digest from the result's manifest, because the result does not have this state. */
static void forget_digest(void *ctx, struct edit *x, const struct dcp_part *part)
{
    (void)ctx;
    x->s->param[part->param - x->s->param].has_digest[part->state] = false;
}

/*
 * Check that the entries of the result hold values of every parameter. A parameter that exists only in the optimizer
 * needs no values.
 */
static int check_values(struct edit *x, struct err *e)
{
    const struct source *s = x->s;
    bool *held = xcalloc((size_t)s->n_params + 1, sizeof *held);

    for (int k = 0; k < x->entries->n; k++)
        edit_dcp_visit_parts(x, x->entries->entry[k].was, record_held_param, held);
    for (int i = 0; i < s->n_params && e->kind == ERR_NONE; i++)
        if (!held[i] && !s->param[i].copy && !s->param[i].shared_with && !is_cores_optimizer(s, s->param[i].name))
            err_usage(e, "drop optimizer: %s holds the values of %s only in the optimizer's masters; export-hf writes "
                         "weights without the rest", s->path, s->param[i].name);
    free(held);
    return e->kind == ERR_NONE ? 0 : -1;
}

int edit_dcp_drop_optimizer(struct edit *x, struct err *e)
{
    const struct dcp_table *t = x->s->dcp;

    if (edit_entries_begin(x, e) < 0)
        return -1;
    for (int i = 0; i < t->n; i++)
        if (!edit_dcp_is_optimizers(x, &t->entry[i]))
            edit_entries_add(x, i);
        else
            edit_dcp_visit_parts(x, i, forget_digest, NULL);
    if (x->entries->n == t->n) {
        err_usage(e, "drop optimizer: %s has no entries of an optimizer", x->s->path);
        return -1;
    }
    if (check_values(x, e) < 0 || edit_core_drop_optimizer(x, e) < 0)
        return -1;
    return edit_entries_resolve_files(x, e);
}

/* ---- values ---- */

int edit_dcp_begin(struct edit *x, struct err *e)
{
    if (edit_entries_begin(x, e) < 0)
        return -1;
    edit_entries_add_all(x);
    return 0;
}

static struct edit_entry *find_edit_entry(const struct edit *x, const char *name)
{
    for (int i = 0; i < x->entries->n; i++)
        if (strcmp(x->entries->entry[i].en.name, name) == 0)
            return &x->entries->entry[i];
    return NULL;
}

const struct pk *edit_dcp_value(const struct edit *x, const char *entry)
{
    const struct edit_entry *n = find_edit_entry(x, entry);

    return !n ? NULL : n->bytes ? n->bytes->tree : x->entries->of->part[n->was].tree;
}

void edit_dcp_set_value(struct edit *x, const char *entry, const struct pk *value)
{
    /* the value was read from JSON, so it contains no tensors */
    edit_entry_set(x, find_edit_entry(x, entry), value, NULL);
}

int edit_dcp_end(struct edit *x, struct err *e)
{
    return edit_entries_resolve_files(x, e);
}
