/*
 * universal_shapes.c - compare the shapes of a universal form's tensors with param_shapes of its mp_rank files
 */
#include "libcommon/layout/universal/universal_shapes.h"

#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/engine/deepspeed_shape.h"
#include "libcommon/layout/engine/zero_shape.h"

/*
 * Returns the entry of a parameter in param_shapes of an mp_rank file, in whichever group it is. Returns NULL if there
 * is none.
 */
static const struct pk *listed_shape(const struct source_file *f, const char *name)
{
    uint32_t n = 0;
    struct pk **group = pk_items(pk_get(pt_root(f->pt), "param_shapes"), &n);

    for (uint32_t g = 0; group && g < n; g++)
        if (pk_get(group[g], name))
            return pk_get(group[g], name);
    return NULL;
}

/* Returns the dimension along which a rule concatenates slices, or -1 if each slice has the shape of the whole. */
static int cut_dimension(enum merge_rule rule)
{
    return rule == MERGE_REPLICATED || rule == MERGE_SUM ? -1 : rule == MERGE_CAT1 ? 1 : 0;
}

/*
 * Returns true if merging the slices by the rule makes a tensor of the parameter's shape. dims[] is the shape of a
 * slice; sum[] has the sum of all slices' extents in each dimension. A vocabulary may have been stored without its
 * padding rows.
 */
static bool makes_shape(const struct param *p, enum merge_rule rule, const int64_t *dims, const int64_t *sum)
{
    const int cut = cut_dimension(rule);

    for (int d = 0; d < p->ndim; d++) {
        const int64_t want = d == cut ? sum[d] : dims[d];

        if (p->shape[d] != want && !(rule == MERGE_VOCAB && d == cut && p->shape[d] < want))
            return false;
    }
    return true;
}

/*
 * Compare the shape of a parameter with the slices listed in f[], the n mp_rank files of a stage. The rule in the
 * parameter's file and the rule for its name may differ, which is reported elsewhere. The shape must fit at least one
 * of these two rules.
 */
static void compare_shape(const struct source *s, const struct source_file *const *f, int n, const struct param *p,
                          struct report *r)
{
    int64_t dims[TENSOR_MAX_DIM], first[TENSOR_MAX_DIM] = {0}, sum[TENSOR_MAX_DIM] = {0}, elems;
    char is[SHAPE_TEXT], slice[SHAPE_TEXT];
    int ndim = 0, t, odd = 0;            /* odd: the rank whose slice has another shape; the message names this rank */

    for (t = 0; t < n; t++) {
        if (!zero_read_dims(listed_shape(f[t], p->name), &ndim, dims, &elems)) {
            report_add(r, SEV_ERROR, "shape", s->path, ERR_NO_BYTE, p->name,
                       "param_shapes of %s lists no shape of it, as that of the other tensor ranks does", f[t]->name);
            return;
        }
        if (t == 0)
            memcpy(first, dims, sizeof first);
        if (ndim != p->ndim || memcmp(first, dims, (size_t)ndim * sizeof *dims) != 0)
            odd = t;
        if (ndim != p->ndim)
            break;
        for (int d = 0; d < ndim; d++)
            sum[d] += dims[d];
    }
    if (t == n && (makes_shape(p, p->merge, first, sum) || makes_shape(p, merge_rule_of(p->name), first, sum)))
        return;
    zero_read_dims(listed_shape(f[odd], p->name), &ndim, dims, &elems);
    report_add(r, SEV_ERROR, "shape", s->path, ERR_NO_BYTE, p->name,
               "is %s, but param_shapes of %s lists a slice of %s, which %d tensor ranks do not merge to that (%s)",
               shape_text(p->ndim, p->shape, is), f[odd]->name, shape_text(ndim, dims, slice), n,
               merge_rule_name(p->merge));
}

/*
 * Report the parameters that file t lists but the first file does not. f[] has the n mp_rank files of one pipeline
 * stage.
 */
static void compare_rank(const struct source *s, const struct source_file *const *f, int n, int t, struct report *r)
{
    uint32_t n_groups = 0, n_pairs;
    struct pk **group = pk_items(pk_get(pt_root(f[t]->pt), "param_shapes"), &n_groups);

    for (uint32_t g = 0; group && g < n_groups; g++) {
        struct pk **pair = pk_pairs(group[g], &n_pairs);

        for (uint32_t i = 0; pair && i < n_pairs; i++) {
            const char *name = pk_as_str(pair[2 * i]);
            const struct param *p = name ? source_param(s, name) : NULL;

            /* a tensor without elements is reported as such */
            if (p && p->ndim > 0 && shape_count(p->ndim, p->shape) != 0 && (t == 0 || !listed_shape(f[0], name)))
                compare_shape(s, f, n, p, r);
        }
    }
}

void universal_check_shapes(const struct source *s, struct report *r)
{
    const int tp = s->topo.tp > 0 && s->topo.tp <= s->n_files ? s->topo.tp : 0;
    struct arena *a = arena_new(0);
    const struct source_file **f = arena_alloc(a, ((size_t)tp + 1) * sizeof *f);

    for (int pp = 0; tp > 0 && pp < s->topo.pp && pp < s->n_files; pp++) {
        int n = 0;

        while (n < tp && (f[n] = ds_mp_file(s, pp, n)))
            n++;
        for (int t = 0; n == tp && t < n; t++)
            compare_rank(s, f, n, t, r);
    }
    arena_free(a);
}
