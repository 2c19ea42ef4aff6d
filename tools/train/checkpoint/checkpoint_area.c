/*
 * checkpoint_area.c - the layout of a rank's state in the staging area
 */
#include "tools/train/checkpoint/checkpoint_impl.h"

enum { PAGE = 4096 };

static uint64_t element_bytes(enum dtype weights) { return (uint64_t)dtype_size(weights) + 3 * sizeof(float); }

struct checkpoint_area checkpoint_area_of(const struct stage *s, enum dtype weights, uint64_t memory_bytes)
{
    struct checkpoint_area a = { .bytes = (uint64_t)s->shard_n * element_bytes(weights) };

    a.window = a.room = align_up(max_u64(a.bytes, 1), PAGE);
    if (memory_bytes && memory_bytes < a.room) {
        a.window = max_u64(memory_bytes / 2 / PAGE, 1) * PAGE;
        a.room = 2 * a.window;
    }
    return a;
}

uint64_t checkpoint_area_at(const struct stage *s, enum dtype weights, enum state st, int64_t shard_at)
{
    uint64_t at = 0;
    int i = s->n_buckets - 1;

    for (; shard_at < s->bucket[i].shard_at; i--)
        at += (uint64_t)(s->bucket[i].n / s->topo.dp) * element_bytes(weights);
    for (int before = 0; before < (int)st; before++)
        at += (uint64_t)(s->bucket[i].n / s->topo.dp) * (uint64_t)checkpoint_state_bytes((enum state)before, weights);
    return at + (uint64_t)(shard_at - s->bucket[i].shard_at) * (uint64_t)checkpoint_state_bytes(st, weights);
}
