/* content.c - list the files of a checkpoint, and run those checks of verify that take little time */
#include "tools/ckpt-backup/place/content.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/zip.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-backup/place/receipt.h"
#include "tools/ckpt-backup/rules/step_name.h"

enum { DEPTH_MAX = 8, FILES_MAX = 1 << 20 };

/* ---- the folder's files ---- */

struct listing {
    struct content *c;
    int cap;
};

static int list_below(struct listing *l, const char *inside, int depth, struct err *e);

static int add_content_file(struct listing *l, const char *name, const struct stat *st, struct err *e)
{
    struct content *c = l->c;

    if (c->n_files == FILES_MAX) {
        err_data(e, c->path, ERR_NO_BYTE, "holds more than %d files, so it is not a checkpoint", FILES_MAX);
        return -1;
    }
    ARRAY_ROOM(c->file, l->cap, c->n_files + 1);
    c->file[c->n_files++] = (struct content_file){
        .name = xstrdup(name), .size_bytes = (uint64_t)st->st_size, .dev = st->st_dev, .inode = st->st_ino,
        .mode = st->st_mode & 0777, .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
    };
    return 0;
}

/*
 * Add a file or folder to the list. Symbolic links are followed, because a backup that consists of links to its source
 * would not be a copy.
 */
static int add_content_entry(struct listing *l, const char *name, int depth, struct err *e)
{
    char *path = path_join(l->c->path, name);
    struct stat st;
    int rc = stat(path, &st);

    if (rc < 0)
        err_sys(e, path, "cannot be read");
    else if (S_ISREG(st.st_mode))
        rc = add_content_file(l, name, &st, e);
    else if (S_ISDIR(st.st_mode))
        rc = list_below(l, name, depth + 1, e);
    else {
        err_data(e, path, ERR_NO_BYTE, "is neither a file nor a folder and cannot be backed up; remove it from the "
                                       "folder");
        rc = -1;
    }
    free(path);
    return rc;
}

static int list_below(struct listing *l, const char *inside, int depth, struct err *e)
{
    char *path = *inside ? path_join(l->c->path, inside) : xstrdup(l->c->path);
    DIR *d = depth <= DEPTH_MAX ? opendir(path) : NULL;
    struct dirent *ent;
    int rc = 0;

    if (!d) {
        errno = depth > DEPTH_MAX ? ELOOP : errno;
        err_sys(e, path, "cannot list the folder");
        rc = -1;
    }
    while (rc == 0 && (errno = 0, ent = readdir(d)) != NULL) {
        char *name;

        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0)
            continue;
        name = *inside ? path_join(inside, ent->d_name) : xstrdup(ent->d_name);
        rc = add_content_entry(l, name, depth, e);
        free(name);
    }
    if (rc == 0 && errno) {
        err_sys(e, path, "cannot list the folder");
        rc = -1;
    }
    if (d)
        closedir(d);
    free(path);
    return rc;
}

static int by_content_file_name(const void *a, const void *b)
{
    return strcmp(((const struct content_file *)a)->name, ((const struct content_file *)b)->name);
}

/* ---- checks that the checkpoint is complete ---- */

/* Return the text of the file `latest` up to the first white space, or NULL. The caller frees it. */
static char *read_latest_file(const char *folder)
{
    char *path = path_join(folder, "latest"), *text;
    struct err ignored = {0};
    uint64_t size;

    text = file_slurp(path, 4096, &size, &ignored);
    if (text && strlen(text) != size) {
        free(text);
        text = NULL;
    }
    if (text)
        text[strcspn(text, " \t\r\n")] = '\0';
    free(path);
    return text;
}

int64_t content_named_latest(const char *place_folder)
{
    char *tag = read_latest_file(place_folder);
    const int64_t step = tag ? step_name_number(tag) : -1;

    free(tag);
    return step;
}

/*
 * Returns true if the folder of the run is a step without a pointer file, and has a file that its trainer writes last.
 * DeepSpeed and Megatron write a pointer file: without it, none of their steps is known to be complete.
 */
static bool is_saved_step(const char *run_folder, const char *name)
{
    char *folder = path_join(run_folder, name), *trainer = path_join(folder, "trainer_state.json");
    char *metadata = path_join(folder, ".metadata");
    const bool yes = step_name_number(name) >= 0 && !step_name_is_global(name) && !str_starts(name, "iter_") &&
                     (access(trainer, F_OK) == 0 || access(metadata, F_OK) == 0) && layout_is_step(folder);

    free(metadata);
    free(trainer);
    free(folder);
    return yes;
}

