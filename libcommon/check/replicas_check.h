/*
 * replicas_check.h - do the tensor-parallel copies of replicated parameters agree?
 *
 * LayerNorms, biases of row-parallel layers and position tables (the last stage's own one
 * too) exist once on every tensor-parallel rank and should be equal in all four states;
 * BLOOM's were not for a while. Only these tensors are read: about 300 MB of a 176B checkpoint's 2.3 TB.
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
    bool compared;              /* false: not in this checkpoint, or one copy only */
    uint64_t n_elems;
    uint64_t n_differ;          /* elements that are not the same on all ranks */
    uint64_t max_ulps;          /* from rank 0 to any other; STATS_NO_ULPS: NaN against a number */
    double max_abs;
    int worst_rank;             /* where max_abs (ulps when that is 0) was seen; -1: in sync */
    int n_ranks;                /* copies */
    bool *rank_differs;         /* [n_ranks]: differs from rank 0 */
};

struct replica_param {
    const struct param *param;
    bool last_stage;            /* the last stage's copy of a tied parameter: param->tied, not param->state */
    const char *kind;           /* param_kind(): "input_layernorm.weight" */
    int layer;                  /* spec index, -1: none */
    struct replica_state state[STATE_N];
};

struct replica_kind {
    char *kind;
    int n_params;
    int n_params_in_sync;       /* in all states compared */
    int n[STATE_N];             /* parameters compared in a state */
    int n_in_sync[STATE_N];
};

struct replicas {
    int n_params, n_kinds;
    struct replica_param *param;        /* in the source's order; a last stage's copy follows the first's */
    struct replica_kind *kind;          /* in order of first appearance */
    bool in_sync;                       /* all of them, in all states */
    uint64_t read_bytes;
};

struct replicas_opts {
    int threads;                        /* >= 1 */
    const char *glob;                   /* only parameters whose name or kind matches; NULL: all */
    int state;                          /* only this one; -1: all */
    bool (*stopped)(void);              /* may be NULL */
};

/*
 * Compare. 0 and *out (end it with replicas_free, before the source), or -1: ERR_SYS,
 * ERR_DATA (a file is cut short), ERR_STOP. A parameter without a second copy (TP 1,
 * universal forms) is not listed.
 */
MUST_CHECK int replicas_check(const struct source *s, const struct replicas_opts *o, struct replicas *out,
                              struct err *e);
void replicas_free(struct replicas *r);
/* The copies that were compared; NULL where the checkpoint lacks the state. */
struct tmap *replica_map(const struct replica_param *p, int state);
int replicas_out_of_sync(const struct replicas *r);     /* parameters, last stage's copies counted apart */

#endif
