/*
 * draw_report.c - the verb report: draw runs as one page of HTML
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/child.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/text.h"
#include "tools/run-watch/draw_runs.h"
#include "tools/run-watch/fs/fs_forecast.h"
#include "tools/run-watch/picture/page.h"

/* ---- file systems, from the usage that the verb fs has recorded in the book ---- */

/*
 * Split the key of an area's usage, such as "fs /path/areas SCRATCH bytes". The last two words are the name of the area
 * and the unit.
 */
static json_t *name_area(const char *key)
{
    const char *of = strrchr(key, ' '), *name = of;

    while (name && name > key && name[-1] != ' ')
        name--;
    if (!of || name == of)
        return NULL;
    return json_pack("{s:o, s:o}", "name", json_stringn(name, (size_t)(of - name)), "of", json_string(of + 1));
}

static double usage_sample_number(const json_t *list, size_t i, size_t k)
{
    return json_number_value(json_array_get(json_array_get(list, i), k));
}

static void add_area(json_t *areas, json_t *known, const char *key, double full)
{
    json_t *list = json_object_get(known, key), *o = name_area(key), *t = json_array(), *v = json_array();
    const size_t n = json_array_size(list);
    double hours;
    char *title;

    if (n < 2 || !o) {
        json_decref(o);
        json_decref(t);
        json_decref(v);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(t, json_real(usage_sample_number(list, i, 0)));
        json_array_append_new(v, json_real(usage_sample_number(list, i, 1)));
    }
    title = str_fmt("%s, %s", json_string_value(json_object_get(o, "name")),
                    json_string_value(json_object_get(o, "of")));
    json_object_set_new(o, "name", json_string(title));
    json_object_set_new(o, "t", t);
    json_object_set_new(o, "v", v);
    json_object_set_new(o, "full", json_real(full));
    hours =
        fs_forecast_hours(known, key, usage_sample_number(list, n - 1, 0), usage_sample_number(list, n - 1, 1), full);
    json_object_set_new(o, "hours", json_real(hours));
    json_array_append_new(areas, o);
    free(title);
}

/* Add the areas that the book has usage of. The book is not changed. */
static int add_areas(struct runwatch *w, json_t *areas, struct err *e)
{
    char *path = book_path(w->book, e);
    struct book b = { .lock = -1 };
    const char *key;
    json_t *full;
    int rc = -1;

    if (!path)
        return -1;
    if (access(path, F_OK) < 0) {
        rc = 0;
        goto out;
    }
    if (round_book(w, &b, e) < 0)
        goto out;
    json_object_foreach(book_part(&b, "full"), key, full)
        add_area(areas, book_part(&b, "areas"), key, json_number_value(full));
    rc = 0;
out:
    book_close(&b);
    free(path);
    return rc;
}

/* ---- copies of checkpoints, from the list that ckpt-backup prints ---- */

static void add_backup_events(struct past *p, const char *place, const char *list)
{
    for (const char *line = list; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        json_t *o = json_loadb(line, strcspn(line, "\n"), 0, NULL);
        const json_t *form = json_object_get(o, "form");
        char *text = str_fmt("%s to %s%s", json_is_string(form) ? json_string_value(form) : "copy", place,
                             json_is_false(json_object_get(o, "sound")) ? ", DAMAGED" : "");

        if (json_is_number(json_object_get(o, "step")))
            past_add_event(p, PAST_BACKUP, (int64_t)book_number(o, "step", -1), book_number(o, "copied_s", (double)NAN),
                           text);
        free(text);
        json_decref(o);
    }
}

static int ask_copies(struct past *p, const char *place, struct err *e)
{
    const char *const argv[] = { "ckpt-backup", "list", "--json", "--quiet", place, NULL };
    struct strbuf out = {0}, err_text = {0};
    const struct child_call c = { argv, .out = &out, .err = &err_text, .limit_s = 600, .stopped = cli_stopped };
    char words[512];
    int status, rc = child_run(&c, &status, e);

    if (rc == 0 && status != 0) {
        err_data(e, place, ERR_NO_BYTE, "%s", child_last_words(&err_text, words, sizeof words));
        rc = -1;
    }
    if (rc == 0)
        add_backup_events(p, place, out.buf ? out.buf : "");
    strbuf_free(&out);
    strbuf_free(&err_text);
    return rc;
}

/* ---- the page ---- */

static void record_report_warning(struct runwatch *w, json_t *notes, struct err *e)
{
    cli_warn(&w->cli, "%s", e->msg);
    json_array_append_new(notes, text_json(e->msg));
    err_clear(e);
}

int report_draw(struct runwatch *w, struct err *e)
{
    struct draw_runs runs = {0};
    struct strbuf text = {0};
    json_t *notes = json_array(), *areas = json_array();
    struct err why = {0};
    struct page page = { .made_s = w->given_now ? (double)w->given_now : clock_wall_s(), .areas = areas,
                         .notes = notes };
    int rc = -1;

    if (draw_check_output(w, e) < 0)
        goto out;
    draw_runs_read(&runs, w, notes);
    if (w->backups && ask_copies(runs.run[0], w->backups, &why) < 0)
        record_report_warning(w, notes, &why);
    if (draw_runs_resolve(&runs, e) < 0)
        goto out;
    if (add_areas(w, areas, &why) < 0)
        record_report_warning(w, notes, &why);
    page.run = runs.run;
    page.n_runs = runs.n;
    page.title = w->title ? w->title : runs.n == 1 ? runs.run[0]->name : "Runs";
    page_html(&page, &text);
    rc = draw_put(w, &text, e) < 0 ? -1 : json_array_size(notes) ? EXIT_BAD : EXIT_OK;
out:
    strbuf_free(&text);
    draw_runs_free(&runs);
    json_decref(notes);
    json_decref(areas);
    return rc;
}
