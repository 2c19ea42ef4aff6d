/*
 * spike.h - detect jumps of the loss
 *
 * The criterion is run-watch's: a loss is a jump if it exceeds the median of the last SPIKE_WINDOW losses by more
 * than 5 % and by more than 8 times the median distance from it. An incident ends after SPIKE_CALM losses in a row
 * without a jump.
 */
#ifndef SHARDKIT_TRAIN_GUARD_SPIKE_H
#define SHARDKIT_TRAIN_GUARD_SPIKE_H

#include <stdbool.h>
#include <stdint.h>

enum { SPIKE_WINDOW = 256, SPIKE_LEAST = 32, SPIKE_CALM = 16 };

/* Zero-initialise it. */
struct spike {
    double loss[SPIKE_WINDOW];  /* the last losses, as a ring buffer */
    int64_t n;                  /* number of losses ever added */
    int calm;                   /* number of losses without a jump until the next jump is a new incident */
    double usual;               /* the median that the last loss was compared with */
};

/* Add a loss. Returns true if it is the first jump of an incident. */
bool spike_add_loss(struct spike *s, double loss);

#endif
