/*
 * mismatch.c - compare weights with their fp32 masters, and moments with each other
 *
 * A sample consists of 4,096 values from the start and from the end of every piece of a master (each shard's part of
 * each parameter), and of the same elements of the weights and the moments. This is a thousandth of a large
 * checkpoint's bytes, and all of a tiny one. Many threads read, because each of them mostly waits for the disk. If two
 * states are split differently, one by rows and one by columns, their slices hold different elements. Then only the
 * start and the end of the whole tensor are compared.
 */
#include "libcommon/check/mismatch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/copies.h"
#include "libcommon/check/moments.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/verdict.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/tmap.h"

enum { SAMPLE = 4096, THREADS_DEFAULT = 16 };

#define BF16_MARGIN 1.1                  /* factor for the bound of moments in bf16 */

/* ---- comparison of two values ---- */

/*
 * Returns true if the weight differs from its fp32 master by more than rounding and averaging can explain. Rounding to
 * bf16 changes a value by at most 1/256 of the value. Averaging two rounded values adds a little.
 */
static bool is_far(float weight, float master)
{
    static const float tiny = 1e-6f;    /* below f16's normal range, where the rounding step is not proportional to
                                         * the value */

    return !(fabsf(weight - master) <= fmaxf(tiny, fmaxf(fabsf(weight), fabsf(master)) / 64));
}

/*
 * Returns true if the weight at `w` has exactly the bits of the rounded master. *weight is set to the weight's value.
 */
static bool is_rounded(enum dtype weights, const void *w, float master, float *weight)
{
    uint16_t have;

    if (weights == DTYPE_F32) {
        memcpy(weight, w, sizeof *weight);
        return memcmp(weight, &master, sizeof master) == 0;
    }
    memcpy(&have, w, sizeof have);
    *weight = weights == DTYPE_F16 ? f16_to_f32(have) : bf16_to_f32(have);
    return have == f32_to_half(weights, master);
}

bool mismatch_can_compare(const struct tmap *weights, const struct tmap *masters)
{
    return (weights->dtype == DTYPE_BF16 || weights->dtype == DTYPE_F16 || weights->dtype == DTYPE_F32) &&
           masters->dtype == DTYPE_F32 && masters->len / 4 * (uint64_t)dtype_size(weights->dtype) == weights->len;
}

void mismatch_compare(struct mismatch_count *c, enum dtype weights, const void *w, const void *masters, size_t n)
{
    const size_t size = (size_t)dtype_size(weights);
    const uint8_t *pw = w, *pm = masters;
    uint64_t n_differ = 0;

    for (size_t i = 0; i < n; i++) {
        float master, weight;

        memcpy(&master, pm + 4 * i, sizeof master);
        if (is_rounded(weights, pw + size * i, master, &weight))
            continue;
        n_differ++;
        c->n_far += is_far(weight, master);
    }
    c->n += n;
    c->n_differ += n_differ;
    c->dense |= n_differ >= 2 && n_differ * 100 >= n;
}

enum mismatch_rule mismatch_rule_of(const struct source *s, const struct param *p)
{
    int64_t sync = 0;

    /* Without tensor ranks in the layout (DCP, torch_dist) there are no copies that could drift apart. */
    if (p->merge != MERGE_REPLICATED || s->topo.tp == 0)
        return MISMATCH_EXACT;
    pk_as_int(pk_get(s->run.args, "sync_tp_duplicated_parameters"), &sync);
    return sync ? MISMATCH_FREE : MISMATCH_NEAR;
}

enum severity mismatch_classify(const struct mismatch_count *c, enum mismatch_rule rule)
{
    if (c->n_differ == 0 || rule == MISMATCH_FREE)
        return SEV_NOTE;
    if (rule == MISMATCH_NEAR)
        return c->n_far >= 2 && c->n_far * 2 >= c->n ? SEV_ERROR : SEV_WARNING;
    return c->dense || c->n_far ? SEV_ERROR : SEV_WARNING;
}

/* ---- samples ---- */

/* Read bytes [from, from + len) of a slice. Returns -1 if they cannot be read, or if the slice ends before them. */
static int slice_read(struct files *f, const struct tmap_slice *s, uint64_t from, uint64_t len, uint8_t *buf)
{
    struct err ignored = {0};

    for (int i = 0; i < s->n_extents && len; i++) {
        struct extent x = s->extent[i];

        if (from >= x.len) {
            from -= x.len;
            continue;
        }
        x.at += from;
        x.len = min_u64(x.len - from, len);
        if (files_read_extent(f, &x, buf, &ignored) < 0)
            return -1;
        from = 0;
        buf += x.len;
        len -= x.len;
    }
    return len ? -1 : 0;
}

