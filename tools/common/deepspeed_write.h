/*
 * deepspeed_write.h - a sharded checkpoint is made, as reshape, merge-tp and the import do it
 *
 * What these tools do once they know their target: print the plan, or convert, prove and tell.
 */
#ifndef SHARDKIT_COMMON_DEEPSPEED_WRITE_H
#define SHARDKIT_COMMON_DEEPSPEED_WRITE_H

#include "libcommon/check/repair.h"
#include "libcommon/cli/cli.h"
#include "libcommon/convert/convert.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"

struct ds_write {
    struct cli *cli;
    struct source *src;
    const struct ds_target *target;
    const char *out;
    const char *shape;                  /* the options that shape the output, as text */
    const struct repair *repaired;      /* what was repaired in the source beforehand; NULL: nothing */
};

/* Refuse (ERR_USAGE) a certificate's path that is taken, unless --force or --resume are given. */
MUST_CHECK int ds_write_check(const struct ds_write *w, struct err *e);
/* Convert; the certificate is proved before OUT gets its name, and written after. */
MUST_CHECK int ds_write_run(const struct ds_write *w, struct convert_result *r, struct err *e);
/*
 * Instead: print what it would take. `more`: keys to add to the object of --json, whose
 * reference is taken, or NULL. EXIT_OK, EXIT_BAD where the disk has no room, or -1.
 */
MUST_CHECK int ds_write_preview(const struct ds_write *w, const struct report *notes, json_t *more, struct err *e);
/* What became of it: a line on stderr, or an object on stdout with the keys of `more` at its end. */
void ds_write_tell_result(const struct ds_write *w, const struct convert_result *r, json_t *more);

#endif
