/*
 * dcp_metadata.c - convert the pickle's tree to tables
 *
 * There may be millions of chunks and places (locations of chunks in files), and as many keys of places. These objects
 * become rows of tables while the pickle is parsed, and the tree contains only the numbers of the rows. After parsing,
 * each chunk gets its place, which is found by name and offsets in a hash table. The entries are read in the order of
 * the dict.
 */
#include "libcommon/layout/dcp/dcp_metadata.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/hash.h"
#include "libcommon/base/names.h"
#include "libcommon/format/pickle/pickle_classes.h"
#include "libcommon/format/pt.h"

#define METADATA "torch.distributed.checkpoint.metadata"
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"

/*
 * Classes with about as many objects as there are chunks. During parsing, their objects are stored in separate tables.
 */
enum { ROW_CHUNK, ROW_INDEX, ROW_INFO, ROW_CLASSES };
static const char *const row_class[ROW_CLASSES][2] = {
    [ROW_CHUNK] = { METADATA, "ChunkStorageMetadata" }, [ROW_INDEX] = { METADATA, "MetadataIndex" },
    [ROW_INFO] = { "torch.distributed.checkpoint.filesystem", "_StorageInfo" },
};

struct box_row {                /* offsets, followed by sizes */
    const int64_t *at;
    int8_t n_at, n_len;
};

struct index_row {
    const char *name;           /* one of the strings in rd->names, so names can be compared by address */
    const int64_t *at;
    /* number of dimensions; -1 if there are more than TENSOR_MAX_DIM. A place with -1 can be found by its name only. */
    int n;
};

struct info_row {
    int file;                   /* index in out->file */
    uint64_t at, len;
};

/* One entry of storage_data: the rows of its key and of its value. */
struct pair_row {
    uint32_t index, info;
    bool used, transformed;
    bool planned, by_plan;      /* a rank's plan lists the item, and the item is in a file of such a rank */
};

struct dcp_reader {
    struct arena *a, *scratch;  /* a: arena of the result; scratch: arena that is freed after reading */
    const char *path;
    struct report *r;
    struct err *e;
    struct dcp_table *out;
    struct box_row *box;
    size_t n_boxes, cap_boxes;
    struct index_row *index;
    size_t n_indices, cap_indices;
    struct info_row *info;
    size_t n_infos, cap_infos;
    /* name: maps names in `index` to numbers; file: maps file names to indices in out->file */
    struct names *name, *file;
    const char **names;         /* the names themselves, by their numbers in `name` */
    int n_names, cap_names, cap_files;
    struct pk **path_to;        /* the pairs of planner_data: each name, and its path */
    int n_paths;
    struct names *path_of;      /* maps a name to the number of its pair in path_to */
    struct pk **storage;        /* the pairs of storage_data: keys and values */
    struct pair_row *pair;
    int n_pairs;
    uint32_t *slot;             /* hash table of pairs: number of the pair + 1; 0 if the slot is free */
    size_t n_slots;
    struct names *left_out;     /* names of entries that could not be read */
    const struct pk **refused;  /* objects of classes that are not allowed, inside entries */
    size_t n_refused, cap_refused;
    /* for each pair of state_dict_metadata: the first object in it whose class is not allowed; NULL if there is none */
    const struct pk **refused_in;
    bool transformed;           /* true if a transformed item has been reported; others are not */
};

/* ---- helpers ---- */

/* Returns the field `key` of an object whose state is a dict, or NULL. */
static const struct pk *field(const struct pk *v, const char *key)
{
    return v && v->type == PK_OBJ ? pk_get(v, key) : NULL;
}

/*
 * Read a torch.Size into out[]. Returns its number of dimensions, or -1 if there are more than TENSOR_MAX_DIM or a
 * number is negative.
 */
static int read_size(const struct pk *v, int64_t out[TENSOR_MAX_DIM])
{
    struct pk **item;
    uint32_t n;

    if (!v || !(item = pk_items(v, &n)) || n > TENSOR_MAX_DIM)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (item[i]->type != PK_INT || (out[i] = item[i]->i) < 0)
            return -1;
    return (int)n;
}

static int odd(const struct dcp_reader *rd, const struct pk *v, const char *what)
{
    err_data(rd->e, rd->path, v ? v->at : ERR_NO_BYTE, "%s", what);
    return -1;
}