/*
 * Returns true if boxes `a` and `b` visit the same elements in the same order. An element has x bytes in `a`, and y
 * bytes in `b`.
 */
static bool same_box(const struct tmap_box *a, uint64_t x, const struct tmap_box *b, uint64_t y)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n - 1; i++)
        if (a->level[i].at != b->level[i].at || a->level[i].len != b->level[i].len ||
            a->level[i].stride / x != b->level[i].stride / y)
            return false;
    return a->level[a->n - 1].at / x == b->level[a->n - 1].at / y &&
           a->level[a->n - 1].len / x == b->level[a->n - 1].len / y;
}

/* Returns true if both maps are split in the same way, so that element i of slice k is the same element in both. */
static bool cut_alike(const struct tmap *a, const struct tmap *b)
{
    const uint64_t x = (uint64_t)dtype_size(a->dtype), y = (uint64_t)dtype_size(b->dtype);
    bool alike = a->op == b->op && a->n_slices == b->n_slices && a->row / x == b->row / y;

    for (int k = 0; k < a->n_slices && alike; k++) {
        const struct tmap_slice *s = &a->slice[k], *t = &b->slice[k];

        alike = s->len / x == t->len / y && s->row_part / x == t->row_part / y &&
                (a->op != TMAP_BOXES || same_box(s->box, x, t->box, y));
    }
    return alike;
}

/* Returns true if the values of a map can be sampled: they are fp32 or bf16. */
static bool has_samples(const struct tmap *m)
{
    return m->dtype == DTYPE_F32 || m->dtype == DTYPE_BF16;
}

/*
 * Read elements [first, first + n) of slice k of the map, or of the whole tensor if k < 0. Returns -1 if they cannot be
 * read.
 */
static int values_read(struct files *f, const struct tmap *m, int k, uint64_t first, uint64_t n, uint8_t *buf)
{
    const uint64_t size = (uint64_t)dtype_size(m->dtype);
    struct err ignored = {0};

    return k < 0 ? tmap_read(m, f, (struct tmap_range){ 0, first * size, n * size }, buf, &ignored)
                 : slice_read(f, &m->slice[k], first * size, n * size, buf);
}

/*
 * The result of sampling one parameter. For each kind of mismatch it has the worst piece and the files that hold this
 * piece.
 */
struct sampled {
    enum severity severity;             /* severity for the weights' worst piece; SEV_NOTE if all pieces match */
    struct mismatch_count weights;
    int weights_file, masters_file;
    struct moments_count moments;
    int moments_file;                   /* file of the worst piece of the moments; -1: no moments violate the bound */
    struct values values[STATE_N];      /* invalid values (NaN ...) in the worst piece of each state; this piece has
                                         * n_read elements and lies in values_file */
    uint64_t n_read[STATE_N];
    int values_file[STATE_N];
    uint64_t n_drifted[STATE_N], n_copies[STATE_N];     /* number of elements on which copies disagree, and number of
                                                         * elements compared */
};

/*
 * The pieces of weights that were compared with pieces of masters. Each entry has the two files, and whether the values
 * differ.
 */
struct compared_pieces {
    int n, cap;
    struct compared_piece { int weights_file, masters_file; bool differ; } *piece;
};

struct sampler {
    const struct source *s;
    struct compared_pieces *compared;
    const struct param *p;
    bool masters_differ;                /* the tensor-parallel ranks' copies of the masters differ, while the copies of
                                         * the weights agree */
    double most;                        /* largest possible exp_avg^2 / exp_avg_sq; 0: unknown */
    int moments_file;                   /* file of the moments that are being read */
    bool all;                           /* true: check all values; false: check only the bound of the moments */
    struct sampled *out;
};

static int extent_file_number(const struct source *s, const struct extent *x)
{
    return files_record(s->files, x->record)->file;
}

static const struct tmap *mismatch_weights_map(const struct param *p)
{
    return p->state[STATE_BF16] ? p->state[STATE_BF16] : p->copy;
}

/*
 * Count the invalid values (NaN ...) among n elements of a state. The counts are recorded in m->out if no earlier piece
 * of the state had more invalid values.
 */
