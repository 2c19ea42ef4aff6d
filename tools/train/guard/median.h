/*
 * median.h - the median of some numbers
 */
#ifndef SHARDKIT_TRAIN_GUARD_MEDIAN_H
#define SHARDKIT_TRAIN_GUARD_MEDIAN_H

/* Returns the median of n > 0 numbers. Sorts x. */
double median_of(double *x, int n);

#endif