static const int64_t *keep_numbers(struct arena *a, const int64_t *v, int n)
{
    int64_t *kept = arena_alloc(a, ((size_t)n + !n) * sizeof *kept);

    memcpy(kept, v, (size_t)n * sizeof *kept);
    return kept;
}

/* Returns true if s is the name of a file directly in the folder. Such a name cannot lead out of the folder. */
static bool is_plain_name(const char *s)
{
    return s && *s && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

/* ---- rows ---- */

/*
 * Add a chunk's offsets and sizes to a table. The next two functions add the key of a place, and the place itself. Each
 * function returns the number of the new row, or -1 if the object is not valid.
 */
static int64_t read_box(struct dcp_reader *rd, const struct pk *v)
{
    int64_t both[2 * TENSOR_MAX_DIM];
    const int n = read_size(field(v, "offsets"), both), m = n < 0 ? -1 : read_size(field(v, "sizes"), both + n);

    if (m < 0)
        return -1;
    ARRAY_ROOM(rd->box, rd->cap_boxes, rd->n_boxes + 1);
    rd->box[rd->n_boxes] = (struct box_row){ keep_numbers(rd->a, both, n + m), (int8_t)n, (int8_t)m };
    return (int64_t)rd->n_boxes++;
}

static const char *known_name(struct dcp_reader *rd, const char *name)
{
    int i = names_find(rd->name, name);

    if (i < 0) {
        i = rd->n_names++;
        ARRAY_ROOM(rd->names, rd->cap_names, rd->n_names);
        rd->names[i] = arena_strndup(rd->scratch, name, strlen(name));
        names_add(rd->name, rd->names[i], i);
    }
    return rd->names[i];
}

static int64_t read_metadata_index(struct dcp_reader *rd, const struct pk *v)
{
    const char *name = pk_as_str(field(v, "fqn"));
    const struct pk *offset = field(v, "offset");
    int64_t at[TENSOR_MAX_DIM];
    const int n = pk_is_none(offset) ? 0 : read_size(offset, at);
    uint32_t n_offsets = 0;

    if (!name || (n < 0 && !(pk_items(offset, &n_offsets) && n_offsets > TENSOR_MAX_DIM)))
        return -1;
    ARRAY_ROOM(rd->index, rd->cap_indices, rd->n_indices + 1);
    rd->index[rd->n_indices] = (struct index_row){ known_name(rd, name), keep_numbers(rd->scratch, at, n < 0 ? 0 : n),
                                                   n };
    return (int64_t)rd->n_indices++;
}

static int known_file(struct dcp_reader *rd, const char *file)
{
    int i = names_find(rd->file, file);

    if (i < 0) {
        i = rd->out->n_files++;
        ARRAY_ROOM(rd->out->file, rd->cap_files, rd->out->n_files);
        rd->out->file[i] = arena_fmt(rd->a, "%s%s", rd->out->folder, file);
        names_add(rd->file, rd->out->file[i] + strlen(rd->out->folder), i);
    }
    return i;
}

static int64_t read_info(struct dcp_reader *rd, const struct pk *v)
{
    const char *file = pk_as_str(field(v, "relative_path"));
    int64_t at, len;

    if (!is_plain_name(file) || !pk_as_int(field(v, "offset"), &at) || !pk_as_int(field(v, "length"), &len) || at < 0 ||
        len < 0)
        return -1;
    ARRAY_ROOM(rd->info, rd->cap_infos, rd->n_infos + 1);
    rd->info[rd->n_infos] = (struct info_row){ known_file(rd, file), (uint64_t)at, (uint64_t)len };
    return (int64_t)rd->n_infos++;
}

/* Returns true if v is a torch.Size such as torch.Size((2, 3)), in the form in which torch pickles it. */
static bool is_bare_size(const struct pk *v)
{
    const struct pk *list = v && v->type == PK_CALL && !v->state && !v->fill && v->fn->type == PK_GLOBAL &&
                            v->args->n == 1 && strcmp(v->fn->module, "torch") == 0 && strcmp(v->fn->name, "Size") == 0
                                ? v->args->item[0] : NULL;

    for (uint32_t i = 0; list && list->type == PK_TUPLE && i < list->n; i++)
        if (list->item[i]->type != PK_INT)
            return false;
    return list && list->type == PK_TUPLE;
}

/* Returns true if the object v has only the fields of class `cls`, each at most once, and every value is plain data. */
static bool is_bare(const struct pk *v, int cls)
{
    static const struct { const char *key; int kind; } fields[ROW_CLASSES][5] = {
        [ROW_CHUNK] = { { "offsets", 's' }, { "sizes", 's' } },
        [ROW_INDEX] = { { "fqn", 't' }, { "offset", 'S' }, { "index", 'N' } },
        [ROW_INFO] = {
            { "relative_path", 't' }, { "offset", 'n' }, { "length", 'n' }, { "transform_descriptors", '0' }
        },
    };
    unsigned seen = 0;

    if (v->args->n || v->fill || !v->state || v->state->type != PK_DICT)
        return false;
    for (uint32_t i = 0; i < v->state->n; i++) {
        const struct pk *key = v->state->item[2 * i], *x = v->state->item[2 * i + 1];
        int k = 0;

        while (fields[cls][k].key && !(key->type == PK_STR && strcmp(key->str, fields[cls][k].key) == 0))
            k++;
        switch (fields[cls][k].key && !(seen & 1u << k) ? fields[cls][k].kind : 0) {
        case 's': if (!is_bare_size(x)) return false; break;
        case 'S': if (x->type != PK_NONE && !is_bare_size(x)) return false; break;
        case 't': if (x->type != PK_STR || strlen(x->str) != x->len) return false; break;
        case 'n': if (x->type != PK_INT) return false; break;
        case 'N': if (x->type != PK_NONE && x->type != PK_INT) return false; break;
        case '0': if (x->type != PK_NONE) return false; break;
        default: return false;
        }
        seen |= 1u << k;
    }
    return true;
}

/*
 * Callback of the pickle parser: add an object of class `cls` to the table of that class. Returns the number of the
 * row combined with the class, or -1 if the object has to stay in the tree.
 */
static int64_t dcp_reader_on_row(void *ctx, int cls, const struct pk *v)
{
    struct dcp_reader *rd = ctx;
    int64_t i = -1;

    if (is_bare(v, cls))
        i = cls == ROW_CHUNK ? read_box(rd, v) : cls == ROW_INDEX ? read_metadata_index(rd, v) : read_info(rd, v);
    return i < 0 ? -1 : i * ROW_CLASSES + cls;
}

static int64_t metadata_row_number(struct dcp_reader *rd, const struct pk *v, int cls)
{
    if (v->type == PK_ROW)
        return v->i % ROW_CLASSES == cls ? v->i / ROW_CLASSES : -1;
    return cls == ROW_CHUNK ? read_box(rd, v) : cls == ROW_INDEX ? read_metadata_index(rd, v) : read_info(rd, v);
}

/* ---- places ---- */

static size_t place_hash(const struct dcp_reader *rd, const char *name, const int64_t *at, int n)
{
    uint64_t h = hash_bytes(HASH_START, &name, sizeof name);

    h = hash_bytes(h, at, (size_t)n * sizeof *at);
    return (size_t)(h ^ h >> 32) & (rd->n_slots - 1);
}

/*
 * Returns the hash table's slot of the place with this name (a string in rd->names) and these offsets. If there is
 * none, returns the free slot for it.
 */
static uint32_t *find_storage_pair(const struct dcp_reader *rd, const char *name, const int64_t *at, int n)
{
    size_t i = place_hash(rd, name, at, n);

    for (; rd->slot[i]; i = (i + 1) & (rd->n_slots - 1)) {
        const struct index_row *x = &rd->index[rd->pair[rd->slot[i] - 1].index];

        if (x->name == name && x->n == n && (n <= 0 || memcmp(x->at, at, (size_t)n * sizeof *at) == 0))
            break;
    }
    return &rd->slot[i];
}

static void report_transformed_item(struct dcp_reader *rd, const struct pk *info, const char *name, const char *file)
{
    struct strbuf text = {0};

    pk_text(field(info, "transform_descriptors"), &text);
    report_add(rd->r, SEV_ERROR, "transform", rd->path, info->at, name,
               "its bytes in %s are transformed by %s, and others may be, too; only items without transformation "
               "can be read: save without extensions", file, text.buf);
    strbuf_free(&text);
    rd->transformed = true;
}

static int read_storage_place(struct dcp_reader *rd, int i)
{
    const struct pk *key = rd->storage[2 * i], *v = rd->storage[2 * i + 1];
    const bool is_index = key->type == PK_ROW || pk_is_class(key, METADATA, "MetadataIndex");
    const int64_t index = is_index ? metadata_row_number(rd, key, ROW_INDEX) : -1,
                  info = index < 0 ? -1 : metadata_row_number(rd, v, ROW_INFO);
    const struct index_row *x = index < 0 ? NULL : &rd->index[index];
    struct pair_row *pair = &rd->pair[i];
    uint32_t *slot;

    if (!x)
        return odd(rd, key, "storage_data has a key that is not a MetadataIndex with a name and offsets");
    if (info < 0) {
        err_data(rd->e, rd->path, v->at, "the location of %s is not a file of the folder with an offset and a length",
                 x->name);
        return -1;
    }
    /* An item whose bytes were transformed gets no place, because its bytes must not be read as they are. */
    *pair = (struct pair_row){ .index = (uint32_t)index, .info = (uint32_t)info,
                               .transformed = !pk_is_none(field(v, "transform_descriptors")) };
    if (pair->transformed && !rd->transformed)
        report_transformed_item(rd, v, x->name, rd->out->file[rd->info[info].file]);
    if (x->n < 0) {
        pair->used = pair->transformed;
        return 0;
    }
    slot = find_storage_pair(rd, x->name, x->at, x->n);
    pair->used = *slot != 0 || pair->transformed;
    if (*slot)
        report_add(rd->r, SEV_ERROR, "place", rd->path, key->at, x->name,
                   "storage_data lists two places for one chunk of it");
    else
        *slot = (uint32_t)i + 1;
    return 0;
}

static int read_places(struct dcp_reader *rd, const struct pk *storage)
{
    uint32_t n = 0;

    rd->storage = storage && storage->type == PK_DICT ? pk_pairs(storage, &n) : NULL;
    if (!rd->storage)
        return odd(rd, storage, "has no dict storage_data: no .metadata of torch.distributed.checkpoint");
    rd->n_pairs = (int)n;
    rd->pair = xcalloc((size_t)n + 1, sizeof *rd->pair);
    for (rd->n_slots = 64; rd->n_slots < 2 * (size_t)n; rd->n_slots *= 2)
        ;
    rd->slot = xcalloc(rd->n_slots, sizeof *rd->slot);
    for (int i = 0; i < rd->n_pairs; i++)
        if (read_storage_place(rd, i) < 0)
            return -1;
    return 0;
}

static struct dcp_place place_at(const struct dcp_reader *rd, int i)
{
    const struct info_row *info = &rd->info[rd->pair[i].info];

    return (struct dcp_place){ .file = rd->pair[i].transformed ? NULL : rd->out->file[info->file], .at = info->at,
                               .len = info->len, .said_at = rd->storage[2 * i]->at, .number = i };
}

/*
 * Find the place of chunk c and mark it as used. `name` is the string in rd->names that equals the entry's name, or
 * NULL if there is no such string.
 */
static void find_chunk_place(struct dcp_reader *rd, const struct dcp_entry *en, const char *name, struct dcp_chunk *c)
{
    const int i = name ? (int)*find_storage_pair(rd, name, c->at, en->is_tensor ? en->ndim : 0) - 1 : -1;
    struct pair_row *pair = i < 0 ? NULL : &rd->pair[i];

    if (!pair) {
        report_add(rd->r, SEV_ERROR, "place", rd->path, en->said_at, en->name,
                   "storage_data does not state where %s is stored", en->is_tensor ? "one of its chunks" : "its value");
    } else if (!pair->used) {
        pair->used = true;
        c->place = place_at(rd, i);
    } else if (!pair->transformed) {
        report_add(rd->r, SEV_ERROR, "place", rd->path, en->said_at, en->name, "two chunks of it begin at one place");
    }
}

/*
 * Report places that no chunk uses. Places of entries that were left out are not reported, because another finding
 * reports those entries.
 */
static void report_unused_items(const struct dcp_reader *rd)
{
    for (int i = 0; i < rd->n_pairs; i++) {
        const struct info_row *info = &rd->info[rd->pair[i].info];

        if (!rd->pair[i].used && names_find(rd->left_out, rd->index[rd->pair[i].index].name) < 0)
            report_add(rd->r, SEV_WARNING, "unused_item", rd->path, rd->storage[2 * i]->at, NULL,
                       "%" PRIu64 " bytes of %s are in no chunk", info->len, rd->out->file[info->file]);
    }
}

/* ---- entries ---- */

/* Returns the dtype of a TensorProperties object. The object is pickled as a tuple, and the dtype is its first item. */
static const struct pk *properties_dtype(const struct pk *properties)
{
    uint32_t n = 0;
    struct pk **item = properties && properties->type == PK_OBJ && properties->state
                           ? pk_items(properties->state, &n) : NULL;

    return item && n >= 1 ? item[0] : NULL;
}

/* Returns true if the size of the tensor in bytes fits in 64 bits. */
static bool has_valid_entry_bytes(const struct dcp_entry *en)
{
    uint64_t bytes = (uint64_t)dtype_size(en->dtype);

    for (int d = 0; d < en->ndim; d++)
        if (!mul_u64(bytes, en->shape[d] ? (uint64_t)en->shape[d] : 1, &bytes) || bytes > INT64_MAX)
            return false;
    return true;
}

static bool read_chunks(struct dcp_reader *rd, struct dcp_entry *en, const struct pk *list)
{
    const int named = names_find(rd->name, en->name);
    uint32_t n = 0;
    struct pk **item = list && list->type == PK_LIST ? pk_items(list, &n) : NULL;

    if (!item)
        return false;
    en->chunk = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *en->chunk);
    for (uint32_t i = 0; i < n; i++) {
        const int64_t row = metadata_row_number(rd, item[i], ROW_CHUNK);
        const struct box_row *box = row < 0 ? NULL : &rd->box[row];
        struct dcp_chunk *c = &en->chunk[en->n_chunks++];

        if (!box || box->n_at != en->ndim || box->n_len != en->ndim)
            return false;
        *c = (struct dcp_chunk){ box->at, box->at + box->n_at, { .number = -1 } };
        find_chunk_place(rd, en, named < 0 ? NULL : rd->names[named], c);
    }
    return true;
}

