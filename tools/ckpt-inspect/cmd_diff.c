/*
 * cmd_diff.c - compare two checkpoints, whatever their topologies and layouts
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tools/ckpt-inspect/view.h"

/* What became of one tensor of A. */
struct pair {
    const struct tensor *a, *b;         /* b NULL: only in A */
    const char *unlike;                 /* why values were not compared, or NULL */
    bool fewer_rows;                    /* padded vocabularies differ: the common rows were compared */
    int job;                            /* -1: not compared */
};

struct diff {
    struct view *a, *b;
    int n;
    struct pair *pair;
    struct stats_job *job;
    int n_jobs;
    int n_only_b;
    const struct tensor **only_b;
    bool state_in_a[STATE_N], state_in_b[STATE_N];
    json_t *run_state;                  /* [{key, a, b}] of what differs beside the tensors */
};

/* ---- pairing ---- */

struct key {
    char *text;
    const struct tensor *tensor;
    bool used;
};

static int key_cmp(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->text, ((const struct key *)b)->text);
}

/* Spec indices differ between forks (spec 3.3), so layers are counted from the first one. */
static int first_layer(const struct view *v)
{
    int first = -1;

    for (int i = 0; i < v->n; i++) {
        char kind[128];
        int layer = -1;

        param_kind(v->tensor[i].name, &layer, kind);
        if (layer >= 0 && !str_starts(kind, "final_layernorm") && (first < 0 || layer < first))
            first = layer;
    }
    return first;
}

static char *key_text(const struct view *v, const struct tensor *t, int first)
{
    char kind[128];
    int layer = -1;

    if (!v->source)
        return xstrdup(t->name);
    param_kind(t->name, &layer, kind);
    if (layer < 0 || str_starts(kind, "final_layernorm"))
        return str_fmt("%s %s", kind, state_name((enum state)t->state));
    return str_fmt("%d.%s %s", layer - first, kind, state_name((enum state)t->state));
}

static struct key *sorted_keys(const struct view *v)
{
    struct key *k = xcalloc((size_t)v->n + 1, sizeof *k);
    int first = v->source ? first_layer(v) : 0;

    for (int i = 0; i < v->n; i++) {
        k[i].text = key_text(v, &v->tensor[i], first);
        k[i].tensor = &v->tensor[i];
    }
    qsort(k, (size_t)v->n, sizeof *k, key_cmp);
    return k;
}

static void keys_free(struct key *k, int n)
{
    for (int i = 0; i < n; i++)
        free(k[i].text);
    free(k);
}

/* Same trailing dimensions, and a vocabulary whose padding may differ. */
static bool common_rows(const struct tensor *a, const struct tensor *b)
{
    if (!a->param || a->param->merge != MERGE_VOCAB || a->ndim != b->ndim || a->ndim < 1)
        return false;
    return memcmp(a->shape + 1, b->shape + 1, (size_t)(a->ndim - 1) * sizeof *a->shape) == 0;
}

static void pair_up(struct diff *d, struct pair *p)
{
    const struct tensor *a = p->a, *b = p->b;
    bool same_shape = a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;

    p->fewer_rows = !same_shape && common_rows(a, b);
    if (a->dtype != b->dtype)
        p->unlike = "dtype";
    else if (!same_shape && !p->fewer_rows)
        p->unlike = "shape";
    else if (!a->map || !b->map)
        p->unlike = "pieces";
    if (p->unlike)
        return;
    p->job = d->n_jobs++;
    d->job[p->job] = (struct stats_job){
        .a = a->map, .a_files = d->a->files, .b = b->map, .b_files = d->b->files,
        .len = min_u64(a->map->len, b->map->len), .name = a->name,
    };
}

/* A state that one side does not hold at all (bf16 in a universal form) is no difference. */
static void find_states(const struct view *v, bool held[STATE_N])
{
    for (int i = 0; i < v->n; i++)
        if (v->tensor[i].state >= 0)
            held[v->tensor[i].state] = true;
}

static bool held_by_both(const struct diff *d, const struct tensor *t)
{
    return t->state < 0 || (d->state_in_a[t->state] && d->state_in_b[t->state]);
}

