/*
 * dcp_names.c - optimizer entries tell the parameters' names, and those the prefix of the weights
 */
#include "libcommon/layout/dcp/dcp_names.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"

/* What optimizers keep of a parameter, as torch calls it. */
static const char *const kept[] = { "exp_avg", "exp_avg_sq", "step", "max_exp_avg_sq", "momentum_buffer", "sum" };

static bool is_kept(const char *what)
{
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strcmp(what, kept[i]) == 0)
            return true;
    return false;
}

static const char *kept_end(const char *name)
{
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        size_t n = strlen(kept[i]), len = strlen(name);

        if (len > n + 1 && strcmp(name + len - n, kept[i]) == 0 && name[len - n - 1] == '.')
            return name + len - n;
    }
    return NULL;
}

/* "state.<fqn>.<what>" behind the first whole key "state" of the text. */
static const char *behind_state(const char *name)
{
    static const char key[] = "state.";

    for (const char *p = name; (p = strstr(p, key)) != NULL; p++)
        if (p == name || p[-1] == '.')
            return p + sizeof key - 1;
    return NULL;
}

bool dcp_names_optimizer(struct arena *a, const struct dcp_entry *en, const char **fqn, const char **what)
{
    const char *last = en->n_path ? en->path[en->n_path - 1] : en->name, *from;

    /* ("optim", "state", fqn, what): nothing to guess. */
    if (en->n_path >= 3 && strcmp(en->path[en->n_path - 3], "state") == 0 && is_kept(last)) {
        *fqn = en->path[en->n_path - 2];
        *what = last;
        return true;
    }
    /* ("optim", "state.<fqn>.<what>"), or no path at all. */
    from = en->n_path && !str_starts(last, "state.") ? NULL : behind_state(last);
    *what = kept_end(last);
    if (!from || !*what || *what - 1 <= from)
        return false;
    *fqn = arena_strndup(a, from, (size_t)(*what - 1 - from));
    return true;
}

/* ---- the prefix of the weights ---- */

static bool weight_state(enum dtype t, enum state *st)
{
    *st = t == DTYPE_F32 || t == DTYPE_F64 ? STATE_FP32 : STATE_BF16;
    return dtype_is_weight(t);
}

struct naming {
    struct arena *a;
    const struct dcp_table *t;
    const char **fqn;           /* of an optimizer's entry, else NULL */
    const char **what;
    struct names *tensor;       /* of those that are no optimizer's: their numbers by name */
};

static bool same_shape(const struct dcp_entry *x, const struct dcp_entry *y)
{
    return x->ndim == y->ndim && memcmp(x->shape, y->shape, sizeof x->shape) == 0;
}

/* The weight of an fqn behind a prefix of n bytes; -1: none. */
static int weight_of(const struct naming *nm, const char *prefix, size_t n, const char *fqn)
{
    char *name = str_fmt("%.*s%s", (int)n, prefix, fqn);
    int i = names_find(nm->tensor, name);

    free(name);
    return i;
}

/* A moment: as large as its parameter. */
static bool is_of_whole(const struct naming *nm, int i)
{
    return nm->fqn[i] && nm->t->entry[i].is_tensor && strcmp(nm->what[i], "step") != 0 &&
           strcmp(nm->what[i], "sum") != 0;
}

/* Does the prefix lead from every optimizer entry to a weight of its shape? */
static bool prefix_fits(const struct naming *nm, const char *prefix, size_t n)
{
    for (int i = 0; i < nm->t->n; i++) {
        int w = is_of_whole(nm, i) ? weight_of(nm, prefix, n, nm->fqn[i]) : 0;

        if (w < 0 || (is_of_whole(nm, i) && !same_shape(&nm->t->entry[w], &nm->t->entry[i])))
            return false;
    }
    return true;
}

