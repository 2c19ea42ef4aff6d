/*
 * zero_params.c - make the parameter list and its tensor maps from the tables
 *
 * A rank that holds a part of a parameter's master weights or moments contributes one extent to their map
 * (zero_piece()). Padding belongs to no parameter. Up to ZeRO-2, the weights are views in rank 0's model_states.
 * ZeRO-3 stores the weights of frozen parameters only, one piece per rank. The list is in the model's order.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/engine/zero_second.h"
#include "libcommon/layout/zero/zero_source.h"

/* The group and slot of a parameter. */
struct zero_place {
    int group;
    const struct zero_slot *slot;
};

static int find_frozen(const struct zero *z, const char *name)
{
    for (int i = 0; i < z->n_frozen; i++)
        if (strcmp(z->frozen[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- tensor maps ---- */

static struct tmap *new_zero_map(struct zero *z, enum dtype dtype, int64_t n_elems, int n_extents)
{
    struct tmap *m = arena_alloc(z->s->arena, sizeof *m);

    m->op = TMAP_CONCAT;
    m->dtype = dtype;
    m->len = (uint64_t)n_elems * (uint64_t)dtype_size(dtype);
    m->n_slices = 1;
    m->slice = arena_alloc(z->s->arena, sizeof *m->slice);
    m->slice->len = m->len;
    m->slice->extent = arena_alloc(z->s->arena, ((size_t)n_extents + 1) * sizeof *m->slice->extent);
    return m;
}

static void add_run_extent(struct tmap *m, const struct zero_run *run, int64_t at, int64_t n)
{
    uint64_t size = (uint64_t)dtype_size(m->dtype);

    m->slice->extent[m->slice->n_extents++] =
        (struct extent){ run->record, run->at + (uint64_t)at * size, (uint64_t)n * size };
}

/* Set [*first, *last] to the ranks that may hold parts of the parameter at place p. */
static void ranks_of(const struct zero *z, const struct zero_place *p, int *first, int *last)
{
    int64_t part = z->shape.group[p->group].part;

    *first = 0;
    *last = z->world - 1;
    if (z->stage == 3 || p->slot->n_elems == 0)
        return;
    *first = (int)(p->slot->first / part);
    *last = (int)((p->slot->first + p->slot->n_elems - 1) / part);
}

static void add_hole(struct zero *z, struct tmap *m, const char *name, int64_t n)
{
    m->slice->extent[m->slice->n_extents++] =
        pt_hole(&z->holes, z->s, name, (uint64_t)n * (uint64_t)dtype_size(m->dtype));
}

/*
 * For a lost rank: returns the run of this state in the lead rank's file, because the lost run has the same length and
 * type. Returns NULL if lost data are not permitted (source_opts.holes), or if the lead rank lacks this state.
 */
static const struct zero_run *lead_run(const struct zero *z, int group, int state)
{
    const struct zero_rank *lead = z->like ? z->like : &z->rank[z->lead];

    return z->o->holes && lead->run && lead->run[group][state].record >= 0 ? &lead->run[group][state] : NULL;
}

/*
 * Returns the map of one flat state of a parameter, over all ranks. Returns NULL if a rank that holds a part of it is
 * not usable; this has been reported.
 */
static struct tmap *make_flat_state_map(struct zero *z, const struct zero_place *p, int state)
{
    const struct zero_run *lead = lead_run(z, p->group, state);
    struct tmap *m = NULL;
    int first, last;
    int64_t at, skip;

    ranks_of(z, p, &first, &last);
    for (int r = first; r <= last; r++) {
        int64_t n = zero_piece(&z->shape, p->group, p->slot, r, &at, &skip);
        const struct zero_run *run = z->rank[r].run ? &z->rank[r].run[p->group][state] : NULL;

        if (n == 0 && p->slot->n_elems > 0)
            continue;
        if (lead && (!run || run->record < 0)) {
            m = m ? m : new_zero_map(z, lead->dtype, p->slot->n_elems, last - first + 1);
            if (n > 0)
                add_hole(z, m, z->optim_file[r] >= 0 ? z->s->file[z->optim_file[r]].name : zero_optim_name(z, r), n);
            continue;
        }
        if (!run || run->record < 0)
            return NULL;
        if (!m)
            m = new_zero_map(z, run->dtype, p->slot->n_elems, last - first + 1);
        if (run->dtype != m->dtype) {
            report_add(z->r, SEV_ERROR, "dtype", z->s->path, ERR_NO_BYTE, p->slot->name,
                       "is %s on rank %d, but %s on rank %d",
                       dtype_name(m->dtype), first, dtype_name(run->dtype), r);
            return NULL;
        }
        if (n > 0)
            add_run_extent(m, run, at, n);
    }
    return m;
}

struct tmap *zero_tensor_map(struct zero *z, const char *name, const struct pt_tensor *t)
{
    const struct zero_run run = { t->record, t->at, t->n_elems, t->dtype };
    struct tmap *m;

    if (!t->contiguous) {
        report_add(z->r, SEV_ERROR, "strided", z->path, ERR_NO_BYTE, name, "is not contiguous");
        return NULL;
    }
    m = new_zero_map(z, t->dtype, t->n_elems, 1);
    if (t->n_elems > 0)
        add_run_extent(m, &run, 0, t->n_elems);
    return m;
}

static struct tmap *make_whole_weights_map(struct zero *z, const struct zero_tensor *t)
{
    return zero_tensor_map(z, t->name, &t->t);
}

/*
 * Returns the map of the trained tensor t whose model_states file is lost. The map is a hole: an extent without data.
 */
static struct tmap *lost_map(struct zero *z, const struct zero_tensor *t)
{
    struct tmap *m = new_zero_map(z, t->t.dtype, t->t.n_elems, 1);

    if (t->t.n_elems > 0)
        add_hole(z, m, z->lost_model, t->t.n_elems);
    return m;
}

/*
 * Returns the type of frozen parameter i, as read from any rank that has a piece of it. Returns DTYPE_N if no rank has
 * one.
 */
static enum dtype type_of_frozen(const struct zero *z, int i)
{
    for (int r = 0; r < z->world; r++)
        if (z->rank[r].frozen && z->rank[r].frozen[i].record >= 0)
            return z->rank[r].frozen[i].dtype;
    return DTYPE_N;
}

/* Returns the map of the pieces of frozen parameter i over all ranks. Returns NULL if a piece is not usable. */
static struct tmap *frozen_map(struct zero *z, int i)
{
    const struct zero_slot *s = &z->frozen[i];
    const enum dtype type = type_of_frozen(z, i);
    int64_t c = zero_piece_elems(s->n_elems, z->world);
    struct tmap *m = NULL;

    for (int r = 0; r < z->world; r++) {
        const struct zero_run *run = z->rank[r].frozen ? &z->rank[r].frozen[i] : NULL;
        int64_t left = s->n_elems - r * c;

        if (!run && z->o->holes && type != DTYPE_N) {
            m = m ? m : new_zero_map(z, type, s->n_elems, z->world);
            if (left > 0)
                add_hole(z, m, z->model_file[r] >= 0 ? z->s->file[z->model_file[r]].name : zero_model_name(z, r),
                         left < c ? left : c);
            continue;
        }
        if (!run || run->record < 0 || (m && run->dtype != m->dtype))
            return NULL;
        if (!m)
            m = new_zero_map(z, run->dtype, s->n_elems, z->world);
        if (left > 0)
            add_run_extent(m, run, 0, left < c ? left : c);
    }
    return m;
}

/* ---- parameters ---- */

/*
 * Store the map m of p's weights. Weights that are not fp32 become the state STATE_BF16. fp32 weights become the
 * master weights if p has none, otherwise p->copy.
 */
static void put_weights(struct param *p, struct tmap *m)
{
    if (m && m->dtype != DTYPE_F32)
        p->state[STATE_BF16] = m;
    else if (!p->state[STATE_FP32])
        p->state[STATE_FP32] = m;
    else
        p->copy = m;
}

static struct param *add_zero_param(struct zero *z, const char *name, int ndim, const int64_t *shape)
{
    struct param *p = &z->s->param[z->s->n_params++];

    p->name = name;
    p->ndim = ndim;
    memcpy(p->shape, shape, (size_t)ndim * sizeof *shape);
    p->stage = -1;
    p->group = -1;
    return p;
}

static bool has_slot_shape(const struct zero_slot *s, const struct pt_tensor *t)
{
    return shape_equal(s->ndim, s->shape, t->ndim, t->shape);
}

/* Add the trained parameter at `place`. t is its tensor in `module`, or NULL if `module` does not have it. */
static void make_trained(struct zero *z, const struct zero_place *place, const struct zero_tensor *t)
{
    struct param *p = add_zero_param(z, place->slot->name, place->slot->ndim, place->slot->shape);

    p->group = place->group;
    if (z->o->no_tensors)
        return;
    /* if the optimizer's files did not show how vectors are partitioned, world is 0, and there are no states */
    for (int s = 0; s < ZERO_STATES && z->shape.world > 0; s++)
        p->state[zero_states[s]] = make_flat_state_map(z, place, s);
    if (z->stage == 3)
        return;
    if (!t)
        report_add(z->r, SEV_ERROR, "missing_key", z->path, ERR_NO_BYTE, p->name, "`module` has no tensor of it");
    else if (!has_slot_shape(place->slot, &t->t))
        report_add(z->r, SEV_ERROR, "shape", z->path, ERR_NO_BYTE, p->name,
                   "its tensor in `module` has another shape than param_shapes");
    else if (z->lost_model)
        put_weights(p, lost_map(z, t));
    else
        put_weights(p, make_whole_weights_map(z, t));
}

/* Returns true if the frozen_param_fragments of a rank lack frozen parameter i. read_frozen_piece() reports this. */
static bool lacks_reported_piece(const struct zero *z, int i)
{
    for (int r = 0; r < z->world; r++)
        if (z->rank[r].frozen && z->rank[r].frozen[i].record < 0)
            return true;
    return false;
}

static void make_frozen_param(struct zero *z, int i, const struct zero_tensor *t)
{
    const struct zero_slot *s = &z->frozen[i];
    struct param *p = add_zero_param(z, s->name, s->ndim, s->shape);

    if (z->o->no_tensors)
        return;
    if (z->stage == 3)
        put_weights(p, frozen_map(z, i));
    else if (t && has_slot_shape(s, &t->t))
        put_weights(p, z->other_rank ? lost_map(z, t) : make_whole_weights_map(z, t));
    if (p->state[STATE_BF16] || p->state[STATE_FP32])
        return;
    if (z->stage == 3 && !z->lost_model && type_of_frozen(z, i) != DTYPE_N) {
        if (!lacks_reported_piece(z, i))
            report_add(z->r, SEV_ERROR, "missing_key", z->path, ERR_NO_BYTE, p->name,
                       "a frozen parameter: a rank has no piece of it (frozen_param_fragments), or a piece of another "
                       "type");
        return;
    }
    if (z->stage != 3 && t && t->t.n_elems > 0 && !has_slot_shape(s, &t->t)) {
        report_add(z->r, SEV_ERROR, "shape", z->path, ERR_NO_BYTE, p->name,
                   "its tensor in `module` has another shape than frozen_param_shapes");
        return;
    }
    report_add(z->r, z->lost_model ? SEV_ERROR : SEV_WARNING, "missing_key", z->path, ERR_NO_BYTE, p->name,
               z->lost_model ? "a frozen parameter whose pieces are lost with the model_states files"
                             : "a frozen parameter without its values (exclude_frozen_parameters?)");
}

/*
 * Compare the tensor of a second name with the tensor of the first name. In ZeRO-1 and 2, `module` has both. The shapes
 * are compared, and also the values if these are stored separately.
 */
static void check_shared(struct zero *z, const struct zero_tensor *t, const struct param *holder)
{
    const struct zero_tensor *first = NULL;

    for (int i = 0; i < z->n_tensors && !first; i++)
        first = strcmp(z->tensor[i].name, t->shared_with) == 0 ? &z->tensor[i] : NULL;
    if (z->stage == 3 || !first || t->t.n_elems == 0 || first->t.n_elems == 0)
        return;
    if (!shape_equal(t->t.ndim, t->t.shape, holder->ndim, holder->shape)) {
        report_add(z->r, SEV_ERROR, "shape", z->path, ERR_NO_BYTE, t->name,
                   "has another shape in `module` than %s, whose tensor it shares by shared_params", holder->name);
        return;
    }
    if (!z->o->no_tensors && zero_tensors_differ(z->s->files, &t->t, &first->t))
        report_add(z->r, z->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "tied", z->path, ERR_NO_BYTE, t->name,
                   "differs in `module` from %s, whose tensor it shares by shared_params", holder->name);
}

/*
 * Add the parameter t, which is another name of a tensor. Its states are those of the parameter that holds the tensor.
 */
static void make_shared(struct zero *z, const struct zero_tensor *t)
{
    const struct param *holder = source_param(z->s, t->shared_with);
    struct param *p;

    if (!holder)
        return;
    check_shared(z, t, holder);
    p = add_zero_param(z, t->name, holder->ndim, holder->shape);
    p->state[STATE_BF16] = holder->state[STATE_BF16];
    p->state[STATE_FP32] = holder->state[STATE_FP32];
    p->shared_with = holder->name;
}

/*
 * Report the tensor t of `module`, which is neither in the optimizer's groups nor in a list of buffers, of frozen or of
 * shared parameters. If there are no such lists, as in ZeRO-1, it may be a frozen parameter.
 */
static void report_unlisted(struct zero *z, const struct zero_tensor *t)
{
    const bool lists_frozen = !pk_is_none(pk_get(z->root, "frozen_param_shapes"));

    if (z->without_zero || z->lost_model || t->t.n_elems == 0)
        return;
    report_add(z->r, lists_frozen ? SEV_WARNING : SEV_NOTE, "unlisted", z->path, ERR_NO_BYTE, t->name,
               "is in `module`, but neither param_shapes, frozen_param_shapes nor buffer_names lists it: %s",
               z->stage == 3 ? "it is not read as a parameter" : "it is read as a weight that is not trained");
}

static void make_zero_param(struct zero *z, struct zero_tensor *t)
{
    struct zero_place place = { -1, NULL };
    int frozen = find_frozen(z, t->name);

    place.group = zero_shape_find(&z->shape, t->name, &place.slot);
    if (place.group >= 0)
        make_trained(z, &place, t);
    else if (frozen >= 0)
        make_frozen_param(z, frozen, t);
    else
        report_unlisted(z, t);
    if (place.group < 0 && frozen < 0 && z->stage == 3)
        return;
    /* The tensor is frozen (ZeRO-1 does not list frozen parameters), or is not trained, or has no elements. */
    if (place.group < 0 && frozen < 0)
        put_weights(add_zero_param(z, t->name, t->t.ndim, t->t.shape), make_whole_weights_map(z, t));
    t->used = true;
}

void zero_params_make(struct zero *z)
{
    struct source *s = z->s;
    struct names *met = names_new(s->arena);
    int n = z->n_tensors + z->n_frozen;

    for (int g = 0; g < z->shape.n_groups; g++)
        n += z->shape.group[g].n;
    s->param = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *s->param);
    for (int i = 0; i < z->n_tensors; i++) {
        names_add(met, z->tensor[i].name, i);
        if (!z->tensor[i].buffer && !z->tensor[i].shared_with)
            make_zero_param(z, &z->tensor[i]);
    }
    /* Names in the groups that `module` does not have are parameters as well. */
    for (int g = 0; g < z->shape.n_groups; g++)
        for (int i = 0; i < z->shape.group[g].n; i++)
            if (names_find(met, z->shape.group[g].slot[i].name) < 0)
                make_trained(z, &(struct zero_place){ g, &z->shape.group[g].slot[i] }, NULL);
    for (int i = 0; i < z->n_frozen; i++)
        if (names_find(met, z->frozen[i].name) < 0)
            make_frozen_param(z, i, NULL);
    for (int i = 0; i < z->n_tensors; i++)
        if (z->tensor[i].shared_with)
            make_shared(z, &z->tensor[i]);
}
