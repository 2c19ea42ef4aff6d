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
 *   forge set FILE PATH VALUE    replace or add a value in the tree of a .pt file, and write the file again
 *   forge unset FILE PATH        remove a value
 *   forge copy FILE FROM PATH    replace a value by the one at the path FROM
 * PATH has the keys of dicts and the indices of lists, with a slash after each but the last: "module/wte.weight". Of
 * an object or a call, "args" is the list of its arguments and "state" its state. VALUE is a whole number, nan, or else
 * a string.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"
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
        if (memcmp(b + i, "PK\1\2", 4) == 0 && get_le16(b + i + 28) == n &&
            memcmp(b + i + 46, ent->name, n) == 0 && get_le32(b + i + 16) == ent->crc)
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

/* ---- values in the tree of a .pt file ---- */

/* Split the first key off `path`. Returns the rest, or NULL if it is the last key. The caller frees *key. */
static const char *split_key(const char *path, char **key)
{
    const char *slash = strchr(path, '/');

    *key = str_fmt("%.*s", (int)(slash ? (size_t)(slash - path) : strlen(path)), path);
    return slash ? slash + 1 : NULL;
}

/* Returns true if `key`, the key of a dict, is `name` as a string or as a number. */
static bool is_key(const struct pk *key, const char *name)
{
    char number[32];
    int64_t v;

    if (pk_as_str(key))
        return strcmp(pk_as_str(key), name) == 0;
    if (!pk_as_int(key, &v))
        return false;
    snprintf(number, sizeof number, "%lld", (long long)v);
    return strcmp(number, name) == 0;
}

static struct pk *with_value(struct arena *a, struct pk *node, const char *path, struct pk *value);

/* Returns a copy of the list in which item `at` is edited, removed if the result is NULL, or added behind the last. */
static struct pk *list_with_value(struct arena *a, struct pk **item, uint32_t n, uint32_t at, const char *rest,
                                  struct pk *value)
{
    struct pk *list = pk_list(a);

    for (uint32_t i = 0; i < n || i == at; i++) {
        struct pk *v = i != at ? item[i] : rest && i < n ? with_value(a, item[i], rest, value) : value;

        if (v)
            pk_add(a, list, v);
    }
    return list;
}

/* Returns where an object or a call has its arguments or its state, or NULL if `node` or `key` is something else. */
static struct pk **member_of(struct pk *node, const char *key)
{
    if (!node || (node->type != PK_OBJ && node->type != PK_CALL))
        return NULL;
    return strcmp(key, "args") == 0 ? &node->args : strcmp(key, "state") == 0 ? &node->state : NULL;
}

/* Returns `node` with the value at `path` replaced by `value`; NULL removes it. Dicts are changed in place. */
static struct pk *with_value(struct arena *a, struct pk *node, const char *path, struct pk *value)
{
    uint32_t n = 0;
    struct pk **item = pk_items(node, &n), **pair, **member;
    char *key;
    const char *rest = split_key(path, &key);
    bool found = false;

    member = member_of(node, key);
    if (item && node->type == PK_TUPLE && value && (uint32_t)atoi(key) < n)
        member = &item[atoi(key)];
    if (member)
        *member = rest ? with_value(a, *member, rest, value) : value;
    else if (item)
        node = list_with_value(a, item, n, (uint32_t)atoi(key), rest, value);
    if (member || item) {
        free(key);
        return node;
    }
    pair = pk_pairs(node, &n);
    for (uint32_t i = 0; pair && i < n && !found; i++)
        if (is_key(pair[2 * i], key)) {
            struct pk *v = rest ? with_value(a, pair[2 * i + 1], rest, value) : value;

            found = true;
            if (v) {
                pair[2 * i + 1] = v;
            } else if (pk_as_str(pair[2 * i])) {
                pk_remove(node, key);
            } else {
                memmove(&pair[2 * i], &pair[2 * i + 2], (size_t)(n - i - 1) * 2 * sizeof *pair);
                node->n--;
            }
        }
    if (!found && value && !rest)
        pk_set_str(a, node, key, value);
    free(key);
    return node;
}

/* Returns the value at `path`, or NULL if there is none. */
static struct pk *value_at(struct pk *node, const char *path)
{
    while (node && path) {
        uint32_t n = 0;
        struct pk **item = pk_items(node, &n), **pair, **member, *next = NULL;
        char *key;

        path = split_key(path, &key);
        member = member_of(node, key);
        if (member)
            next = *member;
        else if (item)
            next = (uint32_t)atoi(key) < n ? item[atoi(key)] : NULL;
        else if ((pair = pk_pairs(node, &n)))
            for (uint32_t i = 0; i < n && !next; i++)
                next = is_key(pair[2 * i], key) ? pair[2 * i + 1] : NULL;
        free(key);
        node = next;
    }
    return node;
}

/* Set, remove or copy a value. `value` is the text of the value; NULL: it is the one at `from`, or it is removed. */
static int set_value(const char *path, const char *where, const char *value, const char *from)
{
    struct files *files = files_new();
    struct arena *a = arena_new(0);
    struct err e = {0};
    int file = files_add_path(files, path, &e), rc = -1;
    struct pt *pt = file < 0 ? NULL : pt_open(files, file, &e);
    uint8_t *bytes = NULL;
    uint64_t size;
    char *end;

    if (pt) {
        const long long number = value ? strtoll(value, &end, 10) : 0;
        struct pk *root = pk_copy(a, pt_root(pt));
        struct pk *v = from ? value_at(root, from) : !value ? NULL : *value && !*end ? pk_int(a, number)
                       : strcmp(value, "nan") == 0 ? pk_float(a, NAN) : pk_str(a, value);

        if (from && !v)
            err_data(&e, path, ERR_NO_BYTE, "has no value at %s", from);
        else
            rc = pt_build(pt_prefix(pt), with_value(a, root, where, v), pt, files, &bytes, &size, &e);
    }
    if (rc == 0)
        rc = file_replace(path, bytes, size, &e);
    if (rc < 0)
        fprintf(stderr, "forge: %s\n", e.msg);
    free(bytes);
    pt_close(pt);
    files_free(files);
    arena_free(a);
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

    if (argc == 5 && strcmp(argv[1], "set") == 0)
        return set_value(argv[2], argv[3], argv[4], NULL);
    if (argc == 5 && strcmp(argv[1], "copy") == 0)
        return set_value(argv[2], argv[4], NULL, argv[3]);
    if (argc == 4 && strcmp(argv[1], "unset") == 0)
        return set_value(argv[2], argv[3], NULL, NULL);
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
