/*
 * deepspeed_shards.c - the tables inside mp_rank, zero and layer files
 *
 * mp_rank: `param_shapes` lists, per optimizer group, the rank's parameters in the order
 * in which they stand in the flat buffer. From it the place of every element follows
 * (spec 4.3), so `param_slice_mappings` of the zero files is not needed but compared.
 * zero: per group one flat fp32 tensor and two moments; a tensor's extent is kept, the
 * handle is not: thousands of shards fit in a few megabytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed.h"
#include "libcommon/model/zero.h"

/* Names become folder names and HDF5 paths, so they are short and plain. */
enum { PARAM_NAME_MAX = 200 };
/* Elements in a slice or a group: 4 TiB of masters in one rank; times any degree it fits 64 bits. */
static const int64_t elems_max = (int64_t)1 << 40;

static const char *const state_words[DS_STATES] = { "fp32", "exp_avg", "exp_avg_sq" };

/* ---- mp_rank files ---- */

static bool is_param_name(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n > PARAM_NAME_MAX || *s == '.')
        return false;
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || *s == 0x7f || *s == '/' || *s == '\\')
            return false;
    return true;
}

static bool read_slice(const struct ds_job *j, const struct pk *key, const struct pk *shape, struct ds_slice *out)
{
    uint32_t n = 0;
    struct pk **dim = pk_items(shape, &n);
    uint64_t elems = 1;

    out->name = pk_as_str(key);
    if (!out->name || !is_param_name(out->name)) {
        report_add(j->r, SEV_ERROR, "param_name", j->path, ERR_NO_BYTE, NULL,
                   "param_shapes: '%.60s' cannot be a parameter's name", out->name ? out->name : "(no string)");
        return false;
    }
    if (!dim || n < 1 || n > 4) {
        report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, out->name,
                   "param_shapes gives it %u dimensions, 1 to 4 expected", n);
        return false;
    }
    out->ndim = (int)n;
    for (uint32_t i = 0; i < n; i++) {
        if (!pk_as_int(dim[i], &out->shape[i]) || out->shape[i] < 1 ||
            !mul_u64(elems, (uint64_t)out->shape[i], &elems) || elems > (uint64_t)elems_max) {
            report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, out->name,
                       "param_shapes gives it an impossible shape");
            return false;
        }
    }
    out->n_elems = (int64_t)elems;
    return true;
}

static bool read_group(const struct ds_job *j, const struct pk *shapes, struct ds_group *g)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(shapes, &n);

    g->slice = xcalloc(n, sizeof *g->slice);
    for (uint32_t i = 0; pair && i < n; i++) {
        struct ds_slice *s = &g->slice[g->n];

        if (!read_slice(j, pair[2 * i], pair[2 * i + 1], s))
            return false;
        s->first = g->sum;
        g->sum += s->n_elems;
        g->n++;
        if (g->sum > elems_max) {
            report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, NULL,
                       "param_shapes: a group of more than 2^40 elements");
            return false;
        }
    }
    g->partition = zero_partition_elems(g->sum, j->d->topo.dp);
    return true;
}

void ds_read_stage(const struct ds_job *j)
{
    struct ds_stage *st = &j->d->stage[j->d->name[j->file].mp];
    struct pk *shapes = pk_get(pt_root(j->pt), "param_shapes"), **item;
    uint32_t n = 0, n_pairs;

    ds_read_marks(j);
    ds_check_degrees(j);
    item = pk_items(shapes, &n);
    if (!item && pk_pairs(shapes, &n_pairs)) {      /* one group, not in a list */
        item = &shapes;
        n = 1;
    }
    if (!item || n == 0) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL,
                   "key 'param_shapes' is missing or empty: which tensors the optimizer shards hold is unknown");
        return;
    }
    st->group = xcalloc(n, sizeof *st->group);
    st->n_groups = (int)n;
    st->ok = true;
    for (uint32_t g = 0; g < n && st->ok; g++)
        st->ok = read_group(j, item[g], &st->group[g]);
}

/* ---- stages against each other ---- */

