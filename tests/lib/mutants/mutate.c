#include "tests/lib/mutants/mutate_impl.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"

const char *mutate_name(enum mutate_kind k)
{
    static const char *const names[MUTATE_KINDS] = { "flip", "cut", "lose", "rank", "save", "directory", "record",
                                                     "pickle", "values", "json", "name", "type",
                                                     "payload", "empty" };

    return names[k];
}

/* ---- sets ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mutate_file *)a)->name, ((const struct mutate_file *)b)->name);
}

static void load(struct mutate_set *s, const char *dir, const char *below)
{
    DIR *d = opendir(dir);
    struct dirent *ent;

    assert(d);
    while ((ent = readdir(d))) {
        struct mutate_file *f = &s->file[s->n];
        char *path = path_join(dir, ent->d_name), *name = str_fmt("%s%s", below, ent->d_name);
        struct err e = {0};

        if (ent->d_type == DT_DIR && ent->d_name[0] != '.') {
            char *deeper = str_fmt("%s/", name);

            load(s, path, deeper);
            free(deeper);
        } else if (ent->d_type != DT_DIR) {
            assert(s->n < MUTATE_FILES);
            *f = (struct mutate_file){ .name = xstrdup(name) };
            f->bytes = (uint8_t *)file_slurp(path, 1 << 28, &f->size, &e);
            assert(f->bytes);
            s->n++;
        }
        free(path);
        free(name);
    }
    closedir(d);
}

void mutate_load(struct mutate_set *s, const char *dir)
{
    s->n = 0;
    load(s, dir, "");
    qsort(s->file, (size_t)s->n, sizeof *s->file, by_name);
}

void mutate_free(struct mutate_set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->file[i].name);
        free(s->file[i].bytes);
    }
    s->n = 0;
}

uint64_t mutate_pick(struct mutation *m, uint64_t n)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return n ? (m->rng >> 11) % n : 0;
}

void mutate_own(struct mutate_file *f, uint64_t size)
{
    uint8_t *copy = xcalloc(1, size + 1);

    memcpy(copy, f->bytes, f->size < size ? f->size : size);
    f->bytes = copy;
    f->size = size;
    f->changed = true;
}

struct mutate_file *mutate_any_file(struct mutation *m)
{
    struct mutate_file *f;

    do
        f = &m->s->file[mutate_pick(m, (uint64_t)m->s->n)];
    while (f->gone);
    return f;
}

/* ---- zips ---- */

static bool has_sig(const struct mutate_file *f, uint64_t at, const char *sig)
{
    return at + 46 <= f->size && memcmp(f->bytes + at, sig, 4) == 0;
}

/* List the entries of the zip that begins at `base` and whose directory ends at `end`. */
static int zip_entries(const struct mutate_file *f, uint64_t base, uint64_t end, struct mutate_entry *e, int max)
{
    uint64_t at = base + get_le32(f->bytes + end + 16);
    int n = 0;

    for (; n < max && has_sig(f, at, "PK\1\2"); n++) {
        uint16_t len = (uint16_t)(f->bytes[at + 28] | f->bytes[at + 29] << 8);
        uint16_t extra = (uint16_t)(f->bytes[at + 30] | f->bytes[at + 31] << 8);
        struct mutate_entry *x = &e[n];

        *x = (struct mutate_entry){ .cd = at, .header = base + get_le32(f->bytes + at + 42),
                             .size = get_le32(f->bytes + at + 24) };
        memcpy(x->name, f->bytes + at + 46, len < sizeof x->name ? len : sizeof x->name - 1);
        if (!has_sig(f, x->header, "PK\3\4"))
            return 0;
        x->at = x->header + 30u + (uint64_t)(f->bytes[x->header + 26] | f->bytes[x->header + 27] << 8) +
                (uint64_t)(f->bytes[x->header + 28] | f->bytes[x->header + 29] << 8);
        if (x->at + x->size > f->size)
            return 0;
        at += 46u + len + extra;
    }
    return n;
}

