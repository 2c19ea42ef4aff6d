/*
 * tile_join.c - sort the parts of a tensor, count the copies of each, and make one map of all
 */
#include "libcommon/layout/engine/tile_join.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/plan/tmap_slice.h"

static int by_part_place(const void *a, const void *b)
{
    const struct tile_part *x = a, *y = b;

    for (int d = 0; d < x->ndim; d++) {
        if (x->at[d] != y->at[d])
            return x->at[d] < y->at[d] ? -1 : 1;
        if (x->len[d] != y->len[d])
            return x->len[d] < y->len[d] ? -1 : 1;
    }
    return x->rank - y->rank;
}

static bool is_same_part(const struct tile_part *x, const struct tile_part *y)
{
    for (int d = 0; d < x->ndim; d++)
        if (x->at[d] != y->at[d] || x->len[d] != y->len[d])
            return false;
    return true;
}

/* The n sorted parts of a tensor. There are `copies` copies of each part. */
struct sorted_parts {
    const struct tile_part *part;
    int n, copies;
};

/*
 * Returns the number of copies of each part, or -1 if the parts have different numbers of copies. The parts must be
 * sorted.
 */
static int count_copies(const struct tile_part *p, int n)
{
    int copies = 0;

    for (int i = 0, k; i < n; i = k) {
        for (k = i; k < n && is_same_part(&p[i], &p[k]);)
            k++;
        if (copies && k - i != copies)
            return -1;
        copies = k - i;
    }
    return copies;
}

/*
 * Returns the map of copy number `which` of the tensor. Returns NULL and sets *why to the reason if the parts do not
 * form the tensor.
 */
static struct tmap *join_copy(struct arena *a, const struct tile_tensor *t, const struct sorted_parts *of, int which,
                              const char **why)
{
    const struct tile_part *p = of->part;
    const int n = of->n, copies = of->copies;
    struct tile_chunk *chunk = xcalloc((size_t)n / (size_t)copies + 1, sizeof *chunk);
    struct tile_flaw flaw;
    struct tmap *m;

    for (int i = which; i < n; i += copies)
        chunk[i / copies] = (struct tile_chunk){ p[i].at, p[i].len, p[i].n_extents, p[i].extent };
    m = tile_map(a, t, chunk, n / copies, &flaw);
    free(chunk);
    if (!m)
        *why = flaw.what == TILE_GAP ? arena_fmt(a, "%" PRIu64 " of its elements are on no rank", flaw.n_missing)
                                     : arena_fmt(a, "parts of ranks %d and %d share elements",
                                                 p[flaw.chunk * copies].rank, p[flaw.other * copies].rank);
    return m;
}

struct tmap *tile_join(struct arena *a, const struct tile_tensor *t, struct tile_part *part, int n, const char **why)
{
    struct sorted_parts of = { part, n, 1 };
    struct tmap *all;
    int copies;

    if (n) {
        qsort(part, (size_t)n, sizeof *part, by_part_place);
        of.copies = count_copies(part, n);
    }
    copies = of.copies;
    if (copies < 1) {
        *why = "some of its parts are on more ranks than others";
        return NULL;
    }
    if (copies == 1)
        return join_copy(a, t, &of, 0, why);
    all = arena_alloc(a, sizeof *all);
    *all = (struct tmap){ .op = TMAP_REPLICAS, .dtype = t->dtype, .n_slices = copies,
                          .slice = arena_alloc(a, (size_t)copies * sizeof *all->slice) };
    for (int i = 0; i < copies; i++) {
        const struct tmap *m = join_copy(a, t, &of, i, why);

        if (!m)
            return NULL;
        /* two parts, so that the result is one slice of extents in row-major order */
        m = tmap_parts(a, (const struct tmap_part[]){ { m, 0, m->len }, { m, m->len, 0 } }, 2);
        all->len = m->len;
        all->slice[i] = m->slice[0];
    }
    return all;
}