/* Record that the entry is not read, and why. The other entries are read nevertheless. */
static void skip_metadata_entry(struct dcp_reader *rd, const struct dcp_entry *en, const char *what, const char *which)
{
    rd->out->unread[rd->out->n_unread++] = (struct dcp_unread){
        .name = en->name, .why = arena_fmt(rd->a, "%s %s", what, which), .said_at = en->said_at,
    };
}

/* Find the places of the entries that are not read, by the names of these entries. */
static void place_unread(struct dcp_reader *rd)
{
    struct names *number = names_new(rd->scratch);

    for (int i = 0; i < rd->out->n_unread; i++)
        names_add(number, rd->out->unread[i].name, i);
    for (int pass = 0; pass < 2 && rd->out->n_unread; pass++)
        for (int i = 0; i < rd->n_pairs; i++) {
            const int at = rd->pair[i].used ? -1 : names_find(number, rd->index[rd->pair[i].index].name);
            struct dcp_unread *u = at < 0 ? NULL : &rd->out->unread[at];

            if (u && pass == 0) {
                u->n_places++;
            } else if (u) {
                if (!u->place) {
                    u->place = arena_alloc(rd->a, (size_t)u->n_places * sizeof *u->place);
                    u->n_places = 0;
                }
                u->place[u->n_places++] = place_at(rd, i);
                rd->pair[i].used = true;
            }
        }
}

