/* past.c - add points and events, and compute their positions on the axes */
#include "tools/run-watch/past/past.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

struct past *past_new(const char *name)
{
    struct past *p = xcalloc(1, sizeof *p);

    p->name = xstrdup(name);
    p->train_iters = -1;
    return p;
}

void past_free(struct past *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_sets; i++) {
        free(p->set[i].name);
        free(p->set[i].p);
    }
    for (int i = 0; i < p->n_events; i++)
        free(p->event[i].text);
    json_decref(p->status);
    free(p->point);
    free(p->stretch);
    free(p->set);
    free(p->event);
    free(p->slow);
    free(p->name);
    free(p);
}

/* ---- adding ---- */

struct past_point *past_add_point(struct past *p, int64_t iteration)
{
    struct past_point *x;

    ARRAY_ROOM(p->point, p->cap, p->n + 1);
    x = &p->point[p->n++];
    *x = (struct past_point){ .iteration = iteration, .at_s = NAN, .samples = NAN, .tokens = NAN, .elapsed_s = NAN };
    for (int i = 0; i < PAST_VALUES; i++)
        x->v[i] = (double)NAN;
    return x;
}

static struct past_set *get_past_set(struct past *p, const char *name)
{
    for (int i = 0; i < p->n_sets; i++)
        if (strcmp(p->set[i].name, name) == 0)
            return &p->set[i];
    ARRAY_ROOM(p->set, p->cap_sets, p->n_sets + 1);
    p->set[p->n_sets] = (struct past_set){ .name = xstrdup(name) };
    return &p->set[p->n_sets++];
}

void past_add_valid(struct past *p, const char *name, int64_t iteration, double loss, double at_s)
{
    struct past_set *s = get_past_set(p, name);

    ARRAY_ROOM(s->p, s->cap, s->n + 1);
    s->p[s->n++] = (struct past_valid){ .iteration = iteration, .loss = loss, .at_s = at_s, .samples = NAN,
                                        .tokens = NAN };
}

struct past_event *past_add_event(struct past *p, enum past_kind kind, int64_t iteration, double at_s,
                                  const char *text)
{
    struct past_event *v;

    ARRAY_ROOM(p->event, p->cap_events, p->n_events + 1);
    v = &p->event[p->n_events++];
    *v = (struct past_event){ .kind = kind, .iteration = iteration, .at_s = at_s, .samples = NAN, .tokens = NAN,
                              .text = xstrdup(text), .after = p->n };
    err_clean(v->text);
    return v;
}

/* ---- times ---- */

