/* ds2universal_options.c - the options of ds2universal, with our names and those of the reference implementation */
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/ds2universal/ds2universal.h"

#define FIELD(f) OPTION_FIELD(struct ds2universal_job, f)

static int parse_worker_count(void *into, const char *value, struct err *e)
{
    struct ds2universal_job *j = into;
    int64_t n;

    /*
     * Parse the number of worker processes of the reference implementation. This program uses threads; more threads
     * than cores would not be faster.
     */
    if (parse_int(value, 1, 1024, &n) < 0) {
        err_usage(e, "--num_extract_workers and --num_merge_workers: the value must be a number from 1 to 1024");
        return -1;
    }
    if (n < j->cli.threads)
        j->cli.threads = (int)n;
    return 0;
}

static const struct option_row rows[] = {
    { "format", 0, "FORM", "pt (default): one file zero/PARAMETER/STATE.pt per tensor, which DeepSpeed loads\n"
      "hdf5: one file index.h5 with one dataset per tensor\n"
      "virtual: an index.h5 that refers to the bytes in IN and copies none", .words = "pt hdf5 virtual", FIELD(form) },
    { "split", .help = "write one HDF5 file per parameter (with --format hdf5)", FIELD(convert.request.split) },
    { "vocab", 0, "HOW", "keep (default) or strip (remove) the padding rows of the vocabulary",
      .words = "keep strip", FIELD(convert.request.vocab) },
    { "strip-vocab-padding", .help = "same as --vocab strip", .kind = OPTION_VALUE,
      FIELD(convert.request.vocab), .min = VOCAB_STRIP },
    {0},
};

static const struct option_row reference_rows[] = {
    { "input-folder", 0, "IN", "same as IN", FIELD(convert.in) },
    { "output-folder", 0, "OUT", "same as OUT", FIELD(convert.out) },
    { "num-extract-workers", 0, "N", "use at most N threads (the smaller of this and --num-merge-workers)",
      .take = parse_worker_count },
    { "num-merge-workers", 0, "N", "use at most N threads (the smaller of this and --num-extract-workers)",
      .take = parse_worker_count },
    {0},
};

static const struct option_row ignored_rows[] = {
    { "keep-temp-folder", .kind = OPTION_NOTE },
    { "no-strict", .kind = OPTION_NOTE },
    { "inject-missing-state", .kind = OPTION_NOTE },
    { "for-release", .kind = OPTION_NOTE },
    { "target-tp", .arg = "T", .kind = OPTION_NOTE },
    { "target-pp", .arg = "P", .kind = OPTION_NOTE },
    {0},
};

static const struct option_row operands[] = { { "IN", FIELD(convert.in) }, { "OUT", FIELD(convert.out) }, {0} };

static const char head[] =
    "Usage: ds2universal [options] IN OUT\n"
    "       ds2universal --input_folder IN --output_folder OUT [options]\n"
    "Convert a checkpoint to the universal form, in which each parameter and each of its optimizer\n"
    "states is one tensor. IN is a checkpoint of Megatron-DeepSpeed (3D shards), of DeepSpeed\n"
    "ZeRO-1, 2 or 3, of torch.distributed (DCP: FSDP2) or of Megatron-core (torch_dist), a folder\n"
    "whose file 'latest' names one, or a tar archive of one. OUT is a new folder, which appears only\n"
    "when it is complete; with --format pt, its name is also written to the file latest_universal\n"
    "in its parent folder. The memory used is fixed, and every byte read is checked by its CRC.\n";
static const char tail[] =
    "Exit status: 0 done, 1 IN is damaged or the conversion failed (no OUT), 2 wrong usage.\n"
    "Examples:\n"
    "  ds2universal ckpt/global_step95000 ckpt/global_step95000_universal\n"
    "  ds2universal --format hdf5 ckpt one_file\n";

static int refuse_ds2universal_usage(struct ds2universal_job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

int ds2universal_job_parse(struct ds2universal_job *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, CLI_GROUPS_CONVERT(NULL, &j->cli, cli_rows_write_fail),
        { "Options of ds_to_universal", reference_rows, NULL, 0 },
        { "Accepted for existing scripts, without effect", ignored_rows, NULL, 0 }, {0},
    };
    const struct option_table table = { "ds2universal", head, tail, groups, j, .operands = operands };

    if (cli_parse(&j->cli, &table, argc, argv) < 0)
        return -1;
    if (!j->convert.in || !*j->convert.in)
        return refuse_ds2universal_usage(j, "no IN given");
    if (!j->convert.out || !*j->convert.out)
        return refuse_ds2universal_usage(j, "no OUT given");
    if (j->convert.request.split && j->form != FORM_HDF5)
        return refuse_ds2universal_usage(j, "--split needs --format hdf5");
    return 0;
}
