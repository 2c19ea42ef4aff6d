/*
 * optim_groups.c - get the groups, which the opener recorded or the layout reads from its own tables
 */
#include "libcommon/ckpt/optim_groups.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/plan/tmap.h"

int optim_groups_adam_alone(const struct source *s, struct err *e)
{
    if (!s->run.more_states)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "the optimizer stores %s, which cannot be converted to another number of ranks; "
                                      "export-hf --dtype fp32 writes the masters, reshape --weights-only the weights",
             s->run.more_states);
    return -1;
}

/*
 * Check that the source has every parameter that the groups list. Returns -1 with ERR_DATA if a parameter is missing.
 */
static int check_params_there(const struct source *s, const struct optim_groups *groups, struct err *e)
{
    for (int g = 0; g < groups->n; g++)
        for (int i = 0; i < groups->group[g].n; i++)
            if (!source_param(s, groups->group[g].param[i])) {
                err_data(e, s->path, ERR_NO_BYTE, "param_groups list a parameter that does not exist: %s",
                         groups->group[g].param[i]);
                return -1;
            }
    return 0;
}

/* Copy the groups and their lists of parameters, so that the caller may change them. */
static void copy_groups(const struct optim_groups *from, struct arena *a, struct optim_groups *out)
{
    *out = *from;
    out->group = arena_alloc(a, ((size_t)from->n + 1) * sizeof *out->group);
    for (int g = 0; g < from->n; g++) {
        const struct optim_group *x = &from->group[g];

        out->group[g] = *x;
        out->group[g].param = arena_alloc(a, ((size_t)x->n + 1) * sizeof *x->param);
        if (x->n)
            memcpy(out->group[g].param, x->param, (size_t)x->n * sizeof *x->param);
    }
}

int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    *out = (struct optim_groups){0};
    if (s->groups && s->groups->how != OPTIM_GROUPS_UNLISTED) {
        copy_groups(s->groups, a, out);
        return check_params_there(s, out, e);
    }
    return s->read_groups ? s->read_groups(s, a, out, e) : 0;
}

const struct pk *optim_groups_settings(const struct source *s, int g)
{
    if (s->groups)
        return g < s->groups->n ? s->groups->group[g].settings : NULL;
    return adam_list_at(s->run.param_groups, g);
}

bool optim_settings_number(const struct pk *settings, const char *name, double *v)
{
    const struct pk *x = pk_get(settings, name);

    return x && pk_as_double(x, v);
}

bool optim_settings_betas(const struct pk *settings, double *beta1, double *beta2)
{
    uint32_t n = 0;
    struct pk **beta = pk_items(pk_get(settings, "betas"), &n);
    double b1, b2;

    if (!beta || n != 2 || !pk_as_double(beta[0], &b1) || !pk_as_double(beta[1], &b2))
        return false;
    *beta1 = b1;
    *beta2 = b2;
    return true;
}

/* ---- checks of settings ---- */

/* The group whose settings are checked. */
struct checked_group {
    const struct source *s;
    int g;
    const struct pk *settings;
    bool adam;                          /* true if its parameters have the moments of Adam and no other states */
    bool needs_all;                     /* true if each of Adam's settings must be there */
    struct report *r;
};

static void PRINTF_LIKE(2, 3) report_setting(const struct checked_group *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    report_add(c->r, c->s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "groups", c->s->path, ERR_NO_BYTE, NULL,
               "the optimizer's group %d has %s", c->g, text);
}

/* Returns true if v cannot be a number. An object can be a number, because torch stores some settings as tensors. */
static bool is_no_number(const struct pk *v)
{
    uint32_t n;

    return v->type == PK_NONE || v->type == PK_STR || v->type == PK_BYTES || v->type == PK_DICT || pk_items(v, &n);
}

/*
 * Report a setting that is not a finite number of at least 0. Optimizers other than Adam may store the setting in other
 * forms.
 */
static void check_number(const struct checked_group *c, const char *name, bool needed)
{
    const struct pk *v = pk_get(c->settings, name);
    struct strbuf text = {0};
    double number;

    if (!v && needed && c->needs_all) {
        report_setting(c, "moments of Adam, but no %s", name);
    } else if (v && pk_as_double(v, &number)) {
        if (!(number >= 0 && number <= DBL_MAX))
            report_setting(c, "%s %g, which must be a finite number of 0 or more", name, number);
    } else if (v && (v->type == PK_STR || (c->adam && needed && is_no_number(v)))) {
        pk_text(v, &text);
        report_setting(c, "%s %.60s, which must be a finite number of 0 or more", name, text.buf);
    }
    strbuf_free(&text);
}

