/* tmap.c - walk over a tensor map piece by piece, and read parts of a tensor */
#include "libcommon/plan/tmap.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* ---- pieces ---- */

/* Returns the number of bytes of the cursor's slice that precede logical byte `at` of an interleaved tensor. */
static uint64_t slice_bytes_before(const struct tmap_cursor *c, uint64_t at)
{
    uint64_t part = c->map->slice[c->slice].row_part, in_row = at % c->map->row;

    in_row = in_row > c->column ? min_u64(in_row - c->column, part) : 0;
    return at / c->map->row * part + in_row;
}

/* Returns the number of bytes of a box that precede byte `at` of the tensor. */
static uint64_t box_bytes_before(const struct tmap_box *b, uint64_t at)
{
    uint64_t before = 0;

    for (int i = 0; i < b->n; i++) {
        const struct tmap_level *l = &b->level[i];
        uint64_t step = at / l->stride;

        if (step < l->at)
            break;
        before += min_u64(step - l->at, l->len) * l->inside;
        if (step >= l->at + l->len)
            break;
        at %= l->stride;
    }
    return before;
}

/* Returns the offset in the tensor of byte number `at` of a box. */
static uint64_t box_place(const struct tmap_box *b, uint64_t at)
{
    uint64_t place = 0;

    for (int i = 0; i < b->n; i++) {
        place += (b->level[i].at + at / b->level[i].inside) * b->level[i].stride;
        at %= b->level[i].inside;
    }
    return place;
}

/* Compute the part of slice c->slice that is in the requested range. */
static void enter_slice(struct tmap_cursor *c)
{
    const struct tmap_slice *s = &c->map->slice[c->slice];
    uint64_t end = c->from + c->len;

    c->extent = 0;
    c->extent_at = 0;
    switch (c->map->op) {
    case TMAP_CONCAT:
        c->at = min_u64(c->from > c->column ? c->from - c->column : 0, s->len);
        c->end = min_u64(end > c->column ? end - c->column : 0, s->len);
        break;
    case TMAP_INTERLEAVE:
        c->at = slice_bytes_before(c, c->from);
        c->end = slice_bytes_before(c, end);
        break;
    case TMAP_REPLICAS: case TMAP_SUM:
        c->at = c->from;
        c->end = end;
        break;
    case TMAP_BOXES:
        c->at = box_bytes_before(s->box, c->from);
        c->end = box_bytes_before(s->box, end);
        break;
    }
}

static void leave_slice(struct tmap_cursor *c)
{
    const struct tmap_slice *s = &c->map->slice[c->slice++];

    c->column += c->map->op == TMAP_CONCAT ? s->len : s->row_part;
}

void tmap_begin(struct tmap_cursor *c, const struct tmap *m, uint64_t from, uint64_t len, int only)
{
    assert(from <= m->len && len <= m->len - from);
    *c = (struct tmap_cursor){ .map = m, .from = from, .len = len };
    c->end_slice = len == 0 ? 0 : only < 0 ? m->n_slices : only + 1;
    while (c->slice < only)
        leave_slice(c);
    if (c->slice < c->end_slice)
        enter_slice(c);
}

/*
 * Make a piece of at most n bytes of a box. The piece consists of whole runs that are evenly spaced, or of a part of
 * one run.
 */
static void shape_box(const struct tmap_cursor *c, uint64_t n, struct tmap_piece *p)
{
    const struct tmap_box *b = c->map->slice[c->slice].box;
    uint64_t run = b->level[b->n - 1].len, in_run = c->at % run;
    const struct tmap_level *above = b->n > 1 ? &b->level[b->n - 2] : NULL;
    uint64_t left = above ? above->len - c->at / run % above->len : 1;

    p->dst = box_place(b, c->at) - c->from;
    if (in_run || !above || n < 2 * run || left < 2) {
        p->run = p->stride = min_u64(n, run - in_run);
        return;
    }
    p->run = run;
    p->stride = above->stride;
    p->n = min_u64(n / run, left);
}

/*
 * Make a piece of the next n bytes of the slice, which are contiguous in the file. The piece consists of whole runs,
 * one in each row, or of a part of one run.
 */
