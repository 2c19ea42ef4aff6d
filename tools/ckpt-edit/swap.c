/* swap.c - exchange the names of two folders, and keep a file that records which of them is the edited one */
#include "tools/ckpt-edit/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/text.h"
#include "libcommon/write/replace.h"

enum { NOTE_MAX = 1 << 20 };

static int len_without_slashes(const char *in)
{
    size_t n = strlen(in);

    while (n > 1 && in[n - 1] == '/')
        n--;
    return (int)n;
}

char *swap_folder(const char *in)
{
    char *bare = str_fmt("%.*s", len_without_slashes(in), in), *real = NULL;
    struct stat st;

    if (lstat(bare, &st) == 0 && S_ISLNK(st.st_mode))
        real = realpath(bare, NULL);
    if (!real)
        return bare;
    free(bare);
    return real;
}

char *swap_before(const char *in)
{
    return str_fmt("%.*s.before-edit", len_without_slashes(in), in);
}

static char *swap_record_path(const char *in)
{
    char *before = swap_before(in), *path = str_fmt("%s.json", before);

    free(before);
    return path;
}

int swap_hold(const char *in, struct err *e)
{
    char *path = swap_record_path(in);
    bool busy;
    int fd = dir_lock(in, &busy, e);

    if (busy)
        err_data(e, in, ERR_NO_BYTE, "another ckpt-edit is changing this checkpoint; start the command again when it "
                                     "has ended");
    if (fd >= 0 && file_replace_sweep(path, e) < 0) {
        close(fd);
        fd = -1;
    }
    free(path);
    return fd;
}

/* Write the record file. Releases `o`. */
static int write_swap_record(const char *path, json_t *o, struct err *e)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);
    int rc = file_replace(path, text, strlen(text), e);

    free(text);
    json_decref(o);
    return rc;
}

/* Return the contents of the record file, or NULL if there is none or it is not valid. */
static json_t *read_swap_record(const char *path)
{
    struct err ignored = {0};
    uint64_t size;
    char *text = file_slurp(path, NOTE_MAX, &size, &ignored);
    json_t *o = text ? json_loadb(text, size, 0, NULL) : NULL;

    free(text);
    return o;
}

int swap_record_edit(const char *in, const char *command, struct err *e)
{
    char *path = swap_record_path(in);
    struct stat st;
    int rc = -1;

    if (stat(in, &st) < 0) {
        err_sys(e, in, "cannot read the folder");
        goto out;
    }
    rc = write_swap_record(path, json_pack("{s:s, s:o, s:I}", "tool", "ckpt-edit", "command", text_json(command),
                                    "folder", (json_int_t)st.st_ino), e);
out:
    free(path);
    return rc;
}

void swap_remove_record(const char *in)
{
    char *before = swap_before(in), *path = swap_record_path(in);
    struct stat st;

    if (lstat(before, &st) < 0 && errno == ENOENT)
        unlink(path);
    free(path);
    free(before);
}

/* Returns true if `dir` is the folder before the edit, as the record file identifies it. */
static bool is_old(const char *dir, json_int_t folder)
{
    struct stat st;

    return stat(dir, &st) == 0 && S_ISDIR(st.st_mode) && (json_int_t)st.st_ino == folder;
}

enum swap_state swap_inspect(const char *in)
{
    char *before = swap_before(in), *path = swap_record_path(in);
    enum swap_state state = SWAP_NONE;
    struct stat st;

    if (lstat(before, &st) == 0) {
        json_t *o = read_swap_record(path);
        const json_int_t folder = json_integer_value(json_object_get(o, "folder"));

        state = !o ? SWAP_FOREIGN : is_old(before, folder) ? SWAP_DONE : is_old(in, folder) ? SWAP_MADE : SWAP_FOREIGN;
        if (state == SWAP_DONE && json_is_true(json_object_get(o, "given_up")))
            state = SWAP_GIVEN_UP;
        json_decref(o);
    }
    free(path);
    free(before);
    return state;
}

bool swap_made_by(const char *in, const char *command)
{
    char *path = swap_record_path(in);
    json_t *o = read_swap_record(path), *now = text_json(command);
    const bool same = o && json_equal(json_object_get(o, "command"), now);

    json_decref(now);
    json_decref(o);
    free(path);
    return same;
}

int swap_check(const char *in, struct err *e)
{
    char *before = swap_before(in);
    int rc = replace_check_sibling(in, before, e);

    free(before);
    return rc;
}

int swap_exchange(const char *in, struct err *e)
{
    char *before = swap_before(in);
    int rc = renameat2(AT_FDCWD, before, AT_FDCWD, in, RENAME_EXCHANGE);

    if (rc < 0)
        err_sys(e, in, "cannot be exchanged with %s, the edited checkpoint, in one step on this file system; rollback "
                       "removes the edited checkpoint; edit into another folder instead", before);
    else
        rc = dir_sync(in, e);
    free(before);
    return rc;
}

int swap_forget(const char *in, struct err *e)
{
    char *before = swap_before(in), *note = swap_record_path(in);
    int rc = replace_check_sibling(before, in, e) < 0 ? -1 : dir_remove(before, e);

    if (rc == 0 && unlink(note) < 0 && errno != ENOENT) {
        err_sys(e, note, "cannot remove");
        rc = -1;
    }
    free(note);
    free(before);
    return rc;
}

int swap_give_up(const char *in, struct err *e)
{
    char *before = swap_before(in), *path = swap_record_path(in);
    int rc = replace_check_sibling(before, in, e);
    json_t *o = rc == 0 ? read_swap_record(path) : NULL;

    if (o) {
        json_object_set_new(o, "given_up", json_true());
        rc = write_swap_record(path, o, e);
    }
    free(path);
    free(before);
    return rc < 0 ? -1 : swap_forget(in, e);
}
