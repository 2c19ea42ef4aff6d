/*
 * zero_model.c - read the tables inside model_states files
 *
 * Up to ZeRO-2 there is one such file. It contains all weights, as views of one storage per group. In ZeRO-3 every
 * rank has such a file. For each trained parameter it contains an empty tensor, for each frozen parameter the rank's
 * piece. It also contains the buffers.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/layout/engine/zero_second.h"
#include "libcommon/layout/zero/zero_source.h"

/* ---- rank 0 ---- */

static bool read_frozen(struct zero *z)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(z->root, "frozen_param_shapes"), &n);
    const struct zero_slot *other;

    z->frozen = arena_alloc(z->s->arena, (n + 1) * sizeof *z->frozen);
    for (uint32_t i = 0; pair && i < n; i++) {
        struct zero_slot *s = &z->frozen[z->n_frozen];

        s->name = pk_as_str(pair[2 * i]);
        if (!s->name || !zero_is_name(s->name) || zero_shape_find(&z->shape, s->name, &other) >= 0 ||
            !zero_read_dims(pair[2 * i + 1], &s->ndim, s->shape, &s->n_elems)) {
            report_add(z->r, SEV_ERROR, "shape", z->path, ERR_NO_BYTE, NULL,
                       "frozen_param_shapes: '%.60s' is an impossible name, or has an impossible shape",
                       s->name ? s->name : "(no string)");
            return false;
        }
        z->n_frozen++;
    }
    return true;
}

static struct zero_tensor *find_zero_tensor(struct zero *z, const struct names *names, const char *name)
{
    int i = name ? names_find(names, name) : -1;

    return i < 0 ? NULL : &z->tensor[i];
}

static void read_buffers(struct zero *z, const struct names *names)
{
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(z->root, "buffer_names"), &n);

    for (uint32_t i = 0; item && i < n; i++) {
        struct zero_tensor *t = find_zero_tensor(z, names, pk_as_str(item[i]));

        if (t)
            t->buffer = true;
    }
}

/* Read shared_params, which lists names of `module` whose data are stored under another name of `module`. */
static void read_shared(struct zero *z, const struct names *names)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(z->root, "shared_params"), &n);
    const struct zero_slot *other;

    for (uint32_t i = 0; pair && i < n; i++) {
        struct zero_tensor *t = find_zero_tensor(z, names, pk_as_str(pair[2 * i]));
        const char *holder = pk_as_str(pair[2 * i + 1]);

        if (!t || !holder || !find_zero_tensor(z, names, holder) || strcmp(holder, t->name) == 0 ||
            zero_shape_find(&z->shape, t->name, &other) >= 0)
            report_add(z->r, SEV_ERROR, "key", z->path, ERR_NO_BYTE, NULL,
                       "shared_params: '%.60s' cannot share the tensor of '%.60s'",
                       t ? t->name : "(no name of the model)", holder ? holder : "(no name)");
        else
            t->shared_with = holder;
    }
}

/*
 * Read the tensors of `module`, in the model's order. Entries that are not tensors (such as a layer's _extra_state)
 * become values.
 */
static struct names *read_module(struct zero *z, const struct pt *pt)
{
    struct names *names = names_new(z->s->arena);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(z->root, "module"), &n);

    z->tensor = arena_alloc(z->s->arena, (n + 1) * sizeof *z->tensor);
    for (uint32_t i = 0; pair && i < n; i++) {
        struct zero_tensor *t = &z->tensor[z->n_tensors];

        t->name = pk_as_str(pair[2 * i]);
        if (!pt_tensor(pt, pair[2 * i + 1], &t->t))
            continue;
        if (!t->name || !zero_is_name(t->name)) {
            report_add(z->r, SEV_ERROR, "param_name", z->path, ERR_NO_BYTE, NULL,
                       "module: '%.60s' cannot be a parameter's name", t->name ? t->name : "(no string)");
            continue;
        }
        names_add(names, t->name, z->n_tensors++);
    }
    return names;
}

bool zero_model_read(struct zero *z, const struct pt *pt)
{
    struct names *names;

    z->without_zero = !z->has_optimizer && z->stage != 3 && pk_is_none(pk_get(z->root, "param_shapes"));
    if (z->without_zero)
        zero_shape_index(&z->shape, z->s->arena);
    else if (!zero_shape_read(&z->shape, z->s->arena, pk_get(z->root, "param_shapes"), z->path, z->r))
        return false;
    if (!read_frozen(z))
        return false;
    zero_shape_check_buffers(&z->shape, z->root, z->path, z->r);
    names = read_module(z, pt);
    read_buffers(z, names);
    read_shared(z, names);
    for (int i = 0; i < z->n_frozen; i++) {
        struct zero_tensor *t = find_zero_tensor(z, names, z->frozen[i].name);

        if (!t)
            continue;
        t->frozen = true;
        if (t->buffer || t->shared_with)
            report_add(z->r, SEV_ERROR, "twice", z->path, ERR_NO_BYTE, t->name,
                       "is a frozen parameter in frozen_param_shapes and %s",
                       t->buffer ? "a buffer in buffer_names" : "a second name of another in shared_params");
        if (z->stage != 3 && !z->o->no_tensors)
            zero_check_fragment(z->s, pt, t->name, &t->t, zero_mismatch(z), z->r);
    }
    return true;
}

/* ---- every rank of ZeRO-3 ---- */