bool mutate_holds_items(const struct mutate_file *f) { return str_ends(f->name, ".distcp"); }

int mutate_entries(const struct mutate_file *f, struct mutate_entry *e, int max)
{
    uint64_t at = f->size < 22 ? 0 : f->size - 22, base = 0;
    int n = 0;

    if (mutate_holds_items(f)) {
        for (uint64_t i = 0; i + 22 <= f->size && n < max; i++)
            if (memcmp(f->bytes + i, "PK\5\6", 4) == 0) {
                n += zip_entries(f, base, i, e + n, max - n);
                base = i + 22;
            }
        return n;
    }
    while (at && memcmp(f->bytes + at, "PK\5\6", 4) != 0)
        at--;
    return at ? zip_entries(f, 0, at, e, max) : 0;
}

void mutate_put_crc(struct mutate_file *f, const struct mutate_entry *x)
{
    uint32_t crc = crc_bytes(0, f->bytes + x->at, x->size);

    put_le32(f->bytes + x->cd + 16, crc);
    if (get_le32(f->bytes + x->header + 14))
        put_le32(f->bytes + x->header + 14, crc);
    if (has_sig(f, x->at + x->size, "PK\7\10"))
        put_le32(f->bytes + x->at + x->size + 4, crc);
}

bool mutate_is_storage(const struct mutate_entry *x)
{
    return strstr(x->name, "/data/") != NULL && x->size > 0;
}

