/*
 * deepspeed_lost.c - what stands in for files that are lost or cannot be read
 *
 * Only for a caller that asks for it (source_opts.holes) or that needs no optimizer states:
 *   mp_rank files   Each gets a copy of another rank's tree: of its own stage where one can be read, else of any
 *                   stage, else of another tag in the same folder. Its random states are those of a new run.
 *   param_shapes    Of a stage whose mp_rank files are all lost: from the same file of another tag, else from the
 *                   shards' param_slice_mappings (names, lengths, order) and the layer files (shapes).
 *   shards, layers  A record whose container is damaged is looked for where the files of the other tensor ranks have
 *                   it; its CRC must be right. What is not found is a hole: an extent of a file without bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/zip.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/model/rng_states.h"

struct extent ds_hole(struct ds *d, const char *name, uint64_t len)
{
    return pt_hole(&d->holes, d->s, name, len);
}

/* ---- records of a damaged container ---- */

/* Record `like` of another tensor rank's file, as the file `to` has it. A sound one is added: its number, else -1. */
static int recover_record(struct ds *d, int to, int like)
{
    struct record found;

    if (!zip_find_payload(d->s->files, d->s->file[to].file, files_record(d->s->files, like), &found))
        return -1;
    return files_add_record(d->s->files, &found);
}

static void recover_shard(struct ds *d, int mp, int dp)
{
    const int at = mp * d->topo.dp + dp, pp = mp / d->topo.tp, file = d->zero_file[at];
    const struct ds_stage *ref = d->ref[pp];
    struct ds_shard *to = &d->shard[at];
    const struct ds_shard *from = NULL;

    for (int tp = 0; tp < d->topo.tp && !from; tp++)
        if (d->shard[topo_mp(d->topo, pp, tp) * d->topo.dp + dp].run)
            from = &d->shard[topo_mp(d->topo, pp, tp) * d->topo.dp + dp];
    if (!from || !ref)
        return;
    to->run = xcalloc((size_t)ref->n_groups, sizeof *to->run);
    to->zero_stage_1 = from->zero_stage_1;
    for (int g = 0; g < ref->n_groups; g++)
        for (int s = 0; s < DS_STATES; s++) {
            to->run[g][s] = from->run[g][s];
            if (to->run[g][s].record >= 0)
                to->run[g][s].record = recover_record(d, file, from->run[g][s].record);
        }
}

static void recover_layer(struct ds *d, int i, int tp)
{
    struct ds_layer *to = &d->layer[i * d->topo.tp + tp];
    const struct ds_layer *from = NULL;

    for (int k = 0; k < d->topo.tp && !from; k++)
        from = d->layer[i * d->topo.tp + k].ok ? &d->layer[i * d->topo.tp + k] : NULL;
    if (!from)
        return;
    to->tensor = xcalloc((size_t)from->n + 1, sizeof *to->tensor);
    for (int k = 0; k < from->n; k++) {
        const int record = recover_record(d, d->layer_file[i * d->topo.tp + tp], from->tensor[k].t.record);

        if (record < 0)
            continue;
        to->tensor[to->n] = from->tensor[k];
        to->tensor[to->n++].t.record = record;
    }
}

void ds_recover(struct ds *d)
{
    for (int i = 0; i < d->n_layers * d->topo.tp; i++)
        if (!d->layer[i].ok && d->layer_file[i] >= 0)
            recover_layer(d, i / d->topo.tp, i % d->topo.tp);
    for (int i = 0; i < d->topo.tp * d->topo.pp * d->topo.dp && !d->o->no_optimizer; i++)
        if (!d->shard[i].run && d->zero_file[i] >= 0)
            recover_shard(d, i / d->topo.dp, i % d->topo.dp);
}

/* ---- other tags of the run ---- */

/* The same rank's file of the newest other tag that has one; open, and closed with the source. */
static struct pt *sibling_mp(struct ds *d, int mp)
{
    char buf[96];
    struct pt *found = pt_sibling(d->s, ds_mp_name(mp, buf), NULL);

    if (found)
        pt_hold(d->s, found);
    return found;
}

struct pt *ds_lost_first(struct ds *d)
{
    return sibling_mp(d, 0);
}

/* ---- param_shapes of shards and layer files ---- */

