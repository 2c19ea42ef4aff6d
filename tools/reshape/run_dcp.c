/*
 * run_dcp.c - folders of torch.distributed.checkpoint, of whatever has tensors with names
 */
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/dcp/dcp_sink.h"
#include "tools/reshape/reshape.h"

/* Anything but ranks; of such a folder itself all of its entries stay. */
static bool asks_too_much(const struct reshape_job *j, const struct source *s)
{
    const struct ds_request *q = &j->target.q;

    return q->topo.tp || q->topo.pp || q->topo.dp || q->method || q->stages || q->balance_given || q->vocab ||
           q->n_groups || q->n_set || (q->no_optimizer && s->kind == LAYOUT_DCP) || q->zero_moments || q->step >= 0 ||
           j->like || j->cli.certificate;
}

static int check(const struct reshape_job *j, const struct source *s, struct err *e)
{
    if (asks_too_much(j, s))
        err_usage(e, "%s: of torch.distributed's checkpoints the number of ranks can be changed (--ranks, --mesh); "
                  "another option given is for checkpoints of DeepSpeed", s->path);
    else if (j->mesh.rows == 0 && j->ranks == 0)
        err_usage(e, "%s: for how many ranks? --ranks says it, or --mesh", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

static int write_target(struct reshape_job *j, struct source *s, const struct dcp_target *t, struct err *e)
{
    const struct dcp_mesh mesh = j->mesh.rows ? j->mesh : (struct dcp_mesh){ j->ranks, 1 };
    const int ranks = mesh.rows * mesh.columns;
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out };
    char *what = str_fmt("dcp, %d ranks, %d parameters, %d entries", ranks, s->n_params, t->table.n);
    int rc;

    c.what = what;
    c.facts = json_pack("{s:i}", "ranks", ranks);
    rc = reshape_write(j, &c, dcp_sink(&so, t, mesh), e);
    json_decref(c.facts);
    free(what);
    return rc;
}

int reshape_dcp(struct reshape_job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct dcp_target *t = NULL;
    int rc = -1;

    if (check(j, s, e) == 0) {
        if (s->kind != LAYOUT_DCP)
            source_add_buffers(s);
        t = dcp_target_new(s, notes, e);
    }
    if (t) {
        cli_warn_findings(&j->cli, notes);
        rc = write_target(j, s, t, e);
    }
    dcp_target_free(t);
    report_free(notes);
    return rc;
}
