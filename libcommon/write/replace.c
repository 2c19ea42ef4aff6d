/*
 * replace.c - the table of files that belong to a checkpoint, and the comparison of folders with it
 *
 * A form is a kind of folder, such as a tag or a model folder. First the forms of the folder are determined from its
 * entries: an entry that occurs in only one form marks this form. Then every entry, down to the files of
 * zero/<parameter>/, must match a row of one of these forms. For example, tokenizer.json belongs to a model folder, but
 * does not belong to a tag.
 */
#include "libcommon/write/replace.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"

enum replace_form {
    TAG = 1, UNIVERSAL = 2, MODEL = 4, DCP = 32, ANY = TAG | UNIVERSAL | MODEL | DCP, UNFINISHED = 8, JOB = 16
};

struct row {
    const char *pattern;        /* path inside the folder, as a pattern for fnmatch() */
    unsigned forms;             /* the forms to which the entry belongs */
    enum { IS_FILE, IS_FOLDER } type;
    bool marks;                 /* true: only this form has the entry, so a folder with this entry has this form */
};

enum { COMPARE_BYTES = 1 << 20 };   /* number of bytes per read */

#define D5 "[0-9][0-9][0-9][0-9][0-9]"

/* This table lacks the files of a tag, because ds_name_parse() recognises their names. */
static const struct row rows[] = {
    { "repair.jsonl", TAG, IS_FILE, false },
    { "zero", UNIVERSAL, IS_FOLDER, true },
    { "zero/optimizer_state.pt", UNIVERSAL, IS_FILE, false },
    { "zero/*.h5", UNIVERSAL, IS_FILE, false },
    { "zero/*.h5.new", UNIVERSAL, IS_FILE, false },     /* name of the file until its tables are complete */
    { "zero/*", UNIVERSAL, IS_FOLDER, false },
    { "zero/*/fp32.pt", UNIVERSAL, IS_FILE, false },
    { "zero/*/exp_avg.pt", UNIVERSAL, IS_FILE, false },
    { "zero/*/exp_avg_sq.pt", UNIVERSAL, IS_FILE, false },
    { "zero/*/step.pt", UNIVERSAL, IS_FILE, false },
    { "index.h5", UNIVERSAL, IS_FILE, true },
    { "index.h5.new", UNIVERSAL, IS_FILE, false },
    { "model.safetensors", MODEL, IS_FILE, true },
    { "model[-_]" D5 "-of-" D5 ".safetensors", MODEL, IS_FILE, true },
    { "model.safetensors.index.json", MODEL, IS_FILE, false },
    { "shard-" D5 "-model-" D5 "-of-" D5 ".safetensors", MODEL, IS_FILE, true },
    { "pytorch_model.bin", MODEL, IS_FILE, true },
    { "pytorch_model[-_]" D5 "-of-" D5 ".bin", MODEL, IS_FILE, true },
    { "pytorch_model.bin.index.json", MODEL, IS_FILE, false },
    { ".metadata", DCP, IS_FILE, true },
    { "__*_*.distcp", DCP, IS_FILE, true },
    { "common.pt", DCP, IS_FILE, false },               /* this file and the next one are written by Megatron-core */
    { "metadata.json", DCP, IS_FILE, false },
    { "config.json", MODEL, IS_FILE, false },
    { "generation_config.json", MODEL, IS_FILE, false },
    { "tokenizer.json", MODEL, IS_FILE, false },
    { "tokenizer.model", MODEL, IS_FILE, false },
    { "tokenizer_config.json", MODEL, IS_FILE, false },
    { "special_tokens_map.json", MODEL, IS_FILE, false },
    { "added_tokens.json", MODEL, IS_FILE, false },
    { "vocab.json", MODEL, IS_FILE, false },
    { "merges.txt", MODEL, IS_FILE, false },
    { "chat_template.jinja", MODEL, IS_FILE, false },
    { "chat_template.json", MODEL, IS_FILE, false },
    { MANIFEST_NAME, UNFINISHED, IS_FILE, false },      /* in a finished folder, the manifest must be ours, */
    { "README.md", UNFINISHED, IS_FILE, false },        /* and it must list these files */
    { "LICENSE", UNFINISHED, IS_FILE, false },
    { "fingerprint", JOB, IS_FILE, true },
    { "folder", JOB, IS_FILE, true },
    { "ready", JOB, IS_FILE, true },
    { "publish", JOB, IS_FILE, true },
    { "journal.*", JOB, IS_FILE, true },
    { "lock.*", JOB, IS_FILE, true },
    { "done.*", JOB, IS_FILE, true },                   /* made by the writers of the trainer:
                                                         * checkpoint_rendezvous.c */
    { "sealed.*", JOB, IS_FILE, true },
    { "failed.*", JOB, IS_FILE, true },
};

