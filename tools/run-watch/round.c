/*
 * round.c - one round: print, send and store the findings of a check
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/text.h"
#include "tools/run-watch/watch_alarm.h"
#include "tools/run-watch/runwatch.h"

/* ---- findings ---- */

static void __attribute__((format(printf, 5, 0))) add_round_finding(struct runwatch *w, enum severity severity,
                                                                    const char *code, const char *about,
                                                                    const char *fmt, va_list ap)
{
    char *text;

    if (vasprintf(&text, fmt, ap) < 0)
        abort();
    report_add(w->report, severity, code, about, ERR_NO_BYTE, NULL, "%s", text);
    free(text);
}

void round_wrong(struct runwatch *w, const char *code, const char *about, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_round_finding(w, SEV_ERROR, code, about, fmt, ap);
    va_end(ap);
}

void round_unknown(struct runwatch *w, const char *code, const char *about, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_round_finding(w, SEV_WARNING, code, about, fmt, ap);
    va_end(ap);
}

void round_report_ok(struct runwatch *w, const char *code, const char *about, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_round_finding(w, SEV_NOTE, code, about, fmt, ap);
    va_end(ap);
}

const char *round_span(double s, char buf[24])
{
    if (s < 90)
        snprintf(buf, 24, "%.0f s", s);
    else if (s < 5400)
        snprintf(buf, 24, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(buf, 24, "%.1f h", s / 3600);
    else
        snprintf(buf, 24, "%.1f days", s / 86400);
    return buf;
}

/* ---- printing ---- */

static json_t *findings_json(const struct report *r)
{
    static const char *const word[] = { "well", "unknown", "wrong" };
    json_t *list = json_array();

    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:o}", "is", word[f->severity], "code", f->code,
                                              "about", text_json(f->file), "text", text_json(f->text)));
    }
    return list;
}

static void print_findings(const struct runwatch *w)
{
    static const char *const word[] = { "", "not established: ", "" };

    for (int i = 0; i < report_n(w->report); i++) {
        const struct finding *f = report_get(w->report, i);
        char *text = finding_text(f);

        if (f->severity != SEV_NOTE || !w->cli.quiet)
            printf("%s%s: %s\n", word[f->severity], f->code, text);
        free(text);
    }
}

static void print_round(const struct runwatch *w, bool well)
{
    if (w->cli.json) {
        json_t *o = json_pack("{s:s, s:o, s:b, s:f, s:o}", "verb", w->verb, "scope", text_json(w->scope), "well", well,
                              "now_s", w->now_s, "findings", findings_json(w->report));

        json_object_update_missing(o, w->facts);
        cli_json(o);
    } else if (w->text.len) {
        cli_printf(stdout, "%s", w->text.buf);
    } else {
        print_findings(w);
    }
    /* With --follow, a person or a program may be reading the output while it is written. */
    fflush(stdout);
}

/* ---- stored data ---- */

static void leave_beat(const struct runwatch *w, struct book *b, bool well)
{
    json_t *beat = json_pack("{s:f, s:o, s:b}", "last_s", w->now_s, "scope", text_json(w->scope), "well", well);
    json_t *name = text_json(w->name);
    double every_min = w->every_min > 0 ? w->every_min : w->follow_s / 60;

    if (every_min > 0)
        json_object_set_new(beat, "every_s", json_real(60 * every_min));
    json_object_set_new(book_part(b, "beats"), json_string_value(name), beat);
    json_decref(name);
}

int round_book(struct runwatch *w, struct book *b, struct err *e)
{
    struct err lost = {0};
    bool damaged;
    int rc = book_open(b, w->book, &damaged, e);

    if (damaged) {
        err_data(&lost, b->path, ERR_NO_BYTE, "was damaged and is created again; the old one is %s.damaged", b->path);
        cli_fail(&w->cli, &lost);
    }
    return rc;
}

/*
 * Write this watcher's heartbeat to the book and send the alarms. Returns -1 if a message could not be sent or the book
 * could not be saved, else 0.
 */
static int store_round_result(struct runwatch *w, bool well)
{
    struct err e = {0};
    struct book b;
    int rc = round_book(w, &b, &e);

    if (rc < 0) {
        cli_fail(&w->cli, &e);
        book_close(&b);
        return -1;
    }
    if (w->name)
        leave_beat(w, &b, well);
    if (alarm_wanted(w)) {
        rc = alarm_send(w, &b) ? -1 : 0;
    } else if (book_save(&b, &e) < 0) {
        cli_fail(&w->cli, &e);
        rc = -1;
    }
    book_close(&b);
    return rc;
}

int round_run(struct runwatch *w, int (*inspect)(struct runwatch *w, struct err *e))
{
    struct err e = {0};
    int rc = EXIT_BAD;
    bool well;

    w->now_s = w->given_now ? (double)w->given_now : clock_wall_s();
    w->report = report_new();
    w->facts = json_object();
    if (inspect(w, &e) < 0) {
        if (e.kind == ERR_USAGE || e.kind == ERR_STOP) {
            rc = e.kind == ERR_USAGE ? cli_usage(&w->cli, "%s", e.msg) : cli_fail(&w->cli, &e);
            goto out;
        }
        round_unknown(w, w->verb, NULL, "%s", e.msg);
    }
    if (!w->scope)
        w->scope = xstrdup(w->verb);
    well = report_count(w->report, SEV_ERROR) == 0 && report_count(w->report, SEV_WARNING) == 0;
    print_round(w, well);
    rc = well ? EXIT_OK : EXIT_BAD;
    if ((w->name || alarm_wanted(w)) && store_round_result(w, well) < 0)
        rc = EXIT_BAD;
out:
    report_free(w->report);
    json_decref(w->facts);
    strbuf_free(&w->text);
    w->text = (struct strbuf){0};
    free(w->scope);
    free(w->subject);
    free(w->body);
    w->scope = w->subject = w->body = NULL;
    return rc;
}
