/*
 * dcp_source.c - open a folder of torch.distributed.checkpoint as a source
 *
 * .metadata lists items. An item is a torch.save archive inside a file. An item contains a chunk of a tensor or
 * a value. Tensors become parameters or values according to their names. Many threads open the items, one batch at a
 * time; a single thread stores the results.
 */
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/dcp_flat.h"
#include "libcommon/layout/dcp/dcp_groups.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/model/params.h"

/*
 * Maximum number of extents of a chunk whose elements are not contiguous in the file. Such a chunk has one extent per
 * contiguous run; no trainer writes a chunk with very many.
 */
enum { MAX_RUNS = 1 << 20 };
/*
 * Maximum number of chunks of a stack. Each chunk is counted once per row that it covers. A row is one layer's
 * parameter.
 */
enum { MAX_ROW_CHUNKS = 1 << 22 };

/* One item: a chunk or a value. */
struct dcp_item {
    /*
     * indices of the entry and of its chunk. If `entry` is -1 - u, the item is place number `chunk` of
     * table.unread[u], which is not opened.
     */
    int entry, chunk;
    int home;                   /* number of the file that contains the item; -1 if the file is missing */
    bool usable;                /* the item is inside its file and overlaps no other item */
    bool lost;                  /* the file is missing or too short, or the item cannot be opened */
};

/* Where the bytes of a chunk are. `extent` is NULL if the chunk is not usable. */
struct chunk_extents {
    struct extent *extent;
    int n_extents;
};

enum { BATCH = 512 };           /* number of items that are open at the same time */

struct dcp_opening {
    struct source *s;
    const struct source_listing *l;
    const struct source_opts *o;
    struct report *r;
    const char *path;           /* path of .metadata */
    struct dcp_table table;
    struct dcp_role *role;
    struct names *listed;       /* maps the names in `l` to their indices */
    struct dcp_item *item;      /* sorted by file and offset */
    int n_items;
    struct chunk_extents *found;        /* [chunks of all entries]: chunk k of entry i is found[first[i] + k] */
    size_t *first;
    /* [entries]: for a flattened entry, the n_flat[i] chunks of its original shape; otherwise NULL */
    struct tile_chunk **flat;
    int *n_flat;
    int file[BATCH];            /* numbers of the files that stand for the open items */
    struct pt *pt[BATCH];
    uint64_t unused;            /* bytes of items that no entry names */
    struct pt_holes holes;
    /* findings about lost items, if they can be reported only after the weights are known; otherwise NULL */
    struct report *late;
    int *n_good;                /* [entries]: number of usable chunks; -1 if the entry is not usable */
};

bool dcp_marks(const char *name)
{
    return strcmp(name, DCP_METADATA) == 0 || (str_ends(name, ".distcp") && !strchr(name, '/'));
}

int dcp_listed(const struct source_listing *l, const char *name)
{
    const size_t n = strlen(l->folder);

    for (int i = 0; i < l->n; i++)
        if (strncmp(l->member[i].name, l->folder, n) == 0 && strcmp(l->member[i].name + n, name) == 0)
            return l->member[i].file;
    return -1;
}

int dcp_listed_at_top(const struct source_listing *l, const char *name)
{
    return dcp_listed(&(struct source_listing){ l->n, l->member, "" }, name);
}

const struct source_file *dcp_source_file(const struct source *s, const char *name)
{
    char *path = str_fmt("%s%s", s->dcp->folder, name);
    const struct source_file *f = source_file(s, path);

    free(path);
    return f;
}

