/*
 * convert_job.h - the driver of the converters
 *
 *   open IN ──► check ──► prepare ──► describe as the layout of OUT ──► write, or print the plan ──► print the result
 *
 * reshape, merge-tp, ds2universal and export-hf are option tables over it. A tool fills the job from its command line.
 * It does not know what a layout needs: layout/layout_write.h does.
 */
#ifndef SHARDKIT_COMMON_CONVERT_JOB_H
#define SHARDKIT_COMMON_CONVERT_JOB_H

#include <jansson.h>

#include "libcommon/check/repair.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/cli/cli.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"
#include "tools/common/convert_cli.h"

/* A step of prepare() ended the job: its output is complete, and convert_job.status is the exit status. */
enum { CONVERT_JOB_DONE = 1 };

struct convert_job {
    struct cli *cli;
    const char *in, *out;
    const char *shape;                  /* the options that affect the output, as text; --resume needs the same text */
    struct source_opts open;
    const struct layout *to;            /* the layout of OUT; NULL: layout_of_result() */
    struct write_request request;       /* the members of the options that all converters have are filled by the job */
    bool set_pointer;                   /* change the pointer file without --set-latest */
    bool compares_copies;               /* prepare() handles copies that disagree, whatever --replicas is */
    bool listed_only;                   /* check only that the files of the manifest exist */

    /* Steps of a tool, called with ctx; NULL: none. */
    void *ctx;
    /* Open IN, in place of source_open(). Findings of the check go to *found, others to `notes`. */
    struct source *(*open_input)(void *ctx, struct report **found, struct report *notes, struct err *e);
    /* Inspect or change the source before it is described. Returns 0, CONVERT_JOB_DONE, or -1 with *e. */
    int (*prepare)(void *ctx, struct source *s, struct err *e);
    /* Return more keys for --json. */
    json_t *(*more_facts)(void *ctx);

    const struct repair *repaired;      /* for the certificate: the repair of the source; NULL: none */
    const struct strbuf *repair_log;    /* its log, written next to the files; NULL: none */
    int status;                         /* for CONVERT_JOB_DONE */
    struct convert_result result;       /* filled by a conversion; all 0 after a dry run */
};

/* Convert, or print the plan with --dry-run. Prints the result, or the error. Returns the exit status. */
int convert_job_run(struct convert_job *j);

#endif
