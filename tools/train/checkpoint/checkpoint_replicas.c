/*
 * checkpoint_replicas.c - check that replicated parameters have the same bits on all tensor ranks
 *
 * Each rank computes one CRC per replicated parameter and state, over the part that it owns, and the ranks of a tensor
 * group compare them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/comm/comm.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

/* The part of one state of a replicated parameter that this rank owns. */
struct replica {
    int number;                 /* param * STATE_N + state */
    const void *from;
    uint64_t len;
};

static struct replica replica_of(const struct checkpoint_saver_opts *o, const struct stage_run *r, int st)
{
    const struct stage_state *from = o->state;
    const float *const flat[STATE_N] = { NULL, from->master, from->exp_avg, from->exp_avg_sq };
    const uint64_t size = (uint64_t)checkpoint_state_bytes((enum state)st, o->weights);
    const struct stage_param *p = &o->stage->param[r->param];

    return (struct replica){
        .number = r->param * STATE_N + st, .len = (uint64_t)r->n * size,
        .from = st == STATE_BF16 ? (const char *)from->weights + (uint64_t)(p->at + r->from) * size
                                 : (const char *)(flat[st] + r->shard_at),
    };
}

/*
 * Returns an array of the replicated states that this rank owns. *n receives their number. The caller frees the array.
 */
static struct replica *list_replicas(const struct checkpoint_saver_opts *o, int *n)
{
    const struct stage *s = o->stage;
    struct replica *list = xcalloc((size_t)s->n_runs * STATE_N + 1, sizeof *list);

    *n = 0;
    for (int i = 0; i < s->n_runs; i++)
        for (int st = 0; st < STATE_N && !s->param[s->run[i].param].split; st++)
            list[(*n)++] = replica_of(o, &s->run[i], st);
    return list;
}

uint64_t checkpoint_replicas_bytes(const struct checkpoint_saver_opts *o)
{
    uint64_t sum = 0;
    int n;
    struct replica *list = list_replicas(o, &n);

    for (int i = 0; i < n; i++)
        sum += list[i].len;
    free(list);
    return sum;
}

/*
 * Compute the CRC of each replicated state that this rank owns. host: memory for all these states. crc: [n_params *
 * STATE_N].
 */
static int hash_replicas(const struct checkpoint_saver_opts *o, char *host, uint32_t *crc, struct err *e)
{
    int n, rc;
    struct replica *list = list_replicas(o, &n);
    const char *at = host;

    /*
     * First copy all replicas to the host and wait once, because there are hundreds of replicas of a few kilobytes
     * each.
     */
    for (int i = 0; i < n; at += list[i++].len)
        o->dev->copy(host + (at - host), list[i].from, list[i].len, o->stream);
    rc = comm_sync(o->tp, o->stream, e);
    if (rc == 0)
        o->dev->stream_sync(o->stream);
    at = host;
    for (int i = 0; rc == 0 && i < n; at += list[i++].len)
        crc[list[i].number] = crc_bytes(crc[list[i].number], at, list[i].len);
    free(list);
    return rc;
}

/*
 * Find the first replica that differs between the ranks. The result is the same on every rank of the group. all: the
 * CRCs of all ranks, [ranks][n].
 */
static int compare_replica_hashes(const struct stage *s, const uint32_t *all, int n, int ranks, char tensor[112],
                                  struct err *e)
{
    int n_differ = 0, first = -1, who = -1;

    for (int i = 0; i < n; i++)
        for (int r = 1; r < ranks; r++)
            if (all[(size_t)r * (size_t)n + (size_t)i] != all[i]) {
                n_differ++;
                if (first < 0) {
                    first = i;
                    who = r;
                }
                break;
            }
    if (first < 0)
        return 0;
    snprintf(tensor, 112, "%s", s->param[first / STATE_N].name);
    err_data(e, tensor, ERR_NO_BYTE, "%s of this replicated parameter differs between tensor rank 0 and %d (stage %d, "
                                     "data rank %d; %d such states in all): the state in memory is corrupt",
             state_name((enum state)(first % STATE_N)), who, s->pp, s->dp, n_differ);
    return -1;
}

int checkpoint_replicas_check(const struct checkpoint_saver_opts *o, char *host, char tensor[112], struct err *e)
{
    const int n = o->stage->n_params * STATE_N, ranks = comm_size(o->tp);
    uint32_t *mine, *all;
    int rc;

    *tensor = '\0';
    if (ranks == 1)
        return 0;
    mine = xcalloc((size_t)n, sizeof *mine);
    all = xmalloc((size_t)n * (size_t)ranks * sizeof *all);
    rc = hash_replicas(o, host, mine, e);
    if (rc == 0)
        rc = comm_host_all_gather(o->tp, mine, all, (size_t)n * sizeof *mine, e);
    if (rc == 0)
        rc = compare_replica_hashes(o->stage, all, n, ranks, tensor, e);
    free(mine);
    free(all);
    return rc;
}