void dcp_add_file(struct source *s, const char *name, int file, struct pt *pt)
{
    /* s->file has room for every file of the listing, and for the few files that other layouts add. */
    s->file[s->n_files++] = (struct source_file){ .name = arena_fmt(s->arena, "%s", name), .file = file, .pt = pt,
                                                  .cls = FILE_OTHER, .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
}

void dcp_add_listed(struct source *s, const struct source_listing *l, const char *name, struct pt *pt)
{
    const int file = dcp_listed(l, name);

    if (file >= 0)
        dcp_add_file(s, arena_fmt(s->arena, "%s%s", l->folder, name), file, pt);
}

/* ---- .metadata ---- */

static int no_metadata(const struct dcp_opening *x, struct err *e)
{
    for (int i = 0; i < x->l->n; i++)
        if (str_starts(x->l->member[i].name, x->l->folder) &&
            str_starts(x->l->member[i].name + strlen(x->l->folder), "__") &&
            str_ends(x->l->member[i].name, DCP_METADATA)) {
            err_data(e, x->s->path, ERR_NO_BYTE, "has a metadata file for each rank (%s; use_collectives=False), which "
                                                 "is not supported; save with use_collectives=True",
                     x->l->member[i].name);
            return -1;
        }
    err_data(e, x->s->path, ERR_NO_BYTE, "no " DCP_METADATA ": the save did not finish%s, or the file was deleted; "
             "restore it, or use an earlier checkpoint",
             dcp_listed(x->l, DCP_METADATA ".tmp") >= 0 ? " (" DCP_METADATA ".tmp is there)" : "");
    return -1;
}

static int read_metadata(struct dcp_opening *x, struct err *e)
{
    struct files *f = x->s->files;
    int file = dcp_listed(x->l, DCP_METADATA), rc = -1;
    uint64_t size;
    char *bytes;

    if (file < 0)
        return no_metadata(x, e);
    x->path = files_name(f, file);
    size = files_size(f, file);
    if (size > PICKLE_MAX_BYTES) {
        err_data(e, x->path, ERR_NO_BYTE, "has %" PRIu64 " bytes, at most %zu are supported", size, PICKLE_MAX_BYTES);
        return -1;
    }
    bytes = xmalloc(size + 1);
    if (files_read(f, file, 0, bytes, size, e) == 0)
        rc = dcp_metadata_read(x->s->arena, &(struct dcp_pickle){ x->path, bytes, size, bytes, x->l->folder },
                               &x->table, x->r, e);
    else
        free(bytes);
    dcp_add_listed(x->s, x->l, DCP_METADATA, NULL);
    return rc;
}

/* ---- items ---- */

static const struct dcp_chunk *chunk_of(const struct dcp_opening *x, const struct dcp_item *it)
{
    return &x->table.entry[it->entry].chunk[it->chunk];
}

static const struct dcp_place *dcp_item_place(const struct dcp_opening *x, const struct dcp_item *it)
{
    return it->entry < 0 ? &x->table.unread[-1 - it->entry].place[it->chunk] : &chunk_of(x, it)->place;
}

static const char *dcp_item_name(const struct dcp_opening *x, const struct dcp_item *it)
{
    return it->entry < 0 ? x->table.unread[-1 - it->entry].name : x->table.entry[it->entry].name;
}

static int item_cmp(const void *a, const void *b, void *ctx)
{
    const struct dcp_item *p = a, *q = b;
    const uint64_t at = dcp_item_place(ctx, p)->at, other = dcp_item_place(ctx, q)->at;

    if (p->home != q->home)
        return p->home < q->home ? -1 : 1;
    return at < other ? -1 : at > other;
}

/* Returns the severity of a lost item: a warning if source_opts.holes allows lost data. */
static enum severity lost(const struct dcp_opening *x)
{
    return x->o->holes ? SEV_WARNING : SEV_ERROR;
}

static struct report *lost_report(const struct dcp_opening *x)
{
    return x->late ? x->late : x->r;
}

/* Report each missing file that .metadata names, once. */
static void report_missing_files(const struct dcp_opening *x)
{
    struct names *reported = names_new(x->s->arena);

    for (int i = 0; i < x->n_items; i++) {
        const struct dcp_place *place = dcp_item_place(x, &x->item[i]);
        const char *name = place->file;

        if (x->item[i].home >= 0 || names_find(reported, name) >= 0)
            continue;
        names_add(reported, name, i);
        report_add(lost_report(x), lost(x), "missing_file", x->path, place->said_at, NULL,
                   "lists the file %s, which does not exist", name);
    }
}

/* Add the files to s->file, in the order of the listing. */
static void dcp_list_source_files(struct dcp_opening *x)
{
    bool *named = xcalloc((size_t)x->l->n + 1, sizeof *named);

    for (int i = 0; i < x->table.n_files; i++) {
        const int at = names_find(x->listed, x->table.file[i]);

        if (at >= 0)
            named[at] = true;
    }
    for (int i = 0; i < x->l->n; i++)
        if (named[i])
            dcp_add_file(x->s, x->l->member[i].name, x->l->member[i].file, NULL);
    free(named);
}

/* Add the items of table.unread[u], an entry that is not read. Their places are known, but they are not opened. */
static void dcp_list_unread_items(struct dcp_opening *x, int u)
{
    const struct dcp_unread *unread = &x->table.unread[u];

    source_add_unread(x->s, x->o, x->r, (struct source_spot){ x->path, unread->said_at }, unread->name, unread->why);
    for (int i = 0; i < unread->n_places; i++) {
        const int at = unread->place[i].file ? names_find(x->listed, unread->place[i].file) : -1;

        if (unread->place[i].file)
            x->item[x->n_items++] = (struct dcp_item){ -1 - u, i, at < 0 ? -1 : x->l->member[at].file, false, false };
    }
}

static void dcp_list_items(struct dcp_opening *x)
{
    const size_t n_entries = (size_t)x->table.n + 1;
    size_t n = 0;

    x->first = xcalloc(n_entries, sizeof *x->first);
    x->flat = xcalloc(n_entries, sizeof *x->flat);
    x->n_flat = xcalloc(n_entries, sizeof *x->n_flat);
    x->n_good = xcalloc(n_entries, sizeof *x->n_good);
    for (int i = 0; i < x->table.n; i++) {
        x->first[i] = n;
        n += (size_t)x->table.entry[i].n_chunks;
    }
    x->found = xcalloc(n + 1, sizeof *x->found);
    for (int i = 0; i < x->table.n_unread; i++)
        n += (size_t)x->table.unread[i].n_places;
    x->item = xcalloc(n + 1, sizeof *x->item);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_entry *en = &x->table.entry[i];

        for (int k = 0; k < en->n_chunks; k++) {
            int at = en->chunk[k].place.file ? names_find(x->listed, en->chunk[k].place.file) : -1;

            if (en->chunk[k].place.file)
                x->item[x->n_items++] = (struct dcp_item){ i, k, at < 0 ? -1 : x->l->member[at].file, false, false };
        }
    }
    for (int i = 0; i < x->table.n_unread; i++)
        dcp_list_unread_items(x, i);
    qsort_r(x->item, (size_t)x->n_items, sizeof *x->item, item_cmp, x);
    report_missing_files(x);
    dcp_list_source_files(x);
}

