/*
 * universal.c - the small files that every universal form has, and checks that all files are present
 */
#include "libcommon/layout/universal/universal.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/format/pt.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/engine/deepspeed_shape.h"
#include "libcommon/layout/engine/zero_order.h"
#include "libcommon/layout/engine/zero_pickles.h"
#include "libcommon/layout/universal/universal_shapes.h"
#include "libcommon/write/sink.h"

/*
 * Returns true if `key` is an entry of the optimizer_state_dict that differs between ranks. In a universal form, the
 * data of these entries are in the files of each parameter.
 */
static bool is_sharded_key(const char *key)
{
    return strcmp(key, "base_optimizer_state") == 0 || strcmp(key, "param_slice_mappings") == 0 ||
           strcmp(key, "single_partition_of_fp32_groups") == 0 || strcmp(key, "fp32_flat_groups") == 0 ||
           strcmp(key, "optimizer_state_dict") == 0;
}

/* ---- a source that DeepSpeed did not save ---- */

bool universal_makes_mp_rank(const struct source *s)
{
    return !s->layout->mp_rank_files && s->groups;
}

static const struct zero_import by_name = { .purpose = ZERO_FOR_NAMES, .weights = DTYPE_N };

int universal_resolve(struct source *s, struct report *notes, struct err *e)
{
    struct arena *a = arena_new(0);
    struct zero_pickles made;
    int rc = 0;

    if (!s->layout->mp_rank_files) {
        rc = zero_groups_resolve(s, &by_name, notes, e);
        if (rc == 0)
            zero_pickles_make(&made, s, &by_name, a, notes);    /* only the entries that it adds to `notes` are used */
    }
    if (rc == 0)
        source_add_buffers(s);
    arena_free(a);
    return rc;
}

static struct zero_pickles make_pickles(const struct source *s, struct arena *a)
{
    struct report *reported = report_new();     /* not used: universal_resolve() has already reported these facts */
    struct zero_pickles made;

    zero_pickles_make(&made, s, &by_name, a, reported);
    report_free(reported);
    return made;
}

struct run_state universal_run_state(const struct source *s, struct arena *a)
{
    struct run_state run = s->run;
    struct zero_pickles made;

    if (!universal_makes_mp_rank(s))
        return run;
    made = make_pickles(s, a);
    run.optimizer = made.optimizer;
    run.param_groups = made.param_groups;
    run.optimizer_pt = NULL;
    run.n_groups = s->groups->n;
    run.step_in_state = made.step_in_state;
    run.step_is_tensor = made.step_is_tensor;
    return run;
}

#define MADE_MP_RANK "mp_rank_00_model_states.pt"

/* Create the bytes of the mp_rank file of rank 0. The caller frees *out. */
static int make_mp_rank(const struct source *s, uint8_t **out, uint64_t *size, struct err *e)
{
    struct arena *a = arena_new(0);
    int rc = pt_build("mp_rank_00_model_states", make_pickles(s, a).model, NULL, s->files, out, size, e);

    arena_free(a);
    return rc;
}

/* ---- zero/optimizer_state.pt and step.pt ---- */

/*
 * Returns the optimizer_state_dict that ZeRO-3's loader needs. The state of each sub-group holds only its step counter;
 * the settings are stored under the key "param_groups". DeepSpeed's own converter also stores rank 0's vectors, which
 * no loader reads.
 */
static struct pk *zero3_state(struct arena *a, const struct source *s)
{
    struct pk *d = pk_dict(a), *state = pk_dict(a);
    const struct pk *step;

    for (int g = 0; g < s->run.n_groups; g++) {
        struct pk *one = pk_dict(a);

        step = pk_get(adam_group_state(s->run.optimizer, g), "step");
        if (step)
            pk_set_str(a, one, "step", pk_copy(a, step));
        pk_set(a, state, pk_int(a, g), one);
    }
    pk_set_str(a, d, "state", state);
    if (s->run.param_groups)
        pk_set_str(a, d, "param_groups", pk_copy(a, s->run.param_groups));
    return d;
}

/*
 * Returns a list of n empty dicts, one per group. A ZeRO checkpoint of the elastic format stores no settings; a loader
 * that finds an empty dict keeps its own settings.
 */
static struct pk *empty_groups(struct arena *a, int n)
{
    struct pk *list = pk_list(a);

    for (int g = 0; g < n; g++)
        pk_add(a, list, pk_dict(a));
    return list;
}

