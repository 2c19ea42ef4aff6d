/*
 * replicas_check.h - compare the tensor-parallel copies of replicated parameters
 *
 * LayerNorms, biases of row-parallel layers and position tables (also the last stage's own table) exist once per
 * tensor-parallel rank and should be equal in all four states. In BLOOM's training they differed for a while. Only
 * these tensors are read: about 300 MB of a 176B checkpoint's 2.3 TB.
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
    bool compared;              /* false: not selected, not in this checkpoint, or one copy only */
    uint64_t n_elems;
    uint64_t n_differ;          /* elements that are not the same on all ranks */
    uint64_t max_ulps;          /* largest distance between rank 0 and another rank; STATS_NO_ULPS: NaN against a
                                 * number */
    double max_abs;
    int worst_rank;             /* rank with the largest max_abs (largest max_ulps if max_abs is equal); -1: in sync */
    int n_ranks;                /* number of copies */
    bool *rank_differs;         /* [n_ranks]: this rank's copy differs from rank 0's */
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
    int n_params_in_sync;       /* parameters that are in sync in all compared states */
    int n[STATE_N];             /* parameters compared in this state */
    int n_in_sync[STATE_N];
};

struct replicas {
    int n_params, n_kinds;
    struct replica_param *param;        /* in the source's order; the last stage's copy follows the first stage's */
    struct replica_kind *kind;          /* in order of first appearance */
    bool in_sync;                       /* all parameters, in all compared states */
    uint64_t read_bytes;
};

struct replicas_opts {
    int threads;                        /* >= 1 */
    const char *glob;                   /* compare only parameters whose name or kind matches; NULL: all */
    int state;                          /* compare only this state; -1: all */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/*
 * Compare all copies and set *out, which the caller releases with replicas_free() before it closes the source. Returns
 * -1 with ERR_SYS, ERR_DATA (a file is cut short) or ERR_STOP. A parameter that has only one copy (TP 1, universal
 * forms) is not listed.
 */
MUST_CHECK int replicas_check(const struct source *s, const struct replicas_opts *o, struct replicas *out,
                              struct err *e);
void replicas_free(struct replicas *r);
/* Returns the map of the copies of a state; NULL if the checkpoint does not have this state. */
struct tmap *replica_map(const struct replica_param *p, int state);
int replicas_out_of_sync(const struct replicas *r);     /* number of parameters; the last stage's copies count
                                                         * separately */

#endif
