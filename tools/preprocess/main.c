/*
 * preprocess - convert text to the token files that Megatron trains on
 *
 * Drop-in replacement for Megatron's tools/preprocess_data.py: it accepts the same options.
 */
#include "tools/preprocess/preprocess.h"

int main(int argc, char **argv)
{
    struct preprocess_job job = {0};
    int rc;

    cli_start(&job.cli, argv, "preprocess");
    /* Share the work with other tasks of a launcher only if --part auto requests it. */
    job.cli.part = 0;
    job.cli.n_parts = 1;
    rc = preprocess_job_parse(&job, argc, argv);
    if (rc < 0)
        rc = EXIT_USAGE;
    else
        rc = cli_done(&job.cli, job.decode ? job_decode(&job) : job.cli.n_parts > 1 ? job_run_part(&job)
                                                                                    : preprocess_job_run(&job));
    preprocess_job_free(&job);
    return rc;
}