void mutate_put(const char *dir, const struct mutate_file *f)
{
    char *path = path_join(dir, f->name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    assert(fd >= 0 && write_all(fd, f->bytes, f->size) == 0);
    close(fd);
    free(path);
}

void mutate_each_element(struct mutate_file *f, void (*fn)(const struct mutate_file *f, void *ctx), void *ctx)
{
    struct mutate_entry e[MUTATE_ENTRIES];

    for (int i = 0, n = mutate_entries(f, e, MUTATE_ENTRIES); i < n; i++)
        for (uint64_t at = 0; mutate_is_storage(&e[i]) && e[i].size > 4 && at + 4 <= e[i].size; at += 4) {
            const uint32_t was = get_le32(f->bytes + e[i].at + at);

            put_le32(f->bytes + e[i].at + at, was ^ 0x00ffffff);
            mutate_put_crc(f, &e[i]);
            fn(f, ctx);
            put_le32(f->bytes + e[i].at + at, was);
            mutate_put_crc(f, &e[i]);
        }
}

/* ---- kinds ---- */

static void flip(struct mutation *m)
{
    struct mutate_file *f = mutate_any_file(m);
    int n = 1 + (int)mutate_pick(m, 4);

    mutate_own(f, f->size);
    for (int i = 0; i < n && f->size; i++) {
        uint64_t at = mutate_pick(m, f->size);

        f->bytes[at] ^= (uint8_t)(1 << mutate_pick(m, 8));
        strbuf_addf(m->what, "%s byte %llu, ", f->name, (unsigned long long)at);
    }
}

static void cut(struct mutation *m)
{
    struct mutate_file *f = mutate_any_file(m);
    uint64_t at = mutate_pick(m, f->size + 1), how = mutate_pick(m, 3), was = f->size;

    if (how == 2) {
        mutate_own(f, f->size + 1 + mutate_pick(m, 300));
    } else {
        mutate_own(f, at);
        if (how == 1)
            mutate_own(f, was);
    }
    strbuf_addf(m->what, "%s from %llu on: %s", f->name, (unsigned long long)at,
                how == 0 ? "cut" : how == 1 ? "zeroed" : "zeros behind its end");
}

static void lose(struct mutation *m)
{
    struct mutate_file *f = mutate_any_file(m), *copy = &m->s->file[m->s->n];

    strbuf_addf(m->what, "%s", f->name);
    if (mutate_pick(m, 2)) {
        f->gone = true;
        return;
    }
    assert(m->s->n < MUTATE_FILES);
    *copy = *f;
    copy->changed = true;
    copy->name = xstrdup(f->name);
    for (char *c = copy->name; *c && !strchr(f->name, '/'); c++)         /* another rank or layer, which exists or
                                                                          * not */
        if (*c >= '0' && *c <= '9' && mutate_pick(m, 3) == 0)
            *c = (char)('0' + mutate_pick(m, 10));
    for (int i = 0; i < m->s->n; i++)
        if (strcmp(m->s->file[i].name, copy->name) == 0)
            m->s->file[i].gone = true;
    strbuf_addf(m->what, " as %s, too", copy->name);
    m->s->n++;
}

static void take(struct mutate_file *to, const struct mutate_file *from)
{
    to->bytes = from->bytes;
    to->size = from->size;
    to->changed = true;
}

bool mutate_are_alike(const char *a, const char *b)
{
    const char *x = strrchr(a, '/'), *y = strrchr(b, '/');

    return x && y ? strcmp(x, y) == 0 : !x && !y && strncmp(a, b, 6) == 0;
}

static void rank(struct mutation *m)
{
    struct mutate_file *a = mutate_any_file(m), *b = mutate_any_file(m), was = *a;

    for (int i = 0; i < 64 && (a == b || !mutate_are_alike(a->name, b->name)); i++)
        b = mutate_any_file(m);
    take(a, b);
    if (mutate_pick(m, 2))
        take(b, &was);
    strbuf_addf(m->what, "%s over %s%s", b->name, a->name, b->changed ? ", and back" : "");
}

static void save(struct mutation *m)
{
    const char *like = mutate_any_file(m)->name;
    uint64_t how = mutate_pick(m, 3);          /* one file, some of all kinds, or all files of a kind */

    for (int i = 0; i < m->s->n; i++) {
        struct mutate_file *f = &m->s->file[i];

        if (how == 0 ? f->name != like : how == 1 ? mutate_pick(m, 2) : !mutate_are_alike(f->name, like))
            continue;
        for (int k = 0; k < m->other->n; k++)
            if (strcmp(m->other->file[k].name, f->name) == 0) {
                take(f, &m->other->file[k]);
                strbuf_addf(m->what, "%s, ", f->name);
            }
    }
}

static void swap_bytes(uint8_t *a, uint8_t *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint8_t x = a[i];

        a[i] = b[i];
        b[i] = x;
    }
}

static void directory(struct mutation *m)
{
    struct mutate_file *f = mutate_any_file(m);
    struct mutate_entry e[MUTATE_ENTRIES];
    int n = mutate_entries(f, e, MUTATE_ENTRIES);
    uint64_t how = mutate_pick(m, 4), at;

    if (n < 2)
        return;
    mutate_own(f, f->size);
    at = e[0].cd + mutate_pick(m, f->size - e[0].cd);
    if (how == 0) {
        f->bytes[at] = (uint8_t)mutate_pick(m, 256);
        strbuf_addf(m->what, "%s byte %llu", f->name, (unsigned long long)at);
    } else if (how == 1) {              /* exchange the places of two entries, with or without checksum and size */
        const struct mutate_entry *x = &e[mutate_pick(m, (uint64_t)n)], *y = &e[mutate_pick(m, (uint64_t)n)];

        swap_bytes(f->bytes + x->cd + 42, f->bytes + y->cd + 42, 4);
        if (mutate_pick(m, 2))
            swap_bytes(f->bytes + x->cd + 16, f->bytes + y->cd + 16, 12);
        strbuf_addf(m->what, "%s: places of %s and %s", f->name, x->name, y->name);
    } else {                            /* change a name, in the directory and perhaps in the local header */
        const struct mutate_entry *x = &e[mutate_pick(m, (uint64_t)n)];
        uint64_t i = mutate_pick(m, strlen(x->name));

        f->bytes[x->cd + 46 + i] = (uint8_t)('0' + mutate_pick(m, 10));
        if (how == 3)
            f->bytes[x->header + 30 + i] = f->bytes[x->cd + 46 + i];
        strbuf_addf(m->what, "%s: name of %s at %llu", f->name, x->name, (unsigned long long)i);
    }
}

