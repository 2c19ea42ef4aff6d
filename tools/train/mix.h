/*
 * mix.h - keys for random numbers out of numbers that are next to each other
 */
#ifndef SHARDKIT_TRAIN_MIX_H
#define SHARDKIT_TRAIN_MIX_H

#include <stdint.h>

/* splitmix64: spreads neighbouring numbers over all bits (Steele, Lea, Flood 2014). */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
