/*
 * zero_groups.c - determine the optimizer groups for a conversion to ZeRO: those of the source or of a template, or
 * one group of all parameters
 */
#include "libcommon/layout/engine/zero_groups.h"

#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/tmap.h"

/* ---- parameters ---- */

const struct tmap *zero_weights_map(const struct param *p)
{
    return p->state[STATE_BF16] ? p->state[STATE_BF16] : p->state[STATE_FP32];
}

/* Returns true if `like` has a buffer of this name. */
static bool has_buffer(const struct source *like, const char *name)
{
    for (int i = 0; i < like->n_values; i++)
        if (like->value[i].buffer && strcmp(like->value[i].name, name) == 0)
            return true;
    return false;
}

/*
 * Returns true if the parameter is a tensor of integers, or a buffer in `like`. In enum dtype, the float types come
 * first.
 */
static bool is_buffer_param(const struct param *p, const struct source *like)
{
    const struct tmap *m = zero_weights_map(p);

    return m && (m->dtype > DTYPE_BF16 || (like && has_buffer(like, p->name)));
}

/* Move the model's buffers from s->param to s->value. */
static void split_buffers(struct source *s, const struct source *like)
{
    struct source_value *value = arena_alloc(s->arena, (size_t)(s->n_values + s->n_params + 1) * sizeof *value);
    int n = 0;

    if (s->n_values)
        memcpy(value, s->value, (size_t)s->n_values * sizeof *value);
    s->value = value;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (!is_buffer_param(p, like)) {
            s->param[n] = *p;
            s->param[n++].group = -1;   /* not assigned to a group yet */
            continue;
        }
        s->value[s->n_values] = (struct source_value){ .name = p->name, .map = zero_weights_map(p), .ndim = p->ndim,
                                                       .buffer = true };
        memcpy(s->value[s->n_values++].shape, p->shape, sizeof p->shape);
    }
    s->n_params = n;
    *s->names = (struct source_names){0};
}

/* ---- the source's groups ---- */

/*
 * Make one group of all parameters that have the state `due` (for STATE_FP32: master weights or weights), in the order
 * of the model. It is used for weights without an optimizer, and for forms that store parameters by name.
 */
static void one_group(const struct source *s, struct optim_groups *out, enum state due)
{
    struct optim_group *g = arena_alloc(s->arena, sizeof *g);

    *out = (struct optim_groups){ .n = 1, .group = g };
    *g = (struct optim_group){ .param = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *g->param) };
    for (int i = 0; i < s->n_params; i++)
        if (due == STATE_FP32 ? zero_weights_map(&s->param[i]) != NULL : s->param[i].state[due] != NULL)
            g->param[g->n++] = s->param[i].name;
}

/*
 * Remove frozen parameters from the groups. AdamW(model.parameters()) lists frozen parameters too, without states for
 * these, but the groups of DeepSpeed contain only trained parameters. A group that becomes empty stays, so that the
 * numbers of the other groups do not change.
 */
static void leave_out_frozen(const struct source *s, struct optim_groups *groups, struct report *notes)
{
    struct strbuf first = {0};
    int left = 0;

    for (int g = 0; g < groups->n; g++) {
        struct optim_group *x = &groups->group[g];
        int n = 0;

        for (int i = 0; i < x->n; i++) {
            const struct param *p = source_param(s, x->param[i]);

            if (p->state[STATE_EXP_AVG] || p->state[STATE_EXP_AVG_SQ] || !zero_weights_map(p))
                x->param[n++] = x->param[i];
            else if (left++ == 0)
                strbuf_addf(&first, "%s", p->name);
        }
        x->n = n;
    }
    if (left)
        report_add(notes, SEV_NOTE, "frozen", s->path, ERR_NO_BYTE, first.buf,
                   "has no moments, although a group of the optimizer lists it%s; it is written as a frozen parameter",
                   left > 1 ? " (like others)" : "");
    strbuf_free(&first);
}

/* ---- the groups of a template ---- */

static int bad_shape(const struct source *s, const struct param *p, const struct param *want, struct err *e)
{
    char have[SHAPE_TEXT], due[SHAPE_TEXT];

    err_data(e, s->path, ERR_NO_BYTE, "parameter %s: is %s, but %s in the checkpoint of --like", p->name,
             shape_text(p->ndim, p->shape, have), shape_text(want->ndim, want->shape, due));
    return -1;
}

