/* cmd_diff.c - compare two checkpoints, which may have different topologies and layouts */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/ckpt-inspect/diff.h"
#include "tools/ckpt-inspect/diff_patch.h"

/* ---- the verdict ---- */

static bool differs(const struct diff *d, const struct diff_pair *p)
{
    return !p->b || p->unlike || (p->rounded ? p->diff.n_differ : d->job[p->job].diff.n_differ) > 0;
}

static int count_differing_tensors(const struct diff *d)
{
    int n = d->n_only_b;

    for (int i = 0; i < d->n; i++)
        n += differs(d, &d->pair[i]);
    return n;
}

static int count_compared(const struct diff *d)
{
    int n = d->n_jobs;

    for (int i = 0; i < d->n; i++)
        n += d->pair[i].rounded;
    return n;
}

enum diff_verdict { EQUAL, DIFFERENT, UNKNOWN };

/*
 * The verdict is EQUAL only if values were compared and no difference was found. It is UNKNOWN if nothing was compared,
 * or if anything is damaged or could not be read.
 */
static enum diff_verdict verdict_of(const struct diff *d)
{
    if (count_differing_tensors(d) > 0 || diff_state_n(&d->state) > 0)
        return DIFFERENT;
    return d->n_unread > 0 || d->damaged || count_compared(d) == 0 ? UNKNOWN : EQUAL;
}

/* Return the number of tensors of either side whose values were not compared, for any reason. */
static int count_not_compared(const struct diff *d)
{
    int n = d->n_unread + d->n_values_a + d->n_values_b + d->n_forms_a + d->n_forms_b + d->n_second_a +
            d->n_second_b;

    for (int i = 0; i < d->n; i++)
        n += d->pair[i].unlike && strcmp(d->pair[i].unlike, "pieces") == 0;
    for (int i = 0; i < d->a->n; i++)
        n += d->a->tensor[i].state >= 0 && !d->state_in_b[d->a->tensor[i].state];
    for (int i = 0; i < d->b->n; i++)
        n += d->b->tensor[i].state >= 0 && !d->state_in_a[d->b->tensor[i].state];
    for (int i = 0; i < d->n; i++)
        if (d->pair[i].rounded)
            n -= !d->state_in_b[d->pair[i].a->state] + !d->state_in_a[d->pair[i].b->state];
    return n;
}