static void opening_free(struct dcp_opening *x)
{
    free(x->item);
    free(x->found);
    free(x->first);
    free(x->flat);
    free(x->n_flat);
    free(x->n_good);
    pt_holes_free(&x->holes);
}

/*
 * Returns true if the `len` bytes at offset `at` of file `home` begin and end like a zip archive: with the header of a
 * member, and the end of a directory.
 */
static bool are_archives(const struct dcp_opening *x, int home, uint64_t at, uint64_t len)
{
    enum { HEADER = 4, END = 22 };
    uint8_t head[HEADER], end[END];
    struct err ignored = {0};

    return len >= HEADER + END && files_read(x->s->files, home, at, head, sizeof head, &ignored) == 0 &&
           files_read(x->s->files, home, at + len - END, end, sizeof end, &ignored) == 0 &&
           memcmp(head, "PK\3\4", 4) == 0 && memcmp(end, "PK\5\6", 4) == 0;
}

static void report_file_gap(struct dcp_opening *x, int home, uint64_t at, uint64_t end)
{
    if (at < end && are_archives(x, home, at, end - at))
        x->unused += end - at;
    else if (at < end)
        report_add(x->r, SEV_WARNING, "gap", files_name(x->s->files, home), at, NULL,
                   "%" PRIu64 " bytes here belong to no item", end - at);
}

/*
 * Returns true if item i begins at the same byte as the item before it. This happens only with
 * SerializationFormat.SAFETENSORS, for which all tensors of a safetensors file have the beginning of the file as their
 * place. It is reported once per file.
 */
static bool is_safetensors_item(struct dcp_opening *x, int i)
{
    const struct dcp_item *it = &x->item[i], *before = it - 1;
    const uint64_t at = dcp_item_place(x, it)->at;

    if (i == 0 || before->home != it->home || dcp_item_place(x, before)->at != at)
        return false;
    if (i == 1 || before[-1].home != it->home || dcp_item_place(x, &before[-1])->at != at)
        report_add(x->r, SEV_ERROR, "shared_item", files_name(x->s->files, it->home), at, dcp_item_name(x, it),
                   "its item begins where that of %s does, as SerializationFormat.SAFETENSORS has it: only TORCH_SAVE "
                   "can be read: save in that format", dcp_item_name(x, before));
    return true;
}

/*
 * Check the places of all items in the order of files and offsets. An item that is not inside its file, or that
 * overlaps another, is not opened.
 */
static void place_items(struct dcp_opening *x)
{
    struct files *f = x->s->files;
    uint64_t end = 0;

    x->s->item = arena_alloc(x->s->arena, ((size_t)x->n_items + 1) * sizeof *x->s->item);
    for (int i = 0; i < x->n_items; i++) {
        struct dcp_item *it = &x->item[i];
        const struct dcp_place *p = dcp_item_place(x, it);

        it->lost = it->home < 0;
        if (it->lost)
            continue;
        if (i && x->item[i - 1].home != it->home)
            end = 0;
        if (p->at > files_size(f, it->home) || p->len > files_size(f, it->home) - p->at) {
            it->lost = true;
            report_add(lost_report(x), lost(x), "cut_short", files_name(f, it->home), p->at, dcp_item_name(x, it),
                       "its item should have %" PRIu64 " bytes here, the file ends at %" PRIu64, p->len,
                       files_size(f, it->home));
            continue;
        }
        if (is_safetensors_item(x, i))
            continue;
        if (p->at < end) {
            report_add(x->r, SEV_ERROR, "overlap", files_name(f, it->home), p->at, dcp_item_name(x, it),
                       "its item begins inside the one before, which ends at byte %" PRIu64, end);
            continue;
        }
        report_file_gap(x, it->home, end, p->at);
        end = p->at + p->len;
        it->usable = true;
        x->s->item[x->s->n_items++] = (struct source_item){ it->home, p->at, p->len };
        if (i + 1 == x->n_items || x->item[i + 1].home != it->home)
            report_file_gap(x, it->home, end, files_size(f, it->home));
    }
    if (x->unused)
        report_add(x->r, SEV_NOTE, "unused", x->path, ERR_NO_BYTE, NULL,
                   "%" PRIu64 " bytes of the files belong to items that no entry names; ckpt-edit thin removes them",
                   x->unused);
}

