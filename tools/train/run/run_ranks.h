/*
 * run_ranks.h - the ranks of a job, the place of this one among them, and the groups that it belongs to
 */
#ifndef SHARDKIT_TRAIN_RUN_RUN_RANKS_H
#define SHARDKIT_TRAIN_RUN_RUN_RANKS_H

#include "libcommon/comm/comm.h"
#include "libcommon/model/topology.h"
#include "tools/train/log/status.h"

struct run_ranks {
    struct comm_world *world;   /* NULL before the rank has joined the job and after it has left the job */
    const struct comm_place *place;
    /* clock_wall_s() time at which the job started, which is when its first process started */
    double start_s;
    struct topology topo;
    int rank_pp, rank_dp, rank_tp;
    struct comm *tp, *dp, *pipe;
    /*
     * The group of this rank and the rank of the other stage that holds the tied embedding. NULL in other stages, and
     * if there is only one stage.
     */
    struct comm *tied;
};

/* What is known about a failure that ends the run. */
struct run_failure {
    bool on_all_ranks;          /* every rank knows of it, so all ranks can exit in order */
    bool not_finite;            /* a value of the state is not finite */
    enum cause cause;           /* the cause, which determines the exit status; 0: CAUSE_FAILED */
    int culprit;                /* 1 + the rank at fault; 0: none */
    char tensor[112];           /* name of the tensor in which it was found, or "" */
};

/* Set the topology, and the coordinates of this rank in it (docs/training.md 2.1). */
void run_ranks_place(struct run_ranks *r, struct topology topo);
/* Create the communication groups of this rank. All ranks must call it. */
MUST_CHECK int run_ranks_group(struct run_ranks *r, struct err *e);
void run_ranks_close_groups(struct run_ranks *r);
/*
 * Agree on an outcome. Each rank passes its own rc and *e. Returns 0 if all ranks succeeded. Otherwise returns -1 on
 * all ranks, sets f->on_all_ranks, and sets *e to the error of the lowest rank that failed; the message names this rank
 * unless all ranks failed. Also returns -1 if the ranks cannot communicate.
 */
MUST_CHECK int run_ranks_agree(const struct run_ranks *r, struct run_failure *f, int rc, struct err *e);
/* Returns true on rank 0, the only rank that prints. */
static inline bool run_ranks_is_rank0(const struct run_ranks *r) { return r->place->rank == 0; }

#endif
