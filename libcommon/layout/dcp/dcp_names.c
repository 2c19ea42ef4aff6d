/*
 * dcp_names.c - find the model's weights by the parameter names in the optimizers' entries
 *
 * First, entries are classified, and the parameter names of each optimizer are listed from its states and groups. Then
 * the models are found: a text is the prefix of a model if, put before these names, it gives the names of tensors.
 * Once a model is chosen, its weights and moments get their roles.
 */
#include "libcommon/layout/dcp/dcp_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/unwrap.h"
#include "libcommon/layout/dcp/dcp_optimizer.h"

/* A possible prefix of a model. For some number of an optimizer's names, a tensor with this prefix exists. */
struct candidate {
    const char *prefix;
    int n;
};

struct naming {
    struct dcp_naming *n;
    struct arena *a;
    struct dcp_table *t;
    struct report *r;
    struct dcp_optimizers opt;
    /* [entries]: name of the entry, from which wrappers' keys are removed if n->unwrapped is set */
    const char **name;
    struct names *weight;       /* names of the entries that do not belong to an optimizer */
    /* no tensor that has dimensions has a type of weights, so the model consists of tensors of other types */
    bool no_weights;
    int n_models;
    struct candidate *model;
};

enum state dcp_state_of_dtype(enum dtype t)
{
    if (!dtype_is_weight(t))
        return dtype_size(t) == 2 ? STATE_BF16 : STATE_FP32;
    return t == DTYPE_F32 || t == DTYPE_F64 ? STATE_FP32 : STATE_BF16;
}

/* Returns true if the entry is a tensor that no optimizer owns, so it may belong to a model. */
static bool is_model_entry(const struct dcp_entry *en)
{
    return en->is_tensor && en->kind == DCP_ENTRY_OTHER;
}

static bool is_weight_entry(const struct dcp_entry *en)
{
    return is_model_entry(en) && dtype_is_weight(en->dtype);
}

/*
 * Returns true if the entry is a counter or the state of a random generator, which programs save next to the model. It
 * is used only if no key separates such tensors from the model's.
 */
static bool is_program_entry(const struct dcp_entry *en)
{
    return !dtype_is_weight(en->dtype) &&
           ((en->ndim == 0 && !strchr(en->name, '.')) || strstr(en->name, "rng_state") != NULL);
}

static bool has_same_entry_shape(const struct dcp_entry *x, const struct dcp_entry *y)
{
    return shape_equal(x->ndim, x->shape, y->ndim, y->shape);
}

/* ---- models ---- */

static int add_candidate(struct candidate **list, int *n, int *cap, const char *prefix)
{
    ARRAY_ROOM(*list, *cap, *n + 1);
    (*list)[*n] = (struct candidate){ prefix, 0 };
    return (*n)++;
}

/*
 * List the prefixes that make a name of the optimizer o the name of a tensor of the same shape. Returns the largest
 * number of names for which one of these prefixes does so.
 */
static int count_prefixes(struct naming *nm, const struct dcp_optimizer *o, struct candidate **list, int *n)
{
    struct arena *scratch = arena_new(0);
    struct names *known = names_new(scratch);
    int cap = 0, most = 0;

    for (int i = 0; !o->numbered && i < nm->t->n; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];
        const char *name = nm->name[i];

        if (!en->is_tensor || en->kind != DCP_ENTRY_OTHER)
            continue;
        for (const char *p = name; p; p = strchr(p, '.') ? strchr(p, '.') + 1 : NULL) {
            const int k = names_find(o->known, p);
            const int state = k < 0 ? -1 : o->whole[k];
            char *prefix;
            int c;

            if (k < 0 || (state >= 0 && !has_same_entry_shape(&nm->t->entry[state], en)))
                continue;
            prefix = arena_strndup(scratch, name, (size_t)(p - name));
            c = names_find(known, prefix);
            if (c < 0) {
                c = add_candidate(list, n, &cap, arena_strndup(nm->a, prefix, strlen(prefix)));
                names_add(known, (*list)[c].prefix, c);
            }
            most = ++(*list)[c].n > most ? (*list)[c].n : most;
        }
    }
    arena_free(scratch);
    return most;
}

static void add_model(struct naming *nm, int *cap, const char *prefix)
{
    for (int i = 0; i < nm->n_models; i++)
        if (strcmp(nm->model[i].prefix, prefix) == 0)
            return;
    add_candidate(&nm->model, &nm->n_models, cap, prefix);
}

/*
 * List the prefixes of models. For each optimizer, the prefix that fits most of the optimizer's names is listed, and so
 * is each prefix that fits more than half as many names.
 */
