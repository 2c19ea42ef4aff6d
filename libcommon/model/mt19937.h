/*
 * mt19937.h - the part of numpy's RandomState that datasets use: integer seed, shuffle
 *
 * NumPy guarantees that the stream does not change, so the order of samples is the same as in the Python trainers. A
 * generator must be used by one thread only.
 */
#ifndef SHARDKIT_MODEL_MT19937_H
#define SHARDKIT_MODEL_MT19937_H

#include <stdint.h>

struct mt19937 {
    uint32_t key[624];
    int pos;
};

/* Seed the generator like RandomState(seed): the classic seeding by one integer. */
void mt19937_seed(struct mt19937 *r, uint32_t seed);
uint32_t mt19937_next(struct mt19937 *r);
/* Returns a number from 0 to max, both included. Draws nothing if max is 0. */
uint64_t mt19937_interval(struct mt19937 *r, uint64_t max);
/*
 * Shuffle a one-dimensional array of n elements like RandomState.shuffle, which goes from n - 1 to 0. The caller may
 * divide the work into any number of calls: each one determines the elements `from` down to `to` + 1. Draws nothing
 * if from <= to.
 */
void mt19937_shuffle_32(struct mt19937 *r, uint32_t *a, int64_t from, int64_t to);
void mt19937_shuffle_64(struct mt19937 *r, uint64_t *a, int64_t from, int64_t to);

#endif
