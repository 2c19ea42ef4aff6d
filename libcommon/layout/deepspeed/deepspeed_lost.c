/*
 * deepspeed_lost.c - replace files that are lost or cannot be read
 *
 * Used only if the caller requests it (source_opts.holes) or needs no optimizer states:
 *   mp_rank files   A lost file is replaced by a copy of another rank's tree, with the random states of a new run. The
 *                   tree is that of a rank of the same stage, else of the nearest stage, else of another tag in the
 *                   same folder whose arguments and param_shapes agree with the layer files and shards of this tag. If
 *                   there is no such file and only weights are needed, the tree is made from a config.json, with one
 *                   stage.
 *   param_shapes    If all mp_rank files of a stage are lost, its param_shapes are made from the shards'
 *                   param_slice_mappings (names, lengths, order) and from the layer files (shapes), else read from the
 *                   same file of another tag.
 *   shards, layers  A record in a damaged container is expected at the offset that it has in the files of the other
 *                   tensor ranks, and must have the right CRC. For a record that is not found, the tensor map has a
 *                   hole: an extent of a file without bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/zip.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "libcommon/model/rng_states.h"

struct extent ds_hole(struct ds *d, const char *name, uint64_t len)
{
    return pt_hole(&d->holes, d->s, name, len);
}

/* ---- records of a damaged container ---- */

/*
 * Find the record in file `to` that corresponds to record `like` in the file of another tensor rank. Add the record to
 * the source's records and return its number. Returns -1 if it is not found or is damaged.
 */
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

/* ---- param_shapes of shards and layer files ---- */

