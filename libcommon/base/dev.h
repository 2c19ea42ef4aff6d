/*
 * dev.h - streams, events and memory of the device that a rank computes on
 *
 * Everything that works on tensors takes a stream. On the CPU the stream is NULL and work
 * is done when the call returns; on a GPU it is queued, and order between streams comes
 * from events only. kernels.h and comm.h both speak of these, so neither needs the other.
 */
#ifndef SHARDKIT_BASE_DEV_H
#define SHARDKIT_BASE_DEV_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "libcommon/base/err.h"

struct dev_stream;              /* NULL: the CPU, or the GPU's default stream */
struct dev_event;               /* NULL: the CPU, where everything has already happened */

/* Which device it is; "" where there is nothing to say. */
struct dev_who {
    char model[80];             /* "NVIDIA H200", "AMD EPYC 9354" */
    char uuid[48];              /* "GPU-53a7.." */
    char pci[20];               /* "0000:1b:00.0" */
};

struct dev_ops {
    const char *name;           /* "cpu", "cuda" */
    /* Device memory, 4 KiB aligned, contents undefined. NULL and ERR_SYS when there is none left. */
    void *(*alloc)(uint64_t bytes, struct err *e);
    void (*free)(void *p);      /* NULL is fine */
    /* Host memory that the device copies from and to at full rate. */
    void *(*alloc_host)(uint64_t bytes, struct err *e);
    void (*free_host)(void *p);
    /* Either side may be host or device memory. */
    void (*copy)(void *dst, const void *src, uint64_t bytes, struct dev_stream *s);
    void (*zero)(void *dst, uint64_t bytes, struct dev_stream *s);
    struct dev_stream *(*stream_new)(void);
    void (*stream_free)(struct dev_stream *s);
    /* Wait until everything queued so far is done. */
    void (*stream_sync)(struct dev_stream *s);
    struct dev_event *(*event_new)(void);
    void (*event_free)(struct dev_event *v);
    void (*event_record)(struct dev_event *v, struct dev_stream *s);
    /* `s` goes on only after what `v` recorded; the host does not wait. */
    void (*stream_wait)(struct dev_stream *s, struct dev_event *v);
    bool (*event_done)(struct dev_event *v);
    /* Bytes of device memory: all, and free now. */
    void (*memory)(uint64_t *total, uint64_t *free_now);
    /*
     * Work only queues, so a fault shows later: 0, or -1 with the first one since the last
     * call. Does not wait; call it after stream_sync() to hear of everything.
     */
    int (*check)(struct err *e);
    void (*who)(struct dev_who *who);
    /* An event that also notes the device's clock; the others do not, and cost less. NULL: the CPU. */
    struct dev_event *(*timer_new)(void);
    /* Seconds of device time between two timers that are done; 0 on the CPU. */
    double (*seconds_between)(struct dev_event *from, struct dev_event *to);
    /*
     * Let the device copy from and to memory of the host that is there already (a mapping that processes share) as fast
     * as what alloc_host() gives: -1 and ERR_SYS where it cannot; copies work all the same then, and hold up the
     * thread that queues them. `unpin` before the memory goes. Both NULL: there is nothing to do.
     */
    int (*pin)(void *p, uint64_t bytes, struct err *e);
    void (*unpin)(void *p);
};

/* It computes on the host's processors, in the host's memory. */
static inline bool dev_on_host(const struct dev_ops *d) { return !strcmp(d->name, "cpu"); }

#endif
