/*
 * cmd_plan.c - the schedule of a run according to its rules: plan prints it, forget removes the steps that it lists for
 * removal
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/ckpt-backup/rules/step_name.h"
#include "tools/ckpt-backup/step_references.h"
#include "tools/ckpt-backup/step_removal.h"
#include "tools/ckpt-backup/survey.h"

/* ---- printing ---- */

/* Returns true if the schedule removes the step from this place, or from the run's folder if `place` is DUE_RUN. */
static bool is_forgotten(const struct survey *s, int place, int64_t step, enum backup_form form)
{
    for (int i = 0; i < s->n_actions; i++) {
        const struct due_action *a = &s->action[i];

        if (a->verb == DUE_FORGET && a->place == place && a->step == step && (place == DUE_RUN || a->form == form))
            return true;
    }
    return false;
}

/* What remains of a step in the run and all places after the removals of the schedule. */
enum remainder { REMAINS_NOTHING, REMAINS_WEIGHTS, REMAINS_WHOLE };
static const char *const remainder_name[] = { "none", "weights", "whole" };

static enum remainder find_remainder(const struct survey *s, int64_t step)
{
    enum remainder is = REMAINS_NOTHING;

    for (int i = 0; i < s->n_steps; i++)
        if (s->step[i] == step && !is_forgotten(s, DUE_RUN, step, FORM_WHOLE))
            return REMAINS_WHOLE;
    for (int p = 0; p < s->rules.n_places; p++)
        for (int i = 0; i < s->held[p].n_held; i++) {
            const struct due_held *h = &s->held[p].held[i];

            if (h->step != step || !h->verified || is_forgotten(s, p, step, h->form))
                continue;
            if (h->form != FORM_WEIGHTS)
                return REMAINS_WHOLE;
            is = REMAINS_WEIGHTS;
        }
    return is;
}

/* Returns the text that a line about a removal ends with. */
static const char *loss_text(const struct due_action *a, enum remainder left)
{
    if (left == REMAINS_NOTHING)
        return " (no other copy exists)";
    return left == REMAINS_WEIGHTS && a->form != FORM_WEIGHTS ? " (its optimizer exists nowhere else)" : "";
}

static void print_action(const struct backup *b, const struct survey *s, const struct due_action *a)
{
    static const char *const verb[] = { "copy", "forget", "wait" };
    char *tag = survey_tag(s, a->step);
    const struct receipt *rec = a->place == DUE_RUN ? NULL : survey_receipt(s, a->place, a->step, a->form);
    char *name = rec && a->verb != DUE_COPY ? xstrdup(rec->name)
                 : receipt_name(tag, a->verb == DUE_COPY || a->place != DUE_RUN ? a->form : FORM_WHOLE);
    const char *where = text_shown(survey_where(s, a->place));
    const enum remainder left = find_remainder(s, a->step);

    if (b->cli.json)
        cli_json(json_pack("{s:s, s:I, s:o, s:o, s:s, s:o, s:o}", "action", verb[a->verb], "step", (json_int_t)a->step,
            "name", text_json(name), "place", text_json(survey_where(s, a->place)), "form", receipt_form_name(a->form),
            "waits_for", a->verb == DUE_WAIT ? text_json(survey_where(s, a->for_place)) : json_null(),
            "left", a->verb == DUE_FORGET ? json_string(remainder_name[left]) : json_null()));
    else if (a->verb == DUE_COPY)
        printf("copy    %s to %s (%s)\n", text_shown(tag), where, receipt_form_name(a->form));
    else if (a->verb == DUE_FORGET)
        printf("forget  %s in %s%s\n", text_shown(name), where, loss_text(a, left));
    else
        printf("wait    %s in %s may be removed once %s holds %s, verified\n", name, where,
               text_shown(survey_where(s, a->for_place)), a->for_place == a->place ? "newer ones" : "it");
    free(name);
    free(tag);
}

