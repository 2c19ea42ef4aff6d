/*
 * deepspeed_stages.c - the parameters of each pipeline stage: read the tables in mp_rank files and compare them
 *
 * All tensor ranks of a stage list the same parameters. The first readable rank represents the stage, and an index of
 * all stages' names serves all later look-ups.
 */
#include <stdio.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/layout/deepspeed/deepspeed.h"

/* ---- mp_rank files ---- */

void ds_read_stage(const struct ds_job *j)
{
    struct ds_rank_stage *st = &j->d->stage[j->d->name[j->file].mp];

    ds_read_marks(j);
    ds_check_degrees(j);
    st->ok = ds_stage_read(&st->st, pk_get(pt_root(j->pt), "param_shapes"), j->d->topo.dp, j->path, j->r);
}

/* ---- comparing the ranks of a stage ---- */

static bool has_same_slice_shape(const struct ds_slice *a, const struct ds_slice *b)
{
    return shape_equal(a->ndim, a->shape, b->ndim, b->shape);
}

/* Report the first difference of tensor rank b from rank a of the same stage. Returns true if there is none. */
static bool same_stage(struct ds *d, int pp, int tp_a, int tp_b)
{
    const struct ds_stage *a = &d->stage[topo_mp(d->topo, pp, tp_a)].st, *b = &d->stage[topo_mp(d->topo, pp, tp_b)].st;
    const char *file = files_name(d->s->files, d->s->file[d->mp_file[topo_mp(d->topo, pp, tp_b)]].file);
    char x[SHAPE_TEXT], y[SHAPE_TEXT];

    if (a->n_groups != b->n_groups) {
        report_add(d->r, SEV_ERROR, "groups", file, ERR_NO_BYTE, NULL,
                   "%d groups in param_shapes, tensor rank %d of this stage has %d", b->n_groups, tp_a, a->n_groups);
        return false;
    }
    for (int g = 0; g < a->n_groups; g++) {
        const struct ds_group *p = &a->group[g], *q = &b->group[g];

        for (int i = 0; i < p->n && i < q->n; i++) {
            if (strcmp(p->slice[i].name, q->slice[i].name) != 0) {
                report_add(d->r, SEV_ERROR, "names", file, ERR_NO_BYTE, q->slice[i].name,
                           "stands where tensor rank %d of this stage has %s", tp_a, p->slice[i].name);
                return false;
            }
            if (!has_same_slice_shape(&p->slice[i], &q->slice[i])) {
                report_add(d->r, SEV_ERROR, "shape", file, ERR_NO_BYTE, q->slice[i].name,
                           "shape %s on tp %d, %s on tp %d",
                           shape_text(p->slice[i].ndim, p->slice[i].shape, x), tp_a,
                           shape_text(q->slice[i].ndim, q->slice[i].shape, y), tp_b);
                return false;
            }
        }
        if (p->n != q->n) {
            report_add(d->r, SEV_ERROR, "names", file, ERR_NO_BYTE, NULL,
                       "group %d has %d parameters, on tensor rank %d of this stage %d", g, q->n, tp_a, p->n);
            return false;
        }
    }
    return true;
}

void ds_check_stages(struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++) {
        int first = -1;

        for (int tp = 0; tp < d->topo.tp; tp++) {
            struct ds_rank_stage *st = &d->stage[topo_mp(d->topo, pp, tp)];

            if (!st->ok)
                continue;
            if (first < 0) {
                first = tp;
                d->ref[pp] = &st->st;
            } else {
                st->bad = !same_stage(d, pp, first, tp);
            }
        }
    }
    ds_index_make(&d->index, d->ref, d->topo.pp);
}

bool ds_all_stages(const struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++)
        if (!d->ref[pp])
            return false;
    return true;
}
