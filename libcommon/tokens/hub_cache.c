/* hub_cache.c - search models--NAME/snapshots for the revision in refs/main, or else for the newest revision */
#include "libcommon/tokens/hub_cache.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { REF_MAX = 256 };

struct hub_model {
    const char *name, *file;
    char *folder;               /* models--ORG--NAME */
    struct strbuf looked;       /* lists the places that were searched without success, for the message */
};

/* Returns true if the name may be that of a model, such as "bigscience/bloom" or "gpt2". Any other name is a path. */
static bool is_model_name(const char *name)
{
    int slashes = 0;

    for (const char *p = name; *p; p++) {
        bool first = p == name || p[-1] == '/';

        if (*p == '/' && !first && p[1] && slashes++ == 0)
            continue;
        if (!isalnum((unsigned char)*p) && (first || !strchr("._-", *p)))
            return false;
    }
    return *name != '\0';
}

static char *folder_of(const char *name)
{
    const char *slash = strchr(name, '/');

    return slash ? str_fmt("models--%.*s--%s", (int)(slash - name), name, slash + 1) : str_fmt("models--%s", name);
}

/* Returns the path of `file` in the snapshot `revision` of a model's folder, or NULL if there is no such file. */
static char *in_snapshot(const char *model, const char *revision, const char *file, struct stat *st)
{
    char *path = str_fmt("%s/snapshots/%s/%s", model, revision, file);

    if (stat(path, st) == 0 && S_ISREG(st->st_mode))
        return path;
    free(path);
    return NULL;
}

/* Returns the revision that the file refs/main contains, or NULL if there is no such file. */
static char *revision_of_main(const char *model)
{
    struct err none = {0};
    char *path = path_join(model, "refs/main");
    uint64_t size;
    char *text = file_slurp(path, REF_MAX, &size, &none);

    free(path);
    if (text)
        text[strcspn(text, " \t\r\n/")] = '\0';
    return text;
}

static char *newest_snapshot(const char *model, const char *file)
{
    char *folder = path_join(model, "snapshots"), *best = NULL;
    DIR *d = opendir(folder);
    struct stat newest = {0};

    for (struct dirent *i; d && (i = readdir(d));) {
        struct stat st;
        char *path = i->d_name[0] == '.' ? NULL : in_snapshot(model, i->d_name, file, &st);

        /* If two snapshots have the same time, they are ordered by name, so that every rank selects the same one. */
        if (!path || (best && (st.st_mtime < newest.st_mtime ||
                               (st.st_mtime == newest.st_mtime && strcmp(path, best) < 0)))) {
            free(path);
            continue;
        }
        free(best);
        best = path;
        newest = st;
    }
    if (d)
        closedir(d);
    free(folder);
    return best;
}

/*
 * Search the cache in folder `cache`. If it does not have the file, returns NULL and adds the folder to m->looked.
 * `variable` is the environment variable that sets the folder.
 */
static char *in_cache(struct hub_model *m, const char *cache, const char *variable)
{
    char *model = path_join(cache, m->folder), *revision = revision_of_main(model);
    struct stat st;
    char *found = revision && *revision ? in_snapshot(model, revision, m->file, &st) : NULL;

    if (!found)
        found = newest_snapshot(model, m->file);
    if (!found)
        strbuf_addf(&m->looked, "%s%s (%s%s)", m->looked.len ? ", " : "", cache, variable,
                    stat(model, &st) == 0 ? "; the model is there, without this file" : "");
    free(revision);
    free(model);
    return found;
}

static char *in_caches(struct hub_model *m)
{
    static const struct { const char *variable, *below; } caches[] = {
        { "TRANSFORMERS_CACHE", "" }, { "HF_HUB_CACHE", "" }, { "HUGGINGFACE_HUB_CACHE", "" }, { "HF_HOME", "/hub" },
        { "XDG_CACHE_HOME", "/huggingface/hub" }, { "HOME", "/.cache/huggingface/hub" },
    };
    const char *home = getenv("HOME");
    char *found = NULL;

    for (size_t i = 0; i < sizeof caches / sizeof *caches && !found; i++) {
        const char *value = getenv(caches[i].variable);
        bool tilde = value && str_starts(value, "~/") && home;
        char *cache;

        if (!value || !*value)
            continue;
        cache = str_fmt("%s%s%s", tilde ? home : "", tilde ? value + 1 : value, caches[i].below);
        found = in_cache(m, cache, caches[i].variable);
        free(cache);
    }
    return found;
}

char *hub_find(const char *name, const char *file, struct err *e)
{
    struct hub_model m = { .name = name, .file = file };
    struct stat st;
    char *found;

    if (stat(name, &st) == 0)
        return S_ISDIR(st.st_mode) ? path_join(name, file) : xstrdup(name);
    if (errno != ENOENT || !is_model_name(name)) {
        err_sys(e, name, "cannot open");
        return NULL;
    }
    m.folder = folder_of(name);
    found = in_caches(&m);
    if (!found)
        err_data(e, name, ERR_NO_BYTE, "no such file or folder here, and no %s of %s in the hub's caches; searched %s; "
                                       "nothing is downloaded: give a path, or the cache's folder in "
                                       "HF_HUB_CACHE", file, m.folder,
                 m.looked.len ? m.looked.buf : "none, as neither HOME nor HF_HOME is set");
    strbuf_free(&m.looked);
    free(m.folder);
    return found;
}
