/*
 * dcp_write.c - a Metadata object as a pickle: classes by name, as torch's own unpickler calls them
 */
#include "libcommon/layout/dcp/dcp_write.h"

#include <stdlib.h>

#include "libcommon/format/pickle/pickle.h"
#include "libcommon/format/pt.h"

#define METADATA   "torch.distributed.checkpoint.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"

/* A tuple of six in newer releases, whose last, strides, may be left out: older ones know five. */
static struct pk *properties(struct arena *a, enum dtype t)
{
    struct pk *five = pk_tuple(a), *layout = pk_tuple(a), *format = pk_tuple(a);

    pk_add(a, layout, pk_str(a, "torch.strided"));
    pk_add(a, format, pk_int(a, 0));
    pk_add(a, five, pk_global(a, "torch", dcp_dtype_name(t)));
    pk_add(a, five, pk_call(a, pk_global(a, "torch.serialization", "_get_layout"), layout));
    pk_add(a, five, pk_bool(a, false));
    pk_add(a, five, pk_call(a, pk_global(a, METADATA, "_MEM_FORMAT_ENCODING"), format));
    pk_add(a, five, pk_bool(a, false));
    return pk_object(a, METADATA, "TensorProperties", five);
}

static struct pk *tensor(struct arena *a, const struct dcp_entry *en)
{
    struct pk *d = pk_dict(a), *chunks = pk_list(a);

    for (int k = 0; k < en->n_chunks; k++) {
        struct pk *c = pk_dict(a);

        pk_set_str(a, c, "offsets", pt_new_size(a, en->ndim, en->chunk[k].at));
        pk_set_str(a, c, "sizes", pt_new_size(a, en->ndim, en->chunk[k].len));
        pk_add(a, chunks, pk_object(a, METADATA, "ChunkStorageMetadata", c));
    }
    pk_set_str(a, d, "properties", properties(a, en->dtype));
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

/* A dict that will have n pairs, no two keys alike: nothing is looked for. */
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

static void add_place(struct arena *a, struct pk *storage, const struct dcp_entry *en, int k)
{
    const struct dcp_chunk *c = &en->chunk[k];
    struct pk *index = pk_dict(a), *info = pk_dict(a);

    pk_set_str(a, index, "fqn", pk_str(a, en->name));
    pk_set_str(a, index, "offset", en->is_tensor ? pt_new_size(a, en->ndim, c->at) : pk_none(a));
    pk_set_str(a, index, "index", en->is_tensor ? pk_int(a, k) : pk_none(a));
    pk_set_str(a, info, "relative_path", pk_str(a, c->place.file));
    pk_set_int(a, info, "offset", (int64_t)c->place.at);
    pk_set_int(a, info, "length", (int64_t)c->place.len);
    add_pair(storage, pk_object(a, METADATA, "MetadataIndex", index),
             pk_object(a, FILESYSTEM, "_StorageInfo", info));
}

void dcp_metadata_write(const struct dcp_table *t, struct strbuf *out)
{
    struct arena *a = arena_new(0);
    struct pk *d = pk_dict(a), *entries = new_dict(a, (size_t)t->n), *planner = new_dict(a, (size_t)t->n), *storage;
    size_t n_places = 0;
    bool paths = false;

    for (int i = 0; i < t->n; i++)
        n_places += (size_t)t->entry[i].n_chunks;
    storage = new_dict(a, n_places);
    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];

        add_pair(entries, pk_str(a, en->name),
                 en->is_tensor ? tensor(a, en) : pk_object(a, METADATA, "BytesStorageMetadata", NULL));
        if (en->n_path)
            add_pair(planner, pk_str(a, en->name), path(a, en));
        paths |= en->n_path > 0;
        for (int k = 0; k < en->n_chunks; k++)
            add_place(a, storage, en, k);
    }
    pk_set_str(a, d, "state_dict_metadata", entries);
    pk_set_str(a, d, "planner_data", paths ? planner : pk_none(a));
    pk_set_str(a, d, "storage_data", storage);
    pk_set_str(a, d, "storage_meta", pk_none(a));
    if (*t->version)
        pk_set_str(a, d, "version", pk_str(a, t->version));
    pickle_write(pk_object(a, METADATA, "Metadata", d), out);
    arena_free(a);
}
