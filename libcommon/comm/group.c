/*
 * group.c - common parts of all calls of a group: start and end, messages, and waiting for them
 */
#include "libcommon/comm/comm_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- start and end of a call ---- */

void group_call_begin(struct comm *c, const char *name, uint64_t number)
{
    watch_enter(c->w->watch, name, c->name, number);
}

int group_call_end(struct comm *c, const char *name, uint64_t number, int rc, const struct err *inside, struct err *e)
{
    char place[160];

    watch_leave(c->w->watch);
    if (rc == 0)
        return 0;
    snprintf(place, sizeof place, "%s #%llu of group %.64s", name, (unsigned long long)number, c->name);
    err_data(e, place, ERR_NO_BYTE, "%s", inside->msg);
    e->kind = inside->kind;
    e->sys = inside->sys;
    return -1;
}

/* ---- messages ---- */

int group_post(struct comm *c, struct xfer *x, const struct group_message *m, struct err *e)
{
    struct transport *t = c->w->t;

    *x = (struct xfer){.buf = (void *)m->buf, .n = m->n_bytes, .peer = c->ranks[m->peer],
                       .channel = comm_channel(c, m->use), .is_send = m->is_send};
    return t->start(t, x, e);
}

/*
 * Returns the number of unfinished receives among the n messages. If all receives are done, returns the number of
 * unfinished sends. *first is set to the peer of the first message that was counted.
 */
static int count_waiting(const struct xfer *x, int n, int *first)
{
    int n_receives = 0, n_sends = 0, from = -1, to = -1;

    for (int i = n - 1; i >= 0; i--) {
        if (x[i].done)
            continue;
        if (x[i].is_send) {
            n_sends++;
            to = x[i].peer;
        } else {
            n_receives++;
            from = x[i].peer;
        }
    }
    *first = n_receives ? from : to;
    return n_receives ? n_receives : n_sends;
}

int group_wait_all(struct comm_world *w, const struct xfer *x, int n, struct err *e)
{
    int first, waiting = count_waiting(x, n, &first);

    if (waiting && w->t->progress(w->t, false, e) < 0)
        return -1;
    while ((waiting = count_waiting(x, n, &first)) > 0) {
        watch_waits_for(w->watch, first, waiting);
        if (w->t->progress(w->t, true, e) < 0)
            return -1;
    }
    group_reap_loose(w);
    return 0;
}

/* ---- host sends in progress ---- */

bool group_is_done(const struct comm_req *q)
{
    for (int i = 0; i < q->n; i++)
        if (!q->x[i].done)
            return false;
    return true;
}

void group_reap_loose(struct comm_world *w)
{
    for (struct comm_req **at = &w->loose; *at;) {
        struct comm_req *q = *at;

        if (!group_is_done(q)) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        free(q->x[0].buf);
        free(q);
    }
}

int group_drain_loose(struct comm_world *w, struct err *e)
{
    while (w->loose) {
        watch_waits_for(w->watch, w->loose->x[0].peer, 1);
        if (w->t->progress(w->t, true, e) < 0)
            return -1;
        group_reap_loose(w);
    }
    return 0;
}

/* ---- groups ---- */

struct comm *group_new(struct comm_world *w, const char *name, const int *ranks, int n, int own, uint32_t id)
{
    struct comm *c = xcalloc(1, sizeof *c);

    c->w = w;
    c->name = arena_strndup(w->names, name, strlen(name));
    c->id = id;
    c->rank = own;
    c->size = n;
    c->ranks = xmalloc((size_t)n * sizeof *c->ranks);
    memcpy(c->ranks, ranks, (size_t)n * sizeof *c->ranks);
    return c;
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

int comm_world_rank(const struct comm *c, int rank)
{
    return c->ranks[rank];
}
