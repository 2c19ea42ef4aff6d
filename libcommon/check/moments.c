/* moments.c - compare exp_avg with exp_avg_sq, in samples and in whole tensors */
#include "libcommon/check/moments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/plan/tmap.h"

/* ---- bounds ---- */

/* Returns the bound for the betas in the settings of a group, or 0 if the settings give no bound. */
static double bound_of_settings(const struct pk *settings)
{
    double b1, b2;

    if (!optim_settings_betas(settings, &b1, &b2) || !(b1 >= 0 && b1 < 1 && b2 > b1 * b1 && b2 < 1))
        return 0;
    return (1 - b1) * (1 - b1) / (1 - b2) / (1 - b1 * b1 / b2);
}

/* Returns the largest bound of all groups, or 0 if the settings of any group give no bound. */
static double loosest_bound(const struct source *s)
{
    const struct pk *settings;
    double most = 0;

    for (int g = 0; (settings = optim_groups_settings(s, g)) != NULL; g++) {
        const double bound = bound_of_settings(settings);

        if (bound == 0)
            return 0;
        most = fmax(most, bound);
    }
    return most;
}

double *moments_bounds(const struct source *s)
{
    double *most = xcalloc((size_t)source_n_params(s) + 1, sizeof *most);
    const double loosest = loosest_bound(s);
    struct arena *a = arena_new(0);
    struct optim_groups groups;
    struct err e = {0};
    const bool known = optim_groups_read(s, a, &groups, &e) == 0 && groups.n && groups.how != OPTIM_GROUPS_BY_RULE;

    for (int i = 0; i < source_n_params(s); i++)
        most[i] = loosest;
    for (int g = 0; known && g < groups.n; g++)
        for (int i = 0; i < groups.group[g].n; i++) {
            const struct param *p = source_param(s, groups.group[g].param[i]);

            if (p)
                most[source_param_index(s, p)] = bound_of_settings(groups.group[g].settings);
        }
    arena_free(a);
    return most;
}

/* ---- comparison ---- */

/*
 * MARGIN: a violation by less than a tenth is ignored, because rounding changes both moments by 1e-7 of their size.
 * TINY: smaller values of exp_avg are not compared, because their squares may have underflowed. FAR: if the betas were
 * changed during training, a few elements may violate the new bound. The violation is at most the ratio of two bounds;
 * betas of 0.9 and 0.9999 have a bound of 526.
 */
static const float MARGIN = 1.1f, TINY = 1e-15f, FAR = 1e4f;

/*
 * The loops of this section are compiled twice, because they take half the time with vectors of twice the width. Both
 * versions give the same result.
 */
#define TWICE static inline __attribute__((always_inline))

TWICE float float_of_short(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

TWICE void shorten(uint16_t *out, const float *x, uint64_t n, uint32_t up)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof bits);
        out[i] = (uint16_t)((bits >> 16) + up);
    }
}

/* Returns true if an element may violate the limit. count_large() checks the exact conditions. */
TWICE bool any_large(const struct moments_pair *p, uint64_t n, float limit)
{
    uint32_t any = 0;

    if (p->form == MOMENTS_SHORT_AVG) {
        const uint16_t *avg = p->avg;
        const float *sq = p->sq;

#pragma omp simd reduction(| : any)
        for (uint64_t i = 0; i < n; i++)
            any |= float_of_short(avg[i]) * float_of_short(avg[i]) > limit * sq[i];
    } else if (p->form == MOMENTS_SHORT_SQ) {
        const float *avg = p->avg;
        const uint16_t *sq = p->sq;

#pragma omp simd reduction(| : any)
        for (uint64_t i = 0; i < n; i++)
            any |= avg[i] * avg[i] > limit * float_of_short(sq[i]);
    } else {
        const float *avg = p->avg, *sq = p->sq;

#pragma omp simd reduction(| : any)
        for (uint64_t i = 0; i < n; i++)
            any |= avg[i] * avg[i] > limit * sq[i];
    }
    return any != 0;
}

#ifdef __x86_64__
__attribute__((target("avx2")))
static bool any_large_avx2(const struct moments_pair *p, uint64_t n, float limit)
{
    return any_large(p, n, limit);
}

__attribute__((target("avx2")))
static void shorten_avx2(uint16_t *out, const float *x, uint64_t n, uint32_t up)
{
    shorten(out, x, n, up);
}
#endif

static bool has_large(const struct moments_pair *p, uint64_t n, float limit)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return any_large_avx2(p, n, limit);
#endif
    return any_large(p, n, limit);
}

/*
 * Count the elements that violate `limit`, which is the bound with its margin. Elements with a negative exp_avg_sq or
 * an infinite exp_avg are not counted, because they have findings of their own.
 */
static void count_large(struct moments_count *c, const struct moments_pair *p, uint64_t n, float limit)
{
    for (uint64_t i = 0; i < n; i++) {
        const float avg = p->form == MOMENTS_SHORT_AVG ? float_of_short(((const uint16_t *)p->avg)[i])
                                                       : ((const float *)p->avg)[i];
        const float sq = p->form == MOMENTS_SHORT_SQ ? float_of_short(((const uint16_t *)p->sq)[i])
                                                     : ((const float *)p->sq)[i];

        if (!(avg * avg > limit * sq) || !(fabsf(avg) > TINY) || !isfinite(avg) || sq < 0)
            continue;
        if (c->n_large++ == 0)
            c->first = i;
        c->n_far += avg * avg > FAR * limit * sq;
    }
}

