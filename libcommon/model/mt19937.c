/*
 * mt19937.c - MT19937 with numpy's seeding and its bounded integers
 */
#include "libcommon/model/mt19937.h"

enum { N = 624, M = 397 };

void mt19937_seed(struct mt19937 *r, uint32_t seed)
{
    r->key[0] = seed;
    for (uint32_t i = 1; i < N; i++)
        r->key[i] = 1812433253u * (r->key[i - 1] ^ (r->key[i - 1] >> 30)) + i;
    r->pos = N;
}

static uint32_t twist(uint32_t high, uint32_t low, uint32_t far)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);

    return far ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
}

static void mt19937_refill(struct mt19937 *r)
{
    uint32_t *k = r->key;

    for (int i = 0; i < N; i++)
        k[i] = twist(k[i], k[(i + 1) % N], k[(i + M) % N]);
    r->pos = 0;
}

uint32_t mt19937_next(struct mt19937 *r)
{
    uint32_t y;

    if (r->pos == N)
        mt19937_refill(r);
    y = r->key[r->pos++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint64_t mt19937_interval(struct mt19937 *r, uint64_t max)
{
    uint64_t mask, v;

    if (max == 0)
        return 0;
    mask = UINT64_MAX >> __builtin_clzll(max);
    do {
        v = mt19937_next(r);
        if (max > UINT32_MAX)           /* numpy draws the high word first */
            v = v << 32 | mt19937_next(r);
        v &= mask;
    } while (v > max);
    return v;
}

#define SHUFFLE(a, from, to)                                            \
    for (int64_t i = (from); i > (to); i--) {                           \
        uint64_t j = mt19937_interval(r, (uint64_t)i);                  \
        __typeof__(*(a)) t = (a)[i];                                    \
                                                                        \
        (a)[i] = (a)[j];                                                \
        (a)[j] = t;                                                     \
    }

void mt19937_shuffle_32(struct mt19937 *r, uint32_t *a, int64_t from, int64_t to) { SHUFFLE(a, from, to) }
void mt19937_shuffle_64(struct mt19937 *r, uint64_t *a, int64_t from, int64_t to) { SHUFFLE(a, from, to) }
