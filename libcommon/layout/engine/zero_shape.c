/*
 * zero_shape.c - convert param_shapes to groups and back, and compute the positions of parameters in the flat vectors
 */
#include "libcommon/layout/engine/zero_shape.h"

#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/model/zero_partition.h"

/* Maximum number of elements of a parameter or a group: 4 TiB of fp32 master weights. */
static const int64_t elems_max = (int64_t)1 << 40;

bool zero_is_name(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n > ZERO_NAME_MAX || *s == '.')
        return false;
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || *s == 0x7f || *s == '/' || *s == '\\')
            return false;
    return true;
}

bool zero_read_dims(const struct pk *shape, int *ndim, int64_t *dims, int64_t *n_elems)
{
    uint32_t n = 0;
    struct pk **dim = pk_items(shape, &n);
    int64_t elems;

    if (!dim || n > TENSOR_MAX_DIM)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!pk_as_int(dim[i], &dims[i]))
            return false;
    elems = shape_count((int)n, dims);
    if (elems < 0 || elems > elems_max)
        return false;
    *ndim = (int)n;
    *n_elems = elems;
    return true;
}

/* ---- reading ---- */

static bool read_slot(struct zero_slot *s, const struct pk *key, const struct pk *shape, const char *path,
                      struct report *r)
{
    s->name = pk_as_str(key);
    if (!s->name || !zero_is_name(s->name)) {
        report_add(r, SEV_ERROR, "param_name", path, ERR_NO_BYTE, NULL,
                   "param_shapes: '%.60s' cannot be a parameter's name", s->name ? s->name : "(no string)");
        return false;
    }
    if (zero_read_dims(shape, &s->ndim, s->shape, &s->n_elems))
        return true;
    report_add(r, SEV_ERROR, "shape", path, ERR_NO_BYTE, s->name, "param_shapes gives it an impossible shape");
    return false;
}

static bool read_shapes_group(struct zero_group *g, struct arena *a, const struct pk *shapes, const char *path,
                              struct report *r)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(shapes, &n);
    int64_t sum = 0;

    if (!pair) {
        report_add(r, SEV_ERROR, "key", path, ERR_NO_BYTE, NULL, "param_shapes: a group is not a dictionary of shapes");
        return false;
    }
    g->slot = arena_alloc(a, (n + 1) * sizeof *g->slot);
    for (; (uint32_t)g->n < n; g->n++) {
        struct zero_slot *s = &g->slot[g->n];

        if (!read_slot(s, pair[2 * g->n], pair[2 * g->n + 1], path, r))
            return false;
        sum += s->n_elems;
        if (sum > elems_max) {
            report_add(r, SEV_ERROR, "shape", path, ERR_NO_BYTE, NULL,
                       "param_shapes: a group of more than 2^40 elements");
            return false;
        }
    }
    return true;
}

void zero_shape_index(struct zero_shape *x, struct arena *a)
{
    int n = 0;

    x->index = names_new(a);
    for (int g = 0; g < x->n_groups; g++)
        for (int i = 0; i < x->group[g].n; i++)
            names_add(x->index, x->group[g].slot[i].name, n++);
}

/*
 * Check that no name occurs twice. x->index keeps only the first slot of each name, so a second slot could not be found
 * by its name.
 */
static bool check_slot_names_unique(const struct zero_shape *x, const char *path, struct report *r)
{
    const struct zero_slot *first;

    for (int g = 0; g < x->n_groups; g++)
        for (int i = 0; i < x->group[g].n; i++) {
            const struct zero_slot *s = &x->group[g].slot[i];

            if (zero_shape_find(x, s->name, &first) == g && first == s)
                continue;
            report_add(r, SEV_ERROR, "twice", path, ERR_NO_BYTE, s->name, "listed twice in param_shapes");
            return false;
        }
    return true;
}

bool zero_shape_read(struct zero_shape *x, struct arena *a, const struct pk *param_shapes, const char *path,
                     struct report *r)
{
    uint32_t n = 0;
    struct pk **item = pk_items(param_shapes, &n);

    *x = (struct zero_shape){0};
    if (!item || n == 0) {
        report_add(r, SEV_ERROR, "key", path, ERR_NO_BYTE, NULL,
                   "key 'param_shapes' is missing or empty, so the tensors in the optimizer files are unknown");
        return false;
    }
    x->group = arena_alloc(a, n * sizeof *x->group);
    for (; (uint32_t)x->n_groups < n; x->n_groups++)
        if (!read_shapes_group(&x->group[x->n_groups], a, item[x->n_groups], path, r))
            return false;
    zero_shape_index(x, a);
    return check_slot_names_unique(x, path, r);
}

int zero_shape_find(const struct zero_shape *x, const char *name, const struct zero_slot **slot)
{
    int i = x->index ? names_find(x->index, name) : -1;

    for (int g = 0; i >= 0 && g < x->n_groups; g++) {
        *slot = &x->group[g].slot[i];
        if (i < x->group[g].n)
            return g;
        i -= x->group[g].n;
    }
    return -1;
}