/*
 * Return the name of the newest step with a file that its trainer writes last. The caller frees it. Returns NULL if
 * there is none, or if such steps have names of several kinds.
 */
static char *find_saved_step(const char *run_folder)
{
    DIR *d = opendir(run_folder);
    char *newest = NULL;
    bool same = true;
    struct dirent *ent;

    while (d && same && (ent = readdir(d)) != NULL) {
        if (!is_saved_step(run_folder, ent->d_name))
            continue;
        same = !newest || step_name_same_series(newest, ent->d_name);
        if (!newest || step_name_number(ent->d_name) > step_name_number(newest)) {
            free(newest);
            newest = xstrdup(ent->d_name);
        }
    }
    if (d)
        closedir(d);
    if (same)
        return newest;
    free(newest);
    return NULL;
}

char *content_latest_tag(const char *run_folder)
{
    char *tag = read_latest_file(run_folder);
    struct err ignored = {0};
    bool points = tag != NULL;

    if (!tag)
        tag = layout_latest_name(run_folder, &points, &ignored);
    return tag || points ? tag : find_saved_step(run_folder);
}

int64_t content_latest(const char *run_folder)
{
    char *tag = content_latest_tag(run_folder);
    const int64_t step = tag ? step_name_number(tag) : -1;

    free(tag);
    return step;
}

/*
 * Returns true if the step is newer than the one that the file `latest` names. Trainers write `latest` after the folder
 * of the step.
 */
static bool is_newer_than_latest(const struct content *c)
{
    char *run = path_parent(c->path), *latest = c->step >= 0 ? content_latest_tag(run) : NULL;
    const bool yes = latest && step_name_number(latest) >= 0 && step_name_same_series(latest, c->tag) &&
                     c->step > step_name_number(latest);

    free(latest);
    free(run);
    return yes;
}

int content_finished(const struct content *c, const struct receipt *rec, struct err *e)
{
    if (!c->newer || !rec->unsound)
        return 0;
    err_data(e, c->path, ERR_NO_BYTE, "not copied: the step is newer than the one that the file 'latest' names, and it "
                                      "is damaged or still being written: %s",
             rec->unsound);
    return -1;
}

static void check_content_containers(struct source *s, struct report *r)
{
    for (int i = 0; i < s->n_files; i++) {
        struct err e = {0};
        struct zip *z = str_ends(s->file[i].name, ".pt") ? zip_open(s->files, s->file[i].file, &e) : NULL;

        if (z && zip_check_container(z, s->files, s->file[i].file, r, &e) < 0)
            report_add_err(r, "read", &e);
        zip_close(z);                   /* files that cannot be opened have been reported by source_open() */
    }
}

static int refuse_unsound_content(const struct report *r, const char *path, struct err *e)
{
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_ERROR) {
            char *text = finding_text(report_get(r, i));

            err_data(e, path, ERR_NO_BYTE, "not copied: the checkpoint is damaged or still being written: %s; "
                                           "ckpt-inspect verify lists every error", text);
            free(text);
            return -1;
        }
    return 0;
}

static bool is_optimizer(const struct source *s, const char *name)
{
    const struct source_file *f = source_file(s, name);

    return f && f->cls == FILE_OPTIMIZER;
}

/* Remove the files from the list that a backup of this form does not contain. */
static void choose_files(struct content *c, const struct source *s, enum backup_form form)
{
    int n = 0;

    for (int i = 0; i < c->n_files; i++)
        if (form == FORM_WEIGHTS && is_optimizer(s, c->file[i].name)) {
            c->size_bytes -= c->file[i].size_bytes;
            free(c->file[i].name);
        } else {
            c->file[n++] = c->file[i];
        }
    c->n_files = n;
}

static int check_backup_layout(const struct source *s, enum backup_form form, struct err *e)
{
    if (source_points_elsewhere(s))
        err_usage(e, "%s: is an index that refers to the files of another checkpoint; back up that checkpoint",
                  s->path);
    else if (form == FORM_WEIGHTS && !source_has_layer_files(s))
        err_usage(e, "%s: the weights are in the same files as the optimizer states, so they cannot be copied alone; "
                     "use ckpt-backup copy", s->path);
    else
        return 0;
    return -1;
}