static void pair_all(struct diff *d)
{
    struct key *a = sorted_keys(d->a), *b = sorted_keys(d->b);
    int first = d->a->source ? first_layer(d->a) : 0;

    find_states(d->a, d->state_in_a);
    find_states(d->b, d->state_in_b);
    d->pair = xcalloc((size_t)d->a->n + 1, sizeof *d->pair);
    d->job = xcalloc((size_t)d->a->n + 1, sizeof *d->job);
    d->only_b = xcalloc((size_t)d->b->n + 1, sizeof *d->only_b);
    for (int i = 0; i < d->a->n; i++) {
        struct key want = { key_text(d->a, &d->a->tensor[i], first), NULL, false };
        struct key *found = bsearch(&want, b, (size_t)d->b->n, sizeof *b, key_cmp);
        struct pair *p = &d->pair[d->n];

        free(want.text);
        if (!held_by_both(d, &d->a->tensor[i]))
            continue;
        d->n++;
        p->a = &d->a->tensor[i];
        p->job = -1;
        if (!found)
            continue;
        found->used = true;
        p->b = found->tensor;
        pair_up(d, p);
    }
    for (int i = 0; i < d->b->n; i++)
        if (!b[i].used && held_by_both(d, b[i].tensor))
            d->only_b[d->n_only_b++] = b[i].tensor;
    keys_free(a, d->a->n);
    keys_free(b, d->b->n);
}

/* ---- run state ---- */

static void compare_int(json_t *out, const char *key, int64_t a, int64_t b)
{
    if (a != b && a >= 0 && b >= 0)
        json_array_append_new(out, json_pack("{s:s, s:I, s:I}", "key", key, "a", (json_int_t)a, "b", (json_int_t)b));
}

static json_t *compare_run_state(const struct view *a, const struct view *b)
{
    json_t *out = json_array();
    const struct source *x = a->source, *y = b->source;

    if (!x || !y)
        return out;
    compare_int(out, "iteration", x->run.iteration, y->run.iteration);
    compare_int(out, "optimizer_step", x->run.opt_step, y->run.opt_step);
    compare_int(out, "consumed_samples", x->run.consumed_samples, y->run.consumed_samples);
    compare_int(out, "consumed_tokens", x->run.consumed_tokens, y->run.consumed_tokens);
    compare_int(out, "layers", x->config.n_layers, y->config.n_layers);
    compare_int(out, "hidden", x->config.hidden, y->config.hidden);
    compare_int(out, "heads", x->config.n_heads, y->config.n_heads);
    compare_int(out, "ffn_hidden", x->config.ffn_hidden, y->config.ffn_hidden);
    compare_int(out, "seq_len", x->config.seq_len, y->config.seq_len);
    compare_int(out, "vocab_tokens", x->config.vocab_tokens, y->config.vocab_tokens);
    compare_int(out, "embed_layernorm", x->config.embed_layernorm, y->config.embed_layernorm);
    if (strcmp(x->config.position, y->config.position) != 0)
        json_array_append_new(out, json_pack("{s:s, s:o, s:o}", "key", "position", "a", out_text(x->config.position),
                                             "b", out_text(y->config.position)));
    return out;
}

/* ---- the outcome ---- */

static bool differs(const struct diff *d, const struct pair *p)
{
    return !p->b || p->unlike || d->job[p->job].diff.n_differ > 0;
}

static int count_differing(const struct diff *d)
{
    int n = d->n_only_b;

    for (int i = 0; i < d->n; i++)
        n += differs(d, &d->pair[i]);
    return n;
}

