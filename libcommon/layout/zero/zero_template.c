/*
 * zero_template.c - compare names and shapes, and combine the settings of groups
 */
#include "libcommon/layout/zero/zero_template.h"

#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pickle/pickle.h"

bool zero_like_buffer(const struct source *like, const char *name)
{
    for (int i = 0; i < like->n_values; i++)
        if (like->value[i].buffer && strcmp(like->value[i].name, name) == 0)
            return true;
    return false;
}

/* ---- the model ---- */

static int bad_shape(const struct source *s, const struct param *p, const struct param *want, struct err *e)
{
    char have[SHAPE_TEXT], due[SHAPE_TEXT];

    err_data(e, s->path, ERR_NO_BYTE, "parameter %s: is %s, and %s in the checkpoint of --like", p->name,
             shape_text(p->ndim, p->shape, have), shape_text(want->ndim, want->shape, due));
    return -1;
}

/* Check that the source has every parameter and buffer of the engine, with the same shape. */
static int check_all_there(struct source *s, const struct source *like, struct err *e)
{
    struct source_hit hit;

    for (int i = 0; i < like->n_params; i++) {
        const struct param *want = &like->param[i], *p = source_param(s, want->name);

        if (!p && !want->shared_with) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: is in the checkpoint of --like and not here", want->name);
            return -1;
        }
        if (p && !shape_equal(p->ndim, p->shape, want->ndim, want->shape))
            return bad_shape(s, p, want, e);
    }
    for (int i = 0; i < like->n_values; i++)
        if (like->value[i].buffer && !(source_find(s, like->value[i].name, &hit) && hit.value && hit.value->map)) {
            err_data(e, s->path, ERR_NO_BYTE, "buffer %s: is in the checkpoint of --like and not here",
                     like->value[i].name);
            return -1;
        }
    return 0;
}

/* Check that the engine has every parameter of the source, which would otherwise be lost silently. */
static int check_params_in_template(const struct source *s, const struct source *like, struct report *notes,
                                    struct err *e)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i], *there = source_param(like, p->name);

        if (!there) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: is not in the checkpoint of --like", p->name);
            return -1;
        }
        if (there->shared_with && !p->shared_with)
            report_add(notes, SEV_WARNING, "shared", s->path, ERR_NO_BYTE, p->name,
                       "is another name of %s in the checkpoint of --like: its own values are left out",
                       there->shared_with);
    }
    return 0;
}

/* ---- settings ---- */

/* Returns a table of the source's groups by parameter name. */
static struct names *number_groups(struct arena *a, const struct optim_groups *own)
{
    struct names *group = names_new(a);

    for (int g = 0; g < own->n; g++)
        for (int i = 0; i < own->group[g].n; i++)
            names_add(group, own->group[g].param[i], g);
    return group;
}

/*
 * Returns the group of the source that contains all of these parameters, or -1 if they are in several groups or in
 * none.
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
 * Returns the settings that the engine's optimizer has, with the source's values. A counter among them is set to the
 * source's step.
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

int zero_like_groups(struct source *s, const struct source *like, const struct optim_groups *own,
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
                       "has the parameters of the engine's group %d in several groups or none: its settings are those "
                       "of the checkpoint of --like", g);
        out->group[g].settings = settings(s, out->group[g].settings, mine < 0 ? NULL : own->group[mine].settings);
    }
    return 0;
}
