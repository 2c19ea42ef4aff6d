/* rehearsal.c - let a sink make all its files except the tensor bytes in a temporary folder, measure and remove them */
#include "libcommon/write/rehearsal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "libcommon/write/staging.h"

/* Add the number and sizes of all files in `dir` and the folders below it to r->files and r->need_bytes. */
static int measure_folder_files(const char *dir, struct rehearsal *r, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    int rc = d ? 0 : -1;

    if (!d)
        err_sys(e, dir, "cannot list");
    while (rc == 0 && (ent = readdir(d)) != NULL) {
        char *path;
        struct stat st;

        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0)
            continue;
        path = path_join(dir, ent->d_name);
        rc = lstat(path, &st);
        if (rc < 0) {
            err_sys(e, path, "cannot stat the file");
        } else if (S_ISDIR(st.st_mode)) {
            rc = measure_folder_files(path, r, e);
        } else {
            r->files++;
            r->need_bytes += (uint64_t)st.st_size;
        }
        free(path);
    }
    if (d)
        closedir(d);
    return rc;
}

/* Run all steps of a conversion except the executor. */
static int make_files(struct source *s, struct sink *k, const char *dir, struct err *e)
{
    struct plan *p = plan_new(s->files);
    int rc = sink_prepare(k, s, dir, p, e);

    if (rc == 0)
        rc = sink_make_files(k, p, e);
    if (rc == 0) {
        plan_close(p);
        rc = sink_finish(k, p, e);
    }
    if (rc == 0)
        rc = manifest_write(k, p, dir, e);
    plan_free(p);
    return rc;
}

int rehearsal_run(struct source *s, struct sink *k, const char *out, struct rehearsal *r, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    struct err ignored = {0};
    uint64_t required;
    char *dir, size[16];
    int rc;

    *r = (struct rehearsal){0};
    /* Check OUT as if --force was given. Without it, an OUT that could be replaced would be an error. */
    if (convert_free_space(out, &r->free_bytes, e) < 0 || convert_check_paths(s, out, e) < 0 ||
        staging_check_out(out, true, e) < 0)
        return -1;
    dir = path_join(tmp && *tmp ? tmp : "/tmp", "shardkit-dry-run-XXXXXX");
    if (!mkdtemp(dir)) {
        err_sys(e, dir, "cannot create the folder to rehearse in ($TMPDIR names another place)");
        free(dir);
        return -1;
    }
    k->o.rehearsal = true;
    k->o.part = 0;
    k->o.n_parts = 1;
    required = convert_required_space(s, k);
    rc = make_files(s, k, dir, e);
    if (rc == 0)
        rc = measure_folder_files(dir, r, e);
    required = max_u64(required, r->need_bytes);
    r->enough = r->free_bytes >= required;
    if (!r->enough)
        snprintf(r->lack_text, sizeof r->lack_text, ": not enough, %s must be free", bytes_text(required, size));
    if (dir_remove(dir, rc == 0 ? e : &ignored) < 0)
        rc = -1;
    free(dir);
    return rc;
}
