/*
 * preflight_impl.h - internal declarations shared by the preflight*.c files
 *
 *   preflight.c          links between ranks, and the sequence of all tests
 *   preflight_device.c   one rank's device: memory, copies, matrix products
 *   preflight_verdict.c  evaluates and prints the results of all ranks
 */
#ifndef SHARDKIT_TRAIN_HEALTH_PREFLIGHT_IMPL_H
#define SHARDKIT_TRAIN_HEALTH_PREFLIGHT_IMPL_H

#include "tools/train/health/preflight.h"
#include "tools/train/run/trainer.h"

/* Sizes of the tests. There is one set for a GPU and one that a CPU core processes in about the same time. */
struct preflight_sizes {
    uint64_t block;             /* bytes per copy, and per block of the memory test */
    uint64_t message;           /* bytes per message to another rank */
    double round_s;
    int64_t m, n, k;            /* dimensions of a matrix product if there is no model */
    int exchanges;
};

struct preflight {
    struct trainer *t;
    const struct kernels *k;
    const struct dev_ops *dev;
    struct watch *watch;
    struct comm *all;
    struct preflight_sizes z;
    struct preflight_rank *mine;
};

/* Record an error of this rank. Only the first error is kept. */
void preflight_wrong(struct preflight *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
/*
 * Wait for the device and record its errors. The watch is informed of the wait, so that it can report a device that
 * does not respond by name.
 */
void preflight_sync_device(struct preflight *p);
/* Allocate memory of the device or of the host. On failure, record an error and return NULL. */
void *preflight_alloc_device(struct preflight *p, uint64_t bytes);
void *preflight_alloc_host(struct preflight *p, uint64_t bytes);
/* Fill x, fp32 [n], with normally distributed random numbers. */
void preflight_random(struct preflight *p, float *x, int64_t n, uint32_t key);

void preflight_memory(struct preflight *p);
void preflight_copies(struct preflight *p);
void preflight_products(struct preflight *p);

#endif
