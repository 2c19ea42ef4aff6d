/*
 * throughput.h - detect that a run has become slower
 *
 * The median time of the last THROUGHPUT_NOW iterations is compared with that of the THROUGHPUT_BEFORE iterations
 * before them. The run is slower if the difference is more than 3 % and more than twice the median distance from the
 * earlier median. The incident ends when the time is within 1.5 % again, or when the slow iterations have become the
 * ones that the time is compared with.
 */
#ifndef SHARDKIT_TRAIN_GUARD_THROUGHPUT_H
#define SHARDKIT_TRAIN_GUARD_THROUGHPUT_H

#include <stdbool.h>
#include <stdint.h>

enum { THROUGHPUT_NOW = 32, THROUGHPUT_BEFORE = 256, THROUGHPUT_ALL = THROUGHPUT_NOW + THROUGHPUT_BEFORE };

/* Zero-initialise it. */
struct throughput {
    double seconds_per_sample[THROUGHPUT_ALL];        /* a ring buffer */
    int64_t n;                          /* number of values ever added */
    bool slow;
    double usual, now;                  /* both medians at the last call, once there are enough values */
};

/*
 * Add the time of an iteration, which is divided by its samples so that a growing batch is not a change. Returns true
 * when an incident begins.
 */
bool throughput_add_step(struct throughput *t, double seconds_per_sample);

#endif