/* ---- contents of items ---- */

/* Report that the contents of item i differ from .metadata. The item is open, in x->file[i % BATCH]. */
static int wrong_item(const struct dcp_opening *x, int i, const char *what)
{
    report_add(x->r, SEV_ERROR, "item", files_name(x->s->files, x->file[i % BATCH]), ERR_NO_BYTE,
               dcp_item_name(x, &x->item[i]), "%s", what);
    return -1;
}

/*
 * Record that the entry of item i is not read because the contents of the item are not supported. Each entry is
 * recorded only once.
 */
static int skip_item_entry(struct dcp_opening *x, int i, struct strbuf *what)
{
    const char *name = dcp_item_name(x, &x->item[i]);
    struct source *s = x->s;
    bool known = false;

    for (int k = 0; k < s->n_unread && !known; k++)
        known = strcmp(s->unread[k].name, name) == 0;
    if (!known)
        source_add_unread(s, x->o, x->r, (struct source_spot){ files_name(s->files, x->file[i % BATCH]), ERR_NO_BYTE },
                          name, what->buf);
    strbuf_free(what);
    return -1;
}

static int read_chunk_item(struct dcp_opening *x, int i)
{
    const struct dcp_item *it = &x->item[i];
    const struct dcp_entry *en = &x->table.entry[it->entry];
    const struct pt *pt = x->pt[i % BATCH];
    struct chunk_extents *found = &x->found[x->first[it->entry] + (size_t)it->chunk];
    struct strbuf what = {0};
    struct pt_tensor t;

    if (pt_unread(pt, pt_root(pt), &what))
        return skip_item_entry(x, i, &what);
    if (!pt_tensor(pt, pt_root(pt), &t))
        return wrong_item(x, i, "its item holds no plain tensor");
    if (t.dtype != en->dtype)
        return wrong_item(x, i, "its item holds a tensor of another type than " DCP_METADATA " lists");
    if (!shape_equal(t.ndim, t.shape, en->ndim, chunk_of(x, it)->len))
        return wrong_item(x, i, "its item holds a tensor of another shape than " DCP_METADATA " lists");
    found->extent = tile_runs(x->s->arena, &t, MAX_RUNS, &found->n_extents);
    if (!found->extent)
        return wrong_item(x, i, "its item holds a tensor in too many pieces");
    x->n_good[it->entry]++;
    return 0;
}

static bool holds_tensors(const struct pt *pt)
{
    const struct pk_tree *t = pt_tree(pt);

    for (uint32_t i = 0; i < t->n_acts; i++)
        if (t->act[i]->type == PK_PERSID)
            return true;
    return false;
}

/*
 * Store the value in item i. If its tree contains tensors, the item's handle stays open, because the tensors are read
 * later. Otherwise the tree is copied and the handle is closed.
 */
static void add_item_value(struct dcp_opening *x, int i)
{
    struct source *s = x->s;
    struct source_value *v = &s->value[s->n_values];
    struct pt **pt = &x->pt[i % BATCH];
    struct strbuf what = {0};

    if (pt_find_unread(*pt, pt_root(*pt), &what)) {
        skip_item_entry(x, i, &what);
        return;
    }
    s->n_values++;
    *v = (struct source_value){ .name = dcp_item_name(x, &x->item[i]) };
    if (!holds_tensors(*pt)) {
        v->tree = pk_copy(s->arena, pt_root(*pt));
        return;
    }
    v->tree = pt_root(*pt);
    v->pt = *pt;
    s->held[s->n_held++] = *pt;
    *pt = NULL;
    x->file[i % BATCH] = -1;
}

static void read_opened_item(struct dcp_opening *x, int i)
{
    if (!*x->s->run.torch_dialect)
        snprintf(x->s->run.torch_dialect, sizeof x->s->run.torch_dialect, "%s", pt_dialect(x->pt[i % BATCH]));
    if (!x->table.entry[x->item[i].entry].is_tensor)
        add_item_value(x, i);
    else if (read_chunk_item(x, i) < 0)
        x->found[x->first[x->item[i].entry] + (size_t)x->item[i].chunk].extent = NULL;
    pt_close(x->pt[i % BATCH]);
}

/*
 * Replace item i, which is lost or cannot be opened, by a hole (source_opts.holes). A chunk becomes an extent without
 * bytes. A value has neither elements nor a tree.
 */