static int by_iteration_gap(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Returns the median number of iterations between two consecutive lines of the log. */
static int64_t usual_stride(const struct past *p)
{
    int64_t *d = xcalloc((size_t)p->n + 1, sizeof *d), middle;
    int n = 0;

    for (int i = 1; i < p->n; i++)
        if (!p->point[i].first && p->point[i].iteration > p->point[i - 1].iteration)
            d[n++] = p->point[i].iteration - p->point[i - 1].iteration;
    qsort(d, (size_t)n, sizeof *d, by_iteration_gap);
    middle = n ? d[n / 2] : 1;
    free(d);
    return middle;
}

/*
 * Compute the times at which the iterations ended. The event of a start has a time; the times after it are the sums of
 * the iterations' durations.
 */
static void fill_times(struct past *p)
{
    const int64_t stride = usual_stride(p);
    double at = 0;
    int next = 0;

    for (int i = 0; i < p->n; i++) {
        struct past_point *x = &p->point[i];
        int64_t done = i && !x->first && x->iteration > x[-1].iteration ? x->iteration - x[-1].iteration : stride;

        for (; next < p->n_events && p->event[next].after <= i; next++)
            if (p->event[next].kind == PAST_START && isfinite(p->event[next].at_s))
                at = p->event[next].at_s;
        if (isfinite(x->at_s))
            at = x->at_s;
        else
            at += isfinite(x->elapsed_s) ? (double)done * x->elapsed_s : 0;
        x->at_s = at;
    }
}

/*
 * Set p->dated if all points have calendar times. If not, shift the times so that they are continuous, because the
 * files may not have been read in the order in which they were written.
 */
static void shift_undated(struct past *p)
{
    p->dated = p->n > 0 && p->point[0].at_s > 1e8;
    for (int i = 0; i < p->n; i++)
        p->dated = p->dated && p->point[i].at_s > 1e8;
    if (p->dated)
        return;
    /* Some times are not calendar times, so only differences are meaningful. */
    for (int i = 1; i < p->n; i++)
        if (p->point[i].at_s < p->point[i - 1].at_s || p->point[i].at_s - p->point[i - 1].at_s > 1e8) {
            double by = p->point[i].at_s - p->point[i - 1].at_s -
                        (isfinite(p->point[i].elapsed_s) ? p->point[i].elapsed_s : 0);

            for (int k = i; k < p->n; k++)
                p->point[k].at_s -= by;
        }
}

/* ---- positions ---- */

/*
 * Divide the points into stretches in which the iterations increase, so that each stretch can be searched by bisection.
 * A new stretch begins where the iteration does not increase.
 */
static void cut_stretches(struct past *p)
{
    int cap = 0;

    for (int i = 0; i < p->n; i++)
        if (i == 0 || p->point[i].first || p->point[i].iteration <= p->point[i - 1].iteration) {
            p->point[i].first = true;
            ARRAY_ROOM(p->stretch, cap, p->n_stretches + 1);
            p->stretch[p->n_stretches++] = i;
        }
}

/*
 * Returns the index of the last point in [from, to) whose iteration is at most `iteration`, or from - 1 if there is
 * none.
 */
static int find_below(const struct past *p, int from, int to, int64_t iteration)
{
    while (from < to) {
        int middle = from + (to - from) / 2;

        if (p->point[middle].iteration <= iteration)
            from = middle + 1;
        else
            to = middle;
    }
    return from - 1;
}

/*
 * Returns the index of the last point at or before `iteration`, or -1 if there is none. If several stretches contain
 * such a point, returns the one nearest to index `near`.
 */
static int find_point(const struct past *p, int64_t iteration, int near)
{
    int64_t best_off = INT64_MAX;
    int best = -1;

    for (int s = 0; s < p->n_stretches; s++) {
        const int from = p->stretch[s], to = s + 1 < p->n_stretches ? p->stretch[s + 1] : p->n;
        const int at = find_below(p, from, to, iteration);
        int64_t off = llabs((long long)at - near);

        if (at < from)
            continue;
        /* Prefer points with exactly this iteration. Among equal points, prefer the nearest. */
        off += p->point[at].iteration < iteration ? INT64_C(1) << 40 : 0;
        if (off < best_off) {
            best_off = off;
            best = at;
        }
    }
    return best;
}

/* Returns the index of the last point whose iteration ended at or before `at_s`, or -1 if there is none. */
static int find_time(const struct past *p, double at_s)
{
    int from = 0, to = p->n;

    while (from < to) {
        int middle = from + (to - from) / 2;

        if (p->point[middle].at_s <= at_s)
            from = middle + 1;
        else
            to = middle;
    }
    return from - 1;
}

/* Returns the index of the point to which an event belongs; -1 if the event was before the first point. */
static int point_of_event(const struct past *p, const struct past_event *v)
{
    int at = v->iteration >= 0 ? find_point(p, v->iteration, v->after) : -1;

    /*
     * A start belongs to the first iteration after it, and a stop to the last iteration before it. The times in the log
     * are whole seconds, which is not precise enough to determine this.
     */
    if (v->kind == PAST_START)
        return v->after < p->n ? v->after : p->n - 1;
    if (v->kind == PAST_STOP)
        return v->after - 1;
    if (at < 0 && isfinite(v->at_s))
        return find_time(p, v->at_s);
    return at < 0 && v->after > 0 ? v->after - 1 : at;
}

static void place_event(struct past *p, struct past_event *v)
{
    int at;

    /* Do not compare the calendar time of an event with points that have no calendar times. */
    if (!p->dated)
        v->at_s = NAN;
    at = point_of_event(p, v);
    v->samples = at >= 0 ? p->point[at].samples : 0;
    v->tokens = at >= 0 ? p->point[at].tokens : 0;
    if (v->iteration < 0)
        v->iteration = at >= 0 ? p->point[at].iteration : 0;
    if (!isfinite(v->at_s))
        v->at_s = at >= 0 ? p->point[at].at_s : p->n ? p->point[0].at_s : 0;
}

static int by_kind_and_time(const void *a, const void *b)
{
    const struct past_event *x = a, *y = b;

    if (x->kind != y->kind)
        return (x->kind > y->kind) - (x->kind < y->kind);
    if (x->at_s != y->at_s)
        return (x->at_s > y->at_s) - (x->at_s < y->at_s);
    return (x->after > y->after) - (x->after < y->after);
}

static void place_valid(const struct past *p, struct past_valid *v)
{
    int at = find_point(p, v->iteration, p->n);

    if (at < 0)
        return;
    v->samples = p->point[at].samples;
    v->tokens = p->point[at].tokens;
    if (!isfinite(v->at_s))
        v->at_s = p->point[at].at_s;
}

/* Merge the two events that one save may have: the line in the log and the checkpoint folder. */
static void join_saves(struct past *p)
{
    int n = 0;

    for (int i = 0; i < p->n_events; i++) {
        struct past_event *v = &p->event[i], *other = NULL;

        for (int k = n - 1; v->kind == PAST_SAVE && k >= 0 && !other; k--)
            if (p->event[k].kind == PAST_SAVE && p->event[k].iteration == v->iteration && v->kept != p->event[k].kept)
                other = &p->event[k];
        if (other) {
            other->kept = true;
            free(v->text);
        } else {
            p->event[n++] = *v;
        }
    }
    p->n_events = n;
}

bool past_resolve(struct past *p)
{
    cut_stretches(p);
    fill_times(p);
    shift_undated(p);
    join_saves(p);
    for (int i = 0; i < p->n_events; i++)
        place_event(p, &p->event[i]);
    if (p->n_events)
        qsort(p->event, (size_t)p->n_events, sizeof *p->event, by_kind_and_time);
    for (int s = 0; s < p->n_sets; s++)
        for (int i = 0; i < p->set[s].n; i++)
            place_valid(p, &p->set[s].p[i]);
    for (int i = 0; i < p->n_slow; i++) {
        int at = find_point(p, p->slow[i].iteration, p->slow[i].after);

        p->slow[i].at_s = at >= 0 ? p->point[at].at_s : 0;
    }
    return p->n > 0;
}

int64_t past_repeated(const struct past *p)
{
    int64_t n = 0, most = -1;

    for (int i = 0; i < p->n; i++) {
        const int64_t step = i && !p->point[i].first && p->point[i].iteration > p->point[i - 1].iteration
                             ? p->point[i].iteration - p->point[i - 1].iteration : 1;

        if (p->point[i].iteration <= most)
            n += step;
        else
            most = p->point[i].iteration;
    }
    return n;
}
