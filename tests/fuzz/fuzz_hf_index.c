/*
 * Any bytes as the model.safetensors.index.json of a folder of two files: an error, or tensors that lie in one of
 * these, each of its whole shape, and no other.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void put(const char *dir, const char *name, const void *bytes, size_t n)
{
    char *path = path_join(dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    require(fd >= 0 && write_all(fd, bytes, n) == 0 && close(fd) == 0);
    free(path);
}

/* One tensor of two fp32 numbers. */
static void put_tensors(const char *dir, const char *file, const char *tensor)
{
    uint8_t bytes[256] = {0};
    int n = snprintf((char *)bytes + 8, 200, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                     tensor);

    while (n % 8)
        bytes[8 + n++] = ' ';
    put_le64(bytes, (uint64_t)n);
    put(dir, file, bytes, 8 + (size_t)n + 8);
}

static const char *folder(void)
{
    static char dir[64];

    if (!*dir) {
        snprintf(dir, sizeof dir, "%s/fuzz-index-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        require(mkdtemp(dir) != NULL);
        put_tensors(dir, "model-00001-of-00002.safetensors", "a");
        put_tensors(dir, "model-00002-of-00002.safetensors", "b.weight");
    }
    return dir;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const struct source_opts o = { .threads = 1, .hf = true };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s;

    put(folder(), "model.safetensors.index.json", bytes, size);
    s = source_open(folder(), &o, r, &e);
    require(s || e.kind == ERR_DATA);
    for (int i = 0; s && i < s->n_params && report_count(r, SEV_ERROR) == 0; i++) {
        const struct param *p = &s->param[i];

        require(strcmp(p->name, "a") == 0 || strcmp(p->name, "b.weight") == 0);
        require(p->ndim == 1 && p->shape[0] == 2);
    }
    source_close(s);
    report_free(r);
    return 0;
}
