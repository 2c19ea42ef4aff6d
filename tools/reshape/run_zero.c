/*
 * run_zero.c - checkpoints of ZeRO without the pipeline engine: another number of ranks, another stage
 */
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/convert/rehearsal.h"
#include "tools/reshape/reshape.h"

/* Options that say something of tensor or pipeline ranks, or of what only their files hold. */
static bool asks_too_much(const struct reshape_job *j)
{
    const struct ds_request *q = &j->target.q;

    return q->topo.tp > 1 || q->topo.pp > 1 || q->method || q->stages || q->balance_given || q->vocab || q->n_groups ||
           q->n_set || q->no_optimizer || q->zero_moments || q->step >= 0 || j->like || j->cli.certificate;
}

static int print_plan(struct reshape_job *j, struct source *s, const struct zero_target *t, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct sink *k = zero_sink(&so, t);
    struct rehearsal r;
    char a[16], b[16];
    int rc = rehearsal_run(s, k, j->out, &r, e);

    if (rc == 0 && j->cli.json)
        cli_json(json_pack("{s:s, s:o, s:o, s:i, s:i, s:b, s:i, s:I, s:I}", "tool", j->cli.tool, "input",
                           text_json(s->path), "output", text_json(j->out), "zero_stage", t->shape.stage, "ranks",
                           t->shape.world, "dry_run", 1, "files", r.files, "need_bytes", (json_int_t)r.need_bytes,
                           "free_bytes", (json_int_t)r.free_bytes));
    else if (rc == 0)
        printf("%s -> %s: ZeRO-%d, %d ranks, %d files, %s to write, %s free%s\n", s->path, j->out, t->shape.stage,
               t->shape.world, r.files, bytes_text(r.need_bytes, a), bytes_text(r.free_bytes, b),
               r.free_bytes < r.need_bytes ? ": not enough" : "");
    k->ops->close(k);
    return rc < 0 ? -1 : r.free_bytes < r.need_bytes ? EXIT_BAD : EXIT_OK;
}

static void tell(struct reshape_job *j, const struct source *s, const struct zero_target *t,
                 const struct convert_result *res)
{
    char *what;
    json_t *o;

    if (j->cli.json) {
        o = json_pack("{s:s, s:o, s:o, s:i, s:i}", "tool", j->cli.tool, "input", text_json(s->path), "output",
                      text_json(j->out), "zero_stage", t->shape.stage, "ranks", t->shape.world);
        convert_cli_add(o, res);
        cli_json(o);
        return;
    }
    what = str_fmt("ZeRO-%d, %d ranks, %d parameters", t->shape.stage, t->shape.world, s->n_params);
    convert_cli_say(&j->cli, j->out, what, res);
    free(what);
}

static int write_target(struct reshape_job *j, struct source *s, const struct zero_target *t, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_opts o = convert_cli_opts(&j->cli, j->out, j->shape.buf);
    struct convert_result res;
    int rc;

    o.move_latest = j->cli.set_latest ? "latest" : NULL;
    rc = convert_run(s, zero_sink(&so, t), &o, &res, e);
    if (rc == 0)
        tell(j, s, t, &res);
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
        rc = j->cli.dry_run ? print_plan(j, s, t, e) : write_target(j, s, t, e);
    }
    zero_target_free(t);
    report_free(notes);
    return rc;
}
