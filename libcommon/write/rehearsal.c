/* rehearsal.c - let a sink make all its files except the tensor bytes in a temporary folder, measure and remove them */
#include "libcommon/write/rehearsal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "libcommon/base/progress.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/write/inputs.h"
#include "libcommon/write/out_path.h"
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

/* Rehearse the conversion in a new folder. Returns the folder's path, which the caller removes and frees, or NULL. */
static char *rehearse(struct source *s, struct sink *k, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    struct err ignored = {0};
    char *dir = path_join(tmp && *tmp ? tmp : "/tmp", "shardkit-dry-run-XXXXXX");

    if (!mkdtemp(dir)) {
        err_sys(e, dir, "cannot create the temporary folder for --dry-run; set TMPDIR to another folder");
        free(dir);
        return NULL;
    }
    k->o.rehearsal = true;
    k->o.part = 0;
    k->o.n_parts = 1;
    if (make_files(s, k, dir, e) == 0)
        return dir;
    if (dir_remove(dir, &ignored) < 0)
        err_clear(&ignored);
    free(dir);
    return NULL;
}

int rehearsal_run(struct source *s, struct sink *k, const char *out, struct rehearsal *r, struct err *e)
{
    struct err ignored = {0};
    char *dir, size[16];
    uint64_t required;
    int rc;

    *r = (struct rehearsal){0};
    /* OUT is checked as if --force was given. Without --force, an OUT that could be replaced would be an error. */
    if (convert_free_space(out, &r->free_bytes, e) < 0 || inputs_check_source(NULL, s, out, e) < 0 ||
        staging_check_out(out, true, e) < 0)
        return -1;
    required = convert_required_space(s, k);
    dir = rehearse(s, k, e);
    if (!dir)
        return -1;
    rc = measure_folder_files(dir, r, e);
    required = max_u64(required, r->need_bytes);
    r->enough = r->free_bytes >= required;
    if (!r->enough)
        snprintf(r->lack_text, sizeof r->lack_text, ": not enough, because %s must be free",
                 bytes_text(required, size));
    if (dir_remove(dir, rc == 0 ? e : &ignored) < 0)
        rc = -1;
    free(dir);
    return rc;
}

/* ---- an OUT that exists ---- */

#define KEEP_OR_FORCE "; --force replaces it, another name keeps it"

/*
 * Compare the sizes of the files that the conversion makes with those of OUT. The rehearsal has made these files in
 * `dir`.
 */
static int compare_sizes(const char *dir, const char *out, struct err *e)
{
    struct manifest_names l = {0};
    int rc = manifest_list_folder(&l, dir, e);

    for (int i = 0; i < l.n && rc == 0; i++) {
        char *made = path_join(dir, l.name[i]), *there = path_join(out, l.name[i]);
        struct stat want, st;

        rc = -1;
        if (stat(made, &want) < 0)
            err_sys(e, made, "cannot stat the file");
        else if (stat(there, &st) < 0)
            err_usage(e, "%s: exists already, but lacks %s, which this conversion would write" KEEP_OR_FORCE,
                      out, l.name[i]);
        else if (st.st_size != want.st_size)
            err_usage(e, "%s: exists already and is another result: %s has %lld bytes instead of %lld" KEEP_OR_FORCE,
                      out, l.name[i], (long long)st.st_size, (long long)want.st_size);
        else
            rc = 0;
        free(there);
        free(made);
    }
    manifest_free_names(&l);
    return rc;
}

/*
 * Returns true if the digest of a tensor in OUT differs from the digest of the same elements in the source's manifest.
 */
static bool is_other_tensor(const struct source *s, const json_t *t)
{
    const char *name = json_string_value(json_object_get(t, "name"));
    const char *state = json_string_value(json_object_get(t, "state"));
    const char *dtype = json_string_value(json_object_get(t, "dtype"));
    const char *crc = json_string_value(json_object_get(t, "crc32"));
    const struct param *p = name ? source_param(s, name) : NULL;
    uint64_t elems = 1;
    size_t i;
    json_t *n;

    json_array_foreach(json_object_get(t, "shape"), i, n)
        elems *= (uint64_t)json_integer_value(n);
    for (int st = 0; p && state && dtype && crc && st < STATE_N; st++) {
        const struct tmap *m = p->state[st];

        if (m && p->has_digest[st] && strcmp(state_name((enum state)st), state) == 0 &&
            strcmp(dtype_name(m->dtype), dtype) == 0 && m->len == elems * dtype_size(m->dtype))
            return strtoul(crc, NULL, 16) != p->digest[st];
    }
    return false;
}

