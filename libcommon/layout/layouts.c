/*
 * layouts.c - identify a path, and call the opener of its layout
 *
 * A path is a tag folder, a folder with a pointer file that names a tag folder in it, or a tar archive of either. The
 * pointer file is `latest`, or, if there is none, `latest_universal`, Megatron's `latest_checkpointed_iteration.txt` or
 * Megatron-Bridge's `latest_train_state.pt`. In a run of NeMo, which has none, it is the folder *-last.
 * The files of the tag are listed, and get numbers in source->files. Their names determine the layout.
 *
 * Findings are always added to a report. A caller that passes no report requires a complete checkpoint: for it, the
 * first ERROR makes the open fail.
 *
 * Codes of findings made here: newer_steps W, pointers W. The codes of each opener are listed in its header (such as
 * deepspeed.h).
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ckpt_overlap.h"
#include "libcommon/ckpt/empty_tensors.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/torchdist_programs.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/other_kinds.h"
#include "libcommon/layout/own_config.h"

/* Maximum number of files in a checkpoint. The largest known checkpoint has about 10,000 files. */
enum { LIST_MAX = 1 << 20, LIST_DEPTH_MAX = 8, TAG_MAX = 255 };

/* ---- listings ---- */

struct open_listing {
    int n, cap;
    struct archive_member *member;
};

static void listing_add(struct open_listing *l, char *name, int file)
{
    ARRAY_ROOM(l->member, l->cap, l->n + 1);
    l->member[l->n++] = (struct archive_member){ name, file };
}

static void listing_free(struct open_listing *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->member[i].name);
    free(l->member);
    memset(l, 0, sizeof *l);
}

static int by_member_name(const void *a, const void *b)
{
    return str_natural_cmp(((const struct archive_member *)a)->name, ((const struct archive_member *)b)->name);
}

/*
 * The folders above the current one, up to the tag folder. They are recorded because a symbolic link back to one of
 * these folders would cause endless recursion.
 */
struct dir_chain {
    const struct dir_chain *up;
    int depth;
    dev_t dev;
    ino_t ino;
};

static bool chain_has(const struct dir_chain *c, const struct stat *st)
{
    for (; c; c = c->up)
        if (c->dev == st->st_dev && c->ino == st->st_ino)
            return true;
    return false;
}

static int list_directory(struct open_listing *l, struct files *f, const char *dir, const char *prefix,
                          const struct dir_chain *up, struct err *e);

/*
 * Add a directory entry to the listing. An entry that is neither a file nor a folder (a dangling link, a pipe) is
 * skipped. If the layout requires a file of this name, the file is later reported as missing.
 */
static int list_directory_entry(struct open_listing *l, struct files *f, const char *path, const char *name,
                                const struct dir_chain *up, struct err *e)
{
    struct stat st;
    char *below;
    int file, rc;

    if (stat(path, &st) < 0)
        return 0;
    if (S_ISDIR(st.st_mode)) {
        struct dir_chain here = { up, up->depth + 1, st.st_dev, st.st_ino };

        if (chain_has(up, &st) || here.depth > LIST_DEPTH_MAX)
            return 0;
        below = str_fmt("%s/", name);
        rc = list_directory(l, f, path, below, &here, e);
        free(below);
        return rc;
    }
    if (!S_ISREG(st.st_mode))
        return 0;
    if (l->n == LIST_MAX) {
        err_data(e, path, ERR_NO_BYTE, "holds more than %d files, so it is not a checkpoint", LIST_MAX);
        return -1;
    }
    file = files_add_path(f, path, e);
    if (file < 0)
        return -1;
    listing_add(l, xstrdup(name), file);
    return 0;
}

static int by_natural_name(const void *a, const void *b)
{
    return str_natural_cmp(*(char *const *)a, *(char *const *)b);
}

static int by_directory_entry(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Read the names in a folder, and sort them. The numbers of files then do not depend on the order on disk. */
static int read_names(const char *dir, char ***names, int *n, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    int cap = 0, failed;

    if (!d) {
        err_sys(e, dir, "cannot list");
        return -1;
    }
    while (errno = 0, (ent = readdir(d)) != NULL && *n <= LIST_MAX) {
        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0)
            continue;
        ARRAY_ROOM(*names, cap, *n + 1);
        (*names)[(*n)++] = xstrdup(ent->d_name);
    }
    failed = !ent && errno;
    if (failed)
        err_sys(e, dir, "cannot list");
    closedir(d);
    if (*n)
        qsort(*names, (size_t)*n, sizeof **names, by_directory_entry);
    return failed ? -1 : 0;
}

static int list_directory(struct open_listing *l, struct files *f, const char *dir, const char *prefix,
                          const struct dir_chain *up, struct err *e)
{
    char **names = NULL;
    int n = 0, rc = read_names(dir, &names, &n, e);

    for (int i = 0; i < n; i++) {
        char *path = path_join(dir, names[i]), *name = str_fmt("%s%s", prefix, names[i]);

        if (rc == 0)
            rc = list_directory_entry(l, f, path, name, up, e);
        free(path);
        free(name);
        free(names[i]);
    }
    free(names);
    return rc;
}