static void lose_item(struct dcp_opening *x, int i)
{
    struct dcp_item *it = &x->item[i];
    const struct dcp_entry *en = &x->table.entry[it->entry];
    uint64_t len = (uint64_t)dtype_size(en->dtype);
    struct chunk_extents *found;

    it->lost = true;
    if (!en->is_tensor) {
        x->s->value[x->s->n_values++] = (struct source_value){ .name = en->name };
        return;
    }
    for (int d = 0; d < en->ndim; d++)
        len *= (uint64_t)chunk_of(x, it)->len[d];
    found = &x->found[x->first[it->entry] + (size_t)it->chunk];
    found->extent = arena_alloc(x->s->arena, sizeof *found->extent);
    *found->extent = pt_hole(&x->holes, x->s, dcp_item_place(x, it)->file, len);
    found->n_extents = len > 0;
    x->n_good[it->entry]++;
}

/*
 * Returns true if item i must be opened. If no tensors are requested, only values are opened, and also item 0, which
 * shows which program wrote the archives.
 */
static bool is_opened(const struct dcp_opening *x, int i)
{
    const struct dcp_item *it = &x->item[i];

    return it->usable && it->entry >= 0 && (i == 0 || !x->o->no_tensors || !x->table.entry[it->entry].is_tensor);
}

/* Make the file in x->file[i % BATCH] stand for item i. */
static void point_item(struct dcp_opening *x, int i)
{
    const struct dcp_item *it = &x->item[i];
    const struct dcp_place *p = dcp_item_place(x, it);
    char *name = str_fmt("%s+%" PRIu64, files_name(x->s->files, it->home), p->at);
    int *file = &x->file[i % BATCH];

    if (*file < 0)
        *file = files_add_item(x->s->files, it->home, p->at, p->len, name);
    else
        files_point_item(x->s->files, *file, it->home, p->at, p->len, name);
    free(name);
}

static struct pt *open_item(const struct dcp_opening *x, int i)
{
    struct err e = {0};
    const int file = x->file[i % BATCH];
    struct pt *pt = pt_open(x->s->files, file, &e);

    if (!pt && x->o->holes)
        report_add_lost(x->r, dcp_item_name(x, &x->item[i]), &e);
    else if (!pt && x->late)
        report_add(lost_report(x), lost(x), "unreadable", NULL, ERR_NO_BYTE, dcp_item_name(x, &x->item[i]), "%s",
                   e.msg);
    else if (!pt)
        report_add_err(x->r, "unreadable", &e);
    if (pt) {
        pt_check_classes(pt, files_name(x->s->files, file), x->r);
        pt_check_container(pt, x->s->files, file, x->r);
    }
    return pt;
}

static void open_items(struct dcp_opening *x)
{
    int threads = x->o->threads ? x->o->threads : 16;

    x->s->value = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->s->value);
    x->s->held = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->s->held);
    memset(x->file, -1, sizeof x->file);
    for (int first = 0; first < x->n_items; first += BATCH) {
        int n = x->n_items - first < BATCH ? x->n_items - first : BATCH;

        for (int i = first; i < first + n; i++)
            if (is_opened(x, i))
                point_item(x, i);
        #pragma omp parallel for num_threads(threads < n ? threads : n) schedule(dynamic) if (x->n_items > 64)
        for (int i = first; i < first + n; i++)
            x->pt[i % BATCH] = is_opened(x, i) ? open_item(x, i) : NULL;
        for (int i = first; i < first + n; i++)
            if (x->pt[i % BATCH])
                read_opened_item(x, i);
            else if ((x->o->holes || x->late) && x->item[i].entry >= 0 && (x->item[i].lost || is_opened(x, i)))
                lose_item(x, i);
    }
#ifdef __GLIBC__
    /* The heaps of the other threads keep the memory of the closed items. Return it to the system. */
    malloc_trim(0);
#endif
}

/* ---- tensors ---- */

static void report_tile_flaw(const struct dcp_opening *x, const struct dcp_entry *en, const struct tile_flaw *flaw)
{
    const struct dcp_chunk *c = &en->chunk[flaw->chunk];

    if (flaw->what == TILE_GAP)
        report_add(x->r, SEV_ERROR, "gap", x->path, en->said_at, en->name,
                   "%" PRIu64 " of its elements are in no chunk", flaw->n_missing);
    else if (flaw->what == TILE_OUTSIDE)
        report_add(x->r, SEV_ERROR, "shape", x->path, c->place.said_at, en->name,
                   "its chunk in %s at byte %" PRIu64 " lies outside of the tensor", c->place.file, c->place.at);
    else
        report_add(x->r, SEV_ERROR, "overlap", x->path, c->place.said_at, en->name,
                   "its chunks in %s at byte %" PRIu64 " and in %s at byte %" PRIu64 " share elements", c->place.file,
                   c->place.at, en->chunk[flaw->other].place.file, en->chunk[flaw->other].place.at);
}

