/*
 * agree.c - give all ranks the same outcome
 */

#include "tools/train/run/agree.h"

#include <stdio.h>

#include "tools/train/run/trainer.h"

int agree_all_well(struct trainer *t, int rc, struct err *e)
{
    struct comm *all = comm_world_group(t->world);
    const int size = t->place->size;
    int64_t said[2] = { rc < 0 ? size - t->place->rank : 0, rc == 0 };
    struct err own = *e;

    if (comm_host_all_reduce(all, said, 2, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (!said[0])
        return 0;
    if (comm_host_broadcast(all, &own, sizeof own, size - (int)said[0], e) < 0)
        return -1;
    *e = own;
    if (said[1])
        snprintf(e->msg, sizeof e->msg, "rank %d: %.1000s", size - (int)said[0], own.msg);
    t->all_know = true;
    return -1;
}