static void shape_piece(const struct tmap_cursor *c, uint64_t n, struct tmap_piece *p)
{
    uint64_t part = c->map->slice[c->slice].row_part, row = c->map->row, in_run;

    p->run = p->stride = n;
    p->n = 1;
    if (c->map->op == TMAP_CONCAT) {
        p->dst = c->column + c->at - c->from;
        return;
    }
    if (c->map->op == TMAP_BOXES) {
        shape_box(c, n, p);
        return;
    }
    if (tmap_overlays(c->map) || part == row) {
        p->dst = c->at - c->from;
        return;
    }
    in_run = c->at % part;
    p->dst = c->at / part * row + c->column + in_run - c->from;
    if (in_run || n < 2 * part) {
        p->run = p->stride = min_u64(n, part - in_run);
        return;
    }
    p->run = part;
    p->stride = row;
    p->n = n / part;
}

/* Returns the offset of byte `at` of a slice within the slice's concatenated extents. */
static uint64_t in_extents(const struct tmap_slice *s, uint64_t at)
{
    return s->window_row ? at / s->window_len * s->window_row + s->window_at + at % s->window_len : at;
}

bool tmap_next(struct tmap_cursor *c, uint64_t most, struct tmap_piece *p)
{
    const struct tmap_slice *s;
    uint64_t n, place;

    while (c->slice < c->end_slice && c->at == c->end) {
        leave_slice(c);
        if (c->slice < c->end_slice)
            enter_slice(c);
    }
    if (c->slice >= c->end_slice)
        return false;
    s = &c->map->slice[c->slice];
    place = in_extents(s, c->at);
    while (place - c->extent_at >= s->extent[c->extent].len) {
        c->extent_at += s->extent[c->extent++].len;
        assert(c->extent < s->n_extents);
    }
    n = c->extent_at + s->extent[c->extent].len - place;
    if (s->window_row)
        n = min_u64(n, s->window_len - c->at % s->window_len);
    n = min_u64(min_u64(n, c->end - c->at), most);
    p->slice = c->slice;
    p->at = c->at;
    shape_piece(c, n, p);
    p->src = (struct extent){ .record = s->extent[c->extent].record,
                              .at = s->extent[c->extent].at + place - c->extent_at, .len = p->n * p->run };
    c->at += p->src.len;
    return true;
}

int tmap_gather(const struct tmap *m, uint64_t from, uint64_t len, int only,
                int (*fn)(void *ctx, const struct tmap_piece *p), void *ctx)
{
    struct tmap_cursor c;
    struct tmap_piece p;
    int rc = 0;

    tmap_begin(&c, m, from, len, only);
    while (rc == 0 && tmap_next(&c, UINT64_MAX, &p))
        rc = fn(ctx, &p);
    return rc;
}

/* ---- reading a part ---- */

enum { BOUNCE_BYTES = 1 << 20 };

/*
 * Read a range of a map. If the slices of the map overlay each other, slice r.replica is read. Otherwise r.replica must
 * be -1.
 */
static int read_tmap_slice(const struct tmap *m, struct files *f, struct tmap_range r, void *buf,
                           const struct tmap_watch *watch, struct err *e)
{
    bool strided = tmap_scatters(m);
    uint8_t *out = buf, *bounce = strided ? xmalloc(BOUNCE_BYTES) : NULL;
    struct tmap_cursor c;
    struct tmap_piece p;
    int rc = 0;

    tmap_begin(&c, m, r.from, r.len, r.replica);
    while (rc == 0 && tmap_next(&c, strided ? BOUNCE_BYTES : UINT64_MAX, &p)) {
        uint8_t *to = p.n == 1 ? out + p.dst : bounce;

        rc = files_read_extent(f, &p.src, to, e);
        if (rc == 0 && watch)
            rc = watch->seen(watch->ctx, &p, to, e);
        for (uint64_t i = 0; rc == 0 && p.n > 1 && i < p.n; i++)
            memcpy(out + p.dst + i * p.stride, bounce + i * p.run, p.run);
    }
    free(bounce);
    return rc;
}

