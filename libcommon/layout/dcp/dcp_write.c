/*
 * dcp_write.c - write a Metadata object as a pickle whose classes have the names that torch's own unpickler requires
 *
 * A changed Metadata is made from the nodes of the one that was read. Nodes of unchanged parts are used again, so
 * fields that other releases write are preserved without being understood.
 */
#include "libcommon/layout/dcp/dcp_write.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/format/pt.h"

#define METADATA   "torch.distributed.checkpoint.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"

/*
 * Returns a TensorProperties object of type t, as a tuple of five. Newer releases of torch write a tuple of six. They
 * accept five, because the last item, strides, may be omitted. Older releases accept only five.
 */
static struct pk *properties(struct arena *a, enum dtype t)
{
    struct pk *five = pk_tuple(a), *layout = pk_tuple(a), *format = pk_tuple(a);

    pk_add(a, layout, pk_str(a, "torch.strided"));
    pk_add(a, format, pk_int(a, 0));
    pk_add(a, five, pk_global(a, "torch", dtype_torch_name(t)));
    pk_add(a, five, pk_call(a, pk_global(a, "torch.serialization", "_get_layout"), layout));
    pk_add(a, five, pk_bool(a, false));
    pk_add(a, five, pk_call(a, pk_global(a, METADATA, "_MEM_FORMAT_ENCODING"), format));
    pk_add(a, five, pk_bool(a, false));
    return pk_object(a, METADATA, "TensorProperties", five);
}

static int count_table_chunks(const void *table, int entry)
{
    return ((const struct dcp_table *)table)->entry[entry].n_chunks;
}

static void copy_table_chunk(const void *table, int entry, int k, struct arena *a, struct dcp_chunk *out)
{
    (void)a;
    *out = ((const struct dcp_table *)table)->entry[entry].chunk[k];
}

/* Returns the chunks that table t itself has. */
static struct dcp_made_chunks chunks_of_table(const struct dcp_table *t)
{
    return (struct dcp_made_chunks){ count_table_chunks, copy_table_chunk, t };
}

/* `entry`: the number of entry en, whose chunks are those of m. */
static struct pk *tensor(struct arena *a, const struct dcp_made_chunks *m, int entry, const struct dcp_entry *en,
                         struct pk *properties)
{
    struct pk *d = pk_dict(a), *chunks = pk_list(a);

    for (int k = 0; k < m->count(m->ctx, entry); k++) {
        struct pk *c = pk_dict(a);
        struct dcp_chunk chunk;

        m->make(m->ctx, entry, k, a, &chunk);
        pk_set_str(a, c, "offsets", pt_new_size(a, en->ndim, chunk.at));
        pk_set_str(a, c, "sizes", pt_new_size(a, en->ndim, chunk.len));
        pk_add(a, chunks, pk_object(a, METADATA, "ChunkStorageMetadata", c));
    }
    pk_set_str(a, d, "properties", properties);
    pk_set_str(a, d, "size", pt_new_size(a, en->ndim, en->shape));
    pk_set_str(a, d, "chunks", chunks);
    return pk_object(a, METADATA, "TensorStorageMetadata", d);
}

static struct pk *path(struct arena *a, const struct dcp_entry *en)
{
    struct pk *tuple = pk_tuple(a);

    for (int i = 0; i < en->n_path; i++)
        pk_add(a, tuple, en->is_index[i] ? pk_int(a, strtoll(en->path[i], NULL, 10)) : pk_str(a, en->path[i]));
    return tuple;
}

/* Returns a dict with room for n pairs. Its keys must be distinct, because add_pair() does not check for equal keys. */
static struct pk *new_dict(struct arena *a, size_t n)
{
    struct pk *d = pk_dict(a);

    d->item = arena_alloc(a, 2 * n * sizeof *d->item + 1);
    return d;
}

static void add_pair(struct pk *dict, struct pk *key, struct pk *v)
{
    dict->item[2 * dict->n] = key;
    dict->item[2 * dict->n + 1] = v;
    dict->cap = 2 * ++dict->n;
}

/* Returns the key of chunk k of an entry, whose offsets are `at`. */
static struct pk *index_of(struct arena *a, const struct dcp_entry *en, int k, const int64_t *at, bool numbered)
{
    struct pk *index = pk_dict(a);

