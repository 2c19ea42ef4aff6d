/*
 * deepspeed_files.c - build the (pp, tp, dp) grid from file names
 *
 *   layer_<layer>-model_<tp>-model_states.pt              weights; some converters write "_model_states" at the end
 *   mp_rank_<mp>_model_states.pt                          mp = pp * TP + tp
 *   [bf16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt the "pp" in the name is the parameter partition, which is dp
 *
 * Numbers are padded to two digits and can be wider, so they are compared as integers. The degrees are those recorded
 * in an mp_rank file, unless its records contradict each other: from its names alone, a folder that has lost all files
 * of its last ranks seems complete. If the records contradict each other, the degrees are derived from the names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/layouts.h"

enum { MISSING_NAMED = 256 };

/* ---- names ---- */

const char *ds_layer_name(int layer, int tp, char buf[96])
{
    snprintf(buf, 96, "layer_%02d-model_%02d-model_states.pt", layer, tp);
    return buf;
}

const char *ds_mp_name(int mp, char buf[96])
{
    snprintf(buf, 96, "mp_rank_%02d_model_states.pt", mp);
    return buf;
}

const char *ds_zero_name(const struct ds *d, int mp, int dp, char buf[96])
{
    snprintf(buf, 96, "%szero_pp_rank_%d_mp_rank_%02d%soptim_states.pt", d->bf16_prefix ? "bf16_" : "", dp, mp,
             d->joined ? "" : "_");
    return buf;
}

/* ---- the folder ---- */

static int refuse_kind(const struct ds *d, enum ds_kind kind, const char *name, struct err *e)
{
    if (kind == DS_ZERO3)
        err_data(e, d->s->path, ERR_NO_BYTE,
                 "%s: holds weights of ZeRO-3 and layer files, so the folder contains two saves; remove the files of "
                 "one of them", name);
    else
        err_data(e, d->s->path, ERR_NO_BYTE, "%s: experts of DeepSpeed's MoE with layer files of the "
                 "pipeline engine are not supported" SOURCE_NOT_CHECKED, name);
    return -1;
}

static void ds_add_source_file(struct ds *d, const struct archive_member *m, struct ds_name n)
{
    struct source *s = d->s;
    struct source_file *f = &s->file[s->n_files];

    f->name = arena_fmt(s->arena, "%s", m->name);
    f->file = m->file;
    f->cls = n.kind == DS_LAYER ? FILE_WEIGHTS : n.kind == DS_ZERO ? FILE_OPTIMIZER : FILE_OTHER;
    f->pp = -1;
    f->layer = n.layer;
    f->tp = n.tp;
    f->dp = n.dp;
    d->name[s->n_files++] = n;
}

/* Determine from the file names how this folder spells the names of zero files. */
static void detect_zero_file_prefix(struct ds *d)
{
    int n[2] = {0}, n_joined = 0;

    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == DS_ZERO) {
            n[d->name[i].bf16]++;
            n_joined += d->name[i].joined;
        }
    d->bf16_prefix = n[1] >= n[0];
    d->joined = 2 * n_joined > n[0] + n[1];
    if (n[0] && n[1])
        report_add(d->r, SEV_ERROR, "two_prefixes", d->s->path, ERR_NO_BYTE, NULL,
                   "both zero_pp_rank_* (%d) and bf16_zero_pp_rank_* (%d) present: two saves in one folder",
                   n[0], n[1]);
}

/*
 * Add a file that shardkit's own tools wrote next to the trainer's files. These files come last in s->file, because
 * they belong to no rank.
 */