/* A folder that is inspected. */
struct look {
    const char *top;
    enum replace_what what;
    unsigned forms;             /* only rows of these forms apply */
    dev_t dev;
    const char *twin;           /* another folder, which is kept: an entry may be removed here if it is the same there;
                                 * NULL: none */
};

/*
 * Return the final name of a file that was being replaced when its writer was killed. The name of such a file is the
 * final name and a suffix. The caller frees the result.
 */
static char *final_name(const char *name)
{
    size_t n = strlen(name);

    if (!str_ends(name, ".part"))
        return xstrdup(name);
    n -= strlen(".part");
    for (size_t i = n; i > 0 && name[i - 1] >= '0' && name[i - 1] <= '9'; i--)
        if (i > 1 && name[i - 2] == '.')
            n = i - 2;
    return str_fmt("%.*s", (int)n, name);
}

/* Return the forms to which an entry with this path belongs. *marks is set to the forms that the entry marks. */
static unsigned forms_of(const char *path, bool folder, unsigned *marks)
{
    char *name = final_name(path);
    enum ds_kind kind = strchr(name, '/') ? DS_OTHER : ds_name_parse(name).kind;
    unsigned forms = 0;

    *marks = 0;
    if (kind != DS_OTHER && !folder) {
        /* The universal form also has the mp_rank files. */
        forms = kind == DS_MP ? TAG | UNIVERSAL : TAG;
        *marks = TAG;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].type == IS_FOLDER) == folder &&
            fnmatch(rows[i].pattern, name, FNM_PATHNAME | FNM_PERIOD) == 0) {
            forms |= rows[i].forms;
            *marks |= rows[i].marks ? rows[i].forms : 0;
        }
    free(name);
    return forms;
}

/* ---- one entry ---- */

static bool is_same_file_content(const char *a, const char *b)
{
    char *x = xmalloc(COMPARE_BYTES), *y = xmalloc(COMPARE_BYTES);
    FILE *f = fopen(a, "re"), *g = f ? fopen(b, "re") : NULL;
    bool same = g != NULL, more = same;

    while (more) {
        size_t n = fread(x, 1, COMPARE_BYTES, f), m = fread(y, 1, COMPARE_BYTES, g);

        same = n == m && memcmp(x, y, n) == 0 && !ferror(f) && !ferror(g);
        more = same && n == COMPARE_BYTES;
    }
    if (g)
        fclose(g);
    if (f)
        fclose(f);
    free(x);
    free(y);
    return same;
}

/*
 * Returns true if the folder k->twin has the same entry. A symbolic link holds no data, so for a link any entry of the
 * same name is sufficient.
 */
static bool has_twin(const struct look *k, const char *path, const struct stat *st)
{
    char *mine = path_join(k->top, path), *other = k->twin ? path_join(k->twin, path) : NULL;
    struct stat to;
    bool there = other && lstat(other, &to) == 0;

    if (there && !S_ISLNK(st->st_mode))
        there = S_ISDIR(st->st_mode) ? S_ISDIR(to.st_mode)
              : S_ISREG(st->st_mode) && S_ISREG(to.st_mode) &&
                ((st->st_dev == to.st_dev && st->st_ino == to.st_ino) ||
                 (st->st_size == to.st_size && is_same_file_content(mine, other)));
    free(other);
    free(mine);
    return there;
}

/* Return the reason why the entry does not belong to the checkpoint, for a message, or NULL if it does. */
static const char *why_foreign(const struct look *k, const char *path, const struct stat *st)
{
    unsigned marks;

    if (st->st_dev != k->dev)
        return " (something is mounted there)";
    if ((S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)) &&
        (forms_of(path, S_ISDIR(st->st_mode), &marks) & k->forms))
        return NULL;                    /* comes before has_twin(), because that reads the file */
    if (has_twin(k, path, st))
        return NULL;
    if (S_ISLNK(st->st_mode))
        return " (a symbolic link)";
    if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode))
        return " (neither file nor folder)";
    if (k->what == REPLACE_OUT && k->forms && S_ISREG(st->st_mode) &&
        (strcmp(path, MANIFEST_NAME) == 0 ? manifest_is_ours(k->top) : manifest_holds(k->top, path)))
        return NULL;
    return "";
}

