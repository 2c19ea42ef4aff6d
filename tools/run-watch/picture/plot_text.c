/*
 * plot_text.c - draw losses for a terminal of 78 columns
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/run-watch/picture/plot_impl.h"

/*
 * Size of the grid in characters. Together with the axis on its left, the picture has 78 columns; another axis is below
 * it.
 */
enum { ROWS = 20, COLS = 70 };
static const char marks[PLOT_RUNS] = { '.', 'o', '+', 'x', '*', '#', '@', '%' };

static int text_col(const struct plot_axis *x, double samples)
{
    return (int)(plot_share(x, samples) * (COLS - 1) + 0.5);
}

static int text_row(const struct plot_axis *y, double loss)
{
    return (int)((1 - plot_share(y, loss)) * (ROWS - 1) + 0.5);
}

static void text_fill(const struct plot *p, char grid[ROWS][COLS + 1])
{
    const struct plot_axis *x = &p->x, *y = &p->train;

    for (int row = 0; row < ROWS; row++) {
        memset(grid[row], ' ', COLS);
        grid[row][COLS] = '\0';
        for (int r = 1; r < p->n_runs && !p->parallel; r++)  /* mark where the next run begins */
            grid[row][text_col(x, p->run[r].p[0].samples)] = ':';
    }
    for (int c = 0; p->ask.level_name && c < COLS; c += 2)
        grid[text_row(y, p->ask.level)][c] = '-';
    for (int r = 0; r < p->n_runs; r++)
        for (int k = 0; k < p->run[r].n; k++)
            grid[text_row(y, p->run[r].p[k].loss)][text_col(x, p->run[r].p[k].samples)] = marks[r];
}

static void text_axis_x(const struct plot_axis *x, struct strbuf *out)
{
    char line[COLS + 1], label[COLS + 1];

    memset(line, '-', COLS);
    memset(label, ' ', COLS);
    line[COLS] = label[COLS] = '\0';
    for (double v = x->lo; v < x->hi + x->step * 1e-6; v += x->step) {
        int c = text_col(x, v), len;
        char number[32];

        len = snprintf(number, sizeof number, "%.*f", plot_decimals(x), v);
        line[c] = c ? '+' : '-';                /* the corner is already drawn */
        c = c - len / 2 > 0 ? c - len / 2 : 0;
        memcpy(label + (c < COLS - len ? c : COLS - len), number, (size_t)len);
    }
    strbuf_addf(out, "      +%s\n       %s\n%77s\n", line, label, "samples consumed");
}

/* Returns the loss of the series at exactly this number of samples, or NaN if there is none. */
static double loss_at(const struct plot_series *s, double samples)
{
    for (int k = 0; k < s->n; k++)
        if (s->p[k].samples == samples)
            return s->p[k].loss;
    return NAN;
}

/*
 * Print a table of validation losses. The table has as many columns as fit, at most 8. The columns are evenly chosen
 * from the points of the first set, including its last point.
 */
static void text_table(const struct plot *p, struct strbuf *out)
{
    const struct plot_series *first = p->set;
    const int digits = p->ask.difference ? 4 : 3, long_one = snprintf(NULL, 0, "%.0f", p->x.hi) + 2;
    const int cell = long_one > 8 ? long_one : 8;
    int width = 12, fit, every;

    for (int i = 0; i < p->n_sets; i++)
        width = (int)strlen(p->set[i].name) > width ? (int)strlen(p->set[i].name) : width;
    fit = (78 - width) / cell;
    fit = fit > 8 ? 8 : fit < 1 ? 1 : fit;
    every = (first->n + fit - 1) / fit;
    strbuf_addf(out, "\n  %-*s", width, p->ask.difference ? "difference" : "validation");
    for (int k = (first->n - 1) % every; k < first->n; k += every)
        strbuf_addf(out, "%*.0f", cell, first->p[k].samples);
    strbuf_addf(out, "\n");
    for (const struct plot_series *s = p->set; s < p->set + p->n_sets; s++) {
        strbuf_addf(out, "  %-*s", width, s->name);
        for (int k = (first->n - 1) % every; k < first->n; k += every) {
            const double loss = loss_at(s, first->p[k].samples);

            if (isfinite(loss))
                strbuf_addf(out, "%*.*f", cell, digits, loss);
            else
                strbuf_addf(out, "%*s", cell, "-");
        }
        strbuf_addf(out, "\n");
    }
}

void plot_text(const struct plot *p, struct strbuf *out)
{
    const struct plot_axis *y = &p->train;
    char grid[ROWS][COLS + 1];

    text_fill(p, grid);
    strbuf_addf(out, "  loss, nats per token\n");
    for (int row = 0; row < ROWS; row++) {
        double at = y->hi - (y->hi - y->lo) * row / (ROWS - 1), tick = round(at / y->step) * y->step;

        if (text_row(y, tick) == row)
            strbuf_addf(out, "%5.*f +%s\n", plot_decimals(y), tick, grid[row]);
        else
            strbuf_addf(out, "      |%s\n", grid[row]);
    }
    text_axis_x(&p->x, out);
    for (int r = 0; r < p->n_runs; r++)
        strbuf_addf(out, "  %c  %s\n", marks[r], p->run[r].name);
    if (p->ask.level_name)
        strbuf_addf(out, "  -  %s: %.3f\n", p->ask.level_name, p->ask.level);
    if (p->n_sets)
        text_table(p, out);
}
