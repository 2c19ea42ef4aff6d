/*
 * page_run.c - write a run as JSON, in columns of numbers, so that a hundred thousand of them stay small
 *
 *     {"name", "dated", "t0", "status", "facts",
 *      "x": {"iteration", "samples", "tokens", "time"}, "breaks",      points of all curves; time is relative to t0;
 *                                                       tokens: a number if it is the same for each sample, or null
 *      "series": {"loss": {"rows", "y"}, ...},          rows: indices in x; omitted if it is all of them
 *      "valid": [{"name", x..., "y"}],
 *      "events": {"save": {x..., "text", "kept"}, ...},
 *      "slow": {"width_s", "cells": [{"rank", "host", "at", "n", "of", "above"}]}}      at: index of a range of width_s
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "tools/run-watch/picture/page_impl.h"
#include "tools/run-watch/picture/thin.h"

static const char *const value_name[PAST_VALUES] = { "loss", "norm", "lr", "batch", "scale", "samples_s", "tflops" };
static const char *const kind_name[PAST_KINDS] = { "start", "stop", "save", "backup", "incident" };
enum { STRIDE = sizeof(struct past_point) / sizeof(double), LAST = 20 };

/* ---- numbers ---- */

void page_add_json(struct strbuf *out, const json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));

    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, "<");

        strbuf_add(out, at, n);
        at += n;
        if (*at)
            strbuf_addf(out, "\\u%04x", *at++);
    }
    free(text);
}

static void write_page_text(struct strbuf *out, const char *text)
{
    json_t *o = text_json(text);

    page_add_json(out, o);
    json_decref(o);
}

static void write_page_number(struct strbuf *out, double v, int digits)
{
    if (isfinite(v))
        strbuf_addf(out, "%.*g", digits, v);
    else
        strbuf_addf(out, "null");
}

/*
 * A column "name":[...] of n numbers on the page. v is the address of the first number; consecutive numbers are
 * `stride` doubles apart. at[] has the indices of the numbers to write; NULL: all, in order. `less` is subtracted from
 * each number.
 */
struct page_column {
    const char *name;
    const double *v;
    size_t stride;
    const int *at;
    int n, digits;
    double less;
};

static void add_column(struct strbuf *out, const struct page_column *c)
{
    strbuf_addf(out, "\"%s\":[", c->name);
    for (int i = 0; i < c->n; i++) {
        if (i)
            strbuf_addf(out, ",");
        write_page_number(out, c->v[(size_t)(c->at ? c->at[i] : i) * c->stride] - c->less, c->digits);
    }
    strbuf_addf(out, "]");
}

/*
 * The location of an event's positions on all axes, in an array of structs. `size` is the size of a struct in bytes.
 * The other members are offsets of fields in the struct.
 */
struct page_places {
    const char *first;
    size_t size, iteration, at_s, samples, tokens;
    int n;
};

static double field_of(const struct page_places *p, int i, size_t at)
{
    double v;

    memcpy(&v, p->first + (size_t)i * p->size + at, sizeof v);
    return v;
}

static void write_page_positions(struct strbuf *out, const struct page_places *p, double t0)
{
    const struct { const char *name; size_t at; double less; } rest[] = {
        { "samples", p->samples, 0 }, { "tokens", p->tokens, 0 }, { "time", p->at_s, t0 },
    };

    strbuf_addf(out, "\"iteration\":[");
    for (int i = 0; i < p->n; i++) {
        int64_t iteration;

        memcpy(&iteration, p->first + (size_t)i * p->size + p->iteration, sizeof iteration);
        strbuf_addf(out, "%s%lld", i ? "," : "", (long long)iteration);
    }
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++) {
        strbuf_addf(out, "],\"%s\":[", rest[k].name);
        for (int i = 0; i < p->n; i++) {
            strbuf_addf(out, i ? "," : "");
            write_page_number(out, field_of(p, i, rest[k].at) - rest[k].less, k == 2 ? 9 : 15);
        }
    }
    strbuf_addf(out, "]");
}

