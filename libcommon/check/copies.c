/*
 * copies.c - find pieces of parameters, and flat vectors, that are equal although they belong to different ranks
 *
 * Pieces are compared by a CRC of their first and last SAMPLE values. A flat vector is a whole record, so the CRC that
 * its file stores is compared. The states of one parameter are compared with each other in the same two ways.
 */
#include "libcommon/check/copies.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/plan/tmap.h"

enum { SAMPLE = 4096, FEWEST = 64, DISTINCT = 16, THREADS_DEFAULT = 16 };

struct equal_piece {
    struct extent x;
    uint32_t crc;
    uint64_t len;
};

/* ---- samples of pieces ---- */

/*
 * Returns true if the n elements have at least DISTINCT different values. Two pieces with so many different values are
 * not equal by chance.
 */
static bool varies(const uint8_t *b, uint64_t n, uint64_t size)
{
    const uint8_t *met[DISTINCT];
    int n_met = 0;

    for (uint64_t i = 0; i < n && n_met < DISTINCT; i++) {
        bool known = false;

        for (int k = 0; k < n_met && !known; k++)
            known = memcmp(met[k], b + i * size, size) == 0;
        if (!known)
            met[n_met++] = b + i * size;
    }
    return n_met == DISTINCT;
}

/*
 * Returns true if all rows are equal, such as the embedding rows of added tokens that were all initialised with the
 * mean.
 */
static bool rows_repeat(const uint8_t *b, uint64_t n, uint64_t size, uint64_t row)
{
    return row > 1 && (n <= row || memcmp(b, b + row * size, (n - row) * size) == 0);
}

/*
 * Set *out to the CRC of the piece's first and last values. `row` is the number of elements in a row of the tensor; 1
 * for a vector. Returns false if the piece is too short, cannot be read, or has so few different values that another
 * piece may be equal by chance.
 */
static bool hash_piece_sample(const struct source *s, const struct extent *x, uint64_t size, uint64_t row,
                              struct equal_piece *out)
{
    const uint64_t n = x->len / size < SAMPLE ? x->len / size : SAMPLE;
    uint8_t first[SAMPLE * 8], last[SAMPLE * 8];
    struct extent a = { x->record, x->at, n * size }, b = { x->record, x->at + x->len - n * size, n * size };
    struct err e = {0};

    if (n < FEWEST || size > 8 || files_read_extent(s->files, &a, first, &e) < 0 ||
        files_read_extent(s->files, &b, last, &e) < 0 || !varies(first, n, size) || rows_repeat(first, n, size, row))
        return false;
    *out = (struct equal_piece){ *x, crc_bytes(crc_bytes(0, first, n * size), last, n * size), x->len };
    return true;
}

static int by_content(const void *a, const void *b)
{
    const struct equal_piece *x = a, *y = b;

    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    if (x->crc != y->crc)
        return x->crc < y->crc ? -1 : 1;
    if (x->x.record != y->x.record)
        return x->x.record < y->x.record ? -1 : 1;
    return x->x.at < y->x.at ? -1 : x->x.at > y->x.at;
}

static void sort_pieces(struct equal_piece *p, int n)
{
    if (n > 1)
        qsort(p, (size_t)n, sizeof *p, by_content);
}

/*
 * Find two adjacent pieces, from index i on, that are equal and lie in different records (with `files`, in different
 * files). The pieces must be sorted. Returns the first of the two pieces, or NULL if there is no such pair.
 */
static const struct equal_piece *next_pair(const struct source *s, const struct equal_piece *p, int i, int n,
                                           bool files)
{
    for (; i + 1 < n; i++)
        if (p[i].len == p[i + 1].len && p[i].crc == p[i + 1].crc && p[i].x.record != p[i + 1].x.record &&
            (!files || files_record(s->files, p[i].x.record)->file != files_record(s->files, p[i + 1].x.record)->file))
            return &p[i];
    return NULL;
}

