/*
 * pt_dtensor.c - find out which part of a whole tensor a pickled DTensor of torch is
 *
 *   DTensor     global size, dtype; _local_tensor: a view of a storage; _spec
 *   _spec       placements, one for each dimension of the mesh; mesh; tensor_meta, which repeats the size; shard_order
 *   mesh        size of each dimension (_layout, or the shape of the tensor `mesh` before torch 2.9),
 *               _coordinate_on_dim: the rank's position in it
 *
 * Shard(d) cuts dimension d into pieces of ceil(length / ranks). Placements are applied from left to right, but a
 * _StridedShard is applied after those to its right, because the later dimensions of the mesh have cut the tensor
 * first. shard_order, which torch has since 2.10, states the order for each dimension of the tensor. torch writes no
 * other one than from left to right.
 */
#include <string.h>

#include "libcommon/format/pt.h"
#include "libcommon/format/pt_kind.h"

enum { RANKS_MAX = 1 << 24 };

struct mesh {
    int n;
    int64_t size[PT_MESH_MAX], at[PT_MESH_MAX]; /* ranks in each dimension, and the position of this rank */
};

struct placement {
    enum { PLACED_REPLICATE, PLACED_SHARD, PLACED_STRIDED } kind;
    int64_t dim, split_factor;
};

/*
 * Returns the product of the integers in v, which must be an int or a list of ints. Returns -1 if v is anything else.
 */
static int64_t product_of(const struct pk *v)
{
    int64_t all = 1, one;
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    if (v && !item && pk_as_int(v, &one))
        return one >= 1 && one <= RANKS_MAX ? one : -1;
    for (uint32_t i = 0; item && i < n; i++) {
        if (!pk_as_int(item[i], &one) || one < 1 || one > RANKS_MAX || all * one > RANKS_MAX)
            return -1;
        all *= one;
    }
    return item ? all : -1;
}

static const char *parse_mesh(const struct pt *pt, const struct pk *v, struct mesh *m)
{
    static const char unknown[] = "its mesh of ranks has an unknown form";
    const struct pk *layout = pt_kind_attribute(v, "_layout"), *ranks = pt_kind_attribute(v, "mesh");
    uint32_t n = 0, n_at = 0;
    struct pk **axis = pk_items(pt_kind_attribute(layout, "axes"), &n);
    struct pk **at = pk_items(pt_kind_attribute(v, "_coordinate_on_dim"), &n_at);
    struct pt_tensor t;

    if (!axis && ranks && pt_tensor(pt, ranks, &t))
        n = (uint32_t)t.ndim;
    else if (!axis)
        return unknown;
    if (n < 1 || n > PT_MESH_MAX || !at || n_at != n)
        return unknown;
    m->n = (int)n;
    for (uint32_t i = 0; i < n; i++) {
        m->size[i] = axis ? product_of(pt_kind_attribute(axis[i], "shape")) : t.shape[i];
        if (m->size[i] < 1 || m->size[i] > RANKS_MAX || !pk_as_int(at[i], &m->at[i]) || m->at[i] < 0 ||
            m->at[i] >= m->size[i])
            return unknown;
    }
    return NULL;
}

static const char *parse_placements(const struct pk *v, int ndim, const struct mesh *m, struct placement *p)
{
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    if (!item || (int)n != m->n)
        return "its placements are not as many as its mesh has dimensions";
    for (uint32_t i = 0; i < n; i++) {
        const struct pk *g = item[i]->type == PK_OBJ || item[i]->type == PK_CALL ? item[i]->fn : NULL;
        const char *name = g && g->type == PK_GLOBAL ? g->name : "";

        p[i] = (struct placement){ .split_factor = 1 };
        if (strcmp(name, "Replicate") == 0)
            continue;
        if (strcmp(name, "Shard") != 0 && strcmp(name, "_StridedShard") != 0)
            return strcmp(name, "Partial") == 0 || strcmp(name, "_Partial") == 0
                       ? "it is a partial sum of its rank" : "it has a placement of an unknown kind";
        p[i].kind = *name == '_' ? PLACED_STRIDED : PLACED_SHARD;
        if (!pk_as_int(pt_kind_attribute(item[i], "dim"), &p[i].dim) || p[i].dim < -ndim || p[i].dim >= ndim)
            return "its placement cuts a dimension that it does not have";
        p[i].dim += p[i].dim < 0 ? ndim : 0;
        if (p[i].kind == PLACED_STRIDED && !pk_as_int(pt_kind_attribute(item[i], "split_factor"), &p[i].split_factor))
            return "it has a placement of an unknown kind";
    }
    return NULL;
}

/* Cut dimension `dim` of the part in the way that dimension i of the mesh requires. */
static void cut_part(struct pt_dtensor *d, int dim, const struct mesh *m, int i)
{
    const int64_t n = d->len[dim], each = (n + m->size[i] - 1) / m->size[i];
    const int64_t from = m->at[i] * each < n ? m->at[i] * each : n;

    d->at[dim] += from;
    d->len[dim] = n - from < each ? n - from : each;
}

