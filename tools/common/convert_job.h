/*
 * convert_job.h - do all steps of a conversion, for all converters
 *
 *   open IN ──► check ──► prepare ──► describe as the layout of OUT ──► write, or print the plan ──► print the result
 *
 * reshape, merge-tp, ds2universal and export-hf only have tables of options; each fills in a struct convert_job from
 * its command line. What a layout needs is decided by layout/layout_write.h, not by the tools.
 */
#ifndef SHARDKIT_COMMON_CONVERT_JOB_H
#define SHARDKIT_COMMON_CONVERT_JOB_H

#include <jansson.h>

#include "libcommon/check/repair.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/cli/cli.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"
#include "tools/common/convert_cli.h"

/*
 * Result of prepare(): the job has ended, because the tool has already printed its output. convert_job.status is the
 * exit status.
 */
enum { CONVERT_JOB_DONE = 1 };

struct convert_job {
    struct cli *cli;
    const char *in, *out;
    const char *shape;                  /* text of the options that affect the output; --resume requires the same
                                         * text */
    struct source_opts open;
    const struct layout *to;            /* layout of OUT; NULL: layout_of_result() selects it */
    struct write_request request;       /* members that follow from the options of all converters are filled in by
                                         * convert_job_run() */
    bool set_pointer;                   /* write the name of OUT to the file that names the latest checkpoint, even
                                         * without --set-latest */
    bool compares_copies;               /* prepare() handles copies that disagree, regardless of --replicas */
    bool listed_only;                   /* check only that the files in the manifest exist */

    /* Functions of the tool, called with ctx. NULL: not needed. */
    void *ctx;
    /*
     * Open IN; used instead of source_open(). Findings that must be checked are added to *found, all others to `notes`.
     */
    struct source *(*open_input)(void *ctx, struct report **found, struct report *notes, struct err *e);
    /*
     * Inspect or change the source before the target is made from it. Returns 0, CONVERT_JOB_DONE, or -1 with *e
     * filled.
     */
    int (*prepare)(void *ctx, struct source *s, struct err *e);
    /* Return an object with additional keys for --json. */
    json_t *(*more_facts)(void *ctx);

    const struct repair *repaired;      /* for the certificate: describes the repair of the source; NULL: there was
                                         * none */
    const struct strbuf *repair_log;    /* journal of the repair, which is written to the output; NULL: none */
    int status;                         /* exit status, if prepare() returns CONVERT_JOB_DONE */
    struct convert_result result;       /* result of the conversion; all members are 0 after --dry-run */
};

/* Do the conversion, or print the plan with --dry-run. Prints the result or the error. Returns the exit status. */
int convert_job_run(struct convert_job *j);

#endif