static json_t *pair_json(const struct diff *d, const struct diff_pair *p)
{
    const struct view_tensor *t = p->a;
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
    if (p->rounded) {
        json_object_set_new(o, "n", json_integer((json_int_t)p->diff.n));
        json_object_set_new(o, "n_differ", json_integer((json_int_t)p->diff.n_differ));
        json_object_set_new(o, "rounded", json_true());
    }
    if (sd) {
        json_object_set_new(o, "n", json_integer((json_int_t)sd->n));
        json_object_set_new(o, "n_differ", json_integer((json_int_t)sd->n_differ));
        json_object_set_new(o, "first_index", json_integer((json_int_t)sd->first));
        json_object_set_new(o, "n_not_finite", json_integer((json_int_t)sd->n_not_finite));
        json_object_set_new(o, "max_ulps", out_ulps(sd->max_ulps));
        /*
         * max_abs and rel_l2 only consider finite differences. They are undefined if there are none, or if the elements
         * are not numbers.
         */
        const bool any = sd->n_not_finite < sd->n_differ && dtype_is_number(t->dtype);

        json_object_set_new(o, "max_abs", any ? out_real(sd->max_abs) : json_null());
        json_object_set_new(o, "rel_l2", any ? out_real(stats_diff_rel_l2(sd)) : json_null());
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

static json_t *diff_unread_json(const struct diff *d)
{
    json_t *a = json_array();

    for (int i = 0; i < d->n_unread; i++)
        json_array_append_new(a, json_pack("{s:o, s:o}", "name", out_text(d->unread[i]->name),
                                           "why", out_text(d->unread[i]->why)));
    return a;
}

static json_t *section(json_t *list)
{
    return list ? json_incref(list) : json_null();
}

static void print_diff_json(const struct inspect *in, const struct diff *d)
{
    enum diff_verdict v = verdict_of(d);
    json_t *list = json_array();
    int left = in->max;

    for (int i = 0; i < d->n && left > 0; i++)
        if (differs(d, &d->pair[i]) && left-- > 0)
            json_array_append_new(list, pair_json(d, &d->pair[i]));
    for (int i = 0; i < d->n_only_b && left-- > 0; i++) {
        const struct view_tensor *t = d->only_b[i];

        json_array_append_new(list, json_pack("{s:o, s:o, s:s}", "name", out_text(t->name),
            "state", t->state < 0 ? json_null() : json_string(state_name((enum state)t->state)), "what", "only_in_b"));
    }
    out_json(json_pack(
        "{s:o, s:o, s:o, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "a", out_text(in->arg[0]), "b",
        out_text(in->arg[1]), "equal", v == UNKNOWN ? json_null() : json_boolean(v == EQUAL), "n_tensors",
        d->n + d->n_only_b, "n_differ", count_differing_tensors(d), "n_not_compared", count_not_compared(d),
        "not_compared", diff_unread_json(d), "tensors", list, "vocab_rows", vocab_json(d), "states_only_in_a",
        lone_states(d->state_in_a, d->state_in_b), "states_only_in_b", lone_states(d->state_in_b, d->state_in_a),
        "run_state", section(d->state.run), "arguments", section(d->state.arguments), "schedules",
        section(d->state.schedules), "by_layout", section(d->state.by_layout)));
}

static void print_diff_values(const struct stats_diff *sd, enum dtype t)
{
    char ulps[32];

    printf("\n    %" PRIu64 " of %" PRIu64 " elements differ, from element %" PRIu64 " on\n", sd->n_differ, sd->n,
           sd->first);
    if (!dtype_is_number(t))
        return;
    /* A difference between a number and a NaN or an infinity has no size. Such elements are counted separately. */
    if (sd->n_not_finite)
        printf("    %" PRIu64 " of them by a NaN or an infinity\n", sd->n_not_finite);
    if (sd->n_not_finite && sd->n_not_finite < sd->n_differ)
        printf("    the others by %.9g at most, relative L2 %.3g\n", sd->max_abs, stats_diff_rel_l2(sd));
    else if (!sd->n_not_finite)
        printf("    by %s and %.9g at most, relative L2 %.3g\n", out_ulps_text(sd->max_ulps, ulps), sd->max_abs,
               stats_diff_rel_l2(sd));
}

static void print_pair(const struct diff *d, const struct diff_pair *p)
{
    char *label = view_label(p->a), a[SHAPE_TEXT], b[SHAPE_TEXT];

    printf("%s", text_shown(label));
    if (!p->b)
        printf(": only in the first\n");
    else if (p->unlike && strcmp(p->unlike, "pieces") == 0)
        printf(": has too many pieces to be compared\n");
    else if (p->unlike)
        printf("\n    %s %s in the first, %s %s in the second\n", dtype_name(p->a->dtype),
               shape_text(p->a->ndim, p->a->shape, a), dtype_name(p->b->dtype),
               shape_text(p->b->ndim, p->b->shape, b));
    else if (p->rounded)
        printf("\n    %" PRIu64 " of %" PRIu64 " elements differ once fp32 is rounded\n", p->diff.n_differ, p->diff.n);
    else
        print_diff_values(&d->job[p->job].diff, p->a->dtype);
    free(label);
}

/*
 * Returns true if one side is a Transformers model. Such a model only has weights; all other values are derived when it
 * is opened.
 */
static bool has_model(const struct diff *d)
{
    return (d->a->source && source_is_model_alone(d->a->source)) ||
           (d->b->source && source_is_model_alone(d->b->source));
}

/* Print a note about tensors of one kind that only one side has. Prints nothing if there are no such tensors. */
static void print_only(const char *what, int n_first, int n_second, const char *why)
{
    if (n_first && n_second)
        printf("note: not compared, because %s: %d %s only in the first,\n      %d only in the second\n", why, n_first,
               what, n_second);
    else if (n_first || n_second)
        printf("note: not compared, because %s: %d %s only in the %s\n", why, n_first ? n_first : n_second, what,
               n_first ? "first" : "second");
}

/* Print what was not compared, so that "equal" is not misunderstood. */
static void print_notes(const struct diff *d)
{
    bool vocab_told = false;
    const bool same_form = d->a->source && d->b->source && source_same_form(d->a->source, d->b->source);
    const int n_rounded = count_compared(d) - d->n_jobs;

    for (int i = 0; i < d->n_unread; i++)
        printf("note: %s was not compared: %s\n", text_shown(d->unread[i]->name), d->unread[i]->why);
    if (has_model(d))
        printf("note: a model of Transformers holds only weights, so nothing else was compared\n");
    if (n_rounded)
        printf("note: %d tensors are 16-bit weights on one side and fp32 on the other; the fp32 values were rounded "
               "and compared\n",
               n_rounded);
    for (int st = 0; st < STATE_N; st++)
        if (d->state_in_a[st] != d->state_in_b[st] &&
            !(n_rounded && n_rounded == count_compared(d) && st <= STATE_FP32))
            printf("note: %s exists only in the %s and was not compared\n", state_name((enum state)st),
                   d->state_in_a[st] ? "first" : "second");
    print_only("weights next to their masters", d->n_forms_a, d->n_forms_b, "the other side has only one of the two");
    print_only("tensors other than parameters", d->n_values_a, d->n_values_b,
               same_form ? "the other side has no optimizer" : "the layouts differ");
    print_only("second names of tied tensors", d->n_second_a, d->n_second_b, "the other side has the first name");
    for (int i = 0; i < d->n; i++) {
        const struct diff_pair *p = &d->pair[i];

        if (!p->fewer_rows || vocab_told)
            continue;
        printf("note: the vocabulary has %" PRId64 " rows in the first and %" PRId64 " in the second;\n      only the "
               "common rows were compared\n", p->a->shape[0], p->b->shape[0]);
        vocab_told = true;
    }
}

/* Return the value of one side of {key, a, b} as text, for text output. The caller frees it. */
static char *side_text(const json_t *v)
{
    char *text;

    if (!v)
        return xstrdup("not");
    text = text_dump(v, JSON_ENCODE_ANY);
    if (text && strlen(text) > 60)
        strcpy(text + 57, "...");
    return text ? text : xstrdup("?");
}

static void print_section(const char *title, const json_t *list)
{
    json_t *o;
    size_t i;

    if (json_array_size(list))
        printf("%s\n", title);
    json_array_foreach(list, i, o) {
        char *a = side_text(json_object_get(o, "a")), *b = side_text(json_object_get(o, "b"));

        /*
         * Two different values may have the same text, for example if they differ in the bytes of a random generator,
         * which the text does not contain.
         */
        if (strcmp(a, b) == 0)
            printf("  %s: differs\n", json_string_value(json_object_get(o, "key")));
        else
            printf("  %s: %s in the first, %s in the second\n", json_string_value(json_object_get(o, "key")), a, b);
        free(a);
        free(b);
    }
}

static void print_diff_state(const struct diff *d)
{
    print_section(d->a->source ? "run state" : "values", d->state.run);
    print_section("arguments", d->state.arguments);
    print_section("schedules", d->state.schedules);
    print_section("note: expected differences (topology, layout, paths), not counted:", d->state.by_layout);
    if (d->state.unknown)
        printf("note: %s, not compared\n", d->state.unknown);
}

/* If one side is a model folder and the other one is not, print how to write that one under the model's names. */
static void print_way_to_compare(const struct diff *d)
{
    const struct source *a = d->a->source, *b = d->b->source;
    const bool model_a = a && source_is_model_alone(a), model_b = b && source_is_model_alone(b);

    if (a && b && model_a != model_b)
        cli_printf(stdout, "export-hf --config %s %s OUT writes the weights of the other side under the names of the "
                           "model; compare these\n", source_path(model_a ? a : b), source_path(model_a ? b : a));
}

/* Returns true if a tensor holds all experts of its layer (`fused`), or one expert. */
static bool has_experts(const struct source *s, bool fused)
{
    static const char word[] = ".experts.";

    for (int i = 0; s && i < source_n_params(s); i++) {
        const char *at = strstr(source_param_at(s, i)->name, word);

        at = at ? at + strlen(word) : "";
        if (fused ? strcmp(at, "gate_up_proj") == 0 || strcmp(at, "down_proj") == 0 : *at >= '0' && *at <= '9')
            return true;
    }
    return false;
}

/* If one side has a tensor for each expert and the other one a tensor for all, print how to write them alike. */
static void print_forms_of_experts(const struct diff *d)
{
    const struct source *a = d->a->source, *b = d->b->source;
    const bool fused_a = has_experts(a, true), fused_b = has_experts(b, true);

    if (fused_a == fused_b || !has_experts(fused_a ? b : a, false))
        return;
    cli_printf(stdout, "note: %s has one tensor for all experts of a layer, %s one for each expert, so these were not "
               "compared; export-hf --experts split %s OUT writes the other form\n", source_path(fused_a ? a : b),
               source_path(fused_a ? b : a), source_path(fused_a ? a : b));
}

/* Returns true if one side has the weights as 16-bit numbers alone, and the other one as fp32 alone. */
static bool has_other_types(const struct diff *d)
{
    const bool *a = d->state_in_a, *b = d->state_in_b;

    return a[STATE_BF16] != a[STATE_FP32] && b[STATE_BF16] != b[STATE_FP32] && a[STATE_BF16] != b[STATE_BF16];
}

static void print_verdict(const struct diff *d)
{
    int total = count_differing_tensors(d);
    bool state = diff_state_n(&d->state) > 0;
    const char *other = d->a->source ? "the state of the run" : "the values next to them";

    if (total && count_compared(d) == 0) {
        printf("compared 0 tensors: none of %d has the same name on both sides, so no value was compared\n", total);
        print_way_to_compare(d);
        return;
    }
    if (count_compared(d) == 0 && has_other_types(d))
        cli_printf(stdout, "note: the weights are fp32 on one side only; ckpt-edit cast fp32 IN OUT, or cast bf16, "
                           "converts a side for a comparison\n");
    printf("compared %d tensor%s: ", d->n + d->n_only_b, d->n + d->n_only_b == 1 ? "" : "s");
    if (total)
        printf("%d differ%s%s%s\n", total, total == 1 ? "s" : "", !state ? "" : ", and so ",
               !state ? "" : d->a->source ? "does the state of the run" : "do other values");
    else if (count_compared(d) == 0)
        printf("%s%s%s%s\n", has_other_types(d) ? "no weights have one type on both sides" : "no tensor is in both",
               state ? ", and " : "", state ? other : "",
               !state ? "" : d->a->source ? " differs" : " differ");
    else if (state)
        printf("equal, but %s %s\n", other, d->a->source ? "differs" : "differ");
    else if (d->n_unread)
        printf("no difference was found, but %d could not be compared\n", d->n_unread);
    else
        printf(d->damaged ? "no difference was found, but a damaged checkpoint cannot be called equal\n" : "equal\n");
}

static void print_diff_text(const struct inspect *in, const struct diff *d)
{
    int total = count_differing_tensors(d), listed = 0;

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
    print_diff_state(d);
    print_notes(d);
    print_forms_of_experts(d);
    print_verdict(d);
}

/* Compare the CRC of each completely read tensor with the digest in the manifest of its checkpoint. */
static void check_diff_digests(const struct diff *d, struct report *r)
{
    for (int i = 0; i < d->n; i++) {
        const struct diff_pair *p = &d->pair[i];
        const struct stats_job *job = p->job >= 0 ? &d->job[p->job] : NULL;
        struct err e = {0};

        if (job && job->len == p->a->map->len && view_check_digest(d->a, p->a, job->a_crc, &e) < 0)
            report_add_err(r, "digest", &e);
        if (job && job->len == p->b->map->len && view_check_digest(d->b, p->b, job->b_crc, &e) < 0)
            report_add_err(r, "digest", &e);
    }
}

/* Make all comparisons. Damage found in the bytes is added to `r`. */
static int compare_checkpoints(struct inspect *in, struct diff *d, struct report *r, struct err *e)
{
    struct stats_opts so = { .threads = in->cli.threads, .mem_bytes = in->cli.mem_bytes,
                             .replicas = in->patch ? REPLICAS_FAIL : in->cli.replicas, .stopped = cli_stopped,
                             .what = "diff", .progress = in->cli.progress, .report = r };

    if (d->a->n_all == 0 && view_check_match(d->b, e) < 0)
        return -1;
    diff_pair(d);
    if (d->a->source && d->b->source && !in->tensors_only && !has_model(d)) {
        diff_state(d->a->source, d->b->source, &d->state, r);
        diff_members(d, d->state.schedules);
    } else if (d->a->pt && d->b->pt && !in->tensors_only) {
        diff_values(d->a, d->b, &d->state);
    }
    if (in->patch && diff_patch_check(in, d, e) < 0)
        return -1;
    if (stats_run(d->job, d->n_jobs, &so, e) < 0 || diff_rounded(d, &so, e) < 0 || diff_masters(d, &so, e) < 0)
        return -1;
    check_diff_digests(d, r);
    return 0;
}

/* Print the result, or write the patch that was requested. Returns the exit status. */
static int finish_diff(struct inspect *in, const struct diff *d)
{
    struct err e = {0};

    if (in->patch && d->damaged)
        err_data(&e, in->patch, ERR_NO_BYTE, "no patch was written, because a side is damaged");
    if (in->patch)
        return e.kind == ERR_NONE && diff_patch_write(in, d, &e) == 0 ? EXIT_OK : cli_fail(&in->cli, &e);
    if (in->cli.json)
        print_diff_json(in, d);
    else if (!in->cli.quiet)
        print_diff_text(in, d);
    else if (verdict_of(d) == UNKNOWN && !d->damaged)
        fprintf(stderr, "%s: %s and %s have no tensor in common that could be compared\n",
                in->cli.name, in->arg[0], in->arg[1]);
    return verdict_of(d) == EQUAL ? EXIT_OK : EXIT_BAD;
}

int cmd_diff(struct inspect *in)
{
    struct report *r = report_new(), *bytes = report_new();
    struct diff d = {0};
    struct err e = {0};
    int rc;

    d.a = inspect_view(in, in->arg[0], r, &e);
    d.b = d.a ? inspect_view(in, in->arg[1], r, &e) : NULL;
    rc = out_open_findings(in, r);
    if (!d.b || view_match(in, d.a, d.b, &e) < 0 || compare_checkpoints(in, &d, bytes, &e) < 0) {
        rc = cli_fail(&in->cli, &e);
    } else {
        rc |= out_open_findings(in, bytes);
        d.damaged = rc != EXIT_OK;
        rc |= finish_diff(in, &d);
    }
    view_close(d.a);
    view_close(d.b);
    diff_state_free(&d.state);
    free(d.pair);
    free(d.job);
    free(d.only_b);
    free(d.master);
    free(d.unread);
    report_free(r);
    report_free(bytes);
    return rc;
}
