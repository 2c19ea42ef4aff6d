/*
 * edit_entries.c - collect the entries of the result, and lay out the files that hold their new bytes
 */
#include "libcommon/layout/edit/dcp/edit_entries.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/dcp_write.h"
#include "libcommon/layout/edit/dcp/edit_chunks.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/plan/tmap_slice.h"

static void free_edit_entries(struct edit_entries *es)
{
    dcp_target_free(es->of);
    free(es->entry);
    free(es->seen);
    free(es);
}

int edit_entries_begin(struct edit *x, struct err *e)
{
    struct edit_entries *es;

    if (x->s->dcp->buckets) {
        err_data(e, x->s->path, ERR_NO_BYTE, "the states of the optimizer are in buckets (dp_reshardable), which "
                 "ckpt-edit does not write; write them by parameter first: reshape --to torchdist --ranks N IN OUT");
        return -1;
    }
    es = xcalloc(1, sizeof *es);
    x->entries = es;
    x->free_entries = free_edit_entries;
    es->of = dcp_target_same(x->s, e);
    es->met = es->of ? arena_alloc(x->arena, (size_t)es->of->table.n + 1) : NULL;
    return es->of ? 0 : -1;
}

/* ---- new bytes ---- */

const struct tmap *edit_box(struct arena *a, const struct tmap *m, int ndim, const int64_t *shape,
                            const struct dcp_chunk *c)
{
    const struct tensor_runs r = tensor_runs_of((uint64_t)dtype_size(m->dtype), ndim, shape, c->at, c->len);
    struct tmap_part *part = xcalloc(r.n + 1, sizeof *part);

    for (uint64_t k = 0; k < r.n; k++)
        part[k] = (struct tmap_part){ m, tensor_runs_place(&r, k), r.run };
    if (r.n == 0)                       /* the box has no elements */
        part[0].map = m;
    m = tmap_parts(a, part, r.n ? (int)r.n : 1);
    free(part);
    return m;
}

const struct tmap *edit_entry_box(struct edit *x, int was, const struct dcp_chunk *c)
{
    const struct dcp_entry *en = &x->s->dcp->entry[was];
    const struct dcp_part *part = &x->entries->of->part[was];
    const struct dcp_chunk inner = { .at = c->at + 1, .len = c->len + 1 };
    struct tmap_part *list;
    const struct tmap *m;

    if (!part->row || en->shape[0] == 0 || c->len[0] == 0)
        return edit_box(x->arena, part->map, en->ndim, en->shape, c);
    list = xcalloc((size_t)c->len[0], sizeof *list);
    for (int64_t r = 0; r < c->len[0]; r++) {
        m = edit_box(x->arena, part->row[c->at[0] + r].map, en->ndim - 1, en->shape + 1, &inner);
        list[r] = (struct tmap_part){ m, 0, m->len };
    }
    m = c->len[0] == 1 ? list[0].map : tmap_parts(x->arena, list, (int)c->len[0]);
    free(list);
    return m;
}

void edit_entry_room(struct edit *x, struct edit_entry *n, int n_chunks)
{
    struct dcp_chunk *chunk = arena_alloc(x->arena, ((size_t)n_chunks + 1) * sizeof *chunk);

    n->bytes = arena_alloc(x->arena, ((size_t)n_chunks + 1) * sizeof *n->bytes);
    if (n->en.n_chunks)
        memcpy(chunk, n->en.chunk, (size_t)(n->en.n_chunks < n_chunks ? n->en.n_chunks : n_chunks) * sizeof *chunk);
    n->en.chunk = chunk;
}

void edit_entry_set(struct edit *x, struct edit_entry *n, const struct pk *tree, const struct pt *pt)
{
    edit_entry_room(x, n, 1);
    n->en.chunk[0].place.number = -1;
    n->bytes[0] = (struct edit_bytes){ .tree = tree, .pt = pt, .tensor = -1 };
}

void edit_entry_see(struct edit *x, const struct edit_entry *n, const struct dcp_chunk *c, const struct edit_bytes *b)
{
    struct edit_entries *es = x->entries;
    struct edit_seen *s;
    ARRAY_ROOM(es->seen, es->cap_seen, es->n_seen + 1);
    s = &es->seen[es->n_seen++];
    *s = (struct edit_seen){ .name = n->en.name, .ndim = n->en.ndim, .shape = c->len,
                             .bytes = arena_alloc(x->arena, sizeof *s->bytes) };
    *s->bytes = *b;
    s->bytes->at = c->at;
}

