/*
 * deepspeed_stages.c - read the tables in mp_rank files and layer files, and compare the ranks of a stage
 *
 * All tensor ranks of a stage list the same parameters. The first rank that can be read represents the stage. All
 * later look-ups use one index of the names of all stages.
 * The names in a layer file are relative to the layer's module. The parameters of a layer are listed in the order of
 * the file's keys, which is the order of the module.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"

/* ---- mp_rank files ---- */

static bool is_listed_in_stage(const struct ds_stage *st, const char *name)
{
    for (int g = 0; g < st->n_groups; g++)
        for (int i = 0; i < st->group[g].n; i++)
            if (strcmp(st->group[g].slice[i].name, name) == 0)
                return true;
    return false;
}

/*
 * Report the first name in `table`, a dict or a list in an mp_rank file, that param_shapes lists as a trained
 * parameter.
 */
static void check_not_trained(const struct ds_job *j, const struct ds_stage *st, const char *table)
{
    const struct pk *v = pk_get(pt_root(j->pt), table);
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n), **pair = item ? NULL : pk_pairs(v, &n);

    for (uint32_t i = 0; (item || pair) && i < n; i++) {
        const char *name = pk_as_str(item ? item[i] : pair[2 * i]);

        if (!name || !is_listed_in_stage(st, name))
            continue;
        report_add(j->r, SEV_ERROR, "twice", j->path, ERR_NO_BYTE, name,
                   "is listed in %s and, as a trained parameter, in param_shapes", table);
        return;
    }
}

/* Report the first tensor in `module`. The pipeline engine saves none there, and this reader would ignore it. */
static void check_module_empty(const struct ds_job *j)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(pt_root(j->pt), "module"), &n);
    struct pt_tensor t;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pt_tensor(j->pt, pair[2 * i + 1], &t)) {
            report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL,
                       "`module` has a tensor '%.100s', which is not read: the weights of the pipeline engine are in "
                       "the layer files", pk_as_str(pair[2 * i]) ? pk_as_str(pair[2 * i]) : "?");
            return;
        }
}

void ds_read_stage(const struct ds_job *j)
{
    static const char *const not_trained[] = { "frozen_param_shapes", "shared_params", "buffer_names" };
    struct ds_rank_stage *st = &j->d->stage[j->d->name[j->file].mp];

    ds_read_marks(j);
    ds_check_degrees(j);
    st->ok = ds_stage_read(&st->st, pk_get(pt_root(j->pt), "param_shapes"), j->d->topo.dp, j->path, j->r);
    check_module_empty(j);
    if (!st->ok)
        return;
    for (size_t i = 0; i < sizeof not_trained / sizeof *not_trained; i++)
        check_not_trained(j, &st->st, not_trained[i]);
}

/* ---- comparing the ranks of a stage ---- */

static bool has_same_slice_shape(const struct ds_slice *a, const struct ds_slice *b)
{
    return shape_equal(a->ndim, a->shape, b->ndim, b->shape);
}

/*
 * Compare tensor rank tp_b with tensor rank tp_a of the same stage. Reports the first difference. Returns true if
 * there is none.
 */
static bool same_stage(struct ds *d, int pp, int tp_a, int tp_b)
{
    const struct ds_stage *a = &d->stage[topo_mp(d->topo, pp, tp_a)].st, *b = &d->stage[topo_mp(d->topo, pp, tp_b)].st;
    const char *file = files_name(source_files(d->s),
                                  source_file_at(d->s, d->mp_file[topo_mp(d->topo, pp, tp_b)])->file);
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

/* ---- layer files ---- */

/*
 * Find the parameter to which the tensor `key` of a layer file belongs. The parameter's name is "3.<key>" for layer 3,
 * or begins with the tied embedding's prefix.
 */
static const struct ds_entry *layer_entry(const struct ds *d, int layer, const char *key)
{
    char name[DS_NAME_MAX + 64];
    const struct ds_entry *hit;

    snprintf(name, sizeof name, "%d.%.*s", layer, DS_NAME_MAX, key);
    hit = ds_index_find(&d->index, name);
    if (hit)
        return hit;
    snprintf(name, sizeof name, "tied_modules.embed.%.*s", DS_NAME_MAX, key);
    return ds_index_find(&d->index, name);
}

static void unknown_key(const struct ds_job *j, const char *key)
{
    /* Rotary tables and Transformer Engine's settings are buffers: the model recomputes them and never trains them. */
    if (str_ends(key, "inv_freq") || str_ends(key, "_extra_state"))
        report_add(j->r, SEV_NOTE, "unknown_key", j->path, ERR_NO_BYTE, NULL,
                   "'%.100s' is a buffer and is ignored", key);
    else if (ds_all_stages(j->d))
        report_add(j->r, SEV_ERROR, "unknown_key", j->path, ERR_NO_BYTE, NULL,
                   "'%.100s' is not in the param_shapes of any stage", key);
}

static bool check_layer_tensor(const struct ds_job *j, const struct ds_entry *en, const struct pt_tensor *t)
{
    char x[SHAPE_TEXT], y[SHAPE_TEXT];

    if (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_F32) {
        report_add(j->r, SEV_ERROR, "dtype", j->path, ERR_NO_BYTE, en->name, "%s weights, bf16 expected",
                   dtype_name(t->dtype));
        return false;
    }
    if (!t->contiguous) {
        report_add(j->r, SEV_ERROR, "strided", j->path, ERR_NO_BYTE, en->name, "is not contiguous");
        return false;
    }
    if (!shape_equal(t->ndim, t->shape, en->slice->ndim, en->slice->shape)) {
        report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, en->name, "is %s, param_shapes lists %s",
                   shape_text(t->ndim, t->shape, x), shape_text(en->slice->ndim, en->slice->shape, y));
        return false;
    }
    return true;
}

static struct ds_layer *layer_of_file(struct ds *d, int file)
{
    const struct ds_name *n = &d->name[file];
    const int *no = d->layer_no;

    while (*no != n->layer)
        no++;
    return &d->layer[(no - d->layer_no) * d->topo.tp + n->tp];
}

void ds_renumber_layer(struct ds *d, int file, int base)
{
    struct ds_layer *l = layer_of_file(d, file);

    for (int i = 0; i < l->n; i++)
        l->tensor[i].t.record += base;
}

void ds_read_layer(const struct ds_job *j)
{
    struct ds *d = j->d;
    struct ds_layer *l = layer_of_file(d, j->file);
    uint32_t n_pairs = 0;
    struct pk **pair = pk_pairs(pt_root(j->pt), &n_pairs);

    if (!pair) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL, "holds no dictionary of tensors");
        return;
    }
    l->ok = true;
    l->tensor = xcalloc(n_pairs, sizeof *l->tensor);
    for (uint32_t i = 0; i < n_pairs; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        struct ds_tensor *t = &l->tensor[l->n];
        const struct ds_entry *en;

        if (!key || !pt_tensor(j->pt, pair[2 * i + 1], &t->t)) {
            report_add(j->r, SEV_WARNING, "unknown_key", j->path, ERR_NO_BYTE, NULL, "'%.100s' is not a tensor",
                       key ? key : "?");
            continue;
        }
        en = layer_entry(d, d->name[j->file].layer, key);
        if (!en) {
            unknown_key(j, key);
        } else if (check_layer_tensor(j, en, &t->t)) {
            t->name = en->name;
            l->n++;
        }
    }
}