static void find_models(struct naming *nm)
{
    int cap = 0;

    nm->n_models = 0;
    for (int k = 0; k < nm->opt.n; k++) {
        struct candidate *list = NULL;
        int n = 0, most = count_prefixes(nm, &nm->opt.one[k], &list, &n);

        for (int i = 0; i < n; i++)
            if (list[i].n * 2 > most)
                add_model(nm, &cap, list[i].prefix);
        free(list);
    }
}

static int names_found(struct naming *nm)
{
    int found = 0;

    for (int k = 0; k < nm->opt.n; k++) {
        struct candidate *list = NULL;
        int n = 0;

        found += count_prefixes(nm, &nm->opt.one[k], &list, &n);
        free(list);
    }
    return found;
}

/*
 * Remove the keys of module wrappers, such as "_orig_mod", from all names, if at most half of the optimizers' names
 * have a tensor. The change is kept only if more of these names have a tensor afterwards.
 */
static void try_unwrapped(struct naming *nm)
{
    const struct dcp_optimizers opt = nm->opt;
    const char **name = nm->name;
    const int found = names_found(nm);
    int all = 0;

    for (int k = 0; k < opt.n; k++)
        all += opt.one[k].numbered ? 0 : opt.one[k].n;
    if (all == 0 || found * 2 > all)
        return;
    nm->opt = dcp_optimizers_unwrapped(&opt, nm->a);
    nm->name = arena_alloc(nm->a, ((size_t)nm->t->n + 1) * sizeof *nm->name);
    for (int i = 0; i < nm->t->n; i++)
        nm->name[i] = unwrap_name(nm->a, name[i]);
    nm->n->unwrapped = names_found(nm) > found;
    if (!nm->n->unwrapped) {
        nm->opt = opt;
        nm->name = name;
        return;
    }
    dcp_optimizers_unwrap_entries(nm->n);
    report_add(nm->r, SEV_NOTE, "wrapper", nm->n->path, ERR_NO_BYTE, NULL,
               "names of weights have keys of wrappers (_orig_mod and the like) that the optimizer's names do not "
               "have: they are left out");
}

/* ---- without an optimizer's names: the keys that contain tensors ---- */

/*
 * Returns true if the key of this tensor may be the prefix of a model. The tensor must be a weight that has dimensions.
 * If the table has no such weight, tensors of other types are accepted.
 */
static bool is_keyed_entry(const struct naming *nm, const struct dcp_entry *en)
{
    return (nm->no_weights ? is_model_entry(en) && !is_program_entry(en) : is_weight_entry(en)) && en->ndim > 0;
}

/*
 * Returns all keys of the entry except the last, with a dot after each: "app.model." for ("app", "model",
 * "norm.weight"). Returns NULL if the keys are not recorded or there is only one.
 */
static const char *parent_key(struct naming *nm, const struct dcp_entry *en)
{
    struct strbuf sb = {0};
    const char *key = NULL;

    for (int i = 0; i + 1 < en->n_path; i++)
        strbuf_addf(&sb, "%s.", en->path[i]);
    if (sb.len)
        key = arena_strndup(nm->a, sb.buf, sb.len);
    strbuf_free(&sb);
    return key;
}

/*
 * Add to nm->model the keys below which there are tensors that may be weights. *top is set to true if there is such a
 * tensor without a key above it.
 */
static void list_keys(struct naming *nm, bool *top)
{
    int cap = 0;

    *top = false;
    for (int i = 0; i < nm->t->n; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];
        const char *key = is_keyed_entry(nm, en) ? parent_key(nm, en) : NULL;

        if (key)
            add_model(nm, &cap, key);
        else if (is_keyed_entry(nm, en))
            *top = true;
    }
}

/* Returns true if tensors of the same name exist below two different keys, or below a key and without a key. */
static bool names_repeat(struct naming *nm)
{
    struct names *known = names_new(nm->a);
    bool twice = false;

    for (int i = 0; i < nm->t->n && !twice; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];
        const char *last = en->n_path ? en->path[en->n_path - 1] : en->name;

        if (!is_keyed_entry(nm, en))
            continue;
        twice = names_find(known, last) >= 0;
        names_add(known, last, i);
    }
    return twice;
}

/* Returns the longest sequence of keys with which the prefixes of all models begin. */
static const char *common_parent(struct naming *nm)
{
    size_t len = strlen(nm->model[0].prefix);

    for (int i = 1; i < nm->n_models; i++) {
        size_t k = 0;

        while (k < len && nm->model[i].prefix[k] == nm->model[0].prefix[k])
            k++;
        len = k;
    }
    while (len && nm->model[0].prefix[len - 1] != '.')
        len--;
    return arena_strndup(nm->a, nm->model[0].prefix, len);
}

