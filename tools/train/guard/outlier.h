/*
 * outlier.h - detect jumps of the loss, and iterations that have become slower
 */
#ifndef SHARDKIT_TRAIN_GUARD_OUTLIER_H
#define SHARDKIT_TRAIN_GUARD_OUTLIER_H

#include <stdbool.h>
#include <stdint.h>

/* ---- jumps of the loss ---- */

/*
 * The criterion is run-watch's: a loss is a jump if it exceeds the median of the last SPIKE_WINDOW losses by more
 * than 5 % and by more than 8 times the median distance from it. An incident ends after SPIKE_CALM losses in a row
 * without a jump.
 */
enum { SPIKE_WINDOW = 256, SPIKE_LEAST = 32, SPIKE_CALM = 16 };

/* Zero-initialise it. */
struct spike {
    double loss[SPIKE_WINDOW];  /* the last losses, as a ring buffer */
    int64_t n;                  /* number of losses ever added */
    int calm;                   /* number of losses without a jump until the next jump is a new incident */
    double usual;               /* the median that the last loss was compared with */
};

/* Add the loss of an iteration. Returns true if the loss is a jump and the first one of an incident. */
bool spike_add_loss(struct spike *s, double loss);

/* ---- slower iterations ---- */

/*
 * The median time of the last THROUGHPUT_NOW iterations is compared with that of the THROUGHPUT_BEFORE iterations
 * before them. The run is slower if the difference is more than 3 % and more than twice the median distance from the
 * earlier median. The incident ends when the time is within 1.5 % again, or when the slow iterations have become the
 * ones that the time is compared with.
 */
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