static int list_tree(struct open_listing *l, struct files *f, const char *dir, struct err *e)
{
    struct stat st;
    struct dir_chain top = {0};

    if (stat(dir, &st) < 0) {
        err_sys(e, dir, "cannot open");
        return -1;
    }
    top.dev = st.st_dev;
    top.ino = st.st_ino;
    return list_directory(l, f, dir, "", &top, e);
}

/* ---- identification by names ---- */

/*
 * All layouts. The first one that fits is used, so the more specific ones come first: for example, a universal folder
 * also has mp_rank files. Two layouts have an index.h5, which either contains the bytes or refers to other files. One
 * function opens both layouts.
 */
static const struct {
    const struct layout *layout;
    bool (*marks)(const char *name);
    bool (*fits)(const struct source_listing *l);       /* NULL if marks() is sufficient */
    layout_open *open;
    bool below;                 /* marks() is true for paths of files in two folders of the checkpoint */
} layouts[] = {
    { &universal_hdf5_layout, universal_hdf5_marks, NULL, universal_hdf5_source_open, false },
    { &universal_virtual_layout, universal_hdf5_marks, NULL, universal_hdf5_source_open, false },
    { &universal_pt_layout, universal_pt_marks, NULL, universal_pt_source_open, false },
    { &dsmoe_layout, dsmoe_marks, dsmoe_fits, dsmoe_source_open, false },
    { &zero_layout, ds_name_marks, zero_fits, zero_source_open, false },
    { &deepspeed_layout, ds_name_marks, NULL, deepspeed_source_open, false },
    { &torchdist_layout, torchdist_marks, torchdist_fits, torchdist_source_open, false },
    { &torchdist_layout, nemo_marks, nemo_fits, nemo_source_open, true },
    { &dcp_layout, dcp_marks, NULL, dcp_source_open, false },
    { &fsdp_layout, fsdp_marks, NULL, fsdp_source_open, false },
    { &megatron_layout, megatron_marks, NULL, megatron_source_open, false },
    { &hf_layout, hf_marks, NULL, hf_files_source_open, false },
    { &hfstorage_layout, hfstorage_marks, NULL, hfstorage_source_open, false },
    { &meta_layout, meta_marks, NULL, meta_source_open, false },
    { &litgpt_layout, litgpt_marks, NULL, litgpt_source_open, false },
    { &lightning_layout, lightning_marks, lightning_fits, lightning_source_open, false },
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

const struct layout *layout_find(const char *name)
{
    for (int i = 0; i < N_LAYOUTS; i++)
        if (strcmp(layouts[i].layout->name, name) == 0)
            return layouts[i].layout;
    return NULL;
}

const struct layout *layout_of_result(const struct source *s)
{
    return s->layout->entries || s->layout == &dsmoe_layout ? s->layout
           : source_is_from_zero(s)                         ? &zero_layout : &deepspeed_layout;
}

bool layout_result_sets_step(const struct source *s)
{
    return layout_of_result(s) == &deepspeed_layout && !s->layout->any_model;
}

/* Returns true if only a tag folder has a file of this name. */
static bool marks_tag(const char *name)
{
    for (int i = 0; i < N_LAYOUTS; i++)
        if (!layouts[i].layout->model_folder && !layouts[i].layout->one_file && !layouts[i].below &&
            layouts[i].marks(name))
            return true;
    return false;
}

/*
 * Returns true if only a model folder has a file of this name. A folder of a run may contain a model folder next to its
 * tags, but this model folder is not a tag.
 */
static bool marks_model(const char *name)
{
    for (int i = 0; i < N_LAYOUTS; i++)
        if (layouts[i].layout->model_folder && layouts[i].marks(name))
            return true;
    return false;
}

/*
 * Returns the length of the folder part of an archive member's name, if marks() is true for the rest of the name.
 * Returns -1 if there is no such rest.
 */
static int tag_prefix_len(const char *name, bool (*marks)(const char *name))
{
    for (const char *s = name;; s++) {
        if (marks(s))
            return (int)(s - name);
        s = strchr(s, '/');
        if (!s)
            return -1;
    }
}

static bool has_marked_entry(const char *dir, bool (*marks)(const char *name))
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    bool yes = false;

    if (!d)
        return false;
    while (!yes && (ent = readdir(d)) != NULL)
        yes = marks(ent->d_name);
    closedir(d);
    return yes;
}

bool layout_marks_entry(const char *name)
{
    return marks_tag(name) || strcmp(name, "zero") == 0;
}

/*
 * Returns true if marks() is true for an entry of the folder `dir`/`below`, or of a folder up to `deeper` levels below
 * it. The name of the entry, as passed to marks(), is relative to `dir`.
 */
static bool has_marked_path(const char *dir, const char *below, bool (*marks)(const char *name), int deeper)
{
    char *path = path_join(dir, below);
    DIR *d = opendir(path);
    struct dirent *ent;
    bool yes = false;

    while (d && !yes && (ent = readdir(d)) != NULL) {
        char *name = str_fmt("%s/%s", below, ent->d_name);

        if (ent->d_name[0] != '.')
            yes = marks(name) || (deeper > 0 && has_marked_path(dir, name, marks, deeper - 1));
        free(name);
    }
    if (d)
        closedir(d);
    free(path);
    return yes;
}

