/*
 * lightning_values.c - values of a checkpoint of Lightning, and what the readers of model and optimizer share
 */
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/layout/lightning/lightning.h"

/*
 * Limits for the runs of a tensor that is not contiguous, and for values. Dicts can be shared, so there can be more
 * paths than bytes.
 */
enum { RUNS_MAX = 1 << 20, VALUES_DEPTH = 8, VALUES_MOST = 1 << 16 };

struct tmap *lightning_map(const struct lightning *x, const struct pt_tensor *t)
{
    const int64_t at[TENSOR_MAX_DIM] = {0};
    struct tile_flaw flaw;
    struct tile_chunk c = { .at = at, .len = t->shape };

    c.extent = tile_runs(x->s->arena, t, RUNS_MAX, &c.n_extents);
    return c.extent ? tile_map(x->s->arena, &(struct tile_tensor){ t->dtype, t->ndim, t->shape }, &c,
                               t->n_elems > 0, &flaw)
                    : NULL;
}

void lightning_add_value(struct lightning *x, const struct source_value *v)
{
    struct source *s = x->s;

    if (s->n_values == x->cap_values) {
        struct source_value *old = s->value;

        x->cap_values = 2 * x->cap_values + 64;
        s->value = arena_alloc(s->arena, (size_t)x->cap_values * sizeof *s->value);
        if (s->n_values)
            memcpy(s->value, old, (size_t)s->n_values * sizeof *old);
    }
    s->value[s->n_values++] = *v;
}

/* Returns the class of the first object in v, written to `name`, or a description of v. */
static const char *class_of(const struct pk *v, char name[1024])
{
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    for (uint32_t i = 0; item && i < n; i++)
        if (!pk_is_plain(item[i]))
            return class_of(item[i], name);
    return pk_class(v, name, 1024) ? name : "an unknown kind";
}

/* Add a value. Of a dict, add the values that are plain or tensors. Other values are left out, which is reported. */
static void add_lightning_value(struct lightning *x, const char *name, const struct pk *v, int depth)
{
    struct pt_tensor t;
    struct tmap *map;
    uint32_t n = 0;
    struct pk **pair = depth < VALUES_DEPTH ? pk_pairs(v, &n) : NULL;
    char class[1024];

    if (++x->n_visited > VALUES_MOST) {
        if (x->n_visited == VALUES_MOST + 1)
            report_add(x->r, SEV_WARNING, "class", x->path, ERR_NO_BYTE, name,
                       "is left out, and so are all values after it: there are more than %d", VALUES_MOST);
        return;
    }
    if (pk_is_plain(v)) {
        lightning_add_value(x, &(struct source_value){ .name = name, .tree = v, .pt = x->pt });
        return;
    }
    if (pt_tensor(x->pt, v, &t) && (map = lightning_map(x, &t))) {
        struct source_value of = { .name = name, .map = map, .ndim = t.ndim };

        memcpy(of.shape, t.shape, sizeof of.shape);
        lightning_add_value(x, &of);
        return;
    }
    for (uint32_t i = 0; pair && i < n; i++)
        if (!pk_as_str(pair[2 * i]))
            pair = NULL;
    for (uint32_t i = 0; pair && i < n; i++)
        add_lightning_value(x, arena_fmt(x->s->arena, "%s.%s", name, pk_as_str(pair[2 * i])), pair[2 * i + 1],
                            depth + 1);
    if (!pair)
        report_add(x->r, SEV_WARNING, "class", x->path, ERR_NO_BYTE, name,
                   "is left out: an object of the class %s is not read (nothing was executed)", class_of(v, class));
}

void lightning_read_values(struct lightning *x)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pt_root(x->pt), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && strcmp(key, "state_dict") != 0 && strcmp(key, "optimizer_states") != 0)
            add_lightning_value(x, arena_fmt(x->s->arena, "%s", key), pair[2 * i + 1], 0);
    }
}
