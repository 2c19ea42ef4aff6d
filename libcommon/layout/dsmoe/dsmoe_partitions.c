/*
 * dsmoe_partitions.c - assign the states of ZeRO-1 and 2
 *
 * As without experts, a group of the optimizer is one flat vector, whose parameters param_shapes lists in order
 * (engine/zero_shape.h). The vector of a group that is not of experts is divided over all W data-parallel ranks. A
 * group of experts has a vector for each of its E expert-parallel ranks, divided over the W / E ranks that hold copies
 * of the same experts. Data-parallel rank d has expert-parallel rank d % E and part d / E of its vector, or, with
 * use_data_before_expert_parallelism in ds_config, rank d / (W / E) and part d % (W / E). partition_count[g] is W or
 * W / E.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dsmoe/dsmoe.h"
#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/model/zero_partition.h"

/* One flat vector of a rank's file. n_elems is -1 if it has none. */
struct flat_part {
    int record;
    enum dtype dtype;
    uint64_t at;
    int64_t n_elems;
};

/* The optimizers of all ranks, which are being read. */
struct partition_reader {
    struct dsmoe *x;
    const struct dsmoe_optim *file;     /* [x->world] */
    bool data_first;                    /* use_data_before_expert_parallelism */
    bool moments;                       /* the files have moments */
    struct zero_shape shape;
    struct flat_part (*part)[TRAINED_STATES];   /* [world]: the vectors of the group that is being read */
};

/* A group that is being read. */
struct part_group {
    int g;
    bool experts;
    int count, n_ep;                    /* numbers of parts of a vector, and of vectors */
    struct zero_group *of;
};

static bool refuse_parts(const struct partition_reader *q, int rank, const char *why)
{
    return dsmoe_refuse_optimizer(q->x, q->file[rank].pt, why);
}

/* Returns the data-parallel rank with part `part` of the vector of expert-parallel rank `ep`. */
static int rank_of_part(const struct partition_reader *q, const struct part_group *p, int ep, int part)
{
    return q->data_first ? ep * p->count + part : part * p->n_ep + ep;
}

/* ---- a group ---- */

/* Read the paddings after each parameter, if they are stored. Returns false after a report. */
static bool read_alignment(const struct partition_reader *q, const struct part_group *p)
{
    const struct pk *pads = pk_get(q->file[0].tree, "param_alignment_paddings");
    uint32_t n = 0;
    struct pk **pad = pk_items(adam_list_at(pads, p->g), &n);
    bool good = pk_is_none(pads) || (pad && (int64_t)n == p->of->n);

    for (int i = 0; good && pad && i < p->of->n; i++)
        good = pk_as_int(pad[i], &p->of->slot[i].pad) && p->of->slot[i].pad >= 0 && p->of->slot[i].pad < 4096;
    return good || refuse_parts(q, 0, "param_alignment_paddings do not fit param_shapes");
}

/* Find how the vector of group g is divided. Returns false after a report. */
static bool find_parts(const struct partition_reader *q, int g, struct part_group *p)
{
    const struct pk *settings = dsmoe_settings(&q->file[0], g);
    const int stated = dsmoe_group_ranks(settings), world = q->x->world;
    int64_t count = -1;

    *p = (struct part_group){ .g = g, .experts = dsmoe_is_expert_group(settings), .of = &q->shape.group[g] };
    if (!pk_as_int(adam_list_at(pk_get(q->file[0].tree, "partition_count"), g), &count))
        count = !p->experts ? world : stated > 0 && world % stated == 0 ? world / stated : -1;
    if (count < 1 || count > world || world % count != 0 || (!p->experts && count != world) ||
        (p->experts && stated > 0 && stated != world / count)) {
        report_add(q->x->r, SEV_ERROR, "degrees", pt_path(q->file[0].pt), ERR_NO_BYTE, NULL,
                   "group %d%s is divided into %lld parts (partition_count), which contradicts dp_world_size %d%s", g,
                   p->experts ? ", of experts," : "", (long long)count, world,
                   p->experts ? " or the ranks in the group's name" : "");
        return false;
    }
    p->count = (int)count;
    p->n_ep = world / p->count;
    if (!read_alignment(q, p))
        return false;
    for (int i = 0; i < p->of->n; i++) {
        struct zero_slot *slot = &p->of->slot[i];

        slot->first = p->of->need;
        p->of->need += slot->n_elems + slot->pad;
    }
    p->of->part = zero_partition_elems(p->of->need, p->count);
    return true;
}

