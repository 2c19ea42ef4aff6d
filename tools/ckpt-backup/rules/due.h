/*
 * due.h - compute from the rules and the existing checkpoints which copies and removals are due; does no I/O
 *
 * Any step can be due, even one newer than the step that the file `latest` names; when it is copied, it is checked that
 * it is complete. A step is due at a place in one form. It is due as a whole copy if `full-every`, `full` or `keep`
 * select it, or else without its optimizer if `weights-every` or `weights` select it. It is due only if the place's own
 * `keep` rules do not remove it again. A place already has the step if it has a verified copy in this form; a whole
 * copy also counts as a copy of the weights. `keep-last N` of a place keeps the newest N whole steps, and the newest N
 * of all steps in the place.
 *
 * A step may be removed from the run's folder if the rules of the run state which steps to keep and this is not one of
 * them, if `latest` names a newer step, and if every place that should have the step has it. The same holds for a place
 * and all other places. If one of these conditions cannot be checked, because a place cannot be reached, the step is
 * not removed.
 */
#ifndef SHARDKIT_CKPT_BACKUP_DUE_H
#define SHARDKIT_CKPT_BACKUP_DUE_H

#include "tools/ckpt-backup/rules/rules.h"

struct due_held {
    int64_t step;
    enum backup_form form;
    bool verified;
    /* the place has a faithful copy, even if the step is not sound: no other copy is due */
    bool there;
};

struct due_place {
    bool known;                 /* false: the place could not be reached */
    const struct due_held *held;
    int n_held;
};

/* The steps that exist. */
struct due_state {
    const int64_t *step;        /* steps in the run's folder, ascending and without duplicates */
    int n_steps;
    int64_t latest;             /* the step that the file `latest` names, or -1; later steps may still be being
                                 * written */
    const struct due_place *place;     /* [rules->n_places] */
};

enum due_verb {
    DUE_COPY,              /* copy `step` of the run to `place` in the form `form` */
    DUE_FORGET,            /* `step` may be removed from `place` (DUE_RUN: from the run's folder) */
    /*
     * `step` may be removed later: once for_place has a verified copy of it, or, if for_place is the same place, once
     * that has verified copies of newer steps
     */
    DUE_WAIT,
};
enum { DUE_RUN = -1 };

struct due_action {
    enum due_verb verb;
    int64_t step;
    int place, for_place;
    enum backup_form form;
};

/*
 * Compute the list of actions: first the copies, by step and then by place; then the removals. Returns the number of
 * actions. The caller frees *out.
 */
int due_make(const struct rules *r, const struct due_state *st, struct due_action **out);

#endif
