/*
 * zero_shards.c - read the tables inside optim_states files
 *
 * For each group, a rank has one flat fp32 vector of master weights and two vectors of moments. Only their locations
 * are stored; the file's handle is closed. The counts and paddings that the file records follow from param_shapes;
 * they are only checked.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/zip.h"
#include "libcommon/layout/zero/zero_source.h"

const enum state zero_states[ZERO_STATES] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };

/* An optim_states file while it is read, and the tables of its rank. */
struct zero_shard {
    struct zero *z;
    const struct pt_files_job *j;
    const struct pk *opt;               /* optimizer_state_dict */
    struct zero_rank *rank;
    int r;
};

static void report_shard_error(const struct zero_shard *k, const char *code, const char *text)
{
    report_add(k->j->r, SEV_ERROR, code, k->j->path, ERR_NO_BYTE, NULL, "%s", text);
}

/* ---- the layout, from rank 0 ---- */

static const struct pk *shard_optimizer_tree(const struct pt *pt)
{
    const struct pk *opt = pk_get(pt_root(pt), "optimizer_state_dict");

    return opt && !pk_is_none(opt) ? opt : NULL;
}

/*
 * Read from `opt` the number of padding elements after each parameter, as one list per group. Older versions of
 * DeepSpeed have no such padding and do not write this key.
 */
static bool read_pads(struct zero *z, const struct pk *opt, const char *path)
{
    const struct pk *pads = pk_get(opt, "param_alignment_paddings");
    bool ok = true;

    for (int g = 0; pads && !pk_is_none(pads) && g < z->shape.n_groups && ok; g++) {
        struct zero_group *group = &z->shape.group[g];
        uint32_t n = 0;
        struct pk **pad = pk_items(adam_list_at(pads, g), &n);

        ok = pad && (int64_t)n == group->n;
        for (int i = 0; ok && i < group->n; i++)
            ok = pk_as_int(pad[i], &group->slot[i].pad) && group->slot[i].pad >= 0 && group->slot[i].pad < 4096;
    }
    if (!ok)
        report_add(z->r, SEV_ERROR, "padding", path, ERR_NO_BYTE, NULL,
                   "param_alignment_paddings do not fit param_shapes");
    return ok;
}

/* Returns the stage in the ds_config of a file, or 0 if it has none. */
static int64_t config_stage(const struct pk *root)
{
    return pk_int_or(pk_get(pk_get(pk_get(root, "ds_config"), "zero_optimization"), "stage"), 0);
}

void zero_check_config_stage(const struct zero *z, const struct pk *root, const char *path, struct report *r)
{
    const int64_t stage = config_stage(root);

    /* In a run without ZeRO, BF16_Optimizer has the vectors of stage 1. */
    if (stage > 0 && z->stage > 0 && stage != z->stage)
        report_add(r, SEV_WARNING, "stage", path, ERR_NO_BYTE, NULL,
                   "ds_config has ZeRO stage %lld, the optimizer files have zero_stage %d", (long long)stage, z->stage);
}

bool zero_shards_lead(struct zero *z, const struct pt *pt, const char *path)
{
    const struct pk *opt = shard_optimizer_tree(pt);
    int64_t stage = opt ? run_state_zero_stage(opt) : -1;

    /* BF16_Optimizer, which DeepSpeed uses for some ZeRO-1 runs, stores the same vectors but no stage number. */
    if (stage == 0 && pk_get(opt, "single_partition_of_fp32_groups"))
        stage = 1;
    if (stage < 1 || stage > 3 || (stage == 3) != (z->stage == 3)) {
        report_add(z->r, SEV_ERROR, "key", path, ERR_NO_BYTE, NULL,
                   "zero_stage %lld contradicts the names of the weight files, or is invalid", (long long)stage);
        return false;
    }
    z->stage = (int)stage;
    return stage == 3 || read_pads(z, opt, path);
}

/* ---- vectors ---- */

static struct zero_run read_flat_vector(const struct zero_shard *k, const struct pk *v, int g, const char *what)
{
    const struct pt_files_job *j = k->j;
    struct zero_run run = { .record = -1 };
    struct pt_tensor t;