/* A file of the tag among files of its own, so that its records are not counted twice. */
struct apart {
    struct files *files;
    struct pt *pt;              /* NULL: it is not there, or cannot be read */
};

static struct apart open_pt_apart(const struct ds *d, int file)
{
    struct apart x = { .files = files_new() };
    struct err ignored = {0};
    uint64_t base;
    const char *path = file < 0 ? NULL : files_path(d->s->files, d->s->file[file].file, &base);

    if (path && files_add_window(x.files, path, base, files_size(d->s->files, d->s->file[file].file),
                                 files_name(d->s->files, d->s->file[file].file), &ignored) >= 0)
        x.pt = pt_open(x.files, 0, &ignored);
    return x;
}

static void close_apart(struct apart *x)
{
    pt_close(x->pt);
    files_free(x->files);
}

/* What is collected of a group: names and lengths in the order of the flat buffer. */
struct gathered {
    int n, cap;
    struct ds_slice *slice;
};

/* Add what data-parallel rank dp holds of each group. false: a shard that cannot be read, or other groups. */
static bool gather_rank(struct ds *d, int mp, int dp, struct gathered *to, int *n_groups)
{
    struct apart x = open_pt_apart(d, d->zero_file[mp * d->topo.dp + dp]);
    const struct pk *maps = pk_get(pk_get(x.pt ? pt_root(x.pt) : NULL, "optimizer_state_dict"),
                                   "param_slice_mappings");
    uint32_t n = 0;
    struct pk **item = pk_items(maps, &n);
    bool ok = item && n > 0 && n <= 3 && (*n_groups == 0 || *n_groups == (int)n);

    *n_groups = ok ? (int)n : *n_groups;
    for (uint32_t g = 0; ok && g < n; g++) {
        uint32_t n_pairs = 0;
        struct pk **pair = pk_pairs(item[g], &n_pairs);

        for (uint32_t i = 0; pair && i < n_pairs; i++) {
            const char *name = pk_as_str(pair[2 * i]);
            struct ds_slice *last = to[g].n ? &to[g].slice[to[g].n - 1] : NULL;
            int64_t numel = -1;

            if (!name || !pk_as_int(pk_get(pair[2 * i + 1], "numel"), &numel) || numel < 1) {
                ok = false;
            } else if (last && strcmp(last->name, name) == 0) {
                last->n_elems += numel;
            } else {
                ARRAY_ROOM(to[g].slice, to[g].cap, to[g].n + 1);
                to[g].slice[to[g].n++] = (struct ds_slice){ .name = arena_fmt(d->s->arena, "%s", name),
                                                            .n_elems = numel };
            }
        }
    }
    close_apart(&x);
    return ok;
}

/* The shape of a slice by a layer file: a tensor of that name, or of another block's, with as many elements. */
static bool shape_in(const struct ds *d, int file, const char *key, struct ds_slice *to)
{
    struct apart x = open_pt_apart(d, file);
    const struct pk *v = x.pt ? pk_get(pt_root(x.pt), key) : NULL;
    struct pt_tensor t;
    bool ok = v && pt_tensor(x.pt, v, &t) && t.n_elems == to->n_elems && t.ndim >= 1;

    if (ok) {
        to->ndim = t.ndim;
        memcpy(to->shape, t.shape, sizeof t.shape);
    }
    close_apart(&x);
    return ok;
}

static bool find_shape(const struct ds *d, struct ds_slice *to)
{
    static const char tied[] = "tied_modules.embed.";
    const int no = ds_layer_of(to->name);
    const char *key = str_starts(to->name, tied) ? to->name + strlen(tied) : strchr(to->name, '.') + 1;

    for (int own = 1; own >= 0; own--)
        for (int i = 0; i < d->n_layers * d->topo.tp; i++)
            if ((no < 0 || (d->layer_no[i / d->topo.tp] == no) == own) && shape_in(d, d->layer_file[i], key, to))
                return true;
    return false;
}

/* In the source's arena, or NULL. */
static struct pk *gathered_shapes(struct ds *d, int pp)
{
    struct gathered group[3] = {{0}};
    struct ds_group as_group[3] = {{0}};
    struct ds_stage st = { .group = as_group };
    struct pk *tree = NULL;
    bool ok = true;

