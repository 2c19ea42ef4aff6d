/*
 * zero_convert.c - describe a source as the files of ZeRO without pipeline
 *
 * The source is a checkpoint of ZeRO, whose number of ranks or stage changes, or a checkpoint of another layout.
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/ds_request.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/engine/zero_groups.h"
#include "libcommon/layout/zero/zero_target.h"

/*
 * Returns the name of a given option that is meant for tensor or pipeline ranks, or for data that only the files of
 * such ranks contain. Returns NULL if no such option is given.
 */
static const char *get_non_zero_option(const struct write_request *q)
{
    const struct ds_request *d = q->shards;
    const char *option = ds_request_option(d);

    return d->topo.tp > 1 ? "--target-tp" : d->topo.pp > 1 ? "--target-pp" : d->vocab ? "--pad-vocab-size-to" :
           option ? option : d->no_optimizer && !q->weights_only ? "--drop-optimizer" :
           q->certificate ? "--certificate" : q->mesh_rows ? "--mesh" : NULL;
}

/*
 * Check the template (--like). It is accepted only if the source has another layout, because a source of ZeRO already
 * contains everything that a template provides.
 */
static int check_like(const struct source *s, const struct write_request *q, struct err *e)
{
    const struct source *like = q->shards->like;

    if (!like)
        return 0;
    if (source_is_from_zero(s))
        err_usage(e, "%s: --like applies only to a conversion from another layout; ZeRO files keep their groups",
                  source_path(s));
    else if (!source_is_from_zero(like))
        err_usage(e, "%s: --like needs a checkpoint of ZeRO without pipeline, but this is none", source_path(like));
    else if (q->dtype != DTYPE_N)
        err_usage(e, "--dtype and --like exclude each other, because --like determines the type");
    return e->kind == ERR_NONE ? 0 : -1;
}

int zero_accepts(const struct source *s, const struct write_request *q, struct err *e)
{
    const char *option = get_non_zero_option(q);

    if (option)
        err_usage(e, "%s: %s cannot be applied to a ZeRO checkpoint, which has no tensor-parallel or pipeline ranks; "
                     "only --ranks and --to can change it", source_path(s), option);
    else if (q->ranks && q->shards->topo.dp)
        err_usage(e, "%s: --ranks and --target-dp have the same meaning here; give only one of them", source_path(s));
    else if (q->dtype != DTYPE_N && source_is_from_zero(s))
        err_usage(e, "%s: --dtype applies only to a conversion from another layout; ZeRO files keep their type",
                  source_path(s));
    else if (!source_is_from_zero(s) && !q->ranks && !q->shards->topo.dp && !q->weights_only)
        err_usage(e, "%s: the number of ranks is missing; give --ranks", source_path(s));
    return e->kind == ERR_NONE ? check_like(s, q, e) : -1;
}

/* ---- the target ---- */

static struct sink *open_zero_sink(const struct layout_target *t, const struct sink_opts *o)
{
    return zero_sink(o, t->of);
}

static char *zero_text(const struct layout_target *of)
{
    const struct zero_target *t = of->of;

    return str_fmt("ZeRO-%d, %d ranks, %d parameters", t->shape.stage, t->shape.world, source_n_params(of->src));
}

static void zero_facts(const struct layout_target *of, json_t *o)
{
    const struct zero_target *t = of->of;

    json_object_update_new(o, json_pack("{s:i, s:i}", "zero_stage", t->shape.stage, "ranks", t->shape.world));
}

static void free_zero_target(void *of)
{
    zero_target_free(of);
}

static const struct layout_target_ops zero_target_ops = {
    .pointer = "latest", .open_sink = open_zero_sink, .text = zero_text, .facts = zero_facts, .free = free_zero_target,
};

int describe_as_zero(struct source *s, const struct write_request *q, struct report *notes, struct layout_target *t,
                     struct err *e)
{
    const struct zero_request z = { .stage = q->zero_stage, .world = q->ranks ? q->ranks : q->shards->topo.dp,
                                    .weights_only = q->weights_only, .cast = q->dtype != DTYPE_N, .weights = q->dtype,
                                    .like = q->shards->like };
    const struct zero_import from = { .purpose = q->weights_only ? ZERO_FOR_WEIGHTS : ZERO_FOR_RANKS,
                                      .weights = q->dtype, .like = q->shards->like };

    t->ops = &zero_target_ops;
    /* A source of ZeRO already has groups. For other sources, they are made here. */
    if (source_is_from_zero(s) || zero_groups_resolve(s, &from, notes, e) == 0)
        t->of = zero_target_new(s, &z, notes, e);
    return t->of ? 0 : -1;
}
