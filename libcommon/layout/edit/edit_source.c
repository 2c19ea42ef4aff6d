/*
 * edit_source.c - copy a source, and change the parameters and trees of the copy
 */
#include "libcommon/layout/edit/edit_source.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/edit_impl.h"

struct source *edit_source_copy(struct edit *x)
{
    const struct source *s = x->s;
    struct source *to = arena_alloc(x->arena, sizeof *to);

    *to = *s;
    to->names = arena_alloc(x->arena, sizeof *to->names);
    memset(to->names, 0, sizeof *to->names);
    to->file = arena_alloc(x->arena, ((size_t)s->n_files + 1) * sizeof *to->file);
    memcpy(to->file, s->file, (size_t)s->n_files * sizeof *to->file);
    to->param = arena_alloc(x->arena, ((size_t)s->n_params + 1) * sizeof *to->param);
    memcpy(to->param, s->param, (size_t)s->n_params * sizeof *to->param);
    return to;
}

void edit_source_change_trees(struct edit *x, struct source *s, edit_tree_fn *change, void *ctx)
{
    for (int i = 0; i < s->n_files; i++) {
        const struct pk *was = s->file[i].pt ? pt_root(s->file[i].pt) : NULL;
        struct pk *root;

        if (!pk_get(was, "param_shapes"))
            continue;
        root = pk_copy(x->arena, was);
        change(ctx, x->arena, root);
        if (s->run.args && s->run.args == pk_get(was, "args"))
            s->run.args = pk_get(root, "args");
        s->file[i].pt = pt_with_tree(x->arena, s->file[i].pt, root);
    }
}

void edit_source_set(struct source *s, int i, const struct edit_new *t)
{
    struct param *p = &s->param[i];

    p->name = t->name;
    p->stage = t->stage;
    p->group = t->group;
    p->ndim = t->ndim;
    memcpy(p->shape, t->shape, sizeof p->shape);
    for (int st = 0; st < STATE_N; st++) {
        p->has_digest[st] = p->has_digest[st] && p->state[st] == t->map[st];
        p->state[st] = (struct tmap *)t->map[st];
        p->tied[st] = NULL;
    }
    p->copy = NULL;
}

void edit_source_list(struct edit *x, struct source *to, const struct edit_states *list)
{
    to->n_params = list->n;
    to->param = arena_alloc(x->arena, ((size_t)list->n + 1) * sizeof *to->param);
    for (int i = 0; i < list->n; i++) {
        const struct param *was = &x->s->param[list->tensor[i].param];

        to->param[i] = *was;
        edit_source_set(to, i, &list->tensor[i]);
        to->param[i].shared_with = edit_states_name(list, x->s, was->shared_with);
    }
}