enum dtype zero_shape_weights(const struct zero_shape *x, const struct pt *model)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(pt_root(model), "module"), &n);
    const struct zero_slot *slot;
    struct pt_tensor t;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]) && zero_shape_find(x, pk_as_str(pair[2 * i]), &slot) >= 0 &&
            pt_tensor(model, pair[2 * i + 1], &t))
            return t.dtype;
    return DTYPE_F32;
}

void zero_shape_check_module(const struct zero_shape *x, const struct pk *model, const char *path,
                             enum severity severity, struct report *r)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(model, "module"), &n);
    struct arena *a = arena_new(0);
    struct names *there = names_new(a);
    const char *first = NULL;
    int n_missing = 0;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]))
            names_add(there, pk_as_str(pair[2 * i]), 0);
    for (int g = 0; pair && g < x->n_groups; g++)
        for (int i = 0; i < x->group[g].n; i++)
            if (names_find(there, x->group[g].slot[i].name) < 0 && n_missing++ == 0)
                first = x->group[g].slot[i].name;
    if (first)
        report_add(r, severity, "missing_key", path, ERR_NO_BYTE, first,
                   "`module` has no tensor of it, and param_shapes lists it%s",
                   n_missing > 1 ? " (and of other parameters)" : "");
    arena_free(a);
}

void zero_shape_check_buffers(const struct zero_shape *x, const struct pk *model, const char *path, struct report *r)
{
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(model, "buffer_names"), &n);
    const struct zero_slot *slot;

    for (uint32_t i = 0; item && i < n; i++) {
        if (!pk_as_str(item[i]) || zero_shape_find(x, pk_as_str(item[i]), &slot) < 0)
            continue;
        report_add(r, SEV_ERROR, "twice", path, ERR_NO_BYTE, slot->name,
                   "is a trained parameter in param_shapes and a buffer in buffer_names");
        return;
    }
}

/* ---- writing ---- */

struct pk *zero_shape_tree(struct arena *a, const struct zero_shape *x)
{
    struct pk *list = pk_list(a);

    for (int g = 0; g < x->n_groups; g++) {
        struct pk *d = pk_ordered_dict(a);

        for (int i = 0; i < x->group[g].n; i++) {
            const struct zero_slot *s = &x->group[g].slot[i];

            pk_set_str(a, d, s->name, pt_new_size(a, s->ndim, s->shape));
        }
        pk_add(a, list, d);
    }
    return list;
}

/* ---- positions ---- */

void zero_shape_place(struct zero_shape *x, int stage, int world)
{
    x->stage = stage;
    x->world = world;
    for (int g = 0; g < x->n_groups; g++) {
        struct zero_group *group = &x->group[g];

        group->need = 0;
        for (int i = 0; i < group->n; i++) {
            struct zero_slot *s = &group->slot[i];

            s->first = group->need;
            group->need += stage == 3 ? zero_piece_elems(s->n_elems, world) : s->n_elems + s->pad;
        }
        group->part = stage == 3 ? group->need : zero_partition_elems(group->need, world);
    }
}

int64_t zero_lean(const struct zero_shape *x, int g, int r)
{
    const struct zero_group *group = &x->group[g];
    int64_t left = group->need - (int64_t)r * group->part;

    if (x->stage == 3)
        return group->part;
    return left < 0 ? 0 : left > group->part ? group->part : left;
}

int64_t zero_piece(const struct zero_shape *x, int g, const struct zero_slot *s, int r, int64_t *at, int64_t *skip)
{
    int64_t c, left;

    if (x->stage != 3)
        return zero_fragment(s->first, s->n_elems, x->group[g].part, r, at, skip);
    c = zero_piece_elems(s->n_elems, x->world);
    left = s->n_elems - (int64_t)r * c;
    *at = s->first;
    *skip = (int64_t)r * c;
    return left < 0 ? 0 : left > c ? c : left;
}

/* ---- what files record of the positions ---- */

struct pk *zero_alignment_tree(struct arena *a, const struct zero_shape *x, int g)
{
    struct pk *pads = pk_list(a);

    for (int i = 0; i < x->group[g].n; i++)
        pk_add(a, pads, pk_int(a, x->group[g].slot[i].pad));
    return pads;
}

struct pk *zero_mapping_tree(struct arena *a, const struct zero_shape *x, int g, int r)
{
    struct pk *d = pk_ordered_dict(a);

    for (int i = 0; i < x->group[g].n; i++) {
        int64_t at, skip, n = zero_piece(x, g, &x->group[g].slot[i], r, &at, &skip);
        struct pk *f = pk_dict(a);

        if (n == 0)
            continue;
        pk_set_int(a, f, "numel", n);
        pk_set_int(a, f, "start", at);
        pk_set_str(a, d, x->group[g].slot[i].name,
                   pk_object(a, "deepspeed.utils.tensor_fragment", "fragment_address", f));
    }
    return d;
}