/* ---- findings ---- */

static const char *record_file_name(const struct source *s, int record)
{
    return files_name(s->files, files_record(s->files, record)->file);
}

static enum severity severity_of(const struct mismatch_opts *o, int st, enum severity of_weights)
{
    return st < STATE_EXP_AVG ? of_weights : o->accept ? SEV_WARNING : SEV_ERROR;
}

/* ---- pieces of a parameter ---- */

static bool has_pieces(const struct tmap *m)
{
    int n = 0;

    for (int k = 0; m && m->op != TMAP_REPLICAS && k < m->n_slices; k++)
        n += m->slice[k].n_extents;
    return n > 1;
}

/* The sampled pieces of one state of a parameter. */
struct state_pieces {
    struct equal_piece *piece;
    int n;
};
/* The sampled pieces of one parameter, of all its states. */
struct all_pieces { struct state_pieces of[STATE_N]; };

/* Sample the pieces of one parameter. The list of a state that consists of a single piece remains empty. */
static void sample_pieces(const struct source *s, const struct param *p, struct all_pieces *out)
{
    const uint64_t row = p->ndim > 1 ? (uint64_t)p->shape[p->ndim - 1] : 1;

    for (int st = 0; st < STATE_N && !p->shared_with; st++) {
        const struct tmap *m = p->state[st];
        const uint64_t size = m ? (uint64_t)dtype_size(m->dtype) : 0;
        struct state_pieces *v = &out->of[st];
        size_t cap = 0;

        if (!size || !has_pieces(m))
            continue;
        for (int k = 0; k < m->n_slices; k++)
            for (int i = 0; i < m->slice[k].n_extents; i++) {
                ARRAY_ROOM(v->piece, cap, (size_t)v->n + 1);
                v->n += hash_piece_sample(s, &m->slice[k].extent[i], size, row, &v->piece[v->n]);
            }
    }
}

/* Returns the pieces of every parameter. The caller frees them with free_pieces(). */
static struct all_pieces *sample_all_pieces(const struct source *s, const struct mismatch_opts *o)
{
    struct all_pieces *v = xcalloc((size_t)s->n_params + 1, sizeof *v);

#pragma omp parallel for schedule(dynamic) num_threads(o->threads > 0 ? o->threads : THREADS_DEFAULT)
    for (int i = 0; i < s->n_params; i++)
        sample_pieces(s, &s->param[i], &v[i]);
    return v;
}

static void free_pieces(struct all_pieces *v, int n)
{
    for (int i = 0; i < n; i++)
        for (int st = 0; st < STATE_N; st++)
            free(v[i].of[st].piece);
    free(v);
}

/* Find two equal pieces of a state, and copy them to pair. Returns false if there are none. */
static bool find_equal_pieces(const struct source *s, const struct state_pieces *v, struct equal_piece pair[2])
{
    struct equal_piece *sorted = xmalloc((size_t)v->n * sizeof *sorted + 1);
    const struct equal_piece *found;

    if (v->n > 0)
        memcpy(sorted, v->piece, (size_t)v->n * sizeof *sorted);
    sort_pieces(sorted, v->n);
    found = next_pair(s, sorted, 0, v->n, false);
    if (found)
        memcpy(pair, found, 2 * sizeof *pair);
    free(sorted);
    return found != NULL;
}

/*
 * The result of comparing the pieces of one parameter with each other. Equal weights together with equal moments do not
 * prove that the file of one rank was copied over the file of another. The reason is that slices of tensor-parallel
 * ranks that began with the same random values stay equal, in weights and moments, throughout the training.
 */
struct piece_finding {
    /* the state of the equal pair; moments are preferred to weights; -1: no two pieces are equal */
    int state;
    bool comparable;            /* at least two pieces have values by which a copy would be detected */
    bool weights_differ;        /* two pieces of the moments are equal, while no two pieces of the weights are equal */
    struct equal_piece pair[2];
};

