/*
 * universal_zero.c - find which parameters were trained, and their shapes
 */
#include "libcommon/layout/universal/universal_zero.h"

#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/layout/engine/zero_second.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/tmap.h"

/* Returns the index of the model_states file of the lowest rank, or -1 if there is none. */
static int find_model(const struct source *s)
{
    int best = -1, best_rank = 0;

    for (int i = 0; i < s->n_files; i++) {
        struct ds_name n = ds_name_parse(s->file[i].name);
        int rank = n.kind == DS_MP ? n.mp : n.dp;

        if ((n.kind == DS_MP || n.kind == DS_ZERO3) && (best < 0 || rank < best_rank)) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}

struct universal_zero universal_zero_open(struct source *s, struct report *r)
{
    struct universal_zero z = { .file = find_model(s), .tp = 1 };
    const struct source_file *f = &s->file[z.file];
    struct err e = {0};
    const bool opens = z.file >= 0 && !f->pt;   /* otherwise the caller has opened and checked the file */
    const struct pk *root;
    struct ds_name is;
    int64_t tp;
    uint32_t n;

    if (z.file < 0)
        return z;
    if (opens)
        s->file[z.file].pt = pt_open(s->files, f->file, &e);
    if (!f->pt) {
        report_add_err(r, "unreadable", &e);
        z.file = -1;
        return z;
    }
    is = ds_name_parse(f->name);
    if (opens) {
        ds_name_check(&is, f->pt, files_name(s->files, f->file), s->accept_mismatch ? SEV_WARNING : SEV_ERROR, r);
        pt_check(f->pt, s->files, f->file, r);
    }
    root = pt_root(f->pt);
    if (pk_as_int(pk_get(root, "mp_world_size"), &tp) && tp > 1 && tp < DS_RANK_MAX)
        z.tp = (int)tp;
    z.pt = f->pt;
    /*
     * The mp_rank file of the pipeline engine has no weights, because layer files hold these. In that case the form is
     * not one of ZeRO.
     */
    if (!pk_pairs(pk_get(root, "module"), &n) ||
        !zero_shape_read(&z.shape, s->arena, pk_get(root, "param_shapes"), files_name(s->files, f->file), r))
        z.file = -1;
    if (z.file >= 0) {
        zero_shape_check_module(&z.shape, root, files_name(s->files, f->file), SEV_ERROR, r);
        zero_shape_check_buffers(&z.shape, root, files_name(s->files, f->file), r);
    }
    return z;
}

/*
 * Find the shape of a buffer, or of a parameter that was not trained, in the model_states file. Returns false if the
 * file does not record the shape.
 */
static bool untrained_shape(const struct universal_zero *z, const char *name, struct pt_tensor *t)
{
    const struct pk *root = pt_root(z->pt);

    return zero_read_dims(pk_get(pk_get(root, "frozen_param_shapes"), name), &t->ndim, t->shape, &t->n_elems) ||
           (pt_tensor(z->pt, pk_get(pk_get(root, "module"), name), t) && t->n_elems > 0);
}

static int match_untrained(const struct universal_zero *z, const char *name, struct pt_tensor *t, const char *path,
                          struct report *r)
{
    struct pt_tensor is;
    bool same;

    if (z->tp > 1 || !untrained_shape(z, name, &is))
        return -1;
    same = shape_equal(t->ndim, t->shape, is.ndim, is.shape);
    if (!same && (t->ndim != 1 || t->n_elems != is.n_elems)) {
        report_add(r, SEV_ERROR, "shape", path, ERR_NO_BYTE, name,
                   "has %d dimensions and %lld elements, but the model_states file lists %d and %lld", t->ndim,
                   (long long)t->n_elems, is.ndim, (long long)is.n_elems);
        return -2;
    }
    t->ndim = is.ndim;
    memcpy(t->shape, is.shape, sizeof is.shape);
    return -1;
}

int universal_zero_match_tensor(const struct universal_zero *z, const char *name, struct pt_tensor *t, const char *path,
                                struct report *r)
{
    const struct zero_slot *slot;
    int group = zero_shape_find(&z->shape, name, &slot);
    bool same;

    if (group < 0)
        return match_untrained(z, name, t, path, r);
    if (z->tp > 1 && t->ndim == slot->ndim)
        /* every state file is a dict with the whole tensor, but param_shapes has only the shape of a slice */
        return group;
    same = shape_equal(t->ndim, t->shape, slot->ndim, slot->shape);
    if (!same && (t->ndim != 1 || t->n_elems != slot->n_elems)) {
        report_add(r, SEV_ERROR, "shape", path, ERR_NO_BYTE, name, "has %lld elements, but param_shapes lists %lld",
                   (long long)t->n_elems, (long long)slot->n_elems);
        return -2;
    }
    t->ndim = slot->ndim;
    memcpy(t->shape, slot->shape, sizeof slot->shape);
    return group;
}

/*
 * Report that there are fewer model_states files than ranks. ZeRO-3 has one file per rank, ZeRO-1 and 2 have one per
 * tensor-parallel rank.
 */
static void check_files(const struct universal_zero *z, const struct source *s, enum severity lost, struct report *r)
{
    const enum ds_kind kind = ds_name_parse(s->file[z->file].name).kind;
    const int want = kind == DS_ZERO3 ? s->topo.dp * s->topo.tp : z->tp;
    int n = 0;

    for (int i = 0; i < s->n_files; i++)
        n += ds_name_parse(s->file[i].name).kind == kind;
    if (n < want)
        report_add(r, lost, "missing_file", s->path, ERR_NO_BYTE, NULL,
                   "there are %d model_states files, but %s records %d ranks", n, s->file[z->file].name, want);
}

void universal_zero_state(const struct universal_zero *z, struct source *s, enum severity lost, struct report *r)
{
    const struct source_file *f = &s->file[z->file];
    const struct adam_file a = { s->files, s->run.optimizer_pt, s->path, s->run.optimizer };
    int64_t stage = run_state_zero_stage(s->run.optimizer), dp = 0;
    struct adam_step step = {0};

    if (stage < 1 || stage > 3)
        stage = ds_name_parse(f->name).kind == DS_ZERO3 ? 3 : 1;
    s->zero_stage = (int)stage;
    s->weights = zero_shape_weights(&z->shape, f->pt);
    s->run.n_groups = z->shape.n_groups;
    if (pk_as_int(pk_get(pt_root(f->pt), "dp_world_size"), &dp) && dp > 0 && dp <= DS_RANK_MAX)
        s->topo = (struct topology){ .tp = z->tp, .pp = 1, .dp = (int)dp };
    check_files(z, s, lost, r);
    if (stage == 3 && s->run.optimizer)
        step = adam_find_step(&a, 0, r);
    if (!step.found)
        return;
    s->run.opt_step = (int64_t)step.value;
    s->run.step_in_state = step.in_state;
    s->run.step_is_tensor = step.is_tensor;
}

static bool is_listed_buffer_name(const struct pk *names, const char *name)
{
    uint32_t n = 0;
    struct pk **item = pk_items(names, &n);

    for (uint32_t i = 0; item && i < n; i++)
        if (pk_as_str(item[i]) && strcmp(pk_as_str(item[i]), name) == 0)
            return true;
    return false;
}

/*
 * For each tied weight, mark the parameter that is only its second name. Such a parameter also has a folder, with the
 * same contents as the folder of the first name.
 */
static void find_shared(const struct universal_zero *z, struct source *s)
{
    const struct pk *shared = pk_get(pt_root(s->file[z->file].pt), "shared_params");

    for (int i = 0; i < s->n_params; i++) {
        const char *holder = pk_as_str(pk_get(shared, s->param[i].name));

        if (holder && s->param[i].group < 0 && source_param(s, holder))
            s->param[i].shared_with = source_param(s, holder)->name;
    }
}

/*
 * Record the weights in ZeRO-1/2's model_states file as copies of the parameters, so that they can be compared with the
 * fp32 master weights. The file was copied from the original checkpoint, and no loader of a universal form reads its
 * weights. If there are several tensor-parallel ranks, nothing is recorded.
 */
static void find_weights(const struct universal_zero *z, struct source *s)
{
    const struct pt *pt = s->file[z->file].pt;
    const struct pk *module = pk_get(pt_root(pt), "module");
    struct pt_tensor t;

    for (int i = 0; z->tp == 1 && s->zero_stage < 3 && i < s->n_params; i++) {
        struct param *p = &s->param[i];
        struct tmap *m;

        if (p->shared_with || !p->state[STATE_FP32] || !pt_tensor(pt, pk_get(module, p->name), &t) || !t.contiguous ||
            !dtype_is_float(t.dtype) || t.dtype == DTYPE_F64 || !shape_equal(t.ndim, t.shape, p->ndim, p->shape))
            continue;
        m = arena_alloc(s->arena, sizeof *m);
        *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = t.dtype, .len = pt_tensor_bytes(&t), .n_slices = 1 };
        m->slice = arena_alloc(s->arena, sizeof *m->slice);
        *m->slice = (struct tmap_slice){ .len = m->len, .n_extents = m->len > 0 };
        m->slice->extent = arena_alloc(s->arena, sizeof *m->slice->extent);
        *m->slice->extent = (struct extent){ t.record, t.at, m->len };
        p->copy = m;
    }
}