/* Returns the number of elements of part number `part` without the padding at the end of the vector. */
static int64_t lean_elems(const struct part_group *p, int part)
{
    const int64_t left = p->of->need - part * p->of->part;

    return left < 0 ? 0 : left > p->of->part ? p->of->part : left;
}

/* ---- a file ---- */

/* Read one vector of a rank. Returns false after a report if it does not fit. */
static bool read_flat_part(const struct partition_reader *q, const struct part_group *p, int d, int state,
                           const struct pk *v)
{
    const int part = q->data_first ? d % p->count : d / p->n_ep;
    const char *word = state_name(trained_states[state]);
    struct pt_tensor t;

    q->part[d][state].n_elems = -1;
    if (!v)
        return true;
    if (!pt_tensor(q->file[d].pt, v, &t) || !t.contiguous || !dtype_is_float(t.dtype))
        return refuse_parts(q, d, arena_fmt(q->x->s->arena, "%s of group %d is no contiguous tensor of floats", word,
                                            p->g));
    if (t.n_elems < lean_elems(p, part) || t.n_elems > p->of->part) {
        report_add(q->x->r, SEV_ERROR, "partition", pt_path(q->file[d].pt), ERR_NO_BYTE, NULL,
                   "group %d: %s has %lld elements, but param_shapes and %d ranks need %lld", p->g, word,
                   (long long)t.n_elems, p->count, (long long)p->of->part);
        return false;
    }
    q->part[d][state] = (struct flat_part){ t.record, t.dtype, t.at, t.n_elems };
    return true;
}

/* Compare the padding that a file records with that of the rule. */
static void check_group_padding(const struct partition_reader *q, const struct part_group *p, int d)
{
    const struct pk *pads = pk_get(q->file[d].tree, "group_paddings");
    const int part = q->data_first ? d % p->count : d / p->n_ep;
    const int64_t want = p->of->part - lean_elems(p, part);
    const int64_t all = part == p->count - 1 ? p->of->part * p->count - p->of->need : 0;
    int64_t recorded = -1;

    /* Some releases record the group's whole padding in the last part, even if it extends over several parts. */
    if (pads && (!pk_as_int(adam_list_at(pads, p->g), &recorded) || (recorded != want && recorded != all)))
        report_add(q->x->r, SEV_ERROR, "padding", pt_path(q->file[d].pt), ERR_NO_BYTE, NULL,
                   "group %d: padding %lld recorded, %lld expected", p->g, (long long)recorded, (long long)want);
}

/* Compare the places of parameters that a file records with those of the rule. */
static void check_group_mapping(const struct partition_reader *q, const struct part_group *p, int d)
{
    const struct pk *map = adam_list_at(pk_get(q->file[d].tree, "param_slice_mappings"), p->g);
    const struct pk *zero = pk_get(pk_get(q->x->root, "ds_config"), "zero_optimization");
    const int part = q->data_first ? d % p->count : d / p->n_ep;

    /* With round_robin_gradients DeepSpeed writes the places of other tensors (docs/formats.md, section 11). */
    if (!map || pk_int_or(pk_get(zero, "round_robin_gradients"), 0))
        return;
    for (int i = 0; i < p->of->n; i++) {
        const struct zero_slot *slot = &p->of->slot[i];
        const struct pk *entry = pk_get(map, slot->name);
        int64_t at, skip, start = -1, count = -1;
        const int64_t n = zero_fragment(slot->first, slot->n_elems, p->of->part, part, &at, &skip);

        pk_as_int(pk_get(entry, "start"), &start);
        pk_as_int(pk_get(entry, "numel"), &count);
        if (n ? entry && start == at && count == n : !entry)
            continue;
        report_add(q->x->r, dsmoe_mismatch(q->x), "mapping", pt_path(q->file[d].pt), ERR_NO_BYTE, slot->name,
                   "param_slice_mappings of group %d differ from param_shapes and the partition rule: it is the file "
                   "of another rank or save", p->g);
        return;
    }
}