/* A file of this tag, opened with a separate file table, so that its records are not added to those of the source. */
struct apart {
    struct files *files;
    struct pt *pt;              /* NULL: the file does not exist or cannot be read */
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

/*
 * The slices of one optimizer group that have been collected so far: names and lengths, in the order of the flat
 * buffer.
 */
struct gathered {
    int n, cap;
    struct ds_slice *slice;
};

/*
 * For each group g, append to to[g] the slices that the shard of data-parallel rank dp lists. Returns false if the
 * shard cannot be read, or if its number of groups differs from *n_groups. *n_groups is 0 before the first shard.
 */
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

/*
 * Give the slice `to` the shape of the tensor `key` in a layer file. Returns false if the file has no tensor of this
 * name with the same number of elements.
 */
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

/*
 * Determine param_shapes of stage pp from shards and layer files. Returns the tree, in the source's arena, or NULL if
 * it cannot be determined.
 */
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

/* ---- other tags of the run ---- */

/* An mp_rank file of another tag, and those values in it that are compared with the files of this tag. */
struct mp_candidate {
    struct ds *d;
    int mp;
    const struct pk *args;
    struct model_config config;
    int64_t tp;                         /* its tensor-parallel degree; 0 if it is not recorded */
    struct ds_index index;              /* the parameters of its stage */
    struct strbuf refused;              /* the reasons why candidates were rejected, for the error if none fits */
};

/* Returns the size of dimension `dim` of a tensor in a layer file, or 0 if there is no such tensor. */
static int64_t layer_dim(const struct apart *x, const char *key, int dim)
{
    const struct pk *v = pk_get(pt_root(x->pt), key);
    struct pt_tensor t;

    return v && pt_tensor(x->pt, v, &t) && dim < t.ndim ? t.shape[dim] : 0;
}

static char *size_unlike(const char *what, int64_t claimed, const char *file, int64_t found)
{
    return claimed > 0 && found > 0 && claimed != found
               ? str_fmt("its %s is %lld, %s has %lld", what, (long long)claimed, file, (long long)found) : NULL;
}

static bool set_in_args(const struct mp_candidate *c, const char *key)
{
    int64_t v;

    return pk_as_int(pk_get(c->args, key), &v) && v != 0;
}

/*
 * Compare the embedding's layer file with the candidate's arguments: vocabulary, hidden size, position embedding, and
 * LayerNorm of the embedding. Returns the first difference as text, or NULL.
 */
static char *embedding_unlike(const struct mp_candidate *c, const struct apart *x, const char *file)
{
    static const char table[] = "position_embeddings.weight", norm[] = "word_embeddings.norm.weight";
    const struct model_config *m = &c->config;
    const bool learned = str_ends(m->position, "absolute"), has_table = layer_dim(x, table, 0) > 0;
    const bool has_norm = layer_dim(x, norm, 0) > 0;
    char *why = size_unlike("padded_vocab_size", m->vocab, file, layer_dim(x, "word_embeddings.weight", 0) * c->tp);

    if (!why)
        why = size_unlike("hidden_size", m->hidden, file, layer_dim(x, "word_embeddings.weight", 1));
    if (!why && *m->position && learned != has_table)
        why = str_fmt("its position_embedding_type is %s, %s has %s%s", m->position, file, has_table ? "" : "no ",
                      table);
    if (!why && pk_get(c->args, "embed_layernorm") && m->embed_layernorm != has_norm)
        why = str_fmt("its embed_layernorm is %s, %s has %s%s", m->embed_layernorm ? "true" : "false", file,
                      has_norm ? "" : "no ", norm);
    return why;
}

/*
 * Compare a transformer block's layer file with the candidate's arguments. Returns the first difference as text, or
 * NULL.
 */
static char *block_unlike(const struct mp_candidate *c, const struct apart *x, const char *file)
{
    const struct model_config *m = &c->config;
    char *why = size_unlike("hidden_size", m->hidden, file, layer_dim(x, "input_layernorm.weight", 0));

    if (!why)
        why = size_unlike("ffn_hidden_size", m->ffn_hidden, file,
                          layer_dim(x, "mlp.dense_h_to_4h.weight", 0) * c->tp / (m->glu ? 2 : 1));
    return why;
}

/*
 * Compare a tensor of a layer file with the candidate: its dtype with the arguments, and its shape with param_shapes.
 * Returns the first difference as text, or NULL.
 */
static char *tensor_unlike(const struct mp_candidate *c, int layer, const char *key, const struct pt_tensor *t,
                           bool embedding, const char *file)
{
    const bool flags = pk_get(c->args, "bf16") && pk_get(c->args, "fp16");
    const enum dtype want = set_in_args(c, "bf16") ? DTYPE_BF16 : set_in_args(c, "fp16") ? DTYPE_F16 : DTYPE_F32;
    char *own = str_fmt("%d.%s", layer, key), *tied = str_fmt("tied_modules.embed.%s", key), *why = NULL;
    const struct ds_entry *en = ds_index_find(&c->index, own);
    bool lists_layer = false;
    char a[SHAPE_TEXT], b[SHAPE_TEXT];

    if (!en && embedding)
        en = ds_index_find(&c->index, tied);
    for (int i = 0; i < c->index.n; i++)
        lists_layer |= ds_layer_of(c->index.entry[i].name) == layer;
    if (flags && t->dtype != want && !str_ends(key, "inv_freq"))
        why = str_fmt("its weights are %s by its arguments, %s has %s", dtype_name(want), file, dtype_name(t->dtype));
    else if (en && !shape_equal(en->slice->ndim, en->slice->shape, t->ndim, t->shape))
        why = str_fmt("it lists %.100s as %s, %s has %s", en->name,
                      shape_text(en->slice->ndim, en->slice->shape, a), file,
                      shape_text(t->ndim, t->shape, b));
    else if (!en && lists_layer && !str_ends(key, "inv_freq") && !str_ends(key, "_extra_state"))
        why = str_fmt("it does not list %.100s, which is in %s", own, file);
    free(own);
    free(tied);
    return why;
}

static char *layer_unlike(const struct mp_candidate *c, int file)
{
    struct apart x = open_pt_apart(c->d, file);
    const char *name = c->d->s->file[file].name;
    uint32_t n = 0;
    struct pk **pair = x.pt ? pk_pairs(pt_root(x.pt), &n) : NULL;
    struct pt_tensor t;
    const bool embedding = pair && layer_dim(&x, "word_embeddings.weight", 0) > 0;
    char *why = NULL;

    if (embedding)
        why = embedding_unlike(c, &x, name);
    else if (pair)
        why = block_unlike(c, &x, name);
    for (uint32_t i = 0; pair && i < n && !why; i++)
        if (pk_as_str(pair[2 * i]) && pt_tensor(x.pt, pair[2 * i + 1], &t))
            why = tensor_unlike(c, c->d->name[file].layer, pk_as_str(pair[2 * i]), &t, embedding, name);
    for (int i = 0; pair && i < c->index.n && !why; i++) {
        const char *listed = c->index.entry[i].name;

        if (ds_layer_of(listed) == c->d->name[file].layer && !pk_get(pt_root(x.pt), strchr(listed, '.') + 1))
            why = str_fmt("it lists %.100s, which %s lacks", listed, name);
    }
    close_apart(&x);
    return why;
}

/*
 * Compare the candidate with one readable file of each layer, and the candidate's num_layers with the number of blocks
 * that have files. Returns the first difference as text, or NULL.
 */
static char *layers_unlike(const struct mp_candidate *c)
{
    const struct ds *d = c->d;
    int done = -1, n_blocks = 0;
    char *why = NULL;

    for (int i = 0; i < d->n_files && !why; i++) {
        struct apart x;

        if (d->name[i].kind != DS_LAYER || d->name[i].layer == done)
            continue;
        x = open_pt_apart(d, i);
        if (x.pt) {
            done = d->name[i].layer;
            n_blocks += layer_dim(&x, "input_layernorm.weight", 0) > 0;
        }
        close_apart(&x);
        why = layer_unlike(c, i);
    }
    if (!why && c->config.n_layers > 0 && n_blocks > c->config.n_layers)
        why = str_fmt("its num_layers is %lld, there are %d here", (long long)c->config.n_layers, n_blocks);
    return why;
}

/*
 * Compare the candidate with a shard of the same rank: the parameters that the shard lists, and the data-parallel
 * degree. Returns the first difference as text, or NULL.
 */
static char *shard_unlike(const struct mp_candidate *c, int file, int64_t dp)
{
    struct apart x = open_pt_apart(c->d, file);
    const struct pk *opt = pk_get(x.pt ? pt_root(x.pt) : NULL, "optimizer_state_dict");
    const char *name = c->d->s->file[file].name;
    uint32_t n = 0, n_pairs = 0;
    struct pk **item = pk_items(pk_get(opt, "partition_count"), &n);
    char *why = NULL;
    int64_t count;

    if (item && n && pk_as_int(item[0], &count))
        why = size_unlike("data-parallel degree", dp, name, count);
    item = pk_items(pk_get(opt, "param_slice_mappings"), &n);
    for (uint32_t g = 0; item && g < n && !why; g++) {
        struct pk **pair = pk_pairs(item[g], &n_pairs);

        for (uint32_t i = 0; pair && i < n_pairs && !why; i++)
            if (pk_as_str(pair[2 * i]) && !ds_index_find(&c->index, pk_as_str(pair[2 * i])))
                why = str_fmt("it does not list %.100s, which is in %s", pk_as_str(pair[2 * i]), name);
    }
    close_apart(&x);
    return why;
}

static char *shards_unlike(const struct mp_candidate *c, const struct pk *root)
{
    const struct ds *d = c->d;
    int64_t dp = 0;
    char *why = NULL;

    pk_as_int(pk_get(root, "dp_world_size"), &dp);
    for (int i = 0; i < d->n_files && !why; i++) {
        if (d->name[i].kind != DS_ZERO)
            continue;
        if (d->name[i].bf16 && set_in_args(c, "fp16"))
            why = str_fmt("its fp16 is true, %s is of a bf16 run", d->s->file[i].name);
        else if (d->name[i].mp == c->mp)
            why = shard_unlike(c, i, dp);
    }
    return why;
}

/*
 * Compare the candidate's arguments with those of a readable mp_rank file of this tag: all stages of a run have the
 * same arguments. Returns the first difference as text, or NULL.
 */
static char *config_unlike(const struct mp_candidate *c)
{
    const struct source_file *f = ds_first_mp(c->d);
    const struct pk *args = f ? pk_get(pt_root(f->pt), "args") : NULL;
    struct model_config own;
    char *why;

    model_config_from_args(&own, args);
    why = size_unlike("num_layers", c->config.n_layers, f ? f->name : "", own.n_layers);
    if (!why)
        why = size_unlike("hidden_size", c->config.hidden, f ? f->name : "", own.hidden);
    if (!why)
        why = size_unlike("num_attention_heads", c->config.n_heads, f ? f->name : "", own.n_heads);
    if (!why && *own.position && *c->config.position && strcmp(own.position, c->config.position) != 0)
        why = str_fmt("its position_embedding_type is %s, that of %s is %s", c->config.position, f->name,
                      own.position);
    return why;
}

/*
 * Compare pt, an mp_rank file of another tag, with the files of this tag. Returns NULL if pt belongs to the same model.
 * Otherwise returns the reason as text, which the caller frees.
 */
static char *candidate_unlike(struct mp_candidate *c, const struct pt *pt)
{
    const struct pk *root = pt_root(pt);
    struct report *ignored = report_new();
    struct ds_stage st = {0};
    const struct ds_stage *ref = &st;
    int64_t dp = 0;
    char *why;

    c->args = pk_get(root, "args");
    model_config_from_args(&c->config, c->args);
    c->tp = 0;
    pk_as_int(pk_get(c->args, "tensor_model_parallel_size"), &c->tp);
    if (c->tp < 1)
        /* 0: do not compare vocabulary and ffn_hidden_size, which depend on the degree */
        c->tp = 0;
    pk_as_int(pk_get(root, "dp_world_size"), &dp);
    if (!ds_stage_read(&st, pk_get(root, "param_shapes"), dp > 0 && dp < 1 << 20 ? (int)dp : 1, pt_path(pt), ignored))
        ref = NULL;
    ds_index_make(&c->index, &ref, 1);
    why = ds_degrees_unlike(c->d, root);
    if (!why)
        why = config_unlike(c);
    if (!why)
        why = layers_unlike(c);
    if (!why && ref)
        why = shards_unlike(c, root);
    if (!why && c->config.n_heads > 0 && c->config.hidden % c->config.n_heads)
        why = str_fmt("its %lld heads do not divide its hidden size", (long long)c->config.n_heads);
    ds_index_free(&c->index);
    ds_stage_free(&st);
    report_free(ignored);
    return why;
}

/* Returns true if the report has a finding whose text begins with `start`. */
static bool is_reported(const struct report *r, const char *start)
{
    for (int i = 0; i < report_n(r); i++)
        if (str_starts(report_get(r, i)->text, start))
            return true;
    return false;
}

static bool candidate_fits(void *ctx, const struct pt *pt)
{
    struct mp_candidate *c = ctx;
    char *why = candidate_unlike(c, pt), *dir = path_parent(pt_path(pt));
    const bool fits = !why;

    if (why) {
        char *start = str_fmt("%s is not from this run, so its files are not used: ", dir);

        if (!is_reported(c->d->r, start))
            report_add(c->d->r, SEV_WARNING, "stand_in", c->d->s->path, ERR_NO_BYTE, NULL, "%s%s", start, why);
        strbuf_addf(&c->refused, "; %s%s", start, why);
        free(start);
    }
    free(why);
    free(dir);
    return fits;
}

/*
 * Returns the mp_rank file `mp` of another tag: the newest tag that has this file and belongs to the same model. The
 * file is open; it is closed with the source. If there is none, returns NULL and adds the reasons to *e (e may be
 * NULL).
 */
static struct pt *sibling_mp(struct ds *d, int mp, struct err *e)
{
    struct mp_candidate c = { .d = d, .mp = mp };
    char buf[96];
    struct pt *found = pt_sibling(d->s, ds_mp_name(mp, buf), NULL, candidate_fits, &c);