static void sample_values(struct sampler *m, enum state st, enum dtype t, const void *bytes, uint64_t n, int file)
{
    struct values v = {0}, *worst = &m->out->values[st];

    if (!m->all)
        return;
    if (m->p->scale)
        values_add_scales(&v, param_scale_type(m->p, t), bytes, n * (uint64_t)dtype_size(t));
    else
        values_add(&v, t, bytes, n * (uint64_t)dtype_size(t), st == STATE_EXP_AVG_SQ);
    v.n_zero = m->p->scale == SCALE_OF_SCALES ? v.n_zero : 0;
    if (v.n_nan + v.n_inf + v.n_negative + v.n_zero <=
        worst->n_nan + worst->n_inf + worst->n_negative + worst->n_zero)
        return;
    *worst = v;
    m->out->n_read[st] = n;
    m->out->values_file[st] = file;
}

static void record_compared_piece(struct compared_pieces *c, int weights_file, int masters_file, bool differ)
{
#pragma omp critical(compared_pieces)
    {
        ARRAY_ROOM(c->piece, c->cap, c->n + 1);
        c->piece[c->n++] = (struct compared_piece){ weights_file, masters_file, differ };
    }
}

/*
 * Compare n weights with their masters. The first weight is element `first` of slice k or, if k < 0, of the whole
 * tensor. `x` is the extent that holds the masters.
 */
static void sample_weights(struct sampler *m, int k, uint64_t first, uint64_t n, const struct extent *x)
{
    const struct tmap *w = mismatch_weights_map(m->p), *f = m->p->state[STATE_FP32];
    const struct tmap_slice *from = w ? &w->slice[k < 0 ? 0 : k] : NULL;
    struct mismatch_count c = {0}, *worst = &m->out->weights;
    uint8_t weights[SAMPLE * 4], masters[SAMPLE * 4];
    enum severity severity;
    enum mismatch_rule rule = m->masters_differ ? MISMATCH_FREE : mismatch_rule_of(m->s, m->p);

    if (!w || !mismatch_can_compare(w, f) || from->n_extents == 0 ||
        values_read(m->s->files, w, k, first, n, weights) < 0 || values_read(m->s->files, f, k, first, n, masters) < 0)
        return;
    sample_values(m, STATE_BF16, w->dtype, weights, n, extent_file_number(m->s, from->extent));
    sample_values(m, STATE_FP32, f->dtype, masters, n, extent_file_number(m->s, x));
    mismatch_compare(&c, w->dtype, weights, masters, n);
    severity = mismatch_classify(&c, rule);
    if (severity == SEV_ERROR || c.n_differ == 0)
        record_compared_piece(m->compared, extent_file_number(m->s, from->extent), extent_file_number(m->s, x),
                              severity == SEV_ERROR);
    if (severity < m->out->severity || c.n_differ * max_u64(worst->n, 1) <= worst->n_differ * c.n)
        return;
    m->out->severity = severity;
    *worst = c;
    m->out->weights_file = extent_file_number(m->s, from->extent);
    m->out->masters_file = extent_file_number(m->s, x);
}

/*
 * Read n elements of a moment as floats, and add their NaN, infinite and negative values to the findings. Returns false
 * if they cannot be read, or if the moment is neither fp32 nor bf16.
 */
