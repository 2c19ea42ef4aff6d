/*
 * replicas_check.h - compare the tensor-parallel copies of replicated parameters
 *
 * Every tensor-parallel rank has a copy of the LayerNorms, the biases of row-parallel layers and the position tables
 * (the last stage has a table of its own). The copies should be equal in all four states. In BLOOM's training they
 * differed for a while. Only these tensors are read: about 300 MB of a 176B checkpoint's 2.3 TB.
 */
#ifndef SHARDKIT_CHECK_REPLICAS_CHECK_H
#define SHARDKIT_CHECK_REPLICAS_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"

struct source;

/* One state of one replicated parameter. */
struct replica_state {
    bool compared;              /* false if the state was not selected, is not in this checkpoint, or has only one
                                 * copy */
    uint64_t n_elems;
    uint64_t n_differ;          /* number of elements that are not the same on all ranks */
    uint64_t max_ulps;          /* largest distance between rank 0 and another rank, in units in the last place;
                                 * STATS_NO_ULPS: one rank has a NaN where the other has a number */
    double max_abs;
    int worst_rank;             /* rank with the largest max_abs, or with the largest max_ulps among ranks of equal
                                 * max_abs; -1: in sync */
    int n_ranks;                /* number of copies */
    bool *rank_differs;         /* [n_ranks]: true if this rank's copy differs from rank 0's */
};

struct replica_param {
    const struct param *param;
    bool last_stage;            /* this is the last stage's copy of a tied parameter; its maps are param->tied
                                 * instead of param->state */
    const char *kind;           /* name without the layer number (param_kind()), such as "input_layernorm.weight" */
    int layer;                  /* layer number from param_kind(); -1: none */
    struct replica_state state[STATE_N];
};

struct replica_kind {
    char *kind;
    int n_params;
    int n_params_in_sync;       /* number of parameters that are in sync in all compared states */
    int n[STATE_N];             /* [state]: number of parameters that were compared in this state */
    int n_in_sync[STATE_N];
};

struct replicas {
    int n_params, n_kinds;
    struct replica_param *param;        /* in the source's order; the last stage's copy of a tied parameter follows
                                         * the first stage's */
    struct replica_kind *kind;          /* in order of first appearance */
    bool in_sync;                       /* all parameters are in sync in all compared states */
    uint64_t read_bytes;
};

struct replicas_opts {
    int threads;                        /* >= 1 */
    const char *glob;                   /* compare only parameters whose name or kind matches; NULL: all */
    int state;                          /* compare only this state; -1: all */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/*
 * Compare all copies and store the result in *out. A parameter that has only one copy (TP 1, universal forms) is not
 * listed. The caller must release *out with replicas_free() before it closes the source. Returns -1 with ERR_SYS,
 * ERR_DATA (a file is cut short) or ERR_STOP.
 */
MUST_CHECK int replicas_check(const struct source *s, const struct replicas_opts *o, struct replicas *out,
                              struct err *e);
void replicas_free(struct replicas *r);
/* Returns the map of all copies of a state, or NULL if the checkpoint does not have this state. */
struct tmap *replica_map(const struct replica_param *p, int state);
int replicas_out_of_sync(const struct replicas *r);     /* returns the number of parameters that are out of sync; the
                                                         * last stage's copies are counted separately */

#endif
