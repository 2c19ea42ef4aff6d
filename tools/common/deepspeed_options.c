/*
 * deepspeed_options.c - degrees, stages, numbering, groups and --set, as words and as fields
 */
#include "tools/common/deepspeed_options.h"

#include <stdlib.h>
#include <string.h>

static int usage(struct cli *cli, const char *what)
{
    cli_usage(cli, "%s", what);
    return -1;
}

static int take_degree(struct cli *cli, const char *arg, int *to)
{
    int64_t n;

    if (parse_int(arg, 1, 65536, &n) < 0)
        return usage(cli, "--target-tp, --target-pp, --target-dp: expected a number from 1 to 65536");
    *to = (int)n;
    return 0;
}

static int take_stages(struct ds_options *o, struct cli *cli, const char *arg)
{
    int n = 0;

    for (const char *p = arg;; p++) {
        char *end;
        long layers = strtol(p, &end, 10);

        if (end == p || layers < 0 || layers > 100000 || n == DS_STAGES_MAX || (*end && *end != ','))
            return usage(cli, "--stages: expected layers of each stage, as in 5,6,6,5");
        o->stages[n++] = (int)layers;
        p = end;
        if (!*p)
            break;
    }
    o->q.stages = o->stages;
    o->q.n_stages = n;
    return 0;
}

static int take_numbering(struct ds_options *o, struct cli *cli, const char *arg)
{
    static const char *const words[] = { "new", "old", "msmd" };

    for (int i = 0; i < 3; i++)
        if (strcmp(arg, words[i]) == 0) {
            o->q.numbering = (enum ds_numbering)(NUMBERING_NEW + i);
            return 0;
        }
    return usage(cli, "--layer-numbering: expected new, old or msmd");
}

static int take_groups(struct ds_options *o, struct cli *cli, const char *arg)
{
    int64_t n;

    if (parse_int(arg, 2, 3, &n) < 0)
        return usage(cli, "--groups: expected 2 or 3");
    o->q.n_groups = (int)n;
    return 0;
}

static int take_set(struct ds_options *o, struct cli *cli, const char *arg, bool any_type)
{
    if (!strchr(arg, '='))
        return usage(cli, any_type ? "--set-type: expected KEY=VALUE" : "--set: expected KEY=VALUE");
    if (o->q.n_set == DS_SETS_MAX)
        return usage(cli, "--set, --set-type: given too often");
    o->sets[o->q.n_set++] = (struct ds_set){ arg, any_type };
    o->q.set = o->sets;
    return 0;
}

int ds_option(struct ds_options *o, struct cli *cli, int c, const char *arg)
{
    switch (c) {
    case OPT_DS_TP: return take_degree(cli, arg, &o->q.topo.tp);
    case OPT_DS_PP: return take_degree(cli, arg, &o->q.topo.pp);
    case OPT_DS_DP: return take_degree(cli, arg, &o->q.topo.dp);
    case OPT_DS_METHOD: o->q.method = arg; return 0;
    case OPT_DS_STAGES: return take_stages(o, cli, arg);
    case OPT_DS_VOCAB:
        return parse_int(arg, 1, (int64_t)1 << 40, &o->q.vocab) < 0
               ? usage(cli, "--pad-vocab-size-to: expected a number of rows") : 0;
    case OPT_DS_GROUPS: return take_groups(o, cli, arg);
    case OPT_DS_NUMBERING: return take_numbering(o, cli, arg);
    case OPT_DS_SET: return take_set(o, cli, arg, false);
    case OPT_DS_SET_TYPE: return take_set(o, cli, arg, true);
    }
    return -1;
}
