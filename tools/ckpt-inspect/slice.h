/* slice.h - select a part of a tensor by a slice as in NumPy: '0:2,5', '-1', '::2', '3:,:10' */
#ifndef SHARDKIT_CKPT_INSPECT_SLICE_H
#define SHARDKIT_CKPT_INSPECT_SLICE_H

#include "libcommon/format/pt.h"

struct view_slice {
    int ndim;                           /* number of dimensions of the tensor */
    int64_t shape[PT_MAX_DIM];
    int64_t start[PT_MAX_DIM], count[PT_MAX_DIM], step[PT_MAX_DIM];
    /* number of dimensions of the result; a dimension for which a single index was given is removed */
    int out_ndim;
    int64_t out_shape[PT_MAX_DIM];
    int64_t n_elems;
    /* the slice consists of runs of this many elements, which are adjacent in the tensor */
    int64_t run;
    int outer;                          /* number of leading dimensions whose indices differ between runs */
};

/*
 * Parse a slice for a tensor of this shape. If `text` is NULL, the slice is the whole tensor. Ranges are limited to the
 * tensor, as in NumPy. Steps must be 1 or more. Fails with ERR_USAGE if the text is not a slice, if an index is outside
 * of the tensor, or if there are more indices than dimensions.
 */
MUST_CHECK int slice_parse(struct view_slice *s, const char *text, int ndim, const int64_t *shape, struct err *e);
/* Return the index in the tensor of the first element of run i, which must be less than n_elems / run. */
int64_t slice_run_at(const struct view_slice *s, int64_t i);

#endif
