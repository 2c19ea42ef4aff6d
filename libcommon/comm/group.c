#include "libcommon/comm/comm_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- a call's frame ---- */

void call_begin(struct comm *c, const char *name, uint64_t number)
{
    watch_enter(c->w->watch, name, c->name, number);
}

int call_end(struct comm *c, const char *name, uint64_t number, int rc, const struct err *inside, struct err *e)
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

int post(struct comm *c, struct xfer *x, enum channel_use use, bool is_send, int peer,
         const void *buf, size_t n_bytes, struct err *e)
{
    struct transport *t = c->w->t;

    *x = (struct xfer){.buf = (void *)buf, .n = n_bytes, .peer = c->ranks[peer],
                       .channel = comm_channel(c, use), .is_send = is_send};
    return t->start(t, x, e);
}

/* How many are under way; *first: the rank of the first, a receive rather than a send. */
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

int wait_all(struct comm_world *w, const struct xfer *x, int n, struct err *e)
{
    int first, waiting = count_waiting(x, n, &first);

    if (waiting && w->t->progress(w->t, false, e) < 0)
        return -1;
    while ((waiting = count_waiting(x, n, &first)) > 0) {
        watch_waits_for(w->watch, first, waiting);
        if (w->t->progress(w->t, true, e) < 0)
            return -1;
    }
    reap_loose(w);
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

/* What members tell the first of them, and what it answers. */
struct proposal {
    uint64_t list_hash;
    uint32_t id;                /* the lowest that this rank has not used; the answer: agreed, or 0 */
    int32_t differs;            /* the answer's: the member whose list is another; else -1 */
};

static uint64_t hash_list(const char *name, const int *ranks, int n)
{
    uint64_t h = UINT64_C(14695981039346656037);

    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * UINT64_C(1099511628211);
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)ranks[i]) * UINT64_C(1099511628211);
    return h;
}

static int exchange(struct comm_world *w, int peer, bool is_send, struct proposal *p, struct err *e)
{
    struct xfer x = {.buf = p, .n = sizeof *p, .peer = peer, .channel = CHANNEL_SETUP, .is_send = is_send};

    return w->t->start(w->t, &x, e) < 0 ? -1 : wait_all(w, &x, 1, e);
}

/* The first member hears all, takes the highest id, and answers. */
static int agree_as_first(struct comm *c, struct proposal *own, struct err *e)
{
    struct proposal p;

    for (int i = 1; i < c->size; i++) {
        if (exchange(c->w, c->ranks[i], false, &p, e) < 0)
            return -1;
        if (p.list_hash != own->list_hash && own->differs < 0)
            own->differs = c->ranks[i];
        own->id = p.id > own->id ? p.id : own->id;
    }
    for (int i = 1; i < c->size; i++)
        if (exchange(c->w, c->ranks[i], true, own, e) < 0)
            return -1;
    return 0;
}

static int agree(struct comm *c, struct err *e)
{
    struct proposal p = {.list_hash = hash_list(c->name, c->ranks, c->size), .id = c->w->next_id, .differs = -1};

    if (c->rank == 0) {
        if (agree_as_first(c, &p, e) < 0)
            return -1;
    } else if (exchange(c->w, c->ranks[0], true, &p, e) < 0 || exchange(c->w, c->ranks[0], false, &p, e) < 0) {
        return -1;
    }
    if (p.differs >= 0) {
        char place[32];

        snprintf(place, sizeof place, "rank %d", p.differs);
        err_data(e, place, ERR_NO_BYTE, "makes a group with other members, or another name, than rank %d",
                 c->ranks[0]);
        return -1;
    }
    c->id = p.id;
    c->w->next_id = p.id + 1;
    return 0;
}

/* Our place in the list, or -1 with *e when the list is no list of ranks. */
static int check_list(const struct comm_world *w, const char *name, const int *ranks, int n, struct err *e)
{
    int own = -1, me = comm_place(w)->rank;

    for (int i = 0; i < n; i++) {
        bool twice = false;

        for (int k = 0; k < i; k++)
            twice |= ranks[k] == ranks[i];
        if (twice || ranks[i] < 0 || ranks[i] >= comm_place(w)->size) {
            err_usage(e, "group %s: rank %d %s", name, ranks[i], twice ? "is in it twice" : "does not exist");
            return -1;
        }
        if (ranks[i] == me)
            own = i;
    }
    if (own < 0)
        err_usage(e, "group %s: rank %d makes it but is not in it", name, me);
    return own;
}

struct comm *comm_create(struct comm_world *w, const char *name, const int *ranks, int n, struct err *e)
{
    int own = check_list(w, name, ranks, n, e), rc;
    struct err inside = {0};
    struct comm *c;

    if (own < 0)
        return NULL;
    c = group_new(w, name, ranks, n, own, 0);
    if (n == 1)
        return c;
    call_begin(c, "comm_create", 0);
    rc = agree(c, &inside);
    if (call_end(c, "comm_create", 0, rc, &inside, e) < 0) {
        comm_close(c);
        return NULL;
    }
    return c;
}

void comm_close(struct comm *c)
{
    if (!c)
        return;
    device_close(c);
    free(c->ranks);
    free(c);
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
