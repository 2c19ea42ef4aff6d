/*
 * dcp_source.c - a folder of torch.distributed.checkpoint as a source
 *
 * .metadata -> items, each a torch.save archive inside a file -> tensors as tiles, values as trees -> parameters by
 * their names. Items are opened by many threads and taken in by one, a batch at a time.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/dcp_flat.h"
#include "libcommon/layout/dcp/dcp_groups.h"
#include "libcommon/layout/manifest.h"
#include "libcommon/layout/tile.h"

/* A strided chunk is an extent for every contiguous run; no trainer writes one of very many. */
enum { MAX_RUNS = 1 << 20 };
/* Rows of a stack, and their chunks: each is a parameter's layer. */
enum { MAX_ROW_CHUNKS = 1 << 22 };

/* One chunk or value, and what was found there. */
struct dcp_item {
    const struct dcp_entry *en;
    const struct dcp_chunk *chunk;
    int home, file;             /* the file that it lies in, and itself as a file; -1: not to be had */
    struct tile_chunk *tile;    /* of a tensor: where its bytes are noted */
    struct pt *pt;
    bool unread;                /* its entry is not read: it is not opened */
};

struct dcp_opening {
    struct source *s;
    const struct source_listing *l;
    const struct source_opts *o;
    struct report *r;
    const char *path;           /* of .metadata */
    struct dcp_table table;
    struct dcp_role *role;
    struct names *listed;       /* names of the listing: their numbers */
    struct dcp_item *item;      /* by file and place */
    int n_items;
    struct tile_chunk **tile;   /* of each entry, those of its chunks; in the end those of its shape */
    int *n_tiles;
    uint64_t unused;            /* bytes of items that no entry names */
    int *n_good;                /* how many of the chunks were found; -1: they are of no use */
};

bool dcp_marks(const char *name)
{
    return strcmp(name, DCP_METADATA) == 0 || (str_ends(name, ".distcp") && !strchr(name, '/'));
}

int dcp_listed(const struct source_listing *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->member[i].name, name) == 0)
            return l->member[i].file;
    return -1;
}