/*
 * Find the models by the keys below which there are tensors. If tensors of the same name exist below two keys, or
 * below a key and without one, each key is the prefix of a model. Otherwise the tensors are parts of one model, whose
 * prefix is the key that all of them have in common. If they have no key in common, each key remains the prefix of a
 * model. There is one exception: if there is only one key, and also tensors without a key, there is one model with an
 * empty prefix, and all tensors keep their whole names.
 */
static void find_models_by_keys(struct naming *nm)
{
    const char *parent;
    bool top;

    nm->n_models = 0;
    nm->no_weights = true;
    for (int i = 0; i < nm->t->n && nm->no_weights; i++)
        nm->no_weights = !is_weight_entry(&nm->t->entry[i]) || nm->t->entry[i].ndim == 0;
    list_keys(nm, &top);
    if (nm->n_models == 0 || (nm->n_models == 1 && !top))
        return;
    if (names_repeat(nm)) {
        int cap = nm->n_models;

        if (top)
            add_model(nm, &cap, "");
        return;
    }
    parent = top ? "" : common_parent(nm);
    if (nm->n_models == 1 || *parent) {
        nm->n_models = 1;
        nm->model[0].prefix = parent;
    }
}

/* ---- optimizers that number their parameters ---- */

static int planned_cmp(const void *a, const void *b)
{
    const struct dcp_entry *x = *(const struct dcp_entry *const *)a, *y = *(const struct dcp_entry *const *)b;

    if (x->planned != y->planned)
        return x->planned < y->planned ? -1 : 1;
    return x->number - y->number;
}

/* Returns the weights whose names begin with `prefix`, in the order of the program. The caller frees the array. */
static const struct dcp_entry **list_prefixed_weights(const struct naming *nm, const char *prefix, int *n)
{
    const struct dcp_entry **list = xcalloc((size_t)nm->t->n + 1, sizeof *list);

    *n = 0;
    for (int i = 0; i < nm->t->n; i++)
        if (is_weight_entry(&nm->t->entry[i]) && str_starts(nm->t->entry[i].name, prefix))
            list[(*n)++] = &nm->t->entry[i];
    qsort(list, (size_t)*n, sizeof *list, planned_cmp);
    return list;
}

/*
 * Returns true if the optimizer numbers its parameters 0, 1, ... up to the number of weights with this prefix, and the
 * states of parameter i have the shape of weight i.
 */
static bool numbers_fit(const struct naming *nm, const struct dcp_optimizer *o, const char *prefix)
{
    int n;
    const struct dcp_entry **w = list_prefixed_weights(nm, prefix, &n);
    bool fit = o->n_groups <= 1 && n == o->n && n > 0;

    for (int k = 0; fit && k < n; k++) {
        char number[16];
        int at;

        snprintf(number, sizeof number, "%d", k);
        at = names_find(o->known, number);
        fit = at >= 0 && (o->whole[at] < 0 || has_same_entry_shape(&nm->t->entry[o->whole[at]], w[k]));
    }
    free(w);
    return fit;
}

static void name_numbers(struct naming *nm, struct dcp_optimizer *o, const char *prefix)
{
    int n;
    const struct dcp_entry **w = list_prefixed_weights(nm, prefix, &n);
    const char **name = arena_alloc(nm->a, ((size_t)n + 1) * sizeof *name);

    for (int k = 0; k < n; k++)
        name[k] = w[k]->name + strlen(prefix);
    free(w);
    for (int i = 0; i < nm->t->n; i++) {
        struct dcp_entry *en = &nm->t->entry[i];

        if (en->kind == DCP_ENTRY_STATE && strcmp(en->optimizer, o->key) == 0)
            en->of = name[atoi(en->of)];
    }
    nm->n->n_numbers = n;
    nm->n->by_number = name;
    dcp_optimizer_rename(o, nm->a, name, n);
    report_add(nm->r, SEV_NOTE, "numbers", nm->n->path, ERR_NO_BYTE, NULL,
               "%sstate numbers its parameters: number 0 is %s, and so on in the order in which the model was saved",
               o->key, name[0]);
}

