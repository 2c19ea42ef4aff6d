/*
 * export-hf - convert a checkpoint for Hugging Face Transformers, and back
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/export-hf/export.h"

int main(int argc, char **argv)
{
    struct export_job job = { .convert.request.dtype = DTYPE_N, .hf = { .arch = -1, .q.max_shard_bytes = 5000000000u },
                              .target.q.step = -1 };
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "export-hf");
    rc = export_job_parse(&job, argc, argv);
    if (rc == 0)
        rc = cli_done(cli, job.import ? job_import(&job) : job_export(&job));
    else
        rc = EXIT_USAGE;
    strbuf_free(&job.shape);
    json_decref(job.config);
    json_decref(job.config_file);
    return rc;
}