/* Check that the source has every parameter and buffer of the template, with the same shape. */
static int check_all_there(struct source *s, const struct source *like, struct err *e)
{
    struct source_hit hit;

    for (int i = 0; i < like->n_params; i++) {
        const struct param *want = &like->param[i], *p = source_param(s, want->name);

        if (!p && !want->shared_with) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: the checkpoint of --like has it, but IN does not",
                     want->name);
            return -1;
        }
        if (p && !shape_equal(p->ndim, p->shape, want->ndim, want->shape))
            return bad_shape(s, p, want, e);
    }
    for (int i = 0; i < like->n_values; i++)
        if (like->value[i].buffer && !(source_find(s, like->value[i].name, &hit) && hit.value && hit.value->map)) {
            err_data(e, s->path, ERR_NO_BYTE, "buffer %s: the checkpoint of --like has it, but IN does not",
                     like->value[i].name);
            return -1;
        }
    return 0;
}

/* Check that the template has every parameter of the source. Otherwise a parameter would be lost without a message. */
static int check_params_in_template(const struct source *s, const struct source *like, struct report *notes,
                                    struct err *e)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i], *there = source_param(like, p->name);

        if (!there) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: the checkpoint of --like does not have it", p->name);
            return -1;
        }
        if (there->shared_with && !p->shared_with)
            report_add(notes, SEV_WARNING, "shared", s->path, ERR_NO_BYTE, p->name,
                       "is a second name of %s in the checkpoint of --like, so its own values are omitted",
                       there->shared_with);
    }
    return 0;
}

/* Returns a table from parameter names to the numbers of the source's groups. */
static struct names *number_groups(struct arena *a, const struct optim_groups *own)
{
    struct names *group = names_new(a);

    for (int g = 0; g < own->n; g++)
        for (int i = 0; i < own->group[g].n; i++)
            names_add(group, own->group[g].param[i], g);
    return group;
}

/*
 * Returns the number of the source's group that contains all parameters of g. Returns -1 if they are in several groups
 * or in none.
 */
static int group_of_all(const struct names *group, const struct optim_group *g)
{
    int first = g->n ? names_find(group, g->param[0]) : -1;

    for (int i = 1; first >= 0 && i < g->n; i++)
        if (names_find(group, g->param[i]) != first)
            return -1;
    return first;
}

/*
 * Returns the settings of a group: a copy of the template's settings (`engines`), with the values of the source's group
 * (`own`) for all keys that this group has. If `engines` is NULL, the result has all settings of the source. A `step`
 * in the settings is set to the source's step.
 */
static struct pk *settings(struct source *s, const struct pk *engines, const struct pk *own)
{
    struct pk *d = engines ? pk_copy(s->arena, engines) : pk_dict(s->arena);
    uint32_t n = 0;
    struct pk **pair = own ? pk_pairs(own, &n) : NULL;

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && strcmp(key, "params") != 0 && pk_is_plain(pair[2 * i + 1]) && (!engines || pk_get(d, key)))
            pk_set_str(s->arena, d, key, pk_copy(s->arena, pair[2 * i + 1]));
    }
    if (pk_get(d, "step") && s->run.opt_step >= 0)
        pk_set_int(s->arena, d, "step", s->run.opt_step);
    return d;
}

/*
 * Set *out to the groups of the template `like`. Returns -1 with ERR_DATA if the parameters of s differ in name or
 * shape from those of `like`. `own` has the source's groups. If all parameters of a group of `like` are in one group of
 * `own`, the settings of that group replace those of the template.
 */
static int use_template_groups(struct source *s, const struct source *like, const struct optim_groups *own,
                               struct optim_groups *out, struct report *notes, struct err *e)
{
    const struct names *group = number_groups(s->arena, own);

    if (check_all_there(s, like, e) < 0 || check_params_in_template(s, like, notes, e) < 0 ||
        optim_groups_read(like, s->arena, out, e) < 0)
        return -1;
    for (int g = 0; g < out->n; g++) {
        const int mine = group_of_all(group, &out->group[g]);

        if (mine < 0 && own->n && own->group[0].settings)
            report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                       "the parameters of group %d of the checkpoint of --like belong to several groups or none in IN; "
                       "the group keeps the settings of that checkpoint", g);
        out->group[g].settings = settings(s, out->group[g].settings, mine < 0 ? NULL : own->group[mine].settings);
    }
    return 0;
}

