/*
 * ds2universal - a sharded checkpoint as one tensor per parameter
 *
 * Drop-in for DeepSpeed's and bigscience's ds_to_universal.py: their options are accepted.
 */
#include "tools/ds2universal/ds2universal.h"

static const char help[] =
    "Usage: ds2universal [options] IN OUT\n"
    "       ds2universal --input_folder IN --output_folder OUT [options]\n"
    "Convert a Megatron-DeepSpeed checkpoint to the universal form: every parameter and\n"
    "optimizer state as one tensor. IN is a tag folder, a folder with 'latest', or a tar of\n"
    "one; OUT is the folder to make. Memory is fixed, every byte read is CRC-checked, and a\n"
    "run that is killed leaves no OUT.\n"
    "\nOptions:\n"
    "      --format FORM      pt (default): zero/PARAMETER/STATE.pt, for DeepSpeed to load\n"
    "                         hdf5: one index.h5 with a dataset for each tensor\n"
    "                         virtual: an index.h5 that points into IN and copies nothing\n"
    "      --split            hdf5: one file a parameter\n"
    "      --vocab HOW        keep (default) or strip the padding rows of the vocabulary\n"
    CLI_HELP_CONVERT
    CLI_HELP_WRITE("average")
    CLI_HELP
    "\nThe reference's options: --num_extract_workers and --num_merge_workers set --threads;\n"
    "--keep_temp_folder, --no_strict, --inject_missing_state, --target_tp, --target_pp and\n"
    "--for_release have nothing to do here and are accepted.\n"
    "\nExit status: 0 done, 1 IN is damaged or the work failed (no OUT), 2 wrong usage.\n"
    "Example: ds2universal ckpt/global_step95000 ckpt/global_step95000_universal\n";

int main(int argc, char **argv)
{
    struct job job = { .cli.replicas = REPLICAS_AVERAGE };
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "ds2universal");
    rc = job_parse(&job, argc, argv);
    if (rc == JOB_HELP)
        return cli_help(help);
    if (rc < 0)
        return EXIT_USAGE;
    return cli_done(cli, job_run(&job));
}
