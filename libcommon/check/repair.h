/*
 * repair.h - resolve tensor-parallel copies that drifted apart, in all states together
 *
 * If copies of a replicated parameter disagree on an element in any state, that element is resolved in all states at
 * once, so that weight, master and moments still belong together:
 *   first      rank 0's values are used in every state
 *   majority   the values of the rank with the most votes are used. Each copy that is equal to the rank's copy is a
 *              vote, and the votes of all states are added up. If several ranks have the most votes, the lowest of them
 *              is used
 *   average    the master and both moments are each averaged independently, as by replicas_combine()
 * If the old weight of some rank was its rounded master, as in every save of a trainer, the new weight is the rounded
 * new master. Otherwise the weight is combined like the other states. Elements on which all copies agree are not
 * changed.
 *
 * repair_run() changes the source: the maps of repaired parameters point to their new values, which are in an unlinked
 * file. Memory does not grow with the size of the tensors.
 */
#ifndef SHARDKIT_CHECK_REPAIR_H
#define SHARDKIT_CHECK_REPAIR_H

#include "libcommon/base/mem.h"
#include "libcommon/base/replicas.h"
#include "libcommon/check/replicas_check.h"

/* Describes how much the values of one rank, or of all ranks together, were changed. */
struct repair_move {
    uint64_t n_changed;         /* elements whose bits changed */
    uint64_t max_ulps;          /* largest change in units in the last place; STATS_NO_ULPS: a NaN was replaced by a
                                 * number, or a number was replaced by a NaN */
    double max_abs;
};

/* One state of one parameter in which elements changed. */
struct repair_state {
    const struct param *param;
    bool last_stage;            /* this is the last stage's own copy of a tied parameter */
    enum state state;
    uint64_t n_elems;
    uint64_t n_differed;        /* number of elements on which the copies of this state disagreed */
    struct repair_move all;     /* changes on all ranks; an element that changes on several ranks counts once */
    int n_ranks;
    struct repair_move *rank;   /* [n_ranks]: changes on each rank */
    const struct tmap *was;     /* the map of the copies before the repair */
};

struct repair {
    int n;
    struct repair_state *state; /* sorted by parameter, then state */
    int n_params;
};

struct repair_opts {
    enum replica_policy how;    /* not REPLICAS_FAIL */
    const char *spool;          /* path of a folder with room for the new values: 14 bytes per element of a drifted
                                 * parameter */
    bool (*stopped)(void);      /* returns true to stop; may be NULL */
};

/*
 * Resolve the parameters that `r` lists as out of sync. The caller must release *out with repair_free() before it
 * closes the source. Returns -1 with ERR_SYS, ERR_DATA (a file is cut short) or ERR_STOP. The CRCs of records are not
 * checked here; they are checked when the output is written.
 */
MUST_CHECK int repair_run(struct source *s, const struct replicas *r, const struct repair_opts *o, struct repair *out,
                          struct err *e);
void repair_free(struct repair *x);

/*
 * Append the journal of a repair as JSON lines. The first line describes the run with the keys format, version, tag,
 * tp, iteration, policy, parameters, states. Each changed state follows in a line with the keys parameter, last_stage,
 * state, elements, differed, changed, max_ulps, max_abs, ranks. `ranks` is a list of the ranks that changed, each with
 * the keys rank, changed, max_ulps, max_abs. Equal input gives equal text.
 */
void repair_log(const struct source *s, const struct repair *x, enum replica_policy how, struct strbuf *out);

#endif
