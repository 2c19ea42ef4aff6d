/*
 * edit_states.c - create the list of tensors from a source, and check it
 */
#include "libcommon/layout/edit/edit_states.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/universal/universal_hdf5.h"

struct edit_new edit_new_of(const struct source *s, int param)
{
    const struct param *p = &s->param[param];
    struct edit_new t = { .name = p->name, .param = param, .stage = p->stage, .group = p->group,
                          .ndim = p->ndim };

    memcpy(t.shape, p->shape, sizeof t.shape);
    for (int st = 0; st < STATE_N; st++) {
        t.map[st] = p->state[st];
        t.dtype[st] = p->state[st] ? p->state[st]->dtype : DTYPE_N;
    }
    return t;
}

struct edit_states *edit_states_new(struct edit *x, const char *verb, struct err *e)
{
    const struct source *s = x->s;
    struct edit_states *to;

    if (s->layout->pipeline_files) {
        err_usage(e, "%s: %s: the pipeline engine defines the names in 3D shards, so they cannot be changed; convert "
                     "the checkpoint to %sa model folder (export-hf) first", s->path, verb,
                  s->run.optimizer ? "a universal form (ds2universal) or " : "");
        return NULL;
    }
    if (universal_hdf5_has_model(s)) {
        err_usage(e, "%s: %s: comes from a run without pipeline, whose mp_rank_00 also holds the model; edit the .pt "
                  "files that ds2universal --format pt makes of it", s->path, verb);
        return NULL;
    }
    to = xcalloc(1, sizeof *to);
    for (int i = 0; i < s->n_params; i++) {
        const struct edit_new t = edit_new_of(s, i);

        edit_states_add(to, &t);
    }
    return to;
}

struct edit_new *edit_states_add(struct edit_states *to, const struct edit_new *from)
{
    const struct edit_new t = *from;    /* copy first: `from` may point into the table that moves */

    ARRAY_ROOM(to->tensor, to->cap, to->n + 1);
    to->tensor[to->n] = t;
    return &to->tensor[to->n++];
}

const char *edit_states_name(const struct edit_states *to, const struct source *s, const char *was)
{
    const struct param *p = was ? source_param(s, was) : NULL;

    for (int i = 0; p && i < to->n; i++)
        if (&s->param[to->tensor[i].param] == p)
            return to->tensor[i].name;
    return NULL;
}

void edit_states_free(struct edit_states *to)
{
    if (!to)
        return;
    json_decref(to->config);
    free(to->tensor);
    free(to);
}

bool edit_new_is_old(const struct edit *x, const struct edit_new *t)
{
    const struct param *p = &x->s->param[t->param];

    if (strcmp(t->name, p->name) != 0 || !shape_equal(t->ndim, t->shape, p->ndim, p->shape))
        return false;
    for (int st = 0; st < STATE_N; st++)
        if (t->map[st] != p->state[st] || (t->map[st] && t->dtype[st] != t->map[st]->dtype))
            return false;
    return true;
}

static int by_tensor_name_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/*
 * Returns the first changed name that is not valid, or NULL. A name must be UTF-8, because it is stored in a
 * safetensors header or a JSON index. It must not be __metadata__, which has another meaning there.
 */
static const char *odd_name(const struct edit *x, const struct edit_states *to)
{
    for (int i = 0; i < to->n; i++) {
        const char *name = to->tensor[i].name;

        if (strcmp(name, x->s->param[to->tensor[i].param].name) != 0 &&
            (strcmp(name, "__metadata__") == 0 || utf8_check(name, strlen(name)) != strlen(name)))
            return name;
    }
    return NULL;
}

int edit_states_check(const struct edit *x, const struct edit_states *to, struct err *e)
{
    const char **name = xmalloc(((size_t)to->n + 1) * sizeof *name);
    const char *twice = NULL, *odd = odd_name(x, to);

    for (int i = 0; i < to->n; i++)
        name[i] = to->tensor[i].name;
    qsort(name, (size_t)to->n, sizeof *name, by_tensor_name_text);
    for (int i = 1; i < to->n && !twice; i++)
        twice = strcmp(name[i - 1], name[i]) == 0 ? name[i] : NULL;
    if (to->n == 0)
        err_usage(e, "this would remove every parameter of %s", x->s->path);
    else if (odd)
        err_usage(e, "'%s' cannot be the name of a parameter: expected UTF-8, and not __metadata__", odd);
    else if (twice)
        err_usage(e, "two parameters of %s would have the same name %s", x->s->path, twice);
    free(name);
    return e->kind == ERR_NONE ? 0 : -1;
}
