/*
 * dcp_target.c - entries as they are
 */
#include "libcommon/layout/dcp/dcp_target.h"

#include <stdlib.h>
#include <string.h>

/* ---- of such a folder ---- */

static int take_entry(struct dcp_target *t, int i, struct err *e)
{
    const struct dcp_entry *en = &t->table.entry[i];
    struct dcp_part *p = &t->part[i];
    struct source_hit hit = {0};
    bool found = source_find(t->src, en->name, &hit);

    if (found && hit.param) {
        if (hit.state < 0)
            hit.state = param_named_state(hit.param);
        if (hit.state < 0)
            hit.state = hit.param->state[STATE_FP32] ? STATE_FP32 : STATE_BF16;
        *p = (struct dcp_part){ .map = hit.param->state[hit.state], .param = hit.param,
                                .state = (enum state)hit.state };
    } else if (found) {
        *p = (struct dcp_part){ .map = hit.value->map, .tree = hit.value->tree, .pt = hit.value->pt };
    }
    if (en->is_tensor ? p->map != NULL : p->tree != NULL)
        return 0;
    err_data(e, t->src->path, ERR_NO_BYTE, "%s cannot be read whole", en->name);
    return -1;
}

static int take_table(struct dcp_target *t, struct err *e)
{
    const struct dcp_table *from = t->src->dcp;

    t->table = *from;
    t->table.entry = arena_alloc(t->arena, ((size_t)from->n + 1) * sizeof *from->entry);
    memcpy(t->table.entry, from->entry, (size_t)from->n * sizeof *from->entry);
    t->part = arena_alloc(t->arena, ((size_t)from->n + 1) * sizeof *t->part);
    for (int i = 0; i < from->n; i++)
        if (take_entry(t, i, e) < 0)
            return -1;
    return 0;
}

/* ---- the target ---- */

struct dcp_target *dcp_target_new(const struct source *s, struct report *notes, struct err *e)
{
    struct dcp_target *t = xcalloc(1, sizeof *t);

    t->arena = arena_new(0);
    t->src = s;
    (void)notes;
    if (take_table(t, e) == 0)
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
