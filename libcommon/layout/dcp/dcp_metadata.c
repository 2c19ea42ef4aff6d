/*
 * dcp_metadata.c - from the pickle's tree to tables
 *
 * Entries first, in the dict's order; then the places, which a table of names brings together with the chunks they
 * are of ("name|offset,offset").
 */
#include "libcommon/layout/dcp/dcp_metadata.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/format/pickle/pickle_classes.h"
#include "libcommon/format/pt.h"

#define METADATA "torch.distributed.checkpoint.metadata"
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"

struct dcp_reader {
    struct arena *a;
    const char *path;
    struct report *r;
    struct err *e;
    struct pk **path_to;        /* planner_data: names and their paths */
    int n_paths;
    struct names *path_of;      /* of a name its number there */
    struct names *place_of;     /* of "name|offsets" its number in place[] */
    struct dcp_place *place;
    const char **place_name;    /* whose each is */
    bool *used;
    struct names *file;         /* numbers in out->file */
    struct dcp_table *out;
    struct names *left_out;     /* names of entries that could not be read */
    int n_places;
    bool transformed;           /* some item is; told once */
};

/* ---- small things ---- */

/* A field of an object whose state is a dict. */
static const struct pk *field(const struct pk *v, const char *key)
{
    return v && v->type == PK_OBJ ? pk_get(v, key) : NULL;
}

/* torch.Size of at most TENSOR_MAX_DIM numbers from 0 on; -1: something else. */
static int read_size(const struct pk *v, int64_t out[TENSOR_MAX_DIM])
{
    struct pk **item;
    uint32_t n;

    if (!v || !(item = pk_items(v, &n)) || n > TENSOR_MAX_DIM)
        return -1;
    memset(out, 0, TENSOR_MAX_DIM * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        if (item[i]->type != PK_INT || (out[i] = item[i]->i) < 0)
            return -1;
    return (int)n;
}

/* The key that brings places and chunks together. */
static char *place_key(const char *name, const int64_t *offset, int n)
{
    struct strbuf sb = {0};

    strbuf_addf(&sb, "%s|", name);
    for (int i = 0; i < n; i++)
        strbuf_addf(&sb, "%s%" PRId64, i ? "," : "", offset[i]);
    return sb.buf;
}

static int odd(const struct dcp_reader *rd, const struct pk *v, const char *what)
{
    err_data(rd->e, rd->path, v ? v->at : ERR_NO_BYTE, "%s", what);
    return -1;
}

/* ---- places ---- */

/* A file of the folder itself: nothing that leads out of it. */
static bool is_plain_name(const char *s)
{
    return s && *s && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

static int take_place(struct dcp_reader *rd, const struct pk *index, const struct pk *info)
{
    const char *name = pk_as_str(field(index, "fqn")), *file = pk_as_str(field(info, "relative_path"));
    const struct pk *offset = field(index, "offset"), *transform = field(info, "transform_descriptors");
    int64_t at, len, where[TENSOR_MAX_DIM];
    int ndim = pk_is_none(offset) ? 0 : read_size(offset, where), i;
    uint32_t n_offsets = 0;
    const bool too_many = ndim < 0 && pk_items(offset, &n_offsets) && n_offsets > TENSOR_MAX_DIM;
    char *key;
    bool twice;

    if (!pk_is_class(index, METADATA, "MetadataIndex") || !name || (ndim < 0 && !too_many))
        return odd(rd, index, "storage_data has a key that is no MetadataIndex of a name and offsets");
    if (!is_plain_name(file) || !pk_as_int(field(info, "offset"), &at) || !pk_as_int(field(info, "length"), &len) ||
        at < 0 || len < 0) {
        err_data(rd->e, rd->path, info->at, "the place of %s is no file of the folder with an offset and a length",
                 name);
        return -1;
    }
    i = names_find(rd->file, file);
    if (i < 0) {
        i = rd->out->n_files++;
        rd->out->file[i] = arena_strndup(rd->a, file, strlen(file));
        names_add(rd->file, rd->out->file[i], i);
    }
    if (!pk_is_none(transform) && !rd->transformed) {
        struct strbuf text = {0};

        pk_text(transform, &text);
        report_add(rd->r, SEV_ERROR, "transform", rd->path, info->at, name,
                   "its bytes in %s went through %s, others' perhaps, too: only items as they are can be read; save "
                   "without extensions", file, text.buf);
        strbuf_free(&text);
        rd->transformed = true;
    }
    /* Of more dimensions than an entry has here: it finds its places by name. */
    key = place_key(name, where, too_many ? 0 : ndim);
    twice = !too_many && names_find(rd->place_of, key) >= 0;
    if (twice)
        report_add(rd->r, SEV_ERROR, "place", rd->path, index->at, name, "one chunk of it has two places");
    else if (!too_many)
        names_add(rd->place_of, arena_strndup(rd->a, key, strlen(key)), rd->n_places);
    free(key);
    /* A transformed item keeps no place: nobody can read it by accident. */
    rd->place_name[rd->n_places] = name;
    rd->used[rd->n_places] = twice || !pk_is_none(transform);
    rd->place[rd->n_places] = (struct dcp_place){
        .file = pk_is_none(transform) ? rd->out->file[i] : NULL,
        .at = (uint64_t)at, .len = (uint64_t)len, .said_at = index->at, .number = rd->n_places,
    };
    rd->n_places++;
    return 0;
}

static int read_places(struct dcp_reader *rd, const struct pk *storage)
{
    uint32_t n = 0;
    struct pk **pair = storage && storage->type == PK_DICT ? pk_pairs(storage, &n) : NULL;

    if (!pair)
        return odd(rd, storage, "has no dict storage_data: no .metadata of torch.distributed.checkpoint");
    rd->file = names_new(rd->a);
    rd->out->file = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *rd->out->file);
    rd->place = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *rd->place);
    rd->used = arena_alloc(rd->a, (size_t)n + 1);
    rd->place_name = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *rd->place_name);
    for (uint32_t i = 0; i < n; i++)
        if (take_place(rd, pair[2 * i], pair[2 * i + 1]) < 0)
            return -1;
    return 0;
}

