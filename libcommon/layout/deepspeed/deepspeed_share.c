/*
 * deepspeed_share.c - compute which bytes of a process's memory belong to which file, and serialise the result
 */
#include "libcommon/layout/deepspeed/deepspeed_share_impl.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"

/* ---- files ---- */

/* A share that is being computed. */
struct share_making {
    const struct ds_target *t;
    const struct ds_share_of *of;
    struct ds_share *s;
    int cap_files, cap_pieces;
    /* [t->n_params]: index of the file of the parameter's layer; -1 if this stage does not write it */
    int *layer_file;
    int first_shard;            /* index of the file of data-parallel rank 0's shard */
    struct err *e;
};

static struct ds_share_file *add_share_file(struct share_making *m, const char *name)
{
    struct ds_share *s = m->s;

    ARRAY_ROOM(s->file, m->cap_files, s->n_files + 1);
    s->file[s->n_files] = (struct ds_share_file){ .name = xstrdup(name), .layer = -1 };
    return &s->file[s->n_files++];
}

/*
 * Add the file of a layer, and make the tree of its pickle. The data-parallel ranks take turns as the rank that writes
 * the pickle of a layer's file.
 */
static int add_layer(struct share_making *m, int layer)
{
    char buf[96];
    int i = m->s->n_files;
    struct ds_share_file *f = add_share_file(m, ds_layer_name(layer, m->of->tp, buf));

    f->layer = layer;
    f->owner = i % m->t->topo.dp;
    ds_tree_layer(m->t, layer, &f->tree);
    return i;
}

/*
 * Add the files of the stage's layers. The last stage's copy of the embedding gets no file, because the first stage
 * writes the embedding's file.
 */
static void add_layers(struct share_making *m)
{
    const struct ds_stage *st = &m->t->stage[m->of->pp];

    m->layer_file = xmalloc((size_t)m->t->n_params * sizeof *m->layer_file + 1);
    memset(m->layer_file, -1, (size_t)m->t->n_params * sizeof *m->layer_file);
    for (int g = 0; g < st->n_groups; g++)
        for (int i = 0; i < st->group[g].n; i++) {
            const struct ds_slice *p = &st->group[g].slice[i];
            int file = -1, layer = m->t->param[p->param].layer;

            for (int k = 0; k < m->s->n_files && file < 0; k++)
                file = m->s->file[k].layer == layer ? k : -1;
            if (!p->tied_copy)
                m->layer_file[p->param] = file < 0 ? add_layer(m, layer) : file;
        }
}

static void set_text(struct arena *a, struct pk *dict, const char *key, const char *text)
{
    if (text)
        pk_set_str(a, dict, key, pk_str(a, text));
}

/*
 * Find where the padding begins in each flat storage of file f. Parameters fill the storage up to there. The rest
 * needs no writing, because a new file consists of zeros.
 */
static void find_padding(const struct share_making *m, struct ds_share_file *f)
{
    for (int k = 0; k < f->tree.n; k++) {
        struct ds_storage *st = &f->tree.storage[k];
        const struct ds_group *g = &m->t->stage[m->of->pp].group[st->group];
        int64_t left = g->sum - f->owner * g->partition;

        if (st->fill == DS_FILL_FLAT)
            st->filled = (uint64_t)(left < 0 ? 0 : left < g->partition ? left : g->partition) * sizeof(float);
    }
}

static void add_shards(struct share_making *m)
{
    const struct ds_target *t = m->t;
    const struct ds spelling = { .bf16_prefix = t->bf16_prefix, .joined = t->joined };
    const struct ds_share_of *of = m->of;
    char buf[96];

    m->first_shard = m->s->n_files;
    for (int dp = 0; dp < t->topo.dp; dp++) {
        struct ds_share_file *f = add_share_file(m, ds_zero_name(&spelling, topo_mp(t->topo, of->pp, of->tp), dp, buf));
        struct ds_tree *x = &f->tree;

        f->owner = dp;
        ds_tree_zero(t, of->pp, dp, x);
        if (of->ds_config)
            pk_set_str(x->arena, x->root, "ds_config", pk_copy(x->arena, of->ds_config));
        set_text(x->arena, x->root, "ds_version", of->ds_version);
        set_text(x->arena, pk_get(x->root, "optimizer_state_dict"), "ds_version", of->ds_version);
        find_padding(m, f);
    }
}

/* ---- pieces ---- */