/* ---- latest ---- */

static const char *const latest_names[] = { "latest", "latest_universal", LATEST_ITERATION, LATEST_TRAIN_STATE };
enum { N_LATEST = sizeof latest_names / sizeof *latest_names };

const char *layout_pointer_name(int i)
{
    return i < N_LATEST ? latest_names[i] : NULL;
}

/*
 * Returns the name of the folder to which the pointer file `where` refers. `tag` is the text of this file. The text is
 * the name of the folder, or, in Megatron's pointer file, the number of the iteration or "release". `tag` is returned
 * or freed.
 */
static char *latest_folder(const char *where, char *tag)
{
    char *folder;

    if (!str_ends(where, LATEST_ITERATION) || tag[strspn(tag, "0123456789")])
        return tag;
    folder = str_fmt("iter_%.*s%s", (int)(strlen(tag) < 7 ? 7 - strlen(tag) : 0), "0000000", tag);
    free(tag);
    return folder;
}

/* Returns the name of the folder for the step in a file latest_train_state.pt of Megatron-Bridge, or NULL. */
static char *train_state_folder(struct files *f, int file, struct err *e)
{
    int64_t step;

    return bridge_read_step(f, file, &step, e) < 0 ? NULL : str_fmt("iter_%07lld", (long long)step);
}

/*
 * Returns the name of the tag folder in `text`, the text of the pointer file `where`. White space before and after the
 * name is ignored, as in DeepSpeed.
 */
static char *latest_parse(const char *where, const char *text, uint64_t len, struct err *e)
{
    const char *a = text, *b = text + len;
    char *tag;

    while (a < b && isspace((unsigned char)*a))
        a++;
    while (b > a && isspace((unsigned char)b[-1]))
        b--;
    if (a == b) {
        err_data(e, where, ERR_NO_BYTE, "is empty, but must contain the name of a checkpoint folder%s",
                 str_ends(where, "latest_universal") ? " (was the output path given with a trailing slash?)" : "");
        return NULL;
    }
    tag = str_fmt("%.*s", (int)(b - a), a);
    if (strlen(tag) != (size_t)(b - a) || b - a > TAG_MAX || strchr(tag, '/') ||
        strcmp(tag, ".") == 0 || strcmp(tag, "..") == 0) {
        err_data(e, where, ERR_NO_BYTE, "contains '%.60s', which is not the name of a folder next to it", tag);
        free(tag);
        return NULL;
    }
    return latest_folder(where, tag);
}

static bool names_latest(const char *dir)
{
    struct stat st;
    bool yes = false;

    for (int i = 0; i < N_LATEST; i++) {
        char *where = path_join(dir, latest_names[i]);

        yes = yes || stat(where, &st) == 0;
        free(where);
    }
    return yes;
}

/*
 * Returns true if the folder is a checkpoint of NeMo, which is recognised by files in its folders weights/ and
 * context/. A run with a pointer file is not one: a tag of the run may be called weights or context.
 */
static bool is_nemo_folder(const char *dir)
{
    return !names_latest(dir) && (has_marked_path(dir, "weights", nemo_marks, 0) ||
                                  has_marked_path(dir, "context", nemo_marks, 0));
}

/* Returns true if the folder is a tag. A folder zero/ alone is not enough, because a run, or /dev, may have one. */
static bool is_tag_folder(const char *dir)
{
    return has_marked_entry(dir, marks_tag) || has_marked_path(dir, "zero", marks_tag, 1) || is_nemo_folder(dir);
}

/*
 * Returns a list of the tags and runs in a folder, such as "global_step10, global_step20". Returns NULL if there are
 * none.
 */
static char *list_tag_folders(const char *dir)
{
    enum { LISTED = 8 };
    struct strbuf tags = {0};
    struct err ignored = {0};
    char **names = NULL;
    int n = 0, n_tags = 0;

    if (read_names(dir, &names, &n, &ignored) == 0 && n)
        qsort(names, (size_t)n, sizeof *names, by_natural_name);
    for (int i = 0; i < n; i++) {
        char *path = path_join(dir, names[i]);

        if ((is_tag_folder(path) || names_latest(path)) && ++n_tags <= LISTED)
            strbuf_addf(&tags, "%s%s", n_tags == 1 ? "" : ", ", names[i]);
        free(path);
        free(names[i]);
    }
    free(names);
    if (n_tags > LISTED)
        strbuf_addf(&tags, " and %d more", n_tags - LISTED);
    return tags.buf;
}

/* Returns a description of a folder whose layout is not supported, or NULL if its kind is not known. */
static const char *kind_of_folder(const char *dir, bool sure)
{
    struct err ignored = {0};
    const char *kind = NULL;
    char **names = NULL;
    int n = 0;

    if (read_names(dir, &names, &n, &ignored) == 0)
        kind = other_kind((const char *const *)names, n, sure);
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
    return kind;
}

