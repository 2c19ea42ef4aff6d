/* backup_staging.c - publish a backup by renames, in an order that is safe if the process is killed */
#include "tools/ckpt-backup/place/backup_staging.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { FINGERPRINT_MAX = 64 << 20 };

static bool is_stage_path_present(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

/* Remove a file, or a folder with all its contents. Returns 0 if there is nothing to remove. */
static int remove_any(const char *path, struct err *e)
{
    if (unlink(path) == 0 || errno == ENOENT)
        return 0;
    if (errno == EISDIR || errno == EPERM)
        return dir_remove(path, e);
    err_sys(e, path, "cannot remove");
    return -1;
}

static bool has_stage_fingerprint(const struct backup_stage *s, const char *wanted)
{
    char *path = path_join(s->job, "fingerprint"), *text;
    struct err ignored = {0};
    uint64_t size;
    bool same;

    text = file_slurp(path, FINGERPRINT_MAX, &size, &ignored);
    same = text && strcmp(text, wanted) == 0;
    free(text);
    free(path);
    return same;
}

static int begin_backup_stage(struct backup_stage *s, const char *fingerprint, struct err *e)
{
    char *path = path_join(s->job, "fingerprint");
    int rc = -1;

    if (is_stage_path_present(s->part) && !is_stage_path_present(s->job)) {
        err_usage(e, "%s: exists, and ckpt-backup did not create it; move it to another folder", s->part);
        goto out;
    }
    if (remove_any(s->part, e) < 0 || remove_any(s->job, e) < 0 || dir_make(s->job, e) < 0)
        goto out;
    rc = file_replace(path, fingerprint, strlen(fingerprint), e);
out:
    free(path);
    return rc;
}

int stage_open(struct backup_stage *s, const char *final, const char *job, const char *fingerprint, struct err *e)
{
    *s = (struct backup_stage){ .final = xstrdup(final), .part = str_fmt("%s.part", final), .job = xstrdup(job),
                                .old = str_fmt("%s.old.part", final) };
    s->resumed = is_stage_path_present(s->part) && has_stage_fingerprint(s, fingerprint);
    if (s->resumed || begin_backup_stage(s, fingerprint, e) == 0)
        return 0;
    stage_close(s);
    return -1;
}

int stage_make_way(struct backup_stage *s, struct err *e)
{
    if (!is_stage_path_present(s->final))
        return 0;
    if (remove_any(s->old, e) < 0)
        return -1;
    if (rename(s->final, s->old) < 0) {
        err_sys(e, s->final, "cannot rename to %s", s->old);
        return -1;
    }
    return dir_sync(s->final, e);
}

int stage_publish(struct backup_stage *s, struct err *e)
{
    if (rename(s->part, s->final) < 0) {
        err_sys(e, s->final, "cannot rename from %s", s->part);
        return -1;
    }
    if (dir_sync(s->final, e) < 0 || remove_any(s->old, e) < 0)
        return -1;
    return remove_any(s->job, e);
}

int stage_sweep(const char *final, const char *job, struct err *e)
{
    char *part = str_fmt("%s.part", final), *old = str_fmt("%s.old.part", final);
    int rc = 0;

    if (is_stage_path_present(job) && !is_stage_path_present(part))
        rc = remove_any(old, e) < 0 ? -1 : remove_any(job, e);
    free(part);
    free(old);
    return rc;
}

void stage_discard(struct backup_stage *s)
{
    struct err ignored = {0};

    if (remove_any(s->part, &ignored) == 0)
        (void)!remove_any(s->job, &ignored);
}

void stage_close(struct backup_stage *s)
{
    free(s->final);
    free(s->part);
    free(s->job);
    free(s->old);
    *s = (struct backup_stage){0};
}
