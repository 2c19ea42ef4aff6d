/*
 * dev.h - streams, events and memory of the device that a rank computes on
 *
 * All functions that process tensors take a stream. On the CPU the stream is NULL, and work is complete when the
 * call returns. On a GPU work is queued, and only events define an order between streams. Both kernels.h and comm.h
 * use these types, so neither depends on the other.
 */
#ifndef SHARDKIT_BASE_DEV_H
#define SHARDKIT_BASE_DEV_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "libcommon/base/err.h"

struct dev_stream;              /* NULL: the CPU, or the GPU's default stream */
struct dev_event;               /* NULL: the CPU, where all work is already complete */

/* Identifies the device. Members that do not apply are "". */
struct dev_who {
    char model[80];             /* "NVIDIA H200", "AMD EPYC 9354" */
    char uuid[48];              /* "GPU-53a7.." */
    char pci[20];               /* "0000:1b:00.0" */
};

struct dev_ops {
    const char *name;           /* "cpu", "cuda" */
    /*
     * Allocate device memory, aligned to 4 KiB, contents undefined. Returns NULL with ERR_SYS if there is not
     * enough.
     */
    void *(*alloc)(uint64_t bytes, struct err *e);
    void (*free)(void *p);      /* NULL is allowed */
    /* Allocate host memory that the device copies from and to at full rate. */
    void *(*alloc_host)(uint64_t bytes, struct err *e);
    void (*free_host)(void *p);
    /* Source and destination may each be host or device memory. */
    void (*copy)(void *dst, const void *src, uint64_t bytes, struct dev_stream *s);
    void (*zero)(void *dst, uint64_t bytes, struct dev_stream *s);
    struct dev_stream *(*stream_new)(void);
    void (*stream_free)(struct dev_stream *s);
    /* Wait until all work queued so far is complete. */
    void (*stream_sync)(struct dev_stream *s);
    struct dev_event *(*event_new)(void);
    void (*event_free)(struct dev_event *v);
    void (*event_record)(struct dev_event *v, struct dev_stream *s);
    /* Make `s` wait until the work that `v` recorded is complete. The host does not wait. */
    void (*stream_wait)(struct dev_stream *s, struct dev_event *v);
    bool (*event_done)(struct dev_event *v);
    /* Get the bytes of device memory: total, and free now. */
    void (*memory)(uint64_t *total, uint64_t *free_now);
    /*
     * Returns 0, or -1 with the first fault since the last call. Calls only queue work, so faults are detected later.
     * check() does not wait; to get all faults, call it after stream_sync().
     */
    int (*check)(struct err *e);
    void (*who)(struct dev_who *who);
    /*
     * Create an event that also records the device's clock. Other events do not record the clock, and cost less.
     * Returns NULL on the CPU.
     */
    struct dev_event *(*timer_new)(void);
    /* Returns the device time in seconds between two timers that have completed; 0 on the CPU. */
    double (*seconds_between)(struct dev_event *from, struct dev_event *to);
    /*
     * Register existing host memory (a mapping that processes share), so that the device copies from and to this memory
     * as fast as with memory of alloc_host(). Returns -1 with ERR_SYS if that is impossible. Copies still work then,
     * but block the thread that queues them. unpin() must be called before the memory is unmapped. `pin` and `unpin`
     * are NULL if the device does not need them.
     */
    int (*pin)(void *p, uint64_t bytes, struct err *e);
    void (*unpin)(void *p);
};

/* Returns true if the device is the host's processors and memory. */
static inline bool dev_on_host(const struct dev_ops *d) { return !strcmp(d->name, "cpu"); }

#endif