/* Returns true if the folder has exactly one file *.ckpt, and this file is a checkpoint of PyTorch Lightning. */
static bool holds_one_ckpt(const char *dir)
{
    struct err ignored = {0};
    char **names = NULL, *file = NULL;
    int n = 0, n_found = 0;
    bool yes;

    (void)!read_names(dir, &names, &n, &ignored);
    for (int i = 0; i < n; i++) {
        if (lightning_marks(names[i]) && n_found++ == 0)
            file = path_join(dir, names[i]);
        free(names[i]);
    }
    yes = n_found == 1 && lightning_is_file(file);
    free(names);
    free(file);
    return yes;
}

/*
 * Find the first folder in `dir` that is a model folder or a folder of another known kind. Returns its name, which the
 * caller frees, and sets *kind to a description. Returns NULL if there is none.
 */
static char *find_inside(const char *dir, const char **kind)
{
    struct err ignored = {0};
    char **names = NULL, *found = NULL;
    int n = 0;

    if (read_names(dir, &names, &n, &ignored) == 0 && n)
        qsort(names, (size_t)n, sizeof *names, by_natural_name);
    for (int i = 0; i < n; i++) {
        char *path = found ? NULL : path_join(dir, names[i]);

        *kind = !path                              ? *kind
                : has_marked_entry(path, marks_model) ? "a model of Transformers"
                                                   : kind_of_folder(path, true);
        if (path && *kind)
            found = xstrdup(names[i]);
        free(path);
        free(names[i]);
    }
    free(names);
    return found;
}

/*
 * Set *e to the error that `dir` is not a tag and has no pointer file. The message lists the tags in `dir`, or states
 * what kind of folder it is.
 */
static void no_checkpoint(const char *dir, struct err *e)
{
    char *tags = list_tag_folders(dir), *inside = NULL;
    const char *kind = tags ? NULL : kind_of_folder(dir, false);

    if (!tags && !kind)
        inside = find_inside(dir, &kind);
    if (tags)
        err_data(e, dir, ERR_NO_BYTE, "has no file 'latest'; give one of the checkpoints in it: %s", tags);
    else if (inside)
        err_data(e, dir, ERR_NO_BYTE, "is not a checkpoint, but the folder %s in it is %s", inside, kind);
    else if (kind)
        err_data(e, dir, ERR_NO_BYTE, "is not a checkpoint, but %s", kind);
    else
        err_data(e, dir, ERR_NO_BYTE, "holds no checkpoint: no mp_rank_*, zero/, index.h5, .metadata or "
                                      "*.safetensors, and no file 'latest'; give a checkpoint, a model folder, or "
                                      "the folder of a run");
    free(inside);
    free(tags);
}

/* Set *e to the error that the pointer file `where` in `dir` names a folder that does not exist. */
static void no_such_tag(const char *dir, const char *where, const char *tag, const char *path, struct err *e)
{
    char *tags = list_tag_folders(dir);

    err_data(e, where, ERR_NO_BYTE, "names '%s', but %s does not exist%s%s", tag, path,
             tags ? "; give one of the checkpoints next to it: " : "", tags ? tags : "");
    free(tags);
}

/*
 * Returns the path of the checkpoint with which NeMo would resume the run in `dir`: the finished folder *-last, or if
 * there are several, the one that was changed last. Returns NULL if there is none.
 */
static char *find_nemo_last(const char *dir)
{
    struct err ignored = {0};
    struct timespec newest = {0};
    char **names = NULL, *found = NULL;
    int n = 0;

    (void)!read_names(dir, &names, &n, &ignored);
    for (int i = 0; i < n; i++) {
        char *path = path_join(dir, names[i]), *marker = NULL;
        struct stat st;

        if (str_ends(names[i], "-last") && lstat(path, &st) == 0 && is_nemo_folder(path) &&
            !(marker = nemo_find_marker(path)) &&
            (!found || st.st_mtim.tv_sec > newest.tv_sec ||
             (st.st_mtim.tv_sec == newest.tv_sec && st.st_mtim.tv_nsec > newest.tv_nsec))) {
            newest = st.st_mtim;
            free(found);
            found = path;
            path = NULL;
        }
        free(marker);
        free(path);
        free(names[i]);
    }
    free(names);
    return found;
}

/* Returns the name of the folder to which the pointer file `where` refers, or NULL with *e set. */
static char *read_pointer(const char *where, struct err *e)
{
    struct files *f;
    char *text, *tag = NULL;
    uint64_t len;
    int file;

    if (!str_ends(where, LATEST_TRAIN_STATE)) {
        text = file_slurp(where, 4096, &len, e);
        tag = text ? latest_parse(where, text, len, e) : NULL;
        free(text);
        return tag;
    }
    f = files_new();
    file = files_add_path(f, where, e);
    if (file >= 0)
        tag = train_state_folder(f, file, e);
    files_free(f);
    return tag;
}

