/*
 * reshape_options.c - the options of reshape
 */
#include <stdio.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/reshape/reshape.h"

#define FIELD(f) OPTION_FIELD(struct reshape_job, f)
enum { SHAPES = 1 };                    /* mark of options that affect the output */

static int parse_pp_balance(void *into, const char *value, struct err *e)
{
    struct reshape_job *j = into;
    const bool old = strcmp(value, "old") == 0, new = strcmp(value, "new") == 0;
    int major, minor, patch;
    char more;

    if (!old && !new && sscanf(value, "%4d.%4d.%4d%c", &major, &minor, &patch, &more) != 3) {
        err_usage(e, "--pp-balance: expected old, new or a version of DeepSpeed such as 0.12.4");
        return -1;
    }
    j->target.q.balance_given = true;
    j->target.q.balance = old ? PIPELINE_BOTTLENECK : new ? PIPELINE_SPREAD : pipeline_balance_of(value);
    return 0;
}

static int set_weights_only(void *into, const char *value, struct err *e)
{
    struct reshape_job *j = into;

    (void)value;
    (void)e;
    j->convert.request.weights_only = j->target.q.no_optimizer = true;
    return 0;
}

static int parse_device_mesh(void *into, const char *value, struct err *e)
{
    struct write_request *q = &((struct reshape_job *)into)->convert.request;
    char more;

    if (sscanf(value, "%5dx%5d%c", &q->mesh_rows, &q->mesh_columns, &more) == 2 && q->mesh_rows > 0 &&
        q->mesh_columns > 0 && (int64_t)q->mesh_rows * q->mesh_columns <= RESHAPE_RANKS_MAX)
        return 0;
    err_usage(e, "--mesh: expected ROWSxCOLUMNS, as 4x2, of at most %d ranks", RESHAPE_RANKS_MAX);
    return -1;
}

static const struct option_row topology_rows[] = {
    { "target-ep", 0, "N", "number of expert-parallel ranks of OUT, for a checkpoint with layers of DeepSpeed's MoE "
                           "that keeps its layout", OPTION_INT, FIELD(convert.request.expert_ranks), .min = 1,
      .max = RESHAPE_RANKS_MAX },
    { "pp-balance", 0, "WHEN", "balance stages as DeepSpeed does before 0.12.5 (old), since then (new), or in a "
                               "given version, such as 0.10.0", .take = parse_pp_balance,
      .words = "old new" },
    { "like", 0, "DIR", "take layer numbering, optimizer groups and partition method from the checkpoint DIR. With "
                        "--to zero1, zero2 or zero3 from another layout, take optimizer groups, frozen parameters and "
                        "ds_config from DIR", FIELD(like) },
    {0},
};

static const struct option_row form_rows[] = {
    { "to", 0, "FORM", "layout of OUT: zero1, zero2, zero3 (DeepSpeed ZeRO without pipeline), dcp (torch.distributed, "
                       "FSDP2), torchdist (Megatron-core), deepspeed (3D shards), universal, hf, or hfstorage "
                       "(safetensors shards of torch's HuggingFaceStorageWriter); ds2universal and export-hf have "
                       "more options for the last three",
      .words = "zero1 zero2 zero3 dcp torchdist deepspeed universal hf hfstorage", FIELD(to), .min = 1 },
    { "ranks", 0, "N", "number of ranks, with --to zero1, zero2, zero3, dcp, torchdist or "
                       "hfstorage", OPTION_INT, FIELD(convert.request.ranks), .min = 1, .max = RESHAPE_RANKS_MAX },
    { "dtype", 0, "TYPE", "with --to zero1, zero2 or zero3 from another layout: type in which DeepSpeed will compute "
                          "(default: that of the weights)", .words = "bf16 fp16 fp32", FIELD(dtype), .min = 1 },
    { "mesh", 0, "RxC", "with --to dcp or torchdist: split rows over R ranks and the columns of matrices over C ranks",
      .take = parse_device_mesh },
    { "distributed-optimizer", .help = "with --to torchdist from another layout: store Adam's states in the form of "
                                       "Megatron-core's distributed optimizer (default: in the form of its unsharded "
                                       "optimizers)", FIELD(convert.request.distributed) },
    { "rules", 0, "FAMILY", "with --to torchdist from a Transformers folder, or with --config: rules for the names of "
                            "parameters: a built-in family such as llama or mixtral, or a FILE whose name has a dot or "
                            "a slash (default: by model_type in config.json)",
      FIELD(convert.request.rules) },
    { "config", 0, "FILE", "the model's config.json, or the folder that holds it, for --to torchdist or hf (default: "
                           "that of IN); with --to dcp, zero1, zero2 or zero3 from shards of Megatron, parameters and "
                           "their states get the names of Transformers; with --weights-only it replaces the mp_rank "
                           "files of IN if all are lost",
      FIELD(convert.request.config) },
    { "experts", 0, "FORM", "for a Transformers folder, or with --to hf: how the experts of a layer are stored: split "
                            "(one tensor for each expert, as save_pretrained writes them) or fused (one tensor for all "
                            "experts of a layer, as Transformers 5 and FSDP2 hold them in memory) (default: as in IN, "
                            "and split in a Transformers folder that is made from another layout)",
      .words = "split fused", FIELD(convert.request.experts), .min = 1 },
    {0},
};

static const struct option_row contents_rows[] = {
    { "weights-only", .help = "write no optimizer states, and do not open those of IN",
      .take = set_weights_only },
    { "drop-optimizer", .help = "write no optimizer states", FIELD(target.q.no_optimizer) },
    { "zero-moments", .help = "set Adam's moments and step counter to 0", FIELD(target.q.zero_moments) },
    { "step", 0, "N", "set the iteration, and the optimizer's step counter to match", OPTION_INT, FIELD(target.q.step),
      .max = 0x1p52 },
    {0},
};