/* If the place has a file of this name without a receipt, warn that the copy will fail, and return true. */
static bool warn_not_a_backup(const struct backup *b, const struct survey *s, const struct due_action *a)
{
    char *tag = survey_tag(s, a->step), *name = receipt_name(tag, a->form);
    char *path = path_join(survey_where(s, a->place), name);
    struct stat st;
    const bool exists = !rules_is_remote(survey_where(s, a->place)) && lstat(path, &st) == 0;

    if (exists)
        cli_warn(&b->cli, "%s: exists, but is not a backup of ckpt-backup, so this copy will fail; move it to another "
                          "folder", path);
    free(path);
    free(name);
    free(tag);
    return exists;
}

/*
 * If the place holds another backup of the name that is due, print that the copy will compare the bytes, or, if the
 * names or sizes of the files differ, that it will fail. Returns true in the latter case.
 */
static bool warn_occupied_name(const struct backup *b, const struct survey *s, const struct due_action *a)
{
    const struct receipt *rec = survey_receipt(s, a->place, a->step, a->form);
    char *path = survey_tag_path(s, a->step);
    struct err ignored = {0};
    bool fails = false;
    struct content c;

    if (!rec)
        fails = warn_not_a_backup(b, s, a);
    if (rec && rec->intact && content_open(&c, path, a->form, b->cli.threads, &ignored) == 0) {
        fails = !place_same_sizes(rec, &c);
        if (fails)
            cli_warn(&b->cli, "%s: holds a different backup named %s (copied from %s), so this copy will fail; move it "
                              "to another folder, or give another place", survey_where(s, a->place), rec->name,
                     rec->source);
        else if (!place_same_files(rec, &c))
            cli_warn(&b->cli, "%s: holds a backup named %s of files with other times; the copy compares the bytes, and "
                              "fails if they differ", survey_where(s, a->place), rec->name);
        content_free(&c);
    }
    free(path);
    return fails;
}

/*
 * Warn if no newest complete step is known. A killed save may have left the file `latest` empty, the run's trainer may
 * name its steps differently, or may have no file that is written last.
 */
static void warn_latest(const struct backup *b, const struct survey *s)
{
    if (s->latest >= 0 || s->n_steps == 0 || !s->rules.keep.given)
        return;
    if (s->has_latest || step_name_is_global(s->tag[0]))
        cli_warn(&b->cli, "%s/latest does not name a step; no step in %s may be removed", s->run, s->run);
    else
        cli_warn(&b->cli, "%s: no pointer file names the newest complete step; no step in it may be removed", s->run);
}

/*
 * Returns -1 with *e set if a step is to be removed from the run, and another checkpoint in the run needs its files, or
 * if it is to be removed from a place, and a delta there needs it. If `planned` is true, deltas that are to be removed
 * do not need it.
 */
static int check_unreferenced(const struct survey *s, const struct due_action *a, bool planned, struct err *e)
{
    const struct receipt *rec = a->place == DUE_RUN ? NULL : survey_receipt(s, a->place, a->step, a->form);

    if (a->verb != DUE_FORGET)
        return 0;
    if (a->place == DUE_RUN)
        return step_check_unreferenced(s, a->step, e);
    return rec ? backup_check_unreferenced(s, a->place, rec, planned, e) : 0;
}

int cmd_plan(struct backup *b)
{
    struct survey s;
    struct err e = {0};
    int n[3] = {0}, n_occupied = 0, rc;

    if (survey_open(&s, b, false, &e) < 0)
        return cli_fail(&b->cli, &e);
    warn_latest(b, &s);
    survey_warn_newer(&s, b);
    for (int i = 0; i < s.n_actions; i++) {
        print_action(b, &s, &s.action[i]);
        if (s.action[i].verb == DUE_COPY)
            n_occupied += warn_occupied_name(b, &s, &s.action[i]);
        err_clear(&e);
        if (check_unreferenced(&s, &s.action[i], true, &e) < 0)
            cli_warn(&b->cli, "%s", e.msg);
        n[s.action[i].verb]++;
    }
    cli_info(&b->cli, "%d steps in %s: %d to copy, %d may be removed, %d wait for a verified copy",
             s.n_steps, s.run, n[DUE_COPY],
             n[DUE_FORGET], n[DUE_WAIT]);
    rc = s.incomplete || n_occupied ? EXIT_BAD : EXIT_OK;
    survey_close(&s);
    return rc;
}

