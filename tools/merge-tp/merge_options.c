/*
 * merge_options.c - the options of merge-tp
 */

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "tools/merge-tp/merge_tp.h"

#define FIELD(f) OPTION_FIELD(struct merge_job, f)

static const struct option_row rows[] = {
    { "target-tp", 0, "T", "ranks to merge into (default 1)", OPTION_INT, FIELD(target_tp), .min = 1, .max = 65536 },
    { "check", .help = "stop after the comparison; exit status 1 when copies disagree", FIELD(check) },
    { "repair", .help = "keep the topology and settle the copies, in bf16, fp32 and both moments together; "
      "OUT/repair.jsonl tells what changed", FIELD(repair) },
    { "weights-only", .help = "no optimizer shards are compared or written, and those of IN not opened",
      FIELD(weights_only) },
    { "config", 0, "FILE", "the model's config.json, or its folder. With --weights-only, if IN has no mp_rank file: it "
      "stands for all of them", FIELD(config) },
    {0},
};

static const struct option_row operands[] = { { "IN", FIELD(in) }, { "OUT", FIELD(out) }, {0} };

static const char head[] =
    "Usage: merge-tp [options] IN OUT\n"
    "       merge-tp --check [options] IN\n"
    "Merge the tensor-parallel ranks of a Megatron-DeepSpeed checkpoint, or of one of DeepSpeed's\n"
    "AutoTP: weights, masters and moments. First every tensor that each rank keeps a copy of\n"
    "(LayerNorms, row-parallel biases, position tables) is compared in all states; while\n"
    "copies disagree nothing is merged unless --replicas says how to settle them. IN is a tag\n"
    "folder (3D shards, universal, or ZeRO with tensor ranks), a folder with 'latest', or a tar\n"
    "of one; OUT is the tag folder to make. Layouts whose tensors are whole (DCP, torch_dist,\n"
    "Transformers) have nothing to merge: reshape writes them.\n";
static const char tail[] =
    "Exit status: 0 done (with --check: in sync), 1 copies disagree, IN is damaged or the work\n"
    "failed (no OUT), 2 wrong usage.\n"
    "Example: merge-tp --repair --replicas majority run/global_step95000 fixed/global_step95000\n";

static int refuse_merge_usage(struct merge_job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int check_merge_options(struct merge_job *j)
{
    if (!j->in || !*j->in)
        return refuse_merge_usage(j, "no IN given");
    if (j->check && j->repair)
        return refuse_merge_usage(j, "--check only looks: it does not go with --repair");
    if (!j->check && (!j->out || !*j->out))
        return refuse_merge_usage(j, "no OUT given");
    if (j->repair && j->target_tp)
        return refuse_merge_usage(j, "--repair keeps the topology: --target-tp does not go with it");
    if (j->repair && j->weights_only)
        return refuse_merge_usage(
            j, "--repair settles weights and optimizer together: --weights-only does not go with it");
    if (j->config && !j->weights_only)
        return refuse_merge_usage(j, "--config goes with --weights-only");
    if (j->repair && j->cli.replicas == REPLICAS_FAIL)
        return refuse_merge_usage(j, "--repair: say how with --replicas average, first or majority");
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
    /* Everything besides IN that the output depends on. A run can be resumed only with the same values. */
    strbuf_addf(&j->shape, "tp %d repair %d weights %d replicas %d\n", j->target_tp, j->repair, j->weights_only,
                j->cli.replicas);
    if (j->config)
        strbuf_addf(&j->shape, "config %s\n", j->config);
    return check_merge_options(j);
}