/*
 * Returns the chunks of entry i, in its present shape, and sets *n to their number. *made is set to true if the caller
 * must free the array.
 */
static struct tile_chunk *tiles_of(const struct dcp_opening *x, int i, int *n, bool *made)
{
    const struct dcp_entry *en = &x->table.entry[i];
    struct tile_chunk *tile = x->flat[i];

    *made = !tile;
    *n = tile ? x->n_flat[i] : en->n_chunks;
    if (tile)
        return tile;
    tile = xcalloc((size_t)en->n_chunks + 1, sizeof *tile);
    for (int k = 0; k < en->n_chunks; k++) {
        const struct chunk_extents *found = &x->found[x->first[i] + (size_t)k];

        tile[k] = (struct tile_chunk){ en->chunk[k].at, en->chunk[k].len, found->n_extents, found->extent };
    }
    return tile;
}

/*
 * Returns the map of entry i, which consists of n chunks. Returns NULL if no tensors are requested, or if no map can be
 * made; the reason has been reported.
 */
static struct tmap *make_map(const struct dcp_opening *x, int i, const struct tile_chunk *tile, int n)
{
    const struct dcp_entry *en = &x->table.entry[i];
    struct tile_flaw flaw = {0};
    struct tmap *m;

    if (x->n_good[i] < en->n_chunks || x->o->no_tensors)
        return NULL;
    m = tile_map(x->s->arena, &(struct tile_tensor){ en->dtype, en->ndim, en->shape }, tile, n, &flaw);
    if (!m)
        report_tile_flaw(x, en, &flaw);
    return m;
}

/* Give flattened entries their original shape. Their chunks are checked in the stored shape first. */
static void unfold(struct dcp_opening *x)
{
    for (int i = 0; i < x->table.n; i++) {
        struct dcp_entry *en = &x->table.entry[i];
        bool fits = en->n_whole && dcp_flat_fits(en), made = false;
        struct tile_chunk *tile = NULL;
        int n;

        if (!en->n_whole)
            continue;
        if (!fits)
            report_add(x->r, SEV_ERROR, "shape", x->path, en->said_at, en->name,
                       "was flattened, and its chunks do not add up to its shape");
        else
            tile = tiles_of(x, i, &n, &made);
        if (!fits || !make_map(x, i, tile, n))
            x->n_good[i] = -1;
        else
            x->n_flat[i] = dcp_flat_unfold(x->s->arena, en, tile, &x->flat[i]);
        if (fits) {
            en->ndim = en->n_whole;
            memcpy(en->shape, en->whole, sizeof en->shape);
        }
        free(tile);
    }
}

/* ---- parameters ---- */

static struct param *find_or_add_dcp_param(struct dcp_opening *x, const char *name, int ndim, const int64_t *shape)
{
    struct source *s = x->s;
    struct param *p = source_param(s, name);

    if (p)
        return p;
    p = &s->param[s->n_params++];
    *p = (struct param){ .name = name, .ndim = ndim, .merge = MERGE_REPLICATED, .stage = -1, .group = -1 };
    memcpy(p->shape, shape, (size_t)ndim * sizeof *shape);
    return p;
}

/*
 * Returns the name of the parameter in one row of a stack: "decoder.layers.3.mlp.weight" for row 3 of
 * "decoder.layers.mlp.weight", whose number is inserted at position `at`.
 */
static const char *row_name(struct dcp_opening *x, const char *name, int at, int64_t row)
{
    return arena_fmt(x->s->arena, "%.*s.%" PRId64 "%s", at, name, row, name + at);
}

static bool is_weight_role(const struct dcp_role *r)
{
    return r->param && r->state <= STATE_FP32;
}

/*
 * Add the parameters of all stacks that are linked by next[], starting with entry `first`. They are added row by row,
 * because this is the order of the layers in a model.
 */
static void list_stack(struct dcp_opening *x, int first, const int *next)
{
    for (int64_t row = 0; row < x->table.entry[first].shape[0]; row++)
        for (int i = first; i >= 0; i = next[i]) {
            const struct dcp_entry *en = &x->table.entry[i];
            const struct dcp_role *r = &x->role[i];

            find_or_add_dcp_param(x, row_name(x, r->param, r->number_at, row), en->ndim - 1, en->shape + 1);
        }
}

/*
 * Add the parameters in the order of the model's weights. Without this, their order would depend on the order of the
 * entries, which is not fixed.
 */
