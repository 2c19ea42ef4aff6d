/* survey.c - find the checkpoints in a run and its places, and make the schedule */
#include "tools/ckpt-backup/survey.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/file_ids.h"
#include "tools/ckpt-backup/rules/step_name.h"
#include "tools/ckpt-backup/run_steps.h"

char *survey_tag(const struct survey *s, int64_t step)
{
    for (int i = 0; i < s->n_steps; i++)
        if (s->step[i] == step)
            return xstrdup(s->tag[i]);
    for (int p = 0; s->receipts && p < s->rules.n_places; p++)
        for (int i = 0; i < s->receipts[p].n; i++)
            if (s->receipts[p].receipt[i]->step == step)
                return xstrdup(s->receipts[p].receipt[i]->tag);
    return str_fmt("global_step%lld", (long long)step);
}

char *survey_tag_path(const struct survey *s, int64_t step)
{
    char *tag = survey_tag(s, step), *path = path_join(s->run, tag);

    free(tag);
    return path;
}

const char *survey_where(const struct survey *s, int place)
{
    return place == DUE_RUN ? s->run : s->rules.place[place].path;
}

/* Record the path of a folder such as "global_step1000.gone.part", which a killed process had begun to remove. */
static void add_gone(struct survey *s, const char *name)
{
    char *tag = str_fmt("%.*s", (int)(strlen(name) - strlen(STEP_GONE)), name);

    if (step_name_number(tag) >= 0) {
        ARRAY_ROOM(s->gone, s->cap_gone, s->n_gone + 1);
        s->gone[s->n_gone++] = path_join(s->run, name);
    }
    free(tag);
}

static bool has_entry_named(const char *folder, const char *name)
{
    char *path = path_join(folder, name);
    const bool yes = access(path, F_OK) == 0;

    free(path);
    return yes;
}

/* Find the folders that a killed process had begun to remove, and the steps. */
static int list_run(struct survey *s, const struct backup *b, struct err *e)
{
    DIR *d = opendir(s->run);
    struct run_steps l = {0};
    struct dirent *ent;

    if (!d) {
        err_sys(e, s->run, "cannot list the run's folder");
        return -1;
    }
    while ((ent = readdir(d)) != NULL)
        if (str_ends(ent->d_name, STEP_GONE))
            add_gone(s, ent->d_name);
        else
            run_steps_add(&l, s->run, ent->d_name);
    closedir(d);
    s->has_latest = has_entry_named(s->run, "latest");
    s->series = content_latest_tag(s->run);
    s->latest = s->series ? step_name_number(s->series) : -1;
    if (run_steps_choose(&l, s->run, &s->series, e) < 0) {
        run_steps_free(&l);
        return -1;
    }
    for (int i = 0; i < l.n_ignored; i++)
        cli_warn(&b->cli, "%s/%s: is neither copied nor removed, because another folder has the same step", s->run,
                 l.ignored[i]);
    s->step = xcalloc((size_t)l.n + 1, sizeof *s->step);
    s->tag = xcalloc((size_t)l.n + 1, sizeof *s->tag);
    for (int i = 0; i < l.n; i++) {
        s->step[i] = step_name_number(l.name[i]);
        s->tag[i] = xstrdup(l.name[i]);
    }
    s->n_steps = l.n;
    run_steps_free(&l);
    return 0;
}

/* ---- places ---- */

/*
 * Refuse a place that does not hold a separate copy. A place inside the folder of a step would be removed together with
 * the step. A place that is the run's own folder, or the same folder as another place, is not an additional copy.
 */
static int check_apart(const struct survey *s, int place, struct err *e)
{
    const char *path = s->rules.place[place].path;
    int rc = 0;

    if (rules_is_remote(path))
        return 0;
    if (path_same(path, s->run)) {
        err_data(e, path, ERR_NO_BYTE, "is the folder of the run itself; give another place");
        return -1;
    }
    for (int p = 0; p < place && rc == 0; p++)
        if (!rules_is_remote(s->rules.place[p].path) && path_same(path, s->rules.place[p].path)) {
            err_data(e, path, ERR_NO_BYTE, "is the same folder as the place %s; give another place",
                     s->rules.place[p].path);
            rc = -1;
        }
    for (int i = 0; i < s->n_steps && rc == 0; i++) {
        char *tag = survey_tag_path(s, s->step[i]);

        rc = place_check_outside(path, tag, e);
        free(tag);
    }
    return rc;
}

/*
 * How a place's backup of a step compares with the same step in the run and in the places that are listed before this
 * place.
 */
enum standing {
    STANDING_COPY,              /* a separate copy; also if the step is no longer in the run, so that it may be the
                                 * only copy */
    STANDING_OTHER,             /* the files of this step in the run have changed since the backup was made */
    STANDING_SHARED,            /* a file of the backup has the same inode as a file in *with, so it is not a
                                 * separate copy */
};

