/*
 * deepspeed_file.c - the offsets of storages in a file, and the container around them
 */
#include "libcommon/layout/deepspeed/deepspeed_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/layout/deepspeed/deepspeed.h"

/* Return the name that torch gives the archive inside: the file's name without its extension. Caller frees. */
static char *prefix_of(const char *name)
{
    return str_fmt("%.*s", (int)(strlen(name) - strlen(".pt")), name);
}

struct ds_file ds_file_new(struct arena *a, const char *name)
{
    struct ds_file f = { .layer = -1, .pp = -1, .tp = -1, .dp = -1, .dst = -1 };
    char *prefix = prefix_of(name);

    f.name = arena_fmt(a, "%s", name);
    f.prefix = arena_fmt(a, "%s", prefix);
    free(prefix);
    return f;
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

static struct pt_image *ds_make_file_image(const struct ds_file *f, const struct ds_tree *x)
{
    uint64_t *size = xmalloc((size_t)x->n * sizeof *size + 1);
    struct pt_image *im;

    for (int i = 0; i < x->n; i++)
        size[i] = x->storage[i].len;
    im = pt_image_new(f->prefix, x->root, x->n, size);
    free(size);
    return im;
}

uint64_t ds_file_size(const struct ds_file *f, const struct ds_tree *x)
{
    struct pt_image *im = ds_make_file_image(f, x);
    uint64_t size = pt_image_size(im);

    pt_image_free(im);
    return size;
}

void ds_file_lay_out(struct arena *a, struct ds_file *f, const struct ds_tree *x)
{
    struct pt_image *im = ds_make_file_image(f, x);

    f->size = pt_image_size(im);
    f->n = x->n;
    f->sum = arena_alloc(a, (size_t)x->n * sizeof *f->sum + 1);
    f->at = arena_alloc(a, (size_t)x->n * sizeof *f->at + 1);
    f->storage = arena_alloc(a, (size_t)x->n * sizeof *f->storage + 1);
    for (int i = 0; i < x->n; i++) {
        f->storage[i] = x->storage[i];
        f->at[i] = pt_image_at(im, i);
    }
    pt_image_free(im);
}

static int write_container(const struct ds_tree *x, struct pt_image *im, int fd)
{
    const struct zip_run *run;
    int n, rc = 0;

    for (int i = 0; i < x->n && rc == 0; i++)
        if (x->storage[i].fill == DS_FILL_BYTES)
            rc = write_all_at(fd, x->storage[i].bytes, x->storage[i].len, pt_image_at(im, i));
    n = pt_image_runs(im, &run);
    for (int i = 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, run[i].at);
    return rc;
}

int ds_file_seal(const char *dir, const struct ds_file *f, const struct ds_tree *x, bool sync, struct err *e)
{
    char *path = path_join(dir, f->name);
    struct pt_image *im = ds_make_file_image(f, x);
    int rc = 0, fd = open(path, O_WRONLY | O_CLOEXEC);

    for (int i = 0; i < x->n; i++)
        pt_image_set_crc(im, i, x->storage[i].fill == DS_FILL_BYTES
                                    ? crc_bytes(0, x->storage[i].bytes, x->storage[i].len) : f->sum[i].acc);
    if (fd < 0 || write_container(x, im, fd) < 0 || (sync && fsync(fd) < 0)) {
        err_sys(e, path, "cannot write the headers");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    pt_image_free(im);
    free(path);
    return rc;
}

int ds_file_write_mp(const char *dir, int mp, const struct pk *root, const struct pt *pt, struct files *files,
                     struct err *e)
{
    char buf[96], *path = path_join(dir, ds_mp_name(mp, buf)), *prefix = prefix_of(buf);
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc = pt_build(prefix, root, pt, files, &bytes, &size, e);

    if (rc == 0)
        rc = file_replace(path, bytes, size, e);
    free(bytes);
    free(prefix);
    free(path);
    return rc;
}

int ds_file_write_log(const char *dir, const struct strbuf *log, struct err *e)
{
    char *path = path_join(dir, DS_REPAIR_LOG_NAME);
    int rc = file_replace(path, log->buf, log->len, e);

    free(path);
    return rc;
}