/* Follow the pointer file of a folder. Returns the path of the tag folder, or NULL. */
static char *latest_follow(const char *dir, struct err *e)
{
    char *last;

    for (int i = 0; i < N_LATEST; i++) {
        char *where = path_join(dir, latest_names[i]), *tag, *path = NULL;
        struct stat st;

        if (stat(where, &st) < 0) {
            free(where);
            continue;
        }
        tag = read_pointer(where, e);
        if (tag)
            path = path_join(dir, tag);
        if (path && (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))) {
            no_such_tag(dir, where, tag, path, e);
            free(path);
            path = NULL;
        }
        free(tag);
        free(where);
        return path;
    }
    last = find_nemo_last(dir);
    if (!last)
        no_checkpoint(dir, e);
    return last;
}

char *layout_latest_name(const char *dir, bool *points, struct err *e)
{
    char *last, *name = NULL;
    struct stat st;

    *points = names_latest(dir);
    for (int i = 0; *points && i < N_LATEST; i++) {
        char *where = path_join(dir, latest_names[i]);
        const bool there = stat(where, &st) == 0;

        if (there)
            name = read_pointer(where, e);
        free(where);
        if (there)
            return name;
    }
    last = find_nemo_last(dir);
    if (last)
        name = path_base(last);
    free(last);
    return name;
}

/*
 * Find the last number in a tag's name. Returns how many digits it has (0: there is none), and sets *at to its
 * position.
 */
static int last_number(const char *tag, int *at)
{
    int end = (int)strlen(tag);

    while (end > 0 && !isdigit((unsigned char)tag[end - 1]))
        end--;
    *at = end;
    while (*at > 0 && isdigit((unsigned char)tag[*at - 1]))
        (*at)--;
    return end - *at;
}

/* Returns true if `name` and `tag` differ only in their last number, which is larger in `name`. */
static bool is_later(const char *name, const char *tag)
{
    int at, at_name, n = last_number(tag, &at), n_name = last_number(name, &at_name);

    return n > 0 && n_name > 0 && n <= 18 && n_name <= 18 && at == at_name && strncmp(name, tag, (size_t)at) == 0 &&
           strcmp(name + at + n_name, tag + at + n) == 0 && atoll(name + at) > atoll(tag + at);
}

/* Returns true if the folder is a step of the trainer of Transformers: a model folder whose name is checkpoint-N. */
static bool is_trainer_step(const char *dir)
{
    char *name = path_base(dir);
    const bool yes = str_starts(name, "checkpoint-") && has_marked_entry(dir, marks_model);

    free(name);
    return yes;
}

bool layout_is_step(const char *dir)
{
    return (is_tag_folder(dir) || is_trainer_step(dir)) && !names_latest(dir);
}

/*
 * Returns the path of the tag whose name ends in the largest number. If there are no tags, returns the path of the
 * newest model folder of a trainer. Returns NULL with *e set if there is neither. Names with text after the number are
 * skipped, because these folders are unfinished (.part), were left over by an edit in place, or have another form.
 */
static char *find_newest_tag(const char *dir, char *const *name, int n, struct err *e)
{
    bool (*const is_step[])(const char *) = { is_tag_folder, is_trainer_step };

    for (int k = 0; k < 2; k++)
        for (int i = n - 1; i >= 0; i--) {
            char *path = path_join(dir, name[i]);
            int at;
            const int n_digits = last_number(name[i], &at);

            if (at + n_digits == (int)strlen(name[i]) && n_digits && is_step[k](path))
                return path;
            free(path);
        }
    no_checkpoint(dir, e);
    return NULL;
}

/*
 * Returns the paths of those checkpoints in name[] whose names differ from `tag` only by a smaller number, or, if
 * `later` is true, by a larger number. They are in the order of name[]. The caller frees each path and the array.
 */
static char **list_related_tags(const char *dir, char *const *name, int n_names, const char *tag, bool later, int *n)
{
    char **path = xcalloc((size_t)n_names + 1, sizeof *path);

    *n = 0;
    for (int i = 0; i < n_names; i++) {
        char *one = path_join(dir, name[i]);

        if ((later ? is_later(name[i], tag) : is_later(tag, name[i])) && (is_tag_folder(one) || is_trainer_step(one)))
            path[(*n)++] = one;
        else
            free(one);
    }
    return path;
}

static void free_names(char **name, int n)
{
    for (int i = 0; i < n; i++)
        free(name[i]);
    free(name);
}

/* Read the names in a folder, in natural order. */
static int read_names_in_order(const char *dir, char ***name, int *n, struct err *e)
{
    const int rc = read_names(dir, name, n, e);

    if (*n)
        qsort(*name, (size_t)*n, sizeof **name, by_natural_name);
    return rc;
}

char **layout_list_steps(const char *dir, int *n, struct err *e)
{
    char **name = NULL, **path = NULL, *newest = NULL, *tag;
    int n_names = 0;

    *n = 0;
    if (read_names_in_order(dir, &name, &n_names, e) == 0) {
        newest = names_latest(dir) ? NULL : find_nemo_last(dir);
        if (!newest)
            newest = names_latest(dir) ? latest_follow(dir, e) : find_newest_tag(dir, name, n_names, e);
    }
    if (newest) {
        tag = path_base(newest);
        path = list_related_tags(dir, name, n_names, tag, false, n);
        path[(*n)++] = newest;
        free(tag);
    }
    free_names(name, n_names);
    return path;
}

