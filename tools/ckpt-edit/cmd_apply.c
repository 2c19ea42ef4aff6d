/* cmd_apply.c - the command apply: make the result of a patch that ckpt-inspect diff has written, from its base */
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/compute/edit_delta.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/common/convert_cli.h"

/* Warn about states of the changed parameters that are not in the patch, so that they remain those of the input. */
static void warn_kept_states(const struct ckptedit *j, const struct edit_delta *k)
{
    bool kept[STATE_N] = {0};
    struct strbuf list = {0};
    const char *next = "";

    edit_delta_kept(k, kept);
    for (int st = 0; st < STATE_N; st++)
        if (kept[st])
            strbuf_addf(&list, "%s%s", list.len ? ", " : "", state_name((enum state)st));
    if (kept[STATE_FP32])
        next = "; 'ckpt-edit drop optimizer' makes a checkpoint of weights alone, to which this patch applies";
    else if (kept[STATE_BF16])
        next = "; 'ckpt-edit cast --accept-mismatch' computes the weights from the new masters";
    if (list.len)
        cli_warn(&j->cli, "%s: the patch has no %s, so these states remain those of %s and may not match the new "
                          "values%s", j->arg[0], list.buf, j->in, next);
    strbuf_free(&list);
}

/* Give the counters of the run that are known on both sides the values of the result. */
static int set_result_counters(struct ckptedit *j, const struct source *s, struct edit *x, const struct delta_side *to,
                               struct err *e)
{
    const struct run_state *run = source_run(s);
    bool found[TOKENS + 1] = {0};

    if (to->iteration < 0 || run->iteration < 0)
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
        cli_info(&j->cli, "%d tensor%s the values of %s", edit_delta_changed(k),
                 edit_delta_changed(k) == 1 ? " gets" : "s get", delta_index(d)->result.name);
    if (rc == 0)
        warn_kept_states(j, k);
    cli_warn_findings(&j->cli, values);
    edit_delta_free(k);
    delta_close(d);
    report_free(values);
    return rc;
}
