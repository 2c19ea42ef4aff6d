/*
 * file_ids.c - list, sort and compare inodes
 */
#include "tools/ckpt-backup/place/file_ids.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

static int by_device_and_inode(const void *va, const void *vb)
{
    const struct file_id *a = va, *b = vb;

    if (a->dev != b->dev)
        return a->dev < b->dev ? -1 : 1;
    return (a->inode > b->inode) - (a->inode < b->inode);
}

static void sort_ids(struct file_ids *l)
{
    if (l->n)
        qsort(l->id, (size_t)l->n, sizeof *l->id, by_device_and_inode);
}

void file_ids_of_content(struct file_ids *l, const struct content *c)
{
    *l = (struct file_ids){ .id = xcalloc((size_t)c->n_files + 1, sizeof *l->id) };
    for (int i = 0; i < c->n_files; i++)
        l->id[l->n++] = (struct file_id){ c->file[i].dev, c->file[i].inode, i };
    sort_ids(l);
}

void file_ids_of_backup(struct file_ids *l, const struct place *p, const struct receipt *rec)
{
    bool one = receipt_is_file(rec->form);
    char *top = path_join(p->path, rec->name);
    int n = rules_is_remote(p->path) ? 0 : one ? 1 : rec->n_files;

    *l = (struct file_ids){ .id = xcalloc((size_t)n + 1, sizeof *l->id) };
    for (int i = 0; i < n; i++) {
        char *path = one ? xstrdup(top) : path_join(top, rec->file[i].name);
        struct stat st;

        if (stat(path, &st) == 0)
            l->id[l->n++] = (struct file_id){ st.st_dev, st.st_ino, i };
        free(path);
    }
    free(top);
    sort_ids(l);
}

void file_ids_free(struct file_ids *l)
{
    free(l->id);
    *l = (struct file_ids){0};
}

int file_ids_shared(const struct file_ids *a, const struct file_ids *b)
{
    for (int i = 0, k = 0; i < a->n && k < b->n;) {
        int order = by_device_and_inode(&a->id[i], &b->id[k]);

        if (order == 0)
            return a->id[i].number;
        i += order < 0;
        k += order > 0;
    }
    return -1;
}