static struct piece_finding inspect_pieces(const struct source *s, const struct all_pieces *v)
{
    struct piece_finding f = { .state = -1 };
    struct equal_piece of_weights[2];

    for (int st = STATE_N - 1; st >= 0 && f.state < 0; st--) {
        f.state = find_equal_pieces(s, &v->of[st], f.pair) ? st : -1;
        f.comparable |= v->of[st].n > 1;
    }
    if (f.state >= STATE_EXP_AVG) {
        f.weights_differ = true;
        for (int st = 0; st < STATE_EXP_AVG; st++)
            if (find_equal_pieces(s, &v->of[st], of_weights))
                f.weights_differ = false;
    }
    return f;
}

/*
 * Returns true if the pieces of a parameter are the parts of data-parallel ranks and the parameter has no moments. This
 * is the case for a frozen parameter of ZeRO-3. Such parts of weights cannot have begun with the same random values.
 */
static bool is_cut_without_moments(const struct source *s, const struct param *p)
{
    return source_cuts_weights_by_data_ranks(s) && !p->state[STATE_EXP_AVG] && !p->state[STATE_EXP_AVG_SQ];
}

/*
 * Report equal pieces, once per file. Equal moments are reported in two cases: the same pieces of the weights differ,
 * or every parameter with comparable pieces has equal pieces. Equal pieces of frozen parameters of ZeRO-3 are an error
 * if every such parameter has equal pieces, and otherwise a warning.
 */
static void check_pieces(const struct source *s, const struct all_pieces *v, const struct mismatch_opts *o,
                         struct report *r)
{
    struct piece_finding *found = xcalloc((size_t)s->n_params + 1, sizeof *found);
    bool *reported = xcalloc((size_t)files_count(s->files) + 1, sizeof *reported), all = true, all_frozen = true;

    for (int i = 0; i < s->n_params; i++) {
        found[i] = inspect_pieces(s, &v[i]);
        all &= !found[i].comparable || found[i].state >= 0;
        all_frozen &= !is_cut_without_moments(s, &s->param[i]) || !found[i].comparable || found[i].state >= 0;
    }
    for (int i = 0; i < s->n_params; i++) {
        const struct piece_finding *f = &found[i];
        const struct extent *a = &f->pair[0].x, *b = &f->pair[1].x;
        const int file = f->state < 0 ? 0 : files_record(s->files, b->record)->file;
        enum severity weights;

        if (f->state < 0 || reported[file] || (f->state >= STATE_EXP_AVG && !f->weights_differ && !all))
            continue;
        reported[file] = true;
        weights = !is_cut_without_moments(s, &s->param[i]) ? SEV_NOTE
                : all_frozen && !o->accept ? SEV_ERROR : SEV_WARNING;
        report_add(r, severity_of(o, f->state, weights), "other_rank", files_name(s->files, file),
                   files_record(s->files, b->record)->at + b->at, s->param[i].name,
                   "%s: a piece equals that of another rank in %s, so the data of one rank are stored twice",
                   state_name((enum state)f->state), record_file_name(s, a->record));
    }
    free(reported);
    free(found);
}

/* ---- pieces of two layers ---- */

/*
 * A sampled piece with its parameter and state. If the file of one pipeline stage was copied over the file of another,
 * pieces of one layer are equal to pieces of another layer. A layer that was duplicated on purpose is equal to the
 * original as a whole. Equal pieces of two parameters are therefore an error only if the two parameters also have a
 * piece that differs.
 */
struct layer_piece {
    struct equal_piece is;
    int param, state;
};

/*
 * List the pieces of all parameters, in the order of the parameters. Returns the number of pieces; the caller frees
 * *out.
 */
static int list_layer_pieces(const struct source *s, const struct all_pieces *v, struct layer_piece **out)
{
    size_t cap = 0;
    int n = 0;

    *out = NULL;
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            for (int k = 0; k < v[i].of[st].n; k++) {
                ARRAY_ROOM(*out, cap, (size_t)n + 1);
                (*out)[n++] = (struct layer_piece){ v[i].of[st].piece[k], i, st };
            }
    return n;
}