/* Keys whose values the engine saves identically on every data-parallel rank. */
static const char *const engine_keys[] = {
    "param_shapes", "frozen_param_shapes", "buffer_names", "global_steps", "global_samples",
    "skipped_steps", "lr_scheduler", "dp_world_size", "mp_world_size", "ds_config", "ds_version", NULL,
};
/* The keys among these whose values are also equal on all tensor ranks. */
static const char *const tensor_rank_keys[] = {
    "global_steps", "global_samples", "skipped_steps", "lr_scheduler", "dp_world_size", "mp_world_size", "ds_version",
    NULL,
};
/* Keys that are not compared, because their values differ or may differ between ranks. */
static const char *const own_keys[] = {
    "module", "frozen_param_fragments", "shared_params", "optimizer", "data_sampler", "random_ltd",
    "sparse_tensor_module_names", "csr_tensor_module_names", NULL,
};

static bool is_key_in_list(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(key, *list) == 0)
            return true;
    return false;
}

static bool is_scalar_value(const struct pk *v)
{
    double x;

    return v && (pk_as_str(v) || pk_as_double(v, &x));
}

/*
 * Compare the values of client_state, which the user's program saved, with those in the first file. Floats that differ,
 * and values that only some ranks have, may be specific to a rank, such as the loss of its batch. These are reported as
 * notes.
 */
static void compare_client_state(const struct zero *z, const struct pt *pt, struct files *files, struct report *r)
{
    const struct pk *first = z->root, *root = pt_root(pt);
    const struct run_client c = { z->first, pt, z->s->files, files, zero_mismatch(z), r };
    char *its = run_values_text(first), *mine = run_values_text(root), what[512];
    uint32_t n = 0;
    struct pk **pair = pk_pairs(root, &n);

    if (run_values_differ(mine ? mine : "", its ? its : "", what))
        report_add(r, zero_mismatch(z), "mixed_saves", pt_path(pt), ERR_NO_BYTE, NULL,
                   "%s: the files are from different saves", what);
    if (z->first != pt)
        run_state_compare_client(&c);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        const struct pk *other = key ? pk_get(first, key) : NULL, *v = pair[2 * i + 1];

        if (key && !is_key_in_list(key, engine_keys) && !is_key_in_list(key, own_keys) && is_scalar_value(v) &&
            (!other || other->type == PK_FLOAT || v->type == PK_FLOAT) && !pk_same_text(other, v))
            report_add(r, SEV_NOTE, "mixed_saves", pt_path(pt), ERR_NO_BYTE, NULL,
                       "%s, which the training program saved, differs from that of rank 0", key);
    }
    free(its);
    free(mine);
}

static void compare_model_file(const struct zero *z, const struct pt_files_job *j)
{
    for (const char *const *key = engine_keys; *key; key++)
        if (!pk_same_text(pk_get(z->root, *key), pk_get(pt_root(j->pt), *key)))
            report_add(j->r, zero_mismatch(z), "mixed_saves", j->path, ERR_NO_BYTE, NULL,
                       "%s differs from that of rank 0: the files are from different saves", *key);
    compare_client_state(z, j->pt, j->files, j->r);
}

void zero_model_compare_tensor_ranks(const struct zero *z, const struct pt *other, struct files *files)
{
    if (!z->root || !other)
        return;
    for (const char *const *key = tensor_rank_keys; *key; key++)
        if (!pk_same_text(pk_get(z->root, *key), pk_get(pt_root(other), *key)))
            report_add(z->r, zero_mismatch(z), "mixed_saves", pt_path(other), ERR_NO_BYTE, NULL,
                       "%s differs from that of tensor rank 0: the files are from different saves", *key);
    compare_client_state(z, other, files, z->r);
}

/* Returns a rank's piece of the frozen parameter s. The piece must have the same length on all ranks. */
static struct zero_run read_frozen_piece(const struct zero *z, const struct pt_files_job *j, const struct zero_slot *s,
                                         const struct pk *v)
{
    int64_t want = zero_piece_elems(s->n_elems, z->world);
    struct zero_run run = { .record = -1 };
    struct pt_tensor t;

    if (!v || !pt_tensor(j->pt, v, &t))
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, s->name, "frozen_param_fragments has no piece of it");
    else if (!t.contiguous || t.n_elems != want)
        report_add(j->r, SEV_ERROR, "partition", j->path, ERR_NO_BYTE, s->name,
                   "its piece has %lld elements, but %lld are expected", (long long)t.n_elems, (long long)want);
    else
        run = (struct zero_run){ t.record, t.at, t.n_elems, t.dtype };
    return run;
}

void zero_model_rank(const struct pt_files_job *j)
{
    struct zero *z = j->ctx;
    const struct ds_name *n = &z->name[j->file];
    const struct pk *pieces = pk_get(pt_root(j->pt), "frozen_param_fragments");
    struct zero_rank *rank = &z->rank[n->dp >= 0 ? n->dp : 0];

    ds_name_check(n, j->pt, j->path, zero_mismatch(z), j->r);
    if (z->stage != 3)
        return;
    zero_shape_check_module(&z->shape, pt_root(j->pt), j->path, zero_lost(z), j->r);
    compare_model_file(z, j);
    if (z->n_frozen == 0 || !pieces || pk_is_none(pieces))
        return;
    rank->frozen = xcalloc((size_t)z->n_frozen, sizeof *rank->frozen);
    for (int i = 0; i < z->n_frozen; i++)
        rank->frozen[i] = read_frozen_piece(z, j, &z->frozen[i], pk_get(pieces, z->frozen[i].name));
}

void zero_model_renumber(void *ctx, int file, int base)
{
    struct zero *z = ctx;
    struct zero_rank *rank = &z->rank[z->name[file].dp];

    for (int i = 0; rank->frozen && i < z->n_frozen; i++)
        if (rank->frozen[i].record >= 0)
            rank->frozen[i].record += base;
}