static enum standing compare_with_run(const struct survey *s, const struct receipt *rec, const struct file_ids *ids)
{
    char *path = survey_tag_path(s, rec->step);
    struct err ignored = {0};
    struct content c;
    struct stat st;
    bool same = lstat(path, &st) < 0 && errno == ENOENT, shared = false;

    if (!same && content_list(&c, path, &ignored) == 0) {
        struct file_ids run;

        file_ids_of_content(&run, &c);
        same = place_is_copy_of(rec, &c);
        shared = file_ids_shared(&run, ids) >= 0;
        file_ids_free(&run);
        content_free(&c);
    }
    free(path);
    return shared ? STANDING_SHARED : same ? STANDING_COPY : STANDING_OTHER;
}

static bool shares_with_place(const struct survey *s, int place, int64_t step, const struct file_ids *ids)
{
    const struct place_receipts *l = &s->receipts[place];
    bool shared = false;

    for (int i = 0; s->place[place] && i < l->n && !shared; i++) {
        struct file_ids other;

        if (l->receipt[i]->step != step)
            continue;
        file_ids_of_backup(&other, s->place[place], l->receipt[i]);
        shared = file_ids_shared(&other, ids) >= 0;
        file_ids_free(&other);
    }
    return shared;
}

/*
 * Compare a backup with the run and with the places before it. If the result is STANDING_SHARED, *with is set to the
 * place that shares an inode with the backup, or to DUE_RUN.
 */
static enum standing classify_backup_standing(const struct survey *s, int place, const struct receipt *rec, int *with)
{
    struct file_ids ids;
    enum standing is;

    file_ids_of_backup(&ids, s->place[place], rec);
    is = compare_with_run(s, rec, &ids);
    *with = DUE_RUN;
    for (int p = 0; p < place && is == STANDING_COPY; p++)
        if (shares_with_place(s, p, rec->step, &ids)) {
            is = STANDING_SHARED;
            *with = p;
        }
    file_ids_free(&ids);
    return is;
}

int survey_check_step(const struct survey *s, int64_t step, struct err *e)
{
    char *path = survey_tag_path(s, step);
    const int64_t latest = content_latest(s->run);
    int rc = latest < 0 || latest == step ? -1 : 0;

    if (rc < 0)
        err_data(e, path, ERR_NO_BYTE, latest < 0 && s->has_latest ?
                                           "not removed, because the file 'latest' names no step"
                                       : latest < 0 ? "not removed, because no newer step is known to be complete"
                                       : s->has_latest ? "not removed, because the file 'latest' names it now"
                                       : "not removed, because it is the newest step that is known to be complete now");
    for (int p = 0; p < s->rules.n_places && rc == 0; p++)
        for (int i = 0; i < s->held[p].n_held && rc == 0; i++) {
            const struct due_held *h = &s->held[p].held[i];
            int with;

            if (h->step != step || !h->verified ||
                classify_backup_standing(s, p, survey_receipt(s, p, step, h->form), &with) == STANDING_COPY)
                continue;
            err_data(e, path, ERR_NO_BYTE, "not removed, because it has changed since %s made its backup",
                     s->place[p]->path);
            rc = -1;
        }
    free(path);
    return rc;
}

static void report_shared(const struct survey *s, int place, const struct receipt *rec, int with, struct report *r)
{
    char *path = path_join(s->place[place]->path, rec->name);

    report_add(r, SEV_ERROR, "same_inode", path, ERR_NO_BYTE, NULL,
               "has the same inodes as %s in %s, so it is not a copy; move it to another folder and copy "
               "again", rec->tag, survey_where(s, with));
    free(path);
}

static void collect_held_backups(struct survey *s, int i, struct report *r)
{
    const struct place_receipts *l = &s->receipts[i];
    struct due_held *held = xcalloc((size_t)l->n + 1, sizeof *held);
    int n = 0, with;

    for (int k = 0; k < l->n; k++) {
        const struct receipt *rec = l->receipt[k];
        enum standing is = rec->step >= 0 && rec->intact ? classify_backup_standing(s, i, rec, &with) : STANDING_OTHER;
        bool copy = is == STANDING_COPY;

        if (is == STANDING_SHARED)
            report_shared(s, i, rec, with, r);
        if (rec->step >= 0)
            held[n++] = (struct due_held){ rec->step, rec->form, copy && receipt_is_sound(rec), copy };
        if (copy && rec->unsound)
            report_add(r, SEV_WARNING, "unsound", s->place[i]->path, ERR_NO_BYTE, NULL,
                       "%s equals its source, but the source is not a sound checkpoint; nothing is removed because of "
                       "this backup: %s", rec->name, rec->unsound);
    }
    s->held[i] = (struct due_place){ .known = true, .held = held, .n_held = n };
}

/*
 * Backups whose names differ from those of the run's steps in more than the number belong to another run. They get no
 * step, so that nothing is copied or removed because of them. If the run has no steps, the first backup decides.
 */