static void record(struct mutation *m)
{
    for (int tries = 0; tries < 100; tries++) {
        struct mutate_file *f = mutate_any_file(m);
        struct mutate_entry e[MUTATE_ENTRIES], *a, *b;
        int n = mutate_entries(f, e, MUTATE_ENTRIES);

        if (n < 2)
            continue;
        a = &e[mutate_pick(m, (uint64_t)n)];
        b = &e[mutate_pick(m, (uint64_t)n)];
        if (a == b || a->size != b->size || !mutate_is_storage(a) || !mutate_is_storage(b))
            continue;
        mutate_own(f, f->size);
        swap_bytes(f->bytes + a->at, f->bytes + b->at, a->size);
        mutate_put_crc(f, a);
        mutate_put_crc(f, b);
        strbuf_addf(m->what, "%s: %s and %s", f->name, a->name, b->name);
        return;
    }
}

/* Return a random position in the pickle where this opcode could be, or len if there is none. */
static uint64_t find_op(struct mutation *m, const uint8_t *p, uint64_t len, uint8_t op)
{
    uint64_t from = mutate_pick(m, len);

    for (uint64_t i = 0; i + 8 < len; i++)
        if (p[(from + i) % len] == op && (from + i) % len + 8 < len)
            return (from + i) % len;
    return len;
}

/* Exchange two one-digit storage keys, or replace one by the other, so that tensors refer to other storages. */
static void keys(struct mutation *m, uint8_t *p, uint64_t len)
{
    static const uint8_t key[] = { 'X', 1, 0, 0, 0 };
    uint64_t at[2] = {0};
    int n = 0;

    for (int tries = 0; tries < 400 && n < 2; tries++) {
        uint64_t i = find_op(m, p, len, 'X');

        if (i < len && memcmp(p + i, key, sizeof key) == 0 && p[i + 5] >= '0' && p[i + 5] <= '9')
            at[n++] = i + 5;
    }
    if (n < 2)
        return;
    strbuf_addf(m->what, "keys at %llu and %llu", (unsigned long long)at[0], (unsigned long long)at[1]);
    if (mutate_pick(m, 2))
        swap_bytes(p + at[0], p + at[1], 1);
    else
        p[at[0]] = p[at[1]];
}

/* Returns true for files that no checksum covers: pickles outside a zip, JSON, and safetensors files, whose headers
 * have none. */
bool mutate_is_bare(const char *name)
{
    return strcmp(name, ".metadata") == 0 || strcmp(name, "metadata.json") == 0 || str_ends(name, ".index.json") ||
           str_ends(name, ".safetensors");
}

static void bare(struct mutation *m, struct mutate_file *f)
{
    const uint64_t header = str_ends(f->name, ".safetensors") && f->size > 8 ? 8 + get_le32(f->bytes) : f->size;
    const uint64_t n = header < f->size ? header : f->size, how = mutate_pick(m, 4);
    uint64_t at = mutate_pick(m, n), from, len;

    if (n < 16)
        return;
    mutate_own(f, f->size);
    if (how == 0) {
        f->bytes[at] = (uint8_t)mutate_pick(m, 256);
    } else if (how == 1) {              /* a digit */
        for (uint64_t i = 0; i < n && (f->bytes[at] < '0' || f->bytes[at] > '9'); i++)
            at = (at + 1) % n;
        f->bytes[at] = (uint8_t)('0' + mutate_pick(m, 10));
    } else if (how == 2) {              /* a small number of a pickle */
        from = find_op(m, f->bytes, n, mutate_pick(m, 2) ? 'K' : 'M');
        at = from < n ? from + 1 : at;
        f->bytes[at] = (uint8_t)(mutate_pick(m, 2) ? mutate_pick(m, 4) : mutate_pick(m, 256));
    } else {                            /* some bytes from another place of the file */
        len = 1 + mutate_pick(m, 12);
        from = mutate_pick(m, n - len);
        at = mutate_pick(m, n - len);
        memmove(f->bytes + at, f->bytes + from, len);
    }
    strbuf_addf(m->what, "%s byte %llu (%llu)", f->name, (unsigned long long)at, (unsigned long long)how);
}

