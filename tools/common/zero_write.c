/*
 * zero_write.c - describe a target of ZeRO, and run its sink
 */
#include "tools/common/zero_write.h"
#include "libcommon/ckpt/checkpoint.h"

#include <stdlib.h>

int zero_write(struct convert_cli_job *j, const struct zero_target *t, const struct report *notes, struct err *e)
{
    struct sink_opts so = convert_cli_sink(j->cli, j->out);
    char *what = str_fmt("ZeRO-%d, %d ranks, %d parameters", t->shape.stage, t->shape.world, j->src->n_params);
    int rc;

    so.repair_log = j->repair_log;
    j->what = what;
    j->facts = j->facts ? j->facts : json_object();
    json_object_set_new(j->facts, "zero_stage", json_integer(t->shape.stage));
    json_object_set_new(j->facts, "ranks", json_integer(t->shape.world));
    cli_warn_findings(j->cli, notes);
    rc = convert_cli_write(j, zero_sink(&so, t), e);
    json_decref(j->facts);
    j->facts = NULL;
    free(what);
    return rc;
}