/* The place of a chunk, which is its alone. */
static void find_place(struct dcp_reader *rd, const struct dcp_entry *en, struct dcp_chunk *c)
{
    char *key = place_key(en->name, c->at, en->is_tensor ? en->ndim : 0);
    int i = names_find(rd->place_of, key);

    free(key);
    if (i >= 0 && !rd->used[i]) {
        rd->used[i] = true;
        c->place = rd->place[i];
    } else if (i < 0) {
        report_add(rd->r, SEV_ERROR, "place", rd->path, en->said_at, en->name,
                   "storage_data has no place for %s of it", en->is_tensor ? "a chunk" : "the value");
    } else if (rd->place[i].file) {
        report_add(rd->r, SEV_ERROR, "place", rd->path, en->said_at, en->name, "two chunks of it begin at one place");
    }
}

/* Bytes of an entry that was left out are its own; a finding says what is wrong with it. */
static void tell_unused(const struct dcp_reader *rd)
{
    for (int i = 0; i < rd->n_places; i++)
        if (!rd->used[i] && names_find(rd->left_out, rd->place_name[i]) < 0)
            report_add(rd->r, SEV_WARNING, "unused_item", rd->path, rd->place[i].said_at, NULL,
                       "%" PRIu64 " bytes of %s belong to no chunk", rd->place[i].len, rd->place[i].file);
}

/* ---- entries ---- */

/* dtype is the first of the tuple that TensorProperties pickles itself as. */
static const struct pk *dtype_of(const struct pk *properties)
{
    uint32_t n = 0;
    struct pk **item = properties && properties->type == PK_OBJ && properties->state
                           ? pk_items(properties->state, &n) : NULL;

    return item && n >= 1 ? item[0] : NULL;
}

/* Bytes of the whole, which must be a number. */
static bool measure(const struct dcp_entry *en)
{
    uint64_t bytes = (uint64_t)dtype_size(en->dtype);

    for (int d = 0; d < en->ndim; d++)
        if (!mul_u64(bytes, en->shape[d] ? (uint64_t)en->shape[d] : 1, &bytes) || bytes > INT64_MAX)
            return false;
    return true;
}

static bool read_chunks(struct dcp_reader *rd, struct dcp_entry *en, const struct pk *list)
{
    uint32_t n = 0;
    struct pk **item = list && list->type == PK_LIST ? pk_items(list, &n) : NULL;

    if (!item)
        return false;
    en->chunk = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *en->chunk);
    for (uint32_t i = 0; i < n; i++) {
        struct dcp_chunk *c = &en->chunk[en->n_chunks++];

        if (read_size(field(item[i], "offsets"), c->at) != en->ndim ||
            read_size(field(item[i], "sizes"), c->len) != en->ndim)
            return false;
        find_place(rd, en, c);
    }
    return true;
}