    if (!v || !pt_tensor(j->pt, v, &t))
        report_add(j->r, SEV_ERROR, "optimizer", j->path, ERR_NO_BYTE, NULL, "group %d has no tensor %s", g, what);
    else if (t.dtype != DTYPE_F32 && t.dtype != DTYPE_BF16 && t.dtype != DTYPE_F16)
        report_add(j->r, SEV_ERROR, "dtype", j->path, ERR_NO_BYTE, NULL, "group %d: %s is %s, a float is expected", g,
                   what, dtype_name(t.dtype));
    else if (!t.contiguous)
        report_add(j->r, SEV_ERROR, "strided", j->path, ERR_NO_BYTE, NULL, "group %d: %s is not contiguous", g, what);
    else
        run = (struct zero_run){ t.record, t.at, t.n_elems, t.dtype };
    return run;
}

/*
 * Check the length of a vector. In ZeRO-3 it must be the sum of the pieces. In ZeRO-1/2 the padding at the end of the
 * vector may be missing. DeepSpeed omits it for master weights, and in the elastic form also for moments.
 */
static bool has_expected_vector_length(const struct zero_shard *k, const struct zero_run *run, int g, const char *what)
{
    const struct zero_shape *x = &k->z->shape;
    int64_t least = zero_lean(x, g, k->r), most = x->group[g].part;

    if (run->record < 0 || (run->n_elems >= least && run->n_elems <= most))
        return true;
    report_add(k->j->r, SEV_ERROR, "partition", k->j->path, ERR_NO_BYTE, NULL,
               "group %d: %s has %lld elements, but param_shapes and %d ranks need %lld%s", g, what,
               (long long)run->n_elems, x->world, (long long)most, least < most ? " or less padding" : "");
    return false;
}

/*
 * Returns true if the file has no moments, because the optimizer has never stepped, or because ZeRO-3's weights were
 * stored without optimizer states. The state is then an empty dict or missing. zero_to_fp32.py accepts both.
 */
static bool has_no_moments(const struct zero_shard *k)
{
    const struct pk *base = adam_base(k->opt), *state = pk_get(base, "state");
    uint32_t n = 0;

    if (pk_items(base, &n))             /* elastic form */
        return n == 0;
    pk_pairs(state, &n);
    return n == 0 && (base || k->z->stage == 3);
}

/*
 * Returns the settings of the optimizer group to which vector g belongs. In ZeRO-3 several vectors belong to one
 * group. Returns NULL for the elastic form, which stores no settings.
 */
static const struct pk *settings_of(const struct zero_shard *k, int g)
{
    const struct pk *groups = pk_get(adam_base(k->opt), "param_groups");
    uint32_t n = 0, m;
    struct pk **group = pk_items(groups, &n), **id;
    int64_t at;

    for (uint32_t i = 0; group && k->z->stage == 3 && i < n; i++) {
        id = pk_items(pk_get(group[i], "params"), &m);
        for (uint32_t j = 0; id && j < m; j++)
            if (pk_as_int(id[j], &at) && at == g)
                return group[i];
    }
    return adam_list_at(groups, g);
}

/*
 * Add to rank->more the tensors in the state of group g, at any depth, except Adam's moments. `above` is the beginning
 * of their names.
 */
static void read_extra_states(const struct zero_shard *k, int g, const struct pk *dict, const char *above)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(dict, &n);
    struct zero_rank *rank = k->rank;
    size_t cap = (size_t)rank->n_more;

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        char *name = key ? str_fmt("%s%s", above, key) : NULL;
        struct pt_tensor t;

        if (!name || strcmp(name, "exp_avg") == 0 || strcmp(name, "exp_avg_sq") == 0 || strcmp(name, "step") == 0) {
            free(name);
        } else if (pt_tensor(k->j->pt, pair[2 * i + 1], &t)) {
            ARRAY_ROOM(rank->more, cap, (size_t)rank->n_more + 1);
            rank->more[rank->n_more++] = (struct zero_more){ g, name, t };
        } else {
            char *below = str_fmt("%s.", name);

            read_extra_states(k, g, pair[2 * i + 1], below);
            cap = (size_t)rank->n_more;
            free(below);
            free(name);
        }
    }
}

