/*
 * dcp_flat.c - join the shares of each piece; end to end, they are the elements of the piece in row-major order
 */
#include "libcommon/layout/dcp/dcp_flat.h"

#include <stdlib.h>
#include <string.h>

bool dcp_flat_fits(const struct dcp_entry *en)
{
    uint64_t piece = 1;

    if (en->n_whole < 1 || en->ndim != en->n_whole + 1)
        return false;
    for (int d = 0; d < en->n_whole; d++)
        if (en->shape[d] == 0 || en->whole[d] % en->shape[d] != 0 ||
            !mul_u64(piece, (uint64_t)(en->whole[d] / en->shape[d]), &piece))
            return false;
    for (int k = 0; k < en->n_chunks; k++)
        for (int d = 0; d < en->n_whole; d++)
            if (en->chunk[k].len[d] != 1)
                return false;
    return piece == (uint64_t)en->shape[en->n_whole];
}

static int flat_cmp(const void *a, const void *b, void *ctx)
{
    const struct tile_chunk *const *x = a, *const *y = b;
    const int *n_whole = ctx;

    for (int d = 0; d <= *n_whole; d++)
        if ((*x)->at[d] != (*y)->at[d])
            return (*x)->at[d] < (*y)->at[d] ? -1 : 1;
    return 0;
}

/* Join the n shares of one piece to a chunk of the original shape. */
static struct tile_chunk join_flat_shares(struct arena *a, const struct dcp_entry *en,
                                          const struct tile_chunk *const *share, int n)
{
    int64_t *at = arena_alloc(a, (size_t)en->n_whole * sizeof *at);
    int64_t *len = arena_alloc(a, (size_t)en->n_whole * sizeof *len);
    struct tile_chunk c = { .at = at, .len = len };
    size_t total = 0;

    for (int d = 0; d < en->n_whole; d++) {
        len[d] = en->whole[d] / en->shape[d];
        at[d] = share[0]->at[d] * len[d];
    }
    for (int i = 0; i < n; i++)
        total += (size_t)share[i]->n_extents;
    c.extent = arena_alloc(a, (total + 1) * sizeof *c.extent);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < share[i]->n_extents; k++)
            c.extent[c.n_extents++] = share[i]->extent[k];
    return c;
}

int dcp_flat_unfold(struct arena *a, const struct dcp_entry *en, const struct tile_chunk *tile, struct tile_chunk **out)
{
    const struct tile_chunk **share = xcalloc((size_t)en->n_chunks + 1, sizeof *share);
    const size_t bytes = (size_t)en->n_whole * sizeof *tile->at;
    int n = 0, n_out = 0;

    for (int i = 0; i < en->n_chunks; i++)
        if (tile[i].len[en->n_whole] > 0)
            share[n++] = &tile[i];
    qsort_r(share, (size_t)n, sizeof *share, flat_cmp, (void *)&en->n_whole);
    *out = arena_alloc(a, ((size_t)n + 1) * sizeof **out);
    for (int i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && memcmp(share[k]->at, share[i]->at, bytes) == 0; k++)
            ;
        (*out)[n_out++] = join_flat_shares(a, en, share + i, k - i);
    }
    free(share);
    return n_out;
}
