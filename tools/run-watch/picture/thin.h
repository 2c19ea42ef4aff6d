/*
 * thin.h - select the visible points of a long curve
 *
 * A curve of a hundred thousand points on a thousand columns of pixels looks the same if each column has only its
 * lowest and its highest point. With this method every spike remains visible, whereas means, or every hundredth point,
 * would hide some.
 */
#ifndef SHARDKIT_RUN_WATCH_THIN_H
#define SHARDKIT_RUN_WATCH_THIN_H

#include <stddef.h>

/*
 * Select the points to draw of the n values y[0], y[stride], y[2 * stride], ... Their indices are stored in keep[] in
 * ascending order; keep must have space for n. If at most 2 * columns values are finite, all of these are selected.
 * Otherwise the values are divided into `columns` ranges of equal length, and the lowest and the highest value of each
 * range are selected. Returns the number of selected points.
 */
int thin_pick(const double *y, size_t stride, int n, int columns, int *keep);

#endif
