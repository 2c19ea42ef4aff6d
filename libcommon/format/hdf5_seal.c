/* hdf5_seal.c - compute, write and check the seal, which holds the CRC of all bytes outside of tensors */
#include "libcommon/format/hdf5_seal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { RUN_SIZE = 16, TAIL_SIZE = 20, CHUNK = 1 << 18 };

static const char magic[8] = { 'S', 'K', 'H', '5', 'S', 'E', 'A', 'L' };

/* Compute the CRC of the bytes of all runs, one run after the other. */
static int crc_of_runs(int fd, const struct h5_run *run, int n, uint32_t *crc)
{
    char *buf = xmalloc(CHUNK);
    int rc = 0;

    *crc = 0;
    for (int i = 0; i < n; i++)
        for (uint64_t at = 0; at < run[i].len && rc == 0; at += CHUNK) {
            size_t len = (size_t)min_u64(CHUNK, run[i].len - at);

            rc = read_all_at(fd, buf, len, run[i].at + at);
            *crc = crc_bytes(*crc, buf, len);
        }
    free(buf);
    return rc;
}

static int compare_h5_runs(const void *a, const void *b)
{
    const struct h5_run *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/*
 * Find the parts of [0, end) that no tensor covers, and store them in `gap`, which must have room for n + 1 entries.
 * Returns the number of parts.
 */
static int gaps_between(struct h5_run *tensor, int n, uint64_t end, struct h5_run *gap)
{
    uint64_t at = 0;
    int n_gaps = 0;

    if (n > 0)
        qsort(tensor, (size_t)n, sizeof *tensor, compare_h5_runs);
    for (int i = 0; i <= n; i++) {
        uint64_t stop = i < n ? tensor[i].at : end;

        if (stop > at)
            gap[n_gaps++] = (struct h5_run){ at, stop - at };
        if (i < n)
            at = tensor[i].at + tensor[i].len;
    }
    return n_gaps;
}

static void *seal_of(const struct h5_run *gap, int n, uint32_t crc, size_t *size)
{
    uint8_t *seal = xmalloc((size_t)n * RUN_SIZE + TAIL_SIZE), *p = seal;

    for (int i = 0; i < n; i++, p += RUN_SIZE) {
        put_le64(p, gap[i].at);
        put_le64(p + 8, gap[i].len);
    }
    put_le32(p, (uint32_t)n);
    put_le32(p + 4, crc);
    put_le32(p + 8, crc_bytes(0, seal, (size_t)(p + 8 - seal)));
    memcpy(p + 12, magic, sizeof magic);
    *size = (size_t)n * RUN_SIZE + TAIL_SIZE;
    return seal;
}

int h5_seal_put(const char *path, struct h5_run *tensor, int n, struct err *e)
{
    struct h5_run *gap = xcalloc((size_t)n + 1, sizeof *gap);
    int n_gaps, rc = -1, fd = open(path, O_RDWR | O_CLOEXEC);
    void *seal = NULL;
    struct stat st;
    uint32_t crc;
    size_t size;

    if (fd < 0 || fstat(fd, &st) < 0) {
        err_sys(e, path, "cannot open");
        goto out;
    }
    n_gaps = gaps_between(tensor, n, (uint64_t)st.st_size, gap);
    if (crc_of_runs(fd, gap, n_gaps, &crc) < 0) {
        err_sys(e, path, "cannot read");
        goto out;
    }
    seal = seal_of(gap, n_gaps, crc, &size);
    if (write_all_at(fd, seal, size, (uint64_t)st.st_size) < 0) {
        err_sys(e, path, "cannot write %zu bytes", size);
        goto out;
    }
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    free(seal);
    free(gap);
    return rc;
}

static int report_h5_damage(const char *path, uint64_t at, struct err *e, const char *what)
{
    err_data(e, path, at, "%s: damaged, or changed by another program", what);
    return -1;
}

/* Returns true if the runs are in ascending order, do not overlap, and end at or before `end`. */
static bool runs_sound(const struct h5_run *run, int n, uint64_t end)
{
    uint64_t at = 0;

    for (int i = 0; i < n; i++) {
        if (run[i].at < at || run[i].at > end || run[i].len > end - run[i].at)
            return false;
        at = run[i].at + run[i].len;
    }
    return true;
}

int h5_seal_check(int fd, const char *path, uint64_t size, uint64_t end, struct err *e)
{
    uint64_t len = size - end, n = (len - TAIL_SIZE) / RUN_SIZE;
    struct h5_run *run = NULL;
    uint8_t *seal = NULL, *tail;
    uint32_t crc;
    int rc = -1;

    /* A valid seal never has 4 GiB of runs. This limit also ensures that n fits into an int. */
    if (end > size || len < TAIL_SIZE || len > UINT32_MAX || (len - TAIL_SIZE) % RUN_SIZE != 0)
        return report_h5_damage(path, end, e, "no seal after the HDF5 data");
    seal = xmalloc(len);
    tail = seal + n * RUN_SIZE;
    if (read_all_at(fd, seal, len, end) < 0) {
        err_sys(e, path, "cannot read");
        goto out;
    }
    if (memcmp(tail + 12, magic, sizeof magic) != 0 || get_le32(tail) != n ||
        get_le32(tail + 8) != crc_bytes(0, seal, (size_t)(tail + 8 - seal))) {
        report_h5_damage(path, end, e, "damaged seal after the HDF5 data");
        goto out;
    }
    run = xcalloc(n + 1, sizeof *run);
    for (uint64_t i = 0; i < n; i++)
        run[i] = (struct h5_run){ get_le64(seal + i * RUN_SIZE), get_le64(seal + i * RUN_SIZE + 8) };
    if (!runs_sound(run, (int)n, end)) {
        report_h5_damage(path, end, e, "a seal over bytes that are not there");
        goto out;
    }
    if (crc_of_runs(fd, run, (int)n, &crc) < 0) {
        err_sys(e, path, "cannot read");
        goto out;
    }
    if (crc != get_le32(tail + 4)) {
        err_data(e, path, ERR_NO_BYTE, "its tables have CRC %08x, sealed with %08x: damaged, or changed by "
                 "another program", crc, get_le32(tail + 4));
        goto out;
    }
    rc = 0;
out:
    free(run);
    free(seal);
    return rc;
}
