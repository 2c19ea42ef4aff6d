/* cmd_adapter.c - the command merge-adapter: add the updates of LoRA adapters to the weights of the base checkpoint */
#include "libcommon/base/report.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/compute/edit_adapter.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/common/convert_cli.h"

/*
 * If the checkpoint has moments, print a message: the moments are not changed and still belong to the weights before
 * the merge.
 */
static void warn_old_moments(const struct ckptedit *j, const struct source *s)
{
    if (source_has_moments(s))
        cli_info(&j->cli, "the moments of %s were kept, although its weights have changed; 'ckpt-edit zero' sets "
                          "moments to 0", source_path(s));
}

int change_merge_adapter(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct report *notes = report_new(), *values = report_new();
    const struct edit_adapter_opts o = { .n = j->n_args, .dir = j->arg, .as_peft = j->rounding == ROUNDING_PEFT,
                                         .threads = j->cli.threads, .stopped = cli_stopped, .notes = values };
    struct edit_adapters *m;
    int fd = -1, rc = -1;

    m = edit_adapters_open(s, &o, notes, e);
    cli_warn_findings(&j->cli, notes);
    if (m && (j->cli.dry_run || (fd = ckptedit_spool(j, edit_adapters_bytes(m), e)) >= 0)) {
        warn_old_moments(j, s);
        rc = edit_merge_adapters(x, s, m, fd, e);
    }
    cli_warn_findings(&j->cli, values);
    edit_adapters_free(m);
    report_free(notes);
    report_free(values);
    return rc;
}