    pk_set_str(a, index, "fqn", pk_str(a, en->name));
    pk_set_str(a, index, "offset", en->is_tensor ? pt_new_size(a, en->ndim, at) : pk_none(a));
    pk_set_str(a, index, "index", en->is_tensor && numbered ? pk_int(a, k) : pk_none(a));
    return pk_object(a, METADATA, "MetadataIndex", index);
}

/* `folder`: dcp_table.folder, which the name in .metadata does not have. */
static struct pk *make_storage_info(struct arena *a, const struct dcp_place *p, const char *folder)
{
    struct pk *info = pk_dict(a);

    pk_set_str(a, info, "relative_path", pk_str(a, p->file + (str_starts(p->file, folder) ? strlen(folder) : 0)));
    pk_set_int(a, info, "offset", (int64_t)p->at);
    pk_set_int(a, info, "length", (int64_t)p->len);
    return pk_object(a, FILESYSTEM, "_StorageInfo", info);
}

/* Position in a walk over the entries and chunks of a table. The pairs of a dict are made in this order: 0, 1, ... */
struct table_walk {
    const struct dcp_table *t;
    const struct dcp_made_chunks *made;
    int entry, chunk;
};

/* Pair i of state_dict_metadata: name of an entry -> its type, shape and chunks. */
static void make_entry_pair(void *ctx, uint32_t i, struct arena *a, struct pk *pair[2])
{
    const struct table_walk *w = ctx;
    const struct dcp_entry *en = &w->t->entry[i];

    pair[0] = pk_str(a, en->name);
    pair[1] = en->is_tensor ? tensor(a, w->made, (int)i, en, properties(a, en->dtype))
                            : pk_object(a, METADATA, "BytesStorageMetadata", NULL);
}

/* The next pair of planner_data: name of an entry -> its path. Entries without a path have no pair. */
static void make_path_pair(void *ctx, uint32_t i, struct arena *a, struct pk *pair[2])
{
    struct table_walk *w = ctx;
    const struct dcp_entry *en;

    if (i == 0)
        w->entry = 0;
    while (w->t->entry[w->entry].n_path == 0)
        w->entry++;
    en = &w->t->entry[w->entry++];
    pair[0] = pk_str(a, en->name);
    pair[1] = path(a, en);
}

/* The next pair of storage_data: a chunk -> its file, offset and length. */
static void make_storage_pair(void *ctx, uint32_t i, struct arena *a, struct pk *pair[2])
{
    struct table_walk *w = ctx;
    struct dcp_chunk chunk;

    if (i == 0)
        w->entry = w->chunk = 0;
    while (w->chunk == w->made->count(w->made->ctx, w->entry)) {
        w->entry++;
        w->chunk = 0;
    }
    w->made->make(w->made->ctx, w->entry, w->chunk, a, &chunk);
    pair[0] = index_of(a, &w->t->entry[w->entry], w->chunk, chunk.at, true);
    pair[1] = make_storage_info(a, &chunk.place, "");
    w->chunk++;
}

/*
 * A table may have millions of chunks, and the pickled nodes of one chunk take 4 kB. To save memory, the pairs of the
 * three dicts are made while they are written.
 */
void dcp_metadata_write(const struct dcp_table *t, const struct dcp_made_chunks *made, struct strbuf *out)
{
    struct arena *a = arena_new(0);
    struct pk *d = pk_dict(a);
    const struct dcp_made_chunks chunks = made ? *made : chunks_of_table(t);
    struct table_walk entries = { t, &chunks, 0, 0 }, paths = entries, places = entries;
    struct pk_made entry_pairs = { (uint32_t)t->n, make_entry_pair, &entries },
                   path_pairs = { 0, make_path_pair, &paths }, storage_pairs = { 0, make_storage_pair, &places };

    for (int i = 0; i < t->n; i++) {
        path_pairs.n += t->entry[i].n_path > 0;
        storage_pairs.n += (uint32_t)chunks.count(chunks.ctx, i);
    }
    pk_set_str(a, d, "state_dict_metadata", pk_dict_made(a, &entry_pairs));
    pk_set_str(a, d, "planner_data", path_pairs.n ? pk_dict_made(a, &path_pairs) : pk_none(a));
    pk_set_str(a, d, "storage_data", pk_dict_made(a, &storage_pairs));
    pk_set_str(a, d, "storage_meta", pk_none(a));
    if (*t->version)
        pk_set_str(a, d, "version", pk_str(a, t->version));
    pickle_write(pk_object(a, METADATA, "Metadata", d), out);
    arena_free(a);
}