    for (int dp = 0; dp < d->topo.dp && ok; dp++) {
        ok = false;
        for (int tp = 0; tp < d->topo.tp && !ok; tp++)
            ok = gather_rank(d, topo_mp(d->topo, pp, tp), dp, group, &st.n_groups);
    }
    for (int g = 0; g < st.n_groups && ok; g++) {
        as_group[g] = (struct ds_group){ .n = group[g].n, .slice = group[g].slice };
        for (int i = 0; i < group[g].n && ok; i++)
            ok = strchr(group[g].slice[i].name, '.') && find_shape(d, &group[g].slice[i]);
    }
    if (ok && st.n_groups)
        tree = ds_stage_tree(d->s->arena, &st);
    for (int g = 0; g < 3; g++)
        free(group[g].slice);
    return tree;
}

/* ---- stages without any mp_rank file ---- */

static bool stage_known(const struct ds *d, int pp)
{
    for (int tp = 0; tp < d->topo.tp; tp++)
        if (d->stage[topo_mp(d->topo, pp, tp)].ok)
            return true;
    return false;
}

static void find_stage(struct ds *d, int pp)
{
    const int mp = topo_mp(d->topo, pp, 0);
    struct ds_rank_stage *to = &d->stage[mp];
    const struct pk *shapes = gathered_shapes(d, pp);
    const struct pt *other = shapes ? NULL : sibling_mp(d, mp);
    char buf[96];

    shapes = other ? pk_get(pt_root(other), "param_shapes") : shapes;
    if (!shapes)
        return;                 /* the missing files are reported, and the stage stays unknown */
    to->ok = ds_stage_read(&to->st, shapes, d->topo.dp, other ? pt_path(other) : d->s->path, d->r);
    if (to->ok)
        report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
                   "%s: shapes of stage %d are those of %s", ds_mp_name(mp, buf), pp,
                   other ? pt_path(other) : "param_slice_mappings and the layer files");
}

void ds_find_stages(struct ds *d)
{
    for (int pp = 0; pp < d->topo.pp; pp++)
        if (!stage_known(d, pp))
            find_stage(d, pp);
}

/* ---- mp_rank files ---- */

static struct pt *opened_mp_rank_pt(const struct ds *d, int mp)
{
    return d->mp_file[mp] >= 0 ? d->s->file[d->mp_file[mp]].pt : NULL;
}

/* Whose tree a lost file gets: another tensor rank of its stage, the nearest stage, another tag. */
static const struct pt *neighbour(struct ds *d, int mp)
{
    const int tp = d->topo.tp, pp = mp / tp;

    for (int apart = 0; apart < d->topo.pp; apart++)
        for (int k = 0; k < 2 * tp; k++) {
            const int of = k < tp ? pp - apart : pp + apart;
            const struct pt *pt =
                of >= 0 && of < d->topo.pp ? opened_mp_rank_pt(d, topo_mp(d->topo, of, k % tp)) : NULL;

            if (pt)
                return pt;
        }
    return sibling_mp(d, mp);
}

/* The rank and its place in a node, as its neighbour counts them. */
static void renew_rank(const struct ds *d, struct arena *a, struct pk *args, int mp)
{
    const int64_t rank = topo_rank(d->topo, mp / d->topo.tp, 0, mp % d->topo.tp);
    int64_t was, local;

    if (!pk_as_int(pk_get(args, "rank"), &was))
        return;
    if (pk_as_int(pk_get(args, "local_rank"), &local))
        pk_set_int(a, args, "local_rank", local == was ? rank : rank % 8);
    pk_set_int(a, args, "rank", rank);
}

static struct pk *stand_in_root(const struct ds *d, struct arena *a, const struct pt *like, int mp)
{
    struct pk *root = pk_copy(a, pt_root(like)), *args = pk_get(root, "args");
    struct rng_states rng = { .seed = 1234, .pp = mp / d->topo.tp, .tp = mp % d->topo.tp };   /* Megatron's default */
    struct pt_tensor cpu, cuda;

