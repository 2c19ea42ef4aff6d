/*
 * mismatch.c - weights against their masters, value by value
 *
 * The sample is cheap because it is small: 256 values from the start of every piece of a
 * master, a read of 1 KiB in each shard's part of each parameter, and as much of its weights
 * and second moments. Reads are spread over threads: they wait for the disk, not for the processor.
 */
#include "libcommon/layout/mismatch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

enum { SAMPLE = 256, THREADS_DEFAULT = 16 };

/* ---- two values ---- */

/* Rounding to bf16 moves a value by 1/256 of it at most, averaging two such by a little more. */
static bool is_far(float weight, float master)
{
    static const float tiny = 1e-6f;    /* below f16's normal range: steps are no part of the value there */

    return !(fabsf(weight - master) <= fmaxf(tiny, fmaxf(fabsf(weight), fabsf(master)) / 64));
}

void mismatch_compare(struct mismatch_count *c, enum dtype weights, const void *w, const void *masters, size_t n)
{
    const uint8_t *pw = w, *pm = masters;
    uint64_t n_differ = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t have;
        float master;

        memcpy(&have, pw + 2 * i, sizeof have);
        memcpy(&master, pm + 4 * i, sizeof master);
        if (have == (weights == DTYPE_F16 ? f32_to_f16(master) : f32_to_bf16(master)))
            continue;
        n_differ++;
        c->n_far += is_far(weights == DTYPE_F16 ? f16_to_f32(have) : bf16_to_f32(have), master);
    }
    c->n += n;
    c->n_differ += n_differ;
    c->dense |= n_differ >= 2 && n_differ * 100 >= n;
}

enum mismatch_rule mismatch_rule_of(const struct source *s, const struct param *p)
{
    int64_t sync = 0;

    if (p->merge != MERGE_REPLICATED)
        return MISMATCH_EXACT;
    pk_as_int(pk_get(s->run.args, "sync_tp_duplicated_parameters"), &sync);
    return sync ? MISMATCH_FREE : MISMATCH_NEAR;
}

enum severity mismatch_judge(const struct mismatch_count *c, enum mismatch_rule rule)
{
    if (c->n_differ == 0 || rule == MISMATCH_FREE)
        return SEV_NOTE;
    if (rule == MISMATCH_NEAR)
        return c->n_far >= 2 && c->n_far * 2 >= c->n ? SEV_ERROR : SEV_WARNING;
    return c->dense || c->n_far ? SEV_ERROR : SEV_WARNING;
}

/* ---- a sample ---- */

/* Bytes [from, from + len) of a slice. -1 when they cannot be read, or are not there. */
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

/* What the sample of one parameter shows: the worst piece of each kind, and its files. */
struct sampled {
    struct mismatch_count weights;      /* of the worst piece */
    int weights_file, masters_file;     /* -1: all is well */
    uint64_t n, n_negative;
    int moments_file;
};

struct sampler {
    const struct source *s;
    const struct param *p;
    bool masters_differ;                /* between tensor ranks, while the weights agree */
    struct sampled *out;
};

static int file_of(const struct source *s, const struct extent *x)
{
    return files_record(s->files, x->record)->file;
}

/* Weights and masters of slice k from element `first` on, n of them; `x` is the masters' piece. */
static void sample_weights(struct sampler *m, int k, uint64_t first, uint64_t n, const struct extent *x)
{
    const struct tmap *w = m->p->state[STATE_BF16], *f = m->p->state[STATE_FP32];
    struct mismatch_count c = {0};
    uint8_t weights[SAMPLE * 2], masters[SAMPLE * 4];
    enum mismatch_rule rule = m->masters_differ ? MISMATCH_FREE : mismatch_rule_of(m->s, m->p);

    if (!w || !f || (w->dtype != DTYPE_BF16 && w->dtype != DTYPE_F16) || w->n_slices != f->n_slices ||
        2 * w->slice[k].len != f->slice[k].len || w->slice[k].n_extents == 0 ||
        slice_read(m->s->files, &w->slice[k], first * 2, n * 2, weights) < 0 ||
        slice_read(m->s->files, &f->slice[k], first * 4, n * 4, masters) < 0)
        return;
    mismatch_compare(&c, w->dtype, weights, masters, n);
    /* A single odd value among so few is damage: its record's checksum is the one to tell of it. */
    c.n_far = rule == MISMATCH_NEAR ? c.n_far : 0;
    if (mismatch_judge(&c, rule) == SEV_ERROR && c.n_differ * max_u64(m->out->weights.n, 1) > m->out->weights.n_differ * c.n) {
        m->out->weights = c;
        m->out->weights_file = file_of(m->s, w->slice[k].extent);
        m->out->masters_file = file_of(m->s, x);
    }
}