void edit_entry_copy(struct edit *x, struct edit_entry *n)
{
    const struct dcp_part *part = &x->entries->of->part[n->was];

    if (!n->en.is_tensor) {
        edit_entry_set(x, n, part->tree, part->pt);
        return;
    }
    edit_entry_room(x, n, n->en.n_chunks);
    for (int k = 0; k < n->en.n_chunks; k++) {
        n->en.chunk[k].place.number = -1;
        n->bytes[k] = (struct edit_bytes){ .map = edit_entry_box(x, n->was, &n->en.chunk[k]), .dtype = n->en.dtype,
                                           .tensor = -1 };
    }
}

/* ---- the list ---- */

struct edit_entry *edit_entries_add(struct edit *x, int was)
{
    struct edit_entries *es = x->entries;
    struct edit_entry *n;

    ARRAY_ROOM(es->entry, es->cap, es->n + 1);
    n = &es->entry[es->n++];
    *n = (struct edit_entry){ .was = was, .en = x->s->dcp->entry[was] };
    if (es->met[was])
        edit_entry_copy(x, n);
    es->met[was] = true;
    return n;
}

void edit_entries_add_all(struct edit *x)
{
    for (int i = 0; i < x->s->dcp->n; i++)
        edit_entries_add(x, i);
}

/* ---- the files of the result ---- */

/*
 * Returns the name of the additional file: the first name that rank 0 would use and that is free. A name of a new rank
 * is not used, because readers derive the number of ranks from the names.
 */
static const char *new_name(struct edit *x)
{
    for (int i = 0;; i++) {
        const char *name = arena_fmt(x->arena, "%s__0_%d.distcp", x->s->dcp->folder, i);
        bool taken = false;

        for (int k = 0; k < x->n_files; k++)
            taken = taken || strcmp(x->file[k].name, name) == 0;
        if (!taken)
            return name;
    }
}

/* The files that get new bytes, and their layout so far. */
struct new_files {
    struct edit *x;
    struct names *known;                /* maps names of files to indices in file[]; "" is the additional file */
    int n, cap;
    struct new_file { const char *name; struct edit_made *made; int cap; } *file;
};

static struct new_file *file_for(struct new_files *w, const struct edit_bytes *b)
{
    struct edit *x = w->x;
    const char *key = b->file ? b->file : "";
    int i = names_find(w->known, key);

    if (i < 0) {
        const char *name = b->file ? b->file : new_name(x);
        struct edit_file *f = b->file ? edit_find_file(x, source_file(x->s, name)->file) : edit_add_file(x, name);

        ARRAY_ROOM(w->file, w->cap, w->n + 1);
        w->file[i = w->n++] = (struct new_file){ .name = name, .made = edit_make(x, f) };
        names_add(w->known, key, i);
    }
    return &w->file[i];
}

static int append_value_archive(struct edit *x, struct edit_made *made, const struct edit_bytes *b,
                                struct dcp_place *place, struct err *e)
{
    uint8_t *bytes = NULL;

    place->at = made->head.len;
    if (pt_build("archive", b->tree, b->pt, x->s->files, &bytes, &place->len, e) < 0)
        return -1;
    strbuf_add(&made->head, bytes, place->len);
    free(bytes);
    made->size = made->head.len;
    return 0;
}

static void add_chunk(struct edit *x, struct new_file *f, const struct dcp_entry *en, int k, const struct edit_bytes *b)
{
    struct edit_made *made = f->made;
    struct edit_chunk *c;
    struct folder_box box;
    struct arena *a;

    if (made->n_chunks == f->cap) {
        c = arena_alloc(x->arena, (2 * (size_t)f->cap + 16) * sizeof *c);
        if (f->cap)
            memcpy(c, made->chunk, (size_t)f->cap * sizeof *c);
        made->chunk = c;
        f->cap = 2 * f->cap + 16;
    }
    c = &made->chunk[made->n_chunks++];
    /* a chunk of a flattened tensor has one more dimension than the shape of the tensor */
    *c = (struct edit_chunk){ .name = en->name, .ndim = en->ndim + (en->n_whole > 0), .shape = en->chunk[k].len,
                              .of = b, .at = made->size };
    en->chunk[k].place.at = made->size;
    a = arena_new(0);                   /* separate, because there may be very many archives */
    box = edit_chunk_box(a, c);
    en->chunk[k].place.len = folder_box_size(&box);
    made->size += en->chunk[k].place.len;
    arena_free(a);
}