static bool read_tensor_metadata(struct dcp_reader *rd, struct dcp_entry *en, const struct pk *v)
{
    const struct pk *dtype = properties_dtype(field(v, "properties"));
    uint32_t n_dims = 0;
    char name[256];

    if (!pickle_dtype(dtype, &en->dtype)) {
        skip_metadata_entry(rd, en, "a tensor of an unsupported type,",
                            pk_class(dtype, name, sizeof name) ? name : "(none)");
        return false;
    }
    if (pk_items(field(v, "size"), &n_dims) && n_dims > TENSOR_MAX_DIM) {
        snprintf(name, sizeof name, "%u dimensions, at most " TENSOR_MAX_DIM_TEXT " are supported", n_dims);
        skip_metadata_entry(rd, en, "a tensor of", name);
        return false;
    }
    en->ndim = read_size(field(v, "size"), en->shape);
    if (en->ndim < 0 || !has_valid_entry_bytes(en) || !read_chunks(rd, en, field(v, "chunks"))) {
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

/*
 * Returns the first object in v whose class is not allowed, or NULL. Adds all such objects to rd->refused. The depth
 * of the recursion is limited, because the parser limits the size of the tree.
 */
static const struct pk *find_refused(struct dcp_reader *rd, const struct pk *v)
{
    const struct pk *found = NULL;
    const bool is_call = v && (v->type == PK_CALL || v->type == PK_OBJ || v->type == PK_PERSID);
    const struct pk *part[] = { is_call ? v->fn : NULL, is_call ? v->args : NULL, is_call ? v->state : NULL,
                                is_call ? v->fill : NULL };
    const bool has_items = v && (v->type == PK_LIST || v->type == PK_TUPLE || v->type == PK_SET || v->type == PK_DICT);

    if (v && pt_refuses_class(v)) {
        ARRAY_ROOM(rd->refused, rd->cap_refused, rd->n_refused + 1);
        rd->refused[rd->n_refused++] = v;
        found = v;
    }
    for (int i = 0; i < 4; i++) {
        const struct pk *in = part[i] ? find_refused(rd, part[i]) : NULL;

        found = found ? found : in;
    }
    for (uint32_t i = 0; has_items && i < (v->type == PK_DICT ? 2 * v->n : v->n); i++) {
        const struct pk *in = find_refused(rd, v->item[i]);

        found = found ? found : in;
    }
    return found;
}

static int by_address(const void *a, const void *b)
{
    const struct pk *x = *(const struct pk *const *)a, *y = *(const struct pk *const *)b;

    return (x > y) - (x < y);
}

/*
 * Report classes that are not allowed. Classes inside entries of state_dict_metadata are not reported here, because
 * these entries are left out for this reason, and another finding reports that.
 */
static void check_metadata_classes(struct dcp_reader *rd, const struct pk_tree *tree)
{
    const struct pk *dict = field(tree->root, "state_dict_metadata");
    struct pk_tree rest = *tree;
    uint32_t n = 0, n_refused = 0;
    struct pk **pair = dict && dict->type == PK_DICT ? pk_pairs(dict, &n) : NULL;

    for (uint32_t i = 0; i < tree->n_opaque; i++)
        n_refused += pt_refuses_class(tree->opaque[i]);
    if (n_refused) {
        rd->refused_in = arena_alloc(rd->scratch, ((size_t)n + 1) * sizeof *rd->refused_in);
        for (uint32_t i = 0; i < n; i++)
            rd->refused_in[i] = find_refused(rd, pair[2 * i + 1]);
        if (rd->n_refused)
            qsort(rd->refused, rd->n_refused, sizeof *rd->refused, by_address);
        rest.opaque = arena_alloc(rd->scratch, ((size_t)tree->n_opaque + 1) * sizeof *rest.opaque);
        rest.n_opaque = 0;
        for (uint32_t i = 0; i < tree->n_opaque; i++)
            if (!rd->n_refused ||
                !bsearch(&tree->opaque[i], rd->refused, rd->n_refused, sizeof *rd->refused, by_address))
                rest.opaque[rest.n_opaque++] = tree->opaque[i];
    }
    pt_check_tree(&rest, rd->path, rd->r);
}

static int read_metadata_entry(struct dcp_reader *rd, const struct pk *key, const struct pk *v,
                               const struct pk *refused, struct dcp_entry *en)
{
    const char *name = pk_as_str(key);
    char class[256];

    if (!name || !*name || strlen(name) != key->len)
        return odd(rd, key, "state_dict_metadata has a key that is no name");
    *en = (struct dcp_entry){ .name = arena_strndup(rd->a, name, strlen(name)), .said_at = v->at, .planned = -1 };
    if (refused) {
        skip_metadata_entry(rd, en, "an entry that holds class",
                            pk_class(refused, class, sizeof class) ? class : "(none)");
        names_add(rd->left_out, en->name, 0);
        return 0;
    }
    if (pk_is_class(v, METADATA, "TensorStorageMetadata")) {
        en->is_tensor = true;
        if (!read_tensor_metadata(rd, en, v)) {
            names_add(rd->left_out, en->name, 0);
            return 0;
        }
    } else if (pk_is_class(v, METADATA, "BytesStorageMetadata")) {
        const int named = names_find(rd->name, en->name);

        en->chunk = arena_alloc(rd->a, sizeof *en->chunk);
        en->chunk->place.number = -1;
        en->n_chunks = 1;
        find_chunk_place(rd, en, named < 0 ? NULL : rd->names[named], en->chunk);
    } else {
        skip_metadata_entry(rd, en, "an entry of class", pk_class(v, class, sizeof class) ? class : "(none)");
        return 0;
    }
    read_path(rd, en);
    return 1;
}

/*
 * Report names that are in planner_data but not in state_dict_metadata. The program saved these entries, so they were
 * lost later.
 */
static void report_missing_entries(const struct dcp_reader *rd, struct pk *const *pair, uint32_t n)
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

/* Append the keys of a path, joined by dots, to `out`. Returns false if an item is neither a string nor an integer. */
static bool join_path(const struct pk *path, struct strbuf *out)
{
    uint32_t n = 0;
    struct pk **item = pk_items(path, &n);
    int64_t number;

    for (uint32_t i = 0; item && i < n; i++) {
        if (i > 0)
            strbuf_addf(out, ".");
        if (pk_as_str(item[i]))
            strbuf_addf(out, "%s", pk_as_str(item[i]));
        else if (pk_as_int(item[i], &number))
            strbuf_addf(out, "%" PRId64, number);
        else
            return false;
    }
    return item != NULL;
}

/*
 * Report entries whose name differs from their path in planner_data. torch joins the keys of the path with dots to make
 * the name, and uses the path to place the entry when it reads the checkpoint without a model. A value that is not a
 * tuple was not written by torch's planner and is not compared. If there is planner_data, each entry must have a path
 * in it.
 */
static void check_paths(const struct dcp_reader *rd, const struct dcp_table *out)
{
    for (int i = 0; i < rd->n_paths; i++) {
        const struct pk *key = rd->path_to[2 * i], *path = rd->path_to[2 * i + 1];
        struct strbuf joined = {0};

        if (pk_as_str(key) && path->type == PK_TUPLE &&
            (!join_path(path, &joined) || strcmp(joined.buf ? joined.buf : "", pk_as_str(key)) != 0))
            report_add(rd->r, SEV_ERROR, "path", rd->path, key->at, pk_as_str(key),
                       "its path in planner_data is %.200s, under which torch places it; the keys of a path, joined by "
                       "dots, are the name of its entry",
                       joined.buf && *joined.buf ? joined.buf : "(none)");
        strbuf_free(&joined);
    }
    for (int i = 0; i < out->n && names_n(rd->path_of) > 0; i++)
        if (out->entry[i].planned < 0)
            report_add(rd->r, SEV_WARNING, "path", rd->path, out->entry[i].said_at, out->entry[i].name,
                       "planner_data has no path of it, so torch reads the checkpoint with a model only");
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
        int taken = read_metadata_entry(rd, pair[2 * i], pair[2 * i + 1], rd->refused_in ? rd->refused_in[i] : NULL,
                                        &out->entry[out->n]);

        if (taken < 0)
            return -1;
        out->entry[out->n].number = (int)i;
        out->n += taken;
    }
    report_missing_entries(rd, pair, n);
    check_paths(rd, out);
    return 0;
}

/* ---- plans ---- */

/*
 * Returns the number of the rank that wrote a file, such as 3 for "__3_0.distcp". Returns -1 if torch does not name
 * files like this one.
 */
static int64_t rank_of_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    long long rank = 0;
    int n = 0;

    if (sscanf(file, "__%9lld_%*9[0-9].distcp%n", &rank, &n) != 1 || n == 0 || file[n] || rank < 0)
        return -1;
    return rank;
}

