/*
 * median.h - the middle of some numbers
 */
#ifndef SHARDKIT_TRAIN_GUARD_MEDIAN_H
#define SHARDKIT_TRAIN_GUARD_MEDIAN_H

/* Of n > 0 numbers, which are sorted by it. */
double median_of(double *x, int n);

#endif
