/*
 * megatron_join.c - put a tensor together from the parts of the tensor ranks; and what the readers of model and
 * optimizer share
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/engine/tile_join.h"
#include "libcommon/layout/megatron/megatron.h"

/* Maximum number of contiguous runs of a part that is not contiguous in its storage. */
enum { RUNS_MAX = 1 << 20 };

const struct pt *megatron_pt(const struct megatron *x, enum megatron_file kind, int stage, int tp)
{
    const int i = x->file[kind][stage * x->tp + tp];

    return i < 0 ? NULL : x->s->file[i].pt;
}

void megatron_set_state(const struct megatron *x, const struct megatron_weight *w, enum state st, struct tmap *map)
{
    struct param *p = &x->s->param[w->param];

    if (w->tied_copy)
        p->tied[st] = map;
    else
        p->state[st] = map;
}

bool megatron_refuse_optimizer(const struct megatron *x, const struct pt *pt, const char *why)
{
    report_add(x->r, SEV_ERROR, "optimizer", pt ? pt_path(pt) : x->s->path, ERR_NO_BYTE, NULL,
               "%s: which states belong to which parameters is not known; the weights alone can be converted "
               "(--weights-only)", why);
    return false;
}

/* Rows [from, from + n) of a rank's tensor. Their position in dimension `dim` of the whole tensor is `at`. */
struct rank_rows {
    int64_t from, n, at;
    int dim;
};

/* Set *p to the part of the whole tensor that consists of these rows of `t`. Returns the reason if that fails. */
static const char *make_part(const struct megatron *x, const struct pt_tensor *t, struct rank_rows rows,
                             struct tile_part *p)
{
    struct pt_tensor piece = *t;

    p->ndim = t->ndim;
    memset(p->at, 0, sizeof p->at);
    memcpy(p->len, t->shape, sizeof p->len);
    if (t->ndim > 0) {
        p->at[rows.dim] = rows.at;
        if (rows.dim == 0)
            p->len[0] = rows.n;
    }
    if (t->ndim > 0 && rows.n != t->shape[0]) {
        piece.shape[0] = rows.n;
        piece.n_elems = t->shape[0] ? t->n_elems / t->shape[0] * rows.n : 0;
        piece.at += (uint64_t)(rows.from * t->stride[0]) * (uint64_t)dtype_size(t->dtype);
    }
    p->extent = tile_runs(x->s->arena, &piece, RUNS_MAX, &p->n_extents);
    return p->extent ? NULL : "its elements are scattered over its storage";
}

/*
 * Check that the parts of all tensor ranks have the same type and shape, and that this shape can be cut in this way.
 * Returns the reason if not.
 */
static const char *compare_parts(const struct megatron *x, enum megatron_cut cut, const struct pt_tensor *part)
{
    for (int t = 1; t < x->tp; t++)
        if (part[t].dtype != part[0].dtype ||
            !shape_equal(part[t].ndim, part[t].shape, part[0].ndim, part[0].shape))
            return arena_fmt(x->s->arena, "tensor ranks 0 and %d have it with different shapes or types", t);
    if (x->tp > 1 && cut == CUT_UNKNOWN)
        return "how tensor ranks share it is not known: no module of Megatron-core has this name";
    if (x->tp > 1 && ((cut == CUT_COLUMNS && part[0].ndim < 2) || (cut != CUT_NONE && part[0].ndim < 1)))
        return "it has too few dimensions to be shared by tensor ranks";
    if (x->tp > 1 && cut == CUT_GATED_ROWS && part[0].shape[0] % 2 != 0)
        return "it has an odd number of rows, but gate and up projection have as many each";
    return NULL;
}

struct tmap *megatron_join(const struct megatron *x, enum megatron_cut cut, const struct pt_tensor *part,
                           int64_t shape[TENSOR_MAX_DIM], const char **why)
{
    const int halves = x->tp > 1 && cut == CUT_GATED_ROWS ? 2 : 1, dim = cut == CUT_COLUMNS ? 1 : 0;
    const bool is_cut = x->tp > 1 && cut != CUT_NONE;
    struct tile_part *p = xcalloc((size_t)x->tp * 2, sizeof *p);
    struct tmap *map = NULL;
    int n = 0;

    *why = compare_parts(x, cut, part);
    memcpy(shape, part[0].shape, TENSOR_MAX_DIM * sizeof *shape);
    if (!*why && is_cut)
        shape[dim] *= x->tp;
    if (!*why && shape_bytes(part[0].ndim, shape, part[0].dtype) < 0)
        *why = "its shape is of more bytes than any memory holds";
    for (int t = 0; t < x->tp && !*why; t++)
        for (int h = 0; h < halves && !*why; h++) {
            const int64_t rows = part[t].ndim ? part[t].shape[0] / halves : 1;
            const int64_t step = dim == 0 ? rows : part[t].shape[1];

            const struct rank_rows of = { h * rows, rows, is_cut ? (h * x->tp + t) * step : 0, dim };

            p[n].rank = t;
            *why = make_part(x, &part[t], of, &p[n++]);
        }
    if (!*why && shape_count(part[0].ndim, part[0].shape) == 0)
        n = 0;
    if (!*why)
        map = tile_join(x->s->arena, &(struct tile_tensor){ part[0].dtype, part[0].ndim, shape }, p, n, why);
    free(p);
    return map;
}