/* All of the tensors that end in the first fqn are asked; of several that fit the shortest is taken. */
static const char *find_prefix(const struct naming *nm, const char *path, struct report *r)
{
    const char *fqn = NULL, *best = NULL, *other = NULL;
    size_t n_fqn, n_best = 0;

    for (int i = 0; i < nm->t->n && !fqn; i++)
        fqn = is_of_whole(nm, i) ? nm->fqn[i] : NULL;
    n_fqn = fqn ? strlen(fqn) : 0;
    for (int i = 0; fqn && i < nm->t->n; i++) {
        const char *name = nm->t->entry[i].name;
        size_t len = strlen(name), n = len - n_fqn;

        if (nm->fqn[i] || !nm->t->entry[i].is_tensor || len < n_fqn || strcmp(name + n, fqn) != 0 ||
            (n && name[n - 1] != '.') || !prefix_fits(nm, name, n))
            continue;
        other = best ? (n < n_best ? best : name) : NULL;
        if (!best || n < n_best) {
            best = name;
            n_best = n;
        }
    }
    if (other)
        report_add(r, SEV_NOTE, "prefix", path, ERR_NO_BYTE, NULL,
                   "the optimizer's parameters are found twice (%s, %s); the first is taken for the weights", best,
                   other);
    return best ? arena_strndup(nm->a, best, n_best) : NULL;
}

/* Without an optimizer: the caller's one key, where all weights are a state dict below it. */
static const char *common_key(const struct naming *nm)
{
    const char *key = NULL;
    enum state st;

    for (int i = 0; i < nm->t->n; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];

        if (nm->fqn[i])
            return NULL;
        if (!en->is_tensor || !weight_state(en->dtype, &st))
            continue;
        if (en->n_path != 2 || (key && strcmp(key, en->path[0]) != 0))
            return NULL;
        key = en->path[0];
    }
    return key ? arena_fmt(nm->a, "%s.", key) : NULL;
}

/* ---- roles ---- */

static void assign_weights(const struct naming *nm, const char *prefix, struct dcp_role *role)
{
    for (int i = 0; i < nm->t->n; i++) {
        const struct dcp_entry *en = &nm->t->entry[i];
        enum state st;

        if (en->is_tensor && !nm->fqn[i] && weight_state(en->dtype, &st) && (!prefix || str_starts(en->name, prefix)))
            role[i] = (struct dcp_role){ .param = en->name + (prefix ? strlen(prefix) : 0), .state = st };
    }
}

/* Moments of the weights' shape are states; everything else an optimizer keeps is a value. */
static void assign_moments(const struct naming *nm, const char *prefix, struct dcp_role *role)
{
    bool *taken[2];

    for (int k = 0; k < 2; k++)
        taken[k] = arena_alloc(nm->a, (size_t)nm->t->n + 1);
    for (int i = 0; i < nm->t->n; i++) {
        int k = !is_of_whole(nm, i) ? -1 : strcmp(nm->what[i], "exp_avg") == 0 ? 0
              : strcmp(nm->what[i], "exp_avg_sq") == 0 ? 1 : -1;
        int w = k < 0 ? -1 : weight_of(nm, prefix ? prefix : "", prefix ? strlen(prefix) : 0, nm->fqn[i]);

        if (w < 0 || !role[w].param || taken[k][w] || !same_shape(&nm->t->entry[w], &nm->t->entry[i]))
            continue;
        taken[k][w] = true;
        role[i] = (struct dcp_role){ .param = role[w].param, .state = k ? STATE_EXP_AVG_SQ : STATE_EXP_AVG };
    }
}

void dcp_names_assign(struct arena *a, const struct dcp_table *t, struct dcp_role *role, const char *path,
                      struct report *r)
{
    struct naming nm = { .a = a, .t = t, .tensor = names_new(a) };
    const char *prefix;

    nm.fqn = arena_alloc(a, ((size_t)t->n + 1) * sizeof *nm.fqn);
    nm.what = arena_alloc(a, ((size_t)t->n + 1) * sizeof *nm.what);
    memset(role, 0, (size_t)t->n * sizeof *role);
    for (int i = 0; i < t->n; i++)
        if (!dcp_names_optimizer(a, &t->entry[i], &nm.fqn[i], &nm.what[i]))
            nm.fqn[i] = NULL;
    for (int i = 0; i < t->n; i++)
        if (!nm.fqn[i] && t->entry[i].is_tensor)
            names_add(nm.tensor, t->entry[i].name, i);
    prefix = find_prefix(&nm, path, r);
    if (!prefix)
        prefix = common_key(&nm);
    assign_weights(&nm, prefix, role);
    assign_moments(&nm, prefix, role);
}
