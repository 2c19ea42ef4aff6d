/* cmd_vocab.c - the command vocab: change the number of rows of the embedding and of the output head */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "tools/ckpt-edit/ckptedit.h"

/* Parse the value of --init: "mean", "zero" or "normal:0.02". */
static int read_init(const char *text, struct edit_rows *q, struct err *e)
{
    const char *number = text && str_starts(text, "normal:") ? text + strlen("normal:") : NULL;
    char *end = NULL;

    if (!text || strcmp(text, "mean") == 0) {
        q->init = EDIT_INIT_MEAN;
        return 0;
    }
    if (strcmp(text, "zero") == 0) {
        q->init = EDIT_INIT_ZERO;
        return 0;
    }
    q->init = EDIT_INIT_NORMAL;
    q->std = number ? strtod(number, &end) : -1;
    if (number && *number && !*end && isfinite(q->std) && q->std >= 0)
        return 0;
    err_usage(e, "--init %s: the value must be mean, zero or normal:STD", text);
    return -1;
}

/* Allocate a spool file for the new rows. Does nothing if there are no new rows, or if nothing will be written. */
static int open_spool(const struct ckptedit *j, struct source *s, struct edit_rows *q, uint64_t bytes, struct err *e)
{
    if (bytes == 0 || j->cli.dry_run)
        return 0;
    q->fd = ckptedit_spool(j, bytes, e);
    if (q->fd < 0)
        return -1;
    q->file = files_add_fd(source_files(s), q->fd, bytes, "new rows");
    return 0;
}

int change_vocab(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_rows q = { .tokens = j->tokens, .rows = j->tokens, .fd = -1, .file = -1, .zeros = -1 };
    struct report *notes;
    int64_t bytes;
    int rc;

    if (j->tokens < 1 || j->tokens > INT32_MAX) {        /* with more rows, the number of bytes might not fit in 64
                                                          * bits */
        err_usage(e, "vocab needs --tokens N, with N from 1 to %d", INT32_MAX);
        return -1;
    }
    if (read_init(j->init, &q, e) < 0)
        return -1;
    bytes = edit_vocab_bytes(x, &q, e);
    if (bytes < 0 || open_spool(j, s, &q, (uint64_t)bytes, e) < 0)
        return -1;
    q.notes = notes = report_new();
    rc = edit_vocab(x, &q, notes, e);
    for (int i = 0; i < report_n(notes); i++)
        if (strcmp(report_get(notes, i)->code, EDIT_OTHER_DIMENSION) == 0)
            cli_info(&j->cli, "%s", report_get(notes, i)->text);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}