/* If an optimizer numbers its parameters and some models fit these numbers, remove the other models. */
static void match_numbered_optimizer(struct naming *nm)
{
    struct dcp_optimizer *o = NULL;
    int n = 0;

    for (int k = 0; k < nm->opt.n; k++)
        if (nm->opt.one[k].numbered)
            o = &nm->opt.one[k];
    if (!o)
        return;
    if (nm->n_models == 0) {
        int cap = 0;

        add_model(nm, &cap, "");
    }
    for (int i = 0; i < nm->n_models; i++)
        if (numbers_fit(nm, o, nm->model[i].prefix))
            nm->model[n++] = nm->model[i];
    if (n)
        nm->n_models = n;
    if (n == 1)
        name_numbers(nm, o, nm->model[0].prefix);
    else if (n == 0)
        report_add(nm->r, SEV_NOTE, "numbers", nm->n->path, ERR_NO_BYTE, NULL,
                   "%sstate identifies parameters by number, and no entry maps the numbers to names: its states are "
                   "listed under their own keys; save with get_optimizer_state_dict, which stores names", o->key);
}

/* ---- choice of the model ---- */

/*
 * Returns the prefix that the user gave, with a dot at its end. Returns NULL with *e set if no tensor's name begins
 * with it.
 */
static const char *chosen(struct naming *nm, struct err *e)
{
    const char *given = nm->n->model;
    const char *prefix = !*given || str_ends(given, ".") ? given : arena_fmt(nm->a, "%s.", given);
    struct strbuf list = {0};

    for (int i = 0; i < nm->t->n; i++)
        if (is_model_entry(&nm->t->entry[i]) && str_starts(nm->name[i], prefix))
            return arena_strndup(nm->a, prefix, strlen(prefix));
    for (int i = 0; i < nm->n_models; i++)
        strbuf_addf(&list, "%s%s", i ? ", " : "; there are ", nm->model[i].prefix);
    err_usage(e, "%s: --model %s: no tensor of it begins so%s", nm->n->s->path, given, list.len ? list.buf : "");
    strbuf_free(&list);
    return NULL;
}

static void report_ambiguous_models(struct naming *nm)
{
    struct source *s = nm->n->s;
    struct strbuf list = {0};

    s->model = arena_alloc(nm->a, (size_t)nm->n_models * sizeof *s->model);
    for (int i = 0; i < nm->n_models; i++) {
        s->model[s->n_models++] = nm->model[i].prefix;
        strbuf_addf(&list, "%s%s", i ? ", " : "", *nm->model[i].prefix ? nm->model[i].prefix : "''");
    }
    report_add(nm->r, SEV_NOTE, "prefix", nm->n->path, ERR_NO_BYTE, NULL,
               "several models are present, with these prefixes: %s; names are listed with their prefix; --model "
               "selects one",
               list.buf);
    strbuf_free(&list);
}

/* ---- roles ---- */

static void assign_weights(const struct naming *nm, const char *prefix)
{
    for (int i = 0; i < nm->t->n; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];

        if (is_model_entry(en) && str_starts(nm->name[i], prefix) && (*prefix || !is_program_entry(en))) {
            nm->n->role[i] = (struct dcp_role){ .param = nm->name[i] + strlen(prefix),
                                                .state = dcp_state_of_dtype(en->dtype) };
            names_add(nm->weight, nm->n->role[i].param, i);
        }
    }
}

/*
 * Report a moment whose shape differs from that of its weight. The caller has found that moments of this name fit the
 * weights of other parameters, as in Adam.
 */
static void report_moment_shape(const struct naming *nm, int entry, int weight)
{
    const struct dcp_entry *en = &nm->t->entry[entry], *of = &nm->t->entry[weight];
    char own[SHAPE_TEXT], its[SHAPE_TEXT];

    report_add(nm->r, SEV_ERROR, "shape", nm->n->path, en->said_at, en->name,
               "has the shape %s, but its weight has %s; the %s of other parameters have the shapes of their weights",
               shape_text(en->ndim, en->shape, own), shape_text(of->ndim, of->shape, its), en->what);
}