static bool same_shape(const struct ds_slice *a, const struct ds_slice *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static const char *shape_text(int ndim, const int64_t *shape, char buf[128])
{
    size_t at = 0;

    buf[0] = '\0';
    for (int i = 0; i < ndim && at < 100; i++)
        at += (size_t)snprintf(buf + at, 128 - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    return buf;
}

/* The first thing in which tensor rank b differs from rank a of the same stage. */
static bool same_stage(struct ds *d, int pp, int tp_a, int tp_b)
{
    const struct ds_stage *a = &d->stage[topo_mp(d->topo, pp, tp_a)], *b = &d->stage[topo_mp(d->topo, pp, tp_b)];
    const char *file = files_name(d->s->files, d->s->file[d->mp_file[topo_mp(d->topo, pp, tp_b)]].file);
    char x[128], y[128];

    if (a->n_groups != b->n_groups) {
        report_add(d->r, SEV_ERROR, "groups", file, ERR_NO_BYTE, NULL,
                   "%d groups in param_shapes, tensor rank %d of this stage has %d", b->n_groups, tp_a, a->n_groups);
        return false;
    }
    for (int g = 0; g < a->n_groups; g++) {
        const struct ds_group *p = &a->group[g], *q = &b->group[g];

        for (int i = 0; i < p->n && i < q->n; i++) {
            if (strcmp(p->slice[i].name, q->slice[i].name) != 0) {
                report_add(d->r, SEV_ERROR, "names", file, ERR_NO_BYTE, q->slice[i].name,
                           "stands where tensor rank %d of this stage has %s", tp_a, p->slice[i].name);
                return false;
            }
            if (!same_shape(&p->slice[i], &q->slice[i])) {
                report_add(d->r, SEV_ERROR, "shape", file, ERR_NO_BYTE, q->slice[i].name,
                           "shape [%s] on tp %d, [%s] on tp %d",
                           shape_text(p->slice[i].ndim, p->slice[i].shape, x), tp_a,
                           shape_text(q->slice[i].ndim, q->slice[i].shape, y), tp_b);
                return false;
            }
        }
        if (p->n != q->n) {
            report_add(d->r, SEV_ERROR, "names", file, ERR_NO_BYTE, NULL,
                       "group %d has %d parameters, on tensor rank %d of this stage %d", g, q->n, tp_a, p->n);
            return false;
        }
    }
    return true;
}

static int by_name_and_stage(const void *a, const void *b)
{
    const struct ds_entry *x = a, *y = b;
    int c = strcmp(x->name, y->name);

    if (c == 0)
        c = (x->pp > y->pp) - (x->pp < y->pp);
    return c ? c : (x->slice > y->slice) - (x->slice < y->slice);
}

static void make_index(struct ds *d)
{
    int n = 0;

    for (int pp = 0; pp < d->topo.pp; pp++)
        for (int g = 0; d->ref[pp] && g < d->ref[pp]->n_groups; g++)
            n += d->ref[pp]->group[g].n;
    d->entry = xcalloc((size_t)n, sizeof *d->entry);
    for (int pp = 0; pp < d->topo.pp; pp++)
        for (int g = 0; d->ref[pp] && g < d->ref[pp]->n_groups; g++)
            for (int i = 0; i < d->ref[pp]->group[g].n; i++) {
                const struct ds_slice *s = &d->ref[pp]->group[g].slice[i];

                d->entry[d->n_entries++] = (struct ds_entry){ s->name, s, pp, g };
            }
    qsort(d->entry, (size_t)d->n_entries, sizeof *d->entry, by_name_and_stage);
}

void ds_check_stages(struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++) {
        int first = -1;

        for (int tp = 0; tp < d->topo.tp; tp++) {
            struct ds_stage *st = &d->stage[topo_mp(d->topo, pp, tp)];

            if (!st->ok)
                continue;
            if (first < 0) {
                first = tp;
                d->ref[pp] = st;
            } else {
                st->bad = !same_stage(d, pp, first, tp);
            }
        }
    }
    make_index(d);
}

const struct ds_entry *ds_find(const struct ds *d, const char *name)
{
    int lo = 0, hi = d->n_entries;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (strcmp(d->entry[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < d->n_entries && strcmp(d->entry[lo].name, name) == 0 ? &d->entry[lo] : NULL;
}

bool ds_all_stages(const struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++)
        if (!d->ref[pp])
            return false;
    return true;
}

/* ---- zero files ---- */

/* A shard being read, and where it stands. */
struct shard_job {
    const struct ds_job *j;
    const struct pk *opt;               /* optimizer_state_dict */
    const struct ds_stage *ref;
    struct ds_shard *shard;
    int dp;
};

/* Padding elements at the end of rank dp's partition; all of a partition may be padding. */
static int64_t rank_padding(const struct ds_group *g, int dp)
{
    int64_t over = ((int64_t)dp + 1) * g->partition - g->sum;

    return over < 0 ? 0 : over > g->partition ? g->partition : over;
}

static struct ds_run flat_run(const struct shard_job *k, const struct pk *v, int g, int state)
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

/* Adam keeps two moments and a counter; anything more would be lost without a word. */
static void check_adam(const struct shard_job *k, const struct pk *state, int g)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(state, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (!key || (strcmp(key, "exp_avg") != 0 && strcmp(key, "exp_avg_sq") != 0 && strcmp(key, "step") != 0))
            report_add(k->j->r, SEV_ERROR, "optimizer", k->j->path, ERR_NO_BYTE, NULL,
                       "group %d has state '%s'; only Adam moments are supported", g, key ? key : "?");
    }
}

/*
 * BF16_Optimizer keeps whole partitions. ZeRO-1/2 may leave the padding out, of the
 * masters always and of the moments in the elastic form; the fragments fit either way.
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

static void read_runs(const struct shard_job *k, struct pk **fp32, int g)
{
    const struct pk *state = ds_group_state(k->opt, g);
    struct ds_run *run = k->shard->run[g];

    run[DS_FP32] = flat_run(k, fp32[g], g, DS_FP32);
    if (!state) {
        report_add(k->j->r, SEV_ERROR, "groups", k->j->path, ERR_NO_BYTE, NULL,
                   "%d groups in param_shapes, group %d has no optimizer state", k->ref->n_groups, g);
        run[DS_AVG].record = run[DS_AVG_SQ].record = -1;
    } else {
        run[DS_AVG] = flat_run(k, pk_get(state, "exp_avg"), g, DS_AVG);
        run[DS_AVG_SQ] = flat_run(k, pk_get(state, "exp_avg_sq"), g, DS_AVG_SQ);
        check_adam(k, state, g);
    }
    if (!check_lengths(k, g))
        for (int s = 0; s < DS_STATES; s++)
            run[s].record = -1;
}

/* One entry a group, or an ERROR; NULL when the key is absent or the count wrong. */
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
        report_add(j->r, SEV_ERROR, "groups", j->path, ERR_NO_BYTE, NULL, "%d groups in param_shapes, %u in %s",
                   k->ref->n_groups, n, key);
        return NULL;
    }
    return item;
}