/* ---- curves ---- */

/* For each curve, the points that are kept, and the union of these points over all curves. */
struct page_kept {
    int *of[PAST_VALUES], n[PAST_VALUES];
    int *row;                   /* [points]: index of each point among the points that are kept; -1: not kept */
    int *all, n_all;
};

/* Returns true if the page shows a curve of this value. There is no curve of a batch size that never changed. */
static bool is_curve(const struct past *p, int value, const struct page_kept *k)
{
    if (k->n[value] == 0 || value != PAST_BATCH)
        return k->n[value] > 0;
    for (int i = 1; i < k->n[value]; i++)
        if (p->point[k->of[value][i]].v[value] != p->point[k->of[value][0]].v[value])
            return true;
    return false;
}

/*
 * Choose the points of one curve that are kept: the points that thin_pick() selects and, so that gaps remain visible,
 * the first and the last point of each stretch.
 */
static void choose_of(const struct past *p, int value, int columns, struct page_kept *k)
{
    unsigned char *seen = xcalloc((size_t)p->n, 1);
    int *pick = xcalloc((size_t)p->n, sizeof *pick);
    const int n = thin_pick(&p->point[0].v[value], STRIDE, p->n, columns, pick);

    for (int i = 0; i < n; i++)
        seen[pick[i]] = 1;
    for (int s = 0; s < p->n_stretches && n > 0; s++) {
        const int from = p->stretch[s], to = s + 1 < p->n_stretches ? p->stretch[s + 1] - 1 : p->n - 1;

        seen[from] |= isfinite(p->point[from].v[value]) != 0;
        seen[to] |= isfinite(p->point[to].v[value]) != 0;
    }
    for (int i = 0; i < p->n; i++)
        if (seen[i])
            pick[k->n[value]++] = i;
    k->of[value] = pick;
    free(seen);
}

static void choose_page_rows(const struct past *p, int columns, struct page_kept *k)
{
    k->row = xcalloc((size_t)p->n, sizeof *k->row);
    k->all = xcalloc((size_t)p->n, sizeof *k->all);
    for (int v = 0; v < PAST_VALUES; v++) {
        /*
         * Use fewer columns for the learning rate, which is smooth, and for the batch size and the loss scale, which
         * have few different values.
         */
        choose_of(p, v, v == PAST_LR || v == PAST_BATCH || v == PAST_SCALE ? columns / 3 : columns, k);
        if (!is_curve(p, v, k))
            k->n[v] = 0;
        for (int i = 0; i < k->n[v]; i++)
            k->row[k->of[v][i]] = 1;
    }
    for (int s = 0; s < p->n_stretches; s++)
        k->row[p->stretch[s]] = 1;
    k->row[p->n - 1] = 1;
    for (int i = 0; i < p->n; i++)
        if (k->row[i]) {
            k->row[i] = k->n_all;
            k->all[k->n_all++] = i;
        } else {
            k->row[i] = -1;
        }
}

/*
 * Returns the number of tokens per sample if it is the same for all points, 0 if it is not, and NaN if it is unknown.
 */
static double tokens_of_sample(const struct past *p)
{
    const struct past_point *last = &p->point[p->n - 1];
    double of = last->tokens / last->samples;

    for (int i = 0; i < p->n && isfinite(of); i++)
        if (!(p->point[i].tokens == p->point[i].samples * of))
            return isfinite(p->point[i].tokens) ? 0 : (double)NAN;
    return of;
}

