/*
 * pack_runs.c - derive from tensor maps which bytes of files are numbers, and from which bytes they can be predicted
 *
 * The map of a parameter lists, slice by slice, the extents of files that hold it. Slice k of the weights and slice k
 * of the fp32 masters hold the same elements, so both are processed in parallel to find from which bytes of the masters
 * the bytes of the weights were rounded. Bytes from which others are predicted are not predicted themselves: all tied
 * and replicated copies are predicted from the first copy.
 */
#include "tools/ckpt-backup/place/pack_runs.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/zip.h"
#include "libcommon/layout/layouts.h"

/*
 * Minimum length in bytes of a predicted piece. For shorter pieces, the list of references needs more space than the
 * prediction saves.
 */
enum { GUESS_MIN_BYTES = 512 };

struct maker {
    struct pack_index *x;
    struct pack_records *records;
    const struct source *s;
    int *content_file;          /* [number of files of s]: index of the file in the content, or -1 */
    /* Runs of bytes of one type, in the order in which they were found. If maps overlap, the runs overlap. */
    struct pack_run *span;
    int n_spans, cap_spans;
    uint64_t *cut;              /* offsets in the current file at which a run must end, in ascending order */
    int n_cuts, cap_cuts;
};

/* ---- spans of maps ---- */

static int record_content_file(const struct maker *m, const struct record *r)
{
    return m->content_file[r->file];
}

static int dtype_pack_width(enum dtype t)
{
    int n = dtype_size(t);

    return n == 2 || n == 4 ? n : 1;
}

static struct pack_run *add_span(struct maker *m, const struct extent *x, enum dtype dtype)
{
    const struct record *r = files_record(m->s->files, x->record);
    int file = record_content_file(m, r), width = dtype_pack_width(dtype);

    if (file < 0 || x->len == 0)
        return NULL;
    ARRAY_ROOM(m->span, m->cap_spans, m->n_spans + 1);
    m->span[m->n_spans] = (struct pack_run){ .file = file, .at = r->at + x->at, .len = x->len,
                                             .width = x->len % (uint64_t)width ? 1 : width };
    return &m->span[m->n_spans++];
}

/* Make the span refer to bytes [from, from + len) of the slice. */
static void refer(struct maker *m, struct pack_run *span, const struct tmap_slice *slice, uint64_t from, uint64_t len)
{
    struct pack_index *x = m->x;

    span->first_ref = x->n_refs;
    for (int i = 0; i < slice->n_extents && len > 0; i++) {
        const struct extent *e = &slice->extent[i];
        const struct record *r = files_record(m->s->files, e->record);
        uint64_t skip = min_u64(from, e->len), n = min_u64(len, e->len - skip);

        from -= skip;
        if (n == 0)
            continue;
        ARRAY_ROOM(x->ref, x->cap_refs, x->n_refs + 1);
        x->ref[x->n_refs++] = (struct pack_ref){ record_content_file(m, r), r->at + e->at + skip, n };
        len -= n;
    }
    span->n_refs = x->n_refs - span->first_ref;
}

static enum pack_guess guess_of(enum dtype to, enum dtype from)
{
    if (to == from)
        return PACK_SAME;
    if (from != DTYPE_F32)
        return PACK_NO_GUESS;
    return to == DTYPE_BF16 ? PACK_ROUND_BF16 : to == DTYPE_F16 ? PACK_ROUND_F16 : PACK_NO_GUESS;
}

/*
 * Add a span for each extent of the slice. If `from` is not NULL, the values are predicted element by element from that
 * slice, whose type is `from_dtype`.
 */
static void add_slice_spans(struct maker *m, const struct tmap_slice *slice, enum dtype dtype,
                            const struct tmap_slice *from, enum dtype from_dtype)
{
    enum pack_guess guess = from ? guess_of(dtype, from_dtype) : PACK_NO_GUESS;
    uint64_t at = 0;

    /*
     * A slice with a window skips some bytes of its extents, so the offset of an element cannot be computed from its
     * index. Such a slice is not predicted.
     */
    if (guess != PACK_NO_GUESS &&
        (slice->window_row || from->window_row || from->len != guess_ref_bytes(guess, slice->len)))
        guess = PACK_NO_GUESS;
    for (int i = 0; i < slice->n_extents; i++) {
        uint64_t len = slice->extent[i].len;
        struct pack_run *span = add_span(m, &slice->extent[i], dtype);

        if (span && guess != PACK_NO_GUESS && len >= GUESS_MIN_BYTES) {
            span->guess = guess;
            refer(m, span, from, guess_ref_bytes(guess, at), guess_ref_bytes(guess, len));
        }
        at += len;
    }
}