    if (found)
        pt_hold(d->s, found);
    else if (e && c.refused.len)
        err_add(e, "%s", c.refused.buf);
    strbuf_free(&c.refused);
    return found;
}

struct pt *ds_lost_first(struct ds *d, struct err *e)
{
    return sibling_mp(d, 0, e);
}

/* ---- a tag without any mp_rank file, and a config.json ---- */

/* What the layer files of all layers contain. */
struct layer_facts {
    int n_blocks;
    int embedding;                      /* number of the embedding's layer file; -1 if there is none */
    int64_t rows, hidden;               /* shape of one tensor rank's slice of the embedding */
    enum dtype dtype;
    bool norm;                          /* a layer file other than the embedding's and the blocks' has vectors */
    /* a layer file other than the embedding's and the blocks' has a matrix of the embedding's shape */
    bool head;
    /* state of the loop, for the layer that is being read: */
    int layer;
    bool is_block, has_norm, has_head;
};

static bool is_buffer_key(const char *key)
{
    return str_ends(key, "inv_freq") || str_ends(key, "_extra_state");
}

/* For each layer, call `each` for the tensors of one readable file, in the file's order. Buffers are skipped. */
static void each_layer_tensor(const struct ds *d, void *ctx,
                              void (*each)(void *ctx, int layer, const char *key, const struct pt_tensor *t))
{
    int done = -1;

    for (int i = 0; i < d->n_files; i++) {
        struct apart x;
        struct pt_tensor t;
        uint32_t n = 0;
        struct pk **pair;

        if (d->name[i].kind != DS_LAYER || d->name[i].layer == done)
            continue;
        x = open_pt_apart(d, i);
        pair = x.pt ? pk_pairs(pt_root(x.pt), &n) : NULL;
        for (uint32_t k = 0; pair && k < n; k++)
            if (pk_as_str(pair[2 * k]) && !is_buffer_key(pk_as_str(pair[2 * k])) &&
                pt_tensor(x.pt, pair[2 * k + 1], &t))
                each(ctx, d->name[i].layer, pk_as_str(pair[2 * k]), &t);
        done = pair ? d->name[i].layer : done;
        close_apart(&x);
    }
}

static void end_layer_facts(struct layer_facts *f)
{
    f->n_blocks += f->is_block;
    f->norm |= !f->is_block && f->has_norm;
    f->head |= !f->is_block && f->has_head;
    f->is_block = f->has_norm = f->has_head = false;
}

static void add_layer_fact(void *ctx, int layer, const char *key, const struct pt_tensor *t)
{
    struct layer_facts *f = ctx;

    if (layer != f->layer)
        end_layer_facts(f);
    f->layer = layer;
    if (strcmp(key, "word_embeddings.weight") == 0 && t->ndim == 2) {
        f->embedding = layer;
        f->rows = t->shape[0];
        f->hidden = t->shape[1];
        f->dtype = t->dtype;
    } else if (layer != f->embedding) {
        f->is_block |= strstr(key, "attention.") || strstr(key, "mlp.");
        f->has_norm |= t->ndim == 1;
        f->has_head |= t->ndim == 2 && t->shape[0] == f->rows && t->shape[1] == f->hidden;
    }
}

/*
 * The parameters of the single stage, in two groups: matrices, which have weight decay, and vectors, which have none.
 */
struct listed_stage {
    struct arena *a;
    const char *embedding;              /* prefix of the embedding's parameter names */
    int embedding_layer;
    struct ds_group group[2];
    int cap[2];
};

static void list_layer_tensor(void *ctx, int layer, const char *key, const struct pt_tensor *t)
{
    struct listed_stage *l = ctx;
    const int g = t->ndim < 2;
    struct ds_slice *s;

    ARRAY_ROOM(l->group[g].slice, l->cap[g], l->group[g].n + 1);
    s = &l->group[g].slice[l->group[g].n++];
    *s = (struct ds_slice){ .ndim = t->ndim };
    s->name = layer == l->embedding_layer ? arena_fmt(l->a, "%s%s", l->embedding, key)
                                          : arena_fmt(l->a, "%d.%s", layer, key);
    memcpy(s->shape, t->shape, sizeof s->shape);
}

/*
 * Returns param_shapes of the single stage. The embedding is tied, except if another layer has a matrix of the
 * embedding's shape (f->head).
 */
static struct pk *listed_shapes(const struct ds *d, const struct layer_facts *f, struct arena *a)
{
    struct listed_stage l = { .a = a, .embedding_layer = f->embedding,
                              .embedding = f->head ? arena_fmt(a, "%d.", f->embedding) : "tied_modules.embed." };
    const struct ds_stage st = { .n_groups = 2, .group = l.group };
    struct pk *tree;

