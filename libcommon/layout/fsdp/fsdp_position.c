/*
 * fsdp_position.c - check that tensors state the position of their rank in the mesh
 *
 *   mesh._rank_map             the ranks in the order of the mesh, a tensor of int32 (since torch 2.9)
 *   mesh._layout               for each dimension its size and its stride in that order
 *   mesh._coordinate_on_dim    the position of the rank that saved the file
 */
#include <stdlib.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt_kind.h"
#include "libcommon/layout/fsdp/fsdp.h"

/* The ranks of a mesh, read from _rank_map. They are kept, because the next tensor usually has the same mesh. */
struct rank_map {
    int record;                         /* the storage; -1: none was read */
    uint64_t at;
    int64_t n;
    int32_t *rank;                      /* [n] */
};

/*
 * Read the ranks of a mesh, unless *map already contains these. Returns false if the ranks are not int32 or cannot be
 * read.
 */
static bool read_rank_map(const struct fsdp *x, const struct pt *pt, const struct pk *v, struct rank_map *map)
{
    enum { MOST = 1 << 24 };
    struct files *f = x->s->files;
    struct pt_tensor t;
    struct err ignored = {0};
    const struct record *r;

    if (!v || !pt_tensor(pt, v, &t) || t.dtype != DTYPE_I32 || t.ndim != 1 || !t.contiguous || t.n_elems < 1 ||
        t.n_elems > MOST)
        return false;
    if (map->record == t.record && map->at == t.at && map->n == t.n_elems)
        return true;
    free(map->rank);
    *map = (struct rank_map){ -1, t.at, t.n_elems, xcalloc((size_t)t.n_elems, sizeof *map->rank) };
    r = files_record(f, t.record);
    if (files_check_record(f, t.record, &ignored) == 0 &&
        files_read(f, r->file, r->at + t.at, map->rank, (size_t)t.n_elems * sizeof *map->rank, &ignored) == 0)
        map->record = t.record;
    return map->record >= 0;
}

/* Returns true and sets *out if v is a number greater than 0, or a list of one such number. */
static bool find_single(const struct pk *v, int64_t *out)
{
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    return pk_as_int(item && n == 1 ? item[0] : v, out) && *out > 0;
}

/*
 * Returns the reason why a tensor of rank `rank` has the position of another rank. Returns NULL if the position is
 * right, or if it cannot be checked.
 */
static const char *find_other_position(const struct fsdp *x, const struct pk *v, int rank, struct rank_map *map)
{
    const struct pt *pt = fsdp_file(x, FSDP_MODEL, rank);
    const struct pk *size, *local, *spec, *mesh;
    uint32_t n = 0, n_at = 0;
    struct pk **axis, **at;
    int64_t pos = 0, coordinate, length, stride;

    if (!pt_kind_dtensor(v, &size, &local, &spec))
        return NULL;
    mesh = pt_kind_attribute(spec, "mesh");
    axis = pk_items(pt_kind_attribute(pt_kind_attribute(mesh, "_layout"), "axes"), &n);
    at = pk_items(pt_kind_attribute(mesh, "_coordinate_on_dim"), &n_at);
    if (!axis || !at || n != n_at || !read_rank_map(x, pt, pt_kind_attribute(mesh, "_rank_map"), map))
        return NULL;
    while (pos < map->n && (int32_t)get_le32(&map->rank[pos]) != rank)
        pos++;
    if (pos == map->n)
        return "this rank is not in the _rank_map of its mesh";
    for (uint32_t i = 0; i < n; i++)
        if (find_single(pt_kind_attribute(axis[i], "shape"), &length) &&
            find_single(pt_kind_attribute(axis[i], "stride"), &stride) && pk_as_int(at[i], &coordinate) &&
            pos / stride % length != coordinate)
            return "its position in the mesh is not the one that the mesh's _rank_map gives for this rank";
    return NULL;
}

void fsdp_check_positions(const struct fsdp *x, const struct fsdp_numbered *of)
{
    struct rank_map map = { .record = -1 };

    for (int r = 0; r < x->world; r++) {
        const char *why = NULL;

        for (int i = 0; i < of->n && !why; i++)
            if ((why = find_other_position(x, of->value[(size_t)i * (size_t)x->world + (size_t)r], r, &map)) != NULL)
                report_add(x->r, SEV_ERROR, "ranks", pt_path(fsdp_file(x, FSDP_MODEL, r)), ERR_NO_BYTE, of->name[i],
                           "%s", why);
    }
    free(map.rank);
}
