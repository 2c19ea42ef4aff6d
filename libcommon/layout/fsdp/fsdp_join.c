/*
 * fsdp_join.c - put a tensor together from the parts that ranks hold
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/engine/tile_join.h"
#include "libcommon/layout/fsdp/fsdp.h"

/* Maximum number of contiguous runs of a part that is not contiguous in its storage. */
enum { RUNS_MAX = 1 << 20 };

const struct pt *fsdp_file(const struct fsdp *x, enum fsdp_kind kind, int rank)
{
    return x->file[kind][rank] < 0 ? NULL : x->s->file[x->file[kind][rank]].pt;
}

/* Set *p to the part of the tensor that a rank holds, and *t to the whole tensor. Returns the reason if that fails. */
static const char *find_part(const struct fsdp *x, const struct pt *pt, const struct pk *v, struct fsdp_tensor *t,
                             struct tile_part *p)
{
    struct pt_dtensor d;
    const char *why = NULL;

    if (!pt || !v)
        return "a rank does not have it";
    memset(&d, 0, sizeof d);
    if (!pt_dtensor(pt, v, &d, &why)) {
        if (!pt_tensor(pt, v, &d.local))
            return "it is no tensor that can be read";
        d.ndim = d.local.ndim;
        memcpy(d.shape, d.local.shape, sizeof d.shape);
        memcpy(d.len, d.local.shape, sizeof d.len);
    }
    if (why)
        return why;
    t->dtype = d.local.dtype;
    t->mesh = d.mesh;
    t->ndim = d.ndim;
    memcpy(t->shape, d.shape, sizeof t->shape);
    p->ndim = d.ndim;
    memcpy(p->at, d.at, sizeof p->at);
    memcpy(p->len, d.len, sizeof p->len);
    p->extent = tile_runs(x->s->arena, &d.local, RUNS_MAX, &p->n_extents);
    return p->extent ? NULL : "its elements are scattered over its storage";
}

static bool is_same_mesh(const struct pt_mesh *a, const struct pt_mesh *b)
{
    bool same = a->n == b->n;

    for (int i = 0; i < a->n && same; i++)
        same = a->at[i].ranks == b->at[i].ranks && a->at[i].dim == b->at[i].dim && a->at[i].strided == b->at[i].strided;
    return same;
}

struct fsdp_tensor fsdp_join(const struct fsdp *x, enum fsdp_kind kind, const struct pk *const *v)
{
    struct tile_part *p = xcalloc((size_t)x->world, sizeof *p);
    struct fsdp_tensor t = {0};
    int n = 0;

    for (int r = 0; r < x->world && !t.why; r++) {
        struct fsdp_tensor other = {0};
        const char *why = find_part(x, fsdp_file(x, kind, r), v[r], &other, &p[n]);

        if (why)
            t.why = arena_fmt(x->s->arena, "rank %d: %s", r, why);
        else if (r > 0 && (t.dtype != other.dtype || !shape_equal(t.ndim, t.shape, other.ndim, other.shape)))
            t.why = arena_fmt(x->s->arena, "ranks 0 and %d have it with different shapes or types", r);
        else if (r > 0 && !is_same_mesh(&t.mesh, &other.mesh))
            t.why = arena_fmt(x->s->arena, "ranks 0 and %d have it with different placements", r);
        if (r == 0 && !why)
            t = other;
        p[n].rank = r;
        if (!t.why && shape_count(p[n].ndim, p[n].len) != 0)
            n++;
    }
    if (!t.why && shape_bytes(t.ndim, t.shape, t.dtype) < 0)
        t.why = "its shape is of more bytes than any memory holds";
    if (!t.why)
        t.map = tile_join(x->s->arena, &(struct tile_tensor){ t.dtype, t.ndim, t.shape }, p, n, &t.why);
    free(p);
    return t;
}

bool fsdp_is_joined(const struct fsdp *x, const char *name, const struct fsdp_tensor *t)
{
    if (!t->map)
        source_add_unread(x->s, x->o, x->r, (struct source_spot){ x->s->path, ERR_NO_BYTE }, name,
                          t->why ? t->why : "its parts cannot be put together");
    return t->map != NULL;
}

void fsdp_add_value(const struct fsdp *x, const struct source_value *v)
{
    struct source *s = x->s;

    if ((s->n_values & (s->n_values - 1)) == 0) {       /* the array has room for the next power of two */
        struct source_value *old = s->value;

        s->value = arena_alloc(s->arena, (size_t)(s->n_values ? 2 * s->n_values : 1) * sizeof *s->value);
        if (s->n_values)
            memcpy(s->value, old, (size_t)s->n_values * sizeof *old);
    }
    s->value[s->n_values++] = *v;
}

/* Returns the rank that saved the first DTensor in v, or -1 if there is none. */
static int64_t find_saved_rank(const struct pt *pt, const struct pk *v, int depth)
{
    uint32_t n = 0;
    struct pk **pair = depth < 3 ? pk_pairs(v, &n) : NULL;
    struct pt_dtensor d;
    const char *why;
    int64_t rank = -1;

    if (pt_dtensor(pt, v, &d, &why))
        return d.rank;
    for (uint32_t i = 0; pair && i < n && rank < 0; i++)
        rank = find_saved_rank(pt, pair[2 * i + 1], depth + 1);
    return rank;
}

bool fsdp_is_of_rank(const struct fsdp *x, enum fsdp_kind kind, int rank, const struct pk *v)
{
    const struct pt *pt = fsdp_file(x, kind, rank);
    const int64_t saved = pt && v ? find_saved_rank(pt, v, 0) : -1;

    if (saved < 0 || saved == rank)
        return true;
    report_add(x->r, SEV_ERROR, "ranks", pt_path(pt), ERR_NO_BYTE, NULL,
               "was saved by rank %" PRId64 ": it is that rank's file under another name", saved);
    return false;
}