static void dcp_list_params(struct dcp_opening *x)
{
    size_t n = 0, bytes = ((size_t)x->table.n + 1) * sizeof(int);
    int *next = xmalloc(bytes), *last = xmalloc(bytes), *first = xmalloc(bytes);

    memset(next, -1, bytes);
    memset(first, -1, bytes);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_role *r = &x->role[i];

        n += !r->param ? 0 : r->stack ? (size_t)x->table.entry[i].shape[0] : 1;
        if (!is_weight_role(r) || !r->stack)
            continue;
        if (first[r->stack] < 0)
            first[r->stack] = i;
        else
            next[last[r->stack]] = i;
        last[r->stack] = i;
    }
    x->s->param = arena_alloc(x->s->arena, (n + 1) * sizeof *x->s->param);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_entry *en = &x->table.entry[i];
        const struct dcp_role *r = &x->role[i];

        if (is_weight_role(r) && !r->stack)
            find_or_add_dcp_param(x, r->param, en->ndim, en->shape);
        else if (is_weight_role(r) && first[r->stack] == i)
            list_stack(x, i, next);
    }
    free(next);
    free(last);
    free(first);
}

static void set_state(struct param *p, enum state st, struct tmap *m, const char *spelled)
{
    p->state[st] = m;
    p->spelled[st] = strcmp(spelled, p->name) != 0 ? spelled : NULL;
}

/* Add a stack to s->stack, and each of its rows as a state of the row's parameter. */
static void add_stacked_params(struct dcp_opening *x, int entry, struct tmap *m, const struct tile_chunk *tile,
                               int n_tiles)
{
    const struct dcp_entry *en = &x->table.entry[entry];
    const struct dcp_role *r = &x->role[entry];
    const struct tile_tensor whole = { en->dtype, en->ndim, en->shape };
    const struct tile_tensor row = { en->dtype, en->ndim - 1, en->shape + 1 };
    struct source *s = x->s;
    struct source_stack *k = &s->stack[s->n_stacks++];
    struct tile_flaw flaw;
    int *first = NULL, number_at = r->number_at + (int)(strlen(en->name) - strlen(r->param));
    struct tile_chunk *c = m ? tile_rows(s->arena, &whole, tile, n_tiles, MAX_ROW_CHUNKS, &first) : NULL;
    int *number = c ? arena_alloc(s->arena, (size_t)en->shape[0] * sizeof *number) : NULL;

    *k = (struct source_stack){ { .name = en->name, .map = m, .ndim = en->ndim }, r->state, number };
    memcpy(k->whole.shape, en->shape, sizeof en->shape);
    if (m && !c)
        report_add(x->r, SEV_ERROR, "shape", x->path, en->said_at, en->name,
                   "its rows are cut into more than %d chunks", MAX_ROW_CHUNKS);
    for (int64_t i = 0; c && i < en->shape[0]; i++) {
        struct param *p = find_or_add_dcp_param(x, row_name(x, r->param, r->number_at, i), row.ndim, row.shape);

        number[i] = (int)(p - s->param);
        set_state(p, r->state, tile_map(s->arena, &row, c + first[i], first[i + 1] - first[i], &flaw),
                  row_name(x, en->name, number_at, i));
    }
    free(c);
    free(first);
}

static void add_tiled_tensors(struct dcp_opening *x)
{
    struct source *s = x->s;

    s->stack = arena_alloc(s->arena, ((size_t)x->table.n + 1) * sizeof *s->stack);
    dcp_list_params(x);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_entry *en = &x->table.entry[i];
        const struct dcp_role *r = &x->role[i];
        struct tile_chunk *tile;
        bool made;
        struct tmap *m;
        int n;

        if (!en->is_tensor)
            continue;
        tile = tiles_of(x, i, &n, &made);
        m = make_map(x, i, tile, n);
        if (x->o->no_optimizer && r->param && r->state > STATE_FP32) {
            /* left out; flaws of its chunks have been reported */
        } else if (r->param && r->stack) {
            add_stacked_params(x, i, m, tile, n);
        } else if (r->param) {
            set_state(find_or_add_dcp_param(x, r->param, en->ndim, en->shape), r->state, m, en->name);
        } else if (m) {
            struct source_value *v = &s->value[s->n_values++];

            *v = (struct source_value){ .name = en->name, .map = m, .ndim = en->ndim };
            memcpy(v->shape, en->shape, sizeof v->shape);
        }
        if (made)
            free(tile);
    }
}

/* Returns true if the item belongs to a moment, or to another state or setting of an optimizer. */
static bool is_optimizers(const struct dcp_opening *x, const struct dcp_item *it)
{
    const struct dcp_entry *en = it->entry < 0 ? NULL : &x->table.entry[it->entry];
    const struct dcp_role *r = en ? &x->role[it->entry] : NULL;

    return en && (r->param ? r->state > STATE_FP32 : en->kind != DCP_ENTRY_OTHER);
}

/*
 * Report the lost items in x->late. They are warnings if all of them belong to an optimizer, because then the optimizer
 * was not requested. Otherwise they are errors.
 */
