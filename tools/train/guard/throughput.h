/*
 * throughput.h - has a run become slower?
 *
 * The median time of the last THROUGHPUT_NOW iterations is held against that of the THROUGHPUT_BEFORE before them:
 * slower by more than 3 %, and by more than twice the median distance from it. One incident until it is within 1.5 %
 * again, or until slow iterations have become what it is held against.
 */
#ifndef SHARDKIT_TRAIN_GUARD_THROUGHPUT_H
#define SHARDKIT_TRAIN_GUARD_THROUGHPUT_H

#include <stdbool.h>
#include <stdint.h>

enum { THROUGHPUT_NOW = 32, THROUGHPUT_BEFORE = 256, THROUGHPUT_ALL = THROUGHPUT_NOW + THROUGHPUT_BEFORE };

/* All zero to begin with. */
struct throughput {
    double took[THROUGHPUT_ALL];        /* a ring */
    int64_t n;                          /* ever put there */
    bool slow;
    double usual, now;                  /* medians of the last call, once there are enough */
};

/* took: seconds a sample, so that a batch that grows is no change. True when an incident begins. */
bool throughput_take(struct throughput *t, double took);

#endif
