/*
 * draw_plot.c - the verb plot: draw losses on the terminal, or as SVG
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run-watch/draw_runs.h"
#include "tools/run-watch/picture/plot.h"

/* Parse the value "NAME=VALUE" of --level. The caller frees *name. */
static int cut_level(const char *text, char **name, double *value, struct err *e)
{
    const char *eq = strrchr(text, '=');
    char *end = NULL;

    if (eq)
        *value = strtod(eq + 1, &end);
    if (!eq || eq == text || end == eq + 1 || *end || !isfinite(*value)) {
        err_usage(e, "--level %s: expected NAME=VALUE", text);
        return -1;
    }
    *name = str_fmt("%.*s", (int)(eq - text), text);
    return 0;
}

int plot_draw(struct runwatch *w, struct err *e)
{
    struct plot_ask ask = { .title = w->title ? w->title : "Loss", .difference = w->difference };
    struct draw_runs runs = {0};
    struct strbuf text = {0};
    struct plot *plot = NULL;
    json_t *notes = json_array();
    char *level = NULL;
    int rc = -1;

    if (draw_check_output(w, e) < 0)
        goto out;
    if (w->level && cut_level(w->level, &level, &ask.level, e) < 0)
        goto out;
    ask.level_name = level;
    draw_runs_read(&runs, w, notes);
    if (draw_runs_resolve(&runs, e) < 0)
        goto out;
    if (ask.difference && runs.n < 2) {
        err_usage(e, "--difference: one run is named, expected two or more");
        goto out;
    }
    plot = plot_new(&ask, runs.run, runs.n, e);
    if (!plot)
        goto out;
    if (w->output)
        plot_svg(plot, &text);
    else
        plot_text(plot, &text);
    rc = draw_put(w, &text, e) < 0 ? -1 : json_array_size(notes) ? EXIT_BAD : EXIT_OK;
out:
    plot_free(plot);
    strbuf_free(&text);
    draw_runs_free(&runs);
    json_decref(notes);
    free(level);
    return rc;
}