static void check_paddings(const struct shard_job *k)
{
    const struct ds_job *j = k->j;
    /* DeepSpeed <= 0.6.7 spelled it the other way round. */
    const char *key = pk_get(k->opt, "groups_padding") ? "groups_padding" : "group_paddings";
    struct pk **item = group_list(k, key, SEV_NOTE, ": padding follows from param_shapes");
    int last = j->d->topo.dp - 1;

    for (int g = 0; item && g < k->ref->n_groups; g++) {
        const struct ds_group *group = &k->ref->group[g];
        int64_t total = zero_flat_elems(group->sum, j->d->topo.dp) - group->sum;
        int64_t want = k->dp == last ? total : 0, said = -1;

        if (!pk_as_int(item[g], &said) ||
            (said != want && !(k->shard->zero_stage_1 && said == rank_padding(group, k->dp))))
            report_add(j->r, SEV_ERROR, "padding", j->path, ERR_NO_BYTE, NULL,
                       "group %d: padding %lld recorded, %lld expected", g, (long long)said, (long long)want);
        else if (said > group->partition)
            report_add(j->r, SEV_NOTE, "padding", j->path, ERR_NO_BYTE, NULL,
                       "group %d: padding of %lld elements reaches over more than one rank of %lld", g,
                       (long long)said, (long long)group->partition);
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
                       "says DP %lld (partition_count of group %d), the directory has %d",
                       pk_as_int(item[g], &n) ? (long long)n : -1LL, g, j->d->topo.dp);
            return;
        }
    }
}