/*
 * Add the spans of all slices of a map, which are predicted from the map `from`. If `from` is NULL, there are
 * predictions only if the map has replicas: all slices are predicted from the first one.
 */
static void add_map_spans(struct maker *m, const struct tmap *map, const struct tmap *from)
{
    bool copies = map->op == TMAP_REPLICAS;

    if (from && from->n_slices != map->n_slices && !(copies && from->op == TMAP_REPLICAS))
        from = NULL;
    for (int k = 0; k < map->n_slices; k++) {
        const struct tmap *by = from ? from : copies && k > 0 ? map : NULL;

        add_slice_spans(m, &map->slice[k], map->dtype, by ? &by->slice[copies ? 0 : k] : NULL,
                        by ? by->dtype : map->dtype);
    }
}

static void add_param_spans(struct maker *m, const struct param *p)
{
    for (int s = 0; s < STATE_N; s++) {
        const struct tmap *from = s == STATE_BF16 ? p->state[STATE_FP32] : NULL;

        if (p->state[s])
            add_map_spans(m, p->state[s], from);
        if (p->tied[s])
            add_map_spans(m, p->tied[s], from ? from : p->state[s]);
    }
}

/* ---- from spans to runs ---- */

static int by_pack_run_place(const void *va, const void *vb)
{
    const struct pack_run *a = va, *b = vb;

    if (a->file != b->file)
        return a->file - b->file;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->n_refs > b->n_refs) - (a->n_refs < b->n_refs);
}

/*
 * Append a run. If the last run has numbers of the same kind and ends where this one begins, without a cut between
 * them, it is extended instead.
 */
static void append_pack_run(struct maker *m, struct pack_run r, bool cut)
{
    struct pack_index *x = m->x;
    struct pack_run *last = x->n_runs ? &x->run[x->n_runs - 1] : NULL;

    if (r.len % (uint64_t)r.width)
        r.width = 1;
    if (last && !cut && last->file == r.file && last->guess == PACK_NO_GUESS && r.guess == PACK_NO_GUESS &&
        last->width == r.width) {
        last->len += r.len;
        return;
    }
    ARRAY_ROOM(x->run, x->cap_runs, x->n_runs + 1);
    x->run[x->n_runs++] = r;
}

/* Append a run. If there are cuts inside it, it is split at them. A piece that ends at a cut is not predicted. */
static void put_cut(struct maker *m, struct pack_run r, int *cut)
{
    while (r.len > 0) {
        bool here = false;
        struct pack_run piece = r;

        for (; *cut < m->n_cuts && m->cut[*cut] <= r.at; (*cut)++)
            here = m->cut[*cut] == r.at;
        if (*cut < m->n_cuts && m->cut[*cut] < r.at + r.len) {
            piece.len = m->cut[*cut] - r.at;
            piece.guess = r.guess = PACK_NO_GUESS;
            piece.n_refs = r.n_refs = 0;
        }
        append_pack_run(m, piece, here);
        r.at += piece.len;
        r.len -= piece.len;
    }
}

/*
 * Make runs for all bytes of a file: for its spans, from index `i` on, and for the bytes between them. Returns the
 * index of the first span of the next file.
 */
static int fill_file(struct maker *m, int file, int i)
{
    uint64_t at = 0, size = m->x->file[file].size_bytes;
    int cut = 0;

    for (; i < m->n_spans && m->span[i].file == file; i++) {
        struct pack_run r = m->span[i];

        if (r.at + r.len <= at || r.at >= size || r.len > size - r.at)
            continue;                   /* an earlier span covers it, or it is outside of the file */
        if (r.at < at) {
            r.len -= at - r.at;
            r.at = at;
            r.guess = PACK_NO_GUESS;
            r.n_refs = 0;
        }
        put_cut(m, (struct pack_run){ .file = file, .at = at, .len = r.at - at, .width = 1 }, &cut);
        put_cut(m, r, &cut);
        at = r.at + r.len;
    }
    put_cut(m, (struct pack_run){ .file = file, .at = at, .len = size - at, .width = 1 }, &cut);
    return i;
}