/*
 * Read the vectors of group g. Adam's two moments are required if the group's settings are Adam's and its state has no
 * other tensors. Other optimizers have one of the moments or none. In ZeRO-3, a sub-group without gradients may also
 * lack moments, because the optimizer never steps it.
 */
static void read_group_vectors(const struct zero_shard *k, const struct pk *fp32, int g)
{
    static const char *const words[ZERO_STATES] = { "fp32", "exp_avg", "exp_avg_sq" };
    const struct pk *state = adam_group_state(k->opt, g), *settings = settings_of(k, g);
    const int before = k->rank->n_more;
    struct zero_run *run = k->rank->run[g];
    bool ok = true, due;

    run[ZERO_FP32] = read_flat_vector(k, fp32, g, words[ZERO_FP32]);
    read_extra_states(k, g, state, "");
    due = !k->rank->no_moments && k->rank->n_more == before && (!settings || adam_is_due(settings));
    for (int s = ZERO_AVG; s < ZERO_STATES; s++)
        run[s] = due || pk_get(state, words[s]) ? read_flat_vector(k, pk_get(state, words[s]), g, words[s])
                                                : (struct zero_run){ .record = -1 };
    for (int s = 0; s < ZERO_STATES; s++)
        ok &= has_expected_vector_length(k, &run[s], g, words[s]);
    for (int s = 0; s < ZERO_STATES && !ok; s++)
        run[s].record = -1;
}

/* ---- checks of the file's own records ---- */

static void check_count(const struct zero_shard *k)
{
    const struct pk *v = pk_get(k->opt, "partition_count");
    uint32_t n = 0;
    struct pk **item = pk_items(v, &n);

    /* ZeRO-3 writes a single number; the other stages write one number per group. */
    for (uint32_t g = 0; v && g < (item ? n : 1); g++) {
        int64_t count = -1;

        if (pk_as_int(item ? item[g] : v, &count) && count == k->z->world)
            continue;
        report_add(k->j->r, SEV_ERROR, "degrees", k->j->path, ERR_NO_BYTE, NULL,
                   "records %lld ranks (partition_count), but there are %d", (long long)count, k->z->world);
        return;
    }
}

static void check_groups(const struct zero_shard *k)
{
    const struct pk *base = adam_base(k->opt);
    const struct adam_groups a = { k->j->path, pk_get(base, "param_groups"), pk_get(base, "state"),
                                   k->z->shape.n_groups, k->z->stage == 3 };

    adam_check_groups(&a, k->j->r);
}

static void check_recorded_paddings(const struct zero_shard *k)
{
    const struct zero_shape *x = &k->z->shape;
    const struct pk *pads = pk_get(k->opt, "group_paddings");

    for (int g = 0; k->z->stage < 3 && pads && g < x->n_groups; g++) {
        const struct zero_group *group = &x->group[g];
        int64_t want = group->part - zero_lean(x, g, k->r), recorded = -1;
        int64_t total = k->r == x->world - 1 ? group->part * x->world - group->need : 0;

        /*
         * Older versions record the whole padding of the group on the last rank, even if the padding extends over
         * several ranks.
         */
        if (!pk_as_int(adam_list_at(pads, g), &recorded) || (recorded != want && recorded != total))
            report_add(k->j->r, SEV_ERROR, "padding", k->j->path, ERR_NO_BYTE, NULL,
                       "group %d: padding %lld recorded, %lld expected", g, (long long)recorded, (long long)want);
    }
}

/* Returns true if the entry of a mapping refers to `count` elements of the rank's vector, starting at `start`. */
static bool is_mapped_to(const struct pk *entry, int64_t start, int64_t count)
{
    int64_t at = -1, n = -1;

    return pk_as_int(pk_get(entry, "start"), &at) && pk_as_int(pk_get(entry, "numel"), &n) && at == start && n == count;
}

/*
 * Compare the positions recorded for group g (`mapping`) with the positions that follow from the order of param_shapes.
 * Returns the name of the first parameter that differs, or NULL.
 */
