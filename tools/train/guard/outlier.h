/*
 * outlier.h - detect jumps of the loss, and iterations that have become slower
 */
#ifndef SHARDKIT_TRAIN_GUARD_OUTLIER_H
#define SHARDKIT_TRAIN_GUARD_OUTLIER_H

#include <stdbool.h>
#include <stdint.h>

/* ---- jumps of the loss ---- */

/*
 * A loss is a jump if it exceeds the median of the last SPIKE_WINDOW losses by more than 5 %, and also by more than 8
 * times the median of the losses' distances from that median. run-watch uses the same criterion. An incident ends after
 * SPIKE_CALM consecutive losses that are not jumps.
 */
enum { SPIKE_WINDOW = 256, SPIKE_LEAST = 32, SPIKE_CALM = 16 };

/* The state of the detection of jumps. It must be zero-initialised. */
struct spike {
    double loss[SPIKE_WINDOW];  /* the last losses; a ring buffer */
    int64_t n;                  /* number of losses ever added */
    /* how many more losses without a jump are needed until the next jump counts as a new incident */
    int calm;
    double usual;               /* the median with which the last loss was compared */
};

/* Add the loss of an iteration. Returns true if the loss is the first jump of an incident. */
bool spike_add_loss(struct spike *s, double loss);

/* ---- slower iterations ---- */

/*
 * The median time of the last THROUGHPUT_NOW iterations is compared with the median time of the THROUGHPUT_BEFORE
 * iterations before them. The run has become slower if the new median is larger by more than 3 %, and by more than
 * twice the median of the earlier times' distances from their median. The incident ends when the two medians differ by
 * at most 1.5 %. This also happens after some time without a change, when the slow iterations are the earlier ones.
 */
enum { THROUGHPUT_NOW = 32, THROUGHPUT_BEFORE = 256, THROUGHPUT_ALL = THROUGHPUT_NOW + THROUGHPUT_BEFORE };

/* The state of the detection of slower iterations. It must be zero-initialised. */
struct throughput {
    double seconds_per_sample[THROUGHPUT_ALL];        /* the last times; a ring buffer */
    int64_t n;                          /* number of values ever added */
    bool slow;
    /* the earlier and the new median at the last call; valid once there are enough values */
    double usual, now;
};

/*
 * Add the time of an iteration, divided by its number of samples so that a growing batch does not count as slower.
 * Returns true if an incident begins with this iteration.
 */
bool throughput_add_step(struct throughput *t, double seconds_per_sample);

#endif
