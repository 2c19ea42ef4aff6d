/*
 * torchdist_masters.c - find the distributed optimizer's own copies of fp32 weights
 */
#include "libcommon/layout/dcp/check/torchdist_masters.h"

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/torchdist_names.h"
#include "libcommon/plan/tmap_slice.h"

/* Returns a map of the `len` bytes at offset `at` of the tensor that m maps. */
static struct tmap *cut_master(struct arena *a, const struct tmap *m, uint64_t at, uint64_t len)
{
    /* two parts, so that the result is one slice of extents */
    return tmap_parts(a, (const struct tmap_part[]){ { m, at, len }, { m, at + len, 0 } }, 2);
}

/* Returns true if the master has the type and the shape of the fp32 weights. Both may be a stack of layers. */
static bool is_same_form(const struct source_value *master, const struct tmap *weights, int ndim, const int64_t *shape)
{
    return weights && weights->dtype == DTYPE_F32 && master->map->dtype == DTYPE_F32 &&
           shape_equal(ndim, shape, master->ndim, master->shape);
}

static void set_stack_master(struct source *s, struct source_value *master, const struct source_stack *k)
{
    const int64_t n = k->whole.shape[0];

    if (k->state != STATE_FP32 || !k->row || n < 1 ||
        !is_same_form(master, k->whole.map, k->whole.ndim, k->whole.shape))
        return;
    master->weights = k->whole.map;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t len = master->map->len / (uint64_t)n;

        s->param[k->row[i]].copy = cut_master(s->arena, master->map, (uint64_t)i * len, len);
    }
}

void torchdist_masters_find(struct source *s)
{
    for (int i = 0; i < s->n_values; i++) {
        struct source_value *v = &s->value[i];
        const char *key = v->map ? torchdist_weight_of_master(v->name) : NULL;
        struct source_hit hit;

        if (!key || !source_find_entry(s, key, &hit))
            continue;
        if (hit.stack) {
            set_stack_master(s, v, hit.stack);
        } else if (hit.param && hit.state == STATE_FP32 &&
                   is_same_form(v, hit.param->state[STATE_FP32], hit.param->ndim, hit.param->shape)) {
            v->weights = hit.param->state[STATE_FP32];
            hit.param->copy = cut_master(s->arena, v->map, 0, v->map->len);
        }
    }
}