static const char *other_mapping(const struct zero_shard *k, const struct pk *mapping, int g)
{
    const struct zero_group *group = &k->z->shape.group[g];
    struct arena *a = arena_new(0);
    struct names *met = names_new(a);
    const char *other = NULL;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(mapping, &n);
    int64_t at, skip;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]))
            names_add(met, pk_as_str(pair[2 * i]), (int)i);
    for (int i = 0; i < group->n && !other; i++) {
        const struct zero_slot *s = &group->slot[i];
        const int64_t elems = zero_piece(&k->z->shape, g, s, k->r, &at, &skip);
        const int found = names_find(met, s->name);

        if (elems ? found < 0 || !is_mapped_to(pair[2 * found + 1], at, elems) : found >= 0)
            other = s->name;
    }
    for (uint32_t i = 0; pair && i < n && !other; i++) {
        const char *name = pk_as_str(pair[2 * i]);
        const struct zero_slot *s;

        if (!name || zero_shape_find(&k->z->shape, name, &s) != g)
            other = name ? name : "(no string)";
    }
    arena_free(a);
    return other;
}

/* Returns true if the run's configuration has round_robin_gradients. DeepSpeed then writes other mappings. */
static bool is_round_robin(const struct zero *z)
{
    const struct pk *config = pk_get(pk_get(z->root, "ds_config"), "zero_optimization");
    int64_t on = 0;

    return pk_as_int(pk_get(config, "round_robin_gradients"), &on) && on;
}

static void check_param_mappings(const struct zero_shard *k)
{
    const struct pk *list = pk_get(k->opt, "param_slice_mappings");
    const bool round_robin = is_round_robin(k->z);
    uint32_t n = 0;

    if ((k->r != 0 && round_robin) || k->z->stage == 3 || !pk_items(list, &n) ||
        report_has(k->j->r, "other_rank", k->j->path, ERR_NO_BYTE))    /* the mappings of another rank */
        return;
    if ((int64_t)n != k->z->shape.n_groups)
        report_add(k->j->r, SEV_ERROR, "groups", k->j->path, ERR_NO_BYTE, NULL,
                   "%d groups in param_shapes, %u in param_slice_mappings", k->z->shape.n_groups, n);
    for (int g = 0; g < k->z->shape.n_groups && g < (int)n; g++) {
        const char *name = other_mapping(k, adam_list_at(list, g), g);

        if (!name)
            continue;
        if (round_robin)
            report_add(k->j->r, SEV_NOTE, "mapping", k->j->path, ERR_NO_BYTE, NULL,
                       "param_slice_mappings have another order than param_shapes (round_robin_gradients) and are not "
                       "used; DeepSpeed's own converter exchanges tensors of this checkpoint");
        else
            report_add(k->j->r, zero_lost(k->z), "mapping", k->j->path, ERR_NO_BYTE, name,
                       "param_slice_mappings of group %d differ from param_shapes and the partition rule; DeepSpeed's "
                       "ds_to_universal.py, which splits by them, would mix up parameters", g);
        return;
    }
}

/*
 * Read the step counters of all groups (ZeRO-3: sub-groups). They must be equal within a file. The counter of group 0
 * is later compared between ranks.
 */
static void read_step(const struct zero_shard *k)
{
    const struct adam_file a = { k->j->files, k->j->pt, k->j->path, k->opt };
    struct adam_step first = adam_find_step(&a, 0, k->j->r);

    k->rank->step = first.found ? first.value : -1;
    for (int g = 1; first.found && adam_group_state(k->opt, g); g++) {
        struct adam_step s = adam_find_step(&a, g, k->j->r);

        if (s.found && s.value != first.value) {
            report_add(k->j->r, zero_mismatch(k->z), "mixed_saves", k->j->path, ERR_NO_BYTE, NULL,
                       "optimizer step %.0f in group 0, but %.0f in group %d", first.value, s.value, g);
            return;
        }
    }
}

/* ---- the file ---- */