/* ---- rewriting with changes ---- */

struct rewriting {
    struct arena *a;
    struct pk **entry, **storage, **path;       /* the pairs of the three dicts in the .metadata that was read */
    const char *folder;                         /* of the files of the new table, see dcp_table */
    struct names *path_of;                      /* maps names to the numbers of their pairs in `path` */
    bool changed;                               /* an entry has changed */
};

/* Returns a copy of `object` in which the field `key` has the value v. */
static struct pk *with_field(struct arena *a, const struct pk *object, const char *key, struct pk *v)
{
    struct pk *o = arena_alloc(a, sizeof *o), *state = pk_dict(a), **pair;
    uint32_t n = 0;

    pair = pk_pairs(object, &n);
    *o = *object;
    for (uint32_t i = 0; pair && i < n; i++)
        pk_set(a, state, pair[2 * i], pair[2 * i + 1]);
    pk_set_str(a, state, key, v);
    o->state = state;
    return o;
}

/*
 * Returns a copy of the TensorProperties `was` with the type t, which is the first item of its tuple. If `was` has
 * this type already, returns `was` itself.
 */
static struct pk *retyped(struct arena *a, struct pk *was, enum dtype t)
{
    struct pk *o, *state, **item;
    uint32_t n = 0;

    item = was && was->type == PK_OBJ && was->state ? pk_items(was->state, &n) : NULL;
    if (!item || n < 1)
        return properties(a, t);
    if (pk_is_class(item[0], "torch", dtype_torch_name(t)))
        return was;
    state = pk_tuple(a);
    pk_add(a, state, pk_global(a, "torch", dtype_torch_name(t)));
    for (uint32_t i = 1; i < n; i++)
        pk_add(a, state, item[i]);
    o = arena_alloc(a, sizeof *o);
    *o = *was;
    o->state = state;
    return o;
}

/* Returns true if `index`, a MetadataIndex, is the key of chunk k of the entry. */
static bool is_chunk_index(const struct pk *index, const struct dcp_entry *en, int k)
{
    const char *name = pk_as_str(pk_get(index, "fqn"));
    const struct pk *offset = pk_get(index, "offset");
    uint32_t n = 0;
    struct pk **item = pk_is_none(offset) ? NULL : pk_items(offset, &n);

    if (!name || strcmp(name, en->name) != 0 || (int)n != (en->is_tensor ? en->ndim : 0))
        return false;
    for (uint32_t d = 0; d < n; d++)
        if (item[d]->i != en->chunk[k].at[d])
            return false;
    return true;
}

/*
 * Add the places of an entry to `storage`. If the entry is unchanged, the keys of its places are reused. This matters
 * for flattened tensors: their keys have offsets in the stored shape, while `en` has the original shape.
 */
static void add_storage_places(struct rewriting *w, struct pk *storage, const struct dcp_entry *en, bool entry_changed)
{
    for (int k = 0; k < en->n_chunks; k++) {
        const struct dcp_place *p = &en->chunk[k].place;
        const int pair = p->number < 0 ? p->moved_from - 1 : p->number;
        struct pk *index = pair < 0 ? NULL : w->storage[2 * pair];
        struct pk *info = p->number < 0 ? make_storage_info(w->a, p, w->folder) : w->storage[2 * p->number + 1];

        if (index && !entry_changed && !is_chunk_index(index, en, k))
            index = with_field(w->a, index, "fqn", pk_str(w->a, en->name));
        else if (!index || !is_chunk_index(index, en, k))
            index = index_of(w->a, en, k, en->is_tensor ? en->chunk[k].at : NULL,
                             !index || !pk_is_none(pk_get(index, "index")));
        add_pair(storage, index, info);
    }
}