/* Report betas that are not numbers in [0, 1). Adam needs two betas. */
static void check_betas(const struct checked_group *c)
{
    const struct pk *betas = pk_get(c->settings, "betas");
    uint32_t n = 0;
    struct pk **beta = pk_items(betas, &n);
    double v;
    bool bad = false;

    if (!betas && c->needs_all && !pk_get(c->settings, "beta1"))
        report_setting(c, "moments of Adam, but no betas");
    for (uint32_t i = 0; beta && i < n; i++) {
        if (pk_as_double(beta[i], &v) && !(v >= 0 && v < 1))
            report_setting(c, "a beta of %g, which must be 0 or more and less than 1", v);
        bad |= beta[i]->type == PK_STR || (c->adam && is_no_number(beta[i]));
    }
    if (betas && (bad || betas->type == PK_STR || (c->adam && (beta ? n != 2 : betas->type < PK_GLOBAL)))) {
        struct strbuf text = {0};

        pk_text(betas, &text);
        report_setting(c, "betas %.60s, which must be two numbers", text.buf);
        strbuf_free(&text);
    }
}

/*
 * Returns true if at least two of Adam's settings are present. An absent setting was then lost. Elastic checkpoints of
 * DeepSpeed, and forms made from them, have none of these settings.
 */
static bool has_settings_of_adam(const struct pk *settings)
{
    static const char *const names[] = { "lr", "betas", "eps", "weight_decay" };
    int n = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        n += pk_get(settings, names[i]) != NULL;
    return n >= 2;
}

/*
 * Returns true if a parameter of group g has both moments of Adam. If the parameters of the group are unknown, returns
 * `all`, which is true if Adam's moments are the only states of the optimizer.
 */
static bool is_adams(const struct source *s, int g, bool all)
{
    const bool listed = s->groups && s->groups->how != OPTIM_GROUPS_UNLISTED;
    const struct optim_group *group = listed ? &s->groups->group[g] : NULL;
    bool both = false;

    for (int i = 0; group && i < group->n && !both; i++) {
        const struct param *p = source_param(s, group->param[i]);

        both = p && p->state[STATE_EXP_AVG] && p->state[STATE_EXP_AVG_SQ];
    }
    return group && group->n ? both : all;
}

/* Returns true if Adam's moments are the only states of the optimizer, and no parameter has only one of the two. */
static bool has_adam_alone(const struct source *s)
{
    bool any = false;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (!p->state[STATE_EXP_AVG] != !p->state[STATE_EXP_AVG_SQ])
            return false;
        any |= p->state[STATE_EXP_AVG] != NULL;
    }
    return any && !s->run.more_states;
}

/*
 * Report a loss scale that is not larger than 0 and finite. v is its value in the file pt; NULL if there is no loss
 * scale.
 */
static void check_scale(const struct source *s, const char *name, const struct pk *v, const struct pt *pt,
                        struct report *r)
{
    double scale = NAN;
    bool is_tensor = false;

    if (!v || (v->type >= PK_CALL && !pt) || (pt && adam_read_number(s->files, pt, v, r, &scale, &is_tensor)
                                              ? scale > 0 && scale <= DBL_MAX : is_tensor))
        return;
    if (!pt && pk_as_double(v, &scale) && scale > 0 && scale <= DBL_MAX)
        return;
    report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "optimizer", s->path, ERR_NO_BYTE, NULL,
               "%s is %g, but a loss scale must be a finite number larger than 0", name, scale);
}

/* Check a value whose name is the name of a loss scaler or of its scale. */
static void check_scaler_value(const struct source *s, const struct source_value *v, struct report *r)
{
    const struct pk *member = v->tree ? pk_get(v->tree, "cur_scale") : NULL;
    struct err ignored = {0};
    char bytes[16];

    if (v->map) {
        const double scale = v->map->len == (uint64_t)dtype_size(v->map->dtype) && v->map->len <= sizeof bytes &&
                             tmap_read_checked(v->map, s->files, (struct tmap_range){ 0, 0, v->map->len }, bytes,
                                               &ignored) == 0 ? dtype_value(v->map->dtype, bytes) : 1;

        check_scale(s, v->name, &(struct pk){ .type = PK_FLOAT, .f = scale }, NULL, r);
        return;
    }
    member = member || !v->tree ? member : pk_get(v->tree, "scale");
    if (member || (v->tree && (v->tree->type <= PK_STR && v->tree->type != PK_NONE)))
        check_scale(s, v->name, member ? member : v->tree, v->pt, r);
}

