/* tmap_permute.c - make a map of a tensor whose rows have a new order, from the extents of the old map */
#include "libcommon/plan/tmap_permute.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct extents {
    struct extent *x;
    int n, cap;
};

/* Append extent x to the list. If x continues the last extent, that extent is made longer instead. */
static void append_permuted_extent(struct extents *to, struct extent x)
{
    struct extent *last = to->n ? &to->x[to->n - 1] : NULL;

    if (last && last->record == x.record && last->at + last->len == x.at) {
        last->len += x.len;
        return;
    }
    ARRAY_ROOM(to->x, to->cap, to->n + 1);
    to->x[to->n++] = x;
}

static int on_permuted_piece(void *ctx, const struct tmap_piece *p)
{
    append_permuted_extent(ctx, p->src);
    return 0;
}

struct tmap *tmap_permute(struct arena *a, const struct tmap *m, uint64_t run, const int64_t *from)
{
    struct tmap *to = arena_alloc(a, sizeof *to);
    struct tmap_slice *s = arena_alloc(a, sizeof *s);
    struct extents all = {0};

    assert(m->op == TMAP_CONCAT && m->len % run == 0);
    for (uint64_t i = 0; i < m->len / run; i++)
        tmap_gather(m, (uint64_t)from[i] * run, run, -1, on_permuted_piece, &all);
    *s = (struct tmap_slice){ .len = m->len, .n_extents = all.n };
    s->extent = arena_alloc(a, (size_t)all.n * sizeof *s->extent + 1);
    if (all.n)
        memcpy(s->extent, all.x, (size_t)all.n * sizeof *s->extent);
    free(all.x);
    *to = (struct tmap){ .op = TMAP_CONCAT, .dtype = m->dtype, .len = m->len, .n_slices = 1, .slice = s };
    return to;
}

int64_t *tmap_permute_transposed(struct arena *a, int64_t rows, int64_t cols)
{
    int64_t *from = arena_alloc(a, (size_t)(rows * cols) * sizeof *from);

    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            from[c * rows + r] = r * cols + c;
    return from;
}