/* ---- records ---- */

static int by_cut_offset(const void *va, const void *vb)
{
    uint64_t a = *(const uint64_t *)va, b = *(const uint64_t *)vb;

    return (a > b) - (a < b);
}

static void add_pack_record(struct maker *m, int file, const struct zip_entry *z)
{
    struct pack_records *l = m->records;

    if (z->method != 0 || z->crc == 0 || z->size == 0)
        return;
    ARRAY_ROOM(l->record, l->cap, l->n + 1);
    l->record[l->n++] = (struct pack_record){ file, z->at, z->size, z->crc, xstrdup(z->name) };
    ARRAY_ROOM(m->cut, m->cap_cuts, m->n_cuts + 2);
    m->cut[m->n_cuts++] = z->at;
    m->cut[m->n_cuts++] = z->at + z->size;
}

/* Find the offsets at which the records of a .pt file begin and end. */
static void find_cuts(struct maker *m, const struct content *c, int file)
{
    char *path = path_join(c->path, c->file[file].name);
    struct files *f = files_new();
    struct err ignored = {0};
    struct zip *z = NULL;
    int i = -1;

    m->n_cuts = 0;
    if (str_ends(path, ".pt"))
        i = files_add_path(f, path, &ignored);
    if (i >= 0 && files_size(f, i) == c->file[file].size_bytes)
        z = zip_open(f, i, &ignored);
    for (int k = 0; z && k < zip_n(z); k++)
        add_pack_record(m, file, zip_entry(z, k));
    if (m->n_cuts)
        qsort(m->cut, (size_t)m->n_cuts, sizeof *m->cut, by_cut_offset);
    zip_close(z);
    files_free(f);
    free(path);
}

void pack_records_free(struct pack_records *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->record[i].name);
    free(l->record);
    *l = (struct pack_records){0};
}

/* ---- the whole checkpoint ---- */

static int find_content(const struct content *c, const char *name)
{
    int lo = 0, hi = c->n_files;

    while (lo < hi) {
        int mid = (lo + hi) / 2, d = strcmp(c->file[mid].name, name);

        if (d == 0)
            return mid;
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

static void find_spans(struct maker *m, const struct content *c)
{
    int n = files_count(m->s->files);

    m->content_file = xmalloc(((size_t)n + 1) * sizeof *m->content_file);
    for (int i = 0; i < n; i++)
        m->content_file[i] = -1;
    for (int i = 0; i < m->s->n_files; i++)
        m->content_file[m->s->file[i].file] = find_content(c, m->s->file[i].name);
    for (int i = 0; i < m->s->n_params; i++)
        add_param_spans(m, &m->s->param[i]);
    if (m->n_spans)
        qsort(m->span, (size_t)m->n_spans, sizeof *m->span, by_pack_run_place);
}

void pack_runs_make(struct pack_index *x, struct pack_records *records, const struct content *c, int threads)
{
    struct maker m = { .x = x, .records = records };
    struct source_opts so = { .threads = threads, .hf = true };
    struct report *r = report_new();
    struct err ignored = {0};
    struct source *s = source_open(c->path, &so, r, &ignored);
    int next = 0;

    x->file = xcalloc((size_t)c->n_files + 1, sizeof *x->file);
    for (x->n_files = 0; x->n_files < c->n_files; x->n_files++)
        x->file[x->n_files] = (struct pack_file){ .name = xstrdup(c->file[x->n_files].name),
                                                  .size_bytes = c->file[x->n_files].size_bytes };
    m.s = s;
    if (s)
        find_spans(&m, c);
    for (int i = 0; i < c->n_files; i++) {
        find_cuts(&m, c, i);
        next = fill_file(&m, i, next);
    }
    source_close(s);
    report_free(r);
    free(m.content_file);
    free(m.span);
    free(m.cut);
}
