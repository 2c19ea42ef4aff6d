/*
 * plot_svg.c - draw losses as SVG: a panel for training, and one for validation or differences
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run-watch/picture/plot_impl.h"
#include "tools/run-watch/picture/thin.h"

enum { SVG_W = 960, SVG_LEFT = 80, SVG_RIGHT = 800, SVG_TOP = 70, SVG_FOOT = 56 };
enum { SVG_COLUMNS = 2 * (SVG_RIGHT - SVG_LEFT) };
enum { TRAIN_H = 320, GAP = 60, VALID_H = 220 };
/* Colours of the runs. They are from Okabe and Ito's palette, which colour-blind readers can distinguish. */
static const char *const run_colour[PLOT_RUNS] = { "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
                                                   "#000000", "#999999" };
enum { SET_COLOURS = 8 };
static const char *const set_colour[SET_COLOURS] = { "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#0072B2", "#D55E00",
                                                     "#000000", "#999999" };

/* A panel: a rectangle with axes. In SVG, y increases downwards. */
struct panel {
    struct strbuf *out;
    struct plot_axis x, y;
    double top, bottom;
};

static double svg_x(const struct panel *n, double samples)
{
    return SVG_LEFT + plot_share(&n->x, samples) * (SVG_RIGHT - SVG_LEFT);
}

static double svg_y(const struct panel *n, double loss)
{
    return n->bottom - plot_share(&n->y, loss) * (n->bottom - n->top);
}

static void svg_text(struct strbuf *out, double x, double y, const char *style, const char *text)
{
    strbuf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            strbuf_addf(out, "&#%d;", *text);
        else
            strbuf_add(out, text, 1);
    strbuf_addf(out, "</text>\n");
}

