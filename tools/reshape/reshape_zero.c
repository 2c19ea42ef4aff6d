/*
 * reshape_zero.c - checkpoints of ZeRO without the pipeline engine: change the number of ranks or the stage, or convert
 * from another layout
 */
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/zero/zero_groups.h"
#include "tools/common/zero_write.h"
#include "tools/reshape/reshape.h"

/* Returns true if an option concerns tensor or pipeline ranks, or data that only files of such ranks hold. */
static bool has_non_zero_options(const struct reshape_job *j)
{
    const struct ds_request *q = &j->target.q;

    return q->topo.tp > 1 || q->topo.pp > 1 || q->method || q->stages || q->balance_given || q->vocab || q->n_groups ||
           q->n_set || (q->no_optimizer && !j->weights_only) || q->zero_moments || q->step >= 0 ||
           j->cli.certificate || j->mesh.rows;
}

/*
 * Check --like, which is only for files made from another layout: files of ZeRO already contain everything that it
 * provides.
 */
static int check_like(const struct reshape_job *j, const struct source *s, struct err *e)
{
    const struct source *like = j->target.q.like;

    if (!like)
        return 0;
    if (source_is_from_zero(s))
        err_usage(e, "%s: --like is for files that are made of another layout; those of ZeRO keep their groups",
                  s->path);
    else if (!source_is_from_zero(like))
        err_usage(e, "%s: --like: is not a checkpoint of ZeRO without pipeline", like->path);
    else if (j->dtype)
        err_usage(e, "--dtype and --like exclude each other: --like determines the type");
    return e->kind == ERR_NONE ? 0 : -1;
}

static int check_zero_options(const struct reshape_job *j, const struct source *s, struct err *e)
{
    if (has_non_zero_options(j))
        err_usage(e, "%s: of ZeRO without pipeline the ranks (--target-dp, --ranks) and the stage (--to) can be "
                  "changed; another option given is for other layouts (--mesh for --to dcp and torchdist)", s->path);
    else if (j->ranks && j->target.q.topo.dp)
        err_usage(e, "%s: --ranks and --target-dp are the same here: give one of them", s->path);
    else if (j->dtype && source_is_from_zero(s))
        err_usage(e, "%s: --dtype is for files that are made of another layout; those of ZeRO keep theirs", s->path);
    else if (!source_is_from_zero(s) && !j->ranks && !j->target.q.topo.dp && !j->weights_only)
        err_usage(e, "%s: the number of ranks is unknown: give --ranks", s->path);
    return e->kind == ERR_NONE ? check_like(j, s, e) : -1;
}

/* Resolve the parameter groups of a source of another layout. Sources of ZeRO have groups of their own. */
static int resolve_reshape_groups(const struct reshape_job *j, struct source *s, const struct zero_request *q,
                                  struct report *notes, struct err *e)
{
    const struct zero_import from = { .purpose = j->weights_only ? ZERO_FOR_WEIGHTS : ZERO_FOR_RANKS,
                                      .weights = q->cast ? q->weights : DTYPE_N, .like = q->like };

    return source_is_from_zero(s) ? 0 : zero_groups_resolve(s, &from, notes, e);
}

int reshape_zero(struct reshape_job *j, struct source *s, struct err *e)
{
    static const enum dtype dtypes[] = { DTYPE_N, DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    const struct zero_request q = { .stage = j->to, .world = j->ranks ? j->ranks : j->target.q.topo.dp,
                                    .weights_only = j->weights_only, .cast = j->dtype != 0,
                                    .weights = dtypes[j->dtype], .like = j->target.q.like };
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out, .shape = j->shape.buf };
    struct report *notes = report_new();
    struct zero_target *t = NULL;
    int rc = -1;

    if (check_zero_options(j, s, e) == 0 && resolve_reshape_groups(j, s, &q, notes, e) == 0)
        t = zero_target_new(s, &q, notes, e);
    if (t)
        rc = zero_write(&c, t, notes, e);
    zero_target_free(t);
    report_free(notes);
    return rc;
}
