/*
 * zero_target.c - determine the groups of a target, their order, and everything else that depends on the number of
 * ranks
 */
#include "libcommon/layout/zero/zero_target.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/engine/zero_order.h"
#include "libcommon/layout/engine/zero_pickles.h"
#include "libcommon/layout/engine/zero_storages.h"

/*
 * Find the trees of the source that the target uses: that of the lowest rank's model_states, and, if more than weights
 * are requested, that of an optim_states file.
 */
static int find_target_root(struct zero_target *t, const struct zero_request *q, struct err *e)
{
    const struct source *s = t->src;

    t->root = pt_root(t->root_pt);
    t->weights = q->cast ? q->weights : s->weights;
    t->step_in_state = s->run.step_in_state;
    t->step_is_tensor = s->run.step_is_tensor;
    if (t->weights_only)
        return 0;
    t->opt = s->run.optimizer;
    t->opt_pt = s->run.optimizer_pt;
    t->param_groups = s->run.param_groups;
    if (t->opt)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "has no optimizer states: ZeRO's files are made of masters and moments; of "
             "ZeRO-1 and 2 --weights-only writes the weights, for load_checkpoint(load_module_only=True)");
    return -1;
}

/* Make the trees, for a source of another layout. */
static int make_target_root(struct zero_target *t, const struct zero_request *q, struct report *notes, struct err *e)
{
    const struct zero_import from = { .purpose = q->weights_only ? ZERO_FOR_WEIGHTS : ZERO_FOR_RANKS, .like = q->like,
                                      .weights = q->cast ? q->weights : DTYPE_N };
    struct zero_pickles made;

    if (!t->src->groups) {
        err_usage(e,
                  "%s: is not a checkpoint of DeepSpeed without pipeline or a universal form of one: it cannot be "
                  "converted to ZeRO files", t->src->path);
        return -1;
    }
    zero_pickles_make(&made, t->src, &from, t->arena, notes);
    t->root = made.model;
    t->opt = made.optimizer;
    t->param_groups = made.param_groups;
    t->weights = made.weights;
    t->step_in_state = made.step_in_state;
    t->step_is_tensor = made.step_is_tensor;
    return 0;
}

/* ---- the run's configuration ---- */

static const struct pk *zero_config(const struct zero_target *t)
{
    return pk_get(pk_get(t->root, "ds_config"), "zero_optimization");
}

static bool has_prefix(const struct zero_target *t, bool as_was)
{
    int64_t enabled = 0;

    for (int i = 0; i < t->src->n_files && as_was; i++)
        if (t->src->file[i].cls == FILE_OPTIMIZER && ds_name_parse(t->src->file[i].name).kind == DS_ZERO)
            return ds_name_parse(t->src->file[i].name).bf16;
    return pk_as_int(pk_get(pk_get(pk_get(t->root, "ds_config"), "bf16"), "enabled"), &enabled) && enabled;
}

/* ---- groups of the optimizer ---- */

static int all_slots(const struct zero_shape *x)
{
    int n = 0;

    for (int g = 0; g < x->n_groups; g++)
        n += x->group[g].n;
    return n;
}

/*
 * Set the padding after each parameter of g. If `aligned` is true, each parameter except the last is padded to a
 * multiple of 16 bytes of weights. Otherwise there is no padding.
 */
static void fill_up(struct zero_target *t, struct zero_group *g, bool aligned)
{
    int64_t unit = 16 / dtype_size(t->weights);

    for (int i = 0; i < g->n; i++)
        g->slot[i].pad = aligned && i + 1 < g->n ? (unit - g->slot[i].n_elems % unit) % unit : 0;
}

/* Split one group into sub-groups. A sub-group ends as soon as its pieces have at least `most` elements in total. */
static void split_group(struct zero_target *t, const struct zero_group *from, int group, int64_t most, int world)
{
    struct zero_shape *x = &t->shape;
    int64_t sum = 0;
    int g = x->n_groups;

    for (int i = 0; i < from->n; i++)
        sum += zero_piece_elems(from->slot[i].n_elems, world);
    if (most >= sum)
        most = sum + 1;
    x->group[g] = zero_order_new_group(t->arena, from->n);
    t->group_of[g] = group;
    sum = 0;
    for (int i = 0; i < from->n; i++) {
        x->group[g].slot[x->group[g].n++] = from->slot[i];
        sum += zero_piece_elems(from->slot[i].n_elems, world);
        if (sum < most || i + 1 == from->n)
            continue;
        x->group[++g] = zero_order_new_group(t->arena, from->n);
        t->group_of[g] = group;
        sum = 0;
    }
    x->n_groups = g + 1;
}

