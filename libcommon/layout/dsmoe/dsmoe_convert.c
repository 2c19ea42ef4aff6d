/*
 * dsmoe_convert.c - describe a checkpoint with DeepSpeed's MoE as one of another number of ranks
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/ds_request.h"
#include "libcommon/layout/dsmoe/dsmoe_target.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"

/* Returns the name of a given option that cannot be applied, or NULL if there is none. */
static const char *get_unfit_option(const struct write_request *q)
{
    const struct ds_request *d = q->shards;
    const char *option = ds_request_option(d);

    return d->topo.tp > 1 ? "--target-tp" : d->topo.pp > 1 ? "--target-pp" : d->vocab ? "--pad-vocab-size-to" :
           option ? option : d->like ? "--like" : q->ranks ? "--ranks" : q->mesh_rows ? "--mesh" :
           q->distributed ? "--distributed-optimizer" : q->certificate ? "--certificate" : NULL;
}

int dsmoe_accepts(const struct source *s, const struct write_request *q, struct err *e)
{
    const char *option = get_unfit_option(q);

    if (option)
        err_usage(e, "%s: %s cannot be applied to a checkpoint with DeepSpeed's MoE; only --target-ep and --target-dp "
                     "can change it, or --to another layout", s->path, option);
    else if (q->weights_only || q->shards->no_optimizer)
        err_usage(e, "%s: weights need no conversion to other expert-parallel ranks: each expert has a file of its "
                     "own, which load_checkpoint(load_module_only=True) loads with any number of them", s->path);
    else if (!q->expert_ranks && !q->shards->topo.dp)
        err_usage(e, "%s: the number of ranks is missing; give --target-ep N or --target-dp N, or name another layout "
                     "for OUT, such as --to dcp --ranks N", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

static struct sink *open_dsmoe_sink(const struct layout_target *t, const struct sink_opts *o)
{
    return dsmoe_sink(o, t->of);
}

static char *dsmoe_text(const struct layout_target *of)
{
    const struct dsmoe_target *t = of->of;

    return str_fmt("dsmoe, EP %d, %d ranks, %d parameters", t->n_ep, t->world, t->src->n_params);
}

static void dsmoe_facts(const struct layout_target *of, json_t *o)
{
    const struct dsmoe_target *t = of->of;

    json_object_update_new(o, json_pack("{s:i, s:i}", "expert_ranks", t->n_ep, "ranks", t->world));
}

static void free_dsmoe_target(void *of)
{
    dsmoe_target_free(of);
}

static const struct layout_target_ops dsmoe_target_ops = {
    .pointer = "latest", .open_sink = open_dsmoe_sink, .text = dsmoe_text, .facts = dsmoe_facts,
    .free = free_dsmoe_target,
};

int describe_as_dsmoe(struct source *s, const struct write_request *q, struct report *notes, struct layout_target *t,
                      struct err *e)
{
    t->ops = &dsmoe_target_ops;
    t->of = dsmoe_target_new(s, q->expert_ranks, q->shards->topo.dp, notes, e);
    return t->of ? 0 : -1;
}
