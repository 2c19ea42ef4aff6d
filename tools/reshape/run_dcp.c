/*
 * run_dcp.c - folders of torch.distributed.checkpoint for another number of ranks
 */
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/convert/rehearsal.h"
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

static int print_plan(struct reshape_job *j, struct source *s, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct sink *k = dcp_sink(&so, j->ranks);
    struct rehearsal r;
    char a[16], b[16];
    int rc = rehearsal_run(s, k, j->out, &r, e);

    if (rc == 0 && j->cli.json)
        cli_json(json_pack("{s:s, s:o, s:o, s:i, s:b, s:i, s:I, s:I}", "tool", j->cli.tool, "input",
                           text_json(s->path), "output", text_json(j->out), "ranks", j->ranks, "dry_run", 1, "files",
                           r.files, "need_bytes", (json_int_t)r.need_bytes, "free_bytes", (json_int_t)r.free_bytes));
    else if (rc == 0)
        printf("%s -> %s: dcp, %d ranks, %d files, %s to write, %s free%s\n", s->path, j->out, j->ranks, r.files,
               bytes_text(r.need_bytes, a), bytes_text(r.free_bytes, b),
               r.free_bytes < r.need_bytes ? ": not enough" : "");
    k->ops->close(k);
    return rc < 0 ? -1 : r.free_bytes < r.need_bytes ? EXIT_BAD : EXIT_OK;
}

static void tell(struct reshape_job *j, const struct source *s, const struct convert_result *res)
{
    char *what;
    json_t *o;

    if (j->cli.json) {
        o = json_pack("{s:s, s:o, s:o, s:i}", "tool", j->cli.tool, "input", text_json(s->path), "output",
                      text_json(j->out), "ranks", j->ranks);
        convert_cli_add(o, res);
        cli_json(o);
        return;
    }
    what = str_fmt("%d ranks, %d parameters, %d values", j->ranks, s->n_params, s->n_values);
    convert_cli_say(&j->cli, j->out, what, res);
    free(what);
}

int reshape_dcp(struct reshape_job *j, struct source *s, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_opts o = convert_cli_opts(&j->cli, j->out, j->shape.buf);
    struct convert_result res;
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
    if (j->cli.dry_run)
        return print_plan(j, s, e);
    o.move_latest = j->cli.set_latest ? "latest" : NULL;
    rc = convert_run(s, dcp_sink(&so, j->ranks), &o, &res, e);
    if (rc == 0)
        tell(j, s, &res);
    return rc;
}
