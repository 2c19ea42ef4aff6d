/*
 * tensor.h - shapes of tensors: number of elements and bytes, comparison, text
 *
 * A shape is a number of dimensions and their lengths in elements, the outermost first. dtype.c implements this.
 */
#ifndef SHARDKIT_BASE_TENSOR_H
#define SHARDKIT_BASE_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"

/* Maximum number of dimensions of a tensor. Every struct that stores a shape has room for this number. */
#define TENSOR_MAX_DIM 16
#define TENSOR_MAX_DIM_TEXT "16"              /* for messages */

/*
 * Returns the number of elements of a shape, or -1 if a length is negative or a product exceeds INT64_MAX. The lengths
 * are multiplied from first to last. After a length of 0 no overflow is possible; before it, an overflow is still an
 * error.
 */
int64_t shape_count(int ndim, const int64_t *shape);
/* Returns the number of bytes, or -1 in the same cases as shape_count(). */
int64_t shape_bytes(int ndim, const int64_t *shape, enum dtype t);
/* Returns true if both shapes have the same number of dimensions and the same lengths. */
bool shape_equal(int x_ndim, const int64_t *x, int y_ndim, const int64_t *y);
enum { SHAPE_TEXT = 22 * TENSOR_MAX_DIM + 1 };      /* per length at most 20 characters, a comma and a blank */
/* Fills buf with "[512, 64]" and returns it. */
const char *shape_text(int ndim, const int64_t *shape, char buf[SHAPE_TEXT]);

#endif
