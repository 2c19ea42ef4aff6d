/*
 * test_picture.c - the pictures of runs: thinned curves, axes, the text plot, SVG and the page
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tools/run-watch/picture/page.h"
#include "tools/run-watch/picture/plot.h"
#include "tools/run-watch/picture/thin.h"

/* ---- thinning ---- */

static const double nan_ = NAN, inf = INFINITY;

/* keep: the expected indices, ended by -1 */
static const struct thin_case {
    const char *name;
    int n, columns;
    double y[12];
    int keep[13];
} thin_cases[] = {
    { "nothing", 0, 4, {0}, { -1 } },
    { "few points are all kept", 4, 2, { 1, 2, 3, 4 }, { 0, 1, 2, 3, -1 } },
    { "of each column the lowest and the highest", 6, 2, { 1, 5, 2, 9, 8, 7 }, { 0, 1, 3, 5, -1 } },
    { "in ascending order of index", 6, 2, { 5, 1, 2, 7, 8, 9 }, { 0, 1, 3, 5, -1 } },
    { "a level column has one point", 6, 2, { 3, 3, 3, 1, 2, 3 }, { 0, 3, 5, -1 } },
    { "a spike is kept", 9, 2, { 1, 1, 1, 1, 9, 1, 1, 1, 1 }, { 0, 4, 5, -1 } },
    { "values that are not finite are left out", 5, 2, { 1, nan_, 2, inf, 3 }, { 0, 2, 4, -1 } },
    { "and do not count", 8, 2, { 1, nan_, 2, 3, -inf, 4, nan_, nan_ }, { 0, 2, 3, 5, -1 } },
    { "only such values", 2, 2, { nan_, inf }, { -1 } },
};

static void test_thin(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof thin_cases / sizeof *thin_cases; i++) {
        const struct thin_case *c = &thin_cases[i];
        double strided[36] = {0};
        int keep[12], n;

        for (int stride = 1; stride <= 3; stride += 2) {
            for (int k = 0; k < c->n; k++)
                strided[k * stride] = c->y[k];
            n = thin_pick(strided, (size_t)stride, c->n, c->columns, keep);
            for (int k = 0; k < n || c->keep[k] >= 0; k++)
                if (k >= n || keep[k] != c->keep[k])
                    fail_msg("%s, stride %d: point %d: got %d, want %d", c->name, stride, k, k < n ? keep[k] : -1,
                             c->keep[k]);
        }
    }
}

/* ---- runs ---- */

/* Return a run of n points with samples from `first` in steps of `step`; loss is that of the first, falling by 0.1. */
static struct past *make_run(const char *name, int n, double first, double step, double loss)
{
    struct past *p = past_new(name);

    for (int i = 0; i < n; i++) {
        struct past_point *x = past_add_point(p, i + 1);

        x->samples = first + i * step;
        x->v[PAST_LOSS] = loss - 0.1 * i;
        x->elapsed_s = 1;
    }
    past_resolve(p);
    return p;
}

/* ---- refusals ---- */

static void expect_refusal(const struct plot_ask *a, struct past *const *run, int n, enum err_kind kind, const char *words)
{
    struct err e = {0};

    assert_null(plot_new(a, run, n, &e));
    assert_int_equal(e.kind, kind);
    if (!strstr(e.msg, words))
        fail_msg("got '%s', want '%s'", e.msg, words);
}

static void test_refusals(void **state)
{
    const struct plot_ask plain = { .title = "t" }, difference = { .title = "t", .difference = true };
    struct past *run[PLOT_RUNS + 1];

    (void)state;
    for (int i = 0; i <= PLOT_RUNS; i++)
        run[i] = make_run("run", 3, 4, 4, 3);
    expect_refusal(&plain, run, PLOT_RUNS + 1, ERR_USAGE, "9 runs, at most 8");
    past_free(run[1]);
    run[1] = make_run("odd", 3, 5, 4, 3);
    expect_refusal(&difference, run, 2, ERR_DATA, "odd: has no samples in common with run");
    past_free(run[1]);
    run[1] = make_run("empty", 0, 0, 0, 0);
    expect_refusal(&plain, run + 1, 1, ERR_DATA, "empty: has no iteration with a loss");
    past_free(run[1]);
    run[1] = make_run("sets", 1, 4, 4, 3);
    for (int i = 0; i <= PLOT_SETS; i++) {
        char name[16];

        snprintf(name, sizeof name, "set %d", i);
        past_add_valid(run[1], name, 1, 2, NAN);
    }
    past_resolve(run[1]);
    expect_refusal(&plain, run + 1, 1, ERR_USAGE, "more than 16 validation sets");
    for (int i = 0; i <= PLOT_RUNS; i++)
        past_free(run[i]);
}

/* ---- pictures ---- */

