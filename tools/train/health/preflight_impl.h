/*
 * preflight_impl.h - what the preflight*.c files share; for them only
 *
 *   preflight.c          neighbours, and the order of all
 *   preflight_device.c   one rank's device: memory, copies, matrix products
 *   preflight_verdict.c  what the figures of all ranks mean, and how they are shown
 */
#ifndef SHARDKIT_TRAIN_HEALTH_PREFLIGHT_IMPL_H
#define SHARDKIT_TRAIN_HEALTH_PREFLIGHT_IMPL_H

#include "tools/train/health/preflight.h"
#include "tools/train/run/trainer.h"

/* Sizes of the tests: a GPU's, and what a CPU core does in the same time. */
struct preflight_sizes {
    uint64_t block;             /* bytes of a copy, and of a block of memory that is read back */
    uint64_t message;           /* to a neighbour */
    double round_s;
    int64_t m, n, k;            /* of a product, where there is no model */
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

/* The first thing that is wrong is what is told. */
void preflight_wrong(struct preflight *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Wait for the device; one that does not come back is told by name. */
void preflight_settle_device(struct preflight *p);
/* Memory of the device and of the host; NULL is told by preflight_wrong(). */
void *preflight_take_memory(struct preflight *p, uint64_t bytes);
void *preflight_take_host(struct preflight *p, uint64_t bytes);
/* Normal deviates into x, fp32 [n]. */
void preflight_random(struct preflight *p, float *x, int64_t n, uint32_t key);

void preflight_memory(struct preflight *p);
void preflight_copies(struct preflight *p);
void preflight_products(struct preflight *p);

#endif
