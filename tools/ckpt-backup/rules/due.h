/*
 * due.h - from rules and what there is to what is to be done; touches no disk
 *
 * Each step is due, also those newer than what `latest` names: the copy finds whether it is whole.
 * A step is due at a place in one form: whole when `full-every`, `full` or `keep` pick it, else without its optimizer
 * when `weights-every` or `weights` do, and only if the place's own `keep` rules let it stay there. It is there when
 * the place has verified it in that form; whole serves for weights, too. `keep-last N` of a place: its newest N that
 * are whole, and of all its steps the newest N.
 *
 * A step may be forgotten in the run's folder when its rules say what to keep and not this step, `latest` is a newer
 * step, and each place that is due to hold it does. The same of a place and all other places. What cannot be
 * established (a place that does not answer) forbids.
 */
#ifndef SHARDKIT_CKPT_BACKUP_DUE_H
#define SHARDKIT_CKPT_BACKUP_DUE_H

#include "tools/ckpt-backup/rules/rules.h"

struct due_held {
    int64_t step;
    enum backup_form form;
    bool verified;
    bool there;                 /* faithful, though perhaps of an unsound step: no other copy is due */
};

struct due_place {
    bool known;                 /* false: it did not answer */
    const struct due_held *held;
    int n_held;
};

/* What there is. */
struct due_state {
    const int64_t *step;        /* in the run's folder, ascending, none twice */
    int n_steps;
    int64_t latest;             /* what `latest` names, -1: nothing; a later one may still be written */
    const struct due_place *place;     /* [rules->n_places] */
};

enum due_verb {
    DUE_COPY,              /* the run's `step` to `place` as `form` */
    DUE_FORGET,            /* `step` in `place` (DUE_RUN: in the run's folder) may go */
    DUE_WAIT,              /* it may, once place `for_place` has verified it, or, its own place, newer ones */
};
enum { DUE_RUN = -1 };

struct due_action {
    enum due_verb verb;
    int64_t step;
    int place, for_place;
    enum backup_form form;
};

/* Copies first, by step, then by place; then what may be forgotten. Returns how many; caller frees *out. */
int due_make(const struct rules *r, const struct due_state *st, struct due_action **out);

#endif