/* Mark the places of the items that the plan of `rank` lists. */
static void mark_planned_items(struct dcp_reader *rd, const struct pk *plan, uint32_t rank)
{
    uint32_t n = 0;
    struct pk **item = pk_items(field(plan, "items"), &n);

    for (uint32_t i = 0; item && i < n; i++) {
        const struct pk *key = field(item[i], "index");
        const bool is_index = key && (key->type == PK_ROW || pk_is_class(key, METADATA, "MetadataIndex"));
        const int64_t index = is_index ? metadata_row_number(rd, key, ROW_INDEX) : -1;
        const struct index_row *x = index < 0 ? NULL : &rd->index[index];
        const uint32_t slot = x && x->n >= 0 ? *find_storage_pair(rd, x->name, x->at, x->n) : 0;
        struct pair_row *pair = slot ? &rd->pair[slot - 1] : NULL;
        const int64_t of = pair ? rank_of_file(rd->out->file[rd->info[pair->info].file]) : -1;

        if (of < 0)
            continue;
        pair->planned = true;
        pair->by_plan |= of == rank;
    }
}

/*
 * Compare the places in storage_data with all_local_plans, in which Megatron-core lists the items that each rank
 * writes. If a place is in the file of a rank that does not write the item, the bytes there are those of another item.
 * Nothing is reported if all such places are in files of rank 0, because ckpt-edit stores new bytes of any item in a
 * file with that name.
 */