static int by_state_and_content(const void *a, const void *b)
{
    const struct layer_piece *x = *(const struct layer_piece *const *)a, *y = *(const struct layer_piece *const *)b;

    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    if (x->is.len != y->is.len || x->is.crc != y->is.crc)
        return by_content(&x->is, &y->is);
    return x < y ? -1 : x > y;
}

/*
 * Returns true if the parameters of the pieces x and y are cut in the same way and also have a piece that differs. x
 * and y must be in the list `all`.
 */
static bool is_partly_equal(const struct layer_piece *all, int n, const struct layer_piece *x,
                            const struct layer_piece *y)
{
    while (x > all && x[-1].param == x->param && x[-1].state == x->state)
        x--;
    while (y > all && y[-1].param == y->param && y[-1].state == y->state)
        y--;
    for (const struct layer_piece *a = x, *b = y;; a++, b++) {
        const bool more_a = a < all + n && a->param == x->param && a->state == x->state;
        const bool more_b = b < all + n && b->param == y->param && b->state == y->state;

        if (!more_a || !more_b)
            return false;
        if (a->is.len == b->is.len && a->is.crc != b->is.crc)
            return true;
    }
}

/* Report each piece of a parameter that is equal to a piece of another parameter of the same shape, once per file. */
static void check_layers(const struct source *s, const struct all_pieces *v, const struct mismatch_opts *o,
                         struct report *r)
{
    struct layer_piece *all, **sorted;
    const int n = list_layer_pieces(s, v, &all);
    bool *reported = xcalloc((size_t)files_count(s->files) + 1, sizeof *reported);

    sorted = xcalloc((size_t)n + 1, sizeof *sorted);
    for (int i = 0; i < n; i++)
        sorted[i] = &all[i];
    if (n > 1)
        qsort(sorted, (size_t)n, sizeof *sorted, by_state_and_content);
    for (int i = 0; i + 1 < n; i++) {
        const struct layer_piece *x = sorted[i], *y = sorted[i + 1];
        const struct param *p = &s->param[x->param], *q = &s->param[y->param];
        const int file = files_record(s->files, y->is.x.record)->file;

        if (x->state != y->state || x->is.len != y->is.len || x->is.crc != y->is.crc || p == q || reported[file] ||
            !shape_equal(p->ndim, p->shape, q->ndim, q->shape) || !is_partly_equal(all, n, x, y))
            continue;
        reported[file] = true;
        report_add(r, severity_of(o, x->state, SEV_WARNING), "other_rank", files_name(s->files, file),
                   files_record(s->files, y->is.x.record)->at + y->is.x.at, q->name,
                   "%s: a piece equals one of %s in %s, but other pieces of the two differ, so the data of one rank "
                   "are stored twice", state_name((enum state)x->state), p->name, record_file_name(s, x->is.x.record));
    }
    free(sorted);
    free(reported);
    free(all);
}

/* ---- flat vectors ---- */

/* Returns true if the file with number `file` belongs to the same pipeline and tensor-parallel rank as `of`. */
static bool is_of(const struct source *s, int file, const struct source_file *of)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].file == file)
            return s->file[i].pp == of->pp && s->file[i].tp == of->tp;
    return false;
}

/*
 * Collect the records of state `st` that hold pieces of several parameters. Only files of the same pipeline and
 * tensor-parallel rank as `of` are searched. Returns the number of records.
 */
