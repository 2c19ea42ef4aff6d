/*
 * lossplot - draw the losses that training logs tell of, on the terminal and as SVG
 *
 *   lossplot [--svg FILE] [--title TEXT] [--level NAME=VALUE] [--difference] LABEL=LOG...
 *
 * Each log is one run; a run that goes on where another stopped is drawn on the same axis,
 * because the axis counts the samples consumed. Training losses come from the "iteration" lines,
 * validation losses from the "NAME loss at iteration N" lines behind them. VALUE (the entropy
 * of the text, say) becomes a horizontal line. The terminal shows every training loss at its
 * place and the validation losses as a table; the SVG has a panel for each. With --difference the
 * logs are runs over the same samples, and the second panel and the table show how far each is above
 * the first at each point that both have.
 *
 * Exit status: 0 drawn, 1 a log cannot be read or has no losses, 2 wrong usage.
 */
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

enum { RUNS_MAX = 4, SETS_MAX = 8 };

struct point { double samples, loss; };
struct series {
    char *name;
    struct point *p;
    int n, cap;
};
struct plot {
    const char *title;
    const char *level_name;             /* NULL: no horizontal line */
    double level;
    struct series run[RUNS_MAX];        /* training, one a log */
    int n_runs;
    struct series set[SETS_MAX];        /* validation, one a name; all logs together */
    int n_sets;
    bool difference;                    /* the sets are differences of runs 1 .. to run 0 */
};
/* An axis: values from lo to hi, a tick at each step from lo on. */
struct axis { double lo, hi, step; };

static void die(const char *fmt, ...) PRINTF_LIKE(1, 2);
static void die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "lossplot: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

/* ---- logs ---- */

static void series_add(struct series *s, double samples, double loss)
{
    if (!isfinite(loss))
        return;
    ARRAY_ROOM(s->p, s->cap, s->n + 1);
    s->p[s->n++] = (struct point){ samples, loss };
}

/* The number behind `key` in `line`; false when there is none. */
static bool number_after(const char *line, const char *key, double *out)
{
    const char *at = strstr(line, key);
    char *end;

    if (!at)
        return false;
    at += strlen(key);
    *out = strtod(at, &end);
    return end != at;
}

static struct series *find_set(struct plot *p, const char *name, size_t len)
{
    for (int i = 0; i < p->n_sets; i++)
        if (strlen(p->set[i].name) == len && memcmp(p->set[i].name, name, len) == 0)
            return &p->set[i];
    if (p->n_sets == SETS_MAX)
        die("more than %d validation sets", SETS_MAX);
    p->set[p->n_sets].name = str_fmt("%.*s", (int)len, name);
    return &p->set[p->n_sets++];
}

static void read_log(struct plot *p, struct series *run, const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    double samples = 0, loss;

    if (!f)
        die("%s: cannot open", path);
    while (getline(&line, &cap, f) > 0) {
        const char *at = strstr(line, " loss at iteration ");

        if (number_after(line, "| consumed samples:", &samples) && number_after(line, "| lm loss:", &loss))
            series_add(run, samples, loss);
        else if (at && number_after(at, "| lm loss value:", &loss))
            series_add(find_set(p, line, (size_t)(at - line)), samples, loss);
    }
    free(line);
    fclose(f);
    if (run->n == 0)
        die("%s: has no training line with a loss", path);
}

/* In place of validation losses: how far each run is above the first where samples are equal. */
static void make_differences(struct plot *p)
{
    const struct series *base = &p->run[0];

    for (int i = 0; i < p->n_sets; i++) {
        free(p->set[i].name);
        free(p->set[i].p);
        p->set[i] = (struct series){0};
    }
    p->n_sets = p->n_runs - 1;
    for (int r = 1; r < p->n_runs; r++) {
        struct series *d = &p->set[r - 1];
        const struct series *run = &p->run[r];

        d->name = run->name;
        for (int i = 0, k = 0; i < base->n && k < run->n;)
            if (base->p[i].samples < run->p[k].samples) {
                i++;
            } else if (base->p[i].samples > run->p[k].samples) {
                k++;
            } else {
                series_add(d, run->p[k].samples, run->p[k].loss - base->p[i].loss);
                i++, k++;
            }
        if (d->n == 0)
            die("%s has no samples in common with %s", run->name, base->name);
    }
}

/* ---- axes ---- */

static void widen(const struct series *s, int n, double *x_hi, double *lo, double *hi)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s[i].n; k++) {
            *x_hi = fmax(*x_hi, s[i].p[k].samples);
            *lo = fmin(*lo, s[i].p[k].loss);
            *hi = fmax(*hi, s[i].p[k].loss);
        }
}

