/* tiles.c - collect chunks of transposed matrices in a few large tiles */
#include "libcommon/plan/tiles.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/elements.h"

enum { N_TILES = 3, TILE_BYTES = 32 << 20, SLACK = 4096 };

/* A tile in which some, but not all, chunks have been stored. */
struct open_tile {
    int item;
    uint64_t number;            /* index of the tile among the tiles of the item */
    /* index of the tile's memory; -1: it has none, and its chunks are written individually */
    int slot;
    uint64_t left;              /* number of map bytes that have not been processed yet */
    struct open_tile *next;
};

struct tiles {
    uint64_t chunk;
    pthread_mutex_t lock;
    uint8_t *memory[N_TILES];   /* NULL: not allocated yet */
    bool taken[N_TILES];
    struct open_tile *open;     /* there are never more of them than chunks in progress */
};

struct tiles *tiles_new(uint64_t chunk_bytes)
{
    struct tiles *t = xcalloc(1, sizeof *t);

    t->chunk = chunk_bytes;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void tiles_free(struct tiles *t)
{
    while (t->open) {
        struct open_tile *o = t->open;

        t->open = o->next;
        free(o);
    }
    for (int i = 0; i < N_TILES; i++)
        if (t->memory[i])
            munmap(t->memory[i], TILE_BYTES + SLACK);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/*
 * Reserve a free slot. If the slot has no memory yet, allocates it. Returns -1 if no slot is free or memory is
 * exhausted.
 */
static int acquire_tile_slot(struct tiles *t)
{
    for (int i = 0; i < N_TILES; i++) {
        if (t->taken[i])
            continue;
        if (!t->memory[i]) {
            void *p = mmap(NULL, TILE_BYTES + SLACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

            if (p == MAP_FAILED)
                return -1;
            madvise(p, TILE_BYTES + SLACK, MADV_HUGEPAGE);
            t->memory[i] = p;
        }
        t->taken[i] = true;
        return i;
    }
    return -1;
}

/*
 * Returns the number of matrix rows in a tile. A chunk consists of whole rows (executor_cut.c, cut_chunk()), and a tile
 * consists of whole chunks.
 */
static uint64_t rows_of_tile(const struct tiles *t, const struct plan_item *it)
{
    uint64_t row = it->transpose_row, out = plan_out_bytes(it, row);
    uint64_t chunk_rows = t->chunk / (out > row ? 2 : 1) / row, n_chunks = TILE_BYTES / (chunk_rows * out);

    assert(n_chunks > 0);
    return chunk_rows * n_chunks;
}

static struct open_tile *find_or_open_tile(struct tiles *t, int item, uint64_t number, uint64_t bytes)
{
    struct open_tile *o = t->open;

    while (o && (o->item != item || o->number != number))
        o = o->next;
    if (o)
        return o;
    o = xcalloc(1, sizeof *o);
    *o = (struct open_tile){
        .item = item, .number = number, .slot = acquire_tile_slot(t), .left = bytes, .next = t->open
    };
    t->open = o;
    return o;
}

/*
 * Record that `bytes` bytes of the tile were processed. Returns true if these were the last bytes; `o` has then been
 * freed.
 */
static bool subtract(struct tiles *t, struct open_tile *o, uint64_t bytes)
{
    struct open_tile **p = &t->open;

    o->left -= bytes;
    if (o->left)
        return false;
    while (*p != o)
        p = &(*p)->next;
    *p = o->next;
    free(o);
    return true;
}

static void add_crc(struct plan_item *it, const struct tile *x)
{
    uint64_t end = x->at + (x->n - 1) * x->stride + x->run;
    uint32_t sum = 0, by_stride = crc_factor(x->stride);

    /* This is Horner's rule: the sum is shifted by one stride, then the CRC of the next run is added. */
    for (uint64_t i = 0; i < x->n; i++)
        sum = crc_times(sum, by_stride) ^ crc_bytes(0, x->bytes + i * x->run, x->run);
    crc_sum_merge(&it->crc, x->n * x->run, crc_shift(sum, plan_out_bytes(it, it->len) - end));
}

enum tiles_answer tiles_put(struct tiles *t, const struct gather *g, unsigned skew, struct tile *tile)
{
    struct plan_item *it = g->item;
    struct gather_matrix m = gather_matrix(g);
    uint64_t row = it->transpose_row, size = m.run / (g->len / row), first = m.at / size;
    uint64_t rows = it->len / row, per_tile = rows_of_tile(t, it), number = first / per_tile;
    uint64_t tile_rows = min_u64(per_tile, rows - number * per_tile);
    struct open_tile *o;
    bool last;
    int slot;

    pthread_mutex_lock(&t->lock);
    o = find_or_open_tile(t, g->item_no, number, tile_rows * row);
    slot = o->slot;
    if (slot < 0)
        subtract(t, o, g->len);
    pthread_mutex_unlock(&t->lock);
    if (slot < 0)
        return TILES_NONE;
    *tile = (struct tile){ .bytes = t->memory[slot] + skew, .n = m.n, .run = tile_rows * size, .stride = m.stride,
                           .at = number * per_tile * size };
    elements_transpose(tile->bytes + (first - number * per_tile) * size, tile->run, g->out, g->len / row, m.n,
                       (int)size);
    pthread_mutex_lock(&t->lock);
    last = subtract(t, o, g->len);
    pthread_mutex_unlock(&t->lock);
    if (!last)
        return TILES_KEPT;
    add_crc(it, tile);
    return TILES_COMPLETE;
}

void tiles_done(struct tiles *t, const struct tile *tile)
{
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < N_TILES; i++)
        if (t->memory[i] && tile->bytes >= t->memory[i] && tile->bytes < t->memory[i] + SLACK)
            t->taken[i] = false;
    pthread_mutex_unlock(&t->lock);
}