static bool read_moment(struct sampler *m, enum state st, int k, uint64_t first, uint64_t n, float *out)
{
    const struct tmap *from = m->p->state[st];
    uint16_t half[SAMPLE];

    if (!from || !has_samples(from) ||
        values_read(m->s->files, from, k, first, n, from->dtype == DTYPE_F32 ? (uint8_t *)out : (uint8_t *)half) < 0)
        return false;
    if (from->dtype == DTYPE_F32) {
        sample_values(m, st, DTYPE_F32, out, n, m->moments_file);
        return true;
    }
    sample_values(m, st, from->dtype, half, n, m->moments_file);
    for (uint64_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(half[i]);
    return true;
}

/*
 * Compare n elements of the two moments. Moments in bf16 are rounded in every step. Over the steps that matter, the two
 * moments together may therefore be wrong by a tenth. Moments in fp16 are not compared, because exp_avg_sq in fp16 may
 * have become 0.
 */
static void sample_moments(struct sampler *m, int k, uint64_t first, uint64_t n, const struct extent *x)
{
    const struct tmap *v = m->p->state[STATE_EXP_AVG_SQ], *a = m->p->state[STATE_EXP_AVG];
    float sq[SAMPLE], avg[SAMPLE];
    struct moments_count c = {0};

    m->moments_file = extent_file_number(m->s, x);
    if (!read_moment(m, STATE_EXP_AVG_SQ, k, first, n, sq) || !a || a->dtype != v->dtype || a->len != v->len ||
        !read_moment(m, STATE_EXP_AVG, k, first, n, avg))
        return;
    moments_compare(&c, &(struct moments_pair){ MOMENTS_FP32, avg, sq }, n,
                    v->dtype == DTYPE_F32 ? m->most : BF16_MARGIN * m->most);
    if (!moments_are_foreign(&c) || c.n_large <= m->out->moments.n_large)
        return;
    m->out->moments = c;
    m->out->moments_file = m->moments_file;
}

typedef void sample_fn(struct sampler *m, int k, uint64_t first, uint64_t n, const struct extent *x);

/* Call fn for the start and for the end of the whole tensor, regardless of how it is cut into pieces. */
static void ends_of(struct sampler *m, const struct tmap *map, sample_fn *fn)
{
    const uint64_t len = map->len / (uint64_t)dtype_size(map->dtype);
    const uint64_t n = min_u64(SAMPLE, len), rest = min_u64(SAMPLE, len - n);
    const struct tmap_slice *last = map->n_slices ? &map->slice[map->n_slices - 1] : NULL;

    if (!last || !map->slice->n_extents || !last->n_extents || n == 0)
        return;
    fn(m, -1, 0, n, map->slice->extent);
    if (rest)
        fn(m, -1, len - rest, rest, &last->extent[last->n_extents - 1]);
}

/*
 * Call fn for the start and the end of every piece of `map`. If `other` is not NULL and is cut differently, call fn for
 * the start and the end of the whole tensor instead.
 */
static void each_piece(struct sampler *m, const struct tmap *map, const struct tmap *other, sample_fn *fn)
{
    if (!map || !has_samples(map))
        return;
    if (other && !cut_alike(map, other)) {
        ends_of(m, map, fn);
        return;
    }
    for (int k = 0; k < map->n_slices; k++) {
        uint64_t first = 0;

        for (int i = 0; i < map->slice[k].n_extents; i++) {
            const struct extent *x = &map->slice[k].extent[i];
            uint64_t len = x->len / (uint64_t)dtype_size(map->dtype);
            uint64_t n = min_u64(SAMPLE, len), rest = min_u64(SAMPLE, len - n);

            if (n)
                fn(m, k, first, n, x);
            if (rest)
                fn(m, k, first + len - rest, rest, x);
            first += len;
        }
    }
}

/*
 * Compare the start and the end of each copy of a replicated parameter with the start and the end of the first copy, in
 * every state.
 */
static void sample_copies(struct sampler *m)
{
    uint8_t first[SAMPLE * 4], other[SAMPLE * 4];

    for (enum state st = 0; m->p->merge == MERGE_REPLICATED && st < STATE_N; st++) {
        const struct tmap *map = m->p->state[st];
        const uint64_t size = map ? (uint64_t)dtype_size(map->dtype) : 1;
        const bool copies = map && map->op == TMAP_REPLICAS && map->n_slices > 1;
        const uint64_t len = copies ? map->slice->len / size : 0, n = min_u64(SAMPLE, len);

        for (int end = 0; end < 2 && n && size <= 4; end++) {
            const uint64_t from = end ? max_u64(len - n, n) : 0, some = min_u64(n, len - min_u64(from, len));
            uint64_t most = 0;

            if (some == 0 || slice_read(m->s->files, map->slice, from * size, some * size, first) < 0)
                continue;
            m->out->n_copies[st] += some;
            for (int k = 1; k < map->n_slices; k++) {
                struct stats_diff d = {0};

                if (slice_read(m->s->files, &map->slice[k], from * size, some * size, other) == 0)
                    stats_diff_add(&d, map->dtype, first, other, some);
                most = max_u64(most, d.n_differ);
            }
            m->out->n_drifted[st] += most;
        }
    }
}

/*
 * Count the invalid values of a state at KEPT_PLACES places, evenly distributed over the tensor. A state of at most
 * KEPT_PLACES * SAMPLE elements is read as a whole.
 */
static void sample_kept_state(struct sampler *m, enum state st)
{
    enum { KEPT_PLACES = 16 };
    const struct tmap *map = m->p->state[st];
    const uint64_t size = map ? (uint64_t)dtype_size(map->dtype) : 0, len = size ? map->len / size : 0;
    const uint64_t n = min_u64(SAMPLE, len), places = min_u64(KEPT_PLACES, (len + SAMPLE - 1) / SAMPLE);
    uint8_t bytes[SAMPLE * 16];

    if (n == 0 || size > 16 || !(dtype_has_nan(map->dtype) || m->p->scale) || !map->slice->n_extents)
        return;
    for (uint64_t i = 0; i < places; i++) {
        const uint64_t first = places > 1 ? (len - n) / (places - 1) * i : 0;

        if (values_read(m->s->files, map, -1, i + 1 == places ? len - n : first, n, bytes) == 0)
            sample_values(m, st, map->dtype, bytes, n, extent_file_number(m->s, map->slice->extent));
    }
}

static void sample_param(const struct source *s, const struct param *p, double most, const struct mismatch_opts *o,
                         struct compared_pieces *compared, struct sampled *out)
{
    struct sampler m = { .s = s, .compared = compared, .p = p, .most = most, .all = !o->moments_only, .out = out };

    out->moments_file = -1;
    if (!o->moments_only) {
        sample_copies(&m);
        m.masters_differ = !out->n_drifted[STATE_BF16] && out->n_drifted[STATE_FP32];
        each_piece(&m, p->state[STATE_FP32], mismatch_weights_map(p), sample_weights);
    }
    each_piece(&m, p->state[STATE_EXP_AVG_SQ], p->state[STATE_EXP_AVG], sample_moments);
    for (enum state st = 0; o->kept && st < STATE_N; st++)
        sample_kept_state(&m, st);
}

/* ---- findings ---- */

/*
 * Report weights that do not belong to their masters. There is one finding per file, because such a file usually
 * contains dozens of parameters.
 */
static void report_foreign_weights(const struct source *s, const struct sampled *v, enum severity sev, struct report *r)
{
    bool *reported = xcalloc((size_t)files_count(s->files) + 1, sizeof *reported);

    for (int i = 0; i < s->n_params; i++) {
        if (v[i].severity != SEV_ERROR || reported[v[i].weights_file])
            continue;
        reported[v[i].weights_file] = true;
        report_add(r, sev, "bf16_master", files_name(s->files, v[i].weights_file), ERR_NO_BYTE, s->param[i].name,
                   "%llu of %llu sampled values differ from the rounded masters in %s; a file is damaged, or the files "
                   "are from different saves or ranks", (unsigned long long)v[i].weights.n_differ,
                   (unsigned long long)v[i].weights.n, files_name(s->files, v[i].masters_file));
    }
    free(reported);
}

static void report_foreign_moments(const struct source *s, const struct sampled *v, enum severity sev, struct report *r)
{
    bool *reported = xcalloc((size_t)files_count(s->files) + 1, sizeof *reported);

    for (int i = 0; i < s->n_params; i++) {
        if (v[i].moments_file < 0 || reported[v[i].moments_file])
            continue;
        reported[v[i].moments_file] = true;
        moments_report(s, s->param[i].name, v[i].moments_file, &v[i].moments, sev, r);
    }
    free(reported);
}

/*
 * Counts for one file: the number of pieces that were compared, the number of pieces that differ, and the number of
 * files whose values contradict the values of this file.
 */
struct file_pieces {
    uint64_t n, n_differ;
    int n_files;
    bool masters;               /* true: the file's pieces are masters; false: they are weights */
    bool foreign;
};

static int by_piece_files(const void *a, const void *b)
{
    const struct compared_piece *x = a, *y = b;

    if (x->differ != y->differ)
        return x->differ ? -1 : 1;
    if (x->weights_file != y->weights_file)
        return (x->weights_file > y->weights_file) - (x->weights_file < y->weights_file);
    return (x->masters_file > y->masters_file) - (x->masters_file < y->masters_file);
}

static bool mostly_differs(const struct file_pieces *f)
{
    return 2 * f->n_differ > f->n;
}

/* Returns true if `f` is more likely than `other` to be of another save. The two files must contradict each other. */
static bool is_rather_foreign(const struct file_pieces *f, const struct file_pieces *other)
{
    const uint64_t a = f->n_differ * other->n, b = other->n_differ * f->n;

    return mostly_differs(f) && ((f->n_files >= other->n_files && a >= b && (f->n_files > other->n_files || a > b)) ||
                                 (a > b && !mostly_differs(other)));
}

/*
 * If every file of a side is marked as foreign, clear the marks of that side, because the values do not show which side
 * is wrong. One side is all compared files of weights, and the other is all compared files of masters.
 */
static void clear_whole_sides(struct file_pieces *of, int n)
{
    bool agrees[2] = {false};

    for (int i = 0; i < n; i++)
        agrees[of[i].masters] |= of[i].n && !of[i].foreign;
    for (int i = 0; i < n; i++)
        of[i].foreign = of[i].foreign && agrees[of[i].masters];
}

/*
 * Report the files that are of another save. One of two files that contradict each other is regarded as foreign if most
 * of its pieces differ and one more condition is true: it contradicts more files than the other one, or most pieces of
 * the other one agree. For example, a foreign shard contradicts several layer files. A foreign layer file contradicts
 * shards that agree with all other layer files. A file is reported only if it is the foreign one in each of its
 * contradictions.
 */
static void report_foreign_files(const struct source *s, struct compared_pieces *c, struct report *r)
{
    const int n = files_count(s->files);
    struct file_pieces *of = xcalloc((size_t)n + 1, sizeof *of);

    if (c->n)
        qsort(c->piece, (size_t)c->n, sizeof *c->piece, by_piece_files);
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < 2; k++) {
            const struct compared_piece *p = &c->piece[i];
            struct file_pieces *f = &of[k ? p->masters_file : p->weights_file];

            f->n++;
            f->n_differ += p->differ;
            f->masters = k;
            f->foreign |= p->differ;
            f->n_files += p->differ && (i == 0 || by_piece_files(p, p - 1) != 0);
        }
    for (int i = 0; i < c->n && c->piece[i].differ; i++) {
        struct file_pieces *w = &of[c->piece[i].weights_file], *m = &of[c->piece[i].masters_file];

        w->foreign &= is_rather_foreign(w, m);
        m->foreign &= is_rather_foreign(m, w);
    }
    clear_whole_sides(of, n);
    for (int i = 0; i < n; i++)
        if (of[i].foreign)
            report_add(r, SEV_NOTE, MISMATCH_FOREIGN_FILE, files_name(s->files, i), ERR_NO_BYTE, NULL,
                       "is from another save, because %llu of %llu pieces of it contradict files that agree with each "
                       "other; remove the file, which then counts as lost (ckpt-inspect damage)",
                       (unsigned long long)of[i].n_differ,
                       (unsigned long long)of[i].n);
    free(of);
}

