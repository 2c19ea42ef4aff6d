/*
 * survey.c - looking at a run and its places
 */
#include "tools/ckpt-backup/survey.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

#define GONE ".gone.part"

char *survey_tag_path(const struct survey *s, int64_t step)
{
    return str_fmt("%s/global_step%lld", s->run, (long long)step);
}

const char *survey_where(const struct survey *s, int place)
{
    return place == DUE_RUN ? s->run : s->rules.place[place].path;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* global_step01 and global_step1 would be one step: the first is nobody's tag. */
static bool is_tag(const struct survey *s, const char *name)
{
    int64_t step = receipt_step(name);
    char *path = survey_tag_path(s, step), *base = path_base(path);
    struct stat st;
    bool yes = step >= 0 && strcmp(base, name) == 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode);

    free(path);
    free(base);
    return yes;
}

/* "global_step1000.gone.part" */
static void add_gone(struct survey *s, const char *name)
{
    char *tag = str_fmt("%.*s", (int)(strlen(name) - strlen(GONE)), name);

    if (receipt_step(tag) >= 0) {
        ARRAY_ROOM(s->gone, s->cap_gone, s->n_gone + 1);
        s->gone[s->n_gone++] = path_join(s->run, name);
    }
    free(tag);
}

static int list_run(struct survey *s, struct err *e)
{
    DIR *d = opendir(s->run);
    struct dirent *ent;

    if (!d) {
        err_sys(e, s->run, "cannot list the run's folder");
        return -1;
    }
    while ((ent = readdir(d)) != NULL)
        if (str_ends(ent->d_name, GONE)) {
            add_gone(s, ent->d_name);
        } else if (is_tag(s, ent->d_name)) {
            ARRAY_ROOM(s->step, s->cap_steps, s->n_steps + 1);
            s->step[s->n_steps++] = receipt_step(ent->d_name);
        }
    closedir(d);
    if (s->n_steps)
        qsort(s->step, (size_t)s->n_steps, sizeof *s->step, by_number);
    s->latest = content_latest(s->run);
    return 0;
}

/* ---- places ---- */

/* An empty folder may be a disk that is not mounted: a place is made once, by hand. */
static int check_made(const char *path, struct err *e)
{
    char *folder = path_join(path, RECEIPT_FOLDER);
    int rc = rules_is_remote(path) || access(folder, F_OK) == 0 ? 0 : -1;

    if (rc < 0)
        err_sys(e, path, "no place of backups yet (or its disk is not mounted); 'mkdir -p %s' makes it one", folder);
    free(folder);
    return rc;
}

/* Is what the place has of a step still that of the run? Of a step that has left the run it is all there is. */
static bool is_of_run(const struct survey *s, const struct receipt *rec)
{
    char *path = survey_tag_path(s, rec->step);
    struct err ignored = {0};
    struct content c;
    struct stat st;
    bool same = stat(path, &st) < 0 && errno == ENOENT;

    if (!same && content_list(&c, path, &ignored) == 0) {
        same = place_is_copy_of(rec, &c);
        content_free(&c);
    }
    free(path);
    return same;
}

int survey_check_step(const struct survey *s, int64_t step, struct err *e)
{
    char *path = survey_tag_path(s, step);
    const int64_t latest = content_latest(s->run);
    int rc = latest < 0 || latest == step ? -1 : 0;

    if (rc < 0)
        err_data(e, path, ERR_NO_BYTE, latest < 0 ? "latest names no step by now: it stays"
                                                  : "is what latest names by now: it stays");
    for (int p = 0; p < s->rules.n_places && rc == 0; p++)
        for (int i = 0; i < s->held[p].n_held && rc == 0; i++) {
            const struct due_held *h = &s->held[p].held[i];

            if (h->step != step || !h->verified || is_of_run(s, survey_receipt(s, p, step, h->form)))
                continue;
            err_data(e, path, ERR_NO_BYTE, "is no longer what %s holds a backup of: it stays", s->place[p]->path);
            rc = -1;
        }
    free(path);
    return rc;
}

static void hold(struct survey *s, int i)
{
    const struct place_receipts *l = &s->receipts[i];
    struct due_held *held = xcalloc((size_t)l->n + 1, sizeof *held);
    int n = 0;

    for (int k = 0; k < l->n; k++)
        if (l->receipt[k]->step >= 0)
            held[n++] = (struct due_held){ l->receipt[k]->step, l->receipt[k]->form,
                                                l->receipt[k]->sound && is_of_run(s, l->receipt[k]) };
    s->held[i] = (struct due_place){ .known = true, .held = held, .n_held = n };
}

static int look_at_place(struct survey *s, struct backup *b, int i, bool lock, struct report *r, struct err *e)
{
    struct place_opts o = backup_place_opts(b);
    const char *path = s->rules.place[i].path;

    if (check_made(path, e) < 0 || !(s->place[i] = place_open(path, &o, false, e)))
        return -1;
    return lock && place_lock(s->place[i], e) < 0 ? -1 : place_list(s->place[i], &s->receipts[i], r, e);
}

static void look_at_places(struct survey *s, struct backup *b, bool lock)
{
    for (int i = 0; i < s->rules.n_places && !cli_stopped(); i++) {
        struct report *r = report_new();
        struct err e = {0};

        if (look_at_place(s, b, i, lock, r, &e) == 0) {
            hold(s, i);
        } else {
            report_add_err(r, "place", &e);
            place_close(s->place[i]);
            s->place[i] = NULL;
        }
        s->incomplete = s->incomplete || report_count(r, SEV_ERROR) > 0;
        backup_tell_errors(b, r);
        report_free(r);
    }
}

int survey_open(struct survey *s, struct backup *b, bool lock, struct err *e)
{
    struct due_state st;

    *s = (struct survey){ .run = b->arg[0] };
    if (rules_read(&s->rules, b->rules, e) < 0 || list_run(s, e) < 0) {
        survey_close(s);
        return -1;
    }
    s->place = xcalloc((size_t)s->rules.n_places + 1, sizeof *s->place);
    s->receipts = xcalloc((size_t)s->rules.n_places + 1, sizeof *s->receipts);
    s->held = xcalloc((size_t)s->rules.n_places + 1, sizeof *s->held);
    look_at_places(s, b, lock);
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
    free(s->gone);
    free(s->step);
    rules_free(&s->rules);
    *s = (struct survey){0};
}

const struct receipt *survey_receipt(const struct survey *s, int place, int64_t step, enum backup_form form)
{
    const struct place_receipts *l = &s->receipts[place];

    for (int i = 0; i < l->n; i++)
        if (l->receipt[i]->step == step && l->receipt[i]->form == form)
            return l->receipt[i];
    return NULL;
}