/*
 * Compare the tensors of frozen parameters that each model_states file of ZeRO-1 and 2 stores twice: in `module`, and
 * in frozen_param_fragments. The files were copied from the original checkpoint.
 */
static void check_fragments(const struct source *s, enum severity severity, struct report *r)
{
    for (int f = 0; f < s->n_files; f++) {
        const struct pt *pt = ds_name_parse(s->file[f].name).kind == DS_MP ? s->file[f].pt : NULL;
        uint32_t n = 0;
        struct pk **pair = pt ? pk_pairs(pk_get(pt_root(pt), "frozen_param_fragments"), &n) : NULL;

        for (uint32_t i = 0; pair && i < n; i++) {
            const char *name = pk_as_str(pair[2 * i]);
            struct pt_tensor t;

            if (name && pt_tensor(pt, pk_get(pk_get(pt_root(pt), "module"), name), &t))
                zero_check_fragment(s, pt, name, &t, severity, r);
        }
    }
}

/* Compare the buffers of the universal form with those in `module` of the model_states file. */
static void check_buffers(const struct universal_zero *z, const struct source *s, enum severity severity,
                          struct report *r)
{
    const struct pk *module = pk_get(pt_root(z->pt), "module");

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];
        struct pt_tensor t;
        const char *how = v->buffer && pt_tensor(z->pt, pk_get(module, v->name), &t)
                              ? zero_buffer_difference(s, v->map, &t) : NULL;

        if (how)
            report_add(r, severity, "buffer", s->path, ERR_NO_BYTE, v->name,
                       "has %s in %s (%s) than as a state (%s)", how, s->file[z->file].name, dtype_name(t.dtype),
                       dtype_name(v->map->dtype));
    }
}

void universal_zero_check_copies(const struct universal_zero *z, const struct source *s, struct report *r)
{
    const enum severity severity = s->accept_mismatch ? SEV_WARNING : SEV_ERROR;

    check_fragments(s, severity, r);
    if (z->tp == 1)
        check_buffers(z, s, severity, r);
}

void universal_zero_resolve_params(const struct universal_zero *z, struct source *s)
{
    const struct pk *names = pk_get(pt_root(s->file[z->file].pt), "buffer_names");
    int n = 0;

    s->value = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *s->value);
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        struct source_value *v = &s->value[s->n_values];

        if (p->group >= 0 || !is_listed_buffer_name(names, p->name) || !p->state[STATE_FP32]) {
            s->param[n++] = *p;
            continue;
        }
        *v = (struct source_value){ .name = p->name, .map = p->state[STATE_FP32], .ndim = p->ndim, .buffer = true };
        memcpy(v->shape, p->shape, sizeof p->shape);
        s->n_values++;
    }
    s->n_params = n;
    find_shared(z, s);
    find_weights(z, s);
}