static void add_ours(struct source *s, const struct archive_member *m)
{
    s->file[s->n_files++] = (struct source_file){ .name = arena_fmt(s->arena, "%s", m->name), .file = m->file,
                                                  .cls = FILE_OTHER, .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
}

int ds_files_read(struct ds *d, const struct source_listing *l, struct err *e)
{
    struct source *s = d->s;

    s->file = arena_alloc(s->arena, (size_t)l->n * sizeof *s->file);
    d->name = xcalloc((size_t)l->n, sizeof *d->name);
    d->mark = xcalloc((size_t)l->n, sizeof *d->mark);
    for (int i = 0; i < l->n; i++) {
        const char *name = l->member[i].name;
        struct ds_name n = ds_name_parse(name);

        if (n.kind == DS_ZERO3 || n.kind == DS_EXPERT || n.kind == DS_EXPERT_OPTIM)
            return refuse_kind(d, n.kind, name, e);
        if (n.kind != DS_OTHER)
            ds_add_source_file(d, &l->member[i], n);
        else if (str_ends(name, ".pt") && !strchr(name, '/'))
            report_add(d->r, SEV_WARNING, "extra_file", files_name(s->files, l->member[i].file), ERR_NO_BYTE, NULL,
                       "does not belong to the checkpoint, because no checkpoint file has this name");
    }
    d->n_files = s->n_files;
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->member[i].name, MANIFEST_NAME) == 0 || strcmp(l->member[i].name, DS_REPAIR_LOG_NAME) == 0)
            add_ours(s, &l->member[i]);
    detect_zero_file_prefix(d);
    return 0;
}

/* ---- degrees ---- */

/* The degrees recorded in an mp_rank file; 0 if a degree is not recorded. */
struct degrees {
    int64_t tp, pp, mp, dp, args_dp;
};

static int64_t read_rank_count(const struct pk *v, const char *key)
{
    int64_t i;

    return pk_as_int(pk_get(v, key), &i) && i > 0 && i < DS_RANK_MAX ? i : 0;
}

/*
 * Return the degrees recorded in an mp_rank file. Sequence-parallel ranks are counted as data-parallel ranks
 * (docs/formats.md, section 4.2).
 */
static struct degrees read_saved_degrees(const struct pk *root)
{
    const struct pk *args = pk_get(root, "args");
    struct degrees g = { .mp = read_rank_count(root, "mp_world_size"), .dp = read_rank_count(root, "dp_world_size") };
    int64_t sp = 0;

    if (!args)
        return g;
    g.tp = read_rank_count(args, "tensor_model_parallel_size");
    g.pp = read_rank_count(args, "pipeline_model_parallel_size");
    sp = read_rank_count(args, "ds_sequence_parallel_size");
    g.args_dp = read_rank_count(args, "data_parallel_size") * (sp ? sp : 1);
    return g;
}

static struct degrees named_degrees(const struct ds *d)
{
    struct degrees g = {0};

    for (int i = 0; i < d->n_files; i++) {
        const struct ds_name *n = &d->name[i];

        if (n->kind == DS_LAYER && n->tp >= g.tp)
            g.tp = n->tp + 1;
        if (n->kind != DS_LAYER && n->mp >= g.mp)
            g.mp = n->mp + 1;
        if (n->kind == DS_ZERO && n->bf16 == d->bf16_prefix && n->dp >= g.dp)
            g.dp = n->dp + 1;
    }
    return g;
}

static bool has_kind(const struct ds *d, enum ds_kind kind)
{
    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == kind)
            return true;
    return false;
}

/* Refuse layouts that are not supported and that can only be detected in the content of an mp_rank file. */
static int refuse_content(const struct ds *d, const struct source_file *first, struct err *e)
{
    const struct pk *root = pt_root(first->pt);
    const char *path = files_name(d->s->files, first->file);
    uint32_t n;

    if (!has_kind(d, DS_ZERO) && pk_pairs(pk_get(root, "optimizer"), &n)) {
        err_data(e, path, ERR_NO_BYTE, "holds the optimizer state itself, and there are no zero_pp_rank_* files: "
                 "fp16 without ZeRO is not supported");
        return -1;
    }
    return 0;
}

