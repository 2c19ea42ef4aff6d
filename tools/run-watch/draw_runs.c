/*
 * draw_runs.c - the runs to draw, as named on the command line
 */
#include "tools/run-watch/draw_runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/text.h"
#include "libcommon/layout/output_file.h"

/* A word of the command line: "NAME=PATH", or only PATH, which may itself contain a '='. */
struct word {
    char *name;
    const char *path;
    bool named, is_folder;
};

/*
 * Returns the default name of a run: the last component of its path, without the usual suffix of log files. The caller
 * frees it.
 */
static char *make_run_name(const char *path)
{
    char *full = realpath(path, NULL), *name = path_base(full ? full : path);
    const size_t len = strlen(name);

    free(full);
    if ((str_ends(name, ".log") || str_ends(name, ".txt")) && len > 4)
        name[len - 4] = '\0';
    return name;
}

static struct word cut_word(const char *text)
{
    const char *eq = strchr(text, '=');
    struct word w = { .named = eq && eq > text && access(text, F_OK) < 0 };
    struct stat st;

    w.path = w.named ? eq + 1 : text;
    w.name = w.named ? str_fmt("%.*s", (int)(eq - text), text) : make_run_name(text);
    err_clean(w.name);
    w.is_folder = stat(w.path, &st) == 0 && S_ISDIR(st.st_mode);
    return w;
}

/*
 * Make default names unique. If two words without NAME= would have the same name, their whole paths become their names.
 * If the user wrote the same NAME for several words, these describe one run together and keep it.
 */
static void part_alike(struct word *word, int n)
{
    bool *alike = xcalloc((size_t)n, sizeof *alike);

    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            alike[i] = alike[i] || (!word[i].named && k != i && strcmp(word[k].name, word[i].name) == 0);
    for (int i = 0; i < n; i++)
        if (alike[i]) {
            free(word[i].name);
            word[i].name = xstrdup(word[i].path);
            err_clean(word[i].name);
        }
    free(alike);
}

static struct past *run_called(struct draw_runs *r, const char *name)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->run[i]->name, name) == 0)
            return r->run[i];
    ARRAY_ROOM(r->run, r->cap, r->n + 1);
    r->run[r->n] = past_new(name);
    return r->run[r->n++];
}

static void read_run_path(struct runwatch *w, struct past *p, const char *path, json_t *notes)
{
    struct err e = {0};

    if (past_read(p, path, &e) == 0)
        return;
    cli_warn(&w->cli, "%s", e.msg);
    json_array_append_new(notes, text_json(e.msg));
}

void draw_runs_read(struct draw_runs *r, struct runwatch *w, json_t *notes)
{
    struct word *word = xcalloc((size_t)w->n_args, sizeof *word);

    for (int i = 0; i < w->n_args; i++)
        word[i] = cut_word(w->arg[i]);
    part_alike(word, w->n_args);
    for (int i = 0; i < w->n_args; i++)
        run_called(r, word[i].name);    /* create the runs in the order of the command line */
    /* Read logs before folders: a folder then adds only the data that the logs do not have. */
    if (w->log)
        read_run_path(w, r->run[0], w->log, notes);
    for (int folders = 0; folders < 2; folders++) {
        for (int i = 0; i < w->n_args; i++)
            if (word[i].is_folder == folders)
                read_run_path(w, run_called(r, word[i].name), word[i].path, notes);
        if (!folders && w->events)
            read_run_path(w, r->run[0], w->events, notes);
    }
    for (int i = 0; i < w->n_args; i++)
        free(word[i].name);
    free(word);
}

int draw_runs_resolve(struct draw_runs *r, struct err *e)
{
    for (int i = 0; i < r->n; i++)
        if (!past_resolve(r->run[i])) {
            err_data(e, r->run[i]->name, ERR_NO_BYTE, "no iteration is known of it; name its log or the folder of its "
                     "event files");
            return -1;
        }
    return 0;
}

void draw_runs_free(struct draw_runs *r)
{
    for (int i = 0; i < r->n; i++)
        past_free(r->run[i]);
    free(r->run);
    *r = (struct draw_runs){0};
}

/*
 * Returns true if the file is an earlier picture or page, which begins with a tag, or if it has no bytes. Logs, event
 * files, status files and checkpoints do not.
 */
static bool is_drawing(const char *path)
{
    FILE *f = fopen(path, "re");
    const int c = f ? fgetc(f) : 0;

    if (f)
        fclose(f);
    return f && (c == '<' || c == EOF);
}

int draw_check_output(const struct runwatch *w, struct err *e)
{
    const struct output_file o = { .path = w->output, .replace = true, .devices = true, .in = w->log };
    struct stat st;

    if (!w->output)
        return 0;
    if (output_file_check(&o, e) < 0)
        return -1;
    if (stat(w->output, &st) == 0 && S_ISREG(st.st_mode) && !is_drawing(w->output)) {
        err_usage(e, "%s: exists already and is no picture or page of run-watch: give another name", w->output);
        return -1;
    }
    return 0;
}

int draw_put(const struct runwatch *w, const struct strbuf *text, struct err *e)
{
    struct stat st;
    FILE *f;
    bool done;

    if (w->output && stat(w->output, &st) == 0 && !S_ISREG(st.st_mode)) {   /* a pipe or a device */
        f = fopen(w->output, "we");
        done = f && fwrite(text->buf, 1, text->len, f) == text->len;
        done = f && fclose(f) == 0 && done;
        if (!done)
            err_sys(e, w->output, "cannot write");
        return done ? 0 : -1;
    }
    if (w->output)
        return file_replace(w->output, text->buf, text->len, e);
    fwrite(text->buf, 1, text->len, stdout);
    return 0;                           /* cli_done() detects a full disk */
}
