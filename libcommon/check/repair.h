/*
 * repair.h - one value for tensor-parallel copies that drifted apart, in all states together
 *
 * Where copies of a replicated parameter disagree in an element, in any state, that element
 * is resolved in all of them at once, so that weight, master and moments still belong together:
 *   first      rank 0's values, of every state
 *   majority   the values of the rank that most ranks agree with, votes of all states added
 *              up; of several the lowest
 *   average    every flat state (master, both moments) averaged by itself, as
 *              replicas_combine() does
 * A weight becomes the rounded master wherever some rank's weight was its rounded master, as
 * a trainer's always is; else it is combined like the other states. Elements on which all
 * copies agree are left alone, whatever they are.
 *
 * The source itself is changed: the maps of repaired parameters point at their new values,
 * which lie in an unlinked file. Memory does not grow with the tensors.
 */
#ifndef SHARDKIT_CHECK_REPAIR_H
#define SHARDKIT_CHECK_REPAIR_H

#include "libcommon/base/mem.h"
#include "libcommon/base/replicas.h"
#include "libcommon/check/replicas_check.h"

/* How far the values moved, of one rank or of all. */
struct repair_move {
    uint64_t n_changed;         /* elements whose bits are not what they were */
    uint64_t max_ulps;          /* STATS_NO_ULPS: a NaN met a number */
    double max_abs;
};

/* One state of one parameter that has elements to resolve. */
struct repair_state {
    const struct param *param;
    bool last_stage;            /* the last stage's own copy */
    enum state state;
    uint64_t n_elems;
    uint64_t n_differed;        /* elements on which the copies of this state disagreed */
    struct repair_move all;     /* of any rank: an element that several ranks change counts once */
    int n_ranks;
    struct repair_move *rank;   /* [n_ranks] */
    const struct tmap *was;     /* the map of the copies, as the source had it */
};

struct repair {
    int n;
    struct repair_state *state; /* by parameter, then state */
    int n_params;
};

struct repair_opts {
    enum replica_policy how;    /* not REPLICAS_FAIL */
    const char *spool;          /* a folder with room for the new values: those parameters' size, 14 bytes an element */
    bool (*stopped)(void);      /* NULL: never */
};

/*
 * Resolve what `r` found out of sync. The caller releases *out with repair_free() before it closes the source. Returns
 * -1 with ERR_SYS, ERR_DATA (a file is cut short) or ERR_STOP. CRCs are not checked here, but when the records are
 * read for the output.
 */
MUST_CHECK int repair_run(struct source *s, const struct replicas *r, const struct repair_opts *o, struct repair *out,
                          struct err *e);
void repair_free(struct repair *x);

/*
 * The journal of it, JSON lines: one for the run (format, version, tag, tp, iteration, policy,
 * parameters, states), then one per changed state (parameter, last_stage, state, elements,
 * differed, changed, max_ulps, max_abs, ranks: those that changed, each with rank, changed,
 * max_ulps, max_abs). Equal input, equal text.
 */
void repair_log(const struct source *s, const struct repair *x, enum replica_policy how, struct strbuf *out);

#endif
