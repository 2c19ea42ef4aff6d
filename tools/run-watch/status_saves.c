/*
 * status_saves.c - check that there is a recent save, and that its copies are complete
 *
 * Copies are checked by running ckpt-backup, which knows the backup rules: its plan lists the checkpoints that are
 * still to be copied.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/child.h"
#include "libcommon/base/files.h"
#include "tools/run-watch/book.h"
#include "tools/run-watch/status_inspect.h"

/* Returns the modification time of a file or folder of the run, or 0 if it does not exist. */
static double written_s(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    struct stat st;
    double s = stat(path, &st) < 0 ? 0 : (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;

    free(path);
    return s;
}

static void check_save(struct runwatch *w, const char *dir, const struct status_run *s)
{
    const double at = s->tag ? written_s(dir, s->tag) : 0, limit = 60 * w->max_save_min;
    char age[24], most[24];

    if (s->tag && at == 0)
        round_wrong(w, "save", NULL, "%s, the last complete save, does not exist", s->tag);
    if (at == 0 && limit > 0 && w->now_s - s->started_s > limit)
        round_wrong(w, "save", NULL, "no complete save, and it started %s ago (at most %s)",
                    round_span(w->now_s - s->started_s, age), round_span(limit, most));
    if (at == 0)
        return;
    json_object_set_new(w->facts, "save_age_s", json_real(w->now_s - at));
    round_span(w->now_s - at, age);
    if (limit > 0 && w->now_s - at > limit && !s->stop_reason)
        round_wrong(w, "save", NULL, "%s, the last complete save, is %s old (at most %s)", s->tag, age,
                    round_span(limit, most));
    else
        round_report_ok(w, "save", NULL, "%s, %s old", s->tag, age);
}

/*
 * Evaluate the output of `ckpt-backup plan`. `oldest` is the age of the oldest step whose copy is due; n_late is the
 * number of steps that exceed the limit.
 */
static void check_copy_plan(struct runwatch *w, const char *dir, const char *plan)
{
    const double limit = 60 * w->max_backup_min;
    int n_due = 0, n_late = 0;
    double oldest = 0;
    char age[24], most[24];

    for (const char *line = plan; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        json_t *o = json_loadb(line, strcspn(line, "\n"), 0, NULL);
        const char *action = json_string_value(json_object_get(o, "action"));

        if (action && strcmp(action, "copy") == 0) {
            char *tag = str_fmt("global_step%lld", (long long)book_number(o, "step", -1));
            double since = w->now_s - written_s(dir, tag);

            n_due++;
            n_late += since > limit;
            oldest = since > oldest ? since : oldest;
            free(tag);
        }
        json_decref(o);
    }
    if (n_late)
        round_wrong(w, "backup", NULL, "%d copies are overdue, the oldest of a step %s old (at most %s); see "
                    "'ckpt-backup plan --rules %s %s'", n_late, round_span(oldest, age), round_span(limit, most),
                    w->rules, dir);
    else
        round_report_ok(w, "backup", NULL, "%d copies are due, none is overdue", n_due);
}

static void check_backup(struct runwatch *w, const char *dir)
{
    const char *const argv[] = { "ckpt-backup", "plan", "--json", "--quiet", "--rules", w->rules, dir, NULL };
    struct strbuf out = {0}, err_text = {0};
    const struct child_call c = { argv, .out = &out, .err = &err_text, .limit_s = 600, .stopped = cli_stopped };
    struct err e = {0};
    char words[512];
    int status;

    if (child_run(&c, &status, &e) < 0)
        round_unknown(w, "backup", NULL, "whether copies are overdue: %s", e.msg);
    else if (status != 0)
        round_unknown(w, "backup", NULL, "whether copies are overdue: %s",
                      child_last_words(&err_text, words, sizeof words));
    else
        check_copy_plan(w, dir, out.buf ? out.buf : "");
    strbuf_free(&out);
    strbuf_free(&err_text);
}

void status_saves(struct runwatch *w, const char *dir, const struct status_run *s)
{
    check_save(w, dir, s);
    if (w->rules)
        check_backup(w, dir);
}