/* ---- public functions ---- */

static int read_optimizer_groups(struct source *s, const struct zero_import *q, struct optim_groups *out,
                                 struct report *notes, struct err *e)
{
    const enum zero_purpose what = q->purpose;
    struct optim_groups own = {0};

    if (what == ZERO_FOR_WEIGHTS)
        one_group(s, &own, STATE_FP32);
    else if (optim_groups_read(s, s->arena, &own, e) < 0)
        return -1;
    if (what != ZERO_FOR_WEIGHTS && s->layout->value_entries && source_has_moments(s))
        leave_out_frozen(s, &own, notes);
    optim_groups_report_rule(s, &own, notes);
    *out = own;
    if (q->like && use_template_groups(s, q->like, &own, out, notes, e) < 0)
        return -1;
    if (what == ZERO_FOR_WEIGHTS)
        return 0;
    if (out->n == 0 && what == ZERO_FOR_NAMES)
        one_group(s, out, STATE_EXP_AVG);
    if (what == ZERO_FOR_NAMES && !source_has_moments(s)) {
        err_data(e, s->path, ERR_NO_BYTE, "has no moments, but a universal form consists of masters and moments; "
                                          "convert a checkpoint with optimizer states");
        return -1;
    }
    if (out->n == 0) {
        err_data(e, s->path, ERR_NO_BYTE, "does not record which parameters and settings the optimizer groups have, so "
                                          "it cannot be converted to ZeRO%s; --to zero1 or zero2 with --weights-only "
                                          "writes the weights",
                 source_has_moments(s) ? " without --like, a checkpoint that records them" : "");
        return -1;
    }
    if (s->run.opt_step < 0 && what == ZERO_FOR_RANKS) {
        err_data(e, s->path, ERR_NO_BYTE, "has no step of the optimizer that all parameters share, but ZeRO stores one "
                                          "step");
        return -1;
    }
    return 0;
}

/*
 * Return -1 with *e set if a parameter has moments but belongs to no group. Its moments would be lost without a
 * message.
 */
static int check_moments_have_group(const struct source *s, const struct source *like, struct report *notes,
                                    struct err *e)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].shared_with) {
            continue;                   /* the first name of a tied weight has the group */
        } else if (s->param[i].group < 0 && s->param[i].state[STATE_EXP_AVG] && like) {
            report_add(notes, SEV_WARNING, "frozen", s->path, ERR_NO_BYTE, s->param[i].name,
                       "is frozen in the checkpoint of --like, so its moments are omitted");
        } else if (s->param[i].group < 0 && s->param[i].state[STATE_EXP_AVG]) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: has moments, but no group of the optimizer lists it",
                     s->param[i].name);
            return -1;
        }
    return 0;
}

/* Store in each parameter of s the number of its group. */
static void number_params(struct source *s)
{
    for (int g = 0; g < s->groups->n; g++)
        for (int i = 0; i < s->groups->group[g].n; i++)
            source_param(s, s->groups->group[g].param[i])->group = g;
}

int zero_groups_resolve(struct source *s, const struct zero_import *q, struct report *notes, struct err *e)
{
    struct optim_groups *groups = arena_alloc(s->arena, sizeof *groups);

    if (source_one_model(s, e) < 0 || source_in_torch(s, e) < 0)
        return -1;
    split_buffers(s, q->like);
    if (read_optimizer_groups(s, q, groups, notes, e) < 0)
        return -1;
    s->groups = groups;
    s->topo = (struct topology){ .tp = 1, .pp = 1, .dp = 1 };
    number_params(s);
    return q->purpose == ZERO_FOR_WEIGHTS ? 0 : check_moments_have_group(s, q->like, notes, e);
}

const struct tmap *zero_state_map(const struct param *p, enum state st, int *op)
{
    const struct tmap *m = p->state[st] || st != STATE_FP32 ? p->state[st] : p->state[STATE_BF16];

    *op = m ? plan_op_of(m->dtype, DTYPE_F32) : -1;
    return m;
}