    each_layer_tensor(d, &l, list_layer_tensor);
    tree = ds_stage_tree(a, &st);
    free(l.group[0].slice);
    free(l.group[1].slice);
    return tree;
}

/*
 * Compare the layer files with the model of the configuration. Returns the reason why they differ, as text that the
 * caller frees, or NULL if they agree.
 */
static char *facts_unlike(const struct layer_facts *f, const struct mp_candidate *c)
{
    if (f->embedding < 0)
        return xstrdup("no layer file has word_embeddings.weight");
    if (c->config.n_layers != f->n_blocks)
        return str_fmt("its number of layers is %lld, the layer files have %d", (long long)c->config.n_layers,
                       f->n_blocks);
    if (!f->norm)
        return xstrdup("the layer file of the final LayerNorm is missing");
    if (pk_get(c->args, "untie_embeddings_and_output_weights") &&
        set_in_args(c, "untie_embeddings_and_output_weights") != f->head)
        return str_fmt("its tie_word_embeddings is %s, the layer files have %s head", f->head ? "true" : "false",
                       f->head ? "a" : "no");
    if (c->config.n_heads > 0 && c->config.hidden % c->config.n_heads)
        return str_fmt("its %lld heads do not divide its hidden size", (long long)c->config.n_heads);
    return c->config.n_heads % c->tp ? str_fmt("its %lld heads cannot be split over TP %lld",
                                               (long long)c->config.n_heads, (long long)c->tp) : NULL;
}

/*
 * Add the arguments that a trainer records but a model configuration does not have: ranks, iteration, padded
 * vocabulary size, and dtype of the weights.
 */
static void complete_args(struct arena *a, struct pk *args, const struct layer_facts *f, int tp, int64_t step)
{
    int64_t rows = 0;

    pk_set_int(a, args, "tensor_model_parallel_size", tp);
    pk_set_int(a, args, "world_size", tp);
    pk_set_int(a, args, "iteration", step);
    pk_set_str(a, args, "fp16", pk_bool(a, f->dtype == DTYPE_F16));
    pk_set_str(a, args, "bf16", pk_bool(a, f->dtype == DTYPE_BF16));
    pk_set_str(a, args, "params_dtype", pk_global(a, "torch", f->dtype == DTYPE_F16    ? "float16"
                                                              : f->dtype == DTYPE_BF16 ? "bfloat16" : "float32"));
    pk_as_int(pk_get(args, "padded_vocab_size"), &rows);
    if (rows < f->rows * tp)
        pk_set_int(a, args, "padded_vocab_size", f->rows * tp);
}

/* Returns the step in the folder's name, such as 20 for "global_step20"; 0 if the name has none. */
static int64_t named_step(const struct source *s)
{
    static const char start[] = "global_step";

    return str_starts(s->tag, start) ? strtoll(s->tag + strlen(start), NULL, 10) : 0;
}

static int n_named_tp(const struct ds *d)
{
    int tp = 1;

    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == DS_LAYER && d->name[i].tp >= tp)
            tp = d->name[i].tp + 1;
    return tp;
}

