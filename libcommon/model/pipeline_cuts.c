/*
 * pipeline_cuts.c - compute the weights of layers, and balance them over stages by DeepSpeed's algorithms
 */
#include "libcommon/model/pipeline_cuts.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/mem.h"

enum pipeline_balance pipeline_balance_of(const char *ds_version)
{
    int major, minor, patch;

    if (sscanf(ds_version, "%4d.%4d.%4d", &major, &minor, &patch) != 3 || (major == 0 && minor == 0 && patch == 0))
        return PIPELINE_SPREAD;
    if (major > 0 || minor * 100 + patch >= 1205)
        return PIPELINE_SPREAD;
    return minor * 100 + patch < 1001 ? PIPELINE_BOTTLENECK : PIPELINE_BETWEEN;
}

/* ---- before 0.12.5: bisection for the smallest possible weight of the heaviest stage ---- */

/* Returns the first item at which the inclusive running sum reaches `sum`, or n if there is none. */
static int first_reaching(const int *prefix, int n, double sum)
{
    int lo = 0, hi = n;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (prefix[mid] < sum)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/*
 * Fill the stages from the left, each up to the weight `bottleneck`. Returns true if all items fit. An item at which
 * the sum is exactly the limit begins the next stage, because the reference finds the limit with bisect_left in
 * inclusive sums.
 */
static bool fill_greedily(const int *prefix, int n, int n_stages, double bottleneck, int *parts)
{
    double limit = bottleneck;

    parts[0] = 0;
    for (int p = 1; p <= n_stages; p++)
        parts[p] = n;
    for (int p = 1; p < n_stages; p++) {
        parts[p] = first_reaching(prefix, n, limit);
        if (parts[p] == n)
            return prefix[n - 1] - prefix[parts[p - 1]] < bottleneck;
        limit = (parts[p] ? prefix[parts[p] - 1] : prefix[n - 1]) + bottleneck;
    }
    return limit >= prefix[n - 1];
}

static void cut_by_bottleneck(const int *prefix, int n, int n_stages, int *parts)
{
    const double eps = 1e-3;
    double lower = (double)prefix[n - 1] / n_stages, upper = prefix[n - 1];

    while (upper > lower + eps) {
        double mid = lower + (upper - lower) / 2;

        if (fill_greedily(prefix, n, n_stages, mid, parts))
            upper = mid;
        else
            lower = mid + eps;
    }
    fill_greedily(prefix, n, n_stages, upper, parts);
}

/* ---- since 0.12.5: dynamic programming over (items, stages) ---- */

struct best {
    /*
     * weights of the heaviest and the lightest stage of the best partition of the first i items into j stages, and
     * their difference `cost`
     */
    double cost, max, min;
    int from;                   /* first item of the last stage in this partition */
};

static void try_from(struct best *b, const struct best *before, double part, int from)
{
    double max = before->max > part ? before->max : part, min = before->min < part ? before->min : part;

    /* among equal partitions, the one with the shortest last stage is chosen */
    if (b->cost >= max - min)
        *b = (struct best){ .cost = max - min, .max = max, .min = min, .from = from };
}

static void cut_by_spread(const int *prefix, int n, int n_stages, int *parts)
{
    size_t width = (size_t)n_stages + 1;
    struct best *b = xcalloc(((size_t)n + 1) * width, sizeof *b);

    for (size_t i = 0; i < ((size_t)n + 1) * width; i++)
        b[i] = (struct best){ .cost = HUGE_VAL, .max = HUGE_VAL, .min = HUGE_VAL };
    b[0].max = b[0].cost = 0;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= n_stages && j <= i; j++)
            for (int k = 0; k < i; k++)
                try_from(&b[(size_t)i * width + (size_t)j], &b[(size_t)k * width + (size_t)j - 1],
                         prefix[i - 1] - (k ? prefix[k - 1] : 0), k);
    parts[n_stages] = n;
    for (int j = n_stages; j > 0; j--)
        parts[j - 1] = b[(size_t)parts[j] * width + (size_t)j].from;
    free(b);
}

void pipeline_balanced(const int *weight, int n, int n_stages, enum pipeline_balance how, int *parts)
{
    int *prefix = xmalloc((size_t)n * sizeof *prefix);

    for (int i = 0; i < n; i++)
        prefix[i] = weight[i] + (i ? prefix[i - 1] : 0);
    if (how != PIPELINE_SPREAD)
        cut_by_bottleneck(prefix, n, n_stages, parts);
    else
        cut_by_spread(prefix, n, n_stages, parts);
    free(prefix);
}

/* ---- specs ---- */

enum { SPECS_MAX = 4096 };      /* limits the time of cut_by_spread(), which needs n * n * stages steps */