static void check_plans(struct dcp_reader *rd, const struct pk *plans)
{
    uint32_t n = 0;
    struct pk **plan = pk_items(plans, &n);
    const struct pair_row *first = NULL;
    int n_bad = 0;

    for (uint32_t rank = 0; plan && rank < n; rank++)
        mark_planned_items(rd, plan[rank], rank);
    for (int i = 0; i < rd->n_pairs; i++) {
        const struct pair_row *pair = &rd->pair[i];

        if (!pair->planned || pair->by_plan)
            continue;
        n_bad++;
        if (!first && rank_of_file(rd->out->file[rd->info[pair->info].file]) != 0)
            first = pair;
    }
    if (first)
        report_add(rd->r, SEV_ERROR, "place", rd->path, rd->storage[2 * (first - rd->pair)]->at,
                   rd->index[first->index].name,
                   "storage_data has %d item%s in files of ranks that do not write %s by all_local_plans; this is in "
                   "%s", n_bad, n_bad == 1 ? "" : "s", n_bad == 1 ? "it" : "them",
                   rd->out->file[rd->info[first->info].file]);
}

/* Read the original shapes of flattened tensors from "mcore_data", which Megatron-core writes. */
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

/* Free the memory that only parsing needs. The array out->file is moved to the arena. */
static void dcp_reader_free(struct dcp_reader *rd)
{
    const char **file = rd->out->file;

    rd->out->file = arena_alloc(rd->a, ((size_t)rd->out->n_files + 1) * sizeof *file);
    if (file)
        memcpy(rd->out->file, file, (size_t)rd->out->n_files * sizeof *file);
    free(file);
    free(rd->box);
    free(rd->index);
    free(rd->info);
    free(rd->names);
    free(rd->pair);
    free(rd->slot);
    free(rd->refused);
    arena_free(rd->scratch);
}