static const struct option_row operands[] = { { "IN", FIELD(convert.in) }, { "OUT", FIELD(convert.out) }, {0} };

static const char head[] =
    "Usage: reshape [options] IN OUT\n"
    "Convert a checkpoint to another topology (number of ranks) or layout: weights, optimizer\n"
    "states, schedules, counters, arguments and random states. IN is a checkpoint of\n"
    "Megatron-DeepSpeed (3D shards) or in the universal form (.pt, HDF5), of DeepSpeed ZeRO-1, 2\n"
    "or 3, of torch.distributed (DCP: FSDP2) or of Megatron-core (torch_dist), a model folder of\n"
    "Transformers, a folder whose file 'latest' names one, or a tar archive of one. OUT is a new\n"
    "folder. Degrees that no option sets are those of IN. The memory used is fixed, every byte\n"
    "read is checked by its CRC, and OUT appears only when it is complete.\n";
static const char tail[] =
    "Exit status: 0 done, 1 IN is damaged or the conversion failed (no OUT), 2 wrong usage or a\n"
    "topology that the model does not permit.\n"
    "Examples:\n"
    "  reshape --target-pp 12 --target-dp 4 run/global_step95000 new/global_step95000\n"
    "  reshape --to zero3 --ranks 16 fsdp_ckpt zero_ckpt\n"
    "  reshape --to dcp --mesh 8x1 run/global_step95000 dcp_ckpt\n";

static int refuse_reshape_usage(struct reshape_job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

/* Record the options that affect the output. A run can be resumed only with the same values. */
static void record_shape_option(void *ctx, const struct option_given *g)
{
    struct reshape_job *j = ctx;

    if (g->group->marks & SHAPES)
        strbuf_addf(&j->shape, "%s %s\n", g->row->name, g->n ? g->words[0] : "");
}

static int check_reshape_options(struct reshape_job *j)
{
    const struct write_request *q = &j->convert.request;

    if (!j->convert.in || !*j->convert.in)
        return refuse_reshape_usage(j, "no IN given");
    if (!j->convert.out || !*j->convert.out)
        return refuse_reshape_usage(j, "no OUT given");
    if (j->target.q.stages && (j->target.q.method || j->target.q.balance_given))
        return refuse_reshape_usage(j,
                                    "--stages excludes --pp-partition-method and --pp-balance");
    if (q->expert_ranks && j->to)
        return refuse_reshape_usage(j, "--target-ep changes the ranks of a checkpoint with DeepSpeed's MoE in its own "
                                       "layout; --to excludes it");
    if (j->dtype && (j->to < 1 || j->to >= RESHAPE_TO_DCP) && j->to < RESHAPE_TO_HF)
        return refuse_reshape_usage(j, "--dtype needs --to zero1, zero2 or zero3 and an IN of another layout");
    if ((q->rules || (q->config && !q->weights_only)) && j->to != RESHAPE_TO_TORCHDIST && j->to < RESHAPE_TO_HF &&
        (j->to < 1 || j->to > RESHAPE_TO_DCP))
        return refuse_reshape_usage(
            j, "--rules and --config need --to hf, hfstorage, dcp, zero1, zero2 or zero3 (--config FILE has to be the "
               "model's config.json), or --to torchdist of a model folder; --config is also valid with --weights-only");
    if (q->distributed && j->to && j->to != RESHAPE_TO_TORCHDIST)
        return refuse_reshape_usage(j, "--distributed-optimizer needs --to torchdist");
    if (j->to == RESHAPE_TO_HF && q->ranks)
        return refuse_reshape_usage(j, "--to hf has no --ranks; --to hfstorage --ranks N writes one file per rank");
    if (j->to == RESHAPE_TO_HFSTORAGE && !q->ranks)
        return refuse_reshape_usage(j, "--to hfstorage needs --ranks");
    /* ds2universal ignores these options, because scripts that call ds_to_universal.py pass them. */
    if (j->to == RESHAPE_TO_UNIVERSAL && (j->target.q.topo.tp || j->target.q.topo.pp))
        return refuse_reshape_usage(j, "--target-tp and --target-pp do not apply to --to universal: it has no ranks");
    if (q->ranks && q->mesh_rows)
        return refuse_reshape_usage(j, "--mesh and --ranks exclude each other");
    if (j->target.q.no_optimizer && j->target.q.zero_moments)
        return refuse_reshape_usage(
            j, "--zero-moments needs the optimizer that --weights-only and --drop-optimizer leave out");
    return 0;
}

int reshape_job_parse(struct reshape_job *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Topology", ds_rows_topology, &j->target, SHAPES }, { NULL, topology_rows, NULL, SHAPES },
        { "Form", form_rows, NULL, SHAPES },
        { "Contents", contents_rows, NULL, SHAPES }, { NULL, ds_rows_set, &j->target, SHAPES },
        { "Running", cli_rows_latest, &j->cli, 0 }, { NULL, cli_rows_certificate, &j->cli, 0 },
        CLI_GROUPS_CONVERT(NULL, &j->cli, cli_rows_write_fail), {0},
    };
    const struct option_table table = {
        "reshape", head, tail, groups, j, .operands = operands, .ctx = j, .given = record_shape_option,
    };

    if (cli_parse(&j->cli, &table, argc, argv) < 0)
        return -1;
    strbuf_addf(&j->shape, "replicas %d\n", j->cli.replicas);
    return check_reshape_options(j);
}
