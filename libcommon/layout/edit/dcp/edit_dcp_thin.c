/*
 * edit_dcp_thin.c - write .distcp files again: without the bytes that no entry uses, or with all entries (salvage)
 *
 * In a thinned file, the items that stay follow each other without gaps, and contain the same chunks.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/plan/tmap_slice.h"

/* What is known about a file of the source. */
struct thin_file {
    uint64_t used;                      /* number of bytes that its items use */
    bool rewrite;
};

static int chunk_file_number(const struct names *numbers, const struct dcp_chunk *c)
{
    return c->place.file ? names_find(numbers, c->place.file) : -1;
}

static void measure_used_item_bytes(struct edit *x, const struct names *numbers, struct thin_file *file)
{
    for (int i = 0; i < x->s->dcp->n; i++)
        for (int k = 0; k < x->s->dcp->entry[i].n_chunks; k++) {
            const struct dcp_chunk *c = &x->s->dcp->entry[i].chunk[k];

            file[chunk_file_number(numbers, c)].used += c->place.len;
        }
    for (int i = 0; i < x->s->n_files; i++)
        file[i].rewrite = str_ends(x->s->file[i].name, ".distcp") &&
                          file[i].used < files_size(x->s->files, x->s->file[i].file);
}

/*
 * Returns a map of the whole item at p, as raw bytes. Items of flattened tensors are copied in this way, because their
 * chunks are not boxes of the tensor's shape.
 */
static const struct tmap *archive_of(struct edit *x, const struct dcp_place *p)
{
    struct tmap *m = arena_alloc(x->arena, sizeof *m);
    struct tmap_slice *s = arena_alloc(x->arena, sizeof *s);
    const struct record rec = { .file = source_file(x->s, p->file)->file, .at = p->at, .len = p->len, .name = p->file };

    *s = (struct tmap_slice){ .len = p->len, .n_extents = 1, .extent = arena_alloc(x->arena, sizeof *s->extent) };
    *s->extent = (struct extent){ files_add_record(x->s->files, &rec), 0, p->len };
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = p->len, .n_slices = 1, .slice = s };
    return m;
}

/* Add entry i. Those of its chunks that are in rewritten files become new bytes of these files. */
static void thin_entry(struct edit *x, int i, const struct names *numbers, const struct thin_file *file)
{
    const struct dcp_entry *was = &x->s->dcp->entry[i];
    struct edit_entry *n = edit_entries_add(x, i);
    bool any = false;

    for (int k = 0; k < was->n_chunks; k++)
        any = any || file[chunk_file_number(numbers, &was->chunk[k])].rewrite;
    if (!any)
        return;
    if (was->n_whole)
        edit_entry_room(x, n, was->n_chunks);
    else
        edit_entry_copy(x, n);
    for (int k = 0; k < was->n_chunks; k++) {
        if (!file[chunk_file_number(numbers, &was->chunk[k])].rewrite) {
            n->en.chunk[k].place = was->chunk[k].place;
            continue;
        }
        if (was->n_whole)
            n->bytes[k] = (struct edit_bytes){ .map = archive_of(x, &was->chunk[k].place), .whole = true,
                                               .dtype = DTYPE_U8, .tensor = -1 };
        n->en.chunk[k].place = (struct dcp_place){ .number = -1, .moved_from = was->chunk[k].place.number + 1 };
        n->bytes[k].file = was->chunk[k].place.file;
    }
}

int edit_dcp_thin(struct edit *x, uint64_t *saved, struct err *e)
{
    const struct source *s = x->s;
    struct names *numbers = names_new(x->arena);
    struct thin_file *file = arena_alloc(x->arena, ((size_t)s->n_files + 1) * sizeof *file);
    int rc;

    *saved = 0;
    for (int i = 0; i < s->n_files; i++)
        names_add(numbers, s->file[i].name, i);
    if (edit_entries_begin(x, e) < 0)
        return -1;
    measure_used_item_bytes(x, numbers, file);
    for (int i = 0; i < s->dcp->n; i++)
        thin_entry(x, i, numbers, file);
    rc = edit_entries_resolve_files(x, e);
    for (int i = 0; i < s->n_files && rc == 0; i++) {
        const struct edit_file *f = edit_find_file(x, s->file[i].file);
        const uint64_t was = files_size(s->files, f->file);

        if (file[i].rewrite)
            *saved += f->drop ? was : was - (f->made->size < was ? f->made->size : was);
    }
    return rc;
}

/* ---- edit_dcp_rewrite() ---- */

/* Set len[] to the shape of the pieces into which the tensor of a flattened entry was cut. */
static void flat_piece(const struct dcp_entry *en, int64_t *len)
{
    for (int d = 0; d < en->n_whole; d++) {
        int64_t pieces = 1;

        for (int j = 0; j < en->n_chunks; j++)
            pieces = en->chunk[j].at[d] >= pieces ? en->chunk[j].at[d] + 1 : pieces;
        len[d] = en->whole[d] / pieces;
    }
}

/*
 * Returns a map of chunk k of a flattened entry. The chunk is a range of a flattened piece, and the piece is a box of
 * the tensor (dcp_flat.h).
 */
static const struct tmap *flat_range(struct edit *x, int i, int k, const int64_t *len)
{
    const struct dcp_entry *en = &x->s->dcp->entry[i];
    const struct dcp_chunk *c = &en->chunk[k];
    int64_t at[TENSOR_MAX_DIM];
    const struct dcp_chunk box = { .at = at, .len = len };
    const uint64_t size = (uint64_t)dtype_size(en->dtype);
    struct tmap_part part;

    for (int d = 0; d < en->n_whole; d++)
        at[d] = c->at[d] * len[d];
    part = (struct tmap_part){ edit_entry_box(x, i, &box), (uint64_t)c->at[en->n_whole] * size,
                               (uint64_t)c->len[en->n_whole] * size };
    return tmap_parts(x->arena, &part, 1);
}

/* Add entry i with new bytes for all of its chunks, in files with the old names. */
static void rewrite_entry(struct edit *x, int i)
{
    const struct dcp_entry *was = &x->s->dcp->entry[i];
    struct edit_entry *n = edit_entries_add(x, i);
    int64_t len[TENSOR_MAX_DIM];

    flat_piece(was, len);
    if (was->n_whole)
        edit_entry_room(x, n, was->n_chunks);
    else
        edit_entry_copy(x, n);
    for (int k = 0; k < was->n_chunks; k++) {
        const struct dcp_place *place = &was->chunk[k].place;

        if (was->n_whole)
            n->bytes[k] = (struct edit_bytes){ .map = flat_range(x, i, k, len), .dtype = was->dtype, .tensor = -1 };
        n->en.chunk[k].place = (struct dcp_place){ .number = -1, .moved_from = place->number + 1 };
        n->bytes[k].file = place->file && source_file(x->s, place->file) ? place->file : NULL;
    }
}

int edit_dcp_rewrite(struct edit *x, struct err *e)
{
    if (edit_entries_begin(x, e) < 0)
        return -1;
    for (int i = 0; i < x->s->dcp->n; i++)
        rewrite_entry(x, i);
    return edit_entries_resolve_files(x, e);
}