/* An axis that holds lo to hi, with 3 to 6 steps of 1, 2 or 5 times a power of ten. */
static struct axis axis_over(double lo, double hi)
{
    double span = hi > lo ? hi - lo : 1, step = pow(10, floor(log10(span))) / 10;
    static const double times[] = { 2, 2.5, 2 };

    for (int i = 0; span / step > 6; i++)
        step *= times[i % 3];
    return (struct axis){ floor(lo / step + 1e-9) * step, ceil(hi / step - 1e-9) * step, step };
}

static double axis_share(const struct axis *a, double v)
{
    return (v - a->lo) / (a->hi - a->lo);
}

static int axis_decimals(const struct axis *a)
{
    int d = 0;

    for (double s = a->step; d < 4 && fabs(s - round(s)) > 1e-6; s *= 10)
        d++;
    return d;
}

/* ---- terminal ---- */

enum { ROWS = 20, COLS = 70 };          /* of the grid; an axis to its left and one below make 78 columns */
static const char marks[RUNS_MAX] = { '.', 'o', '+', 'x' };

static int text_col(const struct axis *x, double samples)
{
    return (int)(axis_share(x, samples) * (COLS - 1) + 0.5);
}

static int text_row(const struct axis *y, double loss)
{
    return (int)((1 - axis_share(y, loss)) * (ROWS - 1) + 0.5);
}

static void text_fill(const struct plot *p, const struct axis *x, const struct axis *y, char grid[ROWS][COLS + 1])
{
    for (int row = 0; row < ROWS; row++) {
        memset(grid[row], ' ', COLS);
        grid[row][COLS] = '\0';
        for (int r = 1; r < p->n_runs && !p->difference; r++)  /* where the next run takes over */
            grid[row][text_col(x, p->run[r].p[0].samples)] = ':';
    }
    for (int c = 0; p->level_name && c < COLS; c += 2)
        grid[text_row(y, p->level)][c] = '-';
    for (int r = 0; r < p->n_runs; r++)
        for (int k = 0; k < p->run[r].n; k++)
            grid[text_row(y, p->run[r].p[k].loss)][text_col(x, p->run[r].p[k].samples)] = marks[r];
}

static void text_axis_x(const struct axis *x)
{
    char line[COLS + 1], label[COLS + 1];

    memset(line, '-', COLS);
    memset(label, ' ', COLS);
    line[COLS] = label[COLS] = '\0';
    for (double v = x->lo; v < x->hi + x->step * 1e-6; v += x->step) {
        int c = text_col(x, v), len;
        char number[32];

        len = snprintf(number, sizeof number, "%.*f", axis_decimals(x), v);
        line[c] = c ? '+' : '-';                /* the corner is there already */
        c = c - len / 2 > 0 ? c - len / 2 : 0;
        memcpy(label + (c < COLS - len ? c : COLS - len), number, (size_t)len);
    }
    printf("      +%s\n       %s\n%77s\n", line, label, "samples consumed");
}

/* At most 8 columns of the validation losses, evenly chosen, the last one included. */
static void text_table(const struct plot *p)
{
    const struct series *first = p->set;
    int every = (first->n + 7) / 8;

    printf("\n  %-12s", p->difference ? "difference" : "validation");
    for (int k = (first->n - 1) % every; k < first->n; k += every)
        printf("%8.0f", first->p[k].samples);
    printf("\n");
    for (const struct series *s = p->set; s < p->set + p->n_sets; s++) {
        printf("  %-12s", s->name);
        for (int k = (s->n - 1) % every; k < s->n; k += every)
            printf(p->difference ? "%8.4f" : "%8.3f", s->p[k].loss);
        printf("\n");
    }
}

static void draw_text(const struct plot *p, const struct axis *x, const struct axis *y)
{
    static char grid[ROWS][COLS + 1];

    text_fill(p, x, y, grid);
    printf("  loss, nats per token\n");
    for (int row = 0; row < ROWS; row++) {
        double at = y->hi - (y->hi - y->lo) * row / (ROWS - 1), tick = round(at / y->step) * y->step;

        if (text_row(y, tick) == row)
            printf("%5.*f +%s\n", axis_decimals(y), tick, grid[row]);
        else
            printf("      |%s\n", grid[row]);
    }
    text_axis_x(x);
    for (int r = 0; r < p->n_runs; r++)
        printf("  %c  %s\n", marks[r], p->run[r].name);
    if (p->level_name)
        printf("  -  %s: %.3f\n", p->level_name, p->level);
    if (p->n_sets)
        text_table(p);
}

/* ---- SVG ---- */