/* The recorded fragments of one group against spec 4.4; the first difference is enough. */
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
                       "%lld elements at %lld of group %d belong to it, param_slice_mappings lists %s there",
                       (long long)n_elems, (long long)start, g, name ? name : "nothing");
            return;
        }
        if (!pk_as_int(pk_get(pair[2 * at + 1], "start"), &said_start) ||
            !pk_as_int(pk_get(pair[2 * at + 1], "numel"), &said_n) || said_start != start || said_n != n_elems) {
            report_add(j->r, SEV_ERROR, "mapping", j->path, ERR_NO_BYTE, s->name,
                       "param_slice_mappings says %lld elements at %lld of group %d, the partition rule gives "
                       "%lld at %lld", (long long)said_n, (long long)said_start, g, (long long)n_elems,
                       (long long)start);
            return;
        }
        at++;
    }
    if (at < n)
        report_add(j->r, SEV_ERROR, "mapping", j->path, ERR_NO_BYTE, pk_as_str(pair[2 * at]),
                   "listed in param_slice_mappings of group %d, but no part of it is in this rank's partition", g);
}

static void check_mappings(const struct shard_job *k)
{
    struct pk **item = group_list(k, "param_slice_mappings", SEV_NOTE, " (DeepSpeed <= 0.6.7?): recomputed");

    for (int g = 0; item && g < k->ref->n_groups; g++)
        check_mapping(k, item[g], g);
}

/* The stage number as ZeRO-1/2/3 write it: an int or an enum; 0 where BF16_Optimizer writes none. */
static int64_t zero_stage(const struct pk *opt)
{
    const struct pk *v = pk_get(opt, "zero_stage");
    int64_t stage = 0;

    if (!v || pk_is_none(v) || pk_as_int(v, &stage))
        return stage;
    return pk_enum(v, &stage) ? 0 : stage;
}

static bool shard_begins(struct shard_job *k)
{
    const struct ds_job *j = k->j;
    static const char *const need[] = { "base_optimizer_state", "single_partition_of_fp32_groups" };

    k->opt = pk_get(pt_root(j->pt), "optimizer_state_dict");
    if (!k->opt || pk_is_none(k->opt)) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL, "key 'optimizer_state_dict' is missing");
        return false;
    }
    if (pk_get(k->opt, "fp32_flat_groups") || zero_stage(k->opt) > 2) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL,
                   "a shard of ZeRO stage 3, which is not supported");
        return false;
    }
    for (int i = 0; i < 2; i++) {
        const struct pk *v = pk_get(k->opt, need[i]);

        if (!v || pk_is_none(v)) {
            report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL, "key '%s' is missing", need[i]);
            return false;
        }
    }
    k->shard->zero_stage_1 = zero_stage(k->opt) > 0;
    return true;
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
        return;                 /* said already: nothing tells what the shard holds */
    fp32 = group_list(&k, "single_partition_of_fp32_groups", SEV_ERROR, "");
    if (!fp32)
        return;
    k.shard->run = xcalloc((size_t)k.ref->n_groups, sizeof *k.shard->run);
    for (int g = 0; g < k.ref->n_groups; g++)
        read_runs(&k, fp32, g);
    check_paddings(&k);
    check_counts(&k);
    check_mappings(&k);
}

/* ---- layer files ---- */

/* Layer files name tensors relative to their module: "3.<key>", or the tied embedding's. */
static const struct ds_entry *layer_entry(const struct ds *d, int layer, const char *key)
{
    char name[PARAM_NAME_MAX + 64];
    const struct ds_entry *hit;

    snprintf(name, sizeof name, "%d.%.*s", layer, PARAM_NAME_MAX, key);
    hit = ds_find(d, name);
    if (hit)
        return hit;
    snprintf(name, sizeof name, "tied_modules.embed.%.*s", PARAM_NAME_MAX, key);
    return ds_find(d, name);
}

