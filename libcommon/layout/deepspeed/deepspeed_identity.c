/*
 * deepspeed_identity.c - is each file the one that its name says?
 *
 * The name inside the archive tells (ds_name_check()): tensor rank 2's shard under the name of
 * rank 3 still says 2. DeepSpeed before 0.7 saved shards through open files ("archive"), which
 * says nothing, and so do names that no rank has. mp_rank files say in args.rank, too, whose
 * they are. deepspeed_state.c compares what files say of the save.
 */
#include <stdlib.h>

#include "libcommon/layout/deepspeed/deepspeed.h"

enum severity ds_mismatch(const struct ds *d)
{
    return d->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

/* ---- args.rank ---- */

/* Global rank of the process that wrote mp_rank file mp: that of data-parallel rank 0. */
static int64_t rank_of_mp(struct topology t, int mp)
{
    return (int64_t)(mp / t.tp) * t.dp * t.tp + mp % t.tp;
}

static bool said_rank(const struct ds *d, int mp, int64_t *rank)
{
    int file = d->mp_file[mp];
    const struct pt *pt = file < 0 ? NULL : d->s->file[file].pt;

    return pt && pk_as_int(pk_get(pk_get(pt_root(pt), "args"), "rank"), rank);
}

/*
 * Converters of other people may leave whatever rank the arguments had. So the numbers
 * count only where every file has one that some file of this grid has, and not all the same.
 */
static bool ranks_are_kept(const struct ds *d)
{
    int n_mp = d->topo.tp * d->topo.pp;
    int64_t rank, first = -1;
    bool differ = false;

    for (int mp = 0; mp < n_mp; mp++) {
        if (!said_rank(d, mp, &rank))
            continue;
        if (rank < 0 || rank >= (int64_t)n_mp * d->topo.dp || rank / d->topo.tp % d->topo.dp != 0)
            return false;
        differ |= first >= 0 && rank != first;
        first = rank;
    }
    return differ;
}

void ds_check_ranks(struct ds *d)
{
    if (!ranks_are_kept(d))
        return;
    for (int mp = 0; mp < d->topo.tp * d->topo.pp; mp++) {
        int64_t rank, want = rank_of_mp(d->topo, mp);

        if (said_rank(d, mp, &rank) && rank != want)
            report_add(d->r, ds_mismatch(d), "other_rank", files_name(d->s->files, d->s->file[d->mp_file[mp]].file),
                       ERR_NO_BYTE, NULL, "args.rank is %lld, its name says %lld: another rank's file",
                       (long long)rank, (long long)want);
    }
}