static void ignore_other_series(struct survey *s, const struct place_receipts *l)
{
    for (int i = 0; i < l->n; i++)
        if (l->receipt[i]->step >= 0 && (!s->series || step_name_number(s->series) < 0)) {
            free(s->series);
            s->series = xstrdup(l->receipt[i]->tag);
        } else if (l->receipt[i]->step >= 0 && !step_name_same_series(s->series, l->receipt[i]->tag)) {
            l->receipt[i]->step = -1;
        }
}

static int inspect_backup_place(struct survey *s, struct backup *b, int i, bool lock, struct report *r, struct err *e)
{
    struct place_opts o = backup_place_opts(b);
    const char *path = s->rules.place[i].path;

    if (place_check_made(path, e) < 0 || check_apart(s, i, e) < 0 || !(s->place[i] = place_open(path, &o, false, e)))
        return -1;
    if ((lock && place_lock(s->place[i], e) < 0) || place_list(s->place[i], &s->receipts[i], r, e) < 0)
        return -1;
    ignore_other_series(s, &s->receipts[i]);
    return 0;
}

static void inspect_backup_places(struct survey *s, struct backup *b, bool lock)
{
    for (int i = 0; i < s->rules.n_places && !cli_stopped(); i++) {
        struct report *r = report_new();
        struct err e = {0};

        if (inspect_backup_place(s, b, i, lock, r, &e) == 0) {
            collect_held_backups(s, i, r);
        } else {
            report_add_err(r, "place", &e);
            place_close(s->place[i]);
            s->place[i] = NULL;
        }
        s->incomplete = s->incomplete || report_count(r, SEV_ERROR) > 0;
        backup_print_errors(b, r);
        cli_warn_findings(&b->cli, r);
        report_free(r);
    }
}

/*
 * Refuse a folder that does not look like that of a run: it has neither a step nor a file `latest`, and no place has a
 * backup of it. Its schedule would be empty, as if all copies had been made.
 */
static int check_is_run(const struct survey *s, struct err *e)
{
    int n_backups = 0;

    for (int p = 0; p < s->rules.n_places; p++)
        n_backups += s->receipts[p].n;
    if (s->n_steps || s->n_gone || s->latest >= 0 || n_backups || s->incomplete)
        return 0;
    err_data(e, s->run, ERR_NO_BYTE, "holds no checkpoint (a folder global_stepN, iter_N, checkpoint-N, step-N or "
                                     "NAME-step=N), and no place has a backup of one; give the folder in which the "
                                     "trainer saves its steps");
    return -1;
}

int survey_open(struct survey *s, struct backup *b, bool lock, struct err *e)
{
    struct due_state st;

    *s = (struct survey){ .run = b->arg[0] };
    if (rules_read(&s->rules, b->rules, e) < 0 || list_run(s, b, e) < 0) {
        survey_close(s);
        return -1;
    }
    s->place = xcalloc((size_t)s->rules.n_places + 1, sizeof *s->place);
    s->receipts = xcalloc((size_t)s->rules.n_places + 1, sizeof *s->receipts);
    s->held = xcalloc((size_t)s->rules.n_places + 1, sizeof *s->held);
    inspect_backup_places(s, b, lock);
    if (check_is_run(s, e) < 0) {
        survey_close(s);
        return -1;
    }
    st = (struct due_state){ s->step, s->n_steps, s->latest, s->held };
    s->n_actions = due_make(&s->rules, &st, &s->action);
    return 0;
}

void survey_close(struct survey *s)
{
    for (int i = 0; s->held && i < s->rules.n_places; i++) {
        place_receipts_free(&s->receipts[i]);
        free((void *)s->held[i].held);
        place_close(s->place[i]);
    }
    free(s->place);
    free(s->receipts);
    free(s->held);
    free(s->action);
    for (int i = 0; i < s->n_gone; i++)
        free(s->gone[i]);
    for (int i = 0; i < s->n_steps; i++)
        free(s->tag[i]);
    free(s->tag);
    free(s->series);
    free(s->gone);
    free(s->step);
    rules_free(&s->rules);
    *s = (struct survey){0};
}

void survey_warn_newer(const struct survey *s, const struct backup *b)
{
    int n = 0;

    while (n < s->n_steps && s->latest >= 0 && s->step[s->n_steps - 1 - n] > s->latest)
        n++;
    if (n) {
        char *latest = survey_tag(s, s->latest);

        cli_warn(&b->cli, "%s: %d step%s newer than %s, which %s, up to %s: they are copied if complete, and not "
                          "removed",
                 s->run, n, n == 1 ? " is" : "s are", latest,
                 s->has_latest ? "the file 'latest' names" : "is the newest that is known to be complete",
                 s->tag[s->n_steps - 1]);
        free(latest);
    }
}

struct receipt *survey_receipt(const struct survey *s, int place, int64_t step, enum backup_form form)
{
    const struct place_receipts *l = &s->receipts[place];

    for (int i = 0; i < l->n; i++)
        if (l->receipt[i]->step == step && l->receipt[i]->form == form)
            return l->receipt[i];
    return NULL;
}
