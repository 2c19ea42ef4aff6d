/*
 * memory_plan.h - compute the memory that every rank needs, in bytes, from t's shape; allocates nothing
 */
#ifndef SHARDKIT_TRAIN_RUN_MEMORY_PLAN_H
#define SHARDKIT_TRAIN_RUN_MEMORY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct trainer;

enum { MEMORY_PLAN_SNAPSHOT = 6, MEMORY_PLAN_PROGRAM, MEMORY_PLAN_PARTS, MEMORY_PLAN_RANKS_MAX = 65536 };
struct memory_plan {
    uint64_t part[MEMORY_PLAN_PARTS], total;
    /* `total` is the sum of the first n_parts parts; on a GPU these include neither the snapshot nor the program */
    int n_parts;
    int stage;
};
/* Compute the memory plan of a rank of stage pp. All ranks of a stage have the same plan. */
void memory_plan_stage(const struct trainer *t, int pp, struct memory_plan *out);
/*
 * Set how much host memory snapshots may use (t->saves.memory_bytes): the value of --save-memory, or a reduced
 * amount if this host does not have enough for all of its ranks. Call it before any rank has allocated memory.
 */
void memory_plan_snapshot(struct trainer *t);
/*
 * Returns how many bytes of a GPU may hold a save's snapshot, out of the memory that is free once the run has made its
 * initial allocations.
 */
uint64_t memory_plan_aside(const struct trainer *t);
/* Print the plan of every stage, on rank 0. */
void memory_plan_show(struct trainer *t);
/*
 * Check that every rank's plan fits into the free memory of its device, or into --device-memory. Every rank must call
 * it. If a plan does not fit, the function fails with ERR_SYS and sets t->failure.on_all_ranks, and rank 0 has printed
 * what would make the plan fit.
 */
MUST_CHECK int memory_plan_check(struct trainer *t, struct err *e);
/*
 * Returns true for a dry run that plans for the GPUs of other machines: --device-memory is given and the device is
 * not the CPU.
 */
bool memory_plan_elsewhere(const struct trainer *t);

#endif