int ds_degrees(struct ds *d, const struct source_file *first, struct err *e)
{
    struct degrees named = named_degrees(d), saved = read_saved_degrees(pt_root(first->pt)), g = named;

    if (refuse_content(d, first, e) < 0)
        return -1;
    /* Use the recorded degrees, except if args and DeepSpeed's own counts contradict each other. */
    if (saved.tp && saved.mp && saved.mp % saved.tp == 0 && (!saved.pp || saved.pp * saved.tp == saved.mp)) {
        g.tp = saved.tp;
        g.mp = saved.mp;
    }
    if (saved.dp && (!saved.args_dp || saved.args_dp == saved.dp))
        g.dp = saved.dp;
    if (!g.tp)
        g.tp = saved.tp ? saved.tp : 1;
    if (!g.dp)
        g.dp = saved.dp ? saved.dp : 1;
    if (g.mp % g.tp) {
        err_data(e, d->s->path, ERR_NO_BYTE, "%lld mp_rank numbers cannot be stages of %lld tensor-parallel ranks",
                 (long long)g.mp, (long long)g.tp);
        return -1;
    }
    /*
     * A grid that is far larger than the number of files indicates damage. It is refused, because the tables below are
     * as large as the grid.
     */
    if (g.mp * g.dp > 4096 + 64 * (int64_t)d->n_files || g.mp * g.dp > DS_RANK_MAX ||
        d->n_files * g.tp > 4 * (int64_t)DS_RANK_MAX) {
        err_data(e, d->s->path, ERR_NO_BYTE, "%lld model-parallel x %lld data-parallel ranks, but only %d files",
                 (long long)g.mp, (long long)g.dp, d->n_files);
        return -1;
    }
    d->topo = (struct topology){ .tp = (int)g.tp, .pp = (int)(g.mp / g.tp), .dp = (int)g.dp };
    return 0;
}

char *ds_degrees_unlike(const struct ds *d, const struct pk *root)
{
    const struct degrees saved = read_saved_degrees(root), named = named_degrees(d);
    const struct { const char *what; int64_t saved, named; } pair[] = {
        { "tensor-parallel ranks", saved.tp, named.tp }, { "model-parallel ranks", saved.mp, named.mp },
        { "data-parallel ranks", saved.dp, named.dp },
    };

    /* Fewer ranks in the names than recorded are no contradiction: the files of the last ranks may be lost. */
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        if (pair[i].saved && pair[i].named > pair[i].saved)
            return str_fmt("it belongs to a checkpoint of %lld %s, but the other files to one of %lld",
                           (long long)pair[i].saved, pair[i].what,
                           (long long)pair[i].named);
    return NULL;
}

static void degree_differs(const struct ds_job *j, const char *key, int64_t saved, int64_t expected)
{
    if (saved && saved != expected)
        report_add(j->r, SEV_ERROR, "degrees", j->path, ERR_NO_BYTE, NULL,
                   "records %s %lld, but the folder has %lld", key, (long long)saved, (long long)expected);
}

void ds_check_degrees(const struct ds_job *j)
{
    struct topology t = j->d->topo;
    struct degrees g = read_saved_degrees(pt_root(j->pt));
    const struct pk *dimensions = pk_get(pt_root(j->pt), "checkpoint_parallel_dimensions");

    degree_differs(j, "args.tensor_model_parallel_size", g.tp, t.tp);
    degree_differs(j, "args.pipeline_model_parallel_size", g.pp, t.pp);
    degree_differs(j, "mp_world_size", g.mp, (int64_t)t.tp * t.pp);
    degree_differs(j, "dp_world_size", g.dp, t.dp);
    degree_differs(j, "args.data_parallel_size", g.args_dp, t.dp);
    degree_differs(j, "checkpoint_parallel_dimensions.tp_degree", read_rank_count(dimensions, "tp_degree"), t.tp);
    degree_differs(j, "checkpoint_parallel_dimensions.pp_degree", read_rank_count(dimensions, "pp_degree"), t.pp);
}

