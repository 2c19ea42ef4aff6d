/*
 * thin.h - the points of a long curve that can be seen
 *
 * A curve of a hundred thousand points on a thousand columns of pixels looks the same when each column has its lowest
 * and its highest one only: no spike is lost, unlike with means or every hundredth.
 */
#ifndef SHARDKIT_RUN_WATCH_THIN_H
#define SHARDKIT_RUN_WATCH_THIN_H

#include <stddef.h>

/*
 * keep[]: ascending numbers of the points to draw, of n values y[0], y[stride], y[2 * stride], ...; room for n. All but
 * those that are not finite where there are at most 2 * columns; else the lowest and the highest of each of `columns`
 * stretches of equal length. Returns how many.
 */
int thin_pick(const double *y, size_t stride, int n, int columns, int *keep);

#endif
