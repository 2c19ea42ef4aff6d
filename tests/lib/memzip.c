#include "tests/lib/memzip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/zip.h"

uint8_t *memzip_make(const struct memzip_record *records, uint64_t *size)
{
    struct zip_out out[64];
    struct zip_layout *l;
    const struct zip_run *run;
    uint8_t *file;
    int n = 0;

    for (; records[n].name; n++) {
        assert_true(n < 64);
        out[n] = (struct zip_out){ .name = records[n].name, .size = records[n].size,
                                   .crc = crc_bytes(0, records[n].bytes, records[n].size) };
    }
    l = zip_layout_new(out, n);
    *size = zip_layout_size(l);
    file = xcalloc(1, *size);
    for (int i = 0; i < n; i++)
        if (records[i].size)
            memcpy(file + out[i].at, records[i].bytes, records[i].size);
    for (int i = 0, k = zip_layout_runs(l, &run); i < k; i++)
        memcpy(file + run[i].at, run[i].bytes, run[i].len);
    zip_layout_free(l);
    return file;
}

uint8_t *memzip_load(const char *name, uint64_t *size)
{
    char *path = path_join("tests/data/pt", name);
    struct err e = {0};
    char *bytes = file_slurp(path, 1 << 20, size, &e);

    if (!bytes)
        fail_msg("%s", e.msg);
    free(path);
    return (uint8_t *)bytes;
}

uint8_t *memzip_replace(const uint8_t *bytes, uint64_t size, const char *record, const void *payload,
                        uint64_t payload_size, uint64_t *new_size)
{
    struct memzip_record list[64] = {0};
    struct files *f = files_new();
    struct err e = {0};
    struct zip *z = zip_open(f, files_add_mem(f, bytes, size, "template"), &e);
    uint8_t *out;

    assert_non_null(z);
    for (int i = 0; i < zip_n(z); i++) {
        const struct zip_entry *x = zip_entry(z, i);
        bool hit = str_ends(x->name, record);

        list[i] = (struct memzip_record){ x->name, hit ? payload : bytes + x->at, hit ? payload_size : x->size };
    }
    out = memzip_make(list, new_size);
    zip_close(z);
    files_free(f);
    return out;
}
