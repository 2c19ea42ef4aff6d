/*
 * checkpoint_transpose.h - transpose matrices that are stored as [in, out] into the [out, in] that the kernels use
 *
 * GPT-2 in Transformers stores four weights of a block this way, with query, key and value one after the other. A
 * rank needs some rows of [out, in], which are columns of the stored matrix. These columns are read row by row, in
 * chunks that may end anywhere. Each element is written to its place at once: nothing is buffered, and no file is
 * written.
 *
 *   stored      [in][ q: head 0, 1, ... | k: head 0, 1, ... | v: ... ]     columns of the parts a rank has
 *   wanted      [ head 0: q, k, v | head 1: q, k, v | ... ][in]            its rows
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_TRANSPOSE_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_TRANSPOSE_H

#include <stdint.h>

#include "libcommon/base/dtype.h"

/*
 * A range of adjacent columns. Column c of the range becomes row first + c / run * step + c % run of the rank's slice.
 */
struct transpose_part {
    int64_t in;                 /* number of elements of a row of the result */
    int64_t at, cols;           /* columns [at, at + cols) of the stored matrix */
    int64_t first, run, step;
    /* elements from .. from + n of the slice are needed; other elements of the columns are skipped */
    int64_t from, n;
};

/* The slice of a matrix that a rank has. */
struct transpose_slice {
    int64_t rows, in;           /* size of the slice */
    int64_t whole;              /* number of rows of the merged matrix, which are the columns of the stored one */
    int64_t first;              /* index in the merged matrix of the slice's first row */
    /*
     * The number of heads of the slice if its rows and the stored columns have different orders: the rows are ordered
     * by (head, kind, lane), the columns by kind first. A kind is query, key or value. 0: the orders are the same.
     */
    int64_t heads;
};
enum { TRANSPOSE_MOST = 3 };
/*
 * Compute the columns of the stored matrix that contain elements from .. from + n of the slice, n > 0. Returns the
 * number of entries of `t` that were set.
 */
int transpose_columns(const struct transpose_slice *s, int64_t from, int64_t n,
                      struct transpose_part t[TRANSPOSE_MOST]);

/*
 * A range of elements to copy. transpose_copy() copies elements at .. at + n of the columns, in row-major order, to
 * their places in the slice. `dst` is the address of element t->from of the slice. If `widen` is set, the elements are
 * converted from `type` to fp32. Any thread may call it, because no two chunks share an element.
 */
struct transpose_chunk {
    int64_t at, n;
    const void *bytes;
    enum dtype type;
    bool widen;
};
void transpose_put(const struct transpose_part *t, const struct transpose_chunk *c, char *dst);

#endif