static int flat_records(const struct source *s, int st, const struct source_file *of, struct equal_piece *out)
{
    const int most = files_n_records(s->files);
    int *users = xcalloc((size_t)most + 1, sizeof *users), n = 0;

    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *m = s->param[i].shared_with ? NULL : s->param[i].state[st];

        if (!m || (m->op == TMAP_REPLICAS && m->n_slices > 1))
            continue;
        for (int k = 0; k < m->n_slices; k++)
            for (int j = 0; j < m->slice[k].n_extents; j++)
                users[m->slice[k].extent[j].record]++;
    }
    for (int i = 0; i < most; i++) {
        const struct record *rec = files_record(s->files, i);

        if (users[i] > 1 && rec->has_crc && is_of(s, rec->file, of))
            out[n++] = (struct equal_piece){ { i, 0, rec->len }, rec->crc, rec->len };
    }
    free(users);
    return n;
}

/* A piece of a parameter in a record: its offset in the record, and its offset in the parameter's slice. */
struct vector_part {
    int param, slice;
    uint64_t in_slice, at, len;
};

/*
 * List the pieces of state `st` that a record holds, in the order of the parameters. Returns the number of pieces. The
 * caller frees *out.
 */
static int list_parts(const struct source *s, int st, int record, struct vector_part **out)
{
    size_t cap = 0;
    int n = 0;

    *out = NULL;
    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *m = s->param[i].shared_with ? NULL : s->param[i].state[st];

        for (int k = 0; m && k < m->n_slices; k++) {
            uint64_t in_slice = 0;

            for (int j = 0; j < m->slice[k].n_extents; j++) {
                const struct extent *x = &m->slice[k].extent[j];

                if (x->record == record) {
                    ARRAY_ROOM(*out, cap, (size_t)n + 1);
                    (*out)[n++] = (struct vector_part){ i, k, in_slice, x->at, x->len };
                }
                in_slice += x->len;
            }
        }
    }
    return n;
}

/* Returns true if the 16-bit weights of two parameters can be read and are equal. */
static bool has_equal_weights(const struct source *s, const struct param *p, const struct param *q)
{
    enum { CHUNK = 1 << 20 };
    const struct tmap *a = p->state[STATE_BF16], *b = q->state[STATE_BF16];
    char *x = xmalloc(CHUNK), *y = xmalloc(CHUNK);
    bool equal = a && b && a->dtype == b->dtype && a->len == b->len &&
                 shape_equal(p->ndim, p->shape, q->ndim, q->shape);

    for (uint64_t at = 0; equal && at < a->len; at += CHUNK) {
        const struct tmap_range r = { 0, at, a->len - at < CHUNK ? a->len - at : CHUNK };
        struct err ignored = {0};

        equal = tmap_read(a, s->files, r, x, &ignored) == 0 && tmap_read(b, s->files, r, y, &ignored) == 0 &&
                memcmp(x, y, r.len) == 0;
    }
    free(x);
    free(y);
    return equal;
}

/*
 * Returns true if two vectors are equal because a layer occurs several times. This is true if each piece of one vector
 * has a counterpart in the other vector: a piece of another parameter at the same place of the vector and of its slice.
 * The weights of the two parameters, which other files store, must be equal, too. Pieces of the same parameter are
 * never equal for this reason.
 */
static bool is_repeated_layer(const struct source *s, int st, int record_a, int record_b)
{
    struct vector_part *a, *b;
    const int n = list_parts(s, st, record_a, &a), n_b = list_parts(s, st, record_b, &b);
    bool explained = n > 0 && n == n_b;

    for (int i = 0; i < n && explained; i++) {
        explained = false;
        for (int j = 0; j < n_b && !explained; j++)
            explained = a[i].at == b[j].at && a[i].len == b[j].len && a[i].slice == b[j].slice &&
                        a[i].in_slice == b[j].in_slice && a[i].param != b[j].param &&
                        has_equal_weights(s, &s->param[a[i].param], &s->param[b[j].param]);
    }
    free(a);
    free(b);
    return explained;
}

/*
 * Report flat vectors of two data-parallel ranks that have the same CRC. Vectors whose values hardly vary are not
 * reported, nor are vectors that are equal because of repeated layers. Two vectors in the same file are not compared,
 * because repeated layers may be equal.
 */
