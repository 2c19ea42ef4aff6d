/*
 * hash.h - hash functions for hash tables and for distinguishing values; they do not resist an adversary, and no file
 * stores their results
 */
#ifndef SHARDKIT_BASE_HASH_H
#define SHARDKIT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

/*
 * Returns the FNV-1a hash of the n bytes at p. h is the hash of the preceding bytes, or HASH_START for the first bytes.
 */
static inline uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    const unsigned char *s = (const unsigned char *)p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Returns the splitmix64 hash of x (Steele, Lea, Flood 2014). The hash spreads adjacent numbers over all 64 bits. */
static inline uint64_t hash_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#endif