/*
 * Warn about tags whose number is larger than that of the tag in `latest`. Such tags are left over if a run was
 * restarted from an older step, or was killed during a save.
 */
static void find_newer(const char *dir, const char *tag_path, struct report *r)
{
    char *tag = path_base(tag_path), **name = NULL, **newer, *newest;
    struct err ignored = {0};
    int n_names = 0, n;

    if (read_names_in_order(dir, &name, &n_names, &ignored) < 0) {
        free_names(name, n_names);
        name = NULL;
        n_names = 0;
    }
    newer = list_related_tags(dir, name, n_names, tag, true, &n);
    if (n) {
        newest = path_base(newer[n - 1]);
        report_add(r, SEV_WARNING, "newer_steps", dir, ERR_NO_BYTE, NULL,
                   "%d step%s newer than %s, which %s and which is used; the newest is %s (to use it, give its folder)",
                   n, n == 1 ? " is" : "s are", tag,
                   names_latest(dir) ? "the file 'latest' names" : "was changed last of the folders *-last", newest);
        free(newest);
    }
    free_names(newer, n);
    free_names(name, n_names);
    free(tag);
}

/* Returns the name of the pointer file that latest_follow() follows in the folder. The folder must have one. */
static const char *followed_pointer(const char *dir)
{
    for (int i = 0; i < N_LATEST; i++) {
        char *where = path_join(dir, latest_names[i]);
        struct stat st;
        const bool there = stat(where, &st) == 0;

        free(where);
        if (there)
            return latest_names[i];
    }
    return latest_names[0];
}

/*
 * Warn if latest_train_state.pt, which Megatron-Bridge follows, cannot be read, or names another folder than the
 * pointer file that was followed.
 */
static void compare_pointers(const char *dir, const char *tag_path, struct report *r)
{
    char *where = path_join(dir, LATEST_TRAIN_STATE), *tag = path_base(tag_path), *named = NULL;
    struct err e = {0};
    struct stat st;

    if (stat(where, &st) == 0 && str_starts(tag, "iter_")) {
        named = read_pointer(where, &e);
        if (!named)
            report_add(r, SEV_WARNING, "pointers", NULL, ERR_NO_BYTE, NULL, "%s", e.msg);
        else if (strcmp(named, tag) != 0)
            report_add(r, SEV_WARNING, "pointers", where, ERR_NO_BYTE, NULL,
                       "names %s, from which Megatron-Bridge resumes, but %s is used, which %s names; to use another "
                       "one, give its folder", named, tag, followed_pointer(dir));
    }
    free(named);
    free(tag);
    free(where);
}

/* ---- archives ---- */

/*
 * Returns the archive member that is a pointer file, or NULL if there is none. It may be in any folder of the archive;
 * *prefix_len is set to the length of this folder's name.
 */
static const struct archive_member *member_latest(const struct archive_member *m, int n, int *prefix_len)
{
    for (int k = 0; k < N_LATEST; k++)
        for (int i = 0; i < n; i++) {
            const char *slash = strrchr(m[i].name, '/'), *base = slash ? slash + 1 : m[i].name;

            if (strcmp(base, latest_names[k]) == 0) {
                *prefix_len = (int)(base - m[i].name);
                return &m[i];
            }
        }
    return NULL;
}

/*
 * Returns the name of the archive's only tag folder, or "" if the tag's files are at the top of the archive. The
 * caller frees it. Returns NULL with *e set if there is no tag or more than one.
 */
static char *archive_only_tag(const char *path, const struct archive_member *m, int n,
                              bool (*marks)(const char *name), struct err *e)
{
    char *found = NULL;

    for (int i = 0; i < n; i++) {
        int len = tag_prefix_len(m[i].name, marks);

        if (len < 0 || (found && strlen(found) == (size_t)len && strncmp(found, m[i].name, (size_t)len) == 0))
            continue;
        if (found) {
            err_data(e, path, ERR_NO_BYTE, "holds more than one checkpoint ('%s', '%.*s') and no file 'latest'",
                     found, len, m[i].name);
            free(found);
            return NULL;
        }
        found = str_fmt("%.*s", len, m[i].name);
    }
    if (!found && marks == marks_tag)
        return archive_only_tag(path, m, n, marks_model, e);
    if (!found)
        err_data(e, path, ERR_NO_BYTE, "the archive holds no checkpoint: no mp_rank_*, zero/, index.h5 or .metadata");
    return found;
}

/*
 * If `tag` is the folder weights/ of a NeMo folder in the archive, returns the name of that folder, otherwise `tag`. A
 * NeMo folder also has a folder context/. `tag` is changed.
 */
static char *archive_nemo_folder(char *tag, const struct archive_member *m, int n)
{
    const size_t len = strlen(tag), top = len - strlen(NEMO_WEIGHTS);

    if (!str_ends(tag, NEMO_WEIGHTS) || (top && tag[top - 1] != '/'))
        return tag;
    for (int i = 0; i < n; i++)
        if (strncmp(m[i].name, tag, top) == 0 && nemo_marks(m[i].name + top) &&
            str_starts(m[i].name + top, NEMO_CONTEXT)) {
            tag[top] = '\0';
            return tag;
        }
    return tag;
}