static void add_axes(struct strbuf *out, const struct past *p, const struct page_kept *k, double t0)
{
    const double of = tokens_of_sample(p);
    struct page_column c = { "samples", &p->point[0].samples, STRIDE, k->all, k->n_all, 15, 0 };

    strbuf_addf(out, "\"x\":{\"iteration\":[");
    for (int i = 0; i < k->n_all; i++)
        strbuf_addf(out, "%s%lld", i ? "," : "", (long long)p->point[k->all[i]].iteration);
    strbuf_addf(out, "],");
    add_column(out, &c);
    c = (struct page_column){ "time", &p->point[0].at_s, STRIDE, k->all, k->n_all, 9, t0 };
    strbuf_addf(out, ",");
    add_column(out, &c);
    strbuf_addf(out, ",");
    c = (struct page_column){ "tokens", &p->point[0].tokens, STRIDE, k->all, k->n_all, 15, 0 };
    if (of == 0) {
        add_column(out, &c);
    } else {
        strbuf_addf(out, "\"tokens\":");
        write_page_number(out, of, 15);
    }
    strbuf_addf(out, "},\"breaks\":[");
    for (int s = 1; s < p->n_stretches; s++)
        strbuf_addf(out, "%s%d", s > 1 ? "," : "", k->row[p->stretch[s]]);
    strbuf_addf(out, "]");
}

static void add_series(struct strbuf *out, const struct past *p, const struct page_kept *k)
{
    const char *comma = "";

    strbuf_addf(out, ",\"series\":{");
    for (int v = 0; v < PAST_VALUES; v++) {
        if (k->n[v] == 0)
            continue;
        strbuf_addf(out, "%s\"%s\":{", comma, value_name[v]);
        comma = ",";
        if (k->n[v] < k->n_all) {
            strbuf_addf(out, "\"rows\":[");
            for (int i = 0; i < k->n[v]; i++)
                strbuf_addf(out, "%s%d", i ? "," : "", k->row[k->of[v][i]]);
            strbuf_addf(out, "],");
        }
        add_column(out, &(struct page_column){ "y", &p->point[0].v[v], STRIDE, k->of[v], k->n[v], 7, 0 });
        strbuf_addf(out, "}");
    }
    strbuf_addf(out, "}");
}

static void add_curves(struct strbuf *out, const struct past *p, int columns, double t0)
{
    struct page_kept k = {0};

    choose_page_rows(p, columns, &k);
    add_axes(out, p, &k, t0);
    add_series(out, p, &k);
    for (int v = 0; v < PAST_VALUES; v++)
        free(k.of[v]);
    free(k.row);
    free(k.all);
}

static void add_valid(struct strbuf *out, const struct past *p, double t0)
{
    strbuf_addf(out, ",\"valid\":[");
    for (int s = 0; s < p->n_sets; s++) {
        const struct past_valid *v = p->set[s].p;
        const struct page_places places = {
            (const char *)v, sizeof *v, offsetof(struct past_valid, iteration), offsetof(struct past_valid, at_s),
            offsetof(struct past_valid, samples), offsetof(struct past_valid, tokens), p->set[s].n,
        };

        strbuf_addf(out, "%s{\"name\":", s ? "," : "");
        write_page_text(out, p->set[s].name);
        strbuf_addf(out, ",");
        write_page_positions(out, &places, t0);
        strbuf_addf(out, ",");
        add_column(out, &(struct page_column){ "y", &v->loss, sizeof *v / sizeof(double), NULL, p->set[s].n, 7, 0 });
        strbuf_addf(out, "}");
    }
    strbuf_addf(out, "]");
}

/* ---- events ---- */