static int refuse_foreign_entry(const struct look *k, const char *path, const char *why, struct err *e)
{
    err_usage(e, "%s: holds %s%s, which is not part of a checkpoint, so --force does not replace the folder; move it "
                 "to another folder, or give another name", k->top, path, why);
    return -1;
}

/* ---- a folder ---- */

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *ent)
{
    return strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0;
}

/* List the entries of the folder top/inside, sorted by name. Returns their number, or -1. */
static int list_folder_sorted(const struct look *k, const char *inside, struct dirent ***names, struct err *e)
{
    char *path = *inside ? path_join(k->top, inside) : xstrdup(k->top);
    int n = scandir(path, names, no_dots, by_bytes);

    if (n < 0)
        err_sys(e, path, "cannot list the folder");
    free(path);
    return n;
}

static void list_free(struct dirent **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    if (n >= 0)
        free(names);
}

static int check_replaced_folder(const struct look *k, const char *inside, struct err *e);

static int check_replaced_entry(const struct look *k, const char *path, struct err *e)
{
    char *full = path_join(k->top, path);
    const char *why;
    struct stat st;
    int rc = lstat(full, &st);

    if (rc < 0)
        err_sys(e, full, "cannot stat it");
    free(full);
    if (rc < 0)
        return -1;
    why = why_foreign(k, path, &st);
    if (why)
        return refuse_foreign_entry(k, path, why, e);
    return S_ISDIR(st.st_mode) ? check_replaced_folder(k, path, e) : 0;
}

static int check_replaced_folder(const struct look *k, const char *inside, struct err *e)
{
    struct dirent **name = NULL;
    int n = list_folder_sorted(k, inside, &name, e), rc = n < 0 ? -1 : 0;

    for (int i = 0; i < n && rc == 0; i++) {
        char *path = *inside ? path_join(inside, name[i]->d_name) : xstrdup(name[i]->d_name);

        rc = check_replaced_entry(k, path, e);
        free(path);
    }
    list_free(name, n);
    return rc;
}

/* Return the forms that the entries of the folder mark, or -1 if the folder cannot be listed. */
static int marked_forms(const struct look *k, struct err *e)
{
    struct dirent **name = NULL;
    int n = list_folder_sorted(k, "", &name, e);
    unsigned all = 0, marks;

    for (int i = 0; i < n; i++) {
        char *full = path_join(k->top, name[i]->d_name);
        struct stat st;

        if (lstat(full, &st) == 0) {
            forms_of(name[i]->d_name, S_ISDIR(st.st_mode), &marks);
            all |= marks;
        }
        free(full);
    }
    list_free(name, n);
    return n < 0 ? -1 : (int)(all & ANY);
}

static int check_replaced_path(const char *path, enum replace_what what, const char *twin, struct err *e)
{
    struct look k = { .top = path, .what = what, .forms = what == REPLACE_JOB ? JOB : ANY | UNFINISHED,
                      .twin = twin };
    struct stat st;

    if (lstat(path, &st) < 0) {
        err_sys(e, path, "cannot stat it");
        return -1;
    }
    if (!S_ISDIR(st.st_mode)) {
        err_usage(e, "%s: is %s, but must be a folder of this program; move it to another folder, or give another name",
                  path,
                  S_ISLNK(st.st_mode) ? "a symbolic link" : "no folder");
        return -1;
    }
    k.dev = st.st_dev;
    if (what == REPLACE_OUT) {
        int forms = marked_forms(&k, e);

        if (forms < 0)
            return -1;
        k.forms = (unsigned)forms;
    }
    return check_replaced_folder(&k, "", e);
}

int replace_check(const char *path, enum replace_what what, struct err *e)
{
    return check_replaced_path(path, what, NULL, e);
}

int replace_check_sibling(const char *path, const char *twin, struct err *e)
{
    return check_replaced_path(path, REPLACE_OUT, twin, e);
}

int replace_remove(const char *path, enum replace_what what, struct err *e)
{
    return replace_check(path, what, e) < 0 ? -1 : dir_remove(path, e);
}
