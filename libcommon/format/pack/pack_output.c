/*
 * pack_output.c - write a packed file block by block
 */
#include "libcommon/format/pack/pack_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

uint8_t *pack_block_new(void)
{
    uint8_t *p = aligned_alloc(4096, PACK_BLOCK);

    if (!p)
        abort();                /* a few MiB could not be allocated: abort like xmalloc() */
    return p;
}

int pack_output_open(struct pack_output *o, const char *path, struct err *e)
{
    const int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;

    *o = (struct pack_output){ .path = path, .block = pack_block_new() };
    o->fd = open(path, flags | O_DIRECT, 0666);
    if (o->fd < 0 && errno == EINVAL)
        o->fd = open(path, flags, 0666);
    if (o->fd >= 0)
        return 0;
    err_sys(e, path, "cannot create");
    return -1;
}

bool pack_output_add(struct pack_output *o, const void *p, size_t n, uint8_t **spare, uint64_t *at)
{
    size_t fits = n < PACK_BLOCK - o->n ? n : PACK_BLOCK - o->n;
    uint8_t *full = o->block;

    memcpy(o->block + o->n, p, fits);
    o->n += fits;
    if (o->n < PACK_BLOCK)
        return false;
    *at = o->at;
    o->at += PACK_BLOCK;
    o->n = n - fits;
    o->block = *spare;
    memcpy(o->block, (const uint8_t *)p + fits, o->n);
    *spare = full;
    return true;
}

/* Stop using O_DIRECT for this file. */
static int refuse_direct(const struct pack_output *o)
{
    return fcntl(o->fd, F_SETFL, fcntl(o->fd, F_GETFL) & ~O_DIRECT);
}

int pack_output_write(struct pack_output *o, const uint8_t *block, uint64_t at, struct err *e)
{
    int rc = write_all_at(o->fd, block, PACK_BLOCK, at);

    /*
     * EINVAL has one of these causes: the file system requires a larger alignment; it refuses O_DIRECT only when data
     * is written; or an earlier call has written only a part.
     */
    if (rc < 0 && errno == EINVAL && refuse_direct(o) == 0)
        rc = write_all_at(o->fd, block, PACK_BLOCK, at);
    if (rc < 0)
        err_sys(e, o->path, "cannot write %zu bytes", PACK_BLOCK);
    return rc;
}

int pack_output_finish(struct pack_output *o, const void *p, size_t n, struct err *e)
{
    uint8_t *spare = pack_block_new();
    const uint8_t *from = p;
    int rc = 0;

    while (n > 0 && rc == 0) {
        size_t some = n < PACK_BLOCK ? n : PACK_BLOCK;
        uint64_t at;

        if (pack_output_add(o, from, some, &spare, &at))
            rc = pack_output_write(o, spare, at, e);
        from += some;
        n -= some;
    }
    if (rc == 0 && (refuse_direct(o) < 0 || write_all_at(o->fd, o->block, o->n, o->at) < 0 || fsync(o->fd) < 0)) {
        err_sys(e, o->path, "cannot write its index");
        rc = -1;
    }
    free(spare);
    return rc;
}

void pack_output_close(struct pack_output *o)
{
    if (o->fd >= 0)
        close(o->fd);
    free(o->block);
    *o = (struct pack_output){ .fd = -1 };
}