static int find_share_storage(const struct ds_share_file *f, const struct ds_storage *like)
{
    for (int i = 0; i < f->tree.n; i++) {
        const struct ds_storage *s = &f->tree.storage[i];

        if (s->fill == like->fill && s->state == like->state &&
            (s->fill == DS_FILL_WEIGHTS ? s->param == like->param : s->group == like->group))
            return i;
    }
    return -1;
}

static void add_share_piece(struct share_making *m, const struct ds_piece *p)
{
    struct ds_share *s = m->s;

    ARRAY_ROOM(s->piece, m->cap_pieces, s->n_pieces + 1);
    s->piece[s->n_pieces++] = *p;
}

static void add_held_weights_piece(struct share_making *m, int held)
{
    const struct ds_held *h = &m->of->held[held];
    const struct ds_storage like = { .fill = DS_FILL_WEIGHTS, .state = STATE_BF16, .param = h->param };
    const uint64_t size = (uint64_t)dtype_size(m->t->weights);
    const int file = m->layer_file[h->param];

    if (file >= 0)
        add_share_piece(m, &(struct ds_piece){ .held = held, .state = STATE_BF16, .elem_bytes = (int)size,
                                         .first = h->from, .file = file,
                                         .storage = find_share_storage(&m->s->file[file], &like),
                                         .at = (uint64_t)h->from * size, .from = h->at[STATE_BF16],
                                         .len = (uint64_t)h->n * size });
}

/*
 * Add those pieces of a held run that go to the shards. A run may extend over the partitions of several data-parallel
 * ranks.
 */
static void add_flat(struct share_making *m, int held, int group, const struct ds_slice *p)
{
    const struct ds_held *h = &m->of->held[held];
    const int64_t P = m->t->stage[m->of->pp].group[group].partition, begin = p->first + h->from, end = begin + h->n;

    for (int64_t at = begin, stop; at < end; at = stop) {
        const int dp = (int)(at / P);

        stop = (dp + 1) * P < end ? (dp + 1) * P : end;
        for (int st = STATE_FP32; st < STATE_N; st++) {
            const struct ds_storage like = { .fill = DS_FILL_FLAT, .state = (enum state)st, .group = group };

            add_share_piece(m, &(struct ds_piece){ .held = held, .state = (enum state)st, .elem_bytes = sizeof(float),
                                             .first = h->from + at - begin,
                                             .file = m->first_shard + dp,
                                             .storage = find_share_storage(&m->s->file[m->first_shard + dp], &like),
                                             .at = (uint64_t)(at - dp * P) * sizeof(float),
                                             .from = h->at[st] + (uint64_t)(at - begin) * sizeof(float),
                                             .len = (uint64_t)(stop - at) * sizeof(float) });
        }
    }
}

static int add_held(struct share_making *m, int held)
{
    const struct ds_held *h = &m->of->held[held];
    const struct ds_stage *st = &m->t->stage[m->of->pp];

    for (int g = 0; g < st->n_groups; g++)
        for (int i = 0; i < st->group[g].n; i++) {
            const struct ds_slice *p = &st->group[g].slice[i];

            if (p->param != h->param)
                continue;
            if (h->from < 0 || h->from + h->n > p->n_elems)
                break;
            add_held_weights_piece(m, held);
            add_flat(m, held, g, p);
            return 0;
        }
    err_data(m->e, source_path(m->t->src), ERR_NO_BYTE, "parameter %s: elements %lld to %lld have no place in the "
             "files of stage %d", m->t->param[h->param].name, (long long)h->from, (long long)(h->from + h->n),
             m->of->pp);
    return -1;
}

/* ---- the share ---- */

struct ds_share *ds_share_new(const struct ds_target *t, const struct ds_share_of *of, struct err *e)
{
    struct ds_share *s = xcalloc(1, sizeof *s);
    struct share_making m = { .t = t, .of = of, .s = s, .e = e };
    const struct ds_stage *st = &t->stage[of->pp];
    int rc = 0;

    s->dp = of->dp;
    s->n_dp = t->topo.dp;
    s->mp = topo_mp(t->topo, of->pp, of->tp);
    for (int g = 0; g < st->n_groups; g++)
        s->decays[g] = st->group[g].rule < t->n_groups - 1;
    add_layers(&m);
    add_shards(&m);
    for (int i = 0; i < of->n_held && rc == 0; i++)
        rc = add_held(&m, i);
    free(m.layer_file);
    if (rc == 0)
        return s;
    ds_share_free(s);
    return NULL;
}

