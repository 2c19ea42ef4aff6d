/*
 * deepspeed_shards.c - read the tables in zero files
 *
 * For each group, a shard has one flat fp32 tensor of master weights and its two moments. Only the offsets of these
 * tensors are kept, not the file's handle, so thousands of shards take a few megabytes. What the shard records about
 * its layout (`param_slice_mappings`, paddings, counts) follows from param_shapes; it is only checked.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/model/zero_partition.h"

static const char *const state_words[DS_STATES] = { "fp32", "exp_avg", "exp_avg_sq" };

/* A shard that is being read, and the stage tables that it must agree with. */
struct shard_job {
    const struct ds_job *j;
    const struct pk *opt;               /* optimizer_state_dict */
    const struct ds_stage *ref;
    struct ds_shard *shard;
    int dp;
};

/* Return the number of padding elements at the end of rank dp's partition. The whole partition may be padding. */
static int64_t rank_padding(const struct ds_group *g, int dp)
{
    int64_t over = ((int64_t)dp + 1) * g->partition - g->sum;

    return over < 0 ? 0 : over > g->partition ? g->partition : over;
}

static struct ds_run ds_read_flat_run(const struct shard_job *k, const struct pk *v, int g, int state)
{
    const struct ds_job *j = k->j;
    struct ds_run run = { .record = -1 };
    struct pt_tensor t;

    if (!v || !pt_tensor(j->pt, v, &t))
        report_add(j->r, SEV_ERROR, state == DS_FP32 ? "key" : "optimizer", j->path, ERR_NO_BYTE, NULL,
                   "group %d has no tensor %s", g, state_words[state]);
    else if (t.dtype != DTYPE_F32)
        report_add(j->r, SEV_ERROR, "dtype", j->path, ERR_NO_BYTE, NULL, "group %d: %s is %s, f32 expected", g,
                   state_words[state], dtype_name(t.dtype));
    else if (!t.contiguous)
        report_add(j->r, SEV_ERROR, "strided", j->path, ERR_NO_BYTE, NULL, "group %d: %s is not contiguous", g,
                   state_words[state]);
    else
        run = (struct ds_run){ t.record, t.at, t.n_elems };
    return run;
}

/*
 * Check the lengths of a group's flat tensors. BF16_Optimizer saves whole partitions. ZeRO-1/2 omits the padding in the
 * master weights, and in the elastic form also in the moments. Both lengths are accepted, because both hold all
 * parameters.
 */
static bool check_lengths(const struct shard_job *k, int g)
{
    const struct ds_job *j = k->j;
    const struct ds_group *group = &k->ref->group[g];
    const struct ds_run *run = k->shard->run[g];
    int64_t least = group->partition - (k->shard->zero_stage_1 ? rank_padding(group, k->dp) : 0);
    bool ok = true;

    for (int s = 1; s < DS_STATES && !k->shard->zero_stage_1; s++)
        if (run[s].record >= 0 && run[0].record >= 0 && run[s].n_elems != run[0].n_elems) {
            report_add(j->r, SEV_ERROR, "length", j->path, ERR_NO_BYTE, NULL,
                       "group %d: fp32 has %lld elements, %s %lld", g, (long long)run[0].n_elems, state_words[s],
                       (long long)run[s].n_elems);
            ok = false;
        }
    for (int s = 0; s < DS_STATES && ok; s++)
        if (run[s].record >= 0 && (run[s].n_elems < least || run[s].n_elems > group->partition)) {
            report_add(j->r, SEV_ERROR, "partition", j->path, ERR_NO_BYTE, NULL,
                       "group %d: %d ranks x %lld elements (%s) do not match %lld parameters (+padding): %lld expected",
                       g, j->d->topo.dp, (long long)run[s].n_elems, state_words[s], (long long)group->sum,
                       (long long)group->partition);
            ok = false;
        }
    return ok;
}

static void ds_read_group_runs(const struct shard_job *k, struct pk **fp32, int g)
{
    const struct pk *state = adam_group_state(k->opt, g);
    struct ds_run *run = k->shard->run[g];

    run[DS_FP32] = ds_read_flat_run(k, fp32[g], g, DS_FP32);
    if (!state) {
        report_add(k->j->r, SEV_ERROR, "groups", k->j->path, ERR_NO_BYTE, NULL,
                   "param_shapes has %d groups, but there is no optimizer state of group %d", k->ref->n_groups, g);
        run[DS_AVG].record = run[DS_AVG_SQ].record = -1;
    } else {
        run[DS_AVG] = ds_read_flat_run(k, pk_get(state, "exp_avg"), g, DS_AVG);
        run[DS_AVG_SQ] = ds_read_flat_run(k, pk_get(state, "exp_avg_sq"), g, DS_AVG_SQ);
        adam_check(&(struct adam_file){ k->j->files, k->j->pt, k->j->path, k->opt }, g, k->j->r);
    }
    if (!check_lengths(k, g))
        for (int s = 0; s < DS_STATES; s++)
            run[s].record = -1;
}

