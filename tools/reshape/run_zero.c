/*
 * run_zero.c - checkpoints of ZeRO without the pipeline engine: another number of ranks, another stage
 */
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

/* Options that say something of tensor or pipeline ranks, or of what only their files hold. */
static bool asks_too_much(const struct reshape_job *j)
{
    const struct ds_request *q = &j->target.q;

    return q->topo.tp > 1 || q->topo.pp > 1 || q->method || q->stages || q->balance_given || q->vocab || q->n_groups ||
           q->n_set || q->no_optimizer || q->zero_moments || q->step >= 0 || j->like || j->cli.certificate;
}

static int write_target(struct reshape_job *j, struct source *s, const struct zero_target *t, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out };
    char *what = str_fmt("ZeRO-%d, %d ranks, %d parameters", t->shape.stage, t->shape.world, s->n_params);
    int rc;

    c.what = what;
    c.facts = json_pack("{s:i, s:i}", "zero_stage", t->shape.stage, "ranks", t->shape.world);
    rc = reshape_write(j, &c, zero_sink(&so, t), e);
    json_decref(c.facts);
    free(what);
    return rc;
}

int reshape_zero(struct reshape_job *j, struct source *s, struct err *e)
{
    const struct zero_request q = { .stage = j->to, .world = j->target.q.topo.dp };
    struct report *notes = report_new();
    struct zero_target *t = NULL;
    int rc = -1;

    if (asks_too_much(j))
        err_usage(e, "%s: of ZeRO without pipeline the ranks (--target-dp) and the stage (--to) can be changed; "
                  "another option given is for checkpoints of the pipeline engine", s->path);
    else
        t = zero_target_new(s, &q, notes, e);
    if (t) {
        cli_warn_findings(&j->cli, notes);
        rc = write_target(j, s, t, e);
    }
    zero_target_free(t);
    report_free(notes);
    return rc;
}
