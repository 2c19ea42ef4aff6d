/*
 * rules.h - a rules file: which steps a run's folder and its backup places keep
 *
 * One rule a line, in the words of restic where it has them; '#' begins a comment. Rules before the first `place` are
 * about the run's own folder, those behind a `place` about that one:
 *
 *     keep-last 20                    the newest 20 steps stay
 *     keep-every 1000                 so do those that 1000 divides,
 *     keep 31200,31259                and these
 *     place /store/run                a folder, relative to that of the rules file, or REMOTE:PATH of rclone
 *     full-every 1000                 is given each of these steps whole,
 *     full 95000                      and this one
 *     weights-every 3000              without the optimizer, where it is not given whole
 *     weights 4500
 *     tar                             what is whole is one .tar a step
 *     pack                            or packed, which is not beside tar
 *     keep 31200,31259                given whole, and stays
 *
 * A folder without keep-last and keep-every keeps all.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RULES_H
#define SHARDKIT_CKPT_BACKUP_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* In which form a step lies in a place. */
enum backup_form { FORM_WHOLE, FORM_TAR, FORM_WEIGHTS, FORM_PACK, FORM_N };

/* Steps: multiples of a number, and some by name. */
struct rules_pick {
    int64_t every;              /* 0: none */
    int64_t *step;
    int n, cap;
};

struct rules_keep {
    bool given;                 /* keep-last or keep-every; false: everything stays */
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
    struct rules_keep keep;     /* of the run's own folder */
    struct rules_place *place;
    int n_places, cap_places;
};

/* ERR_SYS; ERR_USAGE with file and line for what is no rule. */
MUST_CHECK int rules_read(struct rules *r, const char *path, struct err *e);
void rules_free(struct rules *r);
/* Has a place's path the form REMOTE:PATH? "./a:b" is a folder. */
bool rules_is_remote(const char *path);
bool rules_picks(const struct rules_pick *p, int64_t step);

#endif
