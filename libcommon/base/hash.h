/*
 * hash.h - hash functions for tables and for distinguishing values; none resists an adversary, none is stored in a
 * file
 */
#ifndef SHARDKIT_BASE_HASH_H
#define SHARDKIT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

/* Returns FNV-1a over n bytes, continuing from h (HASH_START to begin). */
static inline uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    const unsigned char *s = (const unsigned char *)p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Returns splitmix64 of x, which spreads adjacent numbers over all bits (Steele, Lea, Flood 2014). */
static inline uint64_t hash_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#endif