static void add_events(struct strbuf *out, const struct past *p, double t0)
{
    const char *comma = "";

    strbuf_addf(out, ",\"events\":{");
    for (int from = 0, to; from < p->n_events; from = to, comma = ",") {
        const struct past_event *v = &p->event[from];
        struct page_places places = {
            (const char *)v, sizeof *v, offsetof(struct past_event, iteration), offsetof(struct past_event, at_s),
            offsetof(struct past_event, samples), offsetof(struct past_event, tokens), 0,
        };

        for (to = from; to < p->n_events && p->event[to].kind == v->kind;)
            to++;
        places.n = to - from;
        strbuf_addf(out, "%s\"%s\":{", comma, kind_name[v->kind]);
        write_page_positions(out, &places, t0);
        strbuf_addf(out, ",\"text\":[");
        for (int i = from; i < to; i++) {
            strbuf_addf(out, i > from ? "," : "");
            write_page_text(out, p->event[i].text);
        }
        strbuf_addf(out, "],\"kept\":[");
        for (int i = from; i < to; i++)
            strbuf_addf(out, "%s%d", i > from ? "," : "", p->event[i].kept);
        strbuf_addf(out, "]}");
    }
    strbuf_addf(out, "}");
}

/* ---- slow ranks ---- */

/*
 * Returns the length in seconds of the time ranges in which slow ranks are counted. It is an hour, unless the run is
 * much shorter or longer.
 */
static double slow_width(const struct past *p)
{
    static const double widths[] = { 1, 5, 15, 60, 300, 900, 3600, 21600, 86400, 604800 };
    const double span = p->slow[p->n_slow - 1].at_s - p->slow[0].at_s;
    size_t i = 0;

    if (span >= 7200 && span < 14 * 86400)
        return 3600;
    while (i + 1 < sizeof widths / sizeof *widths && widths[i] * 60 < span)
        i++;
    return widths[i];
}

