/*
 * slice.h - a NumPy-like slice of a tensor: '0:2,5', '-1', '::2', '3:,:10'
 */
#ifndef SHARDKIT_CKPT_INSPECT_SLICE_H
#define SHARDKIT_CKPT_INSPECT_SLICE_H

#include "libcommon/format/pt.h"

struct view_slice {
    int ndim;                           /* of the tensor */
    int64_t shape[PT_MAX_DIM];
    int64_t start[PT_MAX_DIM], count[PT_MAX_DIM], step[PT_MAX_DIM];
    int out_ndim;                       /* dimensions given as one index fall away */
    int64_t out_shape[PT_MAX_DIM];
    int64_t n_elems;
    int64_t run;                        /* elements next to each other in the tensor: the slice is runs of this many */
    int outer;                          /* dimensions that step from run to run */
};

/*
 * Parse `text` (NULL: everything) for a tensor of this shape. Ranges are cut to the
 * tensor as NumPy does; steps are 1 or more. ERR_USAGE: not a slice, an index outside
 * the tensor, more indices than dimensions.
 */
MUST_CHECK int slice_parse(struct view_slice *s, const char *text, int ndim, const int64_t *shape, struct err *e);
/* First element of run number i, i < n_elems / run, in the tensor. */
int64_t slice_run_at(const struct view_slice *s, int64_t i);

#endif
