/*
 * run_zero.c - tensor ranks of ZeRO without the pipeline engine (AutoTP) become one
 */
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/zero/zero_target.h"
#include "tools/merge-tp/merge.h"

int merge_zero_check(const struct merge_job *j, const struct source *s, struct err *e)
{
    if (s->topo.tp < 2)
        err_usage(e, "%s: files of one tensor rank: there is nothing to merge; reshape --target-dp and --to change "
                  "their ranks and stage", s->path);
    else if (j->repair || j->target_tp > 1)
        err_usage(e, "%s: of ZeRO without pipeline files of one tensor rank are written: %s does not go with it",
                  s->path, j->repair ? "--repair, which keeps them," : "--target-tp");
    else if (j->cli.certificate)
        err_usage(e, "%s: --certificate is for checkpoints of the pipeline engine", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

static int write_target(struct merge_job *j, struct source *s, const struct zero_target *t, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    char *what = str_fmt("ZeRO-%d, %d ranks, %d parameters", t->shape.stage, t->shape.world, s->n_params);
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out, .what = what, .shape = j->shape.buf };
    int rc;

    c.facts = merge_json(j);
    json_object_set_new(c.facts, "zero_stage", json_integer(t->shape.stage));
    json_object_set_new(c.facts, "ranks", json_integer(t->shape.world));
    rc = convert_cli_write(&c, zero_sink(&so, t), e);
    json_decref(c.facts);
    free(what);
    if (rc == EXIT_OK && j->repaired.n && !j->cli.json && !j->cli.dry_run)
        cli_say(&j->cli, "%d parameter%s whose copies disagreed settled", j->repaired.n_params,
                j->repaired.n_params == 1 ? "" : "s");
    return rc;
}

int merge_zero(struct merge_job *j, struct source *s, struct err *e)
{
    const struct zero_request q = { .weights_only = j->weights_only };
    struct report *notes = report_new();
    struct zero_target *t = merge_settle(j, s, e) == 0 ? zero_target_new(s, &q, notes, e) : NULL;
    int rc = -1;

    if (t) {
        cli_warn_findings(&j->cli, notes);
        rc = write_target(j, s, t, e);
    }
    zero_target_free(t);
    report_free(notes);
    return rc;
}
