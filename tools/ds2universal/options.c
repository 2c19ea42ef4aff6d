/*
 * options.c - what ds2universal can be asked, by our names and the reference's
 */
#include <getopt.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "tools/ds2universal/ds2universal.h"

#define FIELD(f) .field = offsetof(struct job, f)

static int take_workers(void *into, const char *value, struct err *e)
{
    struct job *j = into;
    int64_t n;

    /* The reference's worker processes; a larger number than cores gains nothing here. */
    if (parse_int(value, 1, 1024, &n) < 0) {
        err_usage(e, "--num_extract_workers, --num_merge_workers: expected a number from 1 to 1024");
        return -1;
    }
    if (n < j->cli.threads)
        j->cli.threads = (int)n;
    return 0;
}

static int take_degree(void *into, const char *value, struct err *e)
{
    int64_t ignored;

    (void)into;
    if (parse_int(value, 1, 1 << 20, &ignored) == 0)
        return 0;
    err_usage(e, "--target_tp, --target_pp: expected a number");
    return -1;
}

static const struct option_row rows[] = {
    { "format", 0, "FORM", "pt (default): zero/PARAMETER/STATE.pt, for DeepSpeed to load\n"
      "hdf5: one index.h5 with a dataset for each tensor\n"
      "virtual: an index.h5 that points into IN and copies nothing", .words = "pt hdf5 virtual", FIELD(form) },
    { "split", .help = "hdf5: one file a parameter", FIELD(split) },
    { "vocab", 0, "HOW", "keep (default) or strip the padding rows of the vocabulary",
      .words = "keep strip", FIELD(vocab) },
    {0},
};

static const struct option_row reference_rows[] = {
    { "input-folder", .arg = "IN", FIELD(in) },
    { "output-folder", .arg = "OUT", FIELD(out) },
    { "num-extract-workers", .arg = "N", .take = take_workers },
    { "num-merge-workers", .arg = "N", .take = take_workers },
    { "keep-temp-folder", .take = option_table_ignore },
    { "no-strict", .take = option_table_ignore },
    { "inject-missing-state", .take = option_table_ignore },
    { "for-release", .take = option_table_ignore },
    { "target-tp", .arg = "T", .take = take_degree },
    { "target-pp", .arg = "P", .take = take_degree },
    {0},
};

static const char head[] =
    "Usage: ds2universal [options] IN OUT\n"
    "       ds2universal --input_folder IN --output_folder OUT [options]\n"
    "Convert a Megatron-DeepSpeed checkpoint to the universal form: every parameter and\n"
    "optimizer state as one tensor. IN is a tag folder, a folder with 'latest', or a tar of\n"
    "one; OUT is the folder to make. Memory is fixed, every byte read is CRC-checked, and a\n"
    "run that is killed leaves no OUT.\n";
static const char tail[] =
    "The reference's options: --num_extract_workers and --num_merge_workers set --threads;\n"
    "--keep_temp_folder, --no_strict, --inject_missing_state, --target_tp, --target_pp and\n"
    "--for_release have nothing to do here and are accepted.\n"
    "\nExit status: 0 done, 1 IN is damaged or the work failed (no OUT), 2 wrong usage.\n"
    "Example: ds2universal ckpt/global_step95000 ckpt/global_step95000_universal\n";

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

int job_parse(struct job *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, j, 0 }, CLI_GROUPS_CONVERT(NULL, &j->cli, cli_rows_write_average),
        { NULL, reference_rows, j, 0 }, {0},
    };
    const struct option_table table = { "ds2universal", head, tail, .groups = groups };

    if (cli_parse(&j->cli, &table, argc, argv) < 0)
        return -1;
    if (!j->in && optind < argc)
        j->in = argv[optind++];
    if (!j->out && optind < argc)
        j->out = argv[optind++];
    if (!j->in || !*j->in)
        return usage(j, "no IN given");
    if (!j->out || !*j->out)
        return usage(j, "no OUT given");
    if (optind < argc)
        return usage(j, "more than IN and OUT given");
    if (j->split && j->form != FORM_HDF5)
        return usage(j, "--split goes with --format hdf5");
    return 0;
}
