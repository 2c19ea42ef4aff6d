/*
 * salvage.h - replace lost elements of a checkpoint's tensors by values from other places
 *
 * Each element of a state that lies in a bad record (damage.h) is replaced by the first of these values that exists:
 *   copied     another copy of the value: that of another tensor rank for a replicated parameter, that of the other
 *              stage for a tied parameter, the weight for a master whose weight is fp32
 *   rounded    for weights: the master, rounded as the optimizer does
 *   taken      the value in another checkpoint (salvage_opts.from); for masters only if this value rounds to the weight
 *   widened    for masters: the weight, which differs from the lost value by at most the rounding of the weight
 *   zeroed     for moments: 0. If exp_avg_sq is lost, exp_avg is replaced, too, even if it can be read, because
 *              otherwise m / sqrt(v) would be unbounded
 *   absent     no source exists: neither the weight nor its master is available. The value is set to 0
 * Elements that can be read are unchanged, except for exp_avg as described.
 *
 * salvage_run() changes the source: the maps of the affected states then refer to their new values, which are in an
 * unlinked file. Memory does not grow with the size of the tensors.
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
    int record;                         /* number of the state's first bad record; -1: no record is bad; exp_avg is
                                         * replaced only because exp_avg_sq is */
    bool proved;                        /* the result has the digest that a manifest or a certificate lists */
    uint64_t n[SALVAGE_N];              /* number of elements of each origin */
};

struct salvage {
    int n;
    struct salvage_state *state;        /* sorted by parameter, then state */
    int n_params;
    uint64_t n_elems[SALVAGE_N];        /* total number of elements of each origin; SALVAGE_KEPT is not counted */
};

struct salvage_opts {
    const struct source *from;          /* another checkpoint whose parameters have the same names; NULL: none */
    const struct damage *from_damage;   /* describes the damage of `from` */
    int spool;                          /* descriptor of a file of salvage_bytes() bytes, which the source then owns;
                                         * -1: only count the elements */
    int threads;                        /* >= 1 */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/*
 * Check that `from` is a checkpoint of the same run as `s`. Three properties are compared: the names and shapes of the
 * parameters; the architecture, as far as both checkpoints record it; the parameters of each optimizer group, if both
 * checkpoints list them. Returns -1 with ERR_DATA, which names the first difference.
 */
MUST_CHECK int salvage_check_from(const struct source *s, const struct source *from, struct err *e);

/* Returns the total size of all new values in bytes. */
uint64_t salvage_bytes(const struct damage *d);
/*
 * Replace lost elements, as far as a source for their values exists, and store the result in *out. An element without
 * any source becomes 0. The caller checks out->n_elems[SALVAGE_ABSENT] to decide whether the result is acceptable. If
 * o->spool < 0, the elements are only counted, and the source s is not changed. The caller must release *out with
 * salvage_free(). Returns -1 with ERR_SYS or ERR_STOP.
 */
MUST_CHECK int salvage_run(struct source *s, const struct damage *d, const struct salvage_opts *o, struct salvage *out,
                           struct err *e);
void salvage_free(struct salvage *x);

/*
 * Replace the damaged values that d->value lists by copies in memory. A step counter is replaced by another step
 * counter, which has the same value. Any other value is replaced by the value of the same name in o->from, which may be
 * NULL. *left is set to the first value that could not be replaced, or to NULL. Returns -1 if reading or copying fails.
 */
MUST_CHECK int salvage_values(struct source *s, const struct damage *d, const struct salvage_opts *o,
                              const struct source_value **left, struct err *e);

/*
 * Append the journal of a salvage as JSON lines. Equal input gives equal text. The lines are:
 *   one for the run: format, version, tag, iteration, from, from_iteration, parameters, states
 *   for ZeRO, if no optimizer file is left, one that records this: optimizer
 *   one per state: parameter, last_stage, state, file, elements, as_listed, and the number of elements of each origin
 *   one per value that salvage_values() replaced: value, origin
 */
void salvage_log(const struct damage *d, const struct salvage *x, const struct source *from, struct strbuf *out);

#endif
