/* deepspeed_options.c - the rows of these options, and the functions that parse their values */
#include "tools/common/deepspeed_options.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"

static int refuse_ds_option(struct err *e, const char *what)
{
    err_usage(e, "%s", what);
    return -1;
}

static int parse_ds_stages(void *into, const char *arg, struct err *e)
{
    struct ds_options *o = into;
    int n = 0;

    for (const char *p = arg;; p++) {
        char *end;
        long layers = strtol(p, &end, 10);

        if (end == p || layers < 0 || layers > 100000 || n == DS_STAGES_MAX || (*end && *end != ','))
            return refuse_ds_option(e, "--stages: the value must be the number of layers of each stage, such as "
                                       "5,6,6,5");
        o->stages[n++] = (int)layers;
        p = end;
        if (!*p)
            break;
    }
    o->q.stages = o->stages;
    o->q.n_stages = n;
    return 0;
}

static int add_set(struct ds_options *o, const char *arg, bool any_type, struct err *e)
{
    if (!strchr(arg, '='))
        return refuse_ds_option(e, any_type ? "--set-type: the value must have the form KEY=VALUE" :
                                "--set: the value must have the form KEY=VALUE");
    if (o->q.n_set == DS_SETS_MAX)
        return refuse_ds_option(e, "--set and --set-type are given too many times");
    o->sets[o->q.n_set++] = (struct ds_set){ arg, any_type };
    o->q.set = o->sets;
    return 0;
}

static int parse_ds_set(void *into, const char *arg, struct err *e)
{
    return add_set(into, arg, false, e);
}

static int parse_ds_set_type(void *into, const char *arg, struct err *e)
{
    return add_set(into, arg, true, e);
}

#define FIELD(f) OPTION_FIELD(struct ds_options, f)
#define DEGREE(f) OPTION_INT, FIELD(f), .min = 1, .max = 65536

const struct option_row ds_rows_topology[] = {
    { "target-tp", 0, "T", "number of tensor-parallel ranks of OUT", DEGREE(q.topo.tp) },
    { "target-pp", 0, "P", "number of pipeline stages of OUT", DEGREE(q.topo.pp) },
    { "target-dp", 0, "D", "number of data-parallel ranks of OUT", DEGREE(q.topo.dp) },
    { "pp-partition-method", 0, "M", "how layers are divided into stages: type:transformer, "
                                     "type:transformer|embedding, parameters, uniform (as in DeepSpeed), cost (equal "
                                     "numbers of operations) or even (equal numbers of transformer layers)",
      FIELD(q.method) },
    { "stages", 0, "A,B,C", "number of transformer layers in each stage", .take = parse_ds_stages },
    { "pad-vocab-size-to", 0, "V", "number of rows of the word embedding, including padding",
      OPTION_INT, FIELD(q.vocab), .min = 1, .max = 0x1p40 },
    { "groups", 0, "N", "number of optimizer groups: 2 or "
                        "3", OPTION_INT, FIELD(q.n_groups), .min = 2, .max = 3, .words = "2 3" },
    { "layer-numbering", 0, "ERA", "how layer files are numbered: new (Megatron-DeepSpeed since July 2022), old "
                                   "(before that) or msmd (Microsoft's fork)", FIELD(q.numbering),
      .words = "new old msmd", .min = NUMBERING_NEW },
    {0},
};

const struct option_row ds_rows_set[] = {
    { "set", 0, "KEY=VALUE", "set an argument or setting in the mp_rank files, such as lr=0.0001; VALUE is JSON and "
                             "must have the type of the old value",
      .take = parse_ds_set },
    { "set-type", 0, "KEY=VALUE", "set an argument or setting in the mp_rank files to a JSON value of any type",
      .take = parse_ds_set_type },
    {0},
};