/* ---- the grid ---- */

void ds_missing(struct ds *d, const char *name)
{
    if (d->n_missing++ < MISSING_NAMED)
        report_add(d->r, ds_lost(d), "missing_file", d->s->path, ERR_NO_BYTE, NULL,
                   "missing %s (expected PP=%d, TP=%d, DP=%d)", name, d->topo.pp, d->topo.tp, d->topo.dp);
}

void ds_missing_rest(struct ds *d)
{
    if (d->n_missing > MISSING_NAMED)
        report_add(d->r, ds_lost(d), "missing_file", d->s->path, ERR_NO_BYTE, NULL,
                   "%d more files are missing", d->n_missing - MISSING_NAMED);
}

static int *new_slots(int64_t n)
{
    int *slot = xmalloc((size_t)n * sizeof *slot);

    for (int64_t i = 0; i < n; i++)
        slot[i] = -1;
    return slot;
}

static void put_file_in_slot(struct ds *d, int file, int *slot)
{
    const struct source_file *f = d->s->file;

    if (*slot < 0)
        *slot = file;
    else
        report_add(d->r, SEV_ERROR, "duplicate_file", files_name(d->s->files, f[file].file), ERR_NO_BYTE, NULL,
                   "has the same rank as %s", f[*slot].name);
}

static void extra(struct ds *d, int file)
{
    report_add(d->r, SEV_ERROR, "extra_file", files_name(d->s->files, d->s->file[file].file), ERR_NO_BYTE, NULL,
               "has a rank outside of the topology PP=%d, TP=%d, DP=%d", d->topo.pp, d->topo.tp, d->topo.dp);
}

static int cmp_file_layer_numbers(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/* Fill d->layer_no with the distinct layer numbers, ascending. */
static void collect_layers(struct ds *d)
{
    int n = 0;

    d->layer_no = xmalloc((size_t)d->n_files * sizeof *d->layer_no);
    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == DS_LAYER)
            d->layer_no[n++] = d->name[i].layer;
    qsort(d->layer_no, (size_t)n, sizeof *d->layer_no, cmp_file_layer_numbers);
    for (int i = 0; i < n; i++)
        if (i == 0 || d->layer_no[i] != d->layer_no[d->n_layers - 1])
            d->layer_no[d->n_layers++] = d->layer_no[i];
}

static int layer_index(const struct ds *d, int layer)
{
    const int *hit = bsearch(&layer, d->layer_no, (size_t)d->n_layers, sizeof layer, cmp_file_layer_numbers);

    return (int)(hit - d->layer_no);
}

static void place_file_in_grid(struct ds *d, int i)
{
    struct topology t = d->topo;
    const struct ds_name *n = &d->name[i];
    struct source_file *f = &d->s->file[i];

    if (n->kind == DS_LAYER) {
        if (n->tp >= t.tp)
            extra(d, i);
        else
            put_file_in_slot(d, i, &d->layer_file[layer_index(d, n->layer) * t.tp + n->tp]);
        return;
    }
    if (n->mp >= t.tp * t.pp || n->dp >= t.dp) {
        /* the stage made from a configuration replaces all stages, so no mp_rank or zero file is extra */
        if (!d->made)
            extra(d, i);
        return;
    }
    f->pp = n->mp / t.tp;
    f->tp = n->mp % t.tp;
    if (n->kind == DS_MP)
        put_file_in_slot(d, i, &d->mp_file[n->mp]);
    else if (n->bf16 == d->bf16_prefix)
        put_file_in_slot(d, i, &d->zero_file[n->mp * t.dp + n->dp]);
}

