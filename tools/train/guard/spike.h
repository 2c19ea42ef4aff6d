/*
 * spike.h - has the loss jumped?
 *
 * As run-watch judges: above the median of the last SPIKE_WINDOW losses by more than 5 %, and by more than 8 times the
 * median distance from it. A jump is one incident until SPIKE_CALM losses in a row are none.
 */
#ifndef SHARDKIT_TRAIN_GUARD_SPIKE_H
#define SHARDKIT_TRAIN_GUARD_SPIKE_H

#include <stdbool.h>
#include <stdint.h>

enum { SPIKE_WINDOW = 256, SPIKE_LEAST = 32, SPIKE_CALM = 16 };

/* All zero to begin with. */
struct spike {
    double loss[SPIKE_WINDOW];  /* the last ones, a ring */
    int64_t n;                  /* ever put there */
    int calm;                   /* to go before the next is a new incident */
    double usual;               /* the median that the last loss was held against */
};

/* True for the first loss of an incident. */
bool spike_take(struct spike *s, double loss);

#endif
