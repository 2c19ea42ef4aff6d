/* local_receipts.c - receipts in a folder of backups, and the comparison of the files of a backup with its receipt */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/local.h"

enum { RECEIPT_MAX = 256 << 20 };

#define LINK_TEXT "is a symbolic link; a backup must contain the file itself"

char *local_path(const struct place *p, const char *name, const char *suffix)
{
    return str_fmt("%s/%s/%s%s", p->path, RECEIPT_FOLDER, name, suffix);
}

int local_write_receipt(const struct place *p, const struct receipt *rec, struct err *e)
{
    char *path = local_path(p, rec->name, ".json"), *sums_path = local_path(p, rec->name, ".crc32");
    char *text = receipt_text(rec), *sums = receipt_sums(rec);
    int rc = file_replace(sums_path, sums, strlen(sums), e) < 0 ? -1 : file_replace(path, text, strlen(text), e);

    free(path);
    free(sums_path);
    free(text);
    free(sums);
    return rc;
}

struct receipt *local_read_receipt(const struct place *p, const char *name, struct err *e)
{
    char *path = local_path(p, name, ".json"), *text = NULL;
    struct receipt *rec = NULL;
    uint64_t size;

    if (access(path, F_OK) == 0 || errno != ENOENT)
        text = file_slurp(path, RECEIPT_MAX, &size, e);
    if (text)
        rec = receipt_parse(text, size, path, e);
    if (rec && strcmp(rec->name, name) != 0) {
        err_data(e, path, ERR_NO_BYTE, "is the receipt of another backup, %s", rec->name);
        receipt_free(rec);
        rec = NULL;
    }
    free(text);
    free(path);
    return rec;
}

static bool check_backup_file(const char *path, uint64_t size_bytes, struct report *r)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        report_add(r, SEV_ERROR, "file_missing", path, ERR_NO_BYTE, NULL, "cannot be read: %s", strerror(errno));
    else if (S_ISLNK(st.st_mode))
        report_add(r, SEV_ERROR, "link", path, ERR_NO_BYTE, NULL, LINK_TEXT);
    else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != size_bytes)
        report_add(r, SEV_ERROR, "file_size", path, ERR_NO_BYTE, NULL, "has %lld bytes, but its receipt lists %llu",
                   (long long)st.st_size, (unsigned long long)size_bytes);
    else
        return true;
    return false;
}

/* If the folder, which is a backup or a folder inside of one, is a symbolic link, adds a finding and returns false. */
static bool check_backup_folder(const char *path, struct report *r)
{
    struct stat st;
    bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);

    if (link)
        report_add(r, SEV_ERROR, "link", path, ERR_NO_BYTE, NULL, LINK_TEXT);
    return !link;
}

/*
 * Check the folders in the name of a file. Folders that are also in the name of the previous file (`before`) have
 * already been checked.
 */
static bool check_parent_folders(const char *top, const char *name, const char *before, struct report *r)
{
    bool well = true;

    for (const char *p = strchr(name, '/'); p && well; p = strchr(p + 1, '/')) {
        size_t n = (size_t)(p - name);
        char *path;

        if (before && strncmp(name, before, n + 1) == 0)
            continue;
        path = str_fmt("%s/%.*s", top, (int)n, name);
        well = check_backup_folder(path, r);
        free(path);
    }
    return well;
}

/* Add a finding if the place does not hold the base of a delta, as it was when the delta was made. */
static void check_delta_base(const struct place *p, const struct receipt *rec, struct report *r)
{
    struct err ignored = {0};
    struct receipt *base = local_read_receipt(p, rec->base, &ignored);
    struct report *of_base = report_new();
    char *path = path_join(p->path, rec->name);

    if (!base || base->form != FORM_WHOLE)
        report_add(r, SEV_ERROR, "base", path, ERR_NO_BYTE, NULL, "needs the whole backup %s, which %s does not hold",
                   rec->base, p->path);
    else if (receipt_sums_crc(base) != rec->base_crc)
        report_add(r, SEV_ERROR, "base", path, ERR_NO_BYTE, NULL,
                   "was made from another backup %s than the one that %s holds now", rec->base, p->path);
    else if (local_check_files(p, base, of_base), !base->intact || report_count(of_base, SEV_ERROR))
        report_add(r, SEV_ERROR, "base", path, ERR_NO_BYTE, NULL, "needs the backup %s, which is damaged", rec->base);
    report_free(of_base);
    receipt_free(base);
    free(path);
}

void local_check_files(const struct place *p, const struct receipt *rec, struct report *r)
{
    char *top = path_join(p->path, rec->name), *foreign = NULL;
    bool well = receipt_is_file(rec->form) ? check_backup_file(top, rec->size_bytes, r) : check_backup_folder(top, r);

    /* Stop at the first fault. If one file is missing, all others may be missing, too, and one finding is enough. */
    for (int i = 0; i < rec->n_files && well && !receipt_is_file(rec->form); i++) {
        char *path = path_join(top, rec->file[i].name);

        well = check_parent_folders(top, rec->file[i].name, i ? rec->file[i - 1].name : NULL, r) &&
               check_backup_file(path, rec->file[i].size_bytes, r);
        free(path);
    }
    if (well && (foreign = local_foreign(rec, top)))
        report_add(r, SEV_ERROR, "foreign", top, ERR_NO_BYTE, NULL, FOREIGN_TEXT, foreign);
    if (well && rec->form == FORM_DELTA)
        check_delta_base(p, rec, r);
    free(foreign);
    free(top);
}

static char *find_foreign(const struct receipt *rec, const char *top, const char *inside, int depth)
{
    char *path = *inside ? path_join(top, inside) : xstrdup(top), *found = NULL;
    DIR *d = opendir(path);
    struct dirent *ent;

    if (!d && *inside)
        found = xstrdup(inside);
    while (d && !found && (ent = readdir(d))) {
        char *name = *inside ? path_join(inside, ent->d_name) : xstrdup(ent->d_name);
        char *full = path_join(top, name);
        struct stat st;

        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0 && lstat(full, &st) == 0) {
            if (S_ISDIR(st.st_mode) && depth < 16)
                found = find_foreign(rec, top, name, depth + 1);
            else if (!S_ISREG(st.st_mode) || !receipt_find(rec, name))
                found = xstrdup(name);
        }
        free(full);
        free(name);
    }
    if (d)
        closedir(d);
    free(path);
    return found;
}

char *local_foreign(const struct receipt *rec, const char *path)
{
    return receipt_is_file(rec->form) ? NULL : find_foreign(rec, path, "", 0);
}
