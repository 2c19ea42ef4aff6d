/*
 * rules.h - a rules file, which states which steps a run's folder and its backup places keep
 *
 * Each line has one rule; '#' begins a comment. The names of rules are those of restic where restic has the same rule.
 * Rules before the first `place` apply to the run's own folder, rules after a `place` to that place:
 *
 *     keep-last 20                    the newest 20 steps stay,
 *     keep-every 1000                 also every multiple of 1000,
 *     keep 31200,31259                and these two
 *     place /store/run                a folder, relative to that of the rules file, or REMOTE:PATH of rclone
 *     full-every 1000                 receives a whole copy of each of these steps,
 *     full 95000                      and of this one
 *     weights-every 3000              a copy without the optimizer, where no whole copy is due
 *     weights 4500
 *     tar                             whole copies are one .tar per step
 *     pack                            whole copies are packed; not together with tar
 *     keep 31200,31259                receives a whole copy of these, which stay
 *
 * A folder without keep-last and keep-every keeps all steps.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RULES_H
#define SHARDKIT_CKPT_BACKUP_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/*
 * The form in which a place stores a step. FORM_ANY is a folder of any files: its bytes are copied and compared, but
 * not verified as a checkpoint.
 */
enum backup_form { FORM_WHOLE, FORM_TAR, FORM_WEIGHTS, FORM_PACK, FORM_ANY, FORM_DELTA, FORM_N };

/* A set of steps: the multiples of a number, and a list of single steps. */
struct rules_pick {
    int64_t every;              /* 0: none */
    int64_t *step;
    int n, cap;
};

struct rules_keep {
    bool given;                 /* true if keep-last or keep-every was given; false: all steps are kept */
    int64_t last;
    struct rules_pick pick;
};

struct rules_place {
    char *path;
    struct rules_pick full, weights;
    enum backup_form full_form;         /* FORM_WHOLE, FORM_TAR or FORM_PACK */
    struct rules_keep keep;
};

struct rules {
    struct rules_keep keep;     /* the rules for the run's own folder */
    struct rules_place *place;
    int n_places, cap_places;
};

/*
 * Read a rules file. Returns -1 with ERR_SYS if it cannot be read. Returns -1 with ERR_USAGE if a line is not a valid
 * rule; the message names the file and the line.
 */
MUST_CHECK int rules_read(struct rules *r, const char *path, struct err *e);
void rules_free(struct rules *r);
/* Returns true if the path of a place has the form REMOTE:PATH. It is false for "./a:b", which is a folder. */
bool rules_is_remote(const char *path);
bool rules_picks(const struct rules_pick *p, int64_t step);

#endif