static struct pk *configured_root(const struct ds *d, struct arena *a, struct pk *args, const struct layer_facts *f,
                                  int tp)
{
    struct ds_new_run y = { .args = args };
    struct pk *root;

    pk_as_int(pk_get(args, "padded_vocab_size"), &y.tokens);
    complete_args(a, args, f, tp, named_step(d->s));
    pk_as_int(pk_get(args, "padded_vocab_size"), &y.vocab);
    y.tokens = y.tokens < y.vocab ? y.tokens : 0;       /* 0: unknown */
    root = ds_pickles_mp_root(a, &y, listed_shapes(d, f, a));
    pk_set_int(a, root, "mp_world_size", tp);
    pk_set_int(a, root, "iteration", named_step(d->s));
    pk_set_int(a, root, "global_steps", named_step(d->s));
    return root;
}

/*
 * Make `root` an mp_rank file in memory, named after the configuration's path. Returns the file, open, or NULL with *e
 * set.
 */
static struct pt *open_configured(struct ds *d, const struct pk *root, struct err *e)
{
    uint8_t *bytes = NULL, *kept;
    uint64_t size;

    if (pt_build("mp_rank_00_model_states", root, NULL, d->s->files, &bytes, &size, e) < 0)
        return NULL;
    kept = arena_alloc(d->s->arena, size);
    memcpy(kept, bytes, size);
    free(bytes);
    return pt_open(d->s->files, files_add_mem(d->s->files, kept, size, d->o->config), e);
}

