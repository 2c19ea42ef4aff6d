/* memory_plan.h - compute the memory that every rank needs, in bytes; nothing is allocated */
#ifndef SHARDKIT_TRAIN_RUN_MEMORY_PLAN_H
#define SHARDKIT_TRAIN_RUN_MEMORY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct trainer;

enum { MEMORY_PLAN_SNAPSHOT = 6, MEMORY_PLAN_PROGRAM, MEMORY_PLAN_PARTS, MEMORY_PLAN_RANKS_MAX = 65536 };
struct memory_plan {
    uint64_t part[MEMORY_PLAN_PARTS], total;
    /*
     * `total` is the sum of the first n_parts parts. On a GPU these include neither the snapshot nor the memory of the
     * program itself.
     */
    int n_parts;
    int stage;
};
/* Compute the memory plan of a rank of stage pp, from the sizes in t. All ranks of a stage have the same plan. */
void memory_plan_stage(const struct trainer *t, int pp, struct memory_plan *out);
/*
 * Set t->saves.memory_bytes, the amount of host memory that the snapshot of a save may use. It is the value of
 * --save-memory, or less if this host does not have enough memory for all its ranks. Must be called before any rank has
 * allocated memory.
 */
void memory_plan_snapshot(struct trainer *t);
/*
 * Returns the number of bytes of GPU memory that may be used for the snapshot of a save. It is a part of the memory
 * that is free after the run has made its initial allocations.
 */
uint64_t memory_plan_aside(const struct trainer *t);
/* Print the plan of every stage, on rank 0. */
void memory_plan_show(struct trainer *t);
/*
 * Check that the plan of every rank fits into the free memory of its device, or into --device-memory. All ranks must
 * call it. If a plan does not fit, rank 0 prints what would make it fit, and the function fails with ERR_SYS and sets
 * t->failure.on_all_ranks.
 */
MUST_CHECK int memory_plan_check(struct trainer *t, struct err *e);
/*
 * Returns true if this is a dry run that plans for GPUs of other machines: --device-memory is given, and the device is
 * not the CPU.
 */
bool memory_plan_elsewhere(const struct trainer *t);

#endif