/*
 * Report invalid values in the samples as verify does: NaN, infinities, negative second moments, and copies that
 * disagree.
 */
static void report_sampled_values(const struct source *s, const struct sampled *v, const struct mismatch_opts *o,
                                  struct report *r)
{
    for (int i = 0; i < s->n_params; i++)
        for (enum state st = 0; st < STATE_N; st++) {
            const struct param *p = &s->param[i];
            struct verdict_of of = { .s = s, .param = p->name, .what = state_name(st), .map = p->state[st],
                                     .trained = p->state[STATE_EXP_AVG], .scale = p->scale,
                                     .severity = o->accept ? SEV_WARNING : SEV_ERROR };

            if (v[i].n_read[st]) {
                of.n_read = v[i].n_read[st];
                of.file = files_name(s->files, v[i].values_file[st]);
                verdict_values(&of, &v[i].values[st], r);
            }
            of.n_read = v[i].n_copies[st];
            of.file = s->path;
            if (!o->drift)
                verdict_replicas(&of, v[i].n_drifted[st], false, r);
        }
}

/* Check the start of each buffer of the model for NaN. A NaN in a buffer is as wrong as a NaN in a weight. */
static void report_buffer_values(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    uint8_t bytes[SAMPLE * 4];

    for (int i = 0; i < s->n_values; i++) {
        const struct tmap *m = s->value[i].buffer ? s->value[i].map : NULL;
        const uint64_t size = m ? (uint64_t)dtype_size(m->dtype) : 1, n = m ? min_u64(SAMPLE, m->len / size) : 0;
        const struct verdict_of of = { .s = s, .param = s->value[i].name, .what = "", .map = m, .n_read = n,
                                       .severity = o->accept ? SEV_WARNING : SEV_ERROR };
        struct values v = {0};

        if (n == 0 || size > 4 || values_read(s->files, m, -1, 0, n, bytes) < 0)
            continue;
        values_add(&v, m->dtype, bytes, n * size, false);
        if (v.n_nan)
            verdict_values(&of, &v, r);
    }
}

