/*
 * calls.c - the collectives of comm.h: run by the device if the buffers are in its memory, else by the CPU over the
 * transport
 */
#include "libcommon/comm/comm_impl.h"

static int run_collective(struct comm *c, const struct collective *x, struct dev_stream *s, struct err *e)
{
    if (!c->w->net)
        return collectives_run(c, collective_name(x->kind), x, e);
    return collectives_check(c, collective_name(x->kind), x, e) < 0 ? -1 : device_collective(c, x, s, e);
}

/*
 * Start a collective that runs outside of the caller's stream. Without a device, the transport completes the collective
 * before this function returns.
 */
static int start_collective(struct comm *c, const struct collective *x, struct dev_stream *s, struct comm_req **req,
                            struct err *e)
{
    struct dev_event *done;

    *req = NULL;
    if (!c->w->net)
        return collectives_run(c, collective_name(x->kind), x, e);
    if (device_collective_start(c, x, s, &done, e) < 0)
        return -1;
    if (done) {
        *req = xcalloc(1, sizeof **req);
        (*req)->c = c;
        (*req)->done = done;
    }
    return 0;
}

int comm_all_reduce(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e)
{
    return run_collective(c, &(struct collective){ COLLECTIVE_ALL_REDUCE, *d, 0 }, s, e);
}

int comm_reduce_scatter(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e)
{
    return run_collective(c, &(struct collective){ COLLECTIVE_REDUCE_SCATTER, *d, 0 }, s, e);
}

int comm_all_gather(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct err *e)
{
    return run_collective(c, &(struct collective){ COLLECTIVE_ALL_GATHER, *d, 0 }, s, e);
}

int comm_broadcast(struct comm *c, const struct comm_data *d, int root, struct dev_stream *s, struct err *e)
{
    struct collective x = { COLLECTIVE_BROADCAST, *d, root };

    x.data.in = x.data.out;
    return run_collective(c, &x, s, e);
}

int comm_barrier(struct comm *c, struct dev_stream *s, struct err *e)
{
    return comm_sync(c, s, e) < 0 ? -1 : collectives_barrier(c, e);
}

int comm_all_reduce_start(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct comm_req **req,
                          struct err *e)
{
    return start_collective(c, &(struct collective){ COLLECTIVE_ALL_REDUCE, *d, 0 }, s, req, e);
}

int comm_reduce_scatter_start(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct comm_req **req,
                              struct err *e)
{
    return start_collective(c, &(struct collective){ COLLECTIVE_REDUCE_SCATTER, *d, 0 }, s, req, e);
}

int comm_all_gather_start(struct comm *c, const struct comm_data *d, struct dev_stream *s, struct comm_req **req,
                          struct err *e)
{
    return start_collective(c, &(struct collective){ COLLECTIVE_ALL_GATHER, *d, 0 }, s, req, e);
}