void dcp_add_file(struct source *s, const char *name, int file, struct pt *pt)
{
    /* Room for every file of the listing, and a few of other layouts, was made at the start. */
    s->file[s->n_files++] = (struct source_file){ .name = arena_fmt(s->arena, "%s", name), .file = file, .pt = pt,
                                                  .cls = FILE_OTHER, .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
}

/* ---- .metadata ---- */

static int no_metadata(const struct dcp_opening *x, struct err *e)
{
    for (int i = 0; i < x->l->n; i++)
        if (str_starts(x->l->member[i].name, "__") && str_ends(x->l->member[i].name, DCP_METADATA)) {
            err_data(e, x->s->path, ERR_NO_BYTE, "has a metadata file for each rank (%s; use_collectives=False): not "
                     "supported, save with collectives", x->l->member[i].name);
            return -1;
        }
    err_data(e, x->s->path, ERR_NO_BYTE, "no " DCP_METADATA ": the save did not finish%s; use an earlier checkpoint",
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
        rc = dcp_metadata_read(x->s->arena, &(struct dcp_pickle){ x->path, bytes, size }, &x->table, x->r, e);
    free(bytes);
    dcp_add_file(x->s, DCP_METADATA, file, NULL);
    return rc;
}

/* ---- items ---- */

static int item_cmp(const void *a, const void *b)
{
    const struct dcp_item *x = a, *y = b;

    if (x->home != y->home)
        return x->home < y->home ? -1 : 1;
    return x->chunk->place.at < y->chunk->place.at ? -1 : x->chunk->place.at > y->chunk->place.at;
}

/* Files that are named and not there, once each. */
static void tell_missing(const struct dcp_opening *x)
{
    struct names *told = names_new(x->s->arena);

    for (int i = 0; i < x->n_items; i++) {
        const char *name = x->item[i].chunk->place.file;

        if (x->item[i].home >= 0 || names_find(told, name) >= 0)
            continue;
        names_add(told, name, i);
        report_add(x->r, SEV_ERROR, "missing_file", x->path, x->item[i].chunk->place.said_at, NULL,
                   "names file %s, which is not there", name);
    }
}

/* In the listing's order. */
static void list_files(struct dcp_opening *x)
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

/* Items of an entry that is not read have their places, and are not opened. */
static void list_unread(struct dcp_opening *x, const struct dcp_unread *u)
{
    struct dcp_entry *en = arena_alloc(x->s->arena, sizeof *en);
    struct dcp_chunk *chunk = arena_alloc(x->s->arena, ((size_t)u->n_places + 1) * sizeof *chunk);

    *en = (struct dcp_entry){ .name = u->name, .said_at = u->said_at };
    source_add_unread(x->s, x->o, x->r, (struct source_spot){ x->path, u->said_at }, u->name, u->why);
    for (int i = 0; i < u->n_places; i++) {
        const int at = u->place[i].file ? names_find(x->listed, u->place[i].file) : -1;

        chunk[i].place = u->place[i];
        if (u->place[i].file)
            x->item[x->n_items++] = (struct dcp_item){ .en = en, .chunk = &chunk[i], .unread = true,
                                                       .home = at < 0 ? -1 : x->l->member[at].file, .file = -1 };
    }
}

static void list_items(struct dcp_opening *x)
{
    size_t n = 0;

    for (int i = 0; i < x->table.n; i++)
        n += (size_t)x->table.entry[i].n_chunks;
    for (int i = 0; i < x->table.n_unread; i++)
        n += (size_t)x->table.unread[i].n_places;
    x->item = xcalloc(n + 1, sizeof *x->item);
    x->tile = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->tile);
    x->n_good = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->n_good);
    x->n_tiles = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->n_tiles);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_entry *en = &x->table.entry[i];

        x->n_tiles[i] = en->n_chunks;
        x->tile[i] = arena_alloc(x->s->arena, ((size_t)en->n_chunks + 1) * sizeof **x->tile);
        for (int k = 0; k < en->n_chunks; k++) {
            int at = en->chunk[k].place.file ? names_find(x->listed, en->chunk[k].place.file) : -1;

            if (en->chunk[k].place.file)
                x->item[x->n_items++] = (struct dcp_item){ .en = en, .chunk = &en->chunk[k], .tile = &x->tile[i][k],
                                                           .home = at < 0 ? -1 : x->l->member[at].file, .file = -1 };
        }
    }
    for (int i = 0; i < x->table.n_unread; i++)
        list_unread(x, &x->table.unread[i]);
    qsort(x->item, (size_t)x->n_items, sizeof *x->item, item_cmp);
    tell_missing(x);
    list_files(x);
}

/* Do the bytes begin and end as archives do, with a header and the end of a directory? */
static bool are_archives(const struct dcp_opening *x, int home, uint64_t at, uint64_t len)
{
    enum { HEADER = 4, END = 22 };
    uint8_t head[HEADER], end[END];
    struct err ignored = {0};

    return len >= HEADER + END && files_read(x->s->files, home, at, head, sizeof head, &ignored) == 0 &&
           files_read(x->s->files, home, at + len - END, end, sizeof end, &ignored) == 0 &&
           memcmp(head, "PK\3\4", 4) == 0 && memcmp(end, "PK\5\6", 4) == 0;
}

static void tell_gap(struct dcp_opening *x, int home, uint64_t at, uint64_t end)
{
    if (at < end && are_archives(x, home, at, end - at))
        x->unused += end - at;
    else if (at < end)
        report_add(x->r, SEV_WARNING, "gap", files_name(x->s->files, home), at, NULL,
                   "%" PRIu64 " bytes here are no item's", end - at);
}

