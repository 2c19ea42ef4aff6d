/* run_ranks.c - the place of this rank in the topology, its groups, and outcomes on which all ranks agree */
#include "tools/train/run/run_ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"

void run_ranks_place(struct run_ranks *r, struct topology topo)
{
    r->topo = topo;
    r->rank_tp = r->place->rank % topo.tp;
    r->rank_dp = r->place->rank / topo.tp % topo.dp;
    r->rank_pp = r->place->rank / (topo.tp * topo.dp);
}

/* Create the group of the n ranks first, first + stride, first + 2 * stride, ... */
static struct comm *create_group(const struct run_ranks *r, const char *name, int n, int first, int stride,
                                 struct err *e)
{
    int *rank = xmalloc((size_t)n * sizeof *rank);
    struct comm *c;

    for (int i = 0; i < n; i++)
        rank[i] = first + i * stride;
    c = comm_create(r->world, name, rank, n, e);
    free(rank);
    return c;
}

int run_ranks_group(struct run_ranks *r, struct err *e)
{
    const struct topology p = r->topo;
    const int stage_ranks = p.dp * p.tp;

    r->tp = create_group(r, "tp", p.tp, topo_rank(p, r->rank_pp, r->rank_dp, 0), 1, e);
    r->dp = r->tp ? create_group(r, "dp", p.dp, topo_rank(p, r->rank_pp, 0, r->rank_tp), p.tp, e) : NULL;
    r->pipe = r->dp ? create_group(r, "pp", p.pp, topo_rank(p, 0, r->rank_dp, r->rank_tp), stage_ranks, e) : NULL;
    if (!r->pipe)
        return -1;
    if (p.pp == 1 || (r->rank_pp > 0 && r->rank_pp < p.pp - 1))
        return 0;
    r->tied = create_group(r, "tied", 2, topo_rank(p, 0, r->rank_dp, r->rank_tp), (p.pp - 1) * stage_ranks, e);
    return r->tied ? 0 : -1;
}

void run_ranks_close_groups(struct run_ranks *r)
{
    comm_close(r->tied);
    comm_close(r->pipe);
    comm_close(r->dp);
    comm_close(r->tp);
}

int run_ranks_agree(const struct run_ranks *r, struct run_failure *f, int rc, struct err *e)
{
    struct comm *all = comm_world_group(r->world);
    const int size = r->place->size, rank = r->place->rank;
    /*
     * A rank that failed sets outcome[0] to the number of ranks minus its own rank. A rank that succeeded sets
     * outcome[1] to 1. The maximum of each number over all ranks shows the lowest rank that failed, and whether any
     * rank succeeded.
     */
    int64_t outcome[2] = { rc < 0 ? size - rank : 0, rc == 0 };
    struct err own = *e;
    int first;

    if (comm_host_all_reduce(all, outcome, 2, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (!outcome[0])
        return 0;
    first = size - (int)outcome[0];
    if (comm_host_broadcast(all, &own, sizeof own, first, e) < 0)
        return -1;
    *e = own;
    if (outcome[1])
        snprintf(e->msg, sizeof e->msg, "rank %d: %.1000s", first, own.msg);
    f->on_all_ranks = true;
    return -1;
}
