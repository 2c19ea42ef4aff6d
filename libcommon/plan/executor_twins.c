/* executor_twins.c - pair the chunks of two items that are twins (plan.h) */
#include "libcommon/plan/executor.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

void twin_chunks_init(struct twin_chunks *t)
{
    *t = (struct twin_chunks){ .lock = PTHREAD_MUTEX_INITIALIZER };
}

static void chunks_free(struct twin_chunk *c)
{
    while (c) {
        struct twin_chunk *next = c->next;

        free(c);
        c = next;
    }
}

void twin_chunks_free(struct twin_chunks *t)
{
    chunks_free(t->waiting);
    chunks_free(t->spare);
    pthread_mutex_destroy(&t->lock);
}

/*
 * Find the kept chunk of the other item at the same offset, and remove it from the list. Returns the chunk, or NULL if
 * there is none. Must be called with the lock held.
 */
static struct twin_chunk *unlink_twin_chunk(struct twin_chunks *t, const void *pair, bool second, uint64_t from)
{
    for (struct twin_chunk **at = &t->waiting, *c; (c = *at); at = &c->next)
        if (c->pair == pair && c->from == from && c->second != second) {
            *at = c->next;
            return c;
        }
    return NULL;
}

void twin_chunk_release(struct twin_chunks *t, struct twin_chunk *c)
{
    pthread_mutex_lock(&t->lock);
    c->next = t->spare;
    t->spare = c;
    pthread_mutex_unlock(&t->lock);
}

struct twin_chunk *twin_chunk_pop(struct twin_chunks *t, const void *pair, bool second, uint64_t from)
{
    struct twin_chunk *c;

    pthread_mutex_lock(&t->lock);
    c = unlink_twin_chunk(t, pair, second, from);
    pthread_mutex_unlock(&t->lock);
    return c;
}

struct twin_chunk *twin_chunk_new(struct twin_chunks *t, uint64_t room)
{
    struct twin_chunk *c;

    pthread_mutex_lock(&t->lock);
    c = t->spare;
    if (c)
        t->spare = c->next;
    pthread_mutex_unlock(&t->lock);
    if (c && c->room >= room)
        return c;
    free(c);
    c = xmalloc(sizeof *c + room);
    c->room = room;
    return c;
}

struct twin_chunk *twin_chunk_leave(struct twin_chunks *t, struct twin_chunk *c, const void *pair, bool second,
                                    uint64_t from)
{
    struct twin_chunk *other;

    c->pair = pair;
    c->second = second;
    c->from = from;
    pthread_mutex_lock(&t->lock);
    other = unlink_twin_chunk(t, pair, second, from);
    c->next = other ? t->spare : t->waiting;
    *(other ? &t->spare : &t->waiting) = c;
    pthread_mutex_unlock(&t->lock);
    return other;
}