/* Lay out the files that have new bytes. Each file has its values first and then its chunks. */
static int lay_out_entry_files(struct edit *x, struct new_files *w, struct err *e)
{
    struct edit_entries *es = x->entries;

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < es->n; i++)
            for (int k = 0; es->entry[i].bytes && k < es->entry[i].en.n_chunks; k++) {
                struct dcp_entry *en = &es->entry[i].en;
                const struct edit_bytes *b = &es->entry[i].bytes[k];
                struct new_file *f;

                if (en->chunk[k].place.number >= 0 || (b->map != NULL) != (pass == 1))
                    continue;
                f = file_for(w, b);
                en->chunk[k].place.file = f->name;
                if (b->map)
                    add_chunk(x, f, en, k, b);
                else if (append_value_archive(x, f->made, b, &en->chunk[k].place, e) < 0)
                    return -1;
            }
    return 0;
}

/* List the unchanged chunks under the file .metadata. They are not written there, but only read for digests. */
static void add_seen(struct edit *x, struct edit_made *made)
{
    const struct edit_entries *es = x->entries;

    made->chunk = arena_alloc(x->arena, ((size_t)es->n_seen + 1) * sizeof *made->chunk);
    for (int i = 0; i < es->n_seen; i++)
        made->chunk[made->n_chunks++] = (struct edit_chunk){ .name = es->seen[i].name, .ndim = es->seen[i].ndim,
                                                             .shape = es->seen[i].shape, .of = es->seen[i].bytes,
                                                             .seen_only = true };
}

static int write_metadata(struct edit *x, struct edit_file *f, struct err *e)
{
    const struct edit_entries *es = x->entries;
    struct dcp_table t = *x->s->dcp;
    bool *changed = arena_alloc(x->arena, (size_t)es->n + 1);
    const uint64_t size = files_size(x->s->files, f->file);
    char *bytes = xmalloc(size + 1);
    struct edit_made *made = edit_make(x, f);
    int rc = files_read(x->s->files, f->file, 0, bytes, size, e);

    t.n = es->n;
    t.entry = arena_alloc(x->arena, ((size_t)es->n + 1) * sizeof *t.entry);
    for (int i = 0; i < es->n; i++) {
        t.entry[i] = es->entry[i].en;
        changed[i] = es->entry[i].changed;
    }
    if (rc == 0)
        rc = dcp_metadata_rewrite(&(struct dcp_pickle){ files_name(x->s->files, f->file), bytes, size, NULL, t.folder },
                                  &(struct dcp_change){ &t, changed }, &made->head, e);
    made->size = made->head.len;
    add_seen(x, made);
    free(bytes);
    return rc;
}

/* Drop the .distcp files that hold no bytes of any entry. */
static void drop_files(struct edit *x)
{
    const struct edit_entries *es = x->entries;
    struct names *needed = names_new(x->arena);

    for (int i = 0; i < es->n; i++)
        for (int k = 0; k < es->entry[i].en.n_chunks; k++) {
            const char *file = es->entry[i].en.chunk[k].place.file;

            if (file && names_find(needed, file) < 0)
                names_add(needed, file, i);
        }
    for (int i = 0; i < x->s->n_files; i++)
        if (str_ends(x->s->file[i].name, ".distcp") && names_find(needed, x->s->file[i].name) < 0)
            edit_drop(x, i);
}

/* Returns -1 with ERR_USAGE if two entries have the same name, because a parameter got the name of another entry. */
static int check_edit_entry_names(struct edit *x, struct err *e)
{
    const struct edit_entries *es = x->entries;
    struct names *known = names_new(x->arena);

    for (int i = 0; i < es->n; i++) {
        if (names_find(known, es->entry[i].en.name) >= 0) {
            err_usage(e, "two entries of %s would have the same name %s", x->s->path, es->entry[i].en.name);
            return -1;
        }
        names_add(known, es->entry[i].en.name, i);
    }
    return 0;
}

int edit_entries_resolve_files(struct edit *x, struct err *e)
{
    struct new_files w = { .x = x, .known = names_new(x->arena) };
    int rc = check_edit_entry_names(x, e);

    if (rc == 0)
        rc = lay_out_entry_files(x, &w, e);
    free(w.file);
    if (rc < 0)
        return -1;
    drop_files(x);
    return write_metadata(x, edit_find_file(x, dcp_source_file(x->s, DCP_METADATA)->file), e);
}
