/*
 * memory_plan.h - memory of every rank, in bytes; from t's settled shape, nothing is allocated
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
    int n_parts;                /* that total is the sum of: a GPU has neither the snapshot nor the program */
    int stage;
};
/* Of a rank of stage pp; all of its ranks have the same. */
void memory_plan_stage(const struct trainer *t, int pp, struct memory_plan *out);
/*
 * Settle what memory of the host snapshots may take (t->save_memory): --save-memory, or less than all where this host
 * has not enough for all of its ranks. Before any of them has taken memory.
 */
void memory_plan_snapshot(struct trainer *t);
/* Bytes of a GPU that may hold what a save sets aside: of what is free once the run has what it takes at its start. */
uint64_t memory_plan_aside(const struct trainer *t);
/* The plan of every stage, from rank 0. */
void memory_plan_show(struct trainer *t);
/*
 * Does every rank's plan fit into what its device has free, or into --device-memory? Every rank calls
 * it. When not: ERR_SYS and t->all_know, and rank 0 has told what would make it fit.
 */
MUST_CHECK int memory_plan_check(struct trainer *t, struct err *e);
/* A dry run for other machines' GPUs: --device-memory, and not for the CPU. */
bool memory_plan_elsewhere(const struct trainer *t);

#endif
