/*
 * dcp_target.c - list the entries of a folder to be written: those of a source of this layout, or new ones with
 * FSDP2's names
 */
#include "libcommon/layout/dcp/dcp_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/ckpt/optim_groups.h"

/* ---- target for a source of the same layout ---- */

static const struct dcp_part *list_stack_row_parts(struct dcp_target *t, const struct source_stack *k)
{
    struct dcp_part *row = arena_alloc(t->arena, ((size_t)k->whole.shape[0] + 1) * sizeof *row);

    for (int64_t i = 0; i < k->whole.shape[0]; i++) {
        const struct param *p = &t->src->param[k->row[i]];

        row[i] = (struct dcp_part){ .map = p->state[k->state], .param = p, .state = k->state };
    }
    return row;
}

static int resolve_source_entry(struct dcp_target *t, int i, struct err *e)
{
    const struct dcp_entry *en = &t->table.entry[i];
    struct dcp_part *p = &t->part[i];
    struct source_hit hit = {0};
    bool found = source_find_entry(t->src, en->name, &hit);

    if (found && hit.param) {
        *p = (struct dcp_part){ .map = hit.param->state[hit.state], .param = hit.param,
                                .state = (enum state)hit.state };
    } else if (found) {
        *p = (struct dcp_part){ .map = hit.value->map, .tree = hit.value->tree, .pt = hit.value->pt,
                                .row = hit.stack && hit.stack->row ? list_stack_row_parts(t, hit.stack) : NULL };
    }
    if (en->is_tensor ? p->map != NULL : p->tree != NULL)
        return 0;
    err_data(e, t->src->path, ERR_NO_BYTE, "%s cannot be read completely", en->name);
    return -1;
}

static int copy_source_table(struct dcp_target *t, struct err *e)
{
    const struct dcp_table *from = t->src->dcp;

    t->table = *from;
    t->table.entry = arena_alloc(t->arena, ((size_t)from->n + 1) * sizeof *from->entry);
    memcpy(t->table.entry, from->entry, (size_t)from->n * sizeof *from->entry);
    t->part = arena_alloc(t->arena, ((size_t)from->n + 1) * sizeof *t->part);
    for (int i = 0; i < from->n; i++)
        if (resolve_source_entry(t, i, e) < 0)
            return -1;
    return 0;
}

/* ---- target for other layouts ---- */

/* Add an entry with these keys. path[index] is an index of a list. `index` is -1 if no key is an index of a list. */
static struct dcp_part *add_target_entry(struct dcp_target *t, int n_path, const char *const *path, int index)
{
    struct dcp_entry *en;
    struct strbuf name = {0};

    if (t->table.n == t->room) {        /* the first arrays have room for one entry of each parameter and value */
        const size_t n = (size_t)t->table.n, room = n ? 2 * n : (size_t)(t->src->n_params + t->src->n_values) + 1;
        struct dcp_entry *entry = arena_alloc(t->arena, room * sizeof *entry);
        struct dcp_part *part = arena_alloc(t->arena, room * sizeof *part);

        if (n) {
            memcpy(entry, t->table.entry, n * sizeof *entry);
            memcpy(part, t->part, n * sizeof *part);
        }
        t->table.entry = entry;
        t->part = part;
        t->room = (int)room;
    }
    en = &t->table.entry[t->table.n];
    *en = (struct dcp_entry){ .n_path = n_path };
    en->path = arena_alloc(t->arena, (size_t)n_path * sizeof *en->path);
    en->is_index = arena_alloc(t->arena, (size_t)n_path * sizeof *en->is_index);
    for (int i = 0; i < n_path; i++) {
        strbuf_addf(&name, "%s%s", i ? "." : "", path[i]);
        en->path[i] = arena_strndup(t->arena, path[i], strlen(path[i]));
        en->is_index[i] = i == index;
    }
    en->name = arena_strndup(t->arena, name.buf, name.len);
    strbuf_free(&name);
    t->part[t->table.n] = (struct dcp_part){0};
    return &t->part[t->table.n++];
}

