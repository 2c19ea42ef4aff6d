/*
 * run_dcp.c - folders of torch.distributed.checkpoint for another number of ranks
 */
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/dcp/dcp_sink.h"
#include "tools/reshape/reshape.h"

/* Anything but the number of ranks. */
static bool asks_too_much(const struct reshape_job *j)
{
    const struct ds_request *q = &j->target.q;

    return q->topo.tp || q->topo.pp || q->topo.dp || q->method || q->stages || q->balance_given || q->vocab ||
           q->n_groups || q->n_set || q->no_optimizer || q->zero_moments || q->step >= 0 || j->like ||
           j->cli.certificate;
}

int reshape_dcp(struct reshape_job *j, struct source *s, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out };
    char *what;
    int rc;

    if (s->kind != LAYOUT_DCP || (j->to && j->to != RESHAPE_TO_DCP))
        err_usage(e, "%s: a %s checkpoint; torch.distributed's is made of one of its own, and becomes no other",
                  s->path, layout_name(s->kind));
    else if (asks_too_much(j))
        err_usage(e, "%s: of torch.distributed's checkpoints the number of ranks can be changed (--ranks); another "
                  "option given is for checkpoints of DeepSpeed", s->path);
    else if (j->ranks == 0)
        err_usage(e, "%s: for how many ranks? --ranks says it", s->path);
    if (e->kind != ERR_NONE)
        return -1;
    what = str_fmt("dcp, %d ranks, %d parameters, %d entries", j->ranks, s->n_params, s->dcp->n);
    c.what = what;
    c.facts = json_pack("{s:i}", "ranks", j->ranks);
    rc = reshape_write(j, &c, dcp_sink(&so, j->ranks), e);
    json_decref(c.facts);
    free(what);
    return rc;
}