static void split_groups(struct zero_target *t, int world)
{
    const struct zero_shape from = t->shape;
    double most = 1e9;

    pk_as_double(pk_get(zero_config(t), "sub_group_size"), &most);
    t->shape.n_groups = 0;
    t->shape.group = arena_alloc(t->arena, ((size_t)all_slots(&from) + (size_t)from.n_groups + 1) *
                                               sizeof *t->shape.group);
    t->group_of = arena_alloc(t->arena, ((size_t)all_slots(&from) + (size_t)from.n_groups + 1) * sizeof *t->group_of);
    for (int g = 0; g < from.n_groups; g++)
        split_group(t, &from.group[g], g, most < 1 ? 1 : most > 1e15 ? (int64_t)1e15 : (int64_t)most, world);
}

/*
 * Change the order of the groups: first from that of the source's files to that of the optimizer, and then to that of
 * the target's files.
 */
static int resolve_target_groups(struct zero_target *t, int stage, int world, struct err *e)
{
    if (t->root_pt ? zero_order_read(t->src, t->arena, &t->shape, e) < 0
                   : zero_order_read_shapes(t->root, t->arena, t->src->path, &t->shape, e) < 0)
        return -1;
    t->n_groups = t->shape.n_groups;
    for (int g = 0; g < t->n_groups; g++) {
        if (stage < 3 && zero_order_switch(t->root, "round_robin_gradients"))
            zero_order_distribute(t->arena, &t->shape.group[g], world, false);
        fill_up(t, &t->shape.group[g], stage < 3 && zero_order_switch(t->root, "parameter_alignment"));
    }
    t->group_of = arena_alloc(t->arena, ((size_t)t->n_groups + 1) * sizeof *t->group_of);
    for (int g = 0; g < t->n_groups; g++)
        t->group_of[g] = g;
    if (stage == 3)
        split_groups(t, world);
    zero_shape_place(&t->shape, stage, world);
    zero_shape_index(&t->shape, t->arena);
    return 0;
}

/* ---- available states ---- */

int zero_target_group(const struct zero_target *t, const struct param *p)
{
    const struct zero_slot *slot;

    return zero_shape_find(&t->shape, p->name, &slot);
}

bool zero_target_trains(const struct zero_target *t, const struct param *p)
{
    return zero_target_group(t, p) >= 0;
}

const char *zero_target_holder(const struct zero_target *t, const char *name)
{
    return pk_as_str(pk_get(pk_get(t->root, "shared_params"), name));
}

enum dtype zero_target_vector(const struct zero_target *t, int g, enum state st)
{
    const struct zero_group *group = &t->shape.group[g];
    enum dtype type = DTYPE_N;

    for (int i = 0; i < group->n && t->root_pt; i++) {
        const struct param *p = source_param(t->src, group->slot[i].name);
        const struct tmap *m = p ? p->state[st] : NULL;

        if (!m || (m->dtype != DTYPE_BF16 && m->dtype != DTYPE_F16) || (type != DTYPE_N && m->dtype != type))
            return DTYPE_F32;
        type = m->dtype;
    }
    return type == DTYPE_N ? DTYPE_F32 : type;
}

const struct tmap *zero_target_weights(const struct zero_target *t, const struct param *p)
{
    const struct tmap *w = p->state[STATE_BF16], *master = p->state[STATE_FP32];

    return w && (w->dtype == t->weights || !master) ? w : master;
}

enum dtype zero_target_weights_type(const struct zero_target *t, const struct param *p)
{
    const struct tmap *master = p->state[STATE_FP32];
    const bool kept = t->src->layout->zero_files && t->src->zero_stage < 3 && t->shape.stage < 3 &&
                      t->weights == t->src->weights;

    return kept && !zero_target_trains(t, p) && !p->state[STATE_BF16] && master && master->dtype == DTYPE_F32
               ? DTYPE_F32 : t->weights;
}

static int check_fp32_states(const struct zero_target *t, struct report *notes, struct err *e)
{
    static const enum state due[] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };
    bool widened = false;

    for (int g = 0; !t->weights_only && g < t->shape.n_groups; g++)
        for (int i = 0; i < t->shape.group[g].n; i++) {
            const struct zero_slot *s = &t->shape.group[g].slot[i];
            const struct param *p = source_param(t->src, s->name);
            int op = -1;

            for (int k = 0; k < 3; k++)
                if (!p || !zero_state_map(p, due[k], &op) || op < 0) {
                    err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: %s in fp32 is missing: ZeRO needs masters "
                                                           "and moments", s->name, state_name(due[k]));
                    return -1;
                }
            widened = widened || !p->state[STATE_FP32];
        }
    if (widened)
        report_add(notes, SEV_WARNING, "masters", t->src->path, ERR_NO_BYTE, NULL,
                   "no fp32 masters are there: they are made of the weights, which are less exact");
    return 0;
}