static void shape_entry(struct dcp_target *t, const struct tmap *m, int ndim, const int64_t *shape)
{
    struct dcp_entry *en = &t->table.entry[t->table.n - 1];

    en->is_tensor = true;
    en->dtype = m->dtype;
    en->ndim = ndim;
    if (ndim)
        memcpy(en->shape, shape, (size_t)ndim * sizeof *shape);
}

static void add_model_weights_entry(struct dcp_target *t, const struct param *p)
{
    const char *const path[] = { "model", p->name };
    const enum state st = p->state[STATE_FP32] ? STATE_FP32 : STATE_BF16;
    struct dcp_part *part;

    if (!p->state[st])
        return;
    part = add_target_entry(t, 2, path, -1);
    *part = (struct dcp_part){ .map = p->state[st], .param = p, .state = st, .by_dtype = true,
                               .again = p->shared_with != NULL };
    shape_entry(t, part->map, p->ndim, p->shape);
}

/* Returns a map of the step that all parameters share. The bytes of the map are a record in memory. */
static struct tmap *step_map(const struct source *s, struct arena *a)
{
    struct tmap *m = arena_alloc(a, sizeof *m);
    struct tmap_slice *slice = arena_alloc(a, sizeof *slice);
    float *step = arena_alloc(s->arena, sizeof *step);

    *step = (float)s->run.opt_step;
    *slice = (struct tmap_slice){ .len = sizeof *step, .n_extents = 1,
                                  .extent = arena_alloc(a, sizeof *slice->extent) };
    slice->extent->record = files_add_record(s->files, &(struct record){
        .file = files_add_mem(s->files, step, sizeof *step, "step"), .len = sizeof *step, .name = "step" });
    slice->extent->len = sizeof *step;
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_F32, .len = sizeof *step, .n_slices = 1, .slice = slice };
    return m;
}

static void add_moments(struct dcp_target *t, const struct param *p, const struct tmap *step)
{
    static const struct { const char *key; enum state st; } rows[] = { { "exp_avg", STATE_EXP_AVG },
                                                                       { "exp_avg_sq", STATE_EXP_AVG_SQ } };
    struct dcp_part *part;

    for (int i = 0; i < 2; i++) {
        const char *const path[] = { "optim", "state", p->name, rows[i].key };

        if (!p->state[rows[i].st])
            continue;
        part = add_target_entry(t, 4, path, -1);
        *part = (struct dcp_part){ .map = p->state[rows[i].st], .param = p, .state = rows[i].st };
        shape_entry(t, part->map, p->ndim, p->shape);
    }
    if (p->state[STATE_EXP_AVG] && step) {
        const char *const path[] = { "optim", "state", p->name, "step" };

        add_target_entry(t, 4, path, -1)->map = step;
        shape_entry(t, step, 0, NULL);
    }
}

/* ---- the optimizer's groups ---- */

/*
 * Returns the default of an option that torch's AdamW requires and DeepSpeed's optimizers do not have: True or False
 * for the flags that are known here, None for any other option.
 */
static struct pk *default_of(struct arena *a, const char *option)
{
    static const char *const off[] = { "amsgrad", "maximize", "capturable", "differentiable" };

    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (strcmp(option, off[i]) == 0)
            return pk_bool(a, false);
    return strcmp(option, "decoupled_weight_decay") == 0 ? pk_bool(a, true) : pk_none(a);
}

static void add_option(struct dcp_target *t, const char *group, const char *option, const struct pk *v)
{
    const char *const path[] = { "optim", "param_groups", group, option };

    add_target_entry(t, 4, path, 2)->tree = v;
}

