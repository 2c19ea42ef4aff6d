/*
 * hfstorage_target.c - cut the tensors of a model folder into pieces for ranks, and list the offsets of the pieces
 */
#include "libcommon/layout/hf/hf_target.h"

#include <stdlib.h>

#include <jansson.h>

#include "libcommon/layout/layout_write.h"

/* ---- pieces ---- */

/* Compute which rows of tensor i the rank stores. Returns false if the rank stores no part of it. */
static bool cut_rows(const struct hf_target *t, int i, int rank, struct hf_piece *out)
{
    const struct hf_tensor *x = &t->tensor[i];
    const int64_t rows = x->ndim ? x->shape[0] : 0, ranks = t->n_files, each = (rows + ranks - 1) / ranks;
    const uint64_t row = rows ? x->len / (uint64_t)rows : 0;

    if (rows == 0) {
        *out = (struct hf_piece){ .of = x, .file = rank, .rows = x->ndim ? 0 : 1, .len = x->len };
        return rank == i % t->n_files;
    }
    *out = (struct hf_piece){ .of = x, .file = rank, .row = rank * each };
    if (out->row >= rows)
        return false;
    out->rows = each < rows - out->row ? each : rows - out->row;
    out->at = (uint64_t)out->row * row;
    out->len = (uint64_t)out->rows * row;
    return true;
}

static int list_cut_pieces(const struct hf_target *t, int rank, struct hf_piece *out)
{
    struct hf_piece p;
    int n = 0;

    for (int i = 0; i < t->n_tensors; i++)
        if (cut_rows(t, i, rank, &p)) {
            if (out)
                out[n] = p;
            n++;
        }
    return n;
}

/* ---- metadata ---- */

/*
 * Returns a JSON text with the offset of each piece of a file, for example {"name": {"saved_offsets": [8, 0]}} for a
 * piece that begins at row 8. The text is allocated in the arena.
 */
static const char *offsets_text(const struct hf_target *t, int file, struct arena *a)
{
    json_t *info = json_object();
    const char *text;
    char *dumped;

    for (int i = 0; i < t->file[file].n; i++) {
        const struct hf_piece *p = &t->piece[t->file[file].first + i];
        json_t *offsets = json_array();

        for (int d = 0; d < p->of->ndim; d++)
            json_array_append_new(offsets, json_integer(d ? 0 : (json_int_t)p->row));
        json_object_set_new(info, p->of->name, json_pack("{s:o}", "saved_offsets", offsets));
    }
    dumped = json_dumps(info, JSON_PRESERVE_ORDER);
    text = arena_fmt(a, "%s", dumped);
    free(dumped);
    json_decref(info);
    return text;
}

static int list_shard_metadata(const struct hf_target *t, int file, struct arena *a, struct safetensors_text **out)
{
    struct safetensors_text *m = arena_alloc(a, 2 * sizeof *m);

    m[0] = (struct safetensors_text){ HFSTORAGE_VERSION, "1.0" };
    m[1] = (struct safetensors_text){ HFSTORAGE_OFFSETS, offsets_text(t, file, a) };
    *out = m;
    return 2;
}

void hfstorage_cut(struct hf_target *t, int ranks)
{
    static const struct hf_form form = { .name = "hfstorage", .metadata = list_shard_metadata };

    t->form = &form;
    t->n_files = ranks;
    t->file = arena_alloc(t->arena, (size_t)ranks * sizeof *t->file);
    t->n_pieces = 0;
    for (int r = 0; r < ranks; r++) {
        t->file[r] = (struct hf_file){ .first = t->n_pieces, .n = list_cut_pieces(t, r, NULL),
                                       .name = arena_fmt(t->arena, "shard-%05d-model-00001-of-00001.safetensors",
                                                         r + 1) };
        t->n_pieces += t->file[r].n;
    }
    t->piece = arena_alloc(t->arena, ((size_t)t->n_pieces + 1) * sizeof *t->piece);
    for (int r = 0; r < ranks; r++)
        list_cut_pieces(t, r, t->piece + t->file[r].first);
    for (int i = 0; i < t->n_tensors; i++)  /* messages about the tensor name the file that has its first piece */
        t->tensor[i].file = t->tensor[i].ndim && t->tensor[i].shape[0] ? 0 : i % ranks;
}

int describe_as_hfstorage(struct source *s, const struct write_request *q, struct report *notes,
                          struct layout_target *t, struct err *e)
{
    if (describe_as_hf(s, q, notes, t, e) < 0)
        return -1;
    hfstorage_cut(hf_target_of(t), q->ranks);
    return 0;
}