static void svg_frame(const struct panel *n, const char *heading)
{
    char label[32];

    svg_text(n->out, SVG_LEFT, n->top - 12, "font-weight=\"bold\"", heading);
    for (double v = n->x.lo; v < n->x.hi + n->x.step * 1e-6; v += n->x.step) {
        strbuf_addf(n->out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#e4e4e4\"/>\n", svg_x(n, v), n->top, n->bottom);
        snprintf(label, sizeof label, "%.*f", plot_decimals(&n->x), v);
        svg_text(n->out, svg_x(n, v), n->bottom + 18, "text-anchor=\"middle\"", label);
    }
    for (double v = n->y.lo; v < n->y.hi + n->y.step / 2; v += n->y.step) {
        strbuf_addf(n->out, "<path d=\"M%d %.1fH%d\" stroke=\"#e4e4e4\"/>\n", SVG_LEFT, svg_y(n, v), SVG_RIGHT);
        snprintf(label, sizeof label, "%.*f", plot_decimals(&n->y), fabs(v) < n->y.step / 2 ? 0 : v);
        svg_text(n->out, SVG_LEFT - 8, svg_y(n, v) + 4, "text-anchor=\"end\"", label);
    }
    strbuf_addf(n->out, "<path d=\"M%d %.1fV%.1fH%d\" stroke=\"#333\" fill=\"none\"/>\n", SVG_LEFT, n->top, n->bottom,
                SVG_RIGHT);
    strbuf_addf(n->out, "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">"
                "loss, nats per token</text>\n", (n->top + n->bottom) / 2);
}

static void svg_series(const struct panel *n, const struct plot_series *s, const char *colour, bool dots)
{
    int *keep = xcalloc((size_t)s->n, sizeof *keep);
    const int kept = thin_pick(&s->p->loss, sizeof *s->p / sizeof(double), s->n, SVG_COLUMNS, keep);

    strbuf_addf(n->out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" stroke-linejoin=\"round\" "
                "points=\"", colour);
    for (int k = 0; k < kept; k++)
        strbuf_addf(n->out, "%.1f,%.1f ", svg_x(n, s->p[keep[k]].samples), svg_y(n, s->p[keep[k]].loss));
    free(keep);
    strbuf_addf(n->out, "\"/>\n");
    for (int k = 0; dots && k < s->n; k++)
        strbuf_addf(n->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", svg_x(n, s->p[k].samples),
                    svg_y(n, s->p[k].loss), colour);
}

/* Mark the places where a run continues the previous one. */
static void svg_handovers(const struct panel *n, const struct plot *p)
{
    for (int r = 1; r < p->n_runs && !p->parallel; r++)
        strbuf_addf(n->out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#888\" stroke-dasharray=\"2 3\"/>\n",
                    svg_x(n, p->run[r].p[0].samples), n->top, n->bottom);
}

static void svg_level(const struct panel *n, const struct plot *p)
{
    char *text = str_fmt("%s: %.3f", p->ask.level_name, p->ask.level);

    strbuf_addf(n->out, "<path d=\"M%d %.1fH%d\" stroke=\"#555\" stroke-dasharray=\"7 4\"/>\n", SVG_LEFT,
                svg_y(n, p->ask.level), SVG_RIGHT);
    svg_text(n->out, SVG_RIGHT - 6, svg_y(n, p->ask.level) - 6, "text-anchor=\"end\" fill=\"#555\"", text);
    free(text);
}

/* Returns the colour of series s of validation losses. The differences of a run have the same colour as the run. */
static const char *colour_of_set(const struct plot *p, int s)
{
    return p->ask.difference ? run_colour[s + 1] : set_colour[s % SET_COLOURS];
}

static double last_loss(const struct plot_series *s)
{
    return s->p[s->n - 1].loss;
}

/* Write the names of the curves of a panel next to their ends, from the lowest to the highest, without overlaps. */
static void svg_names(const struct panel *n, const struct plot *p)
{
    bool done[PLOT_SETS] = {0};
    double above = n->bottom + 100;

    for (int i = 0; i < p->n_sets; i++) {
        char *text, *style;
        int low = -1;

        for (int s = 0; s < p->n_sets; s++)
            if (!done[s] && (low < 0 || last_loss(&p->set[s]) < last_loss(&p->set[low])))
                low = s;
        done[low] = true;
        above = fmin(svg_y(n, last_loss(&p->set[low])) + 4, above - 17);
        text = str_fmt("%s %.3f", p->set[low].name, last_loss(&p->set[low]));
        style = str_fmt("fill=\"%s\" font-weight=\"bold\"", colour_of_set(p, low));
        svg_text(n->out, SVG_RIGHT + 12, above, style, text);
        free(text);
        free(style);
    }
}

static void svg_train(const struct panel *n, const struct plot *p)
{
    svg_frame(n, "Training");
    svg_handovers(n, p);
    if (p->ask.level_name)
        svg_level(n, p);
    for (int r = 0; r < p->n_runs; r++) {
        /*
         * If runs continue each other, each name is written at the beginning of its curve. Names of parallel runs are
         * written at the right.
         */
        double x = svg_x(n, p->run[r].p[0].samples) + (r ? 8 : 36);
        char *style = str_fmt("fill=\"%s\" font-weight=\"bold\"%s", run_colour[r],
                              p->parallel ? " text-anchor=\"end\"" : "");

        svg_series(n, &p->run[r], run_colour[r], false);
        svg_text(n->out, p->parallel ? SVG_RIGHT - 10 : x, n->top + 20 + 20 * r, style, p->run[r].name);
        free(style);
    }
}

static void svg_valid(const struct panel *n, const struct plot *p)
{
    char *heading = p->ask.difference ? str_fmt("Difference to %s", p->run[0].name) : str_fmt("Validation");

    svg_frame(n, heading);
    svg_handovers(n, p);
    for (int s = 0; s < p->n_sets; s++)
        svg_series(n, &p->set[s], colour_of_set(p, s), !p->ask.difference);
    if (!p->ask.difference)                 /* with `difference`, the upper panel already has the names */
        svg_names(n, p);
    free(heading);
}

void plot_svg(const struct plot *p, struct strbuf *out)
{
    int bottom = SVG_TOP + TRAIN_H + (p->n_sets ? GAP + VALID_H : 0);
    struct panel n = { out, p->x, p->train, SVG_TOP, SVG_TOP + TRAIN_H };

    strbuf_addf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#333\">\n", SVG_W,
                bottom + SVG_FOOT, SVG_W, bottom + SVG_FOOT);
    strbuf_addf(out, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    svg_text(out, SVG_LEFT, 32, "font-size=\"18\" font-weight=\"bold\"", p->ask.title);
    svg_train(&n, p);
    if (p->n_sets) {
        n = (struct panel){ out, p->x, p->valid, bottom - VALID_H, bottom };
        svg_valid(&n, p);
    }
    svg_text(out, (SVG_LEFT + SVG_RIGHT) / 2.0, bottom + 42, "text-anchor=\"middle\"", "samples consumed");
    strbuf_addf(out, "</svg>\n");
}
