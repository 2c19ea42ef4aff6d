/*
 * mt19937.h - numpy's RandomState as far as datasets use it: integer seed, shuffle
 *
 * The stream is frozen in NumPy, so the order of samples made here is the order that the
 * Python trainers made. One generator belongs to one thread.
 */
#ifndef SHARDKIT_MODEL_MT19937_H
#define SHARDKIT_MODEL_MT19937_H

#include <stdint.h>

struct mt19937 {
    uint32_t key[624];
    int pos;
};

/* RandomState(seed): the classic seeding by one integer. */
void mt19937_seed(struct mt19937 *r, uint32_t seed);
uint32_t mt19937_next(struct mt19937 *r);
/* 0 .. max, both included; draws nothing for 0. */
uint64_t mt19937_interval(struct mt19937 *r, uint64_t max);
/*
 * RandomState.shuffle of a one-dimensional array of n elements, from n - 1 to 0, in as many pieces as the caller likes:
 * each gives elements `from` down to `to` + 1 their place. from <= to draws nothing.
 */
void mt19937_shuffle_32(struct mt19937 *r, uint32_t *a, int64_t from, int64_t to);
void mt19937_shuffle_64(struct mt19937 *r, uint64_t *a, int64_t from, int64_t to);

#endif
