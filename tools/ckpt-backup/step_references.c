/* step_references.c - find checkpoints of a run that read the files of another step */
#include "tools/ckpt-backup/step_references.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/text.h"

/* The folder of a step whose files others may need. */
struct referred_step {
    char *real;                 /* its path without symbolic links */
    char *in_index;             /* how an index names a file in it: "/global_step100/" */
};

/* Returns true if `path` is a symbolic link to the step's folder, or to a file in it. */
static bool links_to(const struct referred_step *t, const char *path)
{
    const size_t n = strlen(t->real);
    char to[PATH_MAX];

    return realpath(path, to) && strncmp(to, t->real, n) == 0 && (to[n] == '/' || to[n] == '\0');
}

/* Returns true if the index of a virtual HDF5 form names a file of the step. An index that cannot be read does not. */
static bool index_names(const struct referred_step *t, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *bytes = MAP_FAILED;
    bool found = false;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes != MAP_FAILED) {
        found = memmem(bytes, (size_t)st.st_size, t->in_index, strlen(t->in_index)) != NULL;
        munmap(bytes, (size_t)st.st_size);
    }
    if (fd >= 0)
        close(fd);
    return found;
}

/* Returns the path of a file in `folder` by which the folder needs the step, or NULL. The caller frees it. */
static char *find_in_folder(const struct referred_step *t, const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *ent;
    char *found = NULL;

    while (dir && !found && (ent = readdir(dir))) {
        char *path = path_join(folder, ent->d_name);
        struct stat st;

        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0 && lstat(path, &st) == 0 &&
            ((S_ISLNK(st.st_mode) && links_to(t, path)) ||
             (strcmp(ent->d_name, "index.h5") == 0 && index_names(t, path))))
            found = xstrdup(path);
        free(path);
    }
    if (dir)
        closedir(dir);
    return found;
}

/* Returns the path of the link or index in the run that needs the step, or NULL. The caller frees it. */
static char *find_reference(const struct referred_step *t, const char *run, DIR *dir)
{
    struct dirent *ent;
    char *found = NULL;

    while (!found && (ent = readdir(dir))) {
        char *path = path_join(run, ent->d_name);
        struct stat st;
        char real[PATH_MAX];

        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0 || lstat(path, &st) < 0)
            ;
        else if (S_ISLNK(st.st_mode) && links_to(t, path))
            found = xstrdup(path);
        else if (S_ISDIR(st.st_mode) && realpath(path, real) && strcmp(real, t->real) != 0)
            found = find_in_folder(t, path);
        free(path);
    }
    return found;
}

int step_check_unreferenced(const struct survey *s, int64_t step, struct err *e)
{
    char *path = survey_tag_path(s, step), *tag = survey_tag(s, step), *found = NULL;
    struct referred_step t = { realpath(path, NULL), str_fmt("/%s/", tag) };
    DIR *dir = opendir(s->run);
    int rc = t.real && dir ? 0 : -1;

    if (rc < 0)
        err_sys(e, t.real ? s->run : path, "cannot search for checkpoints that need this step");
    else
        found = find_reference(&t, s->run, dir);
    if (found) {
        err_data(e, path, ERR_NO_BYTE, "not removed, because %s reads its files", found);
        rc = -1;
    }
    if (dir)
        closedir(dir);
    free(t.real);
    free(t.in_index);
    free(found);
    free(tag);
    free(path);
    return rc;
}

/* ---- deltas ---- */

static bool is_delta_forgotten(const struct survey *s, int place, const struct receipt *rec)
{
    for (int i = 0; i < s->n_actions; i++)
        if (s->action[i].verb == DUE_FORGET && s->action[i].place == place && s->action[i].form == FORM_DELTA &&
            s->action[i].step == rec->step)
            return true;
    return false;
}

static bool has_receipt(const struct place_receipts *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->receipt[i]->name, name) == 0)
            return true;
    return false;
}

/* Returns the name of a delta in the place that has no receipt in the list, or NULL. The caller frees it. */
static char *find_unlisted_delta(const char *place, const struct place_receipts *l)
{
    DIR *dir = opendir(place);
    struct dirent *ent;
    char *found = NULL;

    while (dir && !found && (ent = readdir(dir)))
        if (str_ends(ent->d_name, ".delta") && !has_receipt(l, ent->d_name))
            found = xstrdup(ent->d_name);
    if (dir)
        closedir(dir);
    return found;
}

int backup_check_unreferenced(const struct survey *s, int place, const struct receipt *rec, bool planned,
                              struct err *e)
{
    const struct place_receipts *l = &s->receipts[place];
    char *unlisted;

    if (rec->form != FORM_WHOLE || rules_is_remote(survey_where(s, place)))
        return 0;
    for (int i = 0; i < l->n; i++)
        if (l->receipt[i]->base && strcmp(l->receipt[i]->base, rec->name) == 0 &&
            !(planned && is_delta_forgotten(s, place, l->receipt[i]))) {
            err_data(e, survey_where(s, place), ERR_NO_BYTE, "%s is not removed, because %s needs it", rec->name,
                     l->receipt[i]->name);
            return -1;
        }
    unlisted = find_unlisted_delta(survey_where(s, place), l);
    if (!unlisted)
        return 0;
    err_data(e, survey_where(s, place), ERR_NO_BYTE,
             "%s is not removed, because %s, which has no receipt, may need it", rec->name, unlisted);
    free(unlisted);
    return -1;
}
