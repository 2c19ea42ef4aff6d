/*
 * deepspeed_options.c - the rows, and taking them
 */
#include "tools/common/deepspeed_options.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"

static int usage(struct err *e, const char *what)
{
    err_usage(e, "%s", what);
    return -1;
}

static int take_degree(int *to, const char *arg, struct err *e)
{
    int64_t n;

    if (parse_int(arg, 1, 65536, &n) < 0)
        return usage(e, "--target-tp, --target-pp, --target-dp: expected a number from 1 to 65536");
    *to = (int)n;
    return 0;
}

static int take_stages(void *into, const char *arg, struct err *e)
{
    struct ds_options *o = into;
    int n = 0;

    for (const char *p = arg;; p++) {
        char *end;
        long layers = strtol(p, &end, 10);

        if (end == p || layers < 0 || layers > 100000 || n == DS_STAGES_MAX || (*end && *end != ','))
            return usage(e, "--stages: expected layers of each stage, as in 5,6,6,5");
        o->stages[n++] = (int)layers;
        p = end;
        if (!*p)
            break;
    }
    o->q.stages = o->stages;
    o->q.n_stages = n;
    return 0;
}

static int take_numbering(void *into, const char *arg, struct err *e)
{
    static const char *const words[] = { "new", "old", "msmd" };
    struct ds_options *o = into;

    for (int i = 0; i < 3; i++)
        if (strcmp(arg, words[i]) == 0) {
            o->q.numbering = (enum ds_numbering)(NUMBERING_NEW + i);
            return 0;
        }
    return usage(e, "--layer-numbering: expected new, old or msmd");
}

static int take_groups(void *into, const char *arg, struct err *e)
{
    struct ds_options *o = into;
    int64_t n;

    if (parse_int(arg, 2, 3, &n) < 0)
        return usage(e, "--groups: expected 2 or 3");
    o->q.n_groups = (int)n;
    return 0;
}

static int add_set(struct ds_options *o, const char *arg, bool any_type, struct err *e)
{
    if (!strchr(arg, '='))
        return usage(e, any_type ? "--set-type: expected KEY=VALUE" : "--set: expected KEY=VALUE");
    if (o->q.n_set == DS_SETS_MAX)
        return usage(e, "--set, --set-type: given too often");
    o->sets[o->q.n_set++] = (struct ds_set){ arg, any_type };
    o->q.set = o->sets;
    return 0;
}

static int take_set(void *into, const char *arg, struct err *e)
{
    return add_set(into, arg, false, e);
}

static int take_set_type(void *into, const char *arg, struct err *e)
{
    return add_set(into, arg, true, e);
}

static int take_tp(void *into, const char *arg, struct err *e)
{
    return take_degree(&((struct ds_options *)into)->q.topo.tp, arg, e);
}

static int take_pp(void *into, const char *arg, struct err *e)
{
    return take_degree(&((struct ds_options *)into)->q.topo.pp, arg, e);
}

static int take_dp(void *into, const char *arg, struct err *e)
{
    return take_degree(&((struct ds_options *)into)->q.topo.dp, arg, e);
}

static int take_vocab(void *into, const char *arg, struct err *e)
{
    struct ds_options *o = into;

    return parse_int(arg, 1, (int64_t)1 << 40, &o->q.vocab) < 0
           ? usage(e, "--pad-vocab-size-to: expected a number of rows") : 0;
}

const struct option_row ds_rows_topology[] = {
    { "target-tp", 0, "T", "tensor-parallel ranks", .take = take_tp },
    { "target-pp", 0, "P", "pipeline stages", .take = take_pp },
    { "target-dp", 0, "D", "data-parallel ranks", .take = take_dp },
    { "pp-partition-method", 0, "M", "type:transformer, type:transformer|embedding, parameters, uniform, cost (of "
      "arithmetic) or even (layers)", .field = offsetof(struct ds_options, q.method) },
    { "stages", 0, "A,B,C", "transformer layers of each stage", .take = take_stages },
    { "pad-vocab-size-to", 0, "V", "rows of the word embedding", .take = take_vocab },
    { "groups", 0, "N", "optimizer groups, 2 or 3", .take = take_groups, .words = "2 3" },
    { "layer-numbering", 0, "ERA", "new, old or msmd: numbers of layer files", .take = take_numbering,
      .words = "new old msmd" },
    {0},
};

const struct option_row ds_rows_set[] = {
    { "set", 0, "KEY=VALUE", "change a value of the mp_rank files, e.g. lr=0.0001; JSON of the present value's type",
      .take = take_set },
    { "set-type", 0, "KEY=VALUE", "the same, of any type", .take = take_set_type },
    {0},
};
