/*
 * refusal.c - print each reason for a refusal once per job and inform every rank
 */
#include "tools/train/options/refusal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/cli/cli.h"
#include "libcommon/comm/launch.h"

enum { JOIN_S = 10 };           /* the other ranks have joined within this time, or have exited */

struct refused_word {
    int32_t status;             /* 0: not refused */
    uint32_t reason;
};

static int status_of(const struct err *why)
{
    return why->kind == ERR_USAGE ? EXIT_USAGE : EXIT_BAD;
}

static void print_refusal(int rank, const struct err *why)
{
    if (rank)
        fprintf(stderr, "[rank %d] ", rank);
    fprintf(stderr, "train: %s\nTry 'train --help'.\n", why->msg);
}

int refusal_share(struct comm_world *w, const struct err *own, struct err *e)
{
    const int rank = comm_place(w)->rank, size = comm_place(w)->size;
    struct refused_word me = {0}, *all = xcalloc((size_t)size, sizeof *all);
    bool is_reported = rank == 0;              /* rank 0 has printed its reason before it joined */
    int rc;

    if (own)
        me = (struct refused_word){ status_of(own), crc_bytes(0, own->msg, strlen(own->msg)) };
    rc = comm_host_all_gather(comm_world_group(w), &me, all, sizeof me, e);
    for (int r = 0; rc >= 0 && r < size; r++) {
        if (all[r].status && !rc)
            rc = all[r].status;
        is_reported |= r < rank && all[r].status == me.status && all[r].reason == me.reason;
    }
    if (rc > 0 && own && !is_reported)
        print_refusal(rank, own);
    free(all);
    return rc;
}

int refusal_leave(const struct err *why)
{
    const struct comm_options o = { .join_timeout_s = JOIN_S };
    struct comm_world *w;
    struct launch l;
    struct err e = {0};
    bool alone = launch_find(&l, &e) < 0 || l.size == 1;

    if (alone || l.rank == 0)
        print_refusal(0, why);
    if (alone)
        return status_of(why);
    if (comm_world_open(&o, &w, &e) < 0) {
        if (l.rank > 0)
            print_refusal(l.rank, why);
        return status_of(why);
    }
    if (refusal_share(w, why, &e) < 0)
        comm_abort(w, 1, e.msg);
    comm_world_close(w);
    return status_of(why);
}