static void check_vectors_of(const struct source *s, const struct source_file *of, const struct mismatch_opts *o,
                             struct report *r)
{
    struct equal_piece *piece = xcalloc((size_t)files_n_records(s->files) + 1, sizeof *piece), values;

    for (int st = STATE_FP32; st < STATE_N; st++) {
        const int n = flat_records(s, st, of, piece);
        const struct equal_piece *p;

        sort_pieces(piece, n);
        p = next_pair(s, piece, 0, n, true);
        while (p && (!hash_piece_sample(s, &p->x, sizeof(float), 1, &values) ||
                     is_repeated_layer(s, st, p[0].x.record, p[1].x.record)))
            p = next_pair(s, piece, (int)(p - piece) + 1, n, true);
        if (p)
            report_add(r, severity_of(o, st, SEV_WARNING), "other_rank", record_file_name(s, p[1].x.record),
                       ERR_NO_BYTE, NULL,
                       "%s: the vector of record %s equals that of another rank in %s, so the data of one rank are "
                       "stored twice",
                       state_name((enum state)st), files_record(s->files, p[1].x.record)->name,
                       record_file_name(s, p[0].x.record));
    }
    free(piece);
}

static void check_vectors(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].cls == FILE_OPTIMIZER && s->file[i].dp == 0)
            check_vectors_of(s, &s->file[i], o, r);
}

/* ---- states of a parameter ---- */

/* What has been found in the elements of a piece so far. */
struct piece_values {
    uint64_t size;                      /* of an element, in bytes; at most 8 */
    uint8_t first[8];
    /* elements were added; at least two of them differ; at least one is neither 0 nor -0 */
    bool any, differ, nonzero;
};

static void add_piece_values(struct piece_values *v, const uint8_t *b, uint64_t len)
{
    if (!v->any)
        memcpy(v->first, b, v->size);
    v->any = true;
    for (uint64_t at = 0; at + v->size <= len && !(v->differ && v->nonzero); at += v->size) {
        v->differ |= memcmp(b + at, v->first, v->size) != 0;
        for (uint64_t i = 0; i < v->size; i++)
            v->nonzero |= (b[at + i] & 0x7f) != 0;
    }
}

/*
 * Returns true if equal pieces with these values show that one is a copy of the other. The values must not be all zero
 * or all the same.
 */
static bool shows_a_copy(const struct piece_values *v)
{
    return v->differ && v->nonzero;
}

/* Returns true if both extents are whole records, and these records have the same CRC. */
static bool are_equal_records(const struct source *s, const struct extent *x, const struct extent *y)
{
    const struct record *a = files_record(s->files, x->record), *b = files_record(s->files, y->record);

    return a->has_crc && b->has_crc && a->crc == b->crc && a->len == b->len && x->at == y->at;
}

/* Read the bytes [at, at + len) of an extent. Returns false if they cannot be read. */
static bool read_part(const struct source *s, const struct extent *x, uint64_t at, uint64_t len, uint8_t *buf)
{
    struct err ignored = {0};

    return files_read_extent(s->files, &(struct extent){ x->record, x->at + at, len }, buf, &ignored) == 0;
}

/* Add the values of the extent to *v. Stops when the values show a copy, or cannot be read. */
static void add_all_values(const struct source *s, const struct extent *x, struct piece_values *v)
{
    uint8_t b[SAMPLE * 4];

    for (uint64_t at = 0; at < x->len && !shows_a_copy(v); at += sizeof b) {
        const uint64_t n = min_u64(sizeof b, x->len - at);

        if (!read_part(s, x, at, n, b))
            return;
        add_piece_values(v, b, n);
    }
}

/*
 * Returns true if two pieces of the same length are equal, and their values show that one is a copy of the other. An
 * element has `size` bytes. First the starts and the ends of the pieces are compared. If their values do not show a
 * copy, the whole pieces are compared by the CRCs of their records.
 */
