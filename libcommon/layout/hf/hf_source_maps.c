/*
 * hf_source_maps.c - make maps of a folder's tensors, and compare tensors
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/plan/tmap_slice.h"

struct tmap *hf_map_of(struct source *s, enum dtype dtype, struct extent x)
{
    struct tmap *m = arena_alloc(s->arena, sizeof *m);
    struct tmap_slice *slice = arena_alloc(s->arena, sizeof *slice);

    *slice = (struct tmap_slice){ .len = x.len, .n_extents = 1, .extent = arena_alloc(s->arena, sizeof x) };
    slice->extent[0] = x;
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = x.len, .n_slices = 1, .slice = slice };
    return m;
}

struct tmap *hf_stored_map(struct source *s, const struct hf_stored *t)
{
    return t->map ? t->map : hf_map_of(s, t->dtype, t->x);
}

struct tmap *hf_repeat_last(struct source *s, const struct hf_stored *t, int64_t rows)
{
    const struct tmap *m = hf_stored_map(s, t);
    const uint64_t row = m->len / (uint64_t)t->shape[0];
    const int n = (int)(rows - t->shape[0]) + 1;
    struct tmap_part *part = xcalloc((size_t)n, sizeof *part);
    struct tmap *to;

    part[0] = (struct tmap_part){ m, 0, m->len };
    for (int i = 1; i < n; i++)
        part[i] = (struct tmap_part){ m, m->len - row, row };
    to = tmap_parts(s->arena, part, n);
    free(part);
    return to;
}

int hf_same_values(const struct source *s, const struct tmap *a, const struct tmap *b, struct err *e)
{
    enum { CHUNK = 1 << 20 };
    char *x, *y;
    int same = a->len == b->len && a->dtype == b->dtype;

    if (!same)
        return 0;
    x = xmalloc(CHUNK);
    y = xmalloc(CHUNK);
    for (uint64_t at = 0; at < a->len && same == 1; at += CHUNK) {
        const struct tmap_range r = { 0, at, min_u64(CHUNK, a->len - at) };

        if (tmap_read(a, s->files, r, x, e) < 0 || tmap_read(b, s->files, r, y, e) < 0)
            same = -1;
        else
            same = memcmp(x, y, r.len) == 0;
    }
    free(x);
    free(y);
    return same;
}