/*
 * Return the list opt[key], which must have one entry per group. Returns NULL, with a finding, if the key is absent or
 * the number of entries is wrong.
 */
static struct pk **group_list(const struct shard_job *k, const char *key, enum severity absent, const char *then)
{
    const struct ds_job *j = k->j;
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(k->opt, key), &n);

    if (!item) {
        report_add(j->r, absent, "key", j->path, ERR_NO_BYTE, NULL, "key '%s' is missing%s", key, then);
        return NULL;
    }
    if ((int64_t)n != k->ref->n_groups) {
        report_add(j->r, SEV_ERROR, "groups", j->path, ERR_NO_BYTE, NULL,
                   "param_shapes has %d groups, but %u are in %s",
                   k->ref->n_groups, n, key);
        return NULL;
    }
    return item;
}

static void check_group_paddings(const struct shard_job *k)
{
    const struct ds_job *j = k->j;
    /* DeepSpeed up to 0.6.7 spells the key `groups_padding`. */
    const char *key = pk_get(k->opt, "groups_padding") ? "groups_padding" : "group_paddings";
    struct pk **item = group_list(k, key, SEV_NOTE, "; the padding is computed from param_shapes");
    int last = j->d->topo.dp - 1;

    for (int g = 0; item && g < k->ref->n_groups; g++) {
        const struct ds_group *group = &k->ref->group[g];
        int64_t total = zero_flat_elems(group->sum, j->d->topo.dp) - group->sum;
        int64_t want = k->dp == last ? total : 0, recorded = -1;

        if (!pk_as_int(item[g], &recorded) ||
            (recorded != want && !(k->shard->zero_stage_1 && recorded == rank_padding(group, k->dp))))
            report_add(j->r, SEV_ERROR, "padding", j->path, ERR_NO_BYTE, NULL,
                       "group %d: padding %lld recorded, %lld expected", g, (long long)recorded, (long long)want);
        else if (recorded > group->partition)
            report_add(j->r, SEV_NOTE, "padding", j->path, ERR_NO_BYTE, NULL,
                       "group %d: padding of %lld elements reaches over more than one rank of %lld", g,
                       (long long)recorded, (long long)group->partition);
    }
}

static void check_counts(const struct shard_job *k)
{
    const struct ds_job *j = k->j;
    struct pk **item = group_list(k, "partition_count", SEV_NOTE, ": the file names give the degree");

    for (int g = 0; item && g < k->ref->n_groups; g++) {
        int64_t n;

        if (!pk_as_int(item[g], &n) || n != j->d->topo.dp) {
            report_add(j->r, SEV_ERROR, "degrees", j->path, ERR_NO_BYTE, NULL,
                       "records %lld data-parallel ranks (partition_count of group %d), but the folder has %d",
                       pk_as_int(item[g], &n) ? (long long)n : -1LL, g, j->d->topo.dp);
            return;
        }
    }
}

/*
 * Compare the positions recorded for group g with the partition rule (docs/formats.md, section 4.6). Only the first
 * difference is reported.
 */
static void check_mapping(const struct shard_job *k, const struct pk *mapping, int g)
{
    const struct ds_job *j = k->j;
    const struct ds_group *group = &k->ref->group[g];
    uint32_t n = 0, at = 0;
    struct pk **pair = pk_pairs(mapping, &n);

    for (int i = 0; i < group->n; i++) {
        const struct ds_slice *s = &group->slice[i];
        int64_t start, skip, said_start = -1, said_n = -1;
        int64_t n_elems = zero_fragment(s->first, s->n_elems, group->partition, k->dp, &start, &skip);
        const char *name;

        if (n_elems == 0)
            continue;
        name = at < n ? pk_as_str(pair[2 * at]) : NULL;
        if (!name || strcmp(name, s->name) != 0) {
            report_add(j->r, SEV_ERROR, "mapping", j->path, ERR_NO_BYTE, s->name,
                       "owns %lld elements from element %lld of group %d, but param_slice_mappings lists %s there",
                       (long long)n_elems, (long long)start, g, name ? name : "nothing");
            return;
        }
        if (!pk_as_int(pk_get(pair[2 * at + 1], "start"), &said_start) ||
            !pk_as_int(pk_get(pair[2 * at + 1], "numel"), &said_n) || said_start != start || said_n != n_elems) {
            report_add(j->r, SEV_ERROR, "mapping", j->path, ERR_NO_BYTE, s->name,
                       "param_slice_mappings lists %lld elements at %lld of group %d, the partition rule gives "
                       "%lld at %lld", (long long)said_n, (long long)said_start, g, (long long)n_elems,
                       (long long)start);
            return;
        }
        at++;
    }
    if (at < n)
        report_add(j->r, SEV_ERROR, "mapping", j->path, ERR_NO_BYTE, pk_as_str(pair[2 * at]),
                   "is listed in param_slice_mappings of group %d, but no part of it is in the partition of this rank",
                   g);
}