/* Read the vectors of a group in the file of rank d. Returns false after a report. */
static bool read_rank_group(const struct partition_reader *q, const struct part_group *p, int d)
{
    const struct dsmoe_optim *f = &q->file[d];
    const struct pk *state = adam_group_state(f->tree, p->g);
    const struct pk *value[TRAINED_STATES] = {
        adam_list_at(pk_get(f->tree, "single_partition_of_fp32_groups"), p->g), pk_get(state, "exp_avg"),
        pk_get(state, "exp_avg_sq") };
    bool good = dsmoe_adam_alone(q->x, f, state);

    if (good && !value[0])
        good = refuse_parts(q, d, arena_fmt(q->x->s->arena, "single_partition_of_fp32_groups has no group %d", p->g));
    if (good && ((value[1] != NULL) != q->moments || (value[2] != NULL) != q->moments))
        good = refuse_parts(q, d, arena_fmt(q->x->s->arena, "group %d has not the moments that other groups or ranks "
                                            "have", p->g));
    for (int k = 0; k < TRAINED_STATES && good; k++)
        good = read_flat_part(q, p, d, k, value[k]);
    if (good) {
        check_group_padding(q, p, d);
        if (!report_has(q->x->r, "other_rank", pt_path(f->pt), ERR_NO_BYTE))
            check_group_mapping(q, p, d);
        dsmoe_set_step(q->x, f, state);
    }
    return good;
}

/* ---- parameters ---- */

/* Returns the map of a state of a parameter, whose slot is in the vector of rank `ep`; NULL after a report. */
static struct tmap *map_slot(const struct partition_reader *q, const struct part_group *p, int ep,
                             const struct zero_slot *slot, int state)
{
    const int first = slot->n_elems ? (int)(slot->first / p->of->part) : 0;
    const int last = slot->n_elems ? (int)((slot->first + slot->n_elems - 1) / p->of->part) : 0;
    const enum dtype dtype = q->part[rank_of_part(q, p, ep, first)][state].dtype;
    const uint64_t size = (uint64_t)dtype_size(dtype);
    struct tmap *map = dsmoe_new_map(q->x, dtype, slot->n_elems, last - first + 1);

    for (int k = first; k <= last; k++) {
        const int d = rank_of_part(q, p, ep, k);
        const struct flat_part *part = &q->part[d][state];
        int64_t at, skip;
        const int64_t n = zero_fragment(slot->first, slot->n_elems, p->of->part, k, &at, &skip);

        if (part->dtype != dtype) {
            refuse_parts(q, d, arena_fmt(q->x->s->arena, "%s of group %d has another type than on other ranks",
                                         state_name(trained_states[state]), p->g));
            return NULL;
        }
        if (n)
            map->slice->extent[map->slice->n_extents++] =
                (struct extent){ part->record, part->at + (uint64_t)at * size, (uint64_t)n * size };
    }
    return map;
}

