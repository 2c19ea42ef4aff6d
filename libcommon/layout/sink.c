/*
 * sink.c - what all sinks do alike
 */
#include <fcntl.h>
#include <unistd.h>

#include "libcommon/layout/layout.h"

int sink_reserve(const struct sink *k, const char *path, uint64_t size, struct err *e)
{
    int fd, rc = 0;

    if (!k->o.rehearsal)
        return file_reserve(path, size, k->o.resumed, e);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0) {
        err_sys(e, path, "cannot create");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}