static void report_lost(struct dcp_opening *x)
{
    bool needed = false;

    for (int i = 0; i < x->n_items; i++)
        needed |= x->item[i].lost && !is_optimizers(x, &x->item[i]);
    for (int i = 0; i < report_n(x->late); i++) {
        const struct finding *f = report_get(x->late, i);

        report_add(x->r, needed ? SEV_ERROR : SEV_WARNING, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(x->late);
}

/*
 * Remove from the table the entries that contain items that cannot be read. A table that is written from it then lacks
 * these entries, too.
 */
static void drop_unread(struct dcp_opening *x)
{
    struct names *unread = names_new(x->s->arena);
    int n = 0;

    for (int i = 0; i < x->s->n_unread; i++)
        names_add(unread, x->s->unread[i].name, i);
    for (int i = 0; i < x->table.n; i++)
        if (names_find(unread, x->table.entry[i].name) < 0)
            x->table.entry[n++] = x->table.entry[i];
    x->table.n = n;
}

/* ---- the state of the run ---- */

/* Read the number of the iteration. Trainers store it under one of these names. */
static void find_iteration(struct source *s, struct report *r)
{
    static const char *const names[] = { "iteration", "global_step", "global_steps", "step", "train_state.step" };
    struct source_hit hit;

    for (size_t i = 0; i < sizeof names / sizeof *names && s->run.iteration < 0; i++)
        if (source_find(s, names[i], &hit) && hit.value && hit.value->tree && hit.value->tree->type == PK_INT)
            pk_as_int(hit.value->tree, &s->run.iteration);
        else if (source_find(s, names[i], &hit) && hit.value && hit.value->tree && hit.value->tree->type == PK_STR)
            run_state_check_counter(s->path, names[i], hit.value->tree, r);
}

/*
 * Warn if the optimizer has made more steps than iterations and than steps of the learning-rate schedule; one step more
 * is permitted. A step takes one iteration, or several if batches are accumulated.
 */
static void check_counters(const struct source *s, struct report *r)
{
    int64_t most = s->run.iteration, steps;
    struct source_hit hit;

    if (source_find(s, "lr_scheduler.last_epoch", &hit) && hit.value && hit.value->tree &&
        pk_as_int(hit.value->tree, &steps) && steps > most)
        most = steps;
    if (s->run.iteration >= 0 && s->run.opt_step > most && s->run.opt_step - most > 1)
        report_add(r, SEV_WARNING, "counters", s->path, ERR_NO_BYTE, NULL,
                   "the iteration is %lld, but the optimizer has made %lld steps: they are from different saves, or "
                   "the optimizer started at another step", (long long)s->run.iteration, (long long)s->run.opt_step);
}

/* ---- public functions ---- */

int dcp_open(struct source *s, const struct source_listing *l, const struct source_opts *o, dcp_assign *assign,
             struct report *r, struct err *e)
{
    struct dcp_opening x = { .s = s, .l = l, .o = o, .r = r, .listed = names_new(s->arena) };
    struct dcp_naming naming = { .s = s, .table = &x.table, .model = o->model, .no_optimizer = o->no_optimizer,
                                 .holes = o->holes };
    const int manifest = dcp_listed_at_top(l, MANIFEST_NAME), log = dcp_listed_at_top(l, DS_REPAIR_LOG_NAME);
    int rc;

    s->layout = &dcp_layout;
    s->file = arena_alloc(s->arena, ((size_t)l->n + 1) * sizeof *s->file);
    for (int i = 0; i < l->n; i++)
        names_add(x.listed, l->member[i].name, i);
    if (read_metadata(&x, e) < 0)
        return -1;
    if (o->no_optimizer && !o->holes && !o->no_tensors)
        x.late = report_new();
    dcp_list_items(&x);
    if (manifest >= 0)
        dcp_add_file(s, MANIFEST_NAME, manifest, NULL);
    if (log >= 0)
        dcp_add_file(s, DS_REPAIR_LOG_NAME, log, NULL);
    place_items(&x);
    open_items(&x);
    unfold(&x);
    x.role = naming.role = arena_alloc(s->arena, ((size_t)x.table.n + 1) * sizeof *x.role);
    naming.path = x.path;
    rc = assign(&naming, r, e);
    if (rc == 0)
        add_tiled_tensors(&x);
    if (x.late)
        report_lost(&x);
    opening_free(&x);
    if (rc < 0)
        return -1;
    s->dcp = arena_alloc(s->arena, sizeof *s->dcp);
    memcpy((struct dcp_table *)s->dcp, &x.table, sizeof x.table);
    find_iteration(s, r);
    dcp_groups_read(&naming, r);
    drop_unread(&x);
    memcpy((struct dcp_table *)s->dcp, &x.table, sizeof x.table);
    return o->no_tensors ? 0 : manifest_load(s, o->no_optimizer, r, e);
}

int dcp_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                    struct report *r, struct err *e)
{
    const int rc = dcp_open(s, l, o, dcp_names_assign, r, e);

    if (rc == 0 && !o->no_optimizer)
        check_counters(s, r);
    return rc;
}
