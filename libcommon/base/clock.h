/*
 * clock.h - reading the clocks
 *
 * Durations are measured on the monotonic clock, which is never adjusted. Wall-clock time is for output that other
 * programs and people read. Reading either clock cannot fail on Linux.
 */
#ifndef SHARDKIT_BASE_CLOCK_H
#define SHARDKIT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_read_ns(clockid_t which)
{
    struct timespec t;

    clock_gettime(which, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Returns the monotonic time, from an unspecified start during this boot. */
static inline int64_t clock_ns(void) { return clock_read_ns(CLOCK_MONOTONIC); }
static inline double clock_s(void) { return (double)clock_ns() * 1e-9; }
/* Returns the wall-clock time in seconds since 1970-01-01 00:00 UTC. */
static inline double clock_wall_s(void) { return (double)clock_read_ns(CLOCK_REALTIME) * 1e-9; }

#endif
