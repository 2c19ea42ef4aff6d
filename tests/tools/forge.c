/*
 * forge.c - make hostile .pt files for the fault scripts
 *
 *   forge class FILE    a pickle that would run a command when loaded by Python
 *   forge bomb FILE     40 lists, each holding the one before twice: 2^40 leaves when walked
 *   forge deep FILE     a million nested lists
 *   forge twice FILE    two records of one name
 *   forge lie FILE      a directory that claims more bytes than the file has
 *   forge huge FILE     a string that claims 4 GB
 *   forge mend FILE     correct the CRCs of a .pt or .distcp file whose records were changed in place
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/zip.h"

static void put(struct strbuf *sb, const char *bytes, size_t n)
{
    strbuf_add(sb, bytes, n);
}

static void make_pickle(struct strbuf *sb, const char *kind)
{
    put(sb, "\x80\x02", 2);
    if (strcmp(kind, "class") == 0) {
        put(sb, "cos\nsystem\n", 11);
        put(sb, "X\x0c\0\0\0touch hacked\x85R.", 20);
    } else if (strcmp(kind, "bomb") == 0) {
        put(sb, "]q\0", 3);
        for (int i = 1; i <= 40; i++) {
            char line[] = { ']', 'q', (char)i, '(', 'h', (char)(i - 1), 'h', (char)(i - 1), 'e' };

            put(sb, line, sizeof line);
        }
        put(sb, ".", 1);
    } else if (strcmp(kind, "deep") == 0) {
        for (int i = 0; i < 1000000; i++)
            put(sb, "]", 1);
        for (int i = 1; i < 1000000; i++)
            put(sb, "a", 1);
        put(sb, ".", 1);
    } else if (strcmp(kind, "huge") == 0) {
        put(sb, "X\xff\xff\xff\xff" "abc.", 9);
    } else {
        put(sb, "}.", 2);
    }
}

/* Replace the CRC of one record in its local header, in the descriptor after its bytes, and in its central entry. */
static void mend_record(uint8_t *b, uint64_t size, const struct zip_entry *ent, uint32_t crc)
{
    const uint64_t behind = ent->at + ent->packed_size, n = strlen(ent->name);

    if (get_le32(b + ent->header_at + 14) == ent->crc)
        put_le32(b + ent->header_at + 14, crc);
    if (behind + 8 <= size && memcmp(b + behind, "PK\7\10", 4) == 0)
        put_le32(b + behind + 4, crc);
    for (uint64_t i = behind; i + 46 + n <= size; i++)
        if (memcmp(b + i, "PK\1\2", 4) == 0 && memcmp(b + i + 46, ent->name, n) == 0 &&
            get_le32(b + i + 16) == ent->crc)
            put_le32(b + i + 16, crc);
}

/* Correct the CRCs of one zip in memory. Returns -1 and prints a message if it is not a zip. */
static int mend_zip(uint8_t *b, uint64_t size, const char *path, struct err *e)
{
    struct files *files = files_new();
    struct zip *z = zip_open(files, files_add_mem(files, b, size, path), e);

    for (int i = 0; z && i < zip_n(z); i++) {
        const struct zip_entry *ent = zip_entry(z, i);
        const uint32_t crc = crc_bytes(0, b + ent->at, ent->packed_size);

        if (crc != ent->crc)
            mend_record(b, size, ent, crc);
    }
    files_free(files);
    if (!z)
        return -1;
    zip_close(z);
    return 0;
}

/* Correct the CRCs of a file. A .pt file is one zip; a .distcp file is a series of zips without gaps. Each zip
 * ends with an end record of 22 bytes. */
static int mend(const char *path)
{
    struct err e = {0};
    uint64_t size = 0, from = 0;
    uint8_t *b = (uint8_t *)file_slurp(path, 1u << 30, &size, &e);
    int rc = b ? 0 : -1;

    for (uint64_t i = 0; b && rc == 0 && i + 22 <= size; i++)
        if (memcmp(b + i, "PK\5\6", 4) == 0) {
            rc = mend_zip(b + from, i + 22 - from, path, &e);
            from = i + 22;
        }
    if (rc == 0)
        rc = file_replace(path, b, size, &e);
    if (rc < 0)
        fprintf(stderr, "forge: %s\n", e.msg);
    free(b);
    return rc < 0;
}

int main(int argc, char **argv)
{
    struct strbuf pickle = {0};
    struct zip_out rec[3] = { { .name = "x/data.pkl" },
                              { .name = "x/version", .size = 2 },
                              { .name = "x/data.pkl", .size = 2 } };
    struct zip_layout *l;
    const struct zip_run *run;
    struct err e = {0};
    uint8_t *file;
    uint64_t size;
    int n;

    if (argc != 3)
        return 2;
    if (strcmp(argv[1], "mend") == 0)
        return mend(argv[2]);
    make_pickle(&pickle, argv[1]);
    rec[0].size = pickle.len;
    rec[0].crc = crc_bytes(0, pickle.buf, pickle.len);
    rec[1].crc = crc_bytes(0, "3\n", 2);
    rec[2].crc = crc_bytes(0, "}.", 2);
    l = zip_layout_new(rec, strcmp(argv[1], "twice") == 0 ? 3 : 2);
    size = zip_layout_size(l);
    file = xcalloc(1, size);
    n = zip_layout_runs(l, &run);
    for (int i = 0; i < n; i++)
        memcpy(file + run[i].at, run[i].bytes, run[i].len);
    memcpy(file + rec[0].at, pickle.buf, pickle.len);
    memcpy(file + rec[1].at, "3\n", 2);
    if (strcmp(argv[1], "twice") == 0)
        memcpy(file + rec[2].at, "}.", 2);
    if (strcmp(argv[1], "lie") == 0)        /* the sizes of the first central entry */
        for (uint64_t i = size - 300; i + 28 < size; i++)
            if (memcmp(file + i, "PK\1\2", 4) == 0) {
                put_le32(file + i + 20, 1u << 30);
                put_le32(file + i + 24, 1u << 30);
                break;
            }
    if (file_replace(argv[2], file, size, &e) < 0) {
        fprintf(stderr, "forge: %s\n", e.msg);
        return 1;
    }
    zip_layout_free(l);
    strbuf_free(&pickle);
    free(file);
    return 0;
}