/*
 * Check that all weights can be converted to the type in which the run computes. In a universal form, the values of
 * frozen parameters are fp32, but were made from weights of a smaller type.
 */
static int check_weights_castable(const struct zero_target *t, struct report *notes, struct err *e)
{
    for (int i = 0; i < t->src->n_params; i++) {
        const struct param *p = &t->src->param[i];
        const struct tmap *m = zero_target_weights(t, p);
        const bool trained = zero_target_trains(t, p);

        if (zero_target_holder(t, p->name) || (trained && t->shape.stage == 3))
            continue;
        if (!m && trained) {
            err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: its weights are not there", p->name);
            return -1;
        }
        if (m && plan_op_of(m->dtype, t->weights) < 0) {
            err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: is %s, which cannot be made %s", p->name,
                     dtype_name(m->dtype), dtype_name(t->weights));
            return -1;
        }
        if (m && !trained && t->src->layout->zero_files && !p->state[STATE_BF16] && m->dtype == DTYPE_F32 &&
            dtype_size(zero_target_weights_type(t, p)) == 2)
            report_add(notes, SEV_WARNING, "rounded", t->src->path, ERR_NO_BYTE, p->name,
                       "is fp32 and no buffer that the model names: it becomes %s as the other weights",
                       dtype_name(t->weights));
        if (!m && !trained)
            report_add(notes, SEV_WARNING, "missing_key", t->src->path, ERR_NO_BYTE, p->name,
                       "a frozen parameter whose values are not there: the new checkpoint lacks them, too");
    }
    return 0;
}

static int resolve_optimizer_form(struct zero_target *t, int stage, struct report *notes, struct err *e)
{
    int64_t was = run_state_zero_stage(t->opt);

    if (t->weights_only && stage == 3) {
        err_usage(e, "%s: ZeRO-3 stores weights only in the optimizer's files, which no engine loads without moments: "
                     "reshape --weights-only --to zero1 or zero2 writes them", t->src->path);
        return -1;
    }
    if (t->weights_only)
        return 0;
    if (optim_groups_adam_alone(t->src, e) < 0)
        return -1;
    t->elastic = !t->param_groups && stage < 3;
    t->whole = was == 0 && stage < 3 && pk_get(t->opt, "single_partition_of_fp32_groups");
    if (!t->param_groups && stage == 3) {
        err_data(e, t->src->path, ERR_NO_BYTE, "the elastic form has no settings of the optimizer's groups, which "
                 "ZeRO-3 needs");
        return -1;
    }
    if (stage == 3 && t->src->zero_stage < 3)
        report_add(notes, SEV_NOTE, "stage", NULL, ERR_NO_BYTE, NULL,
                   "ZeRO-3 stores no weights next to the masters: they are rounded from the masters");
    return 0;
}

struct zero_target *zero_target_new(const struct source *s, const struct zero_request *q, struct report *notes,
                                    struct err *e)
{
    struct zero_target *t = xcalloc(1, sizeof *t);
    struct pt *root_pt = zero_order_root(s);
    int stage = q->stage ? q->stage : root_pt ? s->zero_stage : 2, world = q->world ? q->world : s->topo.dp;

    t->arena = arena_new(0);
    t->src = s;
    t->weights_only = q->weights_only;
    t->root_pt = root_pt;
    if (root_pt ? find_target_root(t, q, e) < 0 : make_target_root(t, q, notes, e) < 0)
        goto failed;
    t->bf16_names = has_prefix(t, root_pt && !q->cast);
    if (resolve_optimizer_form(t, stage, notes, e) < 0 || resolve_target_groups(t, stage, world, e) < 0)
        goto failed;
    if (check_fp32_states(t, notes, e) < 0 || check_weights_castable(t, notes, e) < 0 ||
        (t->root_pt && zero_check_carried(t->root_pt, e) < 0) || (t->opt_pt && zero_check_carried(t->opt_pt, e) < 0))
        goto failed;
    return t;
failed:
    zero_target_free(t);
    return NULL;
}

void zero_target_free(struct zero_target *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    free(t);
}