static void add_group(struct dcp_target *t, int number, const struct optim_group *g, struct strbuf *made_up)
{
    static const char *const torchs[] = { "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused",
                                          "decoupled_weight_decay" };
    struct pk *names = pk_list(t->arena);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(g->settings, &n);
    char *key = str_fmt("%d", number);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *option = pk_as_str(pair[2 * i]);

        if (option && strcmp(option, "params") != 0 && pk_is_plain(pair[2 * i + 1]))
            add_option(t, key, option, pair[2 * i + 1]);
    }
    for (size_t i = 0; i < sizeof torchs / sizeof *torchs; i++)
        if (!pk_get(g->settings, torchs[i])) {
            add_option(t, key, torchs[i], default_of(t->arena, torchs[i]));
            if (number == 0)
                strbuf_addf(made_up, "%s%s", made_up->len ? ", " : "", torchs[i]);
        }
    for (int i = 0; i < g->n; i++)
        pk_add(t->arena, names, pk_str(t->arena, g->param[i]));
    add_option(t, key, "params", names);
    free(key);
}

static int add_groups(struct dcp_target *t, struct report *notes, struct err *e)
{
    struct optim_groups groups;
    struct strbuf made_up = {0};

    if (!source_has_moments(t->src)) {
        if (t->src->run.more_states)
            report_add(notes, SEV_WARNING, "left_out", t->src->path, ERR_NO_BYTE, NULL,
                       "the states of the optimizer are omitted, because the DCP form can only hold those of Adam: %s",
                       t->src->run.more_states);
        return 0;
    }
    if (optim_groups_adam_alone(t->src, e) < 0 || optim_groups_read(t->src, t->arena, &groups, e) < 0)
        return -1;
    optim_groups_report_rule(t->src, &groups, notes);
    for (int g = 0; g < groups.n && groups.group[g].settings; g++)
        add_group(t, g, &groups.group[g], &made_up);
    if (groups.n == 0 || !groups.group[0].settings)
        report_add(notes, SEV_WARNING, "groups", t->src->path, ERR_NO_BYTE, NULL,
                   "does not record the settings of the optimizer groups, so the result has no optim.param_groups; a "
                   "loader that requires them needs allow_partial_load");
    else if (made_up.len)
        report_add(notes, SEV_NOTE, "groups", t->src->path, ERR_NO_BYTE, NULL,
                   "options of torch's AdamW that IN lacks get their default values: %s", made_up.buf);
    strbuf_free(&made_up);
    return 0;
}

/* ---- values ---- */

/*
 * Add the entries of value v, whose first n keys are path[]. As in torch's planner, each item of a dict is an entry of
 * its own, so an empty dict has none. Items whose keys cannot be part of a name are listed in `left`.
 */
static void add_value_entries(struct dcp_target *t, int n, const char **path, const struct pk *v, struct strbuf *left)
{
    enum { DEEPEST = 32 };

    if (v->type != PK_DICT || n == DEEPEST) {
        add_target_entry(t, n, path, -1)->tree = v;
        return;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        const char *below[DEEPEST + 1];
        char number[24];
        int64_t k = 0;

        memcpy(below, path, (size_t)n * sizeof *path);
        below[n] = pk_as_str(v->item[2 * i]);
        if (!below[n] && pk_as_int(v->item[2 * i], &k)) {
            snprintf(number, sizeof number, "%lld", (long long)k);
            below[n] = number;
        }
        if (below[n]) {
            add_value_entries(t, n + 1, below, v->item[2 * i + 1], left);
            continue;
        }
        strbuf_addf(left, "%s", left->len ? ", " : "");
        for (int at = 0; at < n; at++)
            strbuf_addf(left, "%s%s", at ? "." : "", path[at]);
        strbuf_addf(left, "[");
        pk_text(v->item[2 * i], left);
        strbuf_addf(left, "]");
    }
}

/*
 * Returns true if `name` is a value of DeepSpeed's files or engine, or one from which entries have already been made.
 */