static int by_place_and_rank(const void *a, const void *b)
{
    const struct past_slow *x = a, *y = b;

    if (x->at_s != y->at_s)
        return (x->at_s > y->at_s) - (x->at_s < y->at_s);
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/*
 * Returns true if the rank was really slower than the others. The log names a slowest rank in every line, even if it is
 * 0.0 % slower than the median.
 */
static bool is_late(const struct past_slow *s)
{
    return s->above >= 0.05;
}

/*
 * Write a cell for each rank that was slow in a range of time. In a cell, "n" is the number of lines about this rank,
 * and "of" is the number of all lines in the range.
 */
static void write_slow_rank_cells(struct strbuf *out, const struct past *p, double t0)
{
    const double width = p->n_slow ? slow_width(p) : 0, zero = p->dated ? 0 : t0;
    struct past_slow *s = xcalloc((size_t)p->n_slow + 1, sizeof *s);
    const char *comma = "";
    int n_late = 0;

    for (int i = 0; i < p->n_slow; i++)
        n_late += is_late(&p->slow[i]);
    if (n_late == 0)
        goto out;
    memcpy(s, p->slow, (size_t)p->n_slow * sizeof *s);
    for (int i = 0; i < p->n_slow; i++)
        s[i].at_s = floor((s[i].at_s - zero) / width);
    qsort(s, (size_t)p->n_slow, sizeof *s, by_place_and_rank);
    strbuf_addf(out, ",\"slow\":{\"width_s\":%g,\"cells\":[", width);
    for (int from = 0, n_of = 0, to; from < p->n_slow; from = to) {
        double above = s[from].above;

        n_late = 0;
        for (to = from; to < p->n_slow && s[to].at_s == s[from].at_s && s[to].rank == s[from].rank; to++) {
            above = fmax(above, s[to].above);
            n_late += is_late(&s[to]);
        }
        if (from == 0 || s[from].at_s != s[from - 1].at_s)
            for (n_of = 0; from + n_of < p->n_slow && s[from + n_of].at_s == s[from].at_s;)
                n_of++;
        if (n_late == 0)
            continue;
        strbuf_addf(out, "%s{\"rank\":%d,\"host\":", comma, s[from].rank);
        write_page_text(out, s[from].host);
        strbuf_addf(out, ",\"at\":%.0f,\"n\":%d,\"of\":%d,\"above\":%.1f}", s[from].at_s, n_late, n_of, above);
        comma = ",";
    }
    strbuf_addf(out, "]}");
out:
    free(s);
}

/* ---- key figures ---- */

static int by_page_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/*
 * Returns the median of a value over the last points, or NaN if no value is known. `at` is the offset of the value in
 * struct past_point.
 */
static double last_median(const struct past *p, size_t at)
{
    double v[LAST], x;
    int n = 0;

    for (int i = p->n > LAST ? p->n - LAST : 0; i < p->n; i++) {
        memcpy(&x, (const char *)&p->point[i] + at, sizeof x);
        if (isfinite(x))
            v[n++] = x;
    }
    qsort(v, (size_t)n, sizeof *v, by_page_value);
    return n ? v[n / 2] : (double)NAN;
}

static double last_mean_loss(const struct past *p, int *n)
{
    double sum = 0;

    *n = 0;
    for (int i = p->n > LAST ? p->n - LAST : 0; i < p->n; i++)
        if (isfinite(p->point[i].v[PAST_LOSS])) {
            sum += p->point[i].v[PAST_LOSS];
            ++*n;
        }
    return *n ? sum / *n : (double)NAN;
}

static int count_past_events(const struct past *p, enum past_kind kind, bool kept)
{
    int n = 0;

    for (int i = 0; i < p->n_events; i++)
        n += p->event[i].kind == kind && (p->event[i].kept || !kept);
    return n;
}

static json_t *real_or_null(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *facts(const struct past *p, double t0)
{
    const struct past_point *last = &p->point[p->n - 1];
    int window;
    const double loss = last_mean_loss(p, &window);
    const int starts = count_past_events(p, PAST_START, false);
    json_t *o = json_pack("{s:I, s:I, s:o, s:o, s:o, s:i, s:o, s:o, s:o}", "iteration", (json_int_t)last->iteration,
                          "train_iters", (json_int_t)p->train_iters, "samples", real_or_null(last->samples), "tokens",
                          real_or_null(last->tokens), "loss", real_or_null(loss), "window", window, "samples_s",
                          real_or_null(last_median(p, offsetof(struct past_point, v[PAST_SAMPLES_S]))), "tflops",
                          real_or_null(last_median(p, offsetof(struct past_point, v[PAST_TFLOPS]))), "step_s",
                          real_or_null(last_median(p, offsetof(struct past_point, elapsed_s))));
    json_t *counts =
        json_pack("{s:f, s:i, s:I, s:i, s:i, s:i, s:i}", "span_s", last->at_s - t0, "starts",
                  starts > 0 ? starts : p->n_stretches, "repeated", (json_int_t)past_repeated(p), "saves",
                  count_past_events(p, PAST_SAVE, false), "kept", count_past_events(p, PAST_SAVE, true), "backups",
                  count_past_events(p, PAST_BACKUP, false), "incidents", count_past_events(p, PAST_INCIDENT, false));

    json_object_update(o, counts);
    json_decref(counts);
    return o;
}

void page_add_run(struct strbuf *out, const struct past *p, int columns)
{
    /* The time of a point is the end of its iteration, so add the duration of the first iteration. */
    const double duration_s = isfinite(p->point[0].elapsed_s) && p->point[0].elapsed_s > 0 ? p->point[0].elapsed_s : 0;
    const double t0 = p->point[0].at_s - duration_s;
    json_t *o = facts(p, t0);

    strbuf_addf(out, "{\"name\":");
    write_page_text(out, p->name);
    strbuf_addf(out, ",\"dated\":%s,\"t0\":%.3f,\"facts\":", p->dated ? "true" : "false", t0);
    page_add_json(out, o);
    json_decref(o);
    strbuf_addf(out, ",\"status\":");
    if (p->status)
        page_add_json(out, p->status);
    else
        strbuf_addf(out, "null");
    strbuf_addf(out, ",");
    add_curves(out, p, columns, t0);
    add_valid(out, p, t0);
    add_events(out, p, t0);
    write_slow_rank_cells(out, p, t0);
    strbuf_addf(out, "}");
}
