/* checkpoint_check.c - decide whether training may continue from a checkpoint, given the findings about it */
#include <stdlib.h>
#include <string.h>

#include "libcommon/check/mismatch.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

/*
 * Returns the end of the error message for a finding. It names the option that accepts the finding, so that the
 * checkpoint can be loaded. Returns "" if there is no such option.
 */
static const char *way_on(const struct finding *f)
{
    if (mismatch_is(f) && strncmp(f->code, "file_", 5) == 0)
        return "; --accept-mismatch loads it despite this";
    return mismatch_is(f) ? "; --accept-mismatch loads it despite this (with --replicas first if copies differ)" : "";
}

int checkpoint_check_findings(const struct report *r, const char *path, struct report *notes, struct err *e)
{
    int n_more = report_count(r, SEV_ERROR) - 1;

    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        if (f->severity == SEV_ERROR) {
            char *text = finding_text(f);

            err_data(e, path, ERR_NO_BYTE, "cannot be trusted: %s%s; ckpt-inspect verify lists every error%s", text,
                     n_more ? " (and more)" : "",
                     way_on(f));
            free(text);
            return -1;
        }
        if (f->severity == SEV_WARNING)
            report_add(notes, SEV_WARNING, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    return 0;
}

int checkpoint_check_mismatch(const struct checkpoint *c, struct report *notes, struct err *e)
{
    const struct mismatch_opts o = { .accept = c->accept_mismatch, .drift = true };
    struct report *found = report_new();
    int rc = verify_listed(c->src, found, e);

    mismatch_sample(c->src, &o, found);
    if (rc == 0)
        rc = checkpoint_check_findings(found, source_path(c->src), notes, e);
    if (rc == 0)
        rc = gpt_names_check_head(c->src, &c->names, e);
    report_free(found);
    return rc;
}