static int read_sum(const struct tmap *m, struct files *f, struct tmap_range r, void *buf,
                    const struct tmap_watch *watch, struct err *e)
{
    uint8_t *all = xmalloc((size_t)m->n_slices * r.len + 1);
    const void **part = xcalloc((size_t)m->n_slices, sizeof *part);
    int rc = 0;

    for (r.replica = 0; r.replica < m->n_slices && rc == 0; r.replica++) {
        uint8_t *to = all + (uint64_t)r.replica * r.len;

        part[r.replica] = to;
        rc = read_tmap_slice(m, f, r, to, watch, e);
    }
    if (rc == 0)
        tmap_add(part, m->n_slices, r.len, m->dtype, buf);
    free(part);
    free(all);
    return rc;
}

int tmap_read_seen(const struct tmap *m, struct files *f, struct tmap_range r, void *buf,
                   const struct tmap_watch *watch, struct err *e)
{
    if (m->op == TMAP_SUM && m->n_slices > 1)
        return read_sum(m, f, r, buf, watch, e);
    r.replica = m->op == TMAP_REPLICAS ? r.replica : -1;
    return read_tmap_slice(m, f, r, buf, watch, e);
}

int tmap_read(const struct tmap *m, struct files *f, struct tmap_range r, void *buf, struct err *e)
{
    return tmap_read_seen(m, f, r, buf, NULL, e);
}

static int check_piece_record(void *ctx, const struct tmap_piece *p, const void *bytes, struct err *e)
{
    (void)bytes;
    return files_check_record(ctx, p->src.record, e);
}

int tmap_read_checked(const struct tmap *m, struct files *f, struct tmap_range r, void *buf, struct err *e)
{
    const struct tmap_watch watch = { .seen = check_piece_record, .ctx = f };

    return tmap_read_seen(m, f, r, buf, &watch, e);
}

struct tmap *tmap_shifted(struct arena *a, const struct tmap *m, int shift)
{
    struct tmap *to = arena_alloc(a, sizeof *to);

    *to = *m;
    to->slice = arena_alloc(a, (size_t)m->n_slices * sizeof *to->slice);
    for (int k = 0; k < m->n_slices; k++) {
        const struct tmap_slice *s = &m->slice[k];

        to->slice[k] = *s;
        to->slice[k].extent = arena_alloc(a, (size_t)s->n_extents * sizeof *s->extent);
        for (int i = 0; i < s->n_extents; i++) {
            to->slice[k].extent[i] = s->extent[i];
            to->slice[k].extent[i].record += shift;
        }
    }
    return to;
}

/* ---- parts that are added ---- */

static void store_f32_as_dtype(enum dtype dtype, float v, void *to)
{
    const uint16_t half = f32_to_half(dtype, v);

    if (dtype == DTYPE_F32)
        memcpy(to, &v, sizeof v);
    else
        memcpy(to, &half, sizeof half);
}

void tmap_add(const void *const *part, int n, uint64_t bytes, enum dtype dtype, void *out)
{
    const uint64_t size = (uint64_t)dtype_size(dtype);

    assert(dtype == DTYPE_F64 || dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16);
    for (uint64_t at = 0; at < bytes; at += size) {
        double wide = 0;
        char sum[8];

        for (int k = 0; k < n; k++) {
            const double x = dtype_value(dtype, (const char *)part[k] + at);

            /*
             * If the numbers have at most 24 bits, rounding this sum to their type gives the same result as rounding
             * the exact sum.
             */
            wide += x;
            if (dtype == DTYPE_F64) {
                memcpy(sum, &wide, sizeof wide);
                continue;
            }
            store_f32_as_dtype(dtype, (float)wide, sum);
            wide = dtype_value(dtype, sum);
        }
        memcpy((char *)out + at, sum, size);
    }
}

/* ---- copies that should agree ---- */

/*
 * Compute (0 + x0 + x1 + ...) / n, where x0, x1, ... are the real numbers at byte `at` of each copy. Returns false if
 * the type is not a floating-point type, because other types have no average.
 */
