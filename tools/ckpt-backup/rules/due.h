/*
 * due.h - derive the actions to take from the rules and the existing checkpoints; does no I/O
 *
 * Every step can be due, also those newer than the one that `latest` names: the copy checks whether they are whole. A
 * step is due at a place in one form: whole when `full-every`, `full` or `keep` pick it, else without its optimizer
 * when `weights-every` or `weights` do, and only if the place's own `keep` rules let it stay there. A place already
 * has the step when it has verified it in that form; a whole copy also serves as a weights copy. `keep-last N` of a
 * place keeps the newest N whole steps, and the newest N of all its steps.
 *
 * A step may be removed from the run's folder when the run's rules list what to keep and do not include this step,
 * `latest` names a newer step, and every place that is due to hold it does. The same applies to a place with respect
 * to all other places. Anything that cannot be established (a place that cannot be reached) forbids the removal.
 */
#ifndef SHARDKIT_CKPT_BACKUP_DUE_H
#define SHARDKIT_CKPT_BACKUP_DUE_H

#include "tools/ckpt-backup/rules/rules.h"

struct due_held {
    int64_t step;
    enum backup_form form;
    bool verified;
    /* true if the place holds a faithful copy, even of an unsound step: no other copy is due */
    bool there;
};

struct due_place {
    bool known;                 /* false: the place could not be reached */
    const struct due_held *held;
    int n_held;
};

/* The existing steps. */
struct due_state {
    const int64_t *step;        /* in the run's folder, ascending, without duplicates */
    int n_steps;
    int64_t latest;             /* the step that `latest` names, -1 if none; later steps may still be being written */
    const struct due_place *place;     /* [rules->n_places] */
};

enum due_verb {
    DUE_COPY,              /* copy the run's `step` to `place` as `form` */
    DUE_FORGET,            /* `step` may be removed from `place` (DUE_RUN: from the run's folder) */
    /*
     * `step` may be removed once `for_place` has verified it; or if for_place is the same place, once newer steps are
     * verified there
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
 * Make the list of actions: copies first, by step, then by place; then the removals. Returns the number of actions;
 * caller frees *out.
 */
int due_make(const struct rules *r, const struct due_state *st, struct due_action **out);

#endif
