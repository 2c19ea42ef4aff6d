/*
 * deepspeed_write.h - make a sharded checkpoint, for reshape, merge-tp and the import
 *
 * These are the steps that the tools share once their target is known: print the plan, or convert, certify and print
 * the result.
 */
#ifndef SHARDKIT_COMMON_DEEPSPEED_WRITE_H
#define SHARDKIT_COMMON_DEEPSPEED_WRITE_H

#include "libcommon/check/repair.h"
#include "libcommon/cli/cli.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/write/convert.h"

struct ds_write {
    struct cli *cli;
    struct source *src;
    const struct ds_target *target;
    const char *out;
    const char *shape;                  /* the options that affect the output, as text */
    const struct repair *repaired;      /* the repair of the source that preceded the conversion; NULL: none */
    const struct strbuf *repair_log;    /* its log, written next to the files; NULL: none */
};

/* Refuse (ERR_USAGE) a certificate path that exists already, unless --force or --resume is given. */
MUST_CHECK int ds_write_check(const struct ds_write *w, struct err *e);
/* Convert. The certificate is computed before OUT is published, and written afterwards. */
MUST_CHECK int ds_write_run(const struct ds_write *w, struct convert_result *r, struct err *e);
/*
 * Print the preview instead of converting. `more`: keys to add to the object of --json, or NULL; the reference is
 * released. Returns EXIT_OK, EXIT_BAD if the disk has too little room, or -1.
 */
MUST_CHECK int ds_write_preview(const struct ds_write *w, const struct report *notes, json_t *more, struct err *e);
/* Print the result: a line on stderr, or an object on stdout with the keys of `more` at its end. Releases `more`. */
void ds_write_print_result(const struct ds_write *w, const struct convert_result *r, json_t *more);

#endif
