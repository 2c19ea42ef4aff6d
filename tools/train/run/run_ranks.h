/*
 * run_ranks.h - the ranks of a job, the place of this one among them, and the groups that it belongs to
 */
#ifndef SHARDKIT_TRAIN_RUN_RUN_RANKS_H
#define SHARDKIT_TRAIN_RUN_RUN_RANKS_H

#include "libcommon/comm/comm.h"
#include "libcommon/model/topology.h"
#include "tools/train/log/status.h"

struct run_ranks {
    struct comm_world *world;   /* NULL before the job is joined and after it is left */
    const struct comm_place *place;
    double start_s;             /* start of the job in clock_wall_s() time: the start of its earliest process */
    struct topology topo;
    int rank_pp, rank_dp, rank_tp;
    struct comm *tp, *dp, *pipe;
    /*
     * this rank and its counterpart in the other stage that holds the embedding; NULL in other stages, or if there is
     * only one stage
     */
    struct comm *tied;
};

/* What is known about a failure that ends the run. */
struct run_failure {
    bool on_all_ranks;          /* every rank has seen it, so all ranks can exit in order */
    bool not_finite;            /* a value of the state is not finite */
    enum cause cause;           /* the exit status; 0: CAUSE_FAILED */
    int culprit;                /* 1 + the rank at fault; 0: none */
    char tensor[112];           /* the tensor that shows it, or "" */
};

/* Set the topology and the coordinates of this rank in it (docs/training.md 2.1). */
void run_ranks_place(struct run_ranks *r, struct topology topo);
/* Create the communication groups of this rank. All ranks must call it. */
MUST_CHECK int run_ranks_group(struct run_ranks *r, struct err *e);
void run_ranks_close_groups(struct run_ranks *r);
/*
 * Combine the outcomes of all ranks. Each rank passes its own rc and *e. Returns 0 if all succeeded. Otherwise it
 * returns -1 on all ranks and sets f->on_all_ranks, and *e is the error of the lowest rank that failed; the message
 * names that rank unless all ranks failed. It also returns -1 if the ranks cannot communicate.
 */
MUST_CHECK int run_ranks_agree(const struct run_ranks *r, struct run_failure *f, int rc, struct err *e);
/* Returns true on rank 0, which prints. */
static inline bool run_ranks_is_rank0(const struct run_ranks *r) { return r->place->rank == 0; }

#endif