/* ---- removing ---- */

/*
 * Read a backup again, and record the result in its receipt. Each backup is read at most once per process. Returns -1
 * if the backup cannot be read, is damaged, or is not a sound checkpoint.
 */
static int verify_backup_once(struct backup *b, struct survey *s, int place, struct receipt *rec, struct err *e)
{
    struct report *r;
    int rc;

    if (rec->read_again)
        return 0;
    r = report_new();
    rc = place_check(s->place[place], rec, r, e);
    if (rc == 0 && report_count(r, SEV_ERROR)) {
        backup_print_errors(b, r);
        rec->intact = false;
        if (place_write_receipt(s->place[place], rec, e) == 0)
            err_data(e, s->place[place]->path, ERR_NO_BYTE,
                     "the backup %s is damaged; no step that has its only other copy there is removed",
                     rec->name);
        rc = -1;
    } else if (rc == 0 && rec->unsound) {
        if (place_write_receipt(s->place[place], rec, e) == 0)
            err_data(e, s->place[place]->path, ERR_NO_BYTE,
                     "the backup %s is not a sound checkpoint; no step that has its only other copy there is removed: "
                     "%s",
                     rec->name, rec->unsound);
        rc = -1;
    } else if (rc == 0) {
        rec->read_again = true;
        rec->verified_s = (int64_t)clock_wall_s();
        rc = place_write_receipt(s->place[place], rec, e);
    }
    report_free(r);
    return rc;
}

/* Returns true if the backup of this step has been verified, and its receipt records that it is sound. */
static bool is_sound(const struct survey *s, int place, const struct due_held *h)
{
    return h->verified && receipt_is_sound(survey_receipt(s, place, h->step, h->form));
}

/* Return the number of steps in the place that are newer than `step` and have a sound backup. */
static int n_newer(const struct survey *s, int place, int64_t step)
{
    const struct due_place *p = &s->held[place];
    int n = 0;

    for (int i = 0; i < p->n_held; i++) {
        bool counts = p->held[i].step > step && is_sound(s, place, &p->held[i]);

        for (int k = 0; k < i && counts; k++)           /* count a step once, even if the place has two backups of it
                                                         * in different forms */
            counts = p->held[k].step != p->held[i].step || !is_sound(s, place, &p->held[k]);
        n += counts;
    }
    return n;
}

/*
 * A step may be removed from a place because the place has newer ones. Read these newer backups again, starting with
 * the newest, as many as keep-last requires. Returns -1 if one of them is not sound, or if there are too few.
 */
static int read_newer(struct backup *b, struct survey *s, const struct due_action *a, struct err *e)
{
    const struct place_receipts *l = &s->receipts[a->place];
    const int64_t last = s->rules.place[a->place].keep.last;
    char *tag;

    for (int i = 0; i < l->n; i++)
        if (l->receipt[i]->step > a->step && receipt_is_sound(l->receipt[i]) &&
            n_newer(s, a->place, l->receipt[i]->step) < last &&
            verify_backup_once(b, s, a->place, l->receipt[i], e) < 0)
            return -1;
    if (n_newer(s, a->place, a->step) >= last)
        return 0;
    tag = survey_tag(s, a->step);
    err_data(e, s->place[a->place]->path, ERR_NO_BYTE,
             "%s is not removed, because fewer than %lld newer backups are sound", tag, (long long)last);
    free(tag);
    return -1;
}