static void check_slice_mappings(const struct shard_job *k)
{
    /*
     * files without param_slice_mappings are reported elsewhere: by adam_check_mappings() and the comparison of
     * settings
     */
    struct pk **item = pk_get(k->opt, "param_slice_mappings") ? group_list(k, "param_slice_mappings", SEV_ERROR, "")
                                                              : NULL;

    for (int g = 0; item && g < k->ref->n_groups; g++)
        check_mapping(k, item[g], g);
}

/* ---- the file ---- */

static bool shard_begins(struct shard_job *k)
{
    const struct ds_job *j = k->j;
    static const char *const need[] = { "base_optimizer_state", "single_partition_of_fp32_groups" };

    k->opt = pk_get(pt_root(j->pt), "optimizer_state_dict");
    if (!k->opt || pk_is_none(k->opt)) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL, "key 'optimizer_state_dict' is missing");
        return false;
    }
    if (pk_get(k->opt, "fp32_flat_groups") || run_state_zero_stage(k->opt) < 0 || run_state_zero_stage(k->opt) > 2) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL,
                   "a shard of ZeRO stage 3 (or an unknown one), which is not supported");
        return false;
    }
    for (int i = 0; i < 2; i++) {
        const struct pk *v = pk_get(k->opt, need[i]);

        if (!v || pk_is_none(v)) {
            report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL, "key '%s' is missing", need[i]);
            return false;
        }
    }
    k->shard->zero_stage_1 = run_state_zero_stage(k->opt) > 0;
    return true;
}

/* Compare the groups of the inner optimizer with param_shapes. The elastic form has no groups and no numbers. */
static void check_owners(const struct shard_job *k)
{
    const struct pk *base = pk_get(k->opt, "base_optimizer_state");
    const struct adam_groups a = { k->j->path, pk_get(base, "param_groups"), pk_get(base, "state"), k->ref->n_groups,
                                   false };

    if (a.state)
        adam_check_groups(&a, k->j->r);
}

void ds_read_shard(const struct ds_job *j)
{
    struct ds *d = j->d;
    const struct ds_name *n = &d->name[j->file];
    struct shard_job k = { .j = j, .ref = d->ref[n->mp / d->topo.tp], .dp = n->dp,
                           .shard = &d->shard[n->mp * d->topo.dp + n->dp] };
    struct pk **fp32;

    ds_read_marks(j);
    if (!shard_begins(&k))
        return;
    ds_read_step(j, k.opt);
    if (!k.ref || d->stage[n->mp].bad)
        /* already reported; without the stage's param_shapes, the content of the shard cannot be determined */
        return;
    fp32 = group_list(&k, "single_partition_of_fp32_groups", SEV_ERROR, "");
    if (!fp32)
        return;
    k.shard->run = xcalloc((size_t)k.ref->n_groups, sizeof *k.shard->run);
    for (int g = 0; g < k.ref->n_groups; g++)
        ds_read_group_runs(&k, fp32, g);
    check_owners(&k);
    check_group_paddings(&k);
    check_counts(&k);
    check_slice_mappings(&k);
}

void ds_renumber_shard(struct ds *d, int file, int base)
{
    const struct ds_name *n = &d->name[file];
    const struct ds_stage *ref = d->ref[n->mp / d->topo.tp];
    struct ds_shard *shard = &d->shard[n->mp * d->topo.dp + n->dp];

    for (int g = 0; shard->run && g < ref->n_groups; g++)
        for (int s = 0; s < DS_STATES; s++)
            if (shard->run[g][s].record >= 0)
                shard->run[g][s].record += base;
}