static void sample_moments(struct sampler *m, int k, uint64_t first, uint64_t n, const struct extent *x)
{
    const struct tmap *v = m->p->state[STATE_EXP_AVG_SQ];
    uint8_t bytes[SAMPLE * 4];
    uint64_t n_negative = 0;

    if (slice_read(m->s->files, &v->slice[k], first * 4, n * 4, bytes) < 0)
        return;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = get_le32(bytes + 4 * i);

        n_negative += bits > 0x80000000 && bits <= 0xff800000;          /* neither -0 nor a NaN */
    }
    if (n_negative >= 2 && n_negative > m->out->n_negative) {
        m->out->n = n;
        m->out->n_negative = n_negative;
        m->out->moments_file = file_of(m->s, x);
    }
}

typedef void sample_fn(struct sampler *m, int k, uint64_t first, uint64_t n, const struct extent *x);

/* Ask fn about the start of every piece of a map. */
static void each_piece(struct sampler *m, const struct tmap *map, sample_fn *fn)
{
    for (int k = 0; map && map->dtype == DTYPE_F32 && k < map->n_slices; k++) {
        uint64_t first = 0;

        for (int i = 0; i < map->slice[k].n_extents; i++) {
            const struct extent *x = &map->slice[k].extent[i];

            if (x->len >= 4)
                fn(m, k, first, min_u64(SAMPLE, x->len / 4), x);
            first += x->len / 4;
        }
    }
}

/* The first values of all copies agree in the weights and not in the masters: weights are averaged. */
static bool masters_differ(const struct source *s, const struct param *p)
{
    uint8_t first[2][SAMPLE * 4], other[SAMPLE * 4];
    bool differ[2] = { false, false };

    if (p->merge != MERGE_REPLICATED)
        return false;
    for (int i = 0; i < 2; i++) {
        const struct tmap *m = p->state[i ? STATE_FP32 : STATE_BF16];

        for (int k = 0; m && k < m->n_slices; k++) {
            uint64_t n = min_u64(m->slice[k].len, sizeof other);

            if (slice_read(s->files, &m->slice[k], 0, n, k ? other : first[i]) < 0)
                return false;
            differ[i] |= k && memcmp(first[i], other, n) != 0;
        }
    }
    return differ[1] && !differ[0];
}

static void sample_param(const struct source *s, const struct param *p, struct sampled *out)
{
    struct sampler m = { .s = s, .p = p, .masters_differ = masters_differ(s, p), .out = out };

    out->weights_file = out->masters_file = out->moments_file = -1;
    each_piece(&m, p->state[STATE_FP32], sample_weights);
    each_piece(&m, p->state[STATE_EXP_AVG_SQ], sample_moments);
}

/* ---- what it says ---- */

/* One finding a file: a foreign one has dozens of parameters. */
static void tell(const struct source *s, const struct sampled *v, enum severity sev, struct report *r)
{
    bool *told = xcalloc((size_t)files_count(s->files) + 1, sizeof *told);

    for (int i = 0; i < s->n_params; i++) {
        if (v[i].weights_file >= 0 && !told[v[i].weights_file])
            report_add(r, sev, "bf16_master", files_name(s->files, v[i].weights_file), ERR_NO_BYTE, s->param[i].name,
                       "%llu of %llu values looked at are not the rounded masters in %s: the files are not of one save, "
                       "or not of one rank", (unsigned long long)v[i].weights.n_differ,
                       (unsigned long long)v[i].weights.n, files_name(s->files, v[i].masters_file));
        if (v[i].weights_file >= 0)
            told[v[i].weights_file] = true;
        if (v[i].moments_file >= 0 && !told[v[i].moments_file])
            report_add(r, sev, "negative_exp_avg_sq", files_name(s->files, v[i].moments_file), ERR_NO_BYTE,
                       s->param[i].name, "exp_avg_sq is negative in %llu of %llu values looked at: no second moments",
                       (unsigned long long)v[i].n_negative, (unsigned long long)v[i].n);
        if (v[i].moments_file >= 0)
            told[v[i].moments_file] = true;
    }
    free(told);
}

static void sample_all(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    struct sampled *v = xcalloc((size_t)s->n_params + 1, sizeof *v);
    int threads = o->threads > 0 ? o->threads : THREADS_DEFAULT;

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < s->n_params; i++)
        sample_param(s, &s->param[i], &v[i]);
    tell(s, v, o->accept ? SEV_WARNING : SEV_ERROR, r);
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

void mismatch_sample(const struct source *s, const struct mismatch_opts *o, struct report *r)
{
    struct source_opts so = { .accept_mismatch = true, .threads = o->threads };
    struct report *ignored;
    struct source *with;
    struct err e = {0};

    if (s->kind != LAYOUT_DEEPSPEED || has_masters(s) || !has_shards(s)) {
        sample_all(s, o, r);
        return;
    }
    /* What else is wrong with the shards does not matter to who wants the weights alone. */
    ignored = report_new();
    with = source_open(s->path, &so, ignored, &e);
    if (with)
        sample_all(with, o, r);
    source_close(with);
    report_free(ignored);
}

bool mismatch_is(const struct finding *f)
{
    static const char *const codes[] = { "mixed_saves", "other_rank", "bf16_master", "negative_exp_avg_sq" };

    for (int i = 0; i < 4; i++)
        if (strcmp(f->code, codes[i]) == 0)
            return true;
    return false;
}