/*
 * Returns the name of the tag folder in the archive, such as "ckpt/global_step20/". It is the tag that the archive's
 * pointer file names, or, if there is no such file, the only tag. The caller frees the name. Returns NULL with *e set
 * on error.
 */
static char *archive_tag_prefix(struct files *f, const char *path, const struct archive_member *m, int n,
                                struct err *e)
{
    int prefix_len;
    const struct archive_member *latest = member_latest(m, n, &prefix_len);
    char text[4096], *tag, *prefix;
    uint64_t len;

    if (!latest) {
        tag = archive_only_tag(path, m, n, marks_tag, e);
        return tag ? archive_nemo_folder(tag, m, n) : NULL;
    }
    if (str_ends(latest->name, LATEST_TRAIN_STATE)) {
        tag = train_state_folder(f, latest->file, e);
        prefix = tag ? str_fmt("%.*s%s/", prefix_len, latest->name, tag) : NULL;
        free(tag);
        return prefix;
    }
    len = files_size(f, latest->file);
    if (len > sizeof text) {
        err_data(e, files_name(f, latest->file), ERR_NO_BYTE,
                 "has %llu bytes, but must contain only the name of a folder",
                 (unsigned long long)len);
        return NULL;
    }
    if (files_read(f, latest->file, 0, text, len, e) < 0)
        return NULL;
    tag = latest_parse(files_name(f, latest->file), text, len, e);
    if (!tag)
        return NULL;
    prefix = str_fmt("%.*s%s/", prefix_len, latest->name, tag);
    free(tag);
    return prefix;
}

/* List the archive members in the tag folder, with names relative to this folder. */
static int list_archive(struct open_listing *l, struct source *s, const char *path, struct err *e)
{
    struct archive_member *m = NULL;
    int n = archive_list(s->files, path, &m, e), rc = -1;
    char *prefix = NULL;

    if (n < 0)
        return -1;
    prefix = archive_tag_prefix(s->files, path, m, n, e);
    if (!prefix)
        goto out;
    for (int i = 0; i < n; i++)
        if (str_starts(m[i].name, prefix))
            listing_add(l, xstrdup(m[i].name + strlen(prefix)), m[i].file);
    if (l->n == 0) {
        err_data(e, path, ERR_NO_BYTE, "the file 'latest' names '%s', but the archive does not hold it", prefix);
        goto out;
    }
    if (*prefix) {
        char *base = path_base(prefix);

        s->tag = arena_fmt(s->arena, "%s", base);
        free(base);
    }
    rc = 0;
out:
    free(prefix);
    archive_list_free(m, n);
    return rc;
}

/* ---- open and close ---- */

/*
 * Returns the path without slashes at its end ("dir" for "dir///"), because names below it are appended and compared
 * as text. The caller frees it.
 */
static char *strip_slashes(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    return str_fmt("%.*s", (int)n, path);
}

/* Set s->path and s->tag, and make a sorted list of the tag's files. */
static int list_path(struct source *s, const char *given, bool piped, struct open_listing *l, struct report *r,
                     struct err *e)
{
    char *path = strip_slashes(given), *tag_path = NULL, *base;
    struct stat st;
    int rc = -1;

    if (piped && strcmp(given, "-") == 0) {
        tag_path = xstrdup(archive_stdin);
        if (list_archive(l, s, archive_stdin, e) < 0)
            goto out;
    } else if (stat(path, &st) < 0) {
        err_sys(e, path, "cannot open");
        goto out;
    } else if (S_ISDIR(st.st_mode)) {
        /*
         * The folder is itself a tag, or is a model folder without a pointer file; otherwise its pointer file names the
         * tag. A model folder may have a pointer file, because a model may be stored in the folder that contains the
         * tags.
         */
        const bool is_model = !names_latest(path) && (has_marked_entry(path, marks_model) || holds_one_ckpt(path));

        tag_path = is_tag_folder(path) || is_model ? xstrdup(path) : latest_follow(path, e);
        if (!tag_path || list_tree(l, s->files, tag_path, e) < 0)
            goto out;
        if (r && strcmp(tag_path, path) != 0) {
            find_newer(path, tag_path, r);
            compare_pointers(path, tag_path, r);
        }
    } else if (lightning_is_file(path)) {
        const int file = files_add_path(s->files, path, e);

        if (file < 0)
            goto out;
        tag_path = xstrdup(path);
        listing_add(l, path_base(path), file);
    } else {
        const char *other = other_kind_of_file(path);

        if (other) {
            err_data(e, path, ERR_NO_BYTE, "is not a checkpoint, but %s", other);
            goto out;
        }
        if (!archive_is_tar(path)) {
            err_data(e, path, ERR_NO_BYTE, "is neither a checkpoint folder nor a tar archive of one; ckpt-inspect "
                                           "lists single .pt, .pth, .ckpt and .h5 files");
            goto out;
        }
        tag_path = xstrdup(path);
        if (list_archive(l, s, path, e) < 0)
            goto out;
    }
    qsort(l->member, (size_t)l->n, sizeof *l->member, by_member_name);
    s->path = arena_fmt(s->arena, "%s", tag_path);
    if (!s->tag) {
        base = path_base(tag_path);
        s->tag = arena_fmt(s->arena, "%s", base);
        free(base);
    }
    rc = 0;
out:
    free(path);
    free(tag_path);
    return rc;
}

