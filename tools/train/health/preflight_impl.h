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

/*
 * The sizes of the tests. There is one set for GPUs, and one for CPUs. A CPU core takes about as long for its sizes as
 * a GPU for its own.
 */
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
 * Wait for the device and record its errors. The watch is informed of the wait, so that a device that does not respond
 * is reported by name.
 */
void preflight_sync_device(struct preflight *p);
/* Allocate memory of the device or of the host. On failure, an error is recorded and the result is NULL. */
void *preflight_alloc_device(struct preflight *p, uint64_t bytes);
void *preflight_alloc_host(struct preflight *p, uint64_t bytes);
/* Fill x, fp32 [n], with normally distributed random numbers. */
void preflight_random(struct preflight *p, float *x, int64_t n, uint32_t key);

void preflight_memory(struct preflight *p);
void preflight_copies(struct preflight *p);
void preflight_products(struct preflight *p);

#endif