static bool is_same_piece(const struct source *s, const struct extent *x, const struct extent *y, uint64_t size)
{
    const uint64_t n = min_u64(SAMPLE * 4, x->len);
    uint8_t a[SAMPLE * 4], b[SAMPLE * 4];
    struct piece_values v = { .size = size };

    for (uint64_t at = 0, i = 0; i < 2; i++, at = x->len - n) {
        if (!read_part(s, x, at, n, a) || !read_part(s, y, at, n, b) || memcmp(a, b, n) != 0)
            return false;
        add_piece_values(&v, a, n);
    }
    if (!shows_a_copy(&v) && are_equal_records(s, x, y))
        add_all_values(s, x, &v);
    return shows_a_copy(&v);
}

/*
 * Find a piece of x that is the same as the piece of y at the same place. Returns the first such piece of y, or NULL.
 * Maps that are cut in different ways are not compared.
 */
static const struct extent *same_state_piece(const struct source *s, const struct tmap *x, const struct tmap *y)
{
    enum { SHORTEST = 16 };             /* bytes; fewer may be equal by chance */
    const uint64_t size = (uint64_t)dtype_size(x->dtype);

    if (size == 0 || size > 8 || x->dtype != y->dtype || x->len != y->len || x->n_slices != y->n_slices)
        return NULL;
    for (int k = 0; k < x->n_slices; k++)
        for (int i = 0; i < x->slice[k].n_extents && x->slice[k].n_extents == y->slice[k].n_extents; i++) {
            const struct extent *a = &x->slice[k].extent[i], *b = &y->slice[k].extent[i];

            if (a->len >= SHORTEST && a->len == b->len && is_same_piece(s, a, b, size))
                return b;
        }
    return NULL;
}

/* Two states of a parameter that have the same piece. `piece` is this piece, or NULL if there are no such states. */
struct same_states {
    const struct extent *piece;
    enum state first, second;
};

static struct same_states find_same_states(const struct source *s, const struct param *p)
{
    struct same_states f = {0};

    for (int i = 0; i < TRAINED_STATES && !p->shared_with; i++)
        for (int k = i + 1; k < TRAINED_STATES && !f.piece; k++) {
            f.first = trained_states[i];
            f.second = trained_states[k];
            if (p->state[f.first] && p->state[f.second])
                f.piece = same_state_piece(s, p->state[f.first], p->state[f.second]);
        }
    return f;
}

/* Report parameters that have two equal states, once per file. */
static void check_states(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    struct same_states *found = xcalloc((size_t)s->n_params + 1, sizeof *found);
    bool *reported = xcalloc((size_t)files_count(s->files) + 1, sizeof *reported);

#pragma omp parallel for schedule(dynamic) num_threads(o->threads > 0 ? o->threads : THREADS_DEFAULT)
    for (int i = 0; i < s->n_params; i++)
        found[i] = find_same_states(s, &s->param[i]);
    for (int i = 0; i < s->n_params; i++) {
        const struct record *rec = found[i].piece ? files_record(s->files, found[i].piece->record) : NULL;

        if (!rec || reported[rec->file])
            continue;
        reported[rec->file] = true;
        report_add(r, o->accept ? SEV_WARNING : SEV_ERROR, "other_rank", files_name(s->files, rec->file),
                   rec->at + found[i].piece->at, s->param[i].name,
                   "%s equals %s, so the data of one state are stored twice, and those of the other are lost",
                   state_name(found[i].second), state_name(found[i].first));
    }
    free(reported);
    free(found);
}

void copies_check(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    if (source_stores_pieces_once(s)) {
        struct all_pieces *v = sample_all_pieces(s, o);

        check_pieces(s, v, o, r);
        if (source_has_entries(s))
            check_layers(s, v, o, r);
        free_pieces(v, s->n_params);
    }
    if (source_has_flat_partitions(s))
        check_vectors(s, o, r);
    check_states(s, o, r);
}