/* It is not read, and the others are. */
static void leave_out(struct dcp_reader *rd, const struct dcp_entry *en, const char *what, const char *which)
{
    rd->out->unread[rd->out->n_unread++] = (struct dcp_unread){
        .name = en->name, .why = arena_fmt(rd->a, "%s %s", what, which), .said_at = en->said_at,
    };
}

/* The places of what was left out, by name. */
static void place_unread(struct dcp_reader *rd)
{
    struct names *number = names_new(rd->a);

    for (int i = 0; i < rd->out->n_unread; i++)
        names_add(number, rd->out->unread[i].name, i);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < rd->n_places; i++) {
            const int at = rd->used[i] ? -1 : names_find(number, rd->place_name[i]);
            struct dcp_unread *u = at < 0 ? NULL : &rd->out->unread[at];

            if (!u)
                continue;
            if (pass == 1) {
                if (!u->place)
                    u->place = arena_alloc(rd->a, (size_t)u->n_places * sizeof *u->place);
                u->place[--u->n_places] = rd->place[i];
            } else {
                u->n_places++;
            }
        }
    for (int i = 0; i < rd->n_places; i++) {
        const int at = rd->used[i] ? -1 : names_find(number, rd->place_name[i]);

        if (at >= 0) {
            rd->used[i] = true;
            rd->out->unread[at].n_places++;
        }
    }
}

static bool read_tensor(struct dcp_reader *rd, struct dcp_entry *en, const struct pk *v)
{
    const struct pk *dtype = dtype_of(field(v, "properties"));
    uint32_t n_dims = 0;
    char name[256];

    if (!pickle_dtype(dtype, &en->dtype)) {
        leave_out(rd, en, "a tensor of a type that is not known here,",
                  pk_class(dtype, name, sizeof name) ? name : "(none)");
        return false;
    }
    if (pk_items(field(v, "size"), &n_dims) && n_dims > TENSOR_MAX_DIM) {
        snprintf(name, sizeof name, "%u dimensions, at most " TENSOR_MAX_DIM_TEXT " are supported", n_dims);
        leave_out(rd, en, "a tensor of", name);
        return false;
    }
    en->ndim = read_size(field(v, "size"), en->shape);
    if (en->ndim < 0 || !measure(en) || !read_chunks(rd, en, field(v, "chunks"))) {
        report_add(rd->r, SEV_ERROR, "shape", rd->path, v->at, en->name,
                   "sizes or offsets that are none (at most %d dimensions, numbers from 0, as many for each chunk)",
                   TENSOR_MAX_DIM);
        return false;
    }
    return true;
}

static void list_paths(struct dcp_reader *rd, const struct pk *planner)
{
    uint32_t n = 0;

    rd->path_of = names_new(rd->a);
    rd->path_to = planner && planner->type == PK_DICT ? pk_pairs(planner, &n) : NULL;
    rd->n_paths = (int)n;
    for (uint32_t i = 0; i < n; i++)
        if (pk_as_str(rd->path_to[2 * i]))
            names_add(rd->path_of, pk_as_str(rd->path_to[2 * i]), (int)i);
}

static void read_path(struct dcp_reader *rd, struct dcp_entry *en)
{
    int at = names_find(rd->path_of, en->name);
    const struct pk *path = at < 0 ? NULL : rd->path_to[2 * at + 1];
    uint32_t n = 0;
    struct pk **item = path && path->type == PK_TUPLE ? pk_items(path, &n) : NULL;

    en->planned = at;
    if (!item || n > 64)
        return;
    en->path = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *en->path);
    en->is_index = arena_alloc(rd->a, (size_t)n + 1);
    for (uint32_t i = 0; i < n; i++) {
        const char *s = pk_as_str(item[i]);
        int64_t number;

        if (!s && !pk_as_int(item[i], &number))
            return;
        en->is_index[i] = !s;
        en->path[i] = s ? arena_strndup(rd->a, s, strlen(s)) : arena_fmt(rd->a, "%" PRId64, number);
    }
    en->n_path = (int)n;
}

static int take_entry(struct dcp_reader *rd, const struct pk *key, const struct pk *v, struct dcp_entry *en)
{
    const char *name = pk_as_str(key);

    if (!name || !*name || strlen(name) != key->len)
        return odd(rd, key, "state_dict_metadata has a key that is no name");
    *en = (struct dcp_entry){ .name = arena_strndup(rd->a, name, strlen(name)), .said_at = v->at, .planned = -1 };
    if (pk_is_class(v, METADATA, "TensorStorageMetadata")) {
        en->is_tensor = true;
        if (!read_tensor(rd, en, v)) {
            names_add(rd->left_out, en->name, 0);
            return 0;
        }
    } else if (pk_is_class(v, METADATA, "BytesStorageMetadata")) {
        en->chunk = arena_alloc(rd->a, sizeof *en->chunk);
        en->n_chunks = 1;
        find_place(rd, en, en->chunk);
    } else {
        char class[256];

        leave_out(rd, en, "an entry of class", pk_class(v, class, sizeof class) ? class : "(none)");
        return 0;
    }
    read_path(rd, en);
    return 1;
}