static const struct pk *masters_of(const struct zero_shard *k)
{
    const char *key = k->z->stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const struct pk *list = pk_get(k->opt, key);
    uint32_t n = 0;

    if (!pk_items(list, &n)) {
        report_shard_error(k, "key", k->z->stage == 3 ? "key 'fp32_flat_groups' is missing"
                                        : "key 'single_partition_of_fp32_groups' is missing");
        return NULL;
    }
    if ((int64_t)n == k->z->shape.n_groups)
        return list;
    report_add(k->j->r, SEV_ERROR, "groups", k->j->path, ERR_NO_BYTE, NULL, "%d groups in param_shapes, %u in %s",
               k->z->shape.n_groups, n, key);
    return NULL;
}

/*
 * Check the stage in ds_config. If it is the same as in the ds_config of the lead rank, it is not reported a second
 * time.
 */
static void check_stage(const struct zero_shard *k)
{
    const struct source_file *lead = k->z->lead_file;
    const struct pk *root = pt_root(k->j->pt);

    if (k->r == k->z->lead || !lead || !lead->pt || config_stage(pt_root(lead->pt)) != config_stage(root))
        zero_check_config_stage(k->z, root, k->j->path, k->j->r);
}

void zero_shards_rank(const struct pt_files_job *j)
{
    struct zero *z = j->ctx;
    const struct ds_name *n = &z->name[j->file];
    struct zero_shard k = { z, j, shard_optimizer_tree(j->pt), &z->rank[n->dp], n->dp };
    const struct pk *masters;

    ds_name_check(n, j->pt, j->path, zero_mismatch(z), j->r);
    if (!k.opt) {
        report_shard_error(&k, "key", "key 'optimizer_state_dict' is missing");
        return;
    }
    if (pk_get(k.opt, "ds_zero_partition_groups")) {
        report_shard_error(&k, "key",
                           "ds_zero_partition_groups: expert-parallel partitions (AutoEP) are not supported");
        return;
    }
    masters = masters_of(&k);
    if (!masters)
        return;
    read_step(&k);
    k.rank->settings = adam_settings(&(struct adam_file){ j->files, j->pt, j->path, k.opt });
    k.rank->no_moments = has_no_moments(&k);
    k.rank->run = xcalloc((size_t)z->shape.n_groups, sizeof *k.rank->run);
    for (int g = 0; g < z->shape.n_groups; g++)
        read_group_vectors(&k, adam_list_at(masters, g), g);
    check_stage(&k);
    check_groups(&k);
    check_count(&k);
    check_recorded_paddings(&k);
    check_param_mappings(&k);
}

/*
 * Find in rank r's damaged file the records at the offsets that they have in the lead rank's file. A record that is not
 * found or not valid gets the number -1.
 */
static void recover_rank(struct zero *z, int r)
{
    const struct zero_rank *lead = &z->rank[z->lead];
    struct zero_rank *to = &z->rank[r];
    struct files *files = source_files(z->s);

    to->run = xcalloc((size_t)z->shape.n_groups, sizeof *to->run);
    for (int g = 0; g < z->shape.n_groups; g++)
        for (int s = 0; s < ZERO_STATES; s++) {
            const int like = lead->run[g][s].record;
            struct record found;

            to->run[g][s] = lead->run[g][s];
            if (like >= 0)
                to->run[g][s].record = zip_find_payload(files, source_file_at(z->s, z->optim_file[r])->file,
                                                        files_record(files, like), &found)
                                           ? files_add_record(files, &found) : -1;
        }
}

void zero_shards_recover(struct zero *z)
{
    for (int r = 0; r < z->world && z->rank[z->lead].run; r++)
        if (z->optim_file[r] >= 0 && !z->rank[r].run)
            recover_rank(z, r);
}

void zero_shards_renumber(void *ctx, int file, int base)
{
    struct zero *z = ctx;
    struct zero_rank *rank = &z->rank[z->name[file].dp];

    for (int g = 0; rank->run && g < z->shape.n_groups; g++)
        for (int s = 0; s < ZERO_STATES; s++)
            if (rank->run[g][s].record >= 0)
                rank->run[g][s].record += base;
    for (int i = 0; i < rank->n_more; i++)
        rank->more[i].t.record += base;
}