/* Compare the last stage's copy of each tied parameter with the first stage's copy, at the start and at the end. */
static void report_tied_samples(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    uint8_t first[SAMPLE * 4], last[SAMPLE * 4];

    for (int i = 0; i < s->n_params; i++)
        for (enum state st = 0; st < STATE_N; st++) {
            const struct param *p = &s->param[i];
            const struct tmap *a = p->state[st], *b = p->tied[st];
            const uint64_t size = a ? (uint64_t)dtype_size(a->dtype) : 1, n = a ? min_u64(SAMPLE, a->len / size) : 0;
            struct verdict_of of = { .s = s, .file = s->path, .param = p->name, .what = state_name(st), .map = a,
                                     .n_read = 2 * n,
                                     .severity = o->accept ? SEV_WARNING : SEV_ERROR };
            struct stats_diff d = {0};

            if (!a || !b || !verdict_tie_is_kept(p) || size > 4 || a->dtype != b->dtype || a->len != b->len)
                continue;
            for (int end = 0; end < 2; end++) {
                const uint64_t from = end ? a->len / size - n : 0;

                if (values_read(s->files, a, -1, from, n, first) == 0 &&
                    values_read(s->files, b, -1, from, n, last) == 0)
                    stats_diff_add(&d, a->dtype, first, last, n);
            }
            verdict_tied(&of, &d, r);
        }
}