/*
 * Compare the lists of tensors of two manifests without digests, and the digests in OUT with those of the source's
 * manifest.
 */
static int compare_tensors(const struct source *s, const json_t *want, const json_t *have, const char *out,
                           struct err *e)
{
    static const char *const key[] = { "name", "state", "dtype", "shape" };
    const json_t *a = json_object_get(want, "tensors"), *b = json_object_get(have, "tensors");
    bool same = json_array_size(a) == json_array_size(b);

    for (size_t i = 0; i < json_array_size(a) && same; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);

        for (size_t k = 0; k < sizeof key / sizeof *key; k++)
            same = same && json_equal(json_object_get(x, key[k]), json_object_get(y, key[k]));
        if (!same || !is_other_tensor(s, y))
            continue;
        err_usage(e, "%s: exists already and was written from other data: %s differs from IN" KEEP_OR_FORCE, out,
                  json_string_value(json_object_get(y, "name")));
        return -1;
    }
    if (!same)
        err_usage(e, "%s: exists already and has other tensors than this conversion would write" KEEP_OR_FORCE, out);
    return same ? 0 : -1;
}

static int compare_manifests(const struct source *s, const json_t *want, const json_t *have, const char *out,
                             struct err *e)
{
    const json_t *form = json_object_get(have, "layout"), *from = json_object_get(have, "source");
    char *text;

    if (!json_is_object(have)) {
        err_usage(e, "%s: exists already, and it has no %s that names its input" KEEP_OR_FORCE, out,
                  MANIFEST_NAME);
        return -1;
    }
    if (!json_equal(json_object_get(want, "layout"), form)) {
        err_usage(e, "%s: exists already in the form %s instead of %s" KEEP_OR_FORCE, out, json_string_value(form),
                  json_string_value(json_object_get(want, "layout")));
        return -1;
    }
    if (!json_equal(json_object_get(want, "source"), from)) {
        text = json_dumps(from, JSON_COMPACT | JSON_ENCODE_ANY);
        err_usage(e, "%s: exists already and was written from another input, %s instead of %s" KEEP_OR_FORCE, out,
                  text ? text : "unknown", s->path);
        free(text);
        return -1;
    }
    return compare_tensors(s, want, have, out, e);
}

/* Check that no file of the source was changed after OUT was completed. */
static int check_older_input(const struct source *s, const char *manifest, const char *out, struct err *e)
{
    struct stat st;

    if (stat(manifest, &st) < 0)
        return 0;                       /* its absence was reported, or no manifest is made */
    for (int i = 0; i < s->n_files; i++)
        if (files_mtime_ns(s->files, s->file[i].file) > st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec) {
            err_usage(e, "%s: exists already and is older than %s of IN" KEEP_OR_FORCE, out, s->file[i].name);
            return -1;
        }
    return 0;
}

int rehearsal_compare(struct source *s, struct sink *k, const char *out, struct err *e)
{
    char *dir = rehearse(s, k, e), *made = dir ? path_join(dir, MANIFEST_NAME) : NULL;
    char *there = path_join(out, MANIFEST_NAME);
    json_t *want = made ? json_load_file(made, 0, NULL) : NULL, *have = json_load_file(there, 0, NULL);
    struct err ignored = {0};
    int rc = !dir || (want && compare_manifests(s, want, have, out, e) < 0) || compare_sizes(dir, out, e) < 0 ||
                     (want && check_older_input(s, there, out, e) < 0) ? -1 : 0;

    if (dir && dir_remove(dir, rc == 0 ? e : &ignored) < 0)
        rc = -1;
    json_decref(want);
    json_decref(have);
    free(there);
    free(made);
    free(dir);
    return rc;
}
