/*
 * create.c - create a group that its members agree on, and close it
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/hash.h"
#include "libcommon/comm/comm_impl.h"

/* The message that each member sends to the first member, and the first member's answer. */
struct proposal {
    uint64_t list_hash;
    uint32_t id;                /* lowest id that this rank does not use; in the answer: the agreed id, or 0 */
    /* in the answer: a member whose list of ranks differs from the first member's, or -1 if all are equal */
    int32_t differs;
};

static uint64_t hash_list(const char *name, const int *ranks, int n)
{
    return hash_bytes(hash_bytes(HASH_START, name, strlen(name)), ranks, (size_t)n * sizeof *ranks);
}

static int exchange_proposal(struct comm_world *w, int peer, bool is_send, struct proposal *p, struct err *e)
{
    struct xfer x = {.buf = p, .n = sizeof *p, .peer = peer, .channel = CHANNEL_SETUP, .is_send = is_send};

    return w->t->start(w->t, &x, e) < 0 ? -1 : group_wait_all(w, &x, 1, e);
}

/*
 * Create the group as its first member. This receives the proposals of all members, chooses the highest id, and sends
 * the answer to all members.
 */
static int agree_as_first(struct comm *c, struct proposal *own, struct err *e)
{
    struct proposal p;

    for (int i = 1; i < c->size; i++) {
        if (exchange_proposal(c->w, c->ranks[i], false, &p, e) < 0)
            return -1;
        if (p.list_hash != own->list_hash && own->differs < 0)
            own->differs = c->ranks[i];
        own->id = p.id > own->id ? p.id : own->id;
    }
    for (int i = 1; i < c->size; i++)
        if (exchange_proposal(c->w, c->ranks[i], true, own, e) < 0)
            return -1;
    return 0;
}

static int agree_on_group(struct comm *c, struct err *e)
{
    struct proposal p = {.list_hash = hash_list(c->name, c->ranks, c->size), .id = c->w->next_id, .differs = -1};

    if (c->rank == 0) {
        if (agree_as_first(c, &p, e) < 0)
            return -1;
    } else if (exchange_proposal(c->w, c->ranks[0], true, &p, e) < 0 ||
               exchange_proposal(c->w, c->ranks[0], false, &p, e) < 0) {
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

/*
 * Returns this rank's position in the list `ranks`. Returns -1 with *e filled if `ranks` is not a valid list of ranks.
 */
static int check_list(const struct comm_world *w, const char *name, const int *ranks, int n, struct err *e)
{
    int own = -1, me = w->launch.rank;

    for (int i = 0; i < n; i++) {
        bool twice = false;

        for (int k = 0; k < i; k++)
            twice |= ranks[k] == ranks[i];
        if (twice || ranks[i] < 0 || ranks[i] >= w->launch.size) {
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
    group_call_begin(c, "comm_create", 0);
    rc = agree_on_group(c, &inside);
    if (group_call_end(c, "comm_create", 0, rc, &inside, e) < 0) {
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
