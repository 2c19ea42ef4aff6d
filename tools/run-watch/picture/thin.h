/*
 * thin.h - select the visible points of a long curve
 *
 * A curve of a hundred thousand points on a thousand columns of pixels looks the same if each column has only its
 * lowest and its highest point. No spike is lost, unlike with means or with every hundredth point.
 */
#ifndef SHARDKIT_RUN_WATCH_THIN_H
#define SHARDKIT_RUN_WATCH_THIN_H

#include <stddef.h>

/*
 * Select the points to draw of n values y[0], y[stride], y[2 * stride], ... and store their indices in keep[] in
 * ascending order; keep must have space for n. If there are at most 2 * columns finite values, all of these are
 * selected; else the lowest and the highest of each of `columns` ranges of equal length. Returns the number of
 * selected points.
 */
int thin_pick(const double *y, size_t stride, int n, int columns, int *keep);

#endif
