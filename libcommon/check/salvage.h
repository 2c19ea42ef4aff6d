/*
 * salvage.h - what is lost of a checkpoint's tensors, from elsewhere
 *
 * Each element of a state that lies in a bad record (damage.h) gets, in this order:
 *   copied     the value of a copy: another tensor rank's of a replicated parameter, the other stage's of a tied one,
 *              the fp32 weight of a master
 *   rounded    weights: the master, rounded as the optimizer does
 *   taken      the value of another checkpoint (salvage_opts.from). Of a master only one that rounds to the weight
 *   widened    masters: the weight. An approximation, within the rounding of the weight
 *   zeroed     moments: 0. Where exp_avg_sq is not the run's own, exp_avg is not either: m / sqrt(v) would be
 *              without bound
 *   absent     weights without masters, and masters without weights: nothing has them. 0 if that is asked for
 * Elements that can be read stay as they are, except those of exp_avg above.
 *
 * The source itself is changed: the maps of these states point at their new values, which lie in an unlinked file.
 * Memory does not grow with the tensors.
 */
#ifndef SHARDKIT_CHECK_SALVAGE_H
#define SHARDKIT_CHECK_SALVAGE_H

#include "libcommon/check/damage.h"

struct source_value;
struct strbuf;
enum salvage_origin {
    SALVAGE_KEPT, SALVAGE_COPIED, SALVAGE_ROUNDED, SALVAGE_REPLACED, SALVAGE_WIDENED, SALVAGE_ZEROED, SALVAGE_ABSENT,
    SALVAGE_N,
};
/* "kept", "copied", "rounded" ... */
const char *salvage_word(enum salvage_origin o);

/* One state of one parameter that has lost elements. */
struct salvage_state {
    int param;                          /* in the source */
    enum state state;
    bool last_stage;                    /* the last stage's own copy */
    int record;                         /* the first bad one; -1: exp_avg, which goes with exp_avg_sq */
    bool proved;                        /* the result has the digest that a manifest lists */
    uint64_t n[SALVAGE_N];              /* elements by origin */
};

struct salvage {
    int n;
    struct salvage_state *state;        /* by parameter, then state */
    int n_params;
    uint64_t n_elems[SALVAGE_N];        /* of all but SALVAGE_KEPT */
};

struct salvage_opts {
    const struct source *from;          /* another checkpoint with parameters of the same names; NULL: none */
    const struct damage *from_damage;   /* of that */
    int spool;                          /* a file of salvage_bytes(), which becomes the source's; -1: only count */
    int threads;                        /* >= 1 */
    bool (*stopped)(void);              /* may be NULL */
};

/* Bytes that the new values need. */
uint64_t salvage_bytes(const struct damage *d);
/*
 * Fill what is lost, as far as it can be had. 0 and *out (end it with salvage_free()); -1: ERR_SYS, ERR_STOP. With
 * opts.spool < 0 the source stays as it is. Elements that are absent become 0; whether that will do is the caller's to
 * decide, by out->n_elems[SALVAGE_ABSENT].
 */
MUST_CHECK int salvage_run(struct source *s, const struct damage *d, const struct salvage_opts *o, struct salvage *out,
                           struct err *e);
void salvage_free(struct salvage *x);

/*
 * Fill damaged values (damage.value): counters of steps from the others, which are equal; the rest from `from`, which
 * may be NULL. The source's values point at copies in memory. *left: a value that nothing has, or NULL. -1: ERR_SYS.
 */
MUST_CHECK int salvage_values(struct source *s, const struct damage *d, const struct salvage_opts *o,
                              const struct source_value **left, struct err *e);

/*
 * The journal of it, JSON lines: one for the run (format, version, tag, iteration, from, from_iteration, parameters,
 * states), for ZeRO without any optimizer file one that records this (optimizer), then one per state (parameter,
 * last_stage, state, file, elements, as_listed, and how many of each origin), then one per value that salvage_values()
 * filled (value, origin). Equal input, equal text.
 */
void salvage_log(const struct damage *d, const struct salvage *x, const struct source *from, struct strbuf *out);

#endif