static const char *apply_placements(struct pt_dtensor *d, const struct mesh *m, const struct placement *p)
{
    d->mesh.n = m->n;
    for (int i = 0; i < m->n; i++)
        d->mesh.at[i] = (struct pt_placement){ m->size[i], p[i].kind == PLACED_REPLICATE ? -1 : p[i].dim,
                                               p[i].kind == PLACED_STRIDED };
    for (int i = 0; i < m->n; i++) {
        int64_t later = 1;

        for (int k = i + 1; k < m->n; k++)
            later *= p[k].kind != PLACED_REPLICATE && p[k].dim == p[i].dim ? m->size[k] : 1;
        if (p[i].kind == PLACED_STRIDED && p[i].split_factor != later)
            return "its split_factor is not the number of ranks that cut it before";
        if (p[i].kind == PLACED_SHARD)
            cut_part(d, (int)p[i].dim, m, i);
    }
    for (int i = m->n - 1; i >= 0; i--)
        if (p[i].kind == PLACED_STRIDED)
            cut_part(d, (int)p[i].dim, m, i);
    return NULL;
}

/*
 * Check that shard_order, if it exists, states that the placements are applied from left to right. It is a tuple of
 * ShardOrderEntry(tensor_dim, mesh_dims). torch does not use it with a _StridedShard.
 */
static const char *check_shard_order(const struct pk *v, const struct mesh *m, const struct placement *p)
{
    static const char other[] = "its shard_order is not that of its placements from left to right";
    uint32_t n = 0, n_dims = 0;
    struct pk **entry = pk_items(v, &n);
    int n_cut = 0;

    for (int i = 0; i < m->n; i++) {
        if (p[i].kind == PLACED_STRIDED)
            return NULL;
        n_cut += p[i].kind == PLACED_SHARD;
    }
    if (!entry)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        const struct pk *args = entry[i]->type == PK_OBJ ? entry[i]->args : NULL;
        struct pk **dim = args && args->n == 2 ? pk_items(args->item[1], &n_dims) : NULL;
        int64_t of = -1, before = -1, at;

        if (!dim || !pk_as_int(args->item[0], &of))
            return "its shard_order has an unknown form";
        for (uint32_t k = 0; k < n_dims; k++, n_cut--) {
            if (!pk_as_int(dim[k], &at) || at <= before || at >= m->n || p[at].kind != PLACED_SHARD || p[at].dim != of)
                return other;
            before = at;
        }
    }
    return n_cut ? other : NULL;
}

/* Check that tensor_meta, which is TensorMeta(size, stride, dtype), has the size of the tensor. */
static const char *check_meta_size(const struct pk *meta, const struct pt_dtensor *d)
{
    const struct pk *args = meta && meta->type == PK_OBJ ? meta->args : NULL;
    uint32_t n = 0;
    struct pk **item = args && args->n > 0 ? pk_items(args->item[0], &n) : NULL;
    bool same = (int)n == d->ndim;
    int64_t size;

    for (uint32_t i = 0; item && i < n && same; i++)
        same = pk_as_int(item[i], &size) && size == d->shape[i];
    return !item || same ? NULL : "its size is not the one that its tensor_meta states";
}

static const char *parse_size(const struct pk *v, struct pt_dtensor *d)
{
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    if (!item || n > PT_MAX_DIM)
        return "its size has an unknown form";
    d->ndim = (int)n;
    for (uint32_t i = 0; i < n; i++)
        if (!pk_as_int(item[i], &d->shape[i]) || d->shape[i] < 0 || d->shape[i] > INT64_MAX - RANKS_MAX)
            return "its size has an unknown form";
    memset(d->at, 0, sizeof d->at);
    memcpy(d->len, d->shape, sizeof d->len);
    return NULL;
}

bool pt_dtensor(const struct pt *pt, const struct pk *v, struct pt_dtensor *d, const char **why)
{
    struct placement p[PT_MESH_MAX];
    const struct pk *size, *spec, *local;
    struct mesh m;

    if (!pt_kind_dtensor(v, &size, &local, &spec))
        return false;
    d->rank = -1;
    pk_as_int(pt_kind_attribute(pt_kind_attribute(spec, "mesh"), "_rank"), &d->rank);
    *why = parse_size(size, d);
    if (!*why)
        *why = parse_mesh(pt, pt_kind_attribute(spec, "mesh"), &m);
    if (!*why)
        *why = parse_placements(pt_kind_attribute(spec, "placements"), d->ndim, &m, p);
    if (!*why)
        *why = check_shard_order(pt_kind_attribute(spec, "shard_order"), &m, p);
    if (!*why)
        *why = check_meta_size(pt_kind_attribute(spec, "tensor_meta"), d);
    if (!*why)
        *why = apply_placements(d, &m, p);
    if (!*why && !pt_tensor(pt, local, &d->local))
        *why = "its part of this rank cannot be read";
    if (!*why && !shape_equal(d->local.ndim, d->local.shape, d->ndim, d->len))
        *why = "its part of this rank has another shape than its placements give";
    return true;
}