int universal_optimizer_state(const struct source *s, uint8_t **out, uint64_t *size, struct err *e)
{
    struct arena *a = arena_new(0);
    const struct run_state run = universal_run_state(s, a);
    struct pk *root = pk_dict(a);
    uint32_t n;
    struct pk **pair = pk_pairs(run.optimizer, &n);
    int rc;

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_sharded_key(key) && strcmp(key, "param_groups") != 0)
            pk_set_str(a, root, key, pk_copy(a, pair[2 * i + 1]));
    }
    if (s->zero_stage == 3)
        pk_set_str(a, root, "optimizer_state_dict", zero3_state(a, s));
    if (run.param_groups)
        pk_set_str(a, root, "param_groups", pk_copy(a, run.param_groups));
    else if (s->zero_stage)
        pk_set_str(a, root, "param_groups", empty_groups(a, s->run.n_groups));
    rc = pt_build("optimizer_state", root, run.optimizer_pt, s->files, out, size, e);
    arena_free(a);
    return rc;
}

/* Write a complete .pt file with at most one small storage to a new buffer. The caller frees *out. */
static void image_bytes(struct pt_image *im, const void *storage, uint64_t storage_size, uint8_t **out, uint64_t *size)
{
    const struct zip_run *run;
    int n;

    if (storage_size)
        pt_image_set_crc(im, 0, crc_bytes(0, storage, storage_size));
    n = pt_image_runs(im, &run);
    *size = pt_image_size(im);
    *out = xcalloc(1, *size);
    for (int i = 0; i < n; i++)
        memcpy(*out + run[i].at, run[i].bytes, run[i].len);
    if (storage_size)
        memcpy(*out + pt_image_at(im, 0), storage, storage_size);
}

void universal_step(const struct source *s, uint8_t **out, uint64_t *size)
{
    const float step = (float)s->run.opt_step;
    const uint64_t step_size = sizeof step;
    struct arena *a = arena_new(0);
    const struct run_state run = universal_run_state(s, a);
    struct pt_image *im;

    *out = NULL;
    *size = 0;
    if (!run.step_in_state || run.opt_step < 0)
        goto out;
    if (run.step_is_tensor)
        im = pt_image_new("step", pt_new_tensor(a, &(struct pt_new){ .dtype = DTYPE_F32, .storage_elems = 1 }), 1,
                          &step_size);
    else
        im = pt_image_new("step", pk_int(a, run.opt_step), 0, NULL);
    image_bytes(im, &step, run.step_is_tensor ? step_size : 0, out, size);
    pt_image_free(im);
out:
    arena_free(a);
}

/* Returns true if the file is copied to the universal form. */
static bool is_copied_file(const struct source *s, const struct source_file *f)
{
    return s->layout->mp_rank_files && (str_starts(f->name, "mp_rank_") || str_starts(f->name, "zero_pp_rank_")) &&
           str_ends(f->name, "_model_states.pt");
}

/*
 * Check the CRC of every record of a file. If f->pt is NULL (the layout keeps no handles), the file is opened for the
 * check.
 */
static int check_pt_file_records(const struct source *s, const struct source_file *f, struct err *e)
{
    struct pt *pt = f->pt ? f->pt : pt_open(s->files, f->file, e);
    int rc = pt ? pt_check_records(pt, s->files, e) : -1;

    if (pt != f->pt)
        pt_close(pt);
    return rc;
}

/*
 * Copy a file unchanged, after a check of every record's CRC. If the file's tree was replaced (pt_has_new_tree()),
 * write the file again with the new tree instead.
 */
static int copy_file(const struct source *s, const struct source_file *f, const char *path, struct err *e)
{
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc;

    if (!f->pt || !pt_has_new_tree(f->pt))
        return check_pt_file_records(s, f, e) < 0 ? -1 : files_copy(s->files, f->file, path, e);
    rc = pt_build(pt_prefix(f->pt), pt_root(f->pt), f->pt, s->files, &bytes, &size, e);
    if (rc == 0)
        rc = file_replace(path, bytes, size, e);
    free(bytes);
    return rc;
}

static int write_made_mp_rank(const struct source *s, const char *dir, struct err *e)
{
    char *path = path_join(dir, MADE_MP_RANK);
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc = make_mp_rank(s, &bytes, &size, e);

    if (rc == 0)
        rc = file_replace(path, bytes, size, e);
    free(bytes);
    free(path);
    return rc;
}

