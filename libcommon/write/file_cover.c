/* file_cover.c - list the records of files by place, and cut ranges of files at their borders */
#include "libcommon/write/file_cover.h"

#include <stdlib.h>

struct covered {
    int file, record;
    uint64_t at, len;
};

struct file_cover {
    struct files *f;
    int n;
    struct covered *of;                 /* sorted by file and offset */
};

static int by_covered_place(const void *a, const void *b)
{
    const struct covered *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

struct file_cover *file_cover_new(struct files *f)
{
    struct file_cover *c = xcalloc(1, sizeof *c);
    const int n = files_n_records(f);

    c->f = f;
    c->of = xcalloc((size_t)n + 1, sizeof *c->of);
    for (int i = 0; i < n; i++) {
        const struct record *rec = files_record(f, i);
        struct covered *to = &c->of[c->n];

        if (!rec->has_crc || rec->len == 0)
            continue;
        *to = (struct covered){ .record = i, .at = rec->at, .len = rec->len };
        to->file = files_home(f, rec->file, &to->at);
        c->n++;
    }
    qsort(c->of, (size_t)c->n, sizeof *c->of, by_covered_place);
    return c;
}

void file_cover_free(struct file_cover *c)
{
    if (!c)
        return;
    free(c->of);
    free(c);
}

/* Returns the index of the first record of `file` that begins at or after `at`. */
static int find_covered(const struct file_cover *c, int file, uint64_t at)
{
    const struct covered key = { .file = file, .at = at };
    int lo = 0, hi = c->n;

    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;

        if (by_covered_place(&c->of[mid], &key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void append_cover_extent(struct tmap_slice *s, int *cap, int record, uint64_t at, uint64_t len)
{
    if (len == 0)
        return;
    ARRAY_ROOM(s->extent, *cap, s->n_extents + 1);
    s->extent[s->n_extents++] = (struct extent){ record, at, len };
    s->len += len;
}

void file_cover_add(const struct file_cover *c, int bare, uint64_t from, uint64_t end, struct tmap_slice *s, int *cap)
{
    const struct record *whole = files_record(c->f, bare);
    uint64_t at = from;
    int i = find_covered(c, whole->file, from);

    if (i > 0 && c->of[i - 1].file == whole->file && c->of[i - 1].at + c->of[i - 1].len > from)
        i--;
    for (; i < c->n && c->of[i].file == whole->file && c->of[i].at < end; i++) {
        const struct covered *x = &c->of[i];
        const uint64_t first = max_u64(x->at, from), stop = min_u64(x->at + x->len, end);

        if (first < at)                 /* shares bytes with the record before it */
            continue;
        append_cover_extent(s, cap, bare, at - whole->at, first - at);
        append_cover_extent(s, cap, x->record, first - x->at, stop - first);
        at = stop;
    }
    append_cover_extent(s, cap, bare, at - whole->at, end - at);
}