/*
 * Report, in one line, all parameters that have only single differing values or whose copies were averaged
 * independently.
 */
static void report_single_mismatches(const struct source *s, const struct sampled *v, struct report *r)
{
    const struct sampled *first = NULL;
    int n = 0;

    for (int i = 0; i < s->n_params; i++)
        if (v[i].severity == SEV_WARNING && n++ == 0)
            first = &v[i];
    if (first)
        report_add(r, SEV_WARNING, "bf16_master", files_name(s->files, first->weights_file), ERR_NO_BYTE,
                   s->param[first - v].name, "%llu of %llu sampled values differ from the rounded masters%s; "
                   "ckpt-inspect verify lists them", (unsigned long long)first->weights.n_differ,
                   (unsigned long long)first->weights.n, n > 1 ? " (and of other parameters)" : "");
}

/* Returns true if `d` lists this parameter as damaged. `d` may be NULL. */
static bool is_param_hit(const struct damage *d, int param)
{
    for (int i = 0; d && i < d->n; i++)
        if (d->state[i].param == param)
            return true;
    return false;
}

/* Sample all parameters. Returns an array with one entry per parameter, which the caller frees. */
static struct sampled *sample_params(const struct source *s, const struct mismatch_opts *o, const struct damage *d,
                                     struct compared_pieces *compared)
{
    struct sampled *v = xcalloc((size_t)s->n_params + 1, sizeof *v);
    double *most = moments_bounds(s);
    int threads = o->threads > 0 ? o->threads : THREADS_DEFAULT;

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < s->n_params; i++) {
        v[i].moments_file = -1;
        if (!is_param_hit(d, i))
            sample_param(s, &s->param[i], most[i], o, compared, &v[i]);
    }
    free(most);
    return v;
}

static void sample_all(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    struct compared_pieces compared = {0};
    struct sampled *v = sample_params(s, o, NULL, &compared);

    report_foreign_weights(s, v, o->accept ? SEV_WARNING : SEV_ERROR, r);
    report_foreign_moments(s, v, o->accept ? SEV_WARNING : SEV_ERROR, r);
    report_single_mismatches(s, v, r);
    if (!o->moments_only) {
        report_sampled_values(s, v, o, r);
        report_buffer_values(s, o, r);
        report_tied_samples(s, o, r);
    }
    copies_check(s, o, r);
    free(compared.piece);
    free(v);
}

void mismatch_find_foreign(const struct source *s, const struct damage *d, int threads, struct report *r)
{
    const struct mismatch_opts o = { .drift = true, .threads = threads };
    struct compared_pieces compared = {0};
    struct sampled *v = sample_params(s, &o, d, &compared);

    report_foreign_files(s, &compared, r);
    report_foreign_weights(s, v, SEV_ERROR, r);
    report_foreign_moments(s, v, SEV_ERROR, r);
    free(compared.piece);
    free(v);
}