int universal_copy_mp_ranks(const struct source *s, const char *dir, struct err *e)
{
    int rc = universal_makes_mp_rank(s) ? write_made_mp_rank(s, dir, e) : 0;

    for (int i = 0; i < s->n_files && rc == 0; i++) {
        const struct source_file *f = &s->file[i];
        char *path;

        if (!is_copied_file(s, f))
            continue;
        path = path_join(dir, f->name);
        rc = copy_file(s, f, path, e);
        free(path);
    }
    return rc;
}

/* Read the optimizer groups in the format of the engine that wrote the checkpoint: ZeRO, or the pipeline engine. */
int universal_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    return zero_order_root(s) ? zero_groups_read(s, a, out, e) : ds_groups_read(s, a, out, e);
}

/* ---- checks for completeness ---- */

/*
 * Returns true if the source may have parameters that were not trained. Its optimizer groups then list the trained
 * ones. The pipeline engine trains all parameters.
 */
static bool has_frozen(const struct source *s)
{
    return s->zero_stage || universal_makes_mp_rank(s);
}

bool universal_is_trained(const struct source *s, const struct param *p)
{
    return !has_frozen(s) || (p->group >= 0 && !p->shared_with);
}

struct universal_state universal_state_of(const struct source *s, const struct param *p, enum state st,
                                          enum vocab_policy vocab)
{
    struct universal_state u = { .map = p->state[st], .op = PLAN_COPY, .dtype = DTYPE_F32 };
    int64_t shape[TENSOR_MAX_DIM];

    if (universal_is_trained(s, p)) {
        u.map = zero_state_map(p, st, &u.op);
        u.len = param_kept_shape(s, p, vocab, shape);
        if (u.op > PLAN_COPY)           /* the map has 16-bit elements, but `len` was computed for fp32 elements */
            u.len /= 2;
        return u;
    }
    if (st != STATE_FP32)
        return (struct universal_state){0};
    if (!u.map)
        u.map = p->state[STATE_BF16];
    if (!u.map)
        return u;
    u.len = u.map->len;
    if (plan_op_of(u.map->dtype, DTYPE_F32) >= 0)
        u.op = plan_op_of(u.map->dtype, DTYPE_F32);
    else
        u.dtype = u.map->dtype;
    return u;
}

/*
 * Returns true if the state exists or can be made. Under ZeRO, a missing fp32 master weight can be made from the 16-bit
 * weight. The pipeline engine stores both, so all states must exist.
 */
static bool has_universal_state(const struct source *s, const struct param *p, enum state st)
{
    int op;

    return has_frozen(s) ? zero_state_map(p, st, &op) && op >= 0 : p->state[st] != NULL;
}

int universal_check_states(const struct source *s, struct err *e)
{
    bool trained = false;

    if (optim_groups_adam_alone(s, e) < 0)
        return -1;
    for (int i = 0; i < s->n_params; i++)
        trained |= universal_is_trained(s, &s->param[i]);
    if (!trained) {
        err_data(e, s->path, ERR_NO_BYTE, "has only weights, but a universal form consists of masters and moments; "
                                          "convert a checkpoint with optimizer states");
        return -1;
    }
    for (int i = 0; i < s->n_params; i++)
        for (int j = 0; universal_is_trained(s, &s->param[i]) && j < TRAINED_STATES; j++) {
            if (has_universal_state(s, &s->param[i], trained_states[j]))
                continue;
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: %s%s is missing, but the universal form needs masters and "
                                              "moments; convert a checkpoint with optimizer states", s->param[i].name,
                     state_name(trained_states[j]), has_frozen(s) ? " in fp32" : "");
            return -1;
        }
    return 0;
}

/*
 * Add to `listed` the names in a list of parameters in the mp_rank file `f`. If `trained` is true, report each name
 * that is not in s->param. A parameter that is not trained (frozen) may have no folder.
 */
static void check_rank_names(const struct source *s, const struct source_file *f, const struct pk *list, bool trained,
                             struct names *listed, struct report *r)
{
    uint32_t n;
    struct pk **pair = pk_pairs(list, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]);

        if (!name || names_find(listed, name) >= 0)
            continue;
        names_add(listed, name, 0);
        if (trained && !source_param(s, name))
            report_add(r, SEV_ERROR, "missing_param", s->path, ERR_NO_BYTE, name, "is missing, and %s lists it",
                       f->name);
    }
}

