/*
 * verify_values.c - the checks of values that verify makes while it reads
 *
 * Tensors are read one state at a time and in any order, so the weights and their fp32 masters are never in memory
 * together. Therefore the CRC of the rounded masters is computed while the masters are read, and is compared with the
 * CRC of the weights at the end. Tied copies are compared by their CRCs, too. Only tensors that do not agree are read
 * again, to measure how far they differ; mismatch.h describes how the result is classified.
 *
 * The two moments of a parameter are twins: their chunks are read alternately and compared with each other (moments.h).
 */
#include "libcommon/check/verify_values.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/check/moments.h"
#include "libcommon/check/verify_scan.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/verdict.h"
#include "libcommon/model/params.h"
#include "libcommon/plan/executor.h"

/*
 * A tensor that is read. It is a state of a parameter, the last stage's copy of such a state, or a tensor that is not a
 * parameter.
 */
struct passed {
    const struct param *param;  /* NULL: the tensor is not a parameter */
    bool buffer;                /* the tensor is a buffer of the model */
    bool square;                /* the tensor is the value max_exp_avg_sq, a state of AdamW with amsgrad */
    enum state state;
    bool tied;
    struct crc_sum rounded;     /* for masters: the CRC of the weights to which they round */
    _Atomic uint64_t n_nan, n_inf, n_negative, n_zero;
};

/* Suffix of the name of the largest exp_avg_sq of all steps, in layouts that store it as a value. */
#define MAX_SQUARE ".max_exp_avg_sq"

struct values_check {
    struct source *s;
    int n;
    struct passed *passed;      /* [i]: belongs to item[i] */
    struct scan_item *item;
    char **name;
    int (*of_param)[STATE_N];   /* index of the item of each state of a parameter; -1: none */
    struct moments_whole *moments;      /* for each parameter */
    bool *is_corrupt;           /* for each record: the report has a finding "crc" about it */
    struct twin_chunks twins;
    const struct verify_opts *o;
    struct report *r;
};

/* ---- while tensors are read ---- */

#define BLOCK 1024

static void add_counts(struct passed *p, const struct values *c)
{
    if (c->n_nan)
        p->n_nan += c->n_nan;
    if (c->n_inf)
        p->n_inf += c->n_inf;
    if (c->n_negative)
        p->n_negative += c->n_negative;
    if (c->n_zero)
        p->n_zero += c->n_zero;
}

/*
 * Round fp32 to bf16 or f16, to nearest even. The fast loop is used only if there is no NaN, because it would change
 * some NaNs to infinity.
 */
