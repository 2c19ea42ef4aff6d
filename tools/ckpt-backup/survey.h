/*
 * survey.h - a run, its rules and its places: the checkpoints that exist, and the schedule made from them
 */
#ifndef SHARDKIT_CKPT_BACKUP_SURVEY_H
#define SHARDKIT_CKPT_BACKUP_SURVEY_H

#include "tools/ckpt-backup/backup.h"
#include "tools/ckpt-backup/rules/due.h"

struct survey {
    const char *run;
    struct rules rules;
    int64_t *step;              /* steps of the run, ascending */
    int n_steps, cap_steps;
    char **gone;                /* folders that a killed run was removing */
    int n_gone, cap_gone;
    int64_t latest;
    struct place **place;       /* [rules.n_places]; NULL if the place cannot be reached */
    struct place_receipts *receipts;
    struct due_place *held;
    struct due_action *action;
    int n_actions;
    /* true if a place cannot be reached, or a receipt in it is damaged; the error has been printed on stderr */
    bool incomplete;
};

/*
 * Read the rules, inspect the run's folder and each place, and make the schedule. With `lock`, each place is locked
 * against other writers until survey_close(). If a place cannot be reached, prints an error on stderr and continues
 * with the others.
 */
MUST_CHECK int survey_open(struct survey *s, struct backup *b, bool lock, struct err *e);
void survey_close(struct survey *s);
/* Warn if the run has steps newer than the one that `latest` names. */
void survey_warn_newer(const struct survey *s, const struct backup *b);
/*
 * Check a step once more just before it is removed from the run, because time has passed since survey_open(). Returns
 * -1 with ERR_DATA if `latest` names this step now or names none, or if the step was saved again, so that a place no
 * longer holds a copy of it.
 */
MUST_CHECK int survey_check_step(const struct survey *s, int64_t step, struct err *e);
/* Return the path of a step's tag folder in the run. Caller frees. */
char *survey_tag_path(const struct survey *s, int64_t step);
/* Return the path of the place, or of the run if `place` is DUE_RUN. */
const char *survey_where(const struct survey *s, int place);
/* Return the receipt of the backup of `step` in a place, in that form, or NULL if there is none. */
const struct receipt *survey_receipt(const struct survey *s, int place, int64_t step, enum backup_form form);

#endif