static struct pt *make_configured(struct ds *d, struct arena *a, struct err *e)
{
    struct layer_facts f = { .embedding = -1 };
    struct mp_candidate c = { .d = d };
    struct pk *args = d->o->run_args(d->o->config, a, e), *root;
    struct pt *made = NULL;
    char *why;

    if (!args)
        return NULL;
    each_layer_tensor(d, &f, add_layer_fact);
    end_layer_facts(&f);
    root = configured_root(d, a, args, &f, n_named_tp(d));
    c.args = args;
    c.tp = n_named_tp(d);
    model_config_from_args(&c.config, args);
    why = facts_unlike(&f, &c);
    if (!why)
        why = layers_unlike(&c);
    if (why)
        err_data(e, d->o->config, ERR_NO_BYTE, "is not of the model in %s: %s", d->s->path, why);
    else
        made = open_configured(d, root, e);
    free(why);
    return made;
}

struct pt *ds_lost_config(struct ds *d, struct err *e)
{
    struct arena *a;

    if (!d->o->run_args || !d->o->no_optimizer) {
        err_add(e, "; export-hf --config FILE, the model's config.json, writes the weights without them");
        return NULL;
    }
    if (!d->o->config) {
        err_add(e, "; --config FILE, the model's config.json, replaces all of them");
        return NULL;
    }
    err_clear(e);
    a = arena_new(0);
    d->made = make_configured(d, a, e);
    arena_free(a);
    if (d->made)
        pt_hold(d->s, d->made);
    return d->made;
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
    const struct pk *shapes = d->made ? NULL : gathered_shapes(d, pp);
    const struct pt *other = d->made ? d->made : shapes ? NULL : sibling_mp(d, mp, NULL);
    char buf[96];

