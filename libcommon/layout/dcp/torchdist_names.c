/*
 * torchdist_names.c - find out which state each key holds, and which keys hold stacks of layers
 */
#include "libcommon/layout/dcp/torchdist_names.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pickle/pickle.h"

/* ---- states ---- */

/*
 * Returns the parameter's key in a name "optimizer.state.<what>.<key>", and sets *st to the state <what>. With several
 * optimizers the name begins with "chained_<n>.". Returns NULL for other names. The fp32 master weight is called
 * fp32_param by Megatron's plain mixed-precision optimizer and by the form fully_sharded_model_space, and param by the
 * form fully_reshardable.
 */
static const char *optimizer_key(const char *name, enum state *st)
{
    static const struct { const char *begin; enum state st; } rows[] = {
        { "optimizer.state.exp_avg.", STATE_EXP_AVG }, { "optimizer.state.exp_avg_sq.", STATE_EXP_AVG_SQ },
        { "optimizer.state.fp32_param.", STATE_FP32 }, { "optimizer.state.param.", STATE_FP32 },
    };

    if (str_starts(name, "chained_")) {
        name += strlen("chained_");
        name += strspn(name, "0123456789");
        name += *name == '.';
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (str_starts(name, rows[i].begin)) {
            *st = rows[i].st;
            return name + strlen(rows[i].begin);
        }
    return NULL;
}

const char *torchdist_weight_of_master(const char *name)
{
    enum state st;
    const char *key = optimizer_key(name, &st);

    return key && st == STATE_FP32 ? key : NULL;
}

bool torchdist_is_bucket(const char *name)
{
    return strstr(name, "optimizer.distributed.dp_group_idx_") != NULL;
}

static bool torchdist_weight_state(enum dtype t, enum state *st)
{
    *st = t == DTYPE_F32 || t == DTYPE_F64 ? STATE_FP32 : STATE_BF16;
    return dtype_is_weight(t);
}

/* ---- stacks ---- */

struct stacking {
    struct arena *a;
    const struct dcp_table *t;
    struct dcp_role *role;
    /* maps a prefix such as "decoder.layers" to the number of its group; groups are numbered from 1 */
    struct names *group;
    int n_groups;
    int *first;                 /* [groups]: the first entry of each group */
    int *odd;  /* [groups]: an entry that is not stacked like the first one; -1 if all entries are stacked alike */
};

int torchdist_number_place(const char *key)
{
    static const char word[] = "layers";

    for (const char *p = key; (p = strstr(p, word)) != NULL; p++)
        if ((p == key || p[-1] == '.') && p[sizeof word - 1] == '.')
            return (int)(p - key) + (int)sizeof word - 1;
    return 0;
}

static int group_of(struct stacking *k, const char *key, int len, int entry)
{
    const char *name = arena_strndup(k->a, key, (size_t)len);
    int g = names_find(k->group, name);

    if (g > 0)
        return g;
    g = ++k->n_groups;
    names_add(k->group, name, g);
    k->first[g] = entry;
    k->odd[g] = -1;
    return g;
}

/*
 * Add a weight to the group of its prefix. The weight is a stack of layers if no layer number follows the prefix. The
 * group is marked as odd in three cases: some of its keys have a layer number and others do not; its stacks differ in
 * the number of layers; or this stack has fewer chunks than layers.
 */
static void add_to_stack(struct stacking *k, int i)
{
    const struct dcp_entry *en = &k->t->entry[i], *first;
    int at = torchdist_number_place(en->name), g;
    bool numbered;

    if (at == 0)
        return;
    g = group_of(k, en->name, at, i);
    first = &k->t->entry[k->first[g]];
    numbered = isdigit((unsigned char)en->name[at + 1]);
    if (numbered != (isdigit((unsigned char)first->name[at + 1]) != 0) ||
        (!numbered && (en->ndim < 1 || en->shape[0] < 1 || en->shape[0] > en->n_chunks ||
                       en->shape[0] != first->shape[0])))
        k->odd[g] = i;
    if (!numbered) {
        k->role[i].stack = g;
        k->role[i].number_at = at;
    }
}

/* Report each group whose entries are not all stacked alike. The entries of such a group keep their own keys. */
static void resolve_layer_stacks(const struct stacking *k, const char *path, struct report *r)
{
    for (int g = 1; g <= k->n_groups; g++)
        if (k->odd[g] >= 0)
            report_add(r, SEV_NOTE, "stack", path, k->t->entry[k->odd[g]].said_at, k->t->entry[k->odd[g]].name,
                       "is stacked in another way than %s, so these tensors are listed under their own keys",
                       k->odd[g] == k->first[g] ? "a layer in each row" : k->t->entry[k->first[g]].name);
    for (int i = 0; i < k->t->n; i++)
        if (k->role[i].stack && k->odd[k->role[i].stack] >= 0)
            k->role[i].stack = 0;
}

/* ---- assignment of roles ---- */

static bool has_same_stack_shape(const struct dcp_entry *x, const struct dcp_entry *y)
{
    return shape_equal(x->ndim, x->shape, y->ndim, y->shape);
}

/* ---- missing entries that other entries refer to ---- */

static void report_missing_param_entry(const struct dcp_naming *n, int entry, const char *name, struct report *r)
{
    report_add(r, SEV_ERROR, "missing_entry", n->path, n->table->entry[entry].said_at, name,
               "%s exists, but no tensor of that name", n->table->entry[entry].name);
}

/*
 * Report parameters that have one state of a pair but lack the other. The pairs are both moments, and a moment with the
 * fp32 master weight; the two states are normally saved together. A pair is checked only if at least as many parameters
 * have both states as have only one. held[w] has one bit per state of weight w.
 */
static void check_halves(const struct dcp_naming *n, const unsigned *held, struct report *r)
{
    static const enum state pair[][2] = { { STATE_EXP_AVG, STATE_EXP_AVG_SQ }, { STATE_EXP_AVG, STATE_FP32 },
                                          { STATE_EXP_AVG_SQ, STATE_FP32 } };

    for (size_t p = 0; p < sizeof pair / sizeof *pair; p++) {
        const unsigned a = 1u << pair[p][0], b = 1u << pair[p][1];
        int both = 0, one = 0;

        for (int i = 0; i < n->table->n; i++) {
            both += (held[i] & a) && (held[i] & b);
            one += !(held[i] & a) != !(held[i] & b);
        }
        for (int i = 0; both >= one && i < n->table->n; i++)
            if (!(held[i] & a) != !(held[i] & b))
                report_add(r, SEV_ERROR, "missing_entry", n->path, ERR_NO_BYTE, n->table->entry[i].name,
                           "has a state %s, but no state %s", state_name(pair[p][held[i] & a ? 0 : 1]),
                           state_name(pair[p][held[i] & a ? 1 : 0]));
    }
}

/*
 * Report a state whose shape differs from that of its weight. It is an error if the leading axes (layers, experts)
 * differ, otherwise a warning, because some optimizers have moments with fewer rows or columns.
 */
static void report_other_shape(const struct dcp_naming *n, int state, int weight, struct report *r)
{
    const struct dcp_entry *x = &n->table->entry[state], *w = &n->table->entry[weight];
    const bool folded = x->n_whole && !shape_equal(x->ndim, x->shape, x->n_whole, x->whole);
    bool leading = x->ndim == w->ndim && w->ndim > 1 && torchdist_number_place(w->name) &&
                   x->shape[0] != w->shape[0] && !isdigit((unsigned char)w->name[torchdist_number_place(w->name) + 1]);

    if (folded)
        return;                         /* the chunks do not add up to the shape; this has been reported */
    for (int d = 0; d + 2 < w->ndim; d++)
        leading |= x->ndim == w->ndim && x->shape[d] != w->shape[d];
    report_add(r, leading && !n->s->accept_mismatch ? SEV_ERROR : SEV_WARNING, "shape", n->path, x->said_at, x->name,
               "has another shape than its weight, %s", leading ? "with other numbers of layers or experts"
                                                                : "so it is not read as a state of it");
}

int torchdist_names_assign(struct dcp_naming *n, struct report *r, struct err *e)
{
    const struct dcp_table *t = n->table;
    struct arena *a = n->s->arena;
    struct dcp_role *role = n->role;
    struct stacking k = { .a = a, .t = t, .role = role, .group = names_new(a) };
    struct names *weight = names_new(a);
    unsigned *held;
    enum state st;

    if (n->model) {
        err_usage(e, "%s: --model selects one of several models in a folder of torch.distributed.checkpoint; a "
                     "Megatron-core folder has one model", n->s->path);
        return -1;
    }
    memset(role, 0, (size_t)t->n * sizeof *role);
    k.first = arena_alloc(a, ((size_t)t->n + 1) * sizeof *k.first);
    k.odd = arena_alloc(a, ((size_t)t->n + 1) * sizeof *k.odd);
    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];

        if (!en->is_tensor || torchdist_is_bucket(en->name) || optimizer_key(en->name, &st) ||
            !torchdist_weight_state(en->dtype, &st))
            continue;
        role[i] = (struct dcp_role){ .param = en->name, .state = st };
        names_add(weight, en->name, i);
        add_to_stack(&k, i);
    }
    resolve_layer_stacks(&k, n->path, r);
    held = xcalloc((size_t)t->n + 1, sizeof *held);
    for (int i = 0; i < t->n; i++) {
        const char *key = t->entry[i].is_tensor ? optimizer_key(t->entry[i].name, &st) : NULL;
        int w = key ? names_find(weight, key) : -1;

        if (key && w < 0 && names_n(weight) > 0)
            report_missing_param_entry(n, i, key, r);
        if (w >= 0)
            held[w] |= 1u << st;
        /*
         * An entry whose shape differs from that of the weight remains a plain value. The same holds for the fp32
         * master weight of a weight that is itself fp32.
         */
        if (w >= 0 && !has_same_stack_shape(&t->entry[w], &t->entry[i]))
            report_other_shape(n, i, w, r);
        if (w < 0 || role[w].state == st || !has_same_stack_shape(&t->entry[w], &t->entry[i]))
            continue;
        role[i] = role[w];
        role[i].state = st;
    }
    check_halves(n, held, r);
    free(held);
    return 0;
}

/* ---- forms of the distributed optimizer ---- */

/*
 * Returns the optimizer's sharding type that common.pt records, if checkpoints of this type can only be read with the
 * number of ranks that saved them. With several optimizers, returns the first such type. Otherwise returns NULL.
 */
static const char *saved_sharding_type(const struct source *s)
{
    static const char key[] = "param_state_sharding_type";

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];

        if (str_starts(v->name, "optimizer.") && str_ends(v->name, key) && v->tree && pk_as_str(v->tree) &&
            strcmp(pk_as_str(v->tree), "fully_reshardable") != 0 &&
            strcmp(pk_as_str(v->tree), "fully_sharded_model_space") != 0)
            return pk_as_str(v->tree);
    }
    return NULL;
}

const char *torchdist_form_of_ranks(const struct source *s, const char **entry)
{
    const char *form = saved_sharding_type(s);

    *entry = NULL;
    for (int i = 0; i < s->dcp->n && !*entry; i++)
        if (torchdist_is_bucket(s->dcp->entry[i].name))
            *entry = s->dcp->entry[i].name;
    if (form || !*entry)
        return form;
    return strstr(*entry, ".param_state") ? "dp_zero_gather_scatter" : "dp_reshardable";
}