static void pickle(struct mutation *m)
{
    struct mutate_file *f = mutate_any_file(m);
    struct mutate_entry e[MUTATE_ENTRIES];
    int n = mutate_entries(f, e, MUTATE_ENTRIES), i = 0;
    uint64_t how = mutate_pick(m, 4), at;
    uint8_t *p;

    if (mutate_is_bare(f->name)) {
        bare(m, f);
        return;
    }
    if (mutate_holds_items(f))
        i = (int)mutate_pick(m, (uint64_t)n);
    while (i < n && !str_ends(e[i].name, "/data.pkl"))
        i++;
    if (i >= n)
        return;
    mutate_own(f, f->size);
    p = f->bytes + e[i].at;
    strbuf_addf(m->what, "%s: ", f->name);
    if (how == 0) {
        at = mutate_pick(m, e[i].size);
        p[at] = (uint8_t)mutate_pick(m, 256);
        strbuf_addf(m->what, "byte %llu of data.pkl", (unsigned long long)at);
    } else if (how == 1) {
        keys(m, p, e[i].size);
    } else {                            /* a small number */
        at = find_op(m, p, e[i].size, how == 2 ? 'K' : 'M');
        if (at < e[i].size)
            p[at + 1] = (uint8_t)(mutate_pick(m, 2) ? mutate_pick(m, 4) : mutate_pick(m, 256));
        strbuf_addf(m->what, "number at %llu of data.pkl", (unsigned long long)at);
    }
    mutate_put_crc(f, &e[i]);
}

static void values(struct mutation *m)
{
    for (int tries = 0; tries < 100; tries++) {
        struct mutate_file *f = mutate_any_file(m);
        struct mutate_entry e[MUTATE_ENTRIES], *x;
        int n = mutate_entries(f, e, MUTATE_ENTRIES);
        uint64_t at, len;

        if (n == 0 || !mutate_is_storage(x = &e[mutate_pick(m, (uint64_t)n)]))
            continue;
        mutate_own(f, f->size);
        at = mutate_pick(m, x->size);
        len = 1 + mutate_pick(m, mutate_pick(m, 2) ? 8 : x->size - at);
        for (uint64_t i = at; i < at + len && i < x->size; i++)
            f->bytes[x->at + i] = (uint8_t)mutate_pick(m, 256);
        mutate_put_crc(f, x);
        strbuf_addf(m->what, "%s: %llu bytes of %s at %llu", f->name, (unsigned long long)len, x->name,
                    (unsigned long long)at);
        return;
    }
}

enum mutate_kind mutate(struct mutate_set *s, const struct mutate_set *other, uint64_t seed, int kinds,
                        struct strbuf *what)
{
    static void (*const fn[MUTATE_KINDS])(struct mutation *m) = { flip, cut, lose, rank, save, directory, record,
                                                                  pickle, values, mutate_json, mutate_name_of,
                                                                  mutate_type, mutate_payload, mutate_empty };
    struct mutation m = { s, other, seed * 0x9e3779b97f4a7c15ull ^ 0x2545f4914f6cdd1dull, what };
    enum mutate_kind k;

    for (int i = 0; i < 8; i++)
        mutate_pick(&m, 0);
    k = (enum mutate_kind)mutate_pick(&m, (uint64_t)kinds);
    fn[k](&m);
    return k;
}
