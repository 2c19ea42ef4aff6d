/*
 * reshape - convert a training checkpoint for another number of GPUs
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/reshape/reshape.h"

int main(int argc, char **argv)
{
    struct reshape_job job = { .argv = argv, .target.q.step = -1 };
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "reshape");
    rc = reshape_job_parse(&job, argc, argv);
    if (rc == 0 && job.to >= RESHAPE_TO_UNIVERSAL) {
        reshape_job_exec_tool(&job, argv);
        rc = EXIT_FAILURE;
    } else if (rc == 0)
        rc = cli_done(cli, reshape_job_run(&job));
    else
        rc = EXIT_USAGE;
    strbuf_free(&job.shape);
    return rc;
}