static bool average_copies(const void *const *copy, int n, uint64_t at, enum dtype real, void *out)
{
    double d = 0;
    float s = 0;

    switch (real) {
    case DTYPE_F64:
        for (int k = 0; k < n; k++)
            d += dtype_value(real, (const char *)copy[k] + at);
        d /= n;
        memcpy(out, &d, sizeof d);
        return true;
    case DTYPE_F32: case DTYPE_F16: case DTYPE_BF16:
        for (int k = 0; k < n; k++)
            s += (float)dtype_value(real, (const char *)copy[k] + at);
        s /= (float)n;
        if (real == DTYPE_F32)
            memcpy(out, &s, sizeof s);
        else
            memcpy(out, &(uint16_t){ f32_to_half(real, s) }, 2);
        return true;
    default:
        return false;
    }
}

/*
 * Returns the index of a copy that has the most frequent value. If several values are equally frequent, the value of
 * the lowest rank is used.
 */
static int majority(const void *const *copy, int n, uint64_t at, size_t size)
{
    int best = 0, best_votes = 0;

    for (int k = 0; k < n && best_votes <= n / 2; k++) {
        int votes = 0;

        for (int j = 0; j < n; j++)
            votes += memcmp((const char *)copy[k] + at, (const char *)copy[j] + at, size) == 0;
        if (votes > best_votes) {
            best = k;
            best_votes = votes;
        }
    }
    return best;
}

static void combine_one(const void *const *copy, int n, uint64_t at, enum dtype dtype,
                        enum replica_policy policy, char *out)
{
    size_t size = (size_t)dtype_size(dtype);
    bool complex = dtype_is_complex(dtype);
    enum dtype real = dtype_real(dtype);
    char value[16];

    if (policy == REPLICAS_AVERAGE && average_copies(copy, n, at, real, value) &&
        (!complex || average_copies(copy, n, at + size / 2, real, value + size / 2)))
        memcpy(out, value, size);
    else
        memmove(out, (const char *)copy[policy == REPLICAS_MAJORITY ? majority(copy, n, at, size) : 0] + at, size);
}

static bool all_equal(const void *const *copy, int n, uint64_t at, size_t size)
{
    for (int k = 1; k < n; k++)
        if (memcmp((const char *)copy[0] + at, (const char *)copy[k] + at, size) != 0)
            return false;
    return true;
}

/* Copies are nearly always equal, so whole blocks are compared first. */
enum { COMPARE_BYTES = 4096 };

uint64_t replicas_first_difference(const void *const *copy, int n, uint64_t bytes, enum dtype dtype)
{
    uint64_t size = (uint64_t)dtype_size(dtype);

    for (uint64_t at = 0; at < bytes; at += COMPARE_BYTES) {
        uint64_t end = min_u64(at + COMPARE_BYTES, bytes);

        if (all_equal(copy, n, at, end - at))
            continue;
        while (all_equal(copy, n, at, size))
            at += size;
        return at / size;
    }
    return UINT64_MAX;
}

uint64_t replicas_combine(const void *const *copy, int n, uint64_t bytes, enum dtype dtype,
                          enum replica_policy policy, void *out)
{
    uint64_t n_differ = 0, size = (uint64_t)dtype_size(dtype);
    bool write = policy != REPLICAS_FAIL;

    for (uint64_t at = 0; at < bytes; at += COMPARE_BYTES) {
        uint64_t end = min_u64(at + COMPARE_BYTES, bytes);

        if (all_equal(copy, n, at, end - at)) {
            if (write && out != copy[0])
                memcpy((char *)out + at, (const char *)copy[0] + at, end - at);
            continue;
        }
        for (uint64_t i = at; i < end; i += size) {
            bool equal = all_equal(copy, n, i, size);

            n_differ += !equal;
            if (write && equal)
                memmove((char *)out + i, (const char *)copy[0] + i, size);
            else if (write)
                combine_one(copy, n, i, dtype, policy, (char *)out + i);
        }
    }
    if (!write && n_differ == 0 && out != copy[0])
        memcpy(out, copy[0], bytes);
    return n_differ;
}
