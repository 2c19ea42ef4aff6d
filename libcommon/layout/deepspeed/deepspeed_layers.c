/*
 * deepspeed_layers.c - read the tables in layer files: bf16 weights under module-relative names
 *
 * The order of the keys is the module's own; parameters are listed in that order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/layout/deepspeed/deepspeed.h"

/*
 * Find the parameter of a layer file's tensor. Names are relative to the module: "3.<key>", or the tied embedding's.
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
    /*
     * Rotary tables are buffers, which the model recomputes and never trains. The same holds for Transformer Engine's
     * settings.
     */
    if (str_ends(key, "inv_freq") || str_ends(key, "_extra_state"))
        report_add(j->r, SEV_NOTE, "unknown_key", j->path, ERR_NO_BYTE, NULL, "'%.100s' is a buffer: passed over", key);
    else if (ds_all_stages(j->d))
        report_add(j->r, SEV_ERROR, "unknown_key", j->path, ERR_NO_BYTE, NULL,
                   "'%.100s' is in no stage's param_shapes", key);
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
        report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, en->name, "is %s, param_shapes says %s",
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
            report_add(j->r, SEV_WARNING, "unknown_key", j->path, ERR_NO_BYTE, NULL, "'%.100s' is no tensor",
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
