/*
 * edit_dcp_cast.c - convert the weights of a dcp or torchdist folder to another type
 *
 * The chunks of a converted entry keep their bounds, and all of them are written as new bytes. They are converted from
 * the fp32 master weights if there are any, as the optimizer does it, otherwise from the weights.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/dcp/edit_torchdist.h"
#include "libcommon/layout/edit/edit_impl.h"

/* Returns the state that holds a parameter's weights. */
static enum state cast_weight_state(const struct param *p)
{
    return p->state[STATE_BF16] ? STATE_BF16 : STATE_FP32;
}

/* Returns the state under which weights of type `to` are listed when they are read. */
static enum state weights_as(enum dtype to)
{
    return to == DTYPE_F32 ? STATE_FP32 : STATE_BF16;
}

/*
 * Returns the list of tensors after the cast. cast[i] is true if the weights of parameter i are converted. The
 * parameter's fp32 master weights stay. fp32 weights of a parameter that has no 16-bit weights are converted and
 * replaced, except if an optimizer stores its own copy of them; this copy is then their master.
 */
static struct edit_states *list_cast_states(const struct source *s, const bool *cast, enum dtype to)
{
    struct edit_states *list = xcalloc(1, sizeof *list);
    const enum state as = weights_as(to);

    for (int i = 0; i < s->n_params; i++) {
        struct edit_new t = edit_new_of(s, i), *made;
        const struct tmap *masters = t.map[STATE_FP32], *m = masters ? masters : t.map[STATE_BF16];

        made = edit_states_add(list, &t);
        if (!cast[i])
            continue;
        if (!t.map[STATE_BF16] && !s->param[i].copy)
            made->map[STATE_FP32] = NULL;
        made->map[STATE_BF16] = NULL;
        made->map[as] = m;
        made->dtype[as] = to;
    }
    return list;
}

/* Returns true if entry i holds weights that are converted. */
static bool is_cast(struct edit *x, int i, enum dtype to)
{
    const struct dcp_part *part = &x->entries->of->part[i], *one = part->row ? part->row : part;

    return one->param && one->state == cast_weight_state(one->param) && dtype_is_float(one->map->dtype) &&
           one->map->dtype != to && !edit_dcp_is_optimizers(x, &x->s->dcp->entry[i]);
}

static void record_cast_param(void *ctx, struct edit *x, const struct dcp_part *part)
{
    ((bool *)ctx)[part->param - x->s->param] = true;
}

/*
 * Replace chunk k of the entry by new bytes of type `to`. Returns -1 with ERR_USAGE if the type cannot be converted, or
 * if the entry is a stack and the chunk has elements of several rows.
 */
static int cast_chunk(struct edit *x, struct edit_entry *n, int k, enum dtype to, struct err *e)
{
    const struct dcp_part *part = &x->entries->of->part[n->was];
    struct dcp_chunk *c = &n->en.chunk[k];
    const int below = part->row ? 1 : 0;
    const struct dcp_chunk inner = { .at = c->at + below, .len = c->len + below };
    const struct param *p;
    const struct tmap *m;

    if (below && c->len[0] != 1) {
        err_usage(e, "%s: is not divided at layers; divide it again with reshape --ranks", n->en.name);
        return -1;
    }
    p = below ? part->row[c->at[0]].param : part->param;
    m = p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];
    if (m->dtype != to && plan_op_of(m->dtype, to) < 0) {
        err_usage(e, "cast: %s has type %s, which cannot be converted to %s",
                  n->en.name, dtype_name(m->dtype), dtype_name(to));
        return -1;
    }
    c->place.number = -1;
    n->bytes[k] = (struct edit_bytes){ .map = edit_box(x->arena, m, p->ndim, p->shape, &inner), .dtype = to,
                                       .tensor = (int)(p - x->s->param), .state = weights_as(to),
                                       .at = c->at + below };
    return 0;
}

/*
 * Returns -1 with ERR_USAGE if some weights cannot be converted because of their type. Otherwise the result would have
 * weights of two types.
 */
static int check_castable(const struct source *s, enum dtype to, struct err *e)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *m = s->param[i].state[cast_weight_state(&s->param[i])];

        if (!m || !dtype_is_weight(m->dtype) || m->dtype == to || plan_op_of(m->dtype, to) >= 0)
            continue;
        err_usage(e, "cast: %s has type %s, which cannot be converted to %s", s->param[i].name, dtype_name(m->dtype),
                  dtype_name(to));
        return -1;
    }
    return 0;
}

int edit_dcp_cast(struct edit *x, enum dtype to, struct err *e)
{
    const struct dcp_table *t = x->s->dcp;
    bool *cast = arena_alloc(x->arena, (size_t)x->s->n_params + 1);

    if (check_castable(x->s, to, e) < 0 || edit_entries_begin(x, e) < 0)
        return -1;
    for (int i = 0; i < t->n; i++)
        if (is_cast(x, i, to))
            edit_dcp_visit_parts(x, i, record_cast_param, cast);
    x->states = list_cast_states(x->s, cast, to);
    for (int i = 0; i < t->n; i++) {
        struct edit_entry *n = edit_entries_add(x, i);

        if (!is_cast(x, i, to))
            continue;
        n->en.dtype = to;
        n->changed = true;
        edit_entry_room(x, n, n->en.n_chunks);
        for (int k = 0; k < n->en.n_chunks; k++)
            if (cast_chunk(x, n, k, to, e) < 0)
                return -1;
    }
    return edit_core_cast(x, to, e) < 0 ? -1 : edit_entries_resolve_files(x, e);
}
