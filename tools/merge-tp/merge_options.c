/*
 * merge_options.c - the options of merge-tp
 */

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/merge-tp/merge_tp.h"

#define FIELD(f) OPTION_FIELD(struct merge_job, f)

static const struct option_row rows[] = {
    { "target-tp", 0, "T", "number of tensor-parallel ranks of "
                           "OUT", OPTION_INT, FIELD(target_tp), .min = 1, .max = 65536 },
    { "check", .help = "only compare the copies, and exit with status 1 if they differ", FIELD(check) },
    { "repair", .help = "keep the number of ranks, and make the copies equal in weights, masters and both moments; "
                        "OUT/repair.jsonl lists the changes", FIELD(repair) },
    { "weights-only", .help = "omit the optimizer states: do not open, compare or write them",
      FIELD(convert.request.weights_only) },
    { "drop-optimizer", .help = "same as --weights-only", .kind = OPTION_ALIAS, .def = "weights-only" },
    { "config", 0, "FILE", "the model's config.json, or the folder that holds it; with --weights-only it replaces the "
                           "mp_rank files of IN if all are lost", FIELD(convert.request.config) },
    {0},
};

static const struct option_row operands[] = { { "IN", FIELD(convert.in) }, { "OUT", FIELD(convert.out) }, {0} };

static const char head[] =
    "Usage: merge-tp [options] IN OUT\n"
    "       merge-tp --check [options] IN\n"
    "Merge the tensor-parallel ranks of a checkpoint: weights, masters and moments. First the\n"
    "tensors that every rank keeps a copy of (LayerNorms, row-parallel biases, position\n"
    "embeddings) are compared in all states. If copies differ, nothing is merged unless --replicas\n"
    "selects how to resolve them. IN is a checkpoint of Megatron-DeepSpeed (3D shards or\n"
    "universal) or of DeepSpeed ZeRO with tensor-parallel ranks (AutoTP), a folder whose file\n"
    "'latest' names one, or a tar archive of one. OUT is a new folder. In other layouts (DCP,\n"
    "torch_dist, Transformers) the ranks hold no copies; use reshape for these.\n";
static const char tail[] =
    "Exit status: 0 done (with --check: the copies are equal), 1 copies differ, IN is damaged or\n"
    "the merge failed (no OUT), 2 wrong usage.\n"
    "Examples:\n"
    "  merge-tp run/global_step95000 merged/global_step95000\n"
    "  merge-tp --check run/global_step95000\n"
    "  merge-tp --repair --replicas majority run/global_step95000 fixed/global_step95000\n";

static int refuse_merge_usage(struct merge_job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int check_merge_options(struct merge_job *j)
{
    if (!j->convert.in || !*j->convert.in)
        return refuse_merge_usage(j, "no IN given");
    if (j->check && j->repair)
        return refuse_merge_usage(j, "--check and --repair exclude each other, because --check writes nothing");
    if (!j->check && (!j->convert.out || !*j->convert.out))
        return refuse_merge_usage(j, "no OUT given");
    if (j->repair && j->target_tp)
        return refuse_merge_usage(j, "--repair and --target-tp exclude each other, because --repair keeps the number "
                                     "of ranks");
    if (j->repair && j->convert.request.weights_only)
        return refuse_merge_usage(
            j, "--repair and --weights-only exclude each other, because --repair changes weights and optimizer states "
               "together");
    if (j->convert.request.config && !j->convert.request.weights_only)
        return refuse_merge_usage(j, "--config needs --weights-only");
    if (j->repair && j->cli.replicas == REPLICAS_FAIL)
        return refuse_merge_usage(j, "--repair needs --replicas average, first or majority");
    return 0;
}

int merge_job_parse(struct merge_job *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, { NULL, cli_rows_latest, &j->cli, 0 }, { NULL, cli_rows_certificate, &j->cli, 0 },
        CLI_GROUPS_CONVERT(NULL, &j->cli, cli_rows_write_fail), {0},
    };
    const struct option_table table = { "merge-tp", head, tail, groups, j, .operands = operands };

    if (cli_parse(&j->cli, &table, argc, argv) < 0)
        return -1;
    /* Record the options that affect the output. A run can be resumed only with the same options and the same IN. */
    strbuf_addf(&j->shape, "tp %d repair %d weights %d replicas %d\n", j->target_tp, j->repair,
                j->convert.request.weights_only, j->cli.replicas);
    if (j->convert.request.config)
        strbuf_addf(&j->shape, "config %s\n", j->convert.request.config);
    return check_merge_options(j);
}
