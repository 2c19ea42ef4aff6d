/*
 * survey.h - a run, its rules and their places: what there is, and what the schedule makes of it
 */
#ifndef SHARDKIT_CKPT_BACKUP_SURVEY_H
#define SHARDKIT_CKPT_BACKUP_SURVEY_H

#include "tools/ckpt-backup/backup.h"
#include "tools/ckpt-backup/rules/due.h"

struct survey {
    const char *run;
    struct rules rules;
    int64_t *step;              /* the run's, ascending */
    int n_steps, cap_steps;
    char **gone;                /* folders that a killed run was removing */
    int n_gone, cap_gone;
    int64_t latest;
    struct place **place;       /* [rules.n_places]; NULL: it does not answer */
    struct place_receipts *receipts;
    struct due_place *held;
    struct due_action *action;
    int n_actions;
    bool incomplete;            /* a place does not answer, or a receipt in it is damaged: said on stderr */
};

/*
 * Read the rules, look at the run's folder and at each place (`lock`: nobody else changes them meanwhile), and make the
 * schedule. A place that does not answer is said on stderr; the others count.
 */
MUST_CHECK int survey_open(struct survey *s, struct backup *b, bool lock, struct err *e);
void survey_close(struct survey *s);
/* A warning where the run has newer steps than the one that `latest` names. */
void survey_warn_newer(const struct survey *s, const struct backup *b);
/*
 * Before a step of the run is removed: time has passed since survey_open(). ERR_DATA when `latest` names it now, or it
 * was saved anew, so that a place that held it no longer does.
 */
MUST_CHECK int survey_check_step(const struct survey *s, int64_t step, struct err *e);
/* The tag folder of a step in the run. Caller frees. */
char *survey_tag_path(const struct survey *s, int64_t step);
/* The place's path, or the run's. */
const char *survey_where(const struct survey *s, int place);
/* The receipt of a step in a place in that form; NULL: none. */
const struct receipt *survey_receipt(const struct survey *s, int place, int64_t step, enum backup_form form);

#endif