/* SerializationFormat.SAFETENSORS: one safetensors file of all tensors, where every item begins. Told once a file. */
static bool is_shared(struct dcp_opening *x, int i)
{
    const struct dcp_item *it = &x->item[i], *before = it - 1;
    const uint64_t at = it->chunk->place.at;

    if (i == 0 || before->home != it->home || before->chunk->place.at != at)
        return false;
    if (i == 1 || before[-1].home != it->home || before[-1].chunk->place.at != at)
        report_add(x->r, SEV_ERROR, "shared_item", files_name(x->s->files, it->home), at, it->en->name,
                   "its item begins where that of %s does, as SerializationFormat.SAFETENSORS has it: only TORCH_SAVE "
                   "can be read; save in that", before->en->name);
    return true;
}

/* One item after the other; what lies outside its file, or on another item, is not opened. */
static void place_items(struct dcp_opening *x)
{
    struct files *f = x->s->files;
    uint64_t end = 0;

    x->s->item = arena_alloc(x->s->arena, ((size_t)x->n_items + 1) * sizeof *x->s->item);
    for (int i = 0; i < x->n_items; i++) {
        struct dcp_item *it = &x->item[i];
        const struct dcp_place *p = &it->chunk->place;
        char *name;

        if (it->home < 0)
            continue;
        if (i && x->item[i - 1].home != it->home)
            end = 0;
        if (p->at > files_size(f, it->home) || p->len > files_size(f, it->home) - p->at) {
            report_add(x->r, SEV_ERROR, "cut_short", files_name(f, it->home), p->at, it->en->name,
                       "its item should have %" PRIu64 " bytes here, the file ends at %" PRIu64, p->len,
                       files_size(f, it->home));
            continue;
        }
        if (is_shared(x, i))
            continue;
        if (p->at < end) {
            report_add(x->r, SEV_ERROR, "overlap", files_name(f, it->home), p->at, it->en->name,
                       "its item begins inside the one before, which ends at byte %" PRIu64, end);
            continue;
        }
        tell_gap(x, it->home, end, p->at);
        end = p->at + p->len;
        name = str_fmt("%s+%" PRIu64, files_name(f, it->home), p->at);
        it->file = files_add_item(f, it->home, p->at, p->len, name);
        x->s->item[x->s->n_items++] = it->file;
        free(name);
        if (i + 1 == x->n_items || x->item[i + 1].home != it->home)
            tell_gap(x, it->home, end, files_size(f, it->home));
    }
    if (x->unused)
        report_add(x->r, SEV_NOTE, "unused", x->path, ERR_NO_BYTE, NULL,
                   "%" PRIu64 " bytes of the files are items that no entry names; ckpt-edit thin leaves them out",
                   x->unused);
}

/* ---- what items hold ---- */

static int wrong_item(const struct dcp_opening *x, const struct dcp_item *it, const char *what)
{
    report_add(x->r, SEV_ERROR, "item", files_name(x->s->files, it->file), ERR_NO_BYTE, it->en->name, "%s", what);
    return -1;
}

/* What an item holds is not read: its entry is left out, once. */
static int leave_out(struct dcp_opening *x, const struct dcp_item *it, struct strbuf *what)
{
    struct source *s = x->s;
    bool known = false;

    for (int i = 0; i < s->n_unread && !known; i++)
        known = strcmp(s->unread[i].name, it->en->name) == 0;
    if (!known)
        source_add_unread(s, x->o, x->r, (struct source_spot){ files_name(s->files, it->file), ERR_NO_BYTE },
                          it->en->name, what->buf);
    strbuf_free(what);
    return -1;
}

