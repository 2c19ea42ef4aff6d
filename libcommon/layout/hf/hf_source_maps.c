/*
 * hf_source_maps.c - tensors of the folder as maps, and their bytes beside each other
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/hf/hf_source_impl.h"

struct tmap *hf_map_of(struct source *s, enum dtype dtype, struct extent x)
{
    struct tmap *m = arena_alloc(s->arena, sizeof *m);
    struct tmap_slice *slice = arena_alloc(s->arena, sizeof *slice);

    *slice = (struct tmap_slice){ .len = x.len, .n_extents = 1, .extent = arena_alloc(s->arena, sizeof x) };
    slice->extent[0] = x;
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = x.len, .n_slices = 1, .slice = slice };
    return m;
}

struct tmap *hf_repeat_last(struct source *s, const struct hf_stored *t, int64_t rows)
{
    uint64_t row = t->x.len / (uint64_t)t->shape[0];
    int n = (int)(rows - t->shape[0]) + 1;
    struct tmap *m = hf_map_of(s, t->dtype, t->x);

    m->slice->extent = arena_alloc(s->arena, (size_t)n * sizeof *m->slice->extent);
    m->slice->extent[0] = t->x;
    for (int i = 1; i < n; i++)
        m->slice->extent[i] = (struct extent){ t->x.record, t->x.at + t->x.len - row, row };
    m->slice->n_extents = n;
    m->slice->len = m->len = t->x.len + row * (uint64_t)(n - 1);
    return m;
}

int hf_same_bytes(struct source *s, const struct extent *x, const struct extent *y, struct err *e)
{
    enum { CHUNK = 1 << 20 };
    char *a, *b;
    int same = x->len == y->len;

    if (!same)
        return 0;
    a = xmalloc(CHUNK);
    b = xmalloc(CHUNK);
    for (uint64_t at = 0; at < x->len && same == 1; at += CHUNK) {
        uint64_t n = min_u64(CHUNK, x->len - at);
        struct extent xa = { x->record, x->at + at, n }, ya = { y->record, y->at + at, n };

        if (files_read_extent(s->files, &xa, a, e) < 0 || files_read_extent(s->files, &ya, b, e) < 0)
            same = -1;
        else
            same = memcmp(a, b, n) == 0;
    }
    free(a);
    free(b);
    return same;
}
