/*
 * slice.h - a NumPy-like slice of a tensor: '0:2,5', '-1', '::2', '3:,:10'
 */
#ifndef SHARDKIT_CKPT_INSPECT_SLICE_H
#define SHARDKIT_CKPT_INSPECT_SLICE_H

#include "libcommon/format/pt.h"

struct view_slice {
    int ndim;                           /* number of dimensions of the tensor */
    int64_t shape[PT_MAX_DIM];
    int64_t start[PT_MAX_DIM], count[PT_MAX_DIM], step[PT_MAX_DIM];
    /* number of dimensions of the result; a dimension with a single index is dropped */
    int out_ndim;
    int64_t out_shape[PT_MAX_DIM];
    int64_t n_elems;
    /* number of elements of a run, which are adjacent in the tensor; the slice consists of such runs */
    int64_t run;
    int outer;                          /* number of leading dimensions whose indices change from run to run */
};

/*
 * Parse `text` (NULL: the whole tensor) for a tensor of this shape. Ranges are clipped to the tensor as NumPy
 * does. Steps must be 1 or more. Fails with ERR_USAGE for text that is not a slice, for an index outside the
 * tensor, and for more indices than dimensions.
 */
MUST_CHECK int slice_parse(struct view_slice *s, const char *text, int ndim, const int64_t *shape, struct err *e);
/* Return the index in the tensor of the first element of run i; i must be less than n_elems / run. */
int64_t slice_run_at(const struct view_slice *s, int64_t i);

#endif