static void add_rewritten_entry(struct rewriting *w, struct pk *entries, struct pk *planner,
                                const struct dcp_change *c, int i)
{
    const struct dcp_entry *en = &c->t->entry[i];
    const struct dcp_made_chunks chunks = chunks_of_table(c->t);
    const bool entry_changed = c->changed[i];
    struct pk *key = w->entry[2 * en->number], *v = w->entry[2 * en->number + 1];
    const char *name = pk_as_str(key);
    const bool renamed = strcmp(name, en->name) != 0;
    const int at = planner ? names_find(w->path_of, name) : -1;

    w->changed = w->changed || renamed || entry_changed;
    if (entry_changed)
        v = tensor(w->a, &chunks, i, en, retyped(w->a, pk_get(v, "properties"), en->dtype));
    key = renamed ? pk_str(w->a, en->name) : key;
    add_pair(entries, key, v);
    if (at >= 0)
        add_pair(planner, key, renamed && en->n_path ? path(w->a, en) : w->path[2 * at + 1]);
}

/*
 * Returns a copy of mcore_data (the original shapes that Megatron-core records) whose keys are the new names of
 * entries.
 */
static struct pk *rekeyed(struct rewriting *w, const struct pk *mcore, const struct dcp_table *t)
{
    struct pk *d = pk_dict(w->a);

    for (int i = 0; i < t->n; i++) {
        struct pk *v = t->entry[i].n_whole ? pk_get(mcore, pk_as_str(w->entry[2 * t->entry[i].number])) : NULL;

        if (v)
            pk_set_str(w->a, d, t->entry[i].name, v);
    }
    return d;
}

static bool find_tables(struct rewriting *w, const struct pk *root, uint32_t *n_entries)
{
    const struct pk *planner = pk_get(root, "planner_data");
    uint32_t n = 0;

    w->entry = pk_pairs(pk_get(root, "state_dict_metadata"), n_entries);
    w->storage = pk_pairs(pk_get(root, "storage_data"), &n);
    w->path_of = names_new(w->a);
    w->path = pk_is_none(planner) ? NULL : pk_pairs(planner, &n);
    for (uint32_t i = 0; w->path && i < n; i++)
        if (pk_as_str(w->path[2 * i]))
            names_add(w->path_of, pk_as_str(w->path[2 * i]), (int)i);
    return w->entry && w->storage;
}

static struct pk *new_root(struct rewriting *w, struct pk *root, const struct dcp_change *c, uint32_t n_were)
{
    const struct dcp_table *t = c->t;
    struct pk *entries = new_dict(w->a, (size_t)t->n), *planner = w->path ? new_dict(w->a, (size_t)t->n) : NULL;
    struct pk *storage, *o;
    size_t n = 0;

    for (int i = 0; i < t->n; i++)
        n += (size_t)t->entry[i].n_chunks;
    storage = new_dict(w->a, n);
    w->changed = (uint32_t)t->n != n_were;
    for (int i = 0; i < t->n; i++) {
        add_rewritten_entry(w, entries, planner, c, i);
        add_storage_places(w, storage, &t->entry[i], c->changed[i]);
    }
    o = with_field(w->a, root, "state_dict_metadata", entries);
    o = planner ? with_field(w->a, o, "planner_data", planner) : o;
    o = with_field(w->a, o, "storage_data", storage);
    if (w->changed)
        pk_remove(o->state, "all_local_plans");
    if (pk_get(root, "mcore_data") && pk_get(root, "mcore_data")->type == PK_DICT)
        o = with_field(w->a, o, "mcore_data", rekeyed(w, pk_get(root, "mcore_data"), t));
    return o;
}

int dcp_metadata_rewrite(const struct dcp_pickle *was, const struct dcp_change *c, struct strbuf *out, struct err *e)
{
    struct rewriting w = { .a = arena_new(0), .folder = c->t->folder };
    struct pk_tree tree;
    uint32_t n_entries = 0;
    int rc = pickle_parse_table(was->bytes, was->len, was->path, NULL, &tree, e);

    if (rc == 0 && !find_tables(&w, tree.root, &n_entries)) {
        err_data(e, was->path, ERR_NO_BYTE, "changed while it was read");
        pk_tree_free(&tree);
        rc = -1;
    } else if (rc == 0) {
        pickle_write(new_root(&w, tree.root, c, n_entries), out);
        pk_tree_free(&tree);
    }
    arena_free(w.a);
    return rc;
}
