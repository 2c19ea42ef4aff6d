/*
 * salvage.h - replace lost elements of a checkpoint's tensors by values from other places
 *
 * Each element of a state that lies in a bad record (damage.h) is replaced by the first of these values that exists:
 *   copied     a copy: another tensor rank's of a replicated parameter, the other stage's of a tied one,
 *              the fp32 weight of a master
 *   rounded    for weights: the master, rounded as the optimizer does
 *   taken      the value of another checkpoint (salvage_opts.from); for masters only if it rounds to the weight
 *   widened    for masters: the weight, which differs from the lost value by at most the rounding of the weight
 *   zeroed     for moments: 0. If exp_avg_sq is not the run's own, exp_avg is not kept either, because
 *              m / sqrt(v) would be unbounded
 *   absent     weights without masters, and masters without weights: no source exists. The value is 0
 * Elements that can be read are unchanged, except for exp_avg as described.
 *
 * salvage_run() changes the source: the maps of these states point to their new values, which are in an unlinked file.
 * Memory does not grow with the size of the tensors.
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
/* Returns the word for an origin: "kept", "copied", "rounded" ... */
const char *salvage_word(enum salvage_origin o);

/* One state of one parameter that lost elements. */
struct salvage_state {
    int param;                          /* index of the parameter in the source */
    enum state state;
    bool last_stage;                    /* this is the last stage's own copy of a tied parameter */
    int record;                         /* its first bad record; -1: exp_avg, which is replaced together with
                                         * exp_avg_sq */
    bool proved;                        /* the result has the digest that a manifest or a certificate lists */
    uint64_t n[SALVAGE_N];              /* number of elements by origin */
};

struct salvage {
    int n;
    struct salvage_state *state;        /* sorted by parameter, then state */
    int n_params;
    uint64_t n_elems[SALVAGE_N];        /* totals by origin; SALVAGE_KEPT is not counted */
};

struct salvage_opts {
    const struct source *from;          /* another checkpoint whose parameters have the same names; NULL: none */
    const struct damage *from_damage;   /* damage of `from` */
    int spool;                          /* descriptor of a file of salvage_bytes() bytes, which the source owns
                                         * afterwards; -1: only count */
    int threads;                        /* >= 1 */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/*
 * Check that `from` is of the run of `s`: the parameters' names and shapes, the architecture as far as both record
 * it, and which parameters share a group of the optimizer, if both list it. Returns -1 with ERR_DATA, which names the
 * first difference.
 */
MUST_CHECK int salvage_check_from(const struct source *s, const struct source *from, struct err *e);

/* Returns the size of all new values in bytes. */
uint64_t salvage_bytes(const struct damage *d);
/*
 * Replace what is lost, as far as sources exist, and set *out, which the caller releases with salvage_free(). Returns
 * -1 with ERR_SYS or ERR_STOP. With opts.spool < 0 the source is not changed. Elements without any source become 0; the
 * caller decides by out->n_elems[SALVAGE_ABSENT] whether the result is acceptable.
 */
MUST_CHECK int salvage_run(struct source *s, const struct damage *d, const struct salvage_opts *o, struct salvage *out,
                           struct err *e);
void salvage_free(struct salvage *x);

/*
 * Replace damaged values (damage.value): step counters from other counters, which are equal; all other values from
 * opts.from, which may be NULL. The source's values then point to copies in memory. *left receives the first value
 * without a source, or NULL. Returns -1 if reading or copying fails.
 */
MUST_CHECK int salvage_values(struct source *s, const struct damage *d, const struct salvage_opts *o,
                              const struct source_value **left, struct err *e);

/*
 * Append the journal of a salvage as JSON lines: one for the run (format, version, tag, iteration, from,
 * from_iteration, parameters, states), for ZeRO without any optimizer file one that records this (optimizer), then one
 * per state (parameter, last_stage, state, file, elements, as_listed, and the number of elements of each origin), then
 * one per value that salvage_values() filled (value, origin). Equal input gives equal text.
 */
void salvage_log(const struct damage *d, const struct salvage *x, const struct source *from, struct strbuf *out);

#endif
