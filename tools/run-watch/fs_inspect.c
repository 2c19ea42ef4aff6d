/*
 * fs_inspect.c - the verb fs: check the free space of file systems, and predict how long it will last
 *
 * With --compat bigscience the output has the format of that project's fs-watchdog.py, which existing scripts parse.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/text.h"
#include "tools/run-watch/fs/fs_forecast.h"
#include "tools/run-watch/fs/fs_measure.h"
#include "tools/run-watch/runwatch.h"

static const double gib = 1073741824.0, tib = 1099511627776.0;

/* Returns true if the area exceeds its limit. For a quota, `which` 0 selects the bytes and 1 the inodes. */
static bool is_over(const struct fs_area *a, const struct fs_measure *m, int which)
{
    if (a->kind == FS_QUOTA)
        return m->used[which] / 100 > a->share;
    if (a->kind == FS_DF)
        return m->used[0] < (double)a->limit;
    return m->used[0] > (double)a->limit * a->share;
}

/* ---- lines in bigscience's format ---- */

static void add_compat_area_text(struct runwatch *w, const struct fs_area *a, const struct fs_measure *m)
{
    static const char *const of[] = { "bytes", "inodes" };
    const double percent = a->limit ? 100 * m->used[0] / (double)a->limit : 0;
    const size_t from = w->text.len;

    for (int i = 0; a->kind == FS_QUOTA && i < 2; i++)
        if (is_over(a, m, i))
            strbuf_addf(&w->text, "%s is at %.2f%% %s usage\n", a->name, m->used[i], of[i]);
    if (a->kind == FS_QUOTA && w->text.len > from)
        strbuf_addf(&w->text, "%s\n", m->output.buf);
    if (a->kind == FS_DU && is_over(a, m, 0))
        strbuf_addf(&w->text, "%s is at %.2f%% bytes usage (%.2fGB/%.2fGB)\n", a->name, percent, m->used[0] / gib,
                    (double)a->limit / gib);
    if (a->kind == FS_INODES && is_over(a, m, 0))
        strbuf_addf(&w->text, "%s is at %.2f%% inodes usage (%.2fK/%.2fK)\n", a->name, percent, m->used[0] / 1024,
                    (double)a->limit / 1024);
    if (a->kind == FS_DF && is_over(a, m, 0))
        strbuf_addf(&w->text, "Shared %s has %.2fTB left\n", a->name, m->used[0] / tib);
    if (w->text.len > from)
        strbuf_addf(&w->text, "\n");
}

static void set_compat_fs_text(struct runwatch *w)
{
    static const char head[] = "[ALERT] JZ filesystem is getting close to being full";
    char *lines;

    if (w->text.len == 0) {
        /* A warning in the report means that an area could not be measured. In that case no line is printed. */
        if (report_count(w->report, SEV_WARNING) == 0)
            strbuf_addf(&w->text, "All partitions are in a good standing\n");
        return;
    }
    lines = str_fmt("%s\n%s", head, w->text.buf);
    w->text.len = 0;
    strbuf_addf(&w->text, "%s", lines);
    w->subject = xstrdup(head);
    free(lines);
}

/* ---- the default lines ---- */

/* Returns text such as "78.12 % of 440 TB" or "61 TB free". The caller frees it. */
static char *how_full(const struct fs_area *a, const struct fs_measure *m, int which)
{
    static const char *const of[] = { "bytes", "inodes" };
    char size[16], limit[16];

    if (a->kind == FS_QUOTA)
        return str_fmt("%.2f %% of its %s (at most %.4g %%)", m->used[which], of[which], 100 * a->share);
    if (a->kind == FS_DF)
        return str_fmt("%s are free (at least %s)", bytes_text((uint64_t)m->used[0], size),
                       bytes_text(a->limit, limit));
    if (a->kind == FS_INODES)
        return str_fmt("%.2f %% of %llu inodes (at most %.4g %%)", 100 * m->used[0] / (double)a->limit,
                       (unsigned long long)a->limit, 100 * a->share);
    return str_fmt("%.2f %% of %s (at most %.4g %%)", 100 * m->used[0] / (double)a->limit, bytes_text(a->limit, limit),
                   100 * a->share);
}

/*
 * Returns a text such as "; full in 31 h at this rate". *soon is set to true if the area will be full within the limit
 * of --ahead. The caller frees the text.
 */