static int take_chunk(struct dcp_opening *x, const struct dcp_item *it)
{
    const struct dcp_entry *en = it->en;
    struct strbuf what = {0};
    struct pt_tensor t;

    if (pt_unread(it->pt, pt_root(it->pt), &what))
        return leave_out(x, it, &what);
    if (!pt_tensor(it->pt, pt_root(it->pt), &t))
        return wrong_item(x, it, "its item holds no plain tensor");
    if (t.dtype != en->dtype)
        return wrong_item(x, it, "its item holds a tensor of another type than " DCP_METADATA " says");
    if (t.ndim != en->ndim || memcmp(t.shape, it->chunk->len, (size_t)en->ndim * sizeof *t.shape) != 0)
        return wrong_item(x, it, "its item holds a tensor of another shape than " DCP_METADATA " says");
    memcpy(it->tile->at, it->chunk->at, sizeof it->tile->at);
    memcpy(it->tile->len, it->chunk->len, sizeof it->tile->len);
    it->tile->extent = tile_runs(x->s->arena, &t, MAX_RUNS, &it->tile->n_extents);
    if (!it->tile->extent)
        return wrong_item(x, it, "its item holds a tensor in too many pieces");
    x->n_good[en - x->table.entry]++;
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

/* A tree with tensors inside needs its handle; others are copied. */
static void take_value(struct dcp_opening *x, struct dcp_item *it)
{
    struct source *s = x->s;
    struct source_value *v = &s->value[s->n_values];
    struct strbuf what = {0};

    if (pt_find_unread(it->pt, pt_root(it->pt), &what)) {
        leave_out(x, it, &what);
        return;
    }
    s->n_values++;
    *v = (struct source_value){ .name = it->en->name };
    if (!holds_tensors(it->pt)) {
        v->tree = pk_copy(s->arena, pt_root(it->pt));
        return;
    }
    v->tree = pt_root(it->pt);
    v->pt = it->pt;
    s->held[s->n_held++] = it->pt;
    it->pt = NULL;
}

static void take_item(struct dcp_opening *x, struct dcp_item *it)
{
    if (!*x->s->run.torch_dialect)
        snprintf(x->s->run.torch_dialect, sizeof x->s->run.torch_dialect, "%s", pt_dialect(it->pt));
    if (!it->en->is_tensor)
        take_value(x, it);
    else if (take_chunk(x, it) < 0)
        it->tile->extent = NULL;
    pt_close(it->pt);
}

static struct pt *open_item(const struct dcp_opening *x, const struct dcp_item *it)
{
    struct err e = {0};
    struct pt *pt;

    /* Of a summary one tensor tells who wrote the containers. */
    if (it->unread || it->file < 0 || (it->en->is_tensor && x->o->no_tensors && it != x->item))
        return NULL;
    pt = pt_open(x->s->files, it->file, &e);
    if (!pt)
        report_add_err(x->r, "unreadable", &e);
    else
        pt_check_classes(pt, files_name(x->s->files, it->file), x->r);
    return pt;
}

static void open_items(struct dcp_opening *x)
{
    enum { BATCH = 512 };
    int threads = x->o->threads ? x->o->threads : 16;

    x->s->value = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->s->value);
    x->s->held = arena_alloc(x->s->arena, ((size_t)x->table.n + 1) * sizeof *x->s->held);
    for (int first = 0; first < x->n_items; first += BATCH) {
        int n = x->n_items - first < BATCH ? x->n_items - first : BATCH;

        #pragma omp parallel for num_threads(threads < n ? threads : n) schedule(dynamic) if (x->n_items > 64)
        for (int i = first; i < first + n; i++)
            x->item[i].pt = open_item(x, &x->item[i]);
        for (int i = first; i < first + n; i++)
            if (x->item[i].pt)
                take_item(x, &x->item[i]);
    }
}

/* ---- tensors ---- */

static void tell_flaw(const struct dcp_opening *x, const struct dcp_entry *en, const struct tile_flaw *flaw)
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

/* NULL: a finding says why, or no tensors were asked for. */
static struct tmap *make_map(const struct dcp_opening *x, int i)
{
    const struct dcp_entry *en = &x->table.entry[i];
    struct tile_flaw flaw = {0};
    struct tmap *m;

    if (x->n_good[i] < en->n_chunks || x->o->no_tensors)
        return NULL;
    m = tile_map(x->s->arena, &(struct tile_tensor){ en->dtype, en->ndim, en->shape }, x->tile[i], x->n_tiles[i],
                 &flaw);
    if (!m)
        tell_flaw(x, en, &flaw);
    return m;
}

