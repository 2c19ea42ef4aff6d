/*
 * ds_file.c - describe a file of DeepSpeed from its tree, and write small files whole
 */
#include "libcommon/layout/ds_file.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/write/folder.h"

void ds_tree_free(struct ds_tree *x)
{
    arena_free(x->arena);
    free(x->storage);
    memset(x, 0, sizeof *x);
}

/*
 * Return the name that torch gives to the top folder inside the archive. It is the file's name without its extension.
 * The caller frees it.
 */
static char *prefix_of(const char *name)
{
    return str_fmt("%.*s", (int)(strlen(name) - strlen(".pt")), name);
}

void ds_describe_file(struct folder_desc *d, const char *name, struct ds_tree *x)
{
    struct folder_storage *st = arena_alloc(x->arena, (size_t)x->n * sizeof *st + 1);
    char *prefix = prefix_of(name);

    arena_free(d->arena);
    d->arena = x->arena;
    x->arena = NULL;
    d->name = arena_fmt(d->keep ? d->keep : d->arena, "%s", name);
    for (int i = 0; i < x->n; i++) {
        const struct ds_storage *from = &x->storage[i];

        st[i] = (struct folder_storage){ .len = from->len };
        if (from->fill == DS_FILL_BYTES)
            st[i].bytes = memcpy(arena_alloc(d->arena, sizeof from->bytes), from->bytes, sizeof from->bytes);
    }
    folder_add_box(d, &(struct folder_box){ .prefix = arena_fmt(d->arena, "%s", prefix), .root = x->root, .n = x->n,
                                            .storage = st });
    free(prefix);
}

int ds_file_write(const char *dir, const char *name, const struct pk *root, const struct pt *pt, struct files *files,
                  struct err *e)
{
    char *prefix = prefix_of(name);
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc = pt_build(prefix, root, pt, files, &bytes, &size, e);

    if (rc == 0)
        rc = folder_write_small(dir, name, bytes, size, e);
    free(bytes);
    free(prefix);
    return rc;
}