/*
 * Parse the words of "type:a|b". Returns 1 for transformer, 2 for embedding, 3 for both, and 0 if the text is not
 * valid.
 */
static int method_words(const char *method)
{
    static const char *const words[] = { "transformer", "embedding" };
    int found = 0;

    if (!str_starts(method, "type:"))
        return 0;
    for (const char *p = method + 4; *p;) {
        size_t len = strcspn(++p, "|");
        int hit = 0;

        for (int w = 0; w < 2; w++)
            if (len == strlen(words[w]) && strncasecmp(p, words[w], len) == 0)
                hit = 1 << w;
        if (!hit)
            return 0;
        found |= hit;
        p += len;
    }
    return found;
}

/* The ways in which methods weigh specs. The names of methods are compared without case, as in the trainer. */
enum pipeline_rule { RULE_UNKNOWN, RULE_TYPE, RULE_PARAMETERS, RULE_UNIFORM, RULE_COST, RULE_EVEN };

static enum pipeline_rule parse_pipeline_rule(const char *method)
{
    if (strcasecmp(method, "parameters") == 0)
        return RULE_PARAMETERS;
    if (strcasecmp(method, "uniform") == 0)
        return RULE_UNIFORM;
    if (strcasecmp(method, "cost") == 0)
        return RULE_COST;
    if (strcasecmp(method, "even") == 0)
        return RULE_EVEN;
    return method_words(method) & 1 ? RULE_TYPE : RULE_UNKNOWN;
}

bool pipeline_method_known(const char *method)
{
    return parse_pipeline_rule(method) != RULE_UNKNOWN;
}

bool pipeline_method_genuine(const char *method)
{
    return pipeline_method_known(method) && parse_pipeline_rule(method) != RULE_COST &&
           parse_pipeline_rule(method) != RULE_EVEN;
}

/*
 * Distribute the specs by number. Before DeepSpeed 0.10.1 the last stage got the whole remainder. Since then, each of
 * the first stages gets one spec of the remainder.
 */
static void cut_by_number(int n, int n_stages, enum pipeline_balance how, int *parts)
{
    int each = n / n_stages, rest = n % n_stages;

    for (int p = 0; p < n_stages; p++)
        parts[p] = p * each + (how == PIPELINE_BOTTLENECK ? 0 : p < rest ? p : rest);
    parts[n_stages] = n;
}

void pipeline_costs(struct pipeline_specs *s, int64_t h, int64_t f, int64_t seq, int64_t V)
{
    const double dh = (double)h;
    const bool known = h > 0 && f > 0 && seq > 0 && V > 0;

    s->layer_cost = known ? 8 * dh * dh + 4 * dh * (double)f + 4 * dh * (double)seq : 0;
    s->head_cost = known ? 2 * dh * (double)V : 0;
}

/*
 * Cut by cost. All layers have the same cost, so a partition is determined by the number of layers of each stage. The
 * layers are given one by one to the stage that is cheapest so far. This minimises the cost of the most expensive
 * stage, then that of the second most expensive stage, and so on.
 */
static int cut_by_cost(const struct pipeline_specs *s, int n_stages, int *layers, struct err *e)
{
    if (!(s->layer_cost > 0) || !(s->head_cost > 0)) {
        err_usage(e, "partition method 'cost': the cost of layers is unknown, because sizes of the model are missing");
        return -1;
    }
    for (int p = 0; p < n_stages; p++)
        layers[p] = 1;
    for (int left = s->n_layers - n_stages; left > 0; left--) {
        double least = HUGE_VAL;
        int to = 0;

        for (int p = 0; p < n_stages; p++) {
            double cost = layers[p] * s->layer_cost + (p == n_stages - 1 ? s->head_cost : 0);

            if (cost <= least) {
                least = cost;
                to = p;
            }
        }
        layers[to]++;
    }
    return 0;
}

/*
 * Distribute the layers by number only. The first and the last stage hold more than layers. They therefore get none of
 * the remainder if the stages between them can hold it.
 */
static void cut_evenly(int n_layers, int n_stages, int *layers)
{
    const int rest = n_layers % n_stages, first = n_stages > 2 && rest <= n_stages - 2;

    for (int p = 0; p < n_stages; p++)
        layers[p] = n_layers / n_stages + (p >= first && p < first + rest);
}

static int64_t gcd_i64(int64_t a, int64_t b)
{
    return b ? gcd_i64(b, a % b) : a;
}

/*
 * Set the weights to the numbers of elements. These may exceed 32 bits, so they are divided by their greatest common
 * divisor. This does not change the partition, which depends only on their ratios.
 */