static json_t *pair_json(const struct diff *d, const struct pair *p)
{
    const struct tensor *t = p->a;
    json_t *o = json_pack("{s:o, s:o, s:s}", "name", out_text(t->name),
        "state", t->state < 0 ? json_null() : json_string(state_name((enum state)t->state)),
        "what", !p->b ? "only_in_a" : p->unlike ? p->unlike : "values");
    const struct stats_diff *sd = p->job >= 0 ? &d->job[p->job].diff : NULL;

    if (p->b && p->unlike) {
        json_object_set_new(o, "a_shape", out_shape(t->shape, t->ndim));
        json_object_set_new(o, "b_shape", out_shape(p->b->shape, p->b->ndim));
        json_object_set_new(o, "a_dtype", json_string(dtype_name(t->dtype)));
        json_object_set_new(o, "b_dtype", json_string(dtype_name(p->b->dtype)));
    }
    if (sd) {
        json_object_set_new(o, "n", json_integer((json_int_t)sd->n));
        json_object_set_new(o, "n_differ", json_integer((json_int_t)sd->n_differ));
        json_object_set_new(o, "first_index", json_integer((json_int_t)sd->first));
        json_object_set_new(o, "n_not_finite", json_integer((json_int_t)sd->n_not_finite));
        json_object_set_new(o, "max_ulps", out_ulps(sd->max_ulps));
        /* Over the finite ones; of none there is no largest. */
        json_object_set_new(o, "max_abs", sd->n_not_finite < sd->n_differ ? out_real(sd->max_abs) : json_null());
        json_object_set_new(o, "rel_l2",
                            sd->n_not_finite < sd->n_differ ? out_real(stats_diff_rel_l2(sd)) : json_null());
    }
    return o;
}

static json_t *vocab_json(const struct diff *d)
{
    for (int i = 0; i < d->n; i++)
        if (d->pair[i].fewer_rows)
            return json_pack("{s:I, s:I}", "a", (json_int_t)d->pair[i].a->shape[0],
                             "b", (json_int_t)d->pair[i].b->shape[0]);
    return json_null();
}

static json_t *lone_states(const bool mine[STATE_N], const bool theirs[STATE_N])
{
    json_t *a = json_array();

    for (int st = 0; st < STATE_N; st++)
        if (mine[st] && !theirs[st])
            json_array_append_new(a, json_string(state_name((enum state)st)));
    return a;
}

static void print_json(const struct inspect *in, const struct diff *d, bool equal)
{
    json_t *list = json_array();
    int left = in->max;

    for (int i = 0; i < d->n && left > 0; i++)
        if (differs(d, &d->pair[i]) && left-- > 0)
            json_array_append_new(list, pair_json(d, &d->pair[i]));
    for (int i = 0; i < d->n_only_b && left-- > 0; i++) {
        const struct tensor *t = d->only_b[i];

        json_array_append_new(list, json_pack("{s:o, s:o, s:s}", "name", out_text(t->name),
            "state", t->state < 0 ? json_null() : json_string(state_name((enum state)t->state)), "what", "only_in_b"));
    }
    out_json(json_pack("{s:o, s:o, s:b, s:i, s:i, s:o, s:o, s:o, s:o, s:O}", "a", out_text(in->arg[0]),
        "b", out_text(in->arg[1]), "equal", (int)equal, "n_tensors", d->n + d->n_only_b,
        "n_differ", count_differing(d), "tensors", list, "vocab_rows", vocab_json(d),
        "states_only_in_a", lone_states(d->state_in_a, d->state_in_b),
        "states_only_in_b", lone_states(d->state_in_b, d->state_in_a), "run_state", d->run_state));
}

static void print_values(const struct stats_diff *sd)
{
    char ulps[32];

    printf("\n    %" PRIu64 " of %" PRIu64 " elements differ, from element %" PRIu64 " on\n", sd->n_differ, sd->n,
           sd->first);
    /* A distance to an infinity is none; those that have one are told apart. */
    if (sd->n_not_finite)
        printf("    %" PRIu64 " of them by a NaN or an infinity\n", sd->n_not_finite);
    if (sd->n_not_finite && sd->n_not_finite < sd->n_differ)
        printf("    the others by %.9g at most, relative L2 %.3g\n", sd->max_abs, stats_diff_rel_l2(sd));
    else if (!sd->n_not_finite)
        printf("    by %s and %.9g at most, relative L2 %.3g\n", out_ulps_text(sd->max_ulps, ulps), sd->max_abs,
               stats_diff_rel_l2(sd));
}

static void print_pair(const struct diff *d, const struct pair *p)
{
    char *label = view_label(p->a), a[160], b[160];

    printf("%s", label);
    if (!p->b)
        printf(": only in the first\n");
    else if (p->unlike && strcmp(p->unlike, "pieces") == 0)
        printf(": lies in too many pieces to be compared\n");
    else if (p->unlike)
        printf("\n    %s %s in the first, %s %s in the second\n", dtype_name(p->a->dtype),
               out_shape_text(p->a->shape, p->a->ndim, a), dtype_name(p->b->dtype),
               out_shape_text(p->b->shape, p->b->ndim, b));
    else
        print_values(&d->job[p->job].diff);
    free(label);
}