void ds_grid(struct ds *d)
{
    struct topology t = d->topo;
    int n_mp = t.tp * t.pp;
    char buf[96];

    collect_layers(d);
    d->mp_file = new_slots(n_mp);
    d->zero_file = new_slots((int64_t)n_mp * t.dp);
    d->layer_file = new_slots((int64_t)d->n_layers * t.tp);
    for (int i = 0; i < d->n_files; i++)
        place_file_in_grid(d, i);
    /* if lost mp_rank files may be replaced, ds_stand_in() reports them instead */
    for (int i = 0; i < n_mp && !ds_stands_in(d); i++)
        if (d->mp_file[i] < 0)
            ds_missing(d, ds_mp_name(i, buf));
    for (int i = 0; i < d->n_layers * t.tp; i++)
        if (d->layer_file[i] < 0)
            ds_missing(d, ds_layer_name(d->layer_no[i / t.tp], i % t.tp, buf));
    if (d->o->no_optimizer || !has_kind(d, DS_ZERO))
        return;         /* if all optimizer shards are missing, ds_run_state() reports this once */
    for (int i = 0; i < n_mp * t.dp; i++)
        if (d->zero_file[i] < 0)
            ds_missing(d, ds_zero_name(d, i / t.dp, i % t.dp, buf));
}

/* ---- sizes ---- */

/*
 * Returns true if files a and b belong to the same layer, or are shards of the same stage. Their tensors then have the
 * same sizes, and only their pickles differ in size.
 */
static bool are_peers(const struct ds *d, int a, int b)
{
    const struct ds_name *x = &d->name[a], *y = &d->name[b];

    return x->kind == y->kind && x->kind != DS_MP && x->layer == y->layer && d->s->file[a].pp == d->s->file[b].pp;
}

static int peer_order(const void *a, const void *b, void *ctx)
{
    const struct ds *d = ctx;
    int i = *(const int *)a, k = *(const int *)b;
    const struct ds_name *x = &d->name[i], *y = &d->name[k];
    int px = d->s->file[i].pp, py = d->s->file[k].pp;

    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return px != py ? (px < py ? -1 : 1) : (i > k) - (i < k);
}

void ds_check_sizes(struct ds *d)
{
    /* largest difference in size that pickles (mappings, names) can cause, in bytes */
    const uint64_t slack = 64 << 10;
    int *order = xmalloc((size_t)d->n_files * sizeof *order);
    const struct files *f = d->s->files;

    for (int i = 0; i < d->n_files; i++)
        order[i] = i;
    qsort_r(order, (size_t)d->n_files, sizeof *order, peer_order, d);
    for (int i = 0, end; i < d->n_files; i = end) {
        uint64_t most = 0;

        for (end = i; end < d->n_files && (end == i || are_peers(d, order[i], order[end])); end++)
            most = max_u64(most, files_size(f, d->s->file[order[end]].file));
        for (int k = i; k < end; k++) {
            int file = d->s->file[order[k]].file;
            uint64_t size = files_size(f, file);

            if (size == 0 && most == 0)
                report_add(d->r, SEV_ERROR, "short_file", files_name(f, file), ERR_NO_BYTE, NULL, "is an empty file");
            else if (size == 0 || size + slack < most)
                report_add(d->r, SEV_ERROR, "short_file", files_name(f, file), ERR_NO_BYTE, NULL,
                           "has %llu bytes, but the largest file of its kind has %llu", (unsigned long long)size,
                           (unsigned long long)most);
        }
    }
    free(order);
}

/* ---- looking up files ---- */

const struct source_file *ds_first_mp(const struct ds *d)
{
    for (int i = 0; i < d->s->n_files; i++)
        if (d->s->file[i].pt && ds_name_parse(d->s->file[i].name).kind == DS_MP)
            return &d->s->file[i];
    return NULL;
}

const struct source_file *ds_mp_file(const struct source *s, int pp, int tp)
{
    int mp = topo_mp(s->topo, pp, tp);

    for (int i = 0; i < s->n_files; i++) {
        struct ds_name n = ds_name_parse(s->file[i].name);

        if (n.kind == DS_MP && n.mp == mp && s->file[i].pt)
            return &s->file[i];
    }
    return NULL;
}