/* Add to `listed` the parameters that the mp_rank file `f` lists. Report those that are not in s->param. */
static void check_rank(const struct source *s, const struct source_file *f, struct names *listed, struct report *r)
{
    uint32_t n_groups = 0;
    const struct pk *root = pt_root(f->pt);
    struct pk **group = pk_items(pk_get(root, "param_shapes"), &n_groups);

    for (uint32_t g = 0; group && g < n_groups; g++)
        check_rank_names(s, f, group[g], true, listed, r);
    if (group)
        check_rank_names(s, f, pk_get(root, "frozen_param_shapes"), false, listed, r);
}

/*
 * Report the parameters that have moments although no mp_rank file lists them. This is done only if all of these files
 * could be opened and at least one has a list. Buffers and second names of tied parameters have no moments and are not
 * listed.
 */
static void check_listed(const struct source *s, const struct names *listed, struct report *r)
{
    for (int i = 0; i < s->n_files; i++)
        if (is_copied_file(s, &s->file[i]) && !s->file[i].pt)
            return;
    for (int i = 0; i < s->n_params && names_n(listed) > 0; i++)
        if (s->param[i].state[STATE_EXP_AVG] && names_find(listed, s->param[i].name) < 0)
            report_add(r, SEV_ERROR, "extra_param", s->path, ERR_NO_BYTE, s->param[i].name,
                       "is not in the param_shapes of any rank; it belongs to another checkpoint, or an mp_rank file "
                       "is missing");
}

/* Compare the groups in optimizer_state.pt with the param_shapes of the first mp_rank file that has any. */
static void check_groups(const struct source *s, struct report *r)
{
    const struct pk *inner = pk_get(s->run.optimizer, "optimizer_state_dict");
    struct adam_groups a = { .groups = s->run.param_groups, .state = pk_get(inner, "state"),
                             .sub_groups = s->zero_stage == 3 };
    uint32_t n = 0;

    for (int i = 0; i < s->n_files && a.groups && s->run.optimizer_pt; i++) {
        const struct source_file *f = &s->file[i];

        if (!is_copied_file(s, f) || !f->pt || !pk_items(pk_get(pt_root(f->pt), "param_shapes"), &n) || n == 0)
            continue;
        a.path = pt_path(s->run.optimizer_pt);
        a.n_vectors = (int)n;
        adam_check_groups(&a, r);
        return;
    }
}

void universal_check_params(const struct source *s, struct report *r)
{
    struct arena *a = arena_new(0);
    struct names *listed = names_new(a);

    if (s->n_params == 0)
        report_add(r, SEV_ERROR, "no_params", s->path, ERR_NO_BYTE, NULL,
                   "holds no optimizer states, so it is not a universal checkpoint; convert a checkpoint with "
                   "optimizer states");
    for (int i = 0; i < s->n_files && s->n_params > 0; i++)
        if (is_copied_file(s, &s->file[i]) && s->file[i].pt)
            check_rank(s, &s->file[i], listed, r);
    check_listed(s, listed, r);
    check_groups(s, r);
    universal_check_shapes(s, r);
    arena_free(a);
}

uint64_t universal_extra_bytes(const struct source *s)
{
    uint64_t sum = 1 << 20, size;       /* for optimizer_state.pt, the manifest and folders */
    uint8_t *made = NULL;
    struct err e = {0};

    if (universal_makes_mp_rank(s) && make_mp_rank(s, &made, &size, &e) == 0)
        sum += align_up(size, 4096);
    free(made);
    for (int i = 0; i < s->n_files; i++)
        if (is_copied_file(s, &s->file[i]))
            sum += align_up(files_size(s->files, s->file[i].file), 4096);
    return sum;
}

uint64_t universal_estimate(const struct sink *k, const struct source *s)
{
    enum { AROUND_A_TENSOR = 8192 };    /* for headers, directory and padding of a tensor's file */
    uint64_t bytes = universal_extra_bytes(s);
    int64_t shape[TENSOR_MAX_DIM];

    for (int i = 0; i < s->n_params; i++)
        for (int j = 0; j < TRAINED_STATES; j++)
            if (s->param[i].state[trained_states[j]]) {
                bytes += AROUND_A_TENSOR;
                if (!k->ops->points_only)
                    bytes += param_kept_shape(s, &s->param[i], k->o.vocab, shape);
            }
    return bytes;
}