void moments_compare(struct moments_count *c, const struct moments_pair *p, uint64_t n, double most)
{
    const float limit = MARGIN * (float)most;

    c->n += n;
    if (most > 0 && has_large(p, n, limit))
        count_large(c, p, n, limit);
}

void moments_shorten(bool is_sq, const float *x, uint64_t n, uint16_t *out)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        shorten_avx2(out, x, n, is_sq);
        return;
    }
#endif
    shorten(out, x, n, is_sq);
}

/*
 * Violations in less than 0.5 % of the elements are ignored if none is far off, because the optimizer's betas may have
 * been changed during training. If the two moments belong to different gradients of the same size, 3 % of the elements
 * violate the bound. If one moment is of another save, nearly all elements do.
 */
bool moments_are_foreign(const struct moments_count *c)
{
    return c->n_far || (c->n_large >= 2 && c->n_large * 200 >= c->n);
}

void moments_report(const struct source *s, const char *param, int file, const struct moments_count *c,
                    enum severity severity, struct report *r)
{
    report_add(r, severity, "moments", files_name(source_files(s), file), ERR_NO_BYTE, param,
               "exp_avg is larger than exp_avg_sq permits in %llu of %llu values compared, so the two moments are from "
               "different gradients", (unsigned long long)c->n_large, (unsigned long long)c->n);
}

/* ---- whole tensors ---- */

bool moments_begin(struct moments_whole *w, const struct param *p, double most)
{
    const struct tmap *avg = p->state[STATE_EXP_AVG], *sq = p->state[STATE_EXP_AVG_SQ];

    *w = (struct moments_whole){ .lock = PTHREAD_MUTEX_INITIALIZER, .sq = sq };
    if (!avg || !sq || avg->dtype != DTYPE_F32 || sq->dtype != DTYPE_F32 || avg->len != sq->len || avg->len == 0 ||
        p->shared_with)
        return false;
    /* The square of a sum of n values is at most n times the sum of their squares. */
    w->most = most * (sq->op == TMAP_SUM ? sq->n_slices : 1);
    w->n_runs = max_u64(1, sq->len / 4 / MOMENTS_RUN);
    return w->most > 0;
}

/*
 * Returns the number of the run that contains an element. The last run also contains the remaining elements, which do
 * not fill a run of their own.
 */
static uint64_t run_of(const struct moments_whole *w, uint64_t elem)
{
    return min_u64(elem / MOMENTS_RUN, w->n_runs - 1);
}

void moments_add(struct moments_whole *w, uint64_t from, const struct moments_pair *p, uint64_t n)
{
    struct moments_pair rest = *p;

    for (uint64_t elem = from / 4, end = elem + n; elem < end; ) {
        const uint64_t run = run_of(w, elem);
        const uint64_t some = (run + 1 == w->n_runs ? end : min_u64(end, (run + 1) * MOMENTS_RUN)) - elem;
        struct moments_count c = {0};

        moments_compare(&c, &rest, some, w->most);
        if (c.n_large) {
            pthread_mutex_lock(&w->lock);
            if (!w->run)
                w->run = xcalloc(w->n_runs, sizeof *w->run);
            if (w->run[run].n_large == 0 || w->run[run].first > elem + c.first)
                w->run[run].first = elem + c.first;
            w->run[run].n_large += (uint32_t)c.n_large;
            w->run[run].n_far += (uint32_t)c.n_far;
            pthread_mutex_unlock(&w->lock);
        }
        elem += some;
        rest.avg = (const uint8_t *)rest.avg + (p->form == MOMENTS_SHORT_AVG ? 2 : 4) * some;
        rest.sq = (const uint8_t *)rest.sq + (p->form == MOMENTS_SHORT_SQ ? 2 : 4) * some;
    }
}

/* Returns the number of the file that holds an element of exp_avg_sq. */
static int file_of_element(const struct source *s, const struct tmap *m, uint64_t elem)
{
    struct tmap_cursor c;
    struct tmap_piece p;

    tmap_begin(&c, m, elem * 4, 4, -1);
    return tmap_next(&c, 4, &p) ? files_record(source_files(s), p.src.record)->file : -1;
}

/* Returns true if the report has a finding "moments" about this file or parameter. */
static bool is_reported(const struct report *r, const char *file, const char *param)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        if (strcmp(f->code, "moments") == 0 && ((f->file && strcmp(f->file, file) == 0) ||
                                                (f->param && strcmp(f->param, param) == 0)))
            return true;
    }
    return false;
}

void moments_end(struct moments_whole *w, const struct source *s, const char *param, struct report *r)
{
    struct moments_count worst = {0};
    int file;

    for (uint64_t i = 0; w->run && i < w->n_runs; i++) {
        const uint64_t n = i + 1 < w->n_runs ? MOMENTS_RUN : w->sq->len / 4 - i * MOMENTS_RUN;
        const struct moments_count c = { n, w->run[i].n_large, w->run[i].n_far, w->run[i].first };

        if (moments_are_foreign(&c) && (c.n_far > worst.n_far ||
                                        (c.n_far == worst.n_far && c.n_large > worst.n_large)))
            worst = c;
    }
    free(w->run);
    w->run = NULL;
    if (worst.n_large == 0)
        return;
    file = file_of_element(s, w->sq, worst.first);
    if (file >= 0 && !is_reported(r, files_name(source_files(s), file), param))
        moments_report(s, param, file, &worst, SEV_ERROR, r);
}