/* What was left out of the comparison, so that "equal" is never read as more than it says. */
static void print_notes(const struct diff *d)
{
    bool vocab_told = false;

    for (int st = 0; st < STATE_N; st++)
        if (d->state_in_a[st] != d->state_in_b[st])
            printf("note: %s is only in the %s, not compared\n", state_name((enum state)st),
                   d->state_in_a[st] ? "first" : "second");
    for (int i = 0; i < d->n; i++) {
        const struct pair *p = &d->pair[i];

        if (!p->fewer_rows || vocab_told)
            continue;
        printf("note: the vocabulary has %" PRId64 " rows in the first and %" PRId64 " in the second:\n"
               "      compared the common ones\n", p->a->shape[0], p->b->shape[0]);
        vocab_told = true;
    }
}

static void print_run_state(const struct diff *d)
{
    json_t *o;
    size_t i;

    json_array_foreach(d->run_state, i, o) {
        json_t *a = json_object_get(o, "a"), *b = json_object_get(o, "b");

        printf("%s: ", json_string_value(json_object_get(o, "key")));
        if (json_is_string(a))
            printf("%s in the first, %s in the second\n", json_string_value(a), json_string_value(b));
        else
            printf("%" JSON_INTEGER_FORMAT " in the first, %" JSON_INTEGER_FORMAT " in the second\n",
                   json_integer_value(a), json_integer_value(b));
    }
}

static void print_text(const struct inspect *in, const struct diff *d, bool equal)
{
    int total = count_differing(d), listed = 0;

    for (int i = 0; i < d->n && listed < in->max; i++)
        if (differs(d, &d->pair[i])) {
            print_pair(d, &d->pair[i]);
            listed++;
        }
    for (int i = 0; i < d->n_only_b && listed < in->max; i++, listed++) {
        char *label = view_label(d->only_b[i]);

        printf("%s: only in the second\n", label);
        free(label);
    }
    if (listed < total)
        printf("... and %d more (--max %d shows them)\n", total - listed, total);
    print_run_state(d);
    print_notes(d);
    printf("compared %d tensor%s: ", d->n + d->n_only_b, d->n + d->n_only_b == 1 ? "" : "s");
    if (equal)
        printf("equal\n");
    else if (total == 0)
        printf("equal, but the run state differs\n");
    else
        printf("%d differ%s%s\n", total, total == 1 ? "s" : "", json_array_size(d->run_state) ? ", and so does the run state" : "");
}

static int compare(struct inspect *in, struct diff *d, struct err *e)
{
    struct stats_opts so = { .threads = in->cli.threads, .mem_bytes = in->cli.mem_bytes, .replicas = in->cli.replicas,
                             .stopped = cli_stopped, .what = "diff", .progress = in->cli.progress,
                             .whole_records = !in->glob };

    if (d->a->n == 0 && view_check_match(in, d->b, e) < 0)
        return -1;
    pair_all(d);
    d->run_state = compare_run_state(d->a, d->b);
    return stats_run(d->job, d->n_jobs, &so, e);
}

static int tell(const struct inspect *in, const struct diff *d)
{
    bool equal = count_differing(d) == 0 && json_array_size(d->run_state) == 0;

    if (in->cli.json)
        print_json(in, d, equal);
    else if (!in->cli.quiet)
        print_text(in, d, equal);
    return equal ? EXIT_OK : EXIT_BAD;
}

int cmd_diff(struct inspect *in)
{
    struct report *r = report_new();
    struct diff d = {0};
    struct err e = {0};
    int rc;

    d.a = view_open(in, in->arg[0], r, &e);
    d.b = d.a ? view_open(in, in->arg[1], r, &e) : NULL;
    rc = out_open_findings(in, r);
    if (!d.b || compare(in, &d, &e) < 0)
        rc = cli_fail(&in->cli, &e);
    else
        rc |= tell(in, &d);
    view_close(d.a);
    view_close(d.b);
    json_decref(d.run_state);
    free(d.pair);
    free(d.job);
    free(d.only_b);
    report_free(r);
    return rc;
}