    shapes = other ? pk_get(pt_root(other), "param_shapes") : shapes;
    if (!shapes)
        return;                 /* the missing files are reported elsewhere; the stage remains unknown */
    to->ok = ds_stage_read(&to->st, shapes, d->topo.dp, other ? pt_path(other) : d->s->path, d->r);
    if (to->ok && !d->made)
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

/*
 * Returns the file that replaces the lost mp_rank file mp. The candidates are, in this order: the file of another
 * tensor rank of its stage, the file of the nearest stage, the file made from the configuration, and a file of another
 * tag. For the last two, *other_tag is set to true.
 */
static const struct pt *neighbour(struct ds *d, int mp, bool *other_tag)
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
    *other_tag = true;
    return d->made ? d->made : sibling_mp(d, mp, NULL);
}

/*
 * Set args.rank to the rank of mp_rank file mp. Set args.local_rank to the same number if the two were equal in the
 * copied tree, otherwise to the rank modulo 8 (GPUs per node).
 */
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

/*
 * Make a replacement of mp_rank file mp from `like`. It is stored in memory under the name of the lost file, added to
 * the source, and opened.
 */
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
            /* its values (enum ds_mark) were not read, so they are not compared */
            d->name[d->mp_file[mp]].kind = DS_OTHER;
        file = files_add_mem(s->files, kept, size, arena_fmt(s->arena, "%s", files_name(s->files, f->file)));
    }
    f->pt = pt_open(s->files, file, e);
    return f->pt ? 0 : -1;
}

/*
 * Returns true, after a warning, if only the tensors of the mp_rank file are damaged. These tensors are random states,
 * so the file's tree can still be used.
 */
static bool only_tensors_bad(struct ds *d, int mp, const char *name)
{
    struct pt *pt = opened_mp_rank_pt(d, mp);
    struct err e = {0};

    if (!pt || !d->o->holes || pt_check_records(pt, d->s->files, &e) == 0)
        return false;
    report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
               "%s: %s; the random states in this file are replaced by those of a new run", name, e.msg);
    return true;
}