enum { SVG_W = 960, SVG_LEFT = 80, SVG_RIGHT = 800, SVG_TOP = 70, SVG_FOOT = 56 };
enum { TRAIN_H = 320, GAP = 60, VALID_H = 220 };
/* Okabe and Ito's colours, which colour-blind readers can tell apart. */
static const char *const run_colour[RUNS_MAX] = { "#0072B2", "#D55E00", "#009E73", "#CC79A7" };
static const char *const set_colour[SETS_MAX] = { "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#0072B2", "#D55E00",
                                                  "#000000", "#999999" };

/* A rectangle with axes; y grows downwards in SVG. */
struct panel {
    FILE *f;
    struct axis x, y;
    double top, bottom;
};

static double svg_x(const struct panel *n, double samples)
{
    return SVG_LEFT + axis_share(&n->x, samples) * (SVG_RIGHT - SVG_LEFT);
}

static double svg_y(const struct panel *n, double loss)
{
    return n->bottom - axis_share(&n->y, loss) * (n->bottom - n->top);
}

static void svg_text(FILE *f, double x, double y, const char *style, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(f, "&#%d;", *text);
        else
            fputc(*text, f);
    fprintf(f, "</text>\n");
}

static void svg_frame(const struct panel *n, const char *heading)
{
    char label[32];

    svg_text(n->f, SVG_LEFT, n->top - 12, "font-weight=\"bold\"", heading);
    for (double v = n->x.lo; v < n->x.hi + n->x.step * 1e-6; v += n->x.step) {
        fprintf(n->f, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#e4e4e4\"/>\n", svg_x(n, v), n->top, n->bottom);
        snprintf(label, sizeof label, "%.*f", axis_decimals(&n->x), v);
        svg_text(n->f, svg_x(n, v), n->bottom + 18, "text-anchor=\"middle\"", label);
    }
    for (double v = n->y.lo; v < n->y.hi + n->y.step / 2; v += n->y.step) {
        fprintf(n->f, "<path d=\"M%d %.1fH%d\" stroke=\"#e4e4e4\"/>\n", SVG_LEFT, svg_y(n, v), SVG_RIGHT);
        snprintf(label, sizeof label, "%.*f", axis_decimals(&n->y), fabs(v) < n->y.step / 2 ? 0 : v);
        svg_text(n->f, SVG_LEFT - 8, svg_y(n, v) + 4, "text-anchor=\"end\"", label);
    }
    fprintf(n->f, "<path d=\"M%d %.1fV%.1fH%d\" stroke=\"#333\" fill=\"none\"/>\n", SVG_LEFT, n->top, n->bottom,
            SVG_RIGHT);
    fprintf(n->f, "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">"
            "loss, nats per token</text>\n", (n->top + n->bottom) / 2);
}

static void svg_series(const struct panel *n, const struct series *s, const char *colour, bool dots)
{
    fprintf(n->f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" stroke-linejoin=\"round\" points=\"",
            colour);
    for (int k = 0; k < s->n; k++)
        fprintf(n->f, "%.1f,%.1f ", svg_x(n, s->p[k].samples), svg_y(n, s->p[k].loss));
    fprintf(n->f, "\"/>\n");
    for (int k = 0; dots && k < s->n; k++)
        fprintf(n->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", svg_x(n, s->p[k].samples),
                svg_y(n, s->p[k].loss), colour);
}

/* Where a run takes over from the one before. */
static void svg_handovers(const struct panel *n, const struct plot *p)
{
    for (int r = 1; r < p->n_runs && !p->difference; r++)
        fprintf(n->f, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#888\" stroke-dasharray=\"2 3\"/>\n",
                svg_x(n, p->run[r].p[0].samples), n->top, n->bottom);
}

static void svg_level(const struct panel *n, const struct plot *p)
{
    char *text = str_fmt("%s: %.3f", p->level_name, p->level);

    fprintf(n->f, "<path d=\"M%d %.1fH%d\" stroke=\"#555\" stroke-dasharray=\"7 4\"/>\n", SVG_LEFT,
            svg_y(n, p->level), SVG_RIGHT);
    svg_text(n->f, SVG_RIGHT - 6, svg_y(n, p->level) - 6, "text-anchor=\"end\" fill=\"#555\"", text);
    free(text);
}

/* A difference has the colour of its run. */
static const char *colour_of_set(const struct plot *p, int s)
{
    return p->difference ? run_colour[s + 1] : set_colour[s];
}

static double last_loss(const struct series *s)
{
    return s->p[s->n - 1].loss;
}

/* Names of the curves behind their ends, from the lowest up and never on top of each other. */
static void svg_names(const struct panel *n, const struct plot *p)
{
    bool done[SETS_MAX] = {0};
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
        svg_text(n->f, SVG_RIGHT + 12, above, style, text);
        free(text);
        free(style);
    }
}