static const char *other_kind_listed(const struct source_listing *l)
{
    const char **name = xmalloc(((size_t)l->n + 1) * sizeof *name), *kind;

    for (int i = 0; i < l->n; i++)
        name[i] = l->member[i].name;
    kind = other_kind(name, l->n, false);
    free(name);
    return kind;
}

static bool has_layout(int k, const struct source_listing *l)
{
    bool marked = false;

    for (int i = 0; i < l->n && !marked; i++)
        marked = layouts[k].marks(l->member[i].name);
    return marked && (!layouts[k].fits || layouts[k].fits(l));
}

const struct layout *layout_of_folder(const char *dir)
{
    struct open_listing l = {0};
    struct files *f = files_new();
    struct err ignored = {0};
    const struct layout *found = NULL;

    if (list_tree(&l, f, dir, &ignored) == 0)
        for (int k = 0; k < N_LAYOUTS && !found; k++)
            found = has_layout(k, &(struct source_listing){ l.n, l.member, "" }) ? layouts[k].layout : NULL;
    listing_free(&l);
    files_free(f);
    return found;
}

bool layout_has_cut_model(const char *dir)
{
    const struct layout *l = layout_of_folder(dir);

    return l && l->model_folder && l->cut_files;
}

static int open_layout(struct source *s, const struct source_listing *l, const struct source_opts *o,
                       struct report *r, struct err *e)
{
    const char *kind;

    for (int k = 0; k < N_LAYOUTS; k++) {
        if (!has_layout(k, l))
            continue;
        if (!layouts[k].layout->model_folder || o->hf)
            return layouts[k].open(s, l, o, r, e);
        err_data(e, s->path, ERR_NO_BYTE,
                 "is a Transformers model, not a training checkpoint; convert it first: export-hf --import (BLOOM, "
                 "GPT-2) or reshape --to dcp --ranks N (any model)");
        return -1;
    }
    kind = other_kind_listed(l);
    if (!kind)
        return deepspeed_source_open(s, l, o, r, e);    /* this function reports what is missing */
    err_data(e, s->path, ERR_NO_BYTE, "is not a checkpoint, but %s", kind);
    return -1;
}

/* If the report has an ERROR, returns -1 and sets *e to the first one. Otherwise returns 0. */
static int fail_on_error(const struct report *r, const char *path, struct err *e)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);
        const char *file = f->file ? f->file : path;

        if (f->severity != SEV_ERROR)
            continue;
        /* if the finding was made from an err, the location is already in its text */
        if (!f->file && str_starts(f->text, path)) {
            e->kind = ERR_DATA;
            strncpy(e->msg, f->text, sizeof e->msg - 1);
        } else if (f->param) {
            err_data(e, file, f->at, "parameter %s: %s", f->param, f->text);
        } else {
            err_data(e, file, f->at, "%s", f->text);
        }
        return -1;
    }
    return 0;
}

struct source *source_open(const char *path, const struct source_opts *o, struct report *r, struct err *e)
{
    static const struct source_opts defaults;
    struct source *s = xcalloc(1, sizeof *s);
    struct report *own = r ? NULL : report_new();
    struct open_listing l = {0};
    struct source_listing sl;
    int rc = -1;

    s->arena = arena_new(0);
    s->names = arena_alloc(s->arena, sizeof *s->names);
    s->files = files_new();
    s->weights_only = o && o->no_optimizer;
    s->accept_mismatch = o && o->accept_mismatch;
    s->run.iteration = s->run.consumed_samples = s->run.consumed_tokens = s->run.opt_step = -1;
    if (list_path(s, path, o && o->piped, &l, r, e) < 0)
        goto out;
    sl = (struct source_listing){ l.n, l.member, "" };
    if (open_layout(s, &sl, o ? o : &defaults, r ? r : own, e) < 0)
        goto out;
    own_config_check(s, o, r ? r : own);
    if (!s->weights_only && !(o && o->holes)) {
        optim_groups_check_settings(s, r ? r : own);
        if (!(o && o->no_tensors))
            optim_groups_check_amsgrad(s, r ? r : own);
    }
    if (!(o && o->holes))
        run_state_check_counters(s, r ? r : own);
    source_overlap(s, r ? r : own);
    source_check_empty(s, r ? r : own);
    if (s->layout->mp_rank_files && !s->layout->any_model && !(o && (o->no_tensors || o->holes)))
        run_state_check(s, r ? r : own);
    if (own && fail_on_error(own, s->path, e) < 0)
        goto out;
    rc = 0;
out:
    listing_free(&l);
    report_free(own);
    if (rc < 0) {
        source_close(s);
        s = NULL;
    }
    return s;
}