static bool is_engine_key(const char *name)
{
    static const char *const names[] = { "ds_config", "ds_version", "optimizer", "data_sampler", "random_ltd",
                                         "sparse_tensor_module_names", "skipped_steps", "args" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return str_starts(name, "optimizer.") || (str_starts(name, "optim.state.") && str_ends(name, ".step"));
}

static void add_values(struct dcp_target *t, struct report *notes)
{
    const struct source *s = t->src;
    struct strbuf left = {0};
    bool counted = false;

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];
        const char *path[] = { v->name };

        if (v->buffer)
            continue;                   /* source_add_buffers() has made it a parameter */
        if (v->tree && !is_engine_key(v->name) && !pk_is_none(v->tree) && pk_is_plain(v->tree)) {
            add_value_entries(t, 1, path, v->tree, &left);
            counted = counted || strcmp(v->name, "iteration") == 0;
        } else if ((!is_engine_key(v->name) && !(v->tree && pk_is_none(v->tree))) || str_ends(v->name, "loss_scaler")) {
            strbuf_addf(&left, "%s%s", left.len ? ", " : "", v->name);
        }
    }
    if (!counted && s->run.iteration >= 0) {
        const char *path[] = { "iteration" };

        add_value_entries(t, 1, path, pk_int(t->arena, s->run.iteration), &left);
    }
    if (left.len)
        report_add(notes, SEV_WARNING, "left_out", s->path, ERR_NO_BYTE, NULL,
                   "these values cannot be stored in DCP and are omitted: %s", left.buf);
    strbuf_free(&left);
}

/* Check that no two entries have the same name. This can happen because the program's own values may have any name. */
static int check_entry_names_unique(const struct dcp_target *t, struct err *e)
{
    struct names *known = names_new(t->arena);

    for (int i = 0; i < t->table.n; i++) {
        const char *name = t->table.entry[i].name;

        if (names_find(known, name) >= 0) {
            err_data(e, t->src->path, ERR_NO_BYTE, "two of its tensors and values would have the same name %s", name);
            return -1;
        }
        names_add(known, name, i);
    }
    return 0;
}

static int make_fsdp2_table(struct dcp_target *t, struct report *notes, struct err *e)
{
    const struct source *s = t->src;
    const struct tmap *step = source_has_moments(s) && s->run.opt_step >= 0 ? step_map(s, t->arena) : NULL;
    bool rounded = false;

    t->table.version = "1.0.0";
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        add_model_weights_entry(t, p);
        rounded = rounded || (p->state[STATE_FP32] && p->state[STATE_BF16]);
        if (!p->state[STATE_FP32] && !p->state[STATE_BF16])
            report_add(notes, SEV_WARNING, "missing_key", s->path, ERR_NO_BYTE, p->name,
                       "is omitted, because its values are missing");
    }
    for (int i = 0; i < s->n_params; i++)
        if (!s->param[i].shared_with)
            add_moments(t, &s->param[i], step);
    if (rounded)
        report_add(notes, SEV_NOTE, "masters", s->path, ERR_NO_BYTE, NULL,
                   "the fp32 masters are written as the weights; the 16-bit weights, which are the rounded masters, "
                   "are omitted");
    if (source_has_moments(s) && !step)
        report_add(notes, SEV_WARNING, "step", s->path, ERR_NO_BYTE, NULL,
                   "has no optimizer step that all parameters share: the result has no optim.state.NAME.step, which "
                   "torch's optimizers require");
    if (add_groups(t, notes, e) < 0)
        return -1;
    add_values(t, notes);
    return check_entry_names_unique(t, e);
}

/* ---- the target ---- */

struct dcp_target *dcp_target_empty(const struct source *s)
{
    struct dcp_target *t = xcalloc(1, sizeof *t);

    t->arena = arena_new(0);
    t->src = s;
    return t;
}

struct dcp_target *dcp_target_same(const struct source *s, struct err *e)
{
    struct dcp_target *t = dcp_target_empty(s);

    if (copy_source_table(t, e) == 0)
        return t;
    dcp_target_free(t);
    return NULL;
}

struct dcp_target *dcp_target_new(const struct source *s, struct report *notes, struct err *e)
{
    struct dcp_target *t;

    if (s->layout == &dcp_layout)
        return dcp_target_same(s, e);
    if (source_in_torch(s, e) < 0)
        return NULL;
    t = dcp_target_empty(s);
    if (make_fsdp2_table(t, notes, e) == 0)
        return t;
    dcp_target_free(t);
    return NULL;
}

void dcp_target_free(struct dcp_target *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    free(t);
}