/* Assign the states of one parameter of the vector of rank `ep`. Returns false after a report. */
static bool assign_slot(const struct partition_reader *q, const struct part_group *p, int ep,
                        const struct zero_slot *slot)
{
    const char *name = p->experts ? dsmoe_global_name(q->x, slot->name, ep, p->n_ep) : slot->name, *rest;
    const int at = name ? names_find(q->x->known, name) : -1;
    struct optim_group *to = &q->x->s->groups->group[p->g];
    struct param *param = at < 0 ? NULL : &q->x->s->param[at];
    int expert;

    if (!param || !shape_equal(param->ndim, param->shape, slot->ndim, slot->shape))
        return dsmoe_refuse_optimizer(q->x, q->x->model, arena_fmt(
            q->x->s->arena, "param_shapes lists %s%s, which the model does not have with this shape", slot->name,
            p->experts ? arena_fmt(q->x->s->arena, " of %d ranks", p->n_ep) : ""));
    if (!p->experts && dsmoe_layer_of(q->x, name, &expert, &rest))
        return dsmoe_refuse_optimizer(q->x, q->x->model, arena_fmt(
            q->x->s->arena, "group %d has the parameter %s of an expert, but is not a group of experts", p->g, name));
    if (param->state[STATE_EXP_AVG] || param->copy || (param->state[STATE_FP32] && param->state[STATE_BF16]))
        return dsmoe_refuse_optimizer(q->x, q->x->model, arena_fmt(q->x->s->arena, "param_shapes lists %s twice",
                                                                   slot->name));
    to->param[to->n++] = param->name;
    for (int k = 0; k < (q->moments ? TRAINED_STATES : 1); k++) {
        struct tmap *map = map_slot(q, p, ep, slot, k);

        if (!map)
            return false;
        if (k == 0 && param->state[STATE_FP32])
            param->copy = param->state[STATE_FP32];
        param->state[trained_states[k]] = map;
    }
    return true;
}

/* Read one group. Returns false after a report. */
static bool read_part_group(const struct partition_reader *q, int g)
{
    struct part_group p;
    bool good = find_parts(q, g, &p);

    for (int d = 0; d < q->x->world && good; d++)
        good = read_rank_group(q, &p, d);
    for (int ep = 0; ep < p.n_ep && good; ep++)
        for (int i = 0; i < p.of->n && good; i++)
            good = assign_slot(q, &p, ep, &p.of->slot[i]);
    if (good && p.experts)
        dsmoe_sort_group(q->x, g);
    return good;
}

/* Check the stage and the number of groups in all files. Returns false after a report. */
static bool check_part_files(const struct partition_reader *q, int n)
{
    const int n_groups = q->x->s->groups->n;

    if (q->shape.n_groups != n_groups)
        return refuse_parts(q, 0, arena_fmt(q->x->s->arena, "has %d groups, and param_shapes %d", n_groups,
                                            q->shape.n_groups));
    for (int d = 0; d < n; d++) {
        const int64_t stage = run_state_zero_stage(q->file[d].tree);
        uint32_t n_masters = 0;

        if (stage > 2)
            return refuse_parts(q, d, arena_fmt(q->x->s->arena, "zero_stage is %lld, expected 1 or 2",
                                                (long long)stage));
        if (!pk_items(pk_get(q->file[d].tree, "single_partition_of_fp32_groups"), &n_masters) ||
            n_masters != (uint32_t)n_groups)
            return refuse_parts(q, d, arena_fmt(q->x->s->arena, "single_partition_of_fp32_groups has %u groups, and "
                                                "param_groups %d", n_masters, n_groups));
    }
    return true;
}

bool dsmoe_read_partitions(struct dsmoe *x, const struct dsmoe_optim *f, int n)
{
    struct partition_reader q = { .x = x, .file = f };
    bool good = n == x->world && zero_shape_read(&q.shape, x->s->arena, pk_get(x->root, "param_shapes"),
                                                 pt_path(x->model), x->r);

    q.data_first = pk_int_or(pk_get(pk_get(x->root, "ds_config"), "use_data_before_expert_parallelism"), 0) != 0;
    q.moments = pk_get(adam_group_state(f[0].tree, 0), "exp_avg") != NULL;
    q.part = xcalloc((size_t)n, sizeof *q.part);
    dsmoe_new_groups(x, &f[0]);
    good = good && check_part_files(&q, n);
    for (int g = 0; g < q.shape.n_groups && good; g++)
        good = read_part_group(&q, g);
    if (good && !q.moments)
        report_add(x->r, SEV_WARNING, "no_moments", x->s->path, ERR_NO_BYTE, NULL,
                   "has no moments of Adam, only masters");
    if (!good)
        x->s->groups = NULL;
    free(q.part);
    return good;
}
