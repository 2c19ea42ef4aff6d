/*
 * mt19937.h - the part of numpy's RandomState that datasets use: seeding by an integer, and shuffle
 *
 * NumPy guarantees that the numbers after a seed never change, so the order of samples is the same as in the Python
 * trainers. A generator must not be used by several threads.
 */
#ifndef SHARDKIT_MODEL_MT19937_H
#define SHARDKIT_MODEL_MT19937_H

#include <stdint.h>

struct mt19937 {
    uint32_t key[624];
    int pos;
};

/* Seed the generator like RandomState(seed). */
void mt19937_seed(struct mt19937 *r, uint32_t seed);
uint32_t mt19937_next(struct mt19937 *r);
/* Returns a random number from 0 to max, both included. If max is 0, the state of the generator does not change. */
uint64_t mt19937_interval(struct mt19937 *r, uint64_t max);
/*
 * Make a part of RandomState.shuffle() of an array, which determines the elements from the last one, n - 1, down to 1.
 * A call determines the elements from `from` down to `to` + 1, so that the caller can divide the work into several
 * calls. If from <= to, the state of the generator does not change.
 */
void mt19937_shuffle_32(struct mt19937 *r, uint32_t *a, int64_t from, int64_t to);
void mt19937_shuffle_64(struct mt19937 *r, uint64_t *a, int64_t from, int64_t to);

#endif