/* A removal is allowed because certain backups are recorded as sound. Read these backups again. */
static int read_again(struct backup *b, struct survey *s, const struct due_action *a, struct err *e)
{
    for (int p = 0; p < s->rules.n_places; p++)
        for (int i = 0; p != a->place && i < s->receipts[p].n; i++) {
            struct receipt *rec = s->receipts[p].receipt[i];

            if (rec->step == a->step && receipt_is_sound(rec) && verify_backup_once(b, s, p, rec, e) < 0)
                return -1;
        }
    return a->place == DUE_RUN ? 0 : read_newer(b, s, a, e);
}

static int forget_one(struct backup *b, struct survey *s, const struct due_action *a, struct err *e)
{
    struct receipt *rec = a->place == DUE_RUN ? NULL : survey_receipt(s, a->place, a->step, a->form);
    char *path = survey_tag_path(s, a->step);
    int rc = check_unreferenced(s, a, false, e);

    if (rc == 0 && !b->trust_receipts)
        rc = read_again(b, s, a, e);
    if (rc == 0 && a->place == DUE_RUN)
        rc = survey_check_step(s, a->step, e) < 0 ? -1 : step_remove(path, e);
    else if (rc == 0 && rec)
        rc = place_remove(s->place[a->place], rec, e);
    if (rc == 0 && rec) {               /* a delta that was removed needs no base */
        free(rec->base);
        rec->base = NULL;
    }
    free(path);
    return rc;
}

/* Remove the deltas, or all other backups and steps, that may be removed. If one fails, continue with the others. */
static int forget_some(struct backup *b, struct survey *s, bool deltas, int *n_done)
{
    struct err e = {0};
    int rc = EXIT_OK;

    for (int i = 0; i < s->n_actions && !cli_stopped(); i++) {
        const bool is_delta = s->action[i].place != DUE_RUN && s->action[i].form == FORM_DELTA;

        if (s->action[i].verb != DUE_FORGET || is_delta != deltas)
            continue;
        err_clear(&e);
        if ((b->apply ? forget_one(b, s, &s->action[i], &e) : check_unreferenced(s, &s->action[i], true, &e)) < 0) {
            cli_fail(&b->cli, &e);
            rc = EXIT_BAD;
            continue;
        }
        (*n_done)++;
        if (!b->cli.quiet)
            print_action(b, s, &s->action[i]);
    }
    return rc;
}

/* Remove every step that may be removed. Deltas come first, because a backup is kept that one of them needs. */
static int forget_all(struct backup *b, struct survey *s, int *n_done)
{
    struct err e = {0};
    int rc = EXIT_OK, rest;

    if (b->apply && step_sweep(s, &e) < 0)
        rc = cli_fail(&b->cli, &e);
    if (forget_some(b, s, true, n_done) != EXIT_OK)
        rc = EXIT_BAD;
    rest = forget_some(b, s, false, n_done);
    return rest != EXIT_OK ? rest : rc;
}

int cmd_forget(struct backup *b)
{
    struct survey s;
    struct err e = {0};
    int rc, n_done = 0, n_wait = 0;

    if (b->cli.verify && b->trust_receipts)
        return cli_usage(&b->cli, "--verify and --trust-receipts exclude each other");
    if (survey_open(&s, b, b->apply, &e) < 0)
        return cli_fail(&b->cli, &e);
    warn_latest(b, &s);
    survey_warn_newer(&s, b);
    if ((b->cli.verify || b->trust_receipts) && !b->apply)
        cli_warn(&b->cli, "%s has no effect without --apply; no backup was read, and damage was not looked for",
                 b->trust_receipts ? "--trust-receipts" : "--verify");
    for (int i = 0; i < s.n_actions; i++)
        n_wait += s.action[i].verb == DUE_WAIT;
    rc = forget_all(b, &s, &n_done);
    cli_info(&b->cli, "%d %s, %d wait for a copy%s", n_done, b->apply ? "removed" : "may be removed", n_wait,
             b->apply || n_done == 0 ? "" : "; --apply reads their backups again and removes them");
    rc = s.incomplete ? EXIT_BAD : rc;
    survey_close(&s);
    return rc;
}