int dcp_metadata_read(struct arena *a, const struct dcp_pickle *p, struct dcp_table *out, struct report *r,
                      struct err *e)
{
    struct dcp_reader rd = { .a = a, .scratch = arena_new(0), .path = p->path, .r = r, .e = e, .out = out };
    const struct pickle_rows rows = { row_class, ROW_CLASSES, dcp_reader_on_row, &rd };
    struct pk_tree tree = {0};
    const char *version;
    int rc = -1, parsed;

    *out = (struct dcp_table){ .version = "", .folder = p->folder };
    rd.name = names_new(rd.scratch);
    rd.file = names_new(rd.scratch);
    rd.left_out = names_new(rd.scratch);
    parsed = pickle_parse_table(p->bytes, p->len, p->path, &rows, &tree, e);
    free(p->owned);
    if (parsed < 0)
        goto out;
    check_metadata_classes(&rd, &tree);
    if (!is_metadata(tree.root)) {
        odd(&rd, tree.root, "no Metadata object: no .metadata of torch.distributed.checkpoint");
        goto out;
    }
    version = pk_as_str(field(tree.root, "version"));
    if (version)
        out->version = arena_strndup(a, version, strlen(version));
    if (read_places(&rd, field(tree.root, "storage_data")) < 0 || read_entries(&rd, tree.root, out) < 0)
        goto out;
    check_plans(&rd, field(tree.root, "all_local_plans"));
    read_whole_shapes(&rd, field(tree.root, "mcore_data"), out);
    place_unread(&rd);
    report_unused_items(&rd);
    rc = 0;
out:
    if (parsed == 0)
        pk_tree_free(&tree);
    dcp_reader_free(&rd);
#ifdef __GLIBC__
    /* Parsing uses much more memory than the result. Return it to the system. */
    malloc_trim(0);
#endif
    return rc;
}