/* Entries that stand for another shape take it; what their chunks say is looked at in the shape that they have. */
static void unfold(struct dcp_opening *x)
{
    for (int i = 0; i < x->table.n; i++) {
        struct dcp_entry *en = &x->table.entry[i];
        bool fits = en->n_whole && dcp_flat_fits(en);

        if (!en->n_whole)
            continue;
        if (!fits)
            report_add(x->r, SEV_ERROR, "shape", x->path, en->said_at, en->name,
                       "was flattened, and its pieces do not give the shape that they stand for");
        if (!fits || !make_map(x, i))
            x->n_good[i] = -1;
        else
            x->n_tiles[i] = dcp_flat_unfold(x->s->arena, en, x->tile[i], &x->tile[i]);
        if (fits) {
            en->ndim = en->n_whole;
            memcpy(en->shape, en->whole, sizeof en->shape);
        }
    }
}

/* ---- parameters ---- */

static struct param *param_of(struct dcp_opening *x, const char *name, int ndim, const int64_t *shape)
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

/* A row's own name: "decoder.layers" "." 3 ".mlp.weight". */
static const char *row_name(struct dcp_opening *x, const char *name, int at, int64_t row)
{
    return arena_fmt(x->s->arena, "%.*s.%" PRId64 "%s", at, name, row, name + at);
}

static bool is_weight(const struct dcp_role *r)
{
    return r->param && r->state <= STATE_FP32;
}

/* All weights of a stack, row by row: the order in which a model has them. next[]: of an entry, its stack's next. */
static void list_stack(struct dcp_opening *x, int first, const int *next)
{
    for (int64_t row = 0; row < x->table.entry[first].shape[0]; row++)
        for (int i = first; i >= 0; i = next[i]) {
            const struct dcp_entry *en = &x->table.entry[i];
            const struct dcp_role *r = &x->role[i];

            param_of(x, row_name(x, r->param, r->number_at, row), en->ndim - 1, en->shape + 1);
        }
}

