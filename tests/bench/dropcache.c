/*
 * dropcache.c - drop the cached pages of files, for benchmarks that may not use drop_caches
 *
 * It handles every regular file below the given paths. Modified pages are written first.
 */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    int fd;

    (void)st;
    (void)ftw;
    if (type != FTW_F)
        return 0;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fdatasync(fd) < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        perror(path);
    if (fd >= 0)
        close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    int rc = 0;

    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], drop, 16, FTW_PHYS) < 0) {
            perror(argv[i]);
            rc = 1;
        }
    }
    return rc;
}