/* The program saved them: what planner_data names and state_dict_metadata lacks was lost since then. */
static void tell_lost(const struct dcp_reader *rd, struct pk *const *pair, uint32_t n)
{
    struct names *known = names_new(rd->a);

    if (names_n(rd->path_of) == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        names_add(known, pk_as_str(pair[2 * i]), (int)i);
    for (int i = 0; i < rd->n_paths; i++) {
        const char *name = pk_as_str(rd->path_to[2 * i]);

        if (name && names_find(known, name) < 0)
            report_add(rd->r, SEV_ERROR, "missing_entry", rd->path, rd->path_to[2 * i]->at, name,
                       "planner_data names it, and state_dict_metadata has no entry of that name");
    }
}

static int read_entries(struct dcp_reader *rd, const struct pk *root, struct dcp_table *out)
{
    const struct pk *dict = field(root, "state_dict_metadata");
    uint32_t n = 0;
    struct pk **pair = dict && dict->type == PK_DICT ? pk_pairs(dict, &n) : NULL;

    if (!pair)
        return odd(rd, root, "has no dict state_dict_metadata: no .metadata of torch.distributed.checkpoint");
    out->entry = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *out->entry);
    out->unread = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *out->unread);
    list_paths(rd, field(root, "planner_data"));
    for (uint32_t i = 0; i < n; i++) {
        int taken = take_entry(rd, pair[2 * i], pair[2 * i + 1], &out->entry[out->n]);

        if (taken < 0)
            return -1;
        out->entry[out->n].number = (int)i;
        out->n += taken;
    }
    tell_lost(rd, pair, n);
    return 0;
}

/* Megatron-core's "mcore_data": shapes that flattened tensors stand for. */
static void read_whole_shapes(struct dcp_reader *rd, const struct pk *mcore, struct dcp_table *out)
{
    struct names *number = names_new(rd->a);
    uint32_t n = 0;
    struct pk **pair = mcore && mcore->type == PK_DICT ? pk_pairs(mcore, &n) : NULL;

    for (int i = 0; n > 0 && i < out->n; i++)
        names_add(number, out->entry[i].name, i);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]);
        const struct pk *v = pair[2 * i + 1];
        const struct pk *shape = v->type == PK_DICT ? pk_get(v, "nd_reformulated_orig_global_shape") : NULL;
        int at = name ? names_find(number, name) : -1;

        if (at < 0 || !shape)
            continue;
        out->entry[at].n_whole = read_size(shape, out->entry[at].whole);
        if (out->entry[at].n_whole <= 0)
            report_add(rd->r, SEV_ERROR, "shape", rd->path, shape->at, name,
                       "the shape that its pieces stand for is none");
    }
}

static bool is_metadata(const struct pk *root)
{
    return pk_is_class(root, METADATA, "Metadata") || pk_is_class(root, MEGATRON, "MCoreMetadata");
}

int dcp_metadata_read(struct arena *a, const struct dcp_pickle *p, struct dcp_table *out, struct report *r,
                      struct err *e)
{
    struct dcp_reader rd = { .a = a, .path = p->path, .r = r, .e = e, .place_of = names_new(a),
                             .left_out = names_new(a), .out = out };
    struct pk_tree tree;
    const char *version;
    int rc = -1;

    *out = (struct dcp_table){ .version = "" };
    if (pickle_parse_table(p->bytes, p->len, p->path, &tree, e) < 0)
        return -1;
    pt_check_tree(&tree, p->path, r);
    if (!is_metadata(tree.root)) {
        odd(&rd, tree.root, "no Metadata object: no .metadata of torch.distributed.checkpoint");
        goto out;
    }
    version = pk_as_str(field(tree.root, "version"));
    if (version)
        out->version = arena_strndup(a, version, strlen(version));
    if (read_places(&rd, field(tree.root, "storage_data")) < 0 || read_entries(&rd, tree.root, out) < 0)
        goto out;
    read_whole_shapes(&rd, field(tree.root, "mcore_data"), out);
    place_unread(&rd);
    tell_unused(&rd);
    rc = 0;
out:
    pk_tree_free(&tree);
    return rc;
}
