/*
 * write.c - what every form is written with: the plan printed, or the sink run and its result told
 */
#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

int reshape_write(struct reshape_job *j, const struct convert_cli_job *c, struct sink *k, struct err *e)
{
    struct convert_opts o = convert_cli_opts(&j->cli, j->out, j->shape.buf);
    struct convert_result res;
    int rc;

    if (j->cli.dry_run)
        return convert_cli_plan(c, k, e);
    o.move_latest = !j->cli.set_latest ? NULL : j->pointer ? j->pointer : "latest";
    rc = convert_run(c->src, k, &o, &res, e);
    if (rc == 0)
        convert_cli_told(c, &res);
    return rc;
}