/* Weights come before their moments in no fixed order: the parameters are made in that of the weights. */
static void list_params(struct dcp_opening *x)
{
    size_t n = 0, bytes = ((size_t)x->table.n + 1) * sizeof(int);
    int *next = xmalloc(bytes), *last = xmalloc(bytes), *first = xmalloc(bytes);

    memset(next, -1, bytes);
    memset(first, -1, bytes);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_role *r = &x->role[i];

        n += !r->param ? 0 : r->stack ? (size_t)x->table.entry[i].shape[0] : 1;
        if (!is_weight(r) || !r->stack)
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

        if (is_weight(r) && !r->stack)
            param_of(x, r->param, en->ndim, en->shape);
        else if (is_weight(r) && first[r->stack] == i)
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

/* The stack itself, and each row as a state of its parameter. */
static void take_stack(struct dcp_opening *x, int entry, struct tmap *m)
{
    const struct dcp_entry *en = &x->table.entry[entry];
    const struct dcp_role *r = &x->role[entry];
    const struct tile_tensor whole = { en->dtype, en->ndim, en->shape };
    const struct tile_tensor row = { en->dtype, en->ndim - 1, en->shape + 1 };
    struct source *s = x->s;
    struct source_stack *k = &s->stack[s->n_stacks++];
    struct tile_flaw flaw;
    int *first, number_at = r->number_at + (int)(strlen(en->name) - strlen(r->param));
    struct tile_chunk *c = m ? tile_rows(s->arena, &whole, x->tile[entry], x->n_tiles[entry], MAX_ROW_CHUNKS, &first)
                             : NULL;
    int *number = c ? arena_alloc(s->arena, (size_t)en->shape[0] * sizeof *number) : NULL;

    *k = (struct source_stack){ { .name = en->name, .map = m, .ndim = en->ndim }, r->state, number };
    memcpy(k->whole.shape, en->shape, sizeof en->shape);
    if (m && !c)
        report_add(x->r, SEV_ERROR, "shape", x->path, en->said_at, en->name,
                   "its rows are cut into more than %d chunks", MAX_ROW_CHUNKS);
    for (int64_t i = 0; c && i < en->shape[0]; i++) {
        struct param *p = param_of(x, row_name(x, r->param, r->number_at, i), row.ndim, row.shape);

        number[i] = (int)(p - s->param);
        set_state(p, r->state, tile_map(s->arena, &row, c + first[i], first[i + 1] - first[i], &flaw),
                  row_name(x, en->name, number_at, i));
    }
}

static void take_tensors(struct dcp_opening *x)
{
    struct source *s = x->s;

    s->stack = arena_alloc(s->arena, ((size_t)x->table.n + 1) * sizeof *s->stack);
    list_params(x);
    for (int i = 0; i < x->table.n; i++) {
        const struct dcp_entry *en = &x->table.entry[i];
        const struct dcp_role *r = &x->role[i];
        struct tmap *m = en->is_tensor ? make_map(x, i) : NULL;

        if (!en->is_tensor || (x->o->no_optimizer && r->param && r->state > STATE_FP32))
            continue;
        if (r->param && r->stack) {
            take_stack(x, i, m);
        } else if (r->param) {
            set_state(param_of(x, r->param, en->ndim, en->shape), r->state, m, en->name);
        } else if (m) {
            struct source_value *v = &s->value[s->n_values++];

            *v = (struct source_value){ .name = en->name, .map = m, .ndim = en->ndim };
            memcpy(v->shape, en->shape, sizeof v->shape);
        }
    }
}

/* Entries whose items turned out to be unreadable: whoever writes the table again has none of them. */
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

/* Under one of these names trainers keep the number of steps done. */
static void find_iteration(struct source *s)
{
    static const char *const names[] = { "iteration", "global_step", "global_steps", "step", "train_state.step" };
    struct source_hit hit;

    for (size_t i = 0; i < sizeof names / sizeof *names && s->run.iteration < 0; i++)
        if (source_find(s, names[i], &hit) && hit.value && hit.value->tree && hit.value->tree->type == PK_INT)
            pk_as_int(hit.value->tree, &s->run.iteration);
}

/* ---- the door ---- */

int dcp_open(struct source *s, const struct source_listing *l, const struct source_opts *o, dcp_assign *assign,
             struct report *r, struct err *e)
{
    struct dcp_opening x = { .s = s, .l = l, .o = o, .r = r, .listed = names_new(s->arena) };
    struct dcp_naming naming = { .s = s, .table = &x.table, .model = o->model, .no_optimizer = o->no_optimizer };
    int manifest = dcp_listed(l, MANIFEST_NAME);

    s->kind = LAYOUT_DCP;
    s->file = arena_alloc(s->arena, ((size_t)l->n + 1) * sizeof *s->file);
    for (int i = 0; i < l->n; i++)
        names_add(x.listed, l->member[i].name, i);
    if (read_metadata(&x, e) < 0)
        return -1;
    list_items(&x);
    if (manifest >= 0)
        dcp_add_file(s, MANIFEST_NAME, manifest, NULL);
    place_items(&x);
    open_items(&x);
    unfold(&x);
    free(x.item);
    x.role = naming.role = arena_alloc(s->arena, ((size_t)x.table.n + 1) * sizeof *x.role);
    naming.path = x.path;
    if (assign(&naming, r, e) < 0)
        return -1;
    take_tensors(&x);
    s->dcp = arena_alloc(s->arena, sizeof *s->dcp);
    memcpy((struct dcp_table *)s->dcp, &x.table, sizeof x.table);
    find_iteration(s);
    dcp_groups_read(&naming, r);
    drop_unread(&x);
    memcpy((struct dcp_table *)s->dcp, &x.table, sizeof x.table);
    return o->no_tensors ? 0 : manifest_load(s, o->no_optimizer, r, e);
}

int dcp_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                    struct err *e)
{
    return dcp_open(s, l, o, dcp_names_assign, r, e);
}
