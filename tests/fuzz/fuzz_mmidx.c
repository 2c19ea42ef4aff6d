/*
 * Any bytes as a dataset index and as a NumPy array: an error with a byte, or numbers that
 * can all be read. The first byte says how many bytes the .bin has, in steps of 16.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/mmidx.h"
#include "libcommon/format/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static char *prefix;

static void tidy(void)
{
    static const char *const suffixes[] = { ".idx", ".bin" };

    for (int i = 0; i < 2; i++) {
        char *path = str_fmt("%s%s", prefix, suffixes[i]);

        unlink(path);
        free(path);
    }
}

static void put(const char *suffix, const uint8_t *bytes, size_t size)
{
    char *path = str_fmt("%s%s", prefix, suffix);
    FILE *f = fopen(path, "wb");

    require(f != NULL);
    require(fwrite(bytes, 1, size, f) == size);
    require(fclose(f) == 0);
    free(path);
}

static void read_all(const struct mmidx *m)
{
    int64_t tokens[64], sum = 0;

    for (int64_t i = 0; i < mmidx_n(m); i++) {
        int64_t len = mmidx_len(m, i);

        for (int64_t at = 0; at < len; at += 64)
            mmidx_read(m, i, at, len - at < 64 ? len - at : 64, tokens);
        sum += len;
    }
    require(sum == mmidx_tokens(m));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint8_t zeros[256 * 16];
    struct err e = {0};
    struct mmidx *m;
    struct npy a;
    char *idx;

    if (size == 0)
        return 0;
    if (!prefix) {
        const char *tmp = getenv("TMPDIR");

        prefix = str_fmt("%s/fuzz_mmidx.%ld", tmp ? tmp : "/tmp", (long)getpid());
        atexit(tidy);
    }
    put(".bin", zeros, bytes[0] * 16u);
    put(".idx", bytes + 1, size - 1);
    m = mmidx_open(prefix, &e);
    if (m)
        read_all(m);
    else
        require(e.kind == ERR_DATA);
    mmidx_close(m);
    err_clear(&e);
    idx = str_fmt("%s.idx", prefix);
    if (npy_open(idx, &a, &e) == 0) {
        require(a.shape[0] >= 0 && a.shape[1] >= 0);
        npy_close(&a);
    } else {
        require(e.kind == ERR_DATA);
    }
    free(idx);
    return 0;
}