static bool has_shards(const struct source *s)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].cls == FILE_OPTIMIZER)
            return true;
    return false;
}

static bool has_masters(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].state[STATE_FP32])
            return true;
    return false;
}

/*
 * Returns true if the source was opened without the fp32 masters, although files of the checkpoint may contain masters.
 */
static bool leaves_out_masters(const struct source *s, const struct mismatch_opts *o)
{
    if (source_has_layer_files(s))
        return !has_masters(s) && has_shards(s);
    return source_left_out_masters(s) && !o->moments_only;
}

/*
 * Returns true if a record of a tensor is damaged or cannot be checked. Damage would explain values that do not match.
 */
static bool has_damage(struct source *s, const struct mismatch_opts *o)
{
    const struct damage_opts damage_opts = { .threads = o->threads > 0 ? o->threads : THREADS_DEFAULT };
    struct damage d;
    struct err ignored = {0};
    bool damaged;

    if (damage_find(s, &damage_opts, &d, &ignored) < 0)
        return true;
    damaged = d.n_bad > 0;
    damage_free(&d);
    return damaged;
}

/*
 * Sample masters and weights, although the source was opened without masters. The source is opened a second time, with
 * its masters. Returns false without findings if this fails, or if the mismatches result from damage. In these cases
 * the weights are usable without the masters.
 */
static bool sample_with_masters(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    const struct source_opts so = { .accept_mismatch = true, .threads = o->threads };
    struct report *ignored = report_new(), *found = report_new();
    struct err e = {0};
    struct source *with = source_open(s->path, &so, ignored, &e);
    bool sampled = with != NULL;

    if (with) {
        sample_all(with, o, found);
        sampled = report_count(found, SEV_ERROR) == 0 || !has_damage(with, o);
    }
    for (int i = 0; sampled && i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        report_add(r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    source_close(with);
    report_free(found);
    report_free(ignored);
    return sampled;
}

/*
 * Check the records of the map. Returns -1 with the error of the first record whose bytes do not have the stored CRC or
 * cannot be read.
 */
static int check_map_records(const struct source *s, const struct tmap *m, struct err *e)
{
    for (int k = 0; m && k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++)
            if (m->slice[k].extent[i].len && files_check_record(s->files, m->slice[k].extent[i].record, e) < 0)
                return -1;
    return 0;
}

/* Check all records of the parameter or buffer `name`. Returns -1 as check_map_records() does. */
static int check_named_records(const struct source *s, const char *name, struct err *e)
{
    const struct param *p = source_param(s, name);
    int rc = p ? check_map_records(s, p->copy, e) : 0;

    for (enum state st = 0; p && st < STATE_N && rc == 0; st++)
        rc = check_map_records(s, p->state[st], e) < 0 ? -1 : check_map_records(s, p->tied[st], e);
    for (int i = 0; !p && i < s->n_values && rc == 0; i++)
        rc = strcmp(s->value[i].name, name) == 0 ? check_map_records(s, s->value[i].map, e) : 0;
    return rc;
}

/*
 * Add the findings of `found` to r. If records of the first ERROR's parameter are corrupt, the error of the first
 * corrupt record is added before the findings, because it is their cause. Only this parameter is read, because callers
 * report only the first ERROR.
 */
static void report_cause_first(const struct source *s, const struct mismatch_opts *o, const struct report *found,
                               struct report *r)
{
    for (int i = 0; i < report_n(found) && !o->moments_only; i++) {
        const struct finding *f = report_get(found, i);
        struct err e = {0};

        if (f->severity != SEV_ERROR)
            continue;
        if (f->param && check_named_records(s, f->param, &e) < 0)
            report_add_err(r, "crc", &e);
        break;
    }
    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        report_add(r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
}

void mismatch_sample(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    struct report *found = report_new();

    if (!leaves_out_masters(s, o) || !sample_with_masters(s, o, r)) {
        sample_all(s, o, found);
        report_cause_first(s, o, found, r);
    }
    report_free(found);
}

bool mismatch_is(const struct finding *f)
{
    static const char *const codes[] = { "mixed_saves", "other_rank", "bf16_master", "negative_exp_avg_sq", "moments",
                                         "file_crc", "file_size", "file_missing", "file_unlisted",
                                         "not_finite", "scale", "tied", "replicas" };

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(f->code, codes[i]) == 0)
            return true;
    return false;
}