/* Assign a role to the moments that have the shape of their weight. All other optimizer states become plain values. */
static void assign_moments(const struct naming *nm)
{
    int *misfit = xcalloc((size_t)nm->t->n + 1, sizeof *misfit), n_fit[2] = {0};
    bool *taken[2];

    for (int k = 0; k < 2; k++)
        taken[k] = xcalloc((size_t)nm->t->n + 1, sizeof *taken[k]);
    for (int i = 0; i < nm->t->n; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];
        const int k = en->kind != DCP_ENTRY_STATE ? -1 : strcmp(en->what, "exp_avg") == 0 ? 0
                    : strcmp(en->what, "exp_avg_sq") == 0 ? 1 : -1;
        const struct dcp_optimizer *o = k < 0 ? NULL : dcp_optimizers_find(&nm->opt, en->optimizer);
        int w;

        if (!o || !o->own || !en->is_tensor || !dtype_is_weight(en->dtype))
            continue;
        w = names_find(nm->weight, en->of);
        if (w < 0 || taken[k][w])
            continue;
        if (!has_same_entry_shape(&nm->t->entry[w], en)) {
            misfit[i] = k ? -w - 1 : w + 1;
            continue;
        }
        n_fit[k]++;
        taken[k][w] = true;
        nm->n->role[i] = (struct dcp_role){ .param = nm->n->role[w].param,
                                            .state = k ? STATE_EXP_AVG_SQ : STATE_EXP_AVG };
    }
    for (int i = 0; i < nm->t->n; i++)
        if (misfit[i] && n_fit[misfit[i] < 0])
            report_moment_shape(nm, i, misfit[i] < 0 ? -misfit[i] - 1 : misfit[i] - 1);
    free(misfit);
    for (int k = 0; k < 2; k++)
        free(taken[k]);
}

/* Returns true if the optimizer fits another model better than it fits the model with this prefix. */
static bool trains_another(const struct naming *nm, const struct dcp_optimizer *o, const char *prefix)
{
    for (int i = 0; i < nm->n_models; i++)
        if (strcmp(nm->model[i].prefix, prefix) != 0 && dcp_optimizer_prefers(o, nm->model[i].prefix, prefix))
            return true;
    return false;
}

/*
 * Find the optimizers that train the model with this prefix: at least half of an optimizer's parameter names must be
 * names of the model's weights. If several optimizers share names, at most one of them is kept.
 */
static void find_own(struct naming *nm, const char *prefix)
{
    struct dcp_naming *n = nm->n;

    n->own = arena_alloc(nm->a, ((size_t)nm->opt.n + 1) * sizeof *n->own);
    for (int k = 0; k < nm->opt.n; k++) {
        struct dcp_optimizer *o = &nm->opt.one[k];
        int found = 0;

        for (int i = 0; i < o->n; i++)
            found += names_find(nm->weight, o->name[i]) >= 0;
        o->n_found = found;
        o->own = found ? found * 2 >= o->n && !trains_another(nm, o, prefix) : nm->opt.n == 1 && o->n == 0;
    }
    dcp_optimizers_choose(&nm->opt, n, prefix, nm->r);
    for (int k = 0; k < nm->opt.n; k++)
        if (nm->opt.one[k].own)
            n->own[n->n_own++] = nm->opt.one[k].key;
}

static const char *unwrap_if(const struct naming *nm, const char *name)
{
    return nm->n->unwrapped ? unwrap_name(nm->a, name) : name;
}

static int resolve_entry_roles(struct naming *nm, struct err *e)
{
    const char *prefix = nm->n->model ? chosen(nm, e) : nm->n_models == 1 ? nm->model[0].prefix : "";
    struct names *entry = names_new(nm->a);

    if (!prefix)
        return -1;
    if (!nm->n->model && nm->n_models > 1)
        report_ambiguous_models(nm);
    assign_weights(nm, prefix);
    find_own(nm, prefix);
    assign_moments(nm);
    for (int i = 0; i < nm->t->n; i++)
        if (nm->t->entry[i].kind == DCP_ENTRY_OTHER)
            names_add(entry, nm->name[i], i);
    /* entries that are not read do exist; other findings report them */
    for (int i = 0; i < nm->n->s->n_unread; i++)
        names_add(entry, unwrap_if(nm, nm->n->s->unread[i].name), i);
    dcp_optimizers_check(&nm->opt, nm->n, &(struct dcp_model_names){ prefix, entry }, nm->r);
    return 0;
}

int dcp_names_assign(struct dcp_naming *n, struct report *r, struct err *e)
{
    struct dcp_table *t = n->table;
    struct naming nm = { .n = n, .a = n->s->arena, .t = t, .r = r, .weight = names_new(n->s->arena) };
    int rc;

    memset(n->role, 0, (size_t)t->n * sizeof *n->role);
    n->omitted = names_new(nm.a);
    nm.name = arena_alloc(nm.a, ((size_t)t->n + 1) * sizeof *nm.name);
    for (int i = 0; i < t->n; i++)
        nm.name[i] = t->entry[i].name;
    dcp_optimizers_read(&nm.opt, n);
    try_unwrapped(&nm);
    find_models(&nm);
    if (nm.n_models == 0)
        find_models_by_keys(&nm);
    match_numbered_optimizer(&nm);
    rc = resolve_entry_roles(&nm, e);
    free(nm.model);
    return rc;
}
