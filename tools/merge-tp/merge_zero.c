/*
 * merge_zero.c - merge the tensor ranks of ZeRO without the pipeline engine (AutoTP) into one
 */
#include "libcommon/ckpt/checkpoint.h"
#include "tools/common/zero_write.h"
#include "tools/merge-tp/merge_tp.h"

int merge_zero_check(const struct merge_job *j, const struct source *s, struct err *e)
{
    if (s->topo.tp < 2)
        err_usage(e, "%s: files of one tensor rank: there is nothing to merge", s->path);
    else if (j->repair || j->target_tp > 1)
        err_usage(e, "%s: of ZeRO without pipeline files of one tensor rank are written: %s does not go with it",
                  s->path, j->repair ? "--repair, which keeps them," : "--target-tp");
    else if (j->cli.certificate)
        err_usage(e, "%s: --certificate is for checkpoints of the pipeline engine", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

int merge_zero(struct merge_job *j, struct source *s, struct err *e)
{
    const struct zero_request q = { .weights_only = j->weights_only };
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out, .shape = j->shape.buf };
    struct report *notes = report_new();
    struct zero_target *t = merge_resolve_replicas(j, s, e) == 0 ? zero_target_new(s, &q, notes, e) : NULL;
    int rc = -1;

    if (t) {
        c.repair_log = j->replicas.in_sync ? NULL : &j->log;
        c.facts = merge_json(j);
        rc = zero_write(&c, t, notes, e);
    }
    if (rc == EXIT_OK && !j->cli.dry_run)
        merge_print_repairs(j);
    zero_target_free(t);
    report_free(notes);
    return rc;
}
