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
/* RandomState.shuffle of a one-dimensional array; n <= 1 draws nothing. */
void mt19937_shuffle_i32(struct mt19937 *r, int32_t *a, int64_t n);
void mt19937_shuffle_u32(struct mt19937 *r, uint32_t *a, int64_t n);
void mt19937_shuffle_i64(struct mt19937 *r, int64_t *a, int64_t n);

#endif
