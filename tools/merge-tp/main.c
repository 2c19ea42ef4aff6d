/*
 * merge-tp - join the tensor-parallel ranks of a checkpoint after checking that their copies agree
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/merge-tp/merge_tp.h"

int main(int argc, char **argv)
{
    struct merge_job job = {0};
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "merge-tp");
    rc = merge_job_parse(&job, argc, argv);
    if (rc == 0)
        rc = cli_done(cli, merge_job_run(&job));
    else
        rc = EXIT_USAGE;
    strbuf_free(&job.shape);
    strbuf_free(&job.log);
    return rc;
}