int content_list(struct content *c, const char *tag_folder, struct err *e)
{
    struct listing l = { .c = c };

    *c = (struct content){ .path = xstrdup(tag_folder), .tag = path_base(tag_folder) };
    c->step = step_name_number(c->tag);
    if (list_below(&l, "", 0, e) < 0) {
        content_free(c);
        return -1;
    }
    if (c->n_files)
        qsort(c->file, (size_t)c->n_files, sizeof *c->file, by_content_file_name);
    for (int i = 0; i < c->n_files; i++)
        c->size_bytes += c->file[i].size_bytes;
    return 0;
}

static int open_folder(struct content *c, const struct source *s, enum backup_form form, struct err *e)
{
    struct stat st;

    if (stat(s->path, &st) < 0 || !S_ISDIR(st.st_mode)) {
        err_usage(e, "%s: is a file, not a folder; give the folder of the checkpoint", s->path);
        return -1;
    }
    if (check_backup_layout(s, form, e) < 0 || content_list(c, s->path, e) < 0)
        return -1;
    c->newer = is_newer_than_latest(c);
    choose_files(c, s, form);
    return 0;
}

static int open_checkpoint_content(struct content *c, const char *path, enum backup_form form, int threads,
                                   struct err *e)
{
    struct source_opts so = { .threads = threads, .hf = true };
    struct report *r = report_new();
    struct source *s = source_open(path, &so, r, e);
    int rc = -1;

    *c = (struct content){0};
    if (!s && e->kind == ERR_DATA && report_n(r) == 0)
        err_add(e, "; ckpt-backup copy --any copies any folder");
    if (!s)
        goto out;
    if (open_folder(c, s, form, e) < 0)
        goto out;
    for (int i = 0; i < report_n(r) && !c->warning; i++)
        if (strcmp(report_get(r, i)->code, "newer_steps") == 0)
            c->warning = finding_text(report_get(r, i));
    check_content_containers(s, r);
    rc = refuse_unsound_content(r, c->path, e);
out:
    source_close(s);
    report_free(r);
    if (rc < 0)
        content_free(c);
    return rc;
}

/* List the files of a folder that need not be a checkpoint. The backup gets the name of the folder. */
static int list_any_folder(struct content *c, const char *path, struct err *e)
{
    char *folder = realpath(path, NULL);
    struct stat st;
    int rc = -1;

    *c = (struct content){0};
    if (!folder || stat(folder, &st) < 0)
        err_sys(e, path, "cannot open");
    else if (!S_ISDIR(st.st_mode))
        err_usage(e, "%s: is not a folder; --any copies only folders", path);
    else
        rc = content_list(c, folder, e);
    free(folder);
    if (rc == 0 && !step_name_is_global(c->tag))
        c->step = -1;
    if (rc == 0 && c->n_files == 0) {
        err_usage(e, "%s: holds no files, so there is nothing to copy", path);
        content_free(c);
        rc = -1;
    }
    return rc;
}

int content_open(struct content *c, const char *path, enum backup_form form, int threads, struct err *e)
{
    if (form == FORM_ANY)
        return list_any_folder(c, path, e);
    return open_checkpoint_content(c, path, form, threads, e);
}

void content_free(struct content *c)
{
    for (int i = 0; i < c->n_files; i++)
        free(c->file[i].name);
    free(c->file);
    free(c->path);
    free(c->tag);
    free(c->warning);
    *c = (struct content){0};
}

int content_unchanged(const struct content *c, struct err *e)
{
    for (int i = 0; i < c->n_files; i++) {
        const struct content_file *f = &c->file[i];
        char *path = path_join(c->path, f->name);
        struct stat st;
        int rc = stat(path, &st);

        if (rc < 0) {
            err_sys(e, path, "was removed while it was copied");
        } else if ((uint64_t)st.st_size != f->size_bytes || st.st_ino != f->inode ||
                   (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec != f->mtime_ns) {
            err_data(e, path, ERR_NO_BYTE, "changed while it was copied; another program is writing it");
            rc = -1;
        }
        free(path);
        if (rc < 0)
            return -1;
    }
    return 0;
}