static void svg_train(const struct panel *n, const struct plot *p)
{
    svg_frame(n, "Training");
    svg_handovers(n, p);
    if (p->level_name)
        svg_level(n, p);
    for (int r = 0; r < p->n_runs; r++) {
        /* Runs that go on from each other are named where they begin; those over the same samples where losses are low. */
        double x = svg_x(n, p->run[r].p[0].samples) + (r ? 8 : 36);
        char *style = str_fmt("fill=\"%s\" font-weight=\"bold\"%s", run_colour[r],
                              p->difference ? " text-anchor=\"end\"" : "");

        svg_series(n, &p->run[r], run_colour[r], false);
        svg_text(n->f, p->difference ? SVG_RIGHT - 10 : x, n->top + 20 + 20 * r, style, p->run[r].name);
        free(style);
    }
}

static void svg_valid(const struct panel *n, const struct plot *p)
{
    char *heading = p->difference ? str_fmt("Difference to %s", p->run[0].name) : str_fmt("Validation");

    svg_frame(n, heading);
    svg_handovers(n, p);
    for (int s = 0; s < p->n_sets; s++)
        svg_series(n, &p->set[s], colour_of_set(p, s), !p->difference);
    if (!p->difference)                 /* else the upper panel has the names */
        svg_names(n, p);
    free(heading);
}

static void draw_svg(const struct plot *p, const struct axis *x, const struct axis *train, const struct axis *valid,
                     const char *path)
{
    FILE *f = fopen(path, "w");
    int bottom = SVG_TOP + TRAIN_H + (p->n_sets ? GAP + VALID_H : 0);
    struct panel n = { f, *x, *train, SVG_TOP, SVG_TOP + TRAIN_H };

    if (!f)
        die("%s: cannot create", path);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#333\">\n", SVG_W, bottom + SVG_FOOT,
            SVG_W, bottom + SVG_FOOT);
    fprintf(f, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    svg_text(f, SVG_LEFT, 32, "font-size=\"18\" font-weight=\"bold\"", p->title);
    svg_train(&n, p);
    if (p->n_sets) {
        n = (struct panel){ f, *x, *valid, bottom - VALID_H, bottom };
        svg_valid(&n, p);
    }
    svg_text(f, (SVG_LEFT + SVG_RIGHT) / 2.0, bottom + 42, "text-anchor=\"middle\"", "samples consumed");
    fprintf(f, "</svg>\n");
    if (ferror(f) || fclose(f) != 0)
        die("%s: cannot write", path);
}

/* ---- command line ---- */

/* Cuts "NAME=VALUE" in two; NULL when there is no '='. */
static char *cut(char *arg)
{
    char *eq = strchr(arg, '=');

    if (eq)
        *eq++ = '\0';
    return eq;
}

static int usage(void)
{
    fprintf(stderr, "usage: lossplot [--svg FILE] [--title TEXT] [--level NAME=VALUE] [--difference] LABEL=LOG...\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option longopts[] = {
        { "svg", required_argument, 0, 's' }, { "title", required_argument, 0, 't' },
        { "level", required_argument, 0, 'l' }, { "difference", no_argument, 0, 'd' }, {0},
    };
    static struct plot p = { .title = "Loss" };
    struct axis x, train, valid;
    double x_hi = 0, lo = INFINITY, hi = -INFINITY, valid_lo = INFINITY, valid_hi = -INFINITY;
    const char *svg = NULL;
    char *value;
    int c;

    while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
        if (c == 's') {
            svg = optarg;
        } else if (c == 't') {
            p.title = optarg;
        } else if (c == 'l' && (value = cut(optarg)) && isfinite(p.level = strtod(value, NULL))) {
            p.level_name = optarg;
        } else if (c == 'd') {
            p.difference = true;
        } else {
            return usage();
        }
    }
    if (optind == argc || argc - optind > RUNS_MAX)
        return usage();
    for (; optind < argc; optind++, p.n_runs++) {
        if (!(value = cut(argv[optind])))
            return usage();
        p.run[p.n_runs].name = argv[optind];
        read_log(&p, &p.run[p.n_runs], value);
    }

    if (p.difference)
        make_differences(&p);
    widen(p.set, p.n_sets, &x_hi, &valid_lo, &valid_hi);
    widen(p.run, p.n_runs, &x_hi, &lo, &hi);
    x = axis_over(0, x_hi);
    x.hi = x_hi;                        /* curves end where the axis does */
    train = p.level_name ? axis_over(fmin(lo, p.level), fmax(hi, p.level)) : axis_over(lo, hi);
    valid = axis_over(valid_lo, valid_hi);
    draw_text(&p, &x, &train);
    if (svg)
        draw_svg(&p, &x, &train, &valid, svg);
    return 0;
}
