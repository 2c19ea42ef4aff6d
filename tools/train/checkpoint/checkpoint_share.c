/*
 * checkpoint_share.c - share the reading of a checkpoint among the data-parallel ranks of a stage: each rank reads a
 * part, and the ranks exchange the rest
 *
 * All ranks make the same plan, which has the items that any of them needs, and each rank runs its own items. Every
 * byte is therefore read only once. The CRC of a record can be checked although no rank has read all of it. Each rank
 * needs all weights, so these are exchanged as after an optimizer step: each rank has read its own part of every
 * bucket, and the parts are gathered.
 */
#include <stdlib.h>

#include "libcommon/comm/comm.h"
#include "tools/train/checkpoint/checkpoint_share.h"

enum { FAILED, MARK, ANTIMARK, N_OUTCOMES };

/* Check the CRCs of records that several ranks have read in parts. */
static int check_shared_records(const struct load_share *h, struct plan *p, struct err *e)
{
    const int n = plan_seen(p, NULL), size = comm_size(h->dp);
    struct plan_seen *mine = xcalloc((size_t)n + 1, sizeof *mine);
    struct plan_seen *all = xcalloc((size_t)n * (size_t)size + 1, sizeof *all);
    int rc;

    plan_seen(p, mine);
    rc = comm_host_all_gather(h->dp, mine, all, (size_t)n * sizeof *mine, e);
    for (int r = 0; r < size && rc == 0; r++)
        if (r != comm_rank(h->dp))
            rc = plan_seen_add(p, all + (size_t)r * (size_t)n, e);
    free(mine);
    free(all);
    return rc;
}

int load_share_check(const struct load_share *h, struct plan *p, int rc, bool *on, struct err *e)
{
    const int64_t mark = p ? plan_mark(p, h->path) : 0;
    int64_t outcome[N_OUTCOMES] = { rc < 0, mark, -mark };
    struct err own = *e;

    *on = false;
    if (comm_host_all_reduce(h->dp, outcome, N_OUTCOMES, DTYPE_I64, COMM_MAX, e) < 0) {
        *e = rc < 0 ? own : *e;
        return -1;
    }
    if (outcome[FAILED])
        return rc;
    if (outcome[MARK] != -outcome[ANTIMARK]) {
        err_data(e, h->path, ERR_NO_BYTE, "the data-parallel ranks of stage %d do not see the same files: has the "
                 "folder changed meanwhile, or is it another one on some host?", h->s->pp);
        return -1;
    }
    /* All ranks combine the same CRCs, so all of them find the same error. */
    rc = check_shared_records(h, p, e);
    *on = rc == 0;
    return rc;
}

int load_share_any(const struct load_share *h, bool *flag, int n, struct err *e)
{
    return comm_host_all_reduce(h->dp, flag, n, DTYPE_U8, COMM_MAX, e);
}

int load_share_weights(const struct load_share *h, void *weights, enum dtype t, struct dev_stream *s, struct err *e)
{
    const uint64_t size = (uint64_t)dtype_size(t);

    for (int i = 0; i < h->s->n_buckets; i++) {
        const struct stage_bucket *b = &h->s->bucket[i];
        const int64_t own = b->n / h->s->topo.dp;
        char *all = (char *)weights + (uint64_t)b->at * size;
        const struct comm_data d = { .in = all + (uint64_t)(h->s->dp * own) * size, .out = all, .n = own, .t = t };
        struct comm_req *req = NULL;

        /* Use the same link as after an optimizer step, because training needs this link in any case. */
        if (comm_all_gather_start(h->dp, &d, s, &req, e) < 0 || comm_wait(&req, s, e) < 0)
            return -1;
    }
    return comm_sync(h->dp, s, e);
}