static bool is_of_same_folder(const struct pt *a, const struct pt *b)
{
    char *x = path_parent(pt_path(a)), *y = path_parent(pt_path(b));
    const bool same = strcmp(x, y) == 0;

    free(x);
    free(y);
    return same;
}

/*
 * Returns true if the file exists but the system refuses to open it, for example because of its permissions. Such a
 * file does not count as lost.
 */
static bool is_mp_rank_refused(const struct ds *d, int mp)
{
    struct err e = {0};
    struct pt *pt = d->mp_file[mp] < 0 ? NULL : pt_open(d->s->files, d->s->file[d->mp_file[mp]].file, &e);

    pt_close(pt);
    return err_is_refused(&e);
}

/*
 * If mp_rank file mp is lost or damaged, replace it. If the replacement is copied from a file of another tag, *tag is
 * set to that file.
 */
static int stand_in(struct ds *d, int mp, const struct pt **tag, struct err *e)
{
    char name[96];
    const struct pt *like = NULL;
    struct pt *damaged = NULL;
    char *like_name;
    bool other_tag = false;

    ds_mp_name(mp, name);
    if (only_tensors_bad(d, mp, name))
        like = damaged = opened_mp_rank_pt(d, mp);
    else if (opened_mp_rank_pt(d, mp) || is_mp_rank_refused(d, mp))
        return 0;
    else if (d->ref[mp / d->topo.tp])
        like = neighbour(d, mp, &other_tag);
    /*
     * All replacements come from the same tag. If that tag does not have the file of this rank, its file of another
     * rank is used.
     */
    if (other_tag && *tag && !(like && is_of_same_folder(like, *tag)))
        like = *tag;
    if (!like) {
        report_add(d->r, SEV_ERROR, "missing_file", d->s->path, ERR_NO_BYTE, NULL,
                   "missing %s (expected PP=%d, TP=%d, DP=%d), and no other file records the contents of its "
                   "stage", name,
                   d->topo.pp, d->topo.tp, d->topo.dp);
        return 0;
    }
    like_name = other_tag ? xstrdup(pt_path(like)) : path_base(pt_path(like));
    if (!damaged && !d->made)
        report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
                   "%s is lost: rebuilt from %s, with new random states", name, like_name);
    free(like_name);
    if (damaged)
        pt_hold(d->s, damaged);
    *tag = other_tag ? like : *tag;
    return put_stand_in(d, mp, like, e);
}

/* Report the counters that the replacements take from the other tag's file `tag`. */
static void report_counters(struct ds *d, const struct pt *tag)
{
    const struct pk *root = pt_root(tag), *args = pk_get(root, "args");
    char *dir = path_parent(pt_path(tag));
    int64_t step = -1, samples = -1, tokens = -1;

    if (!pk_as_int(pk_get(root, "iteration"), &step))
        pk_as_int(pk_get(root, "global_steps"), &step);
    pk_as_int(pk_get(args, "consumed_train_samples"), &samples);
    pk_as_int(pk_get(args, "consumed_train_tokens"), &tokens);
    report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
               "the counters are copied from %s: step %lld, %lld samples, %lld tokens (-1: unknown); ckpt-edit retag "
               "--step N --samples N --tokens N changes them", dir, (long long)step, (long long)samples,
               (long long)tokens);
    free(dir);
}

int ds_stand_in(struct ds *d, struct err *e)
{
    const struct pt *tag = NULL;

    for (int mp = 0; mp < d->topo.tp * d->topo.pp; mp++)
        if (stand_in(d, mp, &tag, e) < 0)
            return -1;
    if (tag && d->made)
        report_add(d->r, SEV_WARNING, "stand_in", d->s->path, ERR_NO_BYTE, NULL,
                   "all mp_rank files are lost: the arguments are copied from %s, and the shapes from the layer files; "
                   "all layers count as one pipeline stage, the step is %lld, and other counters and schedules are 0",
                   d->o->config, (long long)named_step(d->s));
    else if (tag)
        report_counters(d, tag);
    return 0;
}