static const struct picture_case {
    const char *name;
    double second_first, second_loss;   /* of the second run: its first number of samples; 0: there is none */
    struct plot_ask ask;
    const char *text[5];        /* parts of the text plot, in this order */
    const char *svg[3];         /* parts of the SVG, in this order */
} pictures[] = {
    { "one run", 0, 0, { .title = "t" }, { "loss, nats per token", "3.0 +       .", "samples consumed", "  .  one" },
      { "<svg", "<polyline", "</svg>" } },
    { "markup in a title", 0, 0, { .title = "a < b & c" }, { "  .  one" }, { "a &#60; b &#38; c", "</svg>" } },
    { "a level", 0, 0, { .title = "t", .level_name = "entropy", .level = 1.5 }, { "1.5", "  -  entropy: 1.500" },
      { "entropy" } },
    { "a run that goes on continues the curve", 44, 2, { .title = "t" }, { "o", "  .  one", "  o  two" }, { "two" } },
    { "runs next to each other, and their difference", 4, 3.25, { .title = "t", .difference = true },
      { "  o  two", "difference", "40\n", "  two", "0.2500\n" }, { "two" } },
};

static void expect_parts(const char *name, const char *got, const char *const *part, int n)
{
    for (int i = 0; i < n && part[i]; i++) {
        const char *at = strstr(got, part[i]);

        if (!at)
            fail_msg("%s: '%s' is missing, or not in order:\n%s", name, part[i], got);
        got = at + strlen(part[i]);
    }
}

static void test_pictures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++) {
        const struct picture_case *c = &pictures[i];
        struct past *run[2] = { make_run("one", 10, 4, 4, 3) };
        const int n = c->second_first > 0 ? 2 : 1;
        struct strbuf text = {0}, svg = {0};
        struct err e = {0};
        struct plot *p;

        if (n == 2)
            run[1] = make_run("two", 10, c->second_first, 4, c->second_loss);
        p = plot_new(&c->ask, run, n, &e);
        if (!p)
            fail_msg("%s: %s", c->name, e.msg);
        plot_text(p, &text);
        plot_svg(p, &svg);
        expect_parts(c->name, text.buf, c->text, 5);
        expect_parts(c->name, svg.buf, c->svg, 3);
        for (const char *line = text.buf, *end; (end = strchr(line, '\n')); line = end + 1)
            if (end - line > 78)
                fail_msg("%s: a line of %d columns", c->name, (int)(end - line));
        strbuf_free(&text);
        strbuf_free(&svg);
        plot_free(p);
        past_free(run[0]);
        past_free(run[1]);
    }
}

/* ---- the page ---- */

/* Return the data in the page, parsed. */
static json_t *page_data(const struct strbuf *page)
{
    const char *from = strstr(page->buf, "id=\"data\">"), *to;
    json_error_t why;
    json_t *o;

    assert_non_null(from);
    from += strlen("id=\"data\">");
    to = strchr(from, '<');
    assert_non_null(to);
    assert_int_equal(strncmp(to, "</script>", 9), 0);       /* the first '<' ends the data */
    o = json_loadb(from, (size_t)(to - from), 0, &why);
    if (!o)
        fail_msg("no JSON: %s", why.text);
    return o;
}

static void test_page(void **state)
{
    struct past *run[] = { make_run("</script><b>", 3, 4, 4, 3), make_run("long", 20000, 4, 4, 3) };
    json_t *areas = json_array(), *notes = json_pack("[s]", "a </script> note"), *data, *runs;
    struct page page = { .title = "</title> & \"more\"", .made_s = 1e9, .run = run, .n_runs = 2, .areas = areas,
                         .notes = notes };
    struct strbuf out = {0};

    (void)state;
    past_add_event(run[0], PAST_INCIDENT, 2, NAN, "<i>");
    page_html(&page, &out);
    assert_int_equal(strncmp(out.buf, "<!DOCTYPE html>", 15), 0);
    assert_null(strstr(out.buf, "<b>"));
    assert_null(strstr(out.buf, "<i>"));
    assert_non_null(strstr(out.buf, "<title>&#60;/title&#62; &#38; &#34;more&#34;</title>"));
    data = page_data(&out);
    assert_string_equal(json_string_value(json_object_get(data, "title")), page.title);
    assert_true(json_number_value(json_object_get(data, "made_s")) == 1e9);
    assert_string_equal(json_string_value(json_array_get(json_object_get(data, "notes"), 0)), "a </script> note");
    runs = json_object_get(data, "runs");
    assert_int_equal(json_array_size(runs), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(runs, 0), "name")), "</script><b>");
    assert_true(out.len < 1000000);     /* the curve of 20000 points is thinned */
    json_decref(data);
    json_decref(areas);
    json_decref(notes);
    strbuf_free(&out);
    past_free(run[0]);
    past_free(run[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thin), cmocka_unit_test(test_refusals), cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