/* Check the loss scale in the optimizer's dict or, if the layout has no such dict, in the values. */
static void check_loss_scale(const struct source *s, struct report *r)
{
    static const char *const names[] = { "scaler", "scaler.scale", "scaler.cur_scale", "MixedPrecision" };
    const struct pk *scaler = pk_get(s->run.optimizer, "loss_scaler");

    if (s->run.optimizer_pt) {
        check_scale(s, "loss_scaler.cur_scale", pk_get(scaler, "cur_scale"), s->run.optimizer_pt, r);
        check_scale(s, "cur_scale", pk_get(s->run.optimizer, "cur_scale"), s->run.optimizer_pt, r);
        return;
    }
    for (int i = 0; i < s->n_values; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (str_ends(s->value[i].name, names[k]))
                check_scaler_value(s, &s->value[i], r);
}

void optim_groups_check_settings(const struct source *s, struct report *r)
{
    const bool all = has_adam_alone(s);
    struct checked_group c = { .s = s, .r = r };

    for (int g = 0; (c.settings = optim_groups_settings(s, g)) != NULL; g++) {
        c.g = g;
        c.adam = is_adams(s, g, all) && !s->run.more_states;
        c.needs_all = c.adam && has_settings_of_adam(c.settings);
        check_number(&c, "lr", true);
        check_number(&c, "weight_decay", true);
        check_number(&c, "eps", true);
        check_number(&c, "momentum", false);
        check_betas(&c);
    }
    check_loss_scale(s, r);
}

void optim_groups_check_step_there(const struct source *s, struct report *r)
{
    const struct pk *settings;

    for (int g = 0; (settings = optim_groups_settings(s, g)) != NULL; g++)
        if (pk_get(settings, "step"))
            return;
    if (has_adam_alone(s))
        report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "step", s->path, ERR_NO_BYTE, NULL,
                   "has moments of Adam, but no step of the optimizer");
}

/* Returns true if the source has Adam's second moments but no state max_exp_avg_sq. */
static bool lacks_max_squares(const struct source *s)
{
    bool moments = false;

    for (int i = 0; i < s->n_params && !moments; i++)
        moments = s->param[i].state[STATE_EXP_AVG_SQ] != NULL;
    for (int i = 0; i < s->n_values; i++)
        if (strstr(s->value[i].name, "max_exp_avg_sq"))
            return false;
    return moments;
}

void optim_groups_check_amsgrad(const struct source *s, struct report *r)
{
    const struct pk *settings;
    int64_t on;

    for (int g = 0; (settings = optim_groups_settings(s, g)) != NULL; g++) {
        if (!pk_as_int(pk_get(settings, "amsgrad"), &on) || !on || !lacks_max_squares(s))
            continue;
        report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "groups", s->path, ERR_NO_BYTE, NULL,
                   "the optimizer's group %d has amsgrad, but no parameter has the state max_exp_avg_sq, without which "
                   "torch does not go on", g);
        return;
    }
}

void optim_groups_report_rule(const struct source *s, const struct optim_groups *g, struct report *notes)
{
    if (g->how == OPTIM_GROUPS_BY_RULE && g->n > 1)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "does not record the parameters of the %d groups of its optimizer; by Megatron's standard rule, "
                   "biases and vectors are assigned to the group without weight decay", g->n);
}

struct pk **optim_groups_copy_settings(const struct pk *list, struct arena *a, int *n)
{
    uint32_t n_groups = 0;
    struct pk **group = pk_items(list, &n_groups), **settings;

    *n = group ? (int)n_groups : 0;
    settings = arena_alloc(a, ((size_t)*n + 1) * sizeof *settings);
    for (int g = 0; g < *n; g++) {
        uint32_t pairs = 0;

        settings[g] = pk_pairs(group[g], &pairs) ? pk_copy(a, group[g]) : pk_dict(a);
        pk_remove(settings[g], "params");
    }
    return settings;
}

struct optim_group *optim_groups_of_settings(const struct source *s, struct arena *a, struct names *known,
                                             const struct pk *settings, struct optim_groups *out)
{
    struct strbuf text = {0};
    int g;

    pk_text(settings, &text);
    g = names_find(known, text.buf);
    if (g < 0) {
        g = out->n++;
        names_add(known, arena_strndup(a, text.buf, text.len), g);
        out->group[g] = (struct optim_group){ settings, 0,
                                              arena_alloc(a, ((size_t)s->n_params + 1) * sizeof(char *)) };
    }
    strbuf_free(&text);
    return &out->group[g];
}

struct optim_groups *optim_groups_by_decay(const struct source *s, int n)
{
    struct optim_groups *x = arena_alloc(s->arena, sizeof *x);
    int n_decay = 0, place = 0;

    *x = (struct optim_groups){ .n = n, .group = arena_alloc(s->arena, (size_t)n * sizeof *x->group) };
    memset(x->group, 0, (size_t)n * sizeof *x->group);
    for (int g = 0; g < n; g++)
        x->group[g].param = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof(char *));
    for (int i = 0; i < s->n_params; i++)
        n_decay += s->param[i].ndim == 2;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        /* parameters without weight decay (LayerNorms and biases) are vectors */
        struct optim_group *g = &x->group[p->ndim != 2 ? n - 1 : n == 3 && place >= n_decay / 2];

        g->param[g->n++] = p->name;
        place += p->ndim == 2;
    }
    return x;
}