static void unknown_key(const struct ds_job *j, const char *key)
{
    /* Rotary tables are buffers: recomputed by the model, never trained. */
    if (str_ends(key, "inv_freq"))
        report_add(j->r, SEV_NOTE, "unknown_key", j->path, ERR_NO_BYTE, NULL, "'%.100s' is a buffer: passed over", key);
    else if (ds_all_stages(j->d))
        report_add(j->r, SEV_ERROR, "unknown_key", j->path, ERR_NO_BYTE, NULL,
                   "'%.100s' is in no stage's param_shapes", key);
}

static bool check_tensor(const struct ds_job *j, const struct ds_entry *en, const struct pt_tensor *t)
{
    char x[128], y[128];

    if (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_F32) {
        report_add(j->r, SEV_ERROR, "dtype", j->path, ERR_NO_BYTE, en->name, "%s weights, bf16 expected",
                   dtype_name(t->dtype));
        return false;
    }
    if (!t->contiguous) {
        report_add(j->r, SEV_ERROR, "strided", j->path, ERR_NO_BYTE, en->name, "is not contiguous");
        return false;
    }
    if (t->ndim != en->slice->ndim || memcmp(t->shape, en->slice->shape, (size_t)t->ndim * sizeof *t->shape) != 0) {
        report_add(j->r, SEV_ERROR, "shape", j->path, ERR_NO_BYTE, en->name, "is [%s], param_shapes says [%s]",
                   shape_text(t->ndim, t->shape, x), shape_text(en->slice->ndim, en->slice->shape, y));
        return false;
    }
    return true;
}

void ds_read_layer(const struct ds_job *j)
{
    struct ds *d = j->d;
    const struct ds_name *n = &d->name[j->file];
    const int *no = d->layer_no;
    struct ds_layer *l;
    uint32_t n_pairs = 0;
    struct pk **pair = pk_pairs(pt_root(j->pt), &n_pairs);

    while (*no != n->layer)
        no++;
    l = &d->layer[(no - d->layer_no) * d->topo.tp + n->tp];
    if (!pair) {
        report_add(j->r, SEV_ERROR, "key", j->path, ERR_NO_BYTE, NULL, "holds no dictionary of tensors");
        return;
    }
    l->ok = true;
    l->tensor = xcalloc(n_pairs, sizeof *l->tensor);
    for (uint32_t i = 0; i < n_pairs; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        struct ds_tensor *t = &l->tensor[l->n];
        const struct ds_entry *en;

        if (!key || !pt_tensor(j->pt, pair[2 * i + 1], &t->t)) {
            report_add(j->r, SEV_WARNING, "unknown_key", j->path, ERR_NO_BYTE, NULL, "'%.100s' is no tensor",
                       key ? key : "?");
            continue;
        }
        en = layer_entry(d, n->layer, key);
        if (!en) {
            unknown_key(j, key);
        } else if (check_tensor(j, en, &t->t)) {
            t->name = en->name;
            l->n++;
        }
    }
}

/* ---- the end ---- */

void ds_tables_free(struct ds *d)
{
    int n_mp = d->topo.tp * d->topo.pp;

    for (int i = 0; d->stage && i < n_mp; i++) {
        for (int g = 0; g < d->stage[i].n_groups; g++)
            free(d->stage[i].group[g].slice);
        free(d->stage[i].group);
    }
    for (int i = 0; d->shard && i < n_mp * d->topo.dp; i++)
        free(d->shard[i].run);
    for (int i = 0; d->layer && i < d->n_layers * d->topo.tp; i++)
        free(d->layer[i].tensor);
    for (int i = 0; d->mark && i < d->n_files; i++)
        for (int m = 0; m < DS_MARKS; m++)
            free(d->mark[i][m]);
    free(d->stage);
    free(d->ref);
    free(d->entry);
    free(d->shard);
    free(d->layer);
    free(d->mark);
    free(d->name);
    free(d->layer_no);
    free(d->mp_file);
    free(d->zero_file);
    free(d->layer_file);
}
