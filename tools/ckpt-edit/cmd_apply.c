/* cmd_apply.c - the command apply: make the result of a patch that ckpt-inspect diff has written, from its base */
#include "libcommon/base/report.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/compute/edit_delta.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/common/convert_cli.h"

/* Give the counters of the run the values of the result, if the result has counters and they differ. */
static int set_result_counters(struct ckptedit *j, const struct source *s, struct edit *x, const struct delta_side *to,
                               struct err *e)
{
    const struct run_state *run = source_run(s);
    bool found[TOKENS + 1] = {0};

    if (to->iteration < 0 || run->iteration < 0 || to->iteration == run->iteration)
        return 0;
    j->step = to->iteration;
    j->samples = run->consumed_samples >= 0 ? to->samples : -1;
    j->tokens = run->consumed_tokens >= 0 ? to->tokens : -1;
    return retag_counters(j, s, x, found, e);
}

int change_apply(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct report *values = report_new();
    struct edit_delta_opts o = { .threads = j->cli.threads, .stopped = cli_stopped, .fd = -1,
                                 .notes = values };
    struct delta *d = delta_open(j->arg[0], e);
    struct edit_delta *k = d ? edit_delta_open(s, d, e) : NULL;
    int rc = k ? 0 : -1;

    if (rc == 0 && !j->cli.dry_run && edit_delta_changed(k) > 0) {
        o.fd = ckptedit_spool(j, edit_delta_bytes(k), e);
        rc = o.fd < 0 ? -1 : 0;
    }
    if (rc == 0)
        rc = edit_delta_apply(x, k, &o, e);
    if (rc == 0)
        rc = set_result_counters(j, s, x, &delta_index(d)->result, e);
    if (rc == 0)
        cli_info(&j->cli, "%d tensors get the values of %s", edit_delta_changed(k), delta_index(d)->result.name);
    cli_warn_findings(&j->cli, values);
    edit_delta_free(k);
    delta_close(d);
    report_free(values);
    return rc;
}