static char *when_full(const struct runwatch *w, const struct fs_area *a, double value, struct book *b, bool *soon,
                       const char *of)
{
    const double full = a->kind == FS_QUOTA ? 100 : a->kind == FS_DF ? 0 : (double)a->limit;
    char *key = str_fmt("%s %s %s", w->scope, a->name, of), span[24];
    json_t *name = text_json(key);
    double hours = -1;

    if (b) {
        hours = fs_forecast_hours(book_part(b, "areas"), json_string_value(name), w->now_s, value, full);
        json_object_set_new(book_part(b, "full"), json_string_value(name), json_real(full));
    }
    json_decref(name);
    free(key);
    *soon = hours >= 0 && hours < w->ahead_h;
    if (hours < 0 || hours > 24 * 365)
        return xstrdup("");
    return str_fmt("; full in %s at this rate", round_span(3600 * hours, span));
}

static void check_area_usage(struct runwatch *w, const struct fs_area *a, const struct fs_measure *m, struct book *b)
{
    /* The code of a finding: row = kind of the area, column = first or second value. */
    static const char *const code[][2] = { { "bytes", "inodes" }, { "bytes" }, { "inodes" }, { "free" } };
    static const char *const soon_code[][2] = { { "bytes_soon", "inodes_soon" }, { "bytes_soon" }, { "inodes_soon" },
                                                { "free_soon" } };

    for (int i = 0; i < (a->kind == FS_QUOTA ? 2 : 1); i++) {
        bool soon;
        char *full = how_full(a, m, i), *when = when_full(w, a, m->used[i], b, &soon, code[a->kind][i]);

        if (is_over(a, m, i))
            round_wrong(w, code[a->kind][i], a->name, "%s%s", full, when);
        else if (soon && w->compat == RUNWATCH_OWN)
            round_wrong(w, soon_code[a->kind][i], a->name, "%s%s", full, when);
        else
            round_report_ok(w, code[a->kind][i], a->name, "%s%s", full, when);
        free(full);
        free(when);
    }
    if (m->doubt && w->compat == RUNWATCH_OWN)
        round_unknown(w, "du", a->name, "whether it is more: %s", m->doubt);
}

int fs_inspect(struct runwatch *w, struct err *e)
{
    char *path = realpath(w->arg[0], NULL);
    struct fs_measure *m = NULL;
    struct fs_rules rules = {0};
    struct err lost = {0};
    struct book b = { .lock = -1 };
    bool *known = NULL, remembers;
    int rc = -1;

    w->scope = str_fmt("fs %s", path ? path : w->arg[0]);
    if (fs_rules_read(&rules, w->arg[0], e) < 0)
        goto out;
    m = xcalloc((size_t)rules.n, sizeof *m);
    known = xcalloc((size_t)rules.n, sizeof *known);
    /* Measure all areas before opening the book: du takes long, and other processes wait for the book. */
    for (int i = 0; i < rules.n && !cli_stopped(); i++) {
        struct err why = {0};

        known[i] = fs_measure_run(&m[i], &rules.area[i], &why) == 0;
        if (known[i])
            continue;
        round_unknown(w, "measure", rules.area[i].name, "%s", why.msg);
        if (w->compat == RUNWATCH_BIGSCIENCE)   /* bigscience's format has no line for this */
            cli_fail(&w->cli, &why);
    }
    remembers = round_book(w, &b, &lost) == 0;
    for (int i = 0; i < rules.n; i++)
        if (known[i]) {
            check_area_usage(w, &rules.area[i], &m[i], remembers ? &b : NULL);
            if (w->compat == RUNWATCH_BIGSCIENCE)
                add_compat_area_text(w, &rules.area[i], &m[i]);
        }
    if (remembers && book_save(&b, &lost) < 0)
        remembers = false;
    if (!remembers)
        cli_warn(&w->cli, "no forecast: %s", lost.msg);
    if (w->compat == RUNWATCH_BIGSCIENCE)
        set_compat_fs_text(w);
    rc = 0;
out:
    for (int i = 0; m && i < rules.n; i++)
        fs_measure_free(&m[i]);
    book_close(&b);
    fs_rules_free(&rules);
    free(known);
    free(m);
    free(path);
    return rc;
}