void ds_share_free(struct ds_share *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_files; i++) {
        ds_tree_free(&s->file[i].tree);
        free(s->file[i].name);
    }
    free(s->file);
    free(s->piece);
    pk_tree_free(&s->trees);
    free(s);
}

/* ---- serialisation ---- */

/* A serialised share consists of fixed fields, then the fields of each file, then the pieces and the trees. */
struct share_packed_file {
    int layer, owner, n_storages;
    uint64_t name_len;
};
struct share_packed {
    int dp, n_dp, mp, n_files, n_pieces;
    bool decays[DS_GROUPS_MAX];
};

void ds_share_pack(const struct ds_share *s, struct strbuf *out)
{
    struct share_packed head = { .dp = s->dp, .n_dp = s->n_dp, .mp = s->mp, .n_files = s->n_files,
                                 .n_pieces = s->n_pieces };
    struct arena *a = arena_new(0);
    struct pk *roots = pk_list(a);

    memcpy(head.decays, s->decays, sizeof head.decays);
    strbuf_add(out, &head, sizeof head);
    for (int i = 0; i < s->n_files; i++) {
        const struct ds_share_file *f = &s->file[i];
        const struct share_packed_file p = { .layer = f->layer, .owner = f->owner, .n_storages = f->tree.n,
                                       .name_len = strlen(f->name) + 1 };

        strbuf_add(out, &p, sizeof p);
        strbuf_add(out, f->name, p.name_len);
        strbuf_add(out, f->tree.storage, (size_t)f->tree.n * sizeof *f->tree.storage);
        pk_add(a, roots, f->tree.root);
    }
    strbuf_add(out, s->piece, (size_t)s->n_pieces * sizeof *s->piece);
    pickle_write(roots, out);
    arena_free(a);
}

struct share_cursor {
    const char *p, *end;
};

/* Copy the next n bytes into `to`. Returns false if fewer than n bytes are left. */
static bool unpack_share_bytes(struct share_cursor *c, void *to, size_t n)
{
    if ((size_t)(c->end - c->p) < n)
        return false;
    if (n)
        memcpy(to, c->p, n);
    c->p += n;
    return true;
}

static bool unpack_share_file(struct share_cursor *c, struct ds_share_file *f)
{
    struct share_packed_file p;

    if (!unpack_share_bytes(c, &p, sizeof p))
        return false;
    f->layer = p.layer;
    f->owner = p.owner;
    f->name = xmalloc(p.name_len);
    f->tree.n = f->tree.cap = p.n_storages;
    f->tree.storage = xmalloc((size_t)p.n_storages * sizeof *f->tree.storage + 1);
    return unpack_share_bytes(c, f->name, p.name_len) &&
           unpack_share_bytes(c, f->tree.storage, (size_t)p.n_storages * sizeof *f->tree.storage);
}

static bool unpack_trees(struct share_cursor *c, struct ds_share *s, struct err *e)
{
    uint32_t n = 0;
    struct pk **root;

    if (pickle_parse(c->p, (size_t)(c->end - c->p), "share", &s->trees, e) < 0)
        return false;
    root = pk_items(s->trees.root, &n);
    for (int i = 0; i < s->n_files && n == (uint32_t)s->n_files; i++)
        s->file[i].tree.root = root[i];
    return n == (uint32_t)s->n_files;
}

struct ds_share *ds_share_unpack(const void *bytes, size_t n, struct err *e)
{
    struct share_cursor c = { bytes, (const char *)bytes + n };
    struct ds_share *s = xcalloc(1, sizeof *s);
    struct share_packed head;
    bool ok = unpack_share_bytes(&c, &head, sizeof head);

    if (ok) {
        s->dp = head.dp;
        s->n_dp = head.n_dp;
        s->mp = head.mp;
        memcpy(s->decays, head.decays, sizeof s->decays);
        s->file = xcalloc((size_t)head.n_files, sizeof *s->file);
        s->piece = xmalloc((size_t)head.n_pieces * sizeof *s->piece + 1);
        s->n_pieces = head.n_pieces;
        while (ok && s->n_files < head.n_files)
            ok = unpack_share_file(&c, &s->file[s->n_files++]);
        ok = ok && unpack_share_bytes(&c, s->piece, (size_t)s->n_pieces * sizeof *s->piece) && unpack_trees(&c, s, e);
    }
    if (ok)
        return s;
    if (e->kind == ERR_NONE)
        err_data(e, "share", ERR_NO_BYTE, "a set-up message of %zu bytes from another rank is malformed, because its "
                                          "length does not match its contents", n);
    ds_share_free(s);
    return NULL;
}