static void round_block(const float *x, size_t n, bool any_nan, enum dtype weights, uint16_t *out)
{
    if (!any_nan && weights == DTYPE_BF16) {
        #pragma omp simd
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;

            memcpy(&bits, &x[i], sizeof bits);
            out[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = weights == DTYPE_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
}

/*
 * A chunk of one moment that is compared with the chunk of the other moment. w is NULL if the moments are not compared.
 */
struct moments_scan {
    struct moments_whole *w;
    bool is_sq;                 /* this chunk is of exp_avg_sq */
    uint64_t from;
    struct twin_chunk *other;   /* chunk of the other moment in its short form; NULL if it has not been read yet */
    struct twin_chunk *mine;    /* otherwise: buffer for the short form of this chunk */
};

static void scan_moments_begin(struct values_check *v, const struct passed *p, uint64_t from, uint64_t len,
                               struct moments_scan *m)
{
    *m = (struct moments_scan){ .is_sq = p->state == STATE_EXP_AVG_SQ, .from = from };
    if (!p->param || p->tied || (p->state != STATE_EXP_AVG && p->state != STATE_EXP_AVG_SQ) ||
        !(v->moments[p->param - v->s->param].most > 0))
        return;
    m->w = &v->moments[p->param - v->s->param];
    m->other = twin_chunk_pop(&v->twins, m->w, m->is_sq, from);
    if (!m->other)
        m->mine = twin_chunk_new(&v->twins, len / 2);
}

/*
 * Compare n elements, which begin at byte `at` of the chunk, with the chunk of the other moment. If the other chunk has
 * not been read yet, keep the short form of the elements.
 */
static void scan_moments_block(const struct moments_scan *m, uint64_t at, const float *x, uint64_t n)
{
    const struct twin_chunk *other = m->other ? m->other : m->mine;
    uint16_t *half = other ? (uint16_t *)other->bytes + at / 4 : NULL;

    if (!m->other) {
        if (half)
            moments_shorten(m->is_sq, x, n, half);
    } else if (m->is_sq) {
        moments_add(m->w, m->from + at, &(struct moments_pair){ MOMENTS_SHORT_AVG, half, x }, n);
    } else {
        moments_add(m->w, m->from + at, &(struct moments_pair){ MOMENTS_SHORT_SQ, x, half }, n);
    }
}

/* Complete the comparison of the chunk, which has n elements. */
static void scan_moments_end(struct values_check *v, struct moments_scan *m, const uint8_t *b, uint64_t n)
{
    float x[BLOCK];

    if (m->mine && (m->other = twin_chunk_leave(&v->twins, m->mine, m->w, m->is_sq, m->from)))
        for (uint64_t i = 0; i < n; i += BLOCK) {
            memcpy(x, b + 4 * i, 4 * min_u64(BLOCK, n - i));
            scan_moments_block(m, 4 * i, x, min_u64(BLOCK, n - i));
        }
    if (m->other)
        twin_chunk_release(&v->twins, m->other);
}

/* Returns true if the elements are means of squares, which are not negative. */
static bool is_of_squares(const struct passed *p)
{
    return p->square || (p->param && p->state == STATE_EXP_AVG_SQ);
}

static void scan_f32_bytes(struct values_check *v, struct passed *p, uint64_t total, uint64_t from, const uint8_t *b,
                           uint64_t len)
{
    float x[BLOCK];
    uint16_t rounded[BLOCK];
    uint32_t crc = 0;
    const struct tmap *weights = p->param && p->state == STATE_FP32 && !p->tied ? p->param->state[STATE_BF16] : NULL;
    bool want_rounded = weights && (weights->dtype == DTYPE_BF16 || weights->dtype == DTYPE_F16);
    struct moments_scan moments;

    scan_moments_begin(v, p, from, len, &moments);
    for (uint64_t at = 0; at < len; at += sizeof x) {
        size_t n = (size_t)min_u64(sizeof x, len - at) / 4;
        struct values c = {0};

        memcpy(x, b + at, n * 4);
        values_add(&c, DTYPE_F32, x, n * 4, is_of_squares(p));
        add_counts(p, &c);
        scan_moments_block(&moments, at, x, n);
        if (want_rounded) {
            round_block(x, n, c.n_nan > 0, weights->dtype, rounded);
            crc = crc_bytes(crc, rounded, n * 2);
        }
    }
    scan_moments_end(v, &moments, b, len / 4);
    if (want_rounded)
        crc_sum_add(&p->rounded, total / 2, from / 2, len / 2, crc);
}

static void on_scanned_bytes(void *ctx, int item, uint64_t from, const void *bytes, uint64_t len)
{
    struct values_check *v = ctx;
    const struct tmap *m = v->item[item].map;
    struct passed *p = &v->passed[item];
    struct values c = {0};

    if (p->param && p->param->scale) {
        values_add_scales(&c, param_scale_type(p->param, m->dtype), bytes, len);
        add_counts(p, &c);
        return;
    }
    if (m->dtype == DTYPE_F32) {
        scan_f32_bytes(v, p, m->len, from, bytes, len);
        return;
    }
    values_add(&c, m->dtype, bytes, len, is_of_squares(p));
    add_counts(p, &c);
}

/* ---- list of the tensors to read ---- */

static int add_passed_tensor(struct values_check *v, const struct param *p, enum state st, bool tied)
{
    int i = v->n++;

    v->passed[i].param = p;
    v->passed[i].state = st;
    v->passed[i].tied = tied;
    v->name[i] = str_fmt("%s %s%s", p->name, state_name(st), tied ? " (last stage)" : "");
    v->item[i].map = tied ? p->tied[st] : p->state[st];
    v->item[i].name = v->name[i];
    return i;
}

static void list_passed_tensors(struct values_check *v)
{
    size_t room = (size_t)v->s->n_params * STATE_N * 2 + (size_t)v->s->n_values + 1;
    double *most;

    v->passed = xcalloc(room, sizeof *v->passed);
    v->item = xcalloc(room, sizeof *v->item);
    v->name = xcalloc(room, sizeof *v->name);
    v->of_param = xcalloc((size_t)v->s->n_params + 1, sizeof *v->of_param);
    v->moments = xcalloc((size_t)v->s->n_params + 1, sizeof *v->moments);
    twin_chunks_init(&v->twins);
    most = moments_bounds(v->s);
    for (int i = 0; i < v->s->n_params; i++) {
        const struct param *p = &v->s->param[i];
        int *item = v->of_param[i];

        /*
         * If a parameter shares the tensors of another parameter, the tensors are read only once, for the other
         * parameter.
         */
        for (enum state st = 0; st < STATE_N; st++)
            item[st] = p->state[st] && !p->shared_with ? add_passed_tensor(v, p, st, false) : -1;
        for (enum state st = 0; st < STATE_N; st++)
            if (p->tied[st])
                add_passed_tensor(v, p, st, true);
        if (moments_begin(&v->moments[i], p, most[i]))
            v->item[item[STATE_EXP_AVG]].twins = true;
    }
    free(most);
    for (int i = 0; i < v->s->n_values; i++)
        if (v->s->value[i].map) {
            v->name[v->n] = xstrdup(v->s->value[i].name);
            v->item[v->n] = (struct scan_item){ .map = v->s->value[i].map, .name = v->name[v->n] };
            v->passed[v->n].buffer = v->s->value[i].buffer;
            v->passed[v->n].square = str_ends(v->name[v->n], MAX_SQUARE);
            v->n++;
        }
}

static void values_free(struct values_check *v)
{
    for (int i = 0; i < v->n; i++)
        free(v->name[i]);
    free(v->name);
    free(v->passed);
    free(v->item);
    free(v->of_param);
    free(v->is_corrupt);
    for (int i = 0; i < v->s->n_params; i++)
        free(v->moments[i].run);
    free(v->moments);
    twin_chunks_free(&v->twins);
}

/* ---- records that are corrupt ---- */

/*
 * Returns the file and the byte of a finding as a key, or NULL if the finding has none. A finding made from an error
 * consists of one text: "FILE: at byte N: ...".
 */
static const char *place_of_finding(struct arena *a, const struct finding *f)
{
    static const char word[] = ": at byte ";
    const char *at = f->file ? NULL : strstr(f->text, word);

    if (f->file)
        return arena_fmt(a, "%llu %s", (unsigned long long)f->at, f->file);
    return at ? arena_fmt(a, "%llu %.*s", strtoull(at + sizeof word - 1, NULL, 10), (int)(at - f->text), f->text)
              : NULL;
}

/* Set v->is_corrupt from the findings "crc" of the report. */
static void mark_corrupt_records(struct values_check *v)
{
    const int n = files_n_records(v->s->files);
    struct arena *a = arena_new(0);
    struct names *places = names_new(a);
    int n_places = 0;

    v->is_corrupt = xcalloc((size_t)n + 1, sizeof *v->is_corrupt);
    for (int i = 0; i < report_n(v->r); i++) {
        const struct finding *f = report_get(v->r, i);
        const char *place = strcmp(f->code, "crc") == 0 ? place_of_finding(a, f) : NULL;

        if (place)
            names_add(places, place, n_places++);
    }
    for (int i = 0; n_places && i < n; i++) {
        const struct record *rec = files_record(v->s->files, i);
        char *place = str_fmt("%llu %s", (unsigned long long)rec->at, files_name(v->s->files, rec->file));

        v->is_corrupt[i] = names_find(places, place) >= 0;
        free(place);
    }
    arena_free(a);
}

/*
 * Returns true if a record of the map is corrupt. Wrong values that result from this are not reported, because the
 * corrupt record is.
 */
static bool is_corrupt_map(const struct values_check *v, const struct tmap *m)
{
    for (int k = 0; m && k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++)
            if (v->is_corrupt[m->slice[k].extent[i].record])
                return true;
    return false;
}

/* Returns true if a record of any state of the parameter is corrupt. */
static bool is_corrupt_param(const struct values_check *v, const struct param *p)
{
    bool corrupt = is_corrupt_map(v, p->copy);

    for (enum state st = 0; st < STATE_N && !corrupt; st++)
        corrupt = is_corrupt_map(v, p->state[st]) || is_corrupt_map(v, p->tied[st]);
    return corrupt;
}

/* ---- checks after the pass ---- */

/* Returns the distance between two maps, for use in a message. All members are zero if the maps cannot be read. */
static struct stats_diff distance(struct values_check *v, const struct tmap *a, const struct tmap *b)
{
    struct stats_job job = { .a = a, .a_files = v->s->files, .b = b, .b_files = v->s->files, .len = a->len };
    struct stats_opts so = { .threads = v->o->threads, .mem_bytes = v->o->mem_bytes, .replicas = REPLICAS_FIRST,
                             .stopped = v->o->stopped, .report = report_new() };   /* gets damage that the main
                                                                                    * report already has */
    struct err e = {0};

    if (stats_run(&job, 1, &so, &e) < 0)
        memset(&job.diff, 0, sizeof job.diff);
    report_free(so.report);
    return job.diff;
}

static struct verdict_of verdict_of_item(const struct values_check *v, int i, const char *what)
{
    const struct param *p = v->passed[i].param;

    return (struct verdict_of){ .s = v->s, .param = p ? p->name : v->name[i], .what = what, .map = v->item[i].map,
                                .trained = p && p->state[STATE_EXP_AVG], .severity = SEV_ERROR,
                                .scale = p ? p->scale : SCALE_NONE };
}

static struct values counts_of(const struct passed *p)
{
    return (struct values){ p->n_nan, p->n_inf, p->n_negative, p->n_zero };
}

/*
 * Returns the number of elements of `sq` that are larger than the same elements of `most`. Elements that cannot be read
 * are not counted.
 */
static uint64_t count_larger(struct values_check *v, const struct tmap *sq, const struct tmap *most)
{
    enum { N = 1 << 15 };
    const uint64_t size = (uint64_t)dtype_size(sq->dtype), elems = sq->len / size;
    char *x = xmalloc(N * size), *y = xmalloc(N * size);
    uint64_t larger = 0;
    struct err e = {0};

    for (uint64_t at = 0; at < elems; at += N) {
        const struct tmap_range r = { 0, at * size, min_u64(N, elems - at) * size };

        if (tmap_read(sq, v->s->files, r, x, &e) < 0 || tmap_read(most, v->s->files, r, y, &e) < 0)
            break;
        for (uint64_t i = 0; i < r.len; i += size)
            larger += dtype_value(sq->dtype, x + i) > dtype_value(sq->dtype, y + i);
    }
    free(x);
    free(y);
    return larger;
}

/* Compare max_exp_avg_sq, the largest exp_avg_sq of all steps, with the present exp_avg_sq of the parameter. */
static void check_max_square(struct values_check *v, int i)
{
    const struct tmap *most = v->item[i].map, *sq = NULL;
    char *name = str_fmt("%.*s.exp_avg_sq", (int)(strlen(v->name[i]) - strlen(MAX_SQUARE)), v->name[i]);
    struct source_hit hit;
    uint64_t n;

    if (source_find(v->s, name, &hit))
        sq = hit.param && hit.state >= 0 ? hit.param->state[hit.state] : hit.value ? hit.value->map : NULL;
    if (sq && sq->dtype == most->dtype && sq->len == most->len && !is_corrupt_map(v, sq) && !is_corrupt_map(v, most)) {
        n = count_larger(v, sq, most);
        if (n)
            report_add(v->r, SEV_ERROR, "moments", NULL, ERR_NO_BYTE, v->name[i],
                       "is smaller than exp_avg_sq in %llu of %llu elements, but it is the largest exp_avg_sq of all "
                       "steps", (unsigned long long)n, (unsigned long long)(sq->len / (uint64_t)dtype_size(sq->dtype)));
    }
    free(name);
}

/*
 * Check a tensor that is not a parameter. Infinities in a buffer may be intended, because some masks contain them. A
 * tensor that does not belong to the model may have any values, so NaN in it is only a warning.
 */
static void check_nonparam_value(struct values_check *v, int i)
{
    struct verdict_of of = verdict_of_item(v, i, "");
    const struct values counts = counts_of(&v->passed[i]);

    if (v->passed[i].square) {
        verdict_values(&of, &counts, v->r);
        check_max_square(v, i);
        return;
    }
    of.severity = !counts.n_nan ? SEV_NOTE : v->passed[i].buffer ? SEV_ERROR : SEV_WARNING;
    verdict_values(&of, &counts, v->r);
}

static void check_passed_tensor(struct values_check *v, int i)
{
    struct passed *p = &v->passed[i];
    struct scan_item *it = &v->item[i];
    char *what = str_fmt("%s%s", state_name(p->state), p->tied ? " of the last stage" : "");
    const struct verdict_of of = verdict_of_item(v, i, what);
    const struct values counts = counts_of(p);

    if (!is_corrupt_map(v, it->map)) {
        if (!p->tied && p->param->has_digest[p->state] && p->param->digest[p->state] != it->crc)
            report_add(v->r, SEV_ERROR, "digest", NULL, ERR_NO_BYTE, of.param,
                       "%s has digest %08x, but the manifest lists %08x", what, it->crc,
                       p->param->digest[p->state]);
        verdict_values(&of, &counts, v->r);
        if (!p->tied)
            verdict_replicas(&of, it->n_differ, v->o->allow_drift, v->r);
    }
    free(what);
}

static void check_tied_copy(struct values_check *v, int i, const struct scan_item *first)
{
    const struct verdict_of of = verdict_of_item(v, i, state_name(v->passed[i].state));
    struct stats_diff d;

    if (!verdict_tie_is_kept(v->passed[i].param) || !first || !first->seen ||
        first->crc == v->item[i].crc || is_corrupt_map(v, first->map) || is_corrupt_map(v, v->item[i].map))
        return;
    d = distance(v, first->map, v->item[i].map);
    verdict_tied(&of, &d, v->r);
}

/*
 * Add to *c the number of weights that are not the rounded masters. If a map has replicas, its first copy is compared.
 */
static void count_not_rounded(struct values_check *v, const struct tmap *weights, const struct tmap *fp32,
                              struct mismatch_count *c)
{
    enum { N = 1 << 16 };
    const uint64_t size = (uint64_t)dtype_size(weights->dtype), elems = weights->len / size;
    uint32_t *have = xmalloc(N * 4), *master = xmalloc(N * 4);
    struct err e = {0};

    for (uint64_t at = 0; at < elems; at += N) {
        uint64_t n = min_u64(N, elems - at);

        if (tmap_read(weights, v->s->files, (struct tmap_range){ 0, at * size, n * size }, have, &e) < 0 ||
            tmap_read(fp32, v->s->files, (struct tmap_range){ 0, at * 4, n * 4 }, master, &e) < 0)
            break;
        mismatch_compare(c, weights->dtype, have, master, n);
    }
    free(have);
    free(master);
}

/* Returns a map of slice k of `m` alone. Every slice of `m` must cover the whole tensor. */
static struct tmap single_slice_map(const struct tmap *m, int k)
{
    return (struct tmap){ .op = TMAP_CONCAT, .dtype = m->dtype, .len = m->len, .n_slices = 1, .slice = &m->slice[k] };
}

/*
 * Count the weights that are not the rounded masters. For a TMAP_SUM, each part is compared with its own master,
 * because the sum of rounded parts is not the rounded sum.
 */
static struct mismatch_count compare_masters(struct values_check *v, const struct tmap *weights,
                                             const struct tmap *fp32)
{
    struct mismatch_count c = {0};

    if (weights->op != TMAP_SUM || fp32->op != TMAP_SUM || weights->n_slices != fp32->n_slices) {
        count_not_rounded(v, weights, fp32, &c);
        return c;
    }
    for (int k = 0; k < weights->n_slices; k++) {
        const struct tmap w = single_slice_map(weights, k), m = single_slice_map(fp32, k);

        count_not_rounded(v, &w, &m, &c);
    }
    return c;
}

static void check_weight_rounding(struct values_check *v, const struct param *p, const int of_state[STATE_N])
{
    int b = of_state[STATE_BF16], m = of_state[STATE_FP32];
    const struct tmap *weights = b >= 0 ? v->item[b].map : p->copy;
    const struct scan_item *fp32;
    enum mismatch_rule rule = mismatch_rule_of(v->s, p);
    struct mismatch_count c;
    enum severity severity;

    if (!weights || m < 0)
        return;
    fp32 = &v->item[m];
    if (is_corrupt_map(v, weights) || is_corrupt_map(v, fp32->map))
        return;
    if ((b >= 0 && !v->item[b].seen) || !fp32->seen || !mismatch_can_compare(weights, fp32->map) ||
        (b >= 0 && v->item[b].crc == (weights->dtype == DTYPE_F32 ? fp32->crc : v->passed[m].rounded.acc)))
        return;
    /*
     * A run with --sync-tp-duplicated-parameters averages the copies of the weights at every step, but not those of the
     * masters. In such a run, differences between weights and masters are expected.
     */
    if (p->merge == MERGE_REPLICATED && b >= 0 && v->item[b].n_differ == 0 && fp32->n_differ > 0)
        rule = MISMATCH_FREE;
    c = compare_masters(v, weights, fp32->map);
    if (c.n_differ == 0 && (b < 0 || weights->op == TMAP_SUM))
        return;
    severity = mismatch_classify(&c, rule);
    report_add(v->r, severity, "bf16_master", NULL, ERR_NO_BYTE, p->name,
               "%s differs from its rounded fp32 master in %llu of %llu elements%s", dtype_name(weights->dtype),
               (unsigned long long)c.n_differ, (unsigned long long)(fp32->map->len / 4),
               severity == SEV_ERROR ? ": they are from different saves, or damaged"
               : rule == MISMATCH_FREE ? " (bf16 copies are synchronised, the masters are not)" : "");
}

static void check_passed_tensors(struct values_check *v)
{
    for (int i = 0; i < v->n; i++) {
        const struct param *param = v->passed[i].param;
        int first = param ? v->of_param[param - v->s->param][v->passed[i].state] : -1;

        if (v->item[i].seen && !param && !is_corrupt_map(v, v->item[i].map))
            check_nonparam_value(v, i);
        if (!v->item[i].seen || !param)
            continue;
        check_passed_tensor(v, i);
        if (v->passed[i].tied)
            check_tied_copy(v, i, first >= 0 ? &v->item[first] : NULL);
    }
    for (int i = 0; i < v->s->n_params; i++)
        check_weight_rounding(v, &v->s->param[i], v->of_param[i]);
}

/* ---- padding ---- */

static int extent_cmp(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    if (x->record != y->record)
        return x->record < y->record ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Returns the extents of all tensors, sorted by record and offset. The caller frees the array. */
static struct extent *all_extents(const struct values_check *v, size_t *n)
{
    struct extent *x = NULL;
    size_t cap = 0;

    *n = 0;
    for (int i = 0; i < v->n; i++)
        for (int k = 0; k < v->item[i].map->n_slices; k++) {
            const struct tmap_slice *slice = &v->item[i].map->slice[k];

            if (slice->n_extents == 0)
                continue;
            ARRAY_ROOM(x, cap, *n + (size_t)slice->n_extents);
            memcpy(x + *n, slice->extent, (size_t)slice->n_extents * sizeof *x);
            *n += (size_t)slice->n_extents;
        }
    if (*n)
        qsort(x, *n, sizeof *x, extent_cmp);
    return x;
}

static void check_tail(struct values_check *v, int record, uint64_t end)
{
    const struct record *rec = files_record(v->s->files, record);
    struct extent tail = { .record = record, .at = end, .len = rec->len - end };
    struct err e = {0};
    uint8_t *buf;
    uint64_t n = 0;

    buf = xmalloc(tail.len);
    if (files_read_extent(v->s->files, &tail, buf, &e) == 0)
        for (uint64_t i = 0; i + 4 <= tail.len; i += 4)
            n += (get_le32(buf + i) & 0x7fffffff) != 0;
    if (n)
        report_add(v->r, SEV_WARNING, "padding", files_name(v->s->files, rec->file), rec->at + end, NULL,
                   "%llu of %llu padding elements of record %s are not zero", (unsigned long long)n,
                   (unsigned long long)tail.len / 4, rec->name);
    free(buf);
}

/*
 * Check the padding that follows the last parameter of a flat partition. The padding aligns the partition and has fewer
 * than 2 * DP elements (docs/formats.md, section 4.5). If more elements follow, they are not padding, and are not
 * checked.
 */
static void check_padding(struct values_check *v)
{
    const uint64_t limit = 4 * source_padding_limit(v->s);
    uint64_t end = 0;
    size_t n;
    struct extent *x;

    if (limit == 0)
        return;
    x = all_extents(v, &n);
    for (size_t i = 0; i < n; i++) {
        const struct record *rec = files_record(v->s->files, x[i].record);
        bool last = i + 1 == n || x[i + 1].record != x[i].record;

        end = max_u64(end, x[i].at + x[i].len);
        if (!last)
            continue;
        if (end < rec->len && rec->len - end < limit)
            check_tail(v, x[i].record, end);
        end = 0;
    }
    free(x);
}

/* Compare whole files with the manifest. Ranges that scan_run() has hashed are not read again; their CRCs are used. */
static int check_manifest_files(struct source *s, const struct scan_item *item, int n_items, struct report *r,
                                struct err *e)
{
    struct manifest_run *run;
    int n, rc;

    if (!source_file(s, MANIFEST_NAME))
        return 0;
    n = scan_runs(s, item, n_items, &run);
    rc = manifest_check(s, run, n, r, e);
    free(run);
    return rc;
}

int verify_listed(struct source *s, struct report *r, struct err *e)
{
    struct report *found = report_new();
    int rc = check_manifest_files(s, NULL, 0, found, e);

    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        /*
         * A warning concerns a file that does not belong to the layout, such as a README. Such warnings are not added
         * to the report.
         */
        if (f->severity == SEV_WARNING)
            continue;
        report_add(r, s->accept_mismatch ? SEV_WARNING : f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    return rc;
}

static void check_manifest(struct values_check *v)
{
    struct err e = {0};

    if (check_manifest_files(v->s, v->item, v->n, v->r, &e) < 0)
        report_add_err(v->r, "read", &e);
}

static int compare_verify_runs(const void *a, const void *b)
{
    const struct verify_run *x = a, *y = b;
    int order = strcmp(x->path, y->path);

    return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* List the ranges that the scan read, with their paths on disk. */
static void list_scanned_runs(const struct values_check *v, struct verify_runs *out)
{
    struct manifest_run *run;
    int n = scan_runs(v->s, v->item, v->n, &run);

    out->run = xcalloc((size_t)n + 1, sizeof *out->run);
    for (int i = 0; i < n; i++) {
        uint64_t at = run[i].at, base;
        int file = files_home(v->s->files, run[i].file, &at);
        const char *path = files_path(v->s->files, file, &base);

        /* the path is NULL for members that were unpacked into memory or a spool file */
        if (path)
            out->run[out->n++] = (struct verify_run){ xstrdup(path), base + at, run[i].len, run[i].crc };
    }
    if (out->n)
        qsort(out->run, (size_t)out->n, sizeof *out->run, compare_verify_runs);
    free(run);
}

/* If weights do not match their masters, report which files are of another save. */
static void name_foreign_files(const struct source *s, int threads, struct report *r)
{
    struct report *found = report_new();
    bool differ = false;

    for (int i = 0; i < report_n(r); i++)
        differ |= report_get(r, i)->severity == SEV_ERROR && strcmp(report_get(r, i)->code, "bf16_master") == 0;
    if (differ)
        mismatch_find_foreign(s, NULL, threads, found);
    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        if (strcmp(f->code, MISMATCH_FOREIGN_FILE) == 0)
            report_add(r, f->severity, f->code, f->file, f->at, NULL, "%s", f->text);
    }
    report_free(found);
}

/*
 * Compare the two moments: all elements, and samples of the pieces. Also compare samples of the ranks. Findings about
 * corrupt parameters are dropped.
 */
static void check_moments(struct values_check *v)
{
    const struct mismatch_opts mo = { .moments_only = true, .threads = v->o->threads };
    struct report *found = report_new();

    mismatch_sample(v->s, &mo, found);
    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);
        const struct param *p = f->param ? source_param(v->s, f->param) : NULL;

        if (!p || !is_corrupt_param(v, p))
            report_add(v->r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    for (int i = 0; i < v->s->n_params; i++)
        if (!is_corrupt_param(v, &v->s->param[i]))
            moments_end(&v->moments[i], v->s, v->s->param[i].name, v->r);
}

int values_check(struct source *s, const struct scan_zip *zip, int n_zips, const struct verify_opts *o,
                 struct report *r, struct err *e)
{
    struct values_check v = { .s = s, .o = o, .r = r };
    int rc;

    list_passed_tensors(&v);
    rc = scan_run(s, &(struct scan_list){ zip, n_zips, v.item, v.n, on_scanned_bytes, &v }, o, r, e);
    if (rc == 0) {
        mark_corrupt_records(&v);
        check_passed_tensors(&v);
        name_foreign_files(s, o->threads, r);
        check_moments(&v);
        check_padding(&v);
        check_manifest(&v);
        if (o->runs)
            list_scanned_runs(&v, o->runs);
    }
    values_free(&v);
    return rc;
}
