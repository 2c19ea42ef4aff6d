/* folder_file.c - lay out the boxes of a file, and write the bytes around the storages in them */
#include "libcommon/write/folder_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- descriptions ---- */

void folder_desc_init(struct folder_desc *d, struct arena *keep)
{
    *d = (struct folder_desc){ .arena = arena_new(0), .keep = keep };
}

void folder_desc_free(struct folder_desc *d)
{
    arena_free(d->arena);
    free(d->box);
    free(d->fill);
}

void folder_add_box(struct folder_desc *d, const struct folder_box *b)
{
    ARRAY_ROOM(d->box, d->cap_boxes, d->n_boxes + 1);
    d->box[d->n_boxes++] = *b;
}

void folder_add_fill(struct folder_desc *d, const struct folder_fill *f)
{
    if (!d->keep)
        return;
    ARRAY_ROOM(d->fill, d->cap_fills, d->n_fills + 1);
    d->fill[d->n_fills++] = *f;
}

/* ---- layout ---- */

/* Return the container of a .pt box, or NULL for any other box. free_box_image() frees it. */
static struct pt_image *box_image(const struct folder_box *b)
{
    uint64_t *size;
    struct pt_image *im;

    if (b->image || !b->prefix)
        return b->image;
    size = xmalloc((size_t)b->n * sizeof *size + 1);
    for (int i = 0; i < b->n; i++)
        size[i] = b->storage[i].len;
    im = pt_image_new(b->prefix, b->root, b->n, size);
    free(size);
    return im;
}

static void free_box_image(const struct folder_box *b, struct pt_image *im)
{
    if (!b->image)
        pt_image_free(im);
}

static uint64_t container_size(const struct folder_box *b, const struct pt_image *im)
{
    return im ? pt_image_size(im) : b->zip ? zip_layout_size(b->zip) : b->size;
}

static uint64_t storage_at(const struct folder_box *b, const struct pt_image *im, int i)
{
    return im ? pt_image_at(im, i) : b->zip ? b->record[i].at : b->storage[i].at;
}

uint64_t folder_box_size(const struct folder_box *b)
{
    struct pt_image *im = box_image(b);
    const uint64_t size = container_size(b, im);

    free_box_image(b, im);
    return size;
}

uint64_t folder_file_size(const struct folder_desc *d)
{
    uint64_t size = 0;

    for (int i = 0; i < d->n_boxes; i++)
        size += folder_box_size(&d->box[i]);
    return size;
}

struct folder_file folder_file_lay_out(struct arena *a, const struct folder_desc *d)
{
    struct folder_file f = { .name = arena_fmt(a, "%s", d->name), .dst = -1, .n_boxes = d->n_boxes };
    int at = 0;

    for (int i = 0; i < d->n_boxes; i++)
        f.n += d->box[i].n;
    f.box_at = arena_alloc(a, ((size_t)f.n_boxes + 1) * sizeof *f.box_at);
    f.storage = arena_alloc(a, (size_t)f.n * sizeof *f.storage + 1);
    for (int i = 0; i < d->n_boxes; i++) {
        const struct folder_box *b = &d->box[i];
        struct pt_image *im = box_image(b);

        f.box_at[i] = f.size;
        for (int k = 0; k < b->n; k++, at++) {
            f.storage[at].at = f.size + storage_at(b, im, k);
            f.storage[at].len = b->storage[k].len;
            f.storage[at].given = b->storage[k].bytes;
        }
        f.size += container_size(b, im);
        free_box_image(b, im);
    }
    f.box_at[f.n_boxes] = f.size;
    return f;
}

/* ---- the bytes around the storages ---- */

static int write_given_storages(const struct folder_file *f, int first, const struct folder_box *b, int fd)
{
    for (int i = 0; i < b->n; i++)
        if (b->storage[i].bytes &&
            write_all_at(fd, b->storage[i].bytes, b->storage[i].len, f->storage[first + i].at) < 0)
            return -1;
    return 0;
}

/*
 * Write the bytes of a box of file `f` around its storages. `first` is the number of the box's first storage in the
 * file. Returns -1 with errno set.
 */
static int write_box(const struct folder_file *f, int number, int first, const struct folder_box *b, int fd)
{
    const uint64_t at = f->box_at[number];
    const struct zip_run *run;
    struct pt_image *im = box_image(b);
    int rc = write_given_storages(f, first, b, fd), n;

    if (rc < 0 || (!im && !b->zip)) {
        free_box_image(b, im);
        return rc < 0 ? -1 : write_all_at(fd, b->head, b->head_len, at);
    }
    for (int i = 0; i < b->n; i++) {
        const uint32_t crc = b->storage[i].bytes ? crc_bytes(0, b->storage[i].bytes, b->storage[i].len)
                                                 : f->storage[first + i].sum.acc;

        if (im)
            pt_image_set_crc(im, i, crc);
        else
            b->record[i].crc = crc;
    }
    n = im ? pt_image_runs(im, &run) : zip_layout_runs(b->zip, &run);
    for (int i = 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, at + run[i].at);
    free_box_image(b, im);
    return rc;
}

int folder_file_seal(const char *dir, const struct folder_file *f, const struct folder_desc *d, bool sync,
                     struct err *e)
{
    char *path = path_join(dir, f->name);
    int fd = open(path, O_WRONLY | O_CLOEXEC), rc = fd < 0 ? -1 : 0;

    for (int i = 0, first = 0; i < d->n_boxes && rc == 0; first += d->box[i++].n)
        rc = write_box(f, i, first, &d->box[i], fd);
    if (rc < 0 || (sync && fsync(fd) < 0)) {
        err_sys(e, path, "cannot write the headers");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}

int folder_make_hollow(const char *path, uint64_t size, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666), rc = 0;

    if (fd < 0 || ftruncate(fd, (off_t)size) < 0) {
        err_sys(e, path, "cannot create");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int folder_write_small(const char *dir, const char *name, const void *bytes, uint64_t len, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = file_replace(path, bytes, len, e);

    free(path);
    return rc;
}