    pk_as_int(pk_get(args, "seed"), &rng.seed);
    rng.no_gpu = pt_tensor(like, pk_get(pt_root(like), "torch_rng_state"), &cpu) &&
                 pt_tensor(like, pk_get(pt_root(like), "cuda_rng_state"), &cuda) && cpu.n_elems == cuda.n_elems;
    pk_set_str(a, root, "param_shapes", ds_stage_tree(a, d->ref[mp / d->topo.tp]));
    if (mp && pk_get(root, "shared_params"))
        pk_set_str(a, root, "shared_params", pk_dict(a));
    renew_rank(d, a, args, mp);
    if (pk_get(root, "torch_rng_state"))
        rng_states_set(a, root, &rng);
    return root;
}

static struct source_file *add_placeholder_file(struct source *s, const char *name)
{
    struct source_file *grown = arena_alloc(s->arena, ((size_t)s->n_files + 1) * sizeof *grown);

    memcpy(grown, s->file, (size_t)s->n_files * sizeof *grown);
    grown[s->n_files] = (struct source_file){ .name = arena_fmt(s->arena, "%s", name), .cls = FILE_OTHER, .dp = -1,
                                              .layer = -1 };
    s->file = grown;
    return &grown[s->n_files++];
}

/* The file in memory, under the name of the lost one. */
static int put_stand_in(struct ds *d, int mp, const struct pt *like, struct err *e)
{
    struct source *s = d->s;
    struct arena *a = arena_new(0);
    uint8_t *bytes = NULL, *kept;
    struct source_file *f;
    uint64_t size;
    char name[96], *prefix;
    int rc, file;

    ds_mp_name(mp, name);
    prefix = str_fmt("%.*s", (int)(strlen(name) - strlen(".pt")), name);
    rc = pt_build(prefix, stand_in_root(d, a, like, mp), like, s->files, &bytes, &size, e);
    free(prefix);
    arena_free(a);
    if (rc < 0)
        return -1;
    kept = arena_alloc(s->arena, size);
    memcpy(kept, bytes, size);
    free(bytes);
    if (d->mp_file[mp] < 0) {
        f = add_placeholder_file(s, name);
        f->pp = mp / d->topo.tp;
        f->tp = mp % d->topo.tp;
        f->file = file = files_add_mem(s->files, kept, size, arena_fmt(s->arena, "%s/%s", s->path, name));
    } else {
        f = &s->file[d->mp_file[mp]];
        if (!f->pt)
            d->name[d->mp_file[mp]].kind = DS_OTHER;    /* its marks were not read */
        file = files_add_mem(s->files, kept, size, arena_fmt(s->arena, "%s", files_name(s->files, f->file)));
    }
    f->pt = pt_open(s->files, file, e);
    return f->pt ? 0 : -1;
}

/* One whose only damage is in its tensors, the random states, keeps its tree. */
static bool only_tensors_bad(struct ds *d, int mp, const char *name)
{
    struct pt *pt = opened_mp_rank_pt(d, mp);
    struct err e = {0};

    if (!pt || !d->o->holes || pt_check_records(pt, d->s->files, &e) == 0)
        return false;
    report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
               "%s: %s: its random states are those of a new run", name, e.msg);
    return true;
}

static int stand_in(struct ds *d, int mp, struct err *e)
{
    char name[96];
    const struct pt *like = NULL;
    struct pt *damaged = NULL;
    char *like_name;

    ds_mp_name(mp, name);
    if (only_tensors_bad(d, mp, name))
        like = damaged = opened_mp_rank_pt(d, mp);
    else if (opened_mp_rank_pt(d, mp))
        return 0;
    else if (d->ref[mp / d->topo.tp])
        like = neighbour(d, mp);
    if (!like) {
        report_add(d->r, SEV_ERROR, "missing_file", d->s->path, ERR_NO_BYTE, NULL,
                   "missing %s (expected PP=%d, TP=%d, DP=%d), and what its stage holds is said by no other file", name,
                   d->topo.pp, d->topo.tp, d->topo.dp);
        return 0;
    }
    like_name = path_base(pt_path(like));
    if (!damaged)
        report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
                   "%s is lost: made again from %s, with the random states of a new run", name, like_name);
    free(like_name);
    if (damaged)
        pt_hold(d->s, damaged);
    return put_stand_in(d, mp, like, e);
}

int ds_stand_in(struct ds *d, struct err *e)
{
    for (int mp = 0; mp < d->topo.tp * d->topo.pp; mp++)
        if (stand_in(d, mp, e) < 0)
            return -1;
    return 0;
}
