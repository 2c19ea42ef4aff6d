/*
 * crons_inspect.c - the verbs crons and beat: check that the watchers themselves are running
 *
 * A watcher leaves a heartbeat in the book: each round of run-watch with --name does, and other programs use the verb
 * beat. A watcher is late if its last heartbeat is older than 1.5 times its interval, and at least one minute older
 * than the interval.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/run-watch/runwatch.h"

static void check_beat(struct runwatch *w, const char *name, const json_t *beat)
{
    const double every = book_number(beat, "every_s", 60 * w->max_age_min);
    const double age = w->now_s - book_number(beat, "last_s", 0), spare = every / 2 > 60 ? every / 2 : 60;
    char span[24], most[24];

    round_span(every, most);
    if (!json_is_object(beat))
        round_wrong(w, "never", name, "has left no heartbeat");
    else if (age > (json_object_get(beat, "every_s") ? every + spare : every))
        round_wrong(w, "late", name, "its last heartbeat is %s old, and it is due every %s", round_span(age, span),
                    most);
    else
        round_report_ok(w, "on_time", name, "%s ago, every %s%s", round_span(age > 0 ? age : 0, span), most,
                        json_is_false(json_object_get(beat, "well")) ? "; not all was well" : "");
}

int crons_inspect(struct runwatch *w, struct err *e)
{
    struct book b;
    const char *name;
    json_t *beats, *beat;
    int rc = round_book(w, &b, e);

    w->scope = xstrdup("crons");
    if (rc < 0)
        goto out;
    beats = book_part(&b, "beats");
    for (int i = 0; i < w->n_args; i++)
        check_beat(w, w->arg[i], json_object_get(beats, w->arg[i]));
    if (w->n_args == 0)
        json_object_foreach(beats, name, beat)
            if (!w->name || strcmp(name, w->name) != 0)         /* skip the heartbeat of this call itself */
                check_beat(w, name, beat);
    if (report_n(w->report) == 0)
        round_unknown(w, "nobody", NULL, "watchers: no heartbeat was left (--name)");
out:
    book_close(&b);
    return rc;
}

int beat_record(struct runwatch *w, struct err *e)
{
    if (!w->name) {
        err_usage(e, "beat needs --name NAME");
        return -1;
    }
    w->scope = xstrdup("beat");
    round_report_ok(w, "beat", w->name, "left");
    return 0;
}
