/*
 * merge_slices.c - compute shapes and tensor maps of merged parameters
 */
#include "libcommon/ckpt/merge_slices.h"

#include "libcommon/base/report.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/tmap_slice.h"

bool merge_shape(struct param *p, int tp, const char *path, struct report *r)
{
    int dim = p->merge == MERGE_CAT1 ? 1 : 0;

    if (p->merge == MERGE_REPLICATED || p->merge == MERGE_SUM)
        return true;
    if (dim >= p->ndim || (p->merge == MERGE_CAT0_HALVES && p->shape[0] % 2)) {
        report_add(r, SEV_ERROR, "shape", path, ERR_NO_BYTE, p->name,
                   "%d dimensions, first %lld: cannot be merged by %s", p->ndim, (long long)p->shape[0],
                   merge_rule_name(p->merge));
        return false;
    }
    p->shape[dim] *= tp;                /* no overflow: at most 2^40 * 2^20 */
    return true;
}

/*
 * Split the slices of the weight of a gated MLP. Each slice consists of gate rows, followed by up rows. The resulting
 * map first has the gate rows of all slices, and then the up rows of all slices.
 */
static void cut_halves(struct arena *a, struct tmap *m)
{
    struct tmap_slice *whole = m->slice;
    int n = m->n_slices;

    m->slice = arena_alloc(a, 2 * (size_t)n * sizeof *m->slice);
    m->n_slices = 2 * n;
    for (int i = 0; i < n; i++) {
        uint64_t half = whole[i].len / 2;

        tmap_slice_cut(a, &whole[i], 0, half, &m->slice[i]);
        tmap_slice_cut(a, &whole[i], half, half, &m->slice[n + i]);
    }
}

void merge_map(struct arena *a, const struct param *p, bool moments, struct tmap *m)
{
    m->op = TMAP_CONCAT;
    m->len = m->slice[0].len;
    if (m->n_slices == 1)
        return;                 /* with every rule, a single slice is the whole parameter */
    if (p->merge == MERGE_REPLICATED || (p->merge == MERGE_SUM && moments)) {
        m->op = TMAP_REPLICAS;
        return;
    }
    if (p->merge == MERGE_SUM) {
        m->op = TMAP_SUM;
        return;
    }
    m->len *= (uint64_t)m->n_slices;
    if (m->len == 0)
        return;                 /* the parameter has no rows, or its rows are empty */
    if (p->merge == MERGE_CAT1) {
        m->op = TMAP_INTERLEAVE;
        m->row = m->len / (uint64_t)p->shape[0];
        for (int i = 0; i < m->n_slices; i++)
            m->slice[i].row_part = m->slice[i].len / (uint64_t)p->shape[0];
    } else if (p->merge == MERGE_CAT0_HALVES) {
        cut_halves(a, m);
    }
}
