/* survey.h - the checkpoints that exist in a run and in its places, and the schedule that follows from the rules */
#ifndef SHARDKIT_CKPT_BACKUP_SURVEY_H
#define SHARDKIT_CKPT_BACKUP_SURVEY_H

#include "tools/ckpt-backup/backup.h"
#include "tools/ckpt-backup/rules/due.h"

#define STEP_GONE ".gone.part"   /* the end of the name of a step that is being removed */

struct survey {
    const char *run;
    struct rules rules;
    int64_t *step;              /* steps in the run's folder, ascending */
    char **tag;                 /* [n_steps]: the names of their folders */
    int n_steps;
    char *series;               /* the name of one step of the run; NULL if the run has no steps and no pointer file */
    char **gone;                /* paths of the folders that a killed process had begun to remove */
    int n_gone, cap_gone;
    bool has_latest;            /* the run has a file `latest` */
    int64_t latest;             /* number of the newest complete step (content_latest_tag()), or -1 */
    struct place **place;       /* [rules.n_places]; NULL if the place cannot be reached */
    struct place_receipts *receipts;
    struct due_place *held;
    struct due_action *action;
    int n_actions;
    /* a backup folder or remote cannot be reached, or a receipt (the record of a backup) in it is damaged; the error
     * has been printed on stderr */
    bool incomplete;
};

/*
 * Read the rules, inspect the run's folder and each place, and make the schedule. If `lock` is true, each place is
 * locked until survey_close(), so that no other process changes it. If a place cannot be reached, an error is printed
 * on stderr, and the other places are still inspected.
 */
MUST_CHECK int survey_open(struct survey *s, struct backup *b, bool lock, struct err *e);
void survey_close(struct survey *s);
/* Print a warning if the run has steps that are newer than the one that the file `latest` names. */
void survey_warn_newer(const struct survey *s, const struct backup *b);
/*
 * Check a step again just before it is removed from the run, because time has passed since survey_open(). Returns -1
 * with ERR_DATA if the file `latest` now names this step or no step, or if the step was saved again, so that a place no
 * longer has a copy of it.
 */
MUST_CHECK int survey_check_step(const struct survey *s, int64_t step, struct err *e);
/*
 * Return the name of the step's folder: in the run, or else in a place, or else global_stepN. The caller
 * frees it.
 */
char *survey_tag(const struct survey *s, int64_t step);
/* Return the path of the step's folder in the run. The caller frees it. */
char *survey_tag_path(const struct survey *s, int64_t step);
/* Return the path of the place, or, if `place` is DUE_RUN, of the run's folder. */
const char *survey_where(const struct survey *s, int place);
/* Return the receipt of the backup of `step` in this place and form, or NULL if there is none. */
struct receipt *survey_receipt(const struct survey *s, int place, int64_t step, enum backup_form form);

#endif