static int weigh_elements(const struct pipeline_specs *s, int *weight, struct err *e)
{
    int64_t unit = gcd_i64(gcd_i64(s->embedding_elems, s->layer_elems), s->final_norm_elems);

    if (s->embedding_elems <= 0 || s->layer_elems <= 0 || s->final_norm_elems <= 0 ||
        (s->embedding_elems / unit * 2 + s->layer_elems / unit * s->n_layers) > INT_MAX) {
        err_usage(e, "partition method 'parameters': the parameters per layer are unknown, because sizes of the model "
                     "are missing");
        return -1;
    }
    for (int i = 0; i < s->n_layers; i++)
        weight[s->first_layer + i] = (int)(s->layer_elems / unit);
    weight[s->embedding] = weight[s->final_norm + 1] = (int)(s->embedding_elems / unit);
    weight[s->final_norm] = (int)(s->final_norm_elems / unit);
    return 0;
}

/* Compute parts[0 .. n_stages] by a method of DeepSpeed: stage p gets specs parts[p] .. parts[p+1]-1. */
static int cut_specs(const struct pipeline_specs *s, const char *method, enum pipeline_balance how, int n_stages,
                     int *parts, struct err *e)
{
    enum pipeline_rule rule = parse_pipeline_rule(method);
    int *weight, rc = 0;

    if (rule == RULE_UNIFORM) {
        cut_by_number(s->n, n_stages, how, parts);
        return 0;
    }
    weight = xcalloc((size_t)s->n, sizeof *weight);
    if (rule == RULE_PARAMETERS) {
        rc = weigh_elements(s, weight, e);
    } else {
        for (int i = 0; i < s->n_layers; i++)
            weight[s->first_layer + i] = 1;
        if (method_words(method) & 2)
            weight[s->embedding] = weight[s->final_norm + 1] = 1;
    }
    if (rc == 0)
        pipeline_balanced(weight, s->n, n_stages, how, parts);
    free(weight);
    return rc;
}

/*
 * Check that the embedding is in the first stage, that the head is in the last stage, and that every stage has a
 * parameter. Without a parameter, the optimizer of a stage would be empty.
 */
static int check_cut(const struct pipeline_specs *s, const char *method, const int *parts, int n_stages, struct err *e)
{
    const int head = s->final_norm + 1;

    if (s->embedding >= parts[1] || head < parts[n_stages - 1]) {
        err_usage(e, "'%s' cuts %d layers over %d stages so that the embedding is not on the first one, or its tied "
                  "copy not on the last; give the layers of each stage", method, s->n_layers, n_stages);
        return -1;
    }
    for (int p = 1; p < n_stages - 1; p++) {
        const bool layers = parts[p] < s->first_layer + s->n_layers && parts[p + 1] > s->first_layer;

        if (layers || (s->final_norm >= parts[p] && s->final_norm < parts[p + 1]))
            continue;
        err_usage(e, "'%s' cuts %d layers over %d stages so that stage %d has no parameter; give the layers of each "
                  "stage", method, s->n_layers, n_stages, p);
        return -1;
    }
    return 0;
}

static int stage_of(const int *parts, int n_stages, int spec)
{
    int p = 0;

    while (p < n_stages - 1 && spec >= parts[p + 1])
        p++;
    return p;
}

int pipeline_cut(const struct pipeline_specs *s, const char *method, enum pipeline_balance how, int n_stages,
                 int *layers, struct err *e)
{
    int *parts, norm;

    if (!pipeline_method_known(method)) {
        err_usage(e, "partition method '%s' is not supported: expected " PIPELINE_METHODS, method);
        return -1;
    }
    if (s->n_layers < n_stages) {
        err_usage(e, "%d layers cannot fill %d pipeline stages", s->n_layers, n_stages);
        return -1;
    }
    if (s->n > SPECS_MAX) {
        err_usage(e, "%d pipeline specs, at most %d supported", s->n, SPECS_MAX);
        return -1;
    }
    if (parse_pipeline_rule(method) == RULE_EVEN) {
        cut_evenly(s->n_layers, n_stages, layers);
        return n_stages - 1;
    }
    if (parse_pipeline_rule(method) == RULE_COST)
        return cut_by_cost(s, n_stages, layers, e) < 0 ? -1 : n_stages - 1;
    parts = xcalloc((size_t)n_stages + 1, sizeof *parts);
    norm = cut_specs(s, method, how, n_stages, parts, e);
    if (norm == 0)
        norm = check_cut(s, method, parts, n_stages, e);
    for (int p = 0; p < n_stages; p++) {
        layers[p] = 0;
        for (int i = parts[p]; i < parts[p + 1]; i++)
            layers[p] += i >= s->first_layer && i < s->first_layer + s->n_layers;
    }
    if (norm == 0)
        norm = stage_of(parts, n_stages, s->final_norm);
    free(parts);
    return norm;
}
