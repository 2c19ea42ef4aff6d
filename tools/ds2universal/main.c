/*
 * ds2universal - convert a sharded checkpoint to one tensor per parameter
 *
 * Drop-in replacement for DeepSpeed's and bigscience's ds_to_universal.py: their options are accepted.
 */
#include "libcommon/ckpt/source_parts.h"
#include "tools/ds2universal/ds2universal.h"

int main(int argc, char **argv)
{
    struct ds2universal_job job = {0};
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "ds2universal");
    rc = ds2universal_job_parse(&job, argc, argv);
    if (rc < 0)
        return EXIT_USAGE;
    return cli_done(cli, ds2universal_job_run(&job));
}
