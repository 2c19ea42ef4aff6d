/*
 * deepspeed_identity.c - check that each file is the one that its name indicates
 *
 * The name inside the archive shows this (ds_name_check()): if tensor rank 2's shard is renamed to rank 3, the inner
 * name still has 2. DeepSpeed before 0.7 saved shards through open files, whose inner name ("archive") gives no
 * information, and neither do names that no rank has. mp_rank files also record their rank in args.rank.
 * deepspeed_state.c compares the values that identify the save.
 */
#include <stdlib.h>

#include "libcommon/layout/deepspeed/deepspeed.h"

enum severity ds_mismatch(const struct ds *d)
{
    return d->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

/* ---- args.rank ---- */

/* Return the global rank of the process that wrote mp_rank file mp: that of data-parallel rank 0. */
static int64_t rank_of_mp(struct topology t, int mp)
{
    return (int64_t)(mp / t.tp) * t.dp * t.tp + mp % t.tp;
}

static bool read_saved_rank(const struct ds *d, int mp, int64_t *rank)
{
    int file = d->mp_file[mp];
    const struct pt *pt = file < 0 ? NULL : d->s->file[file].pt;

    return pt && pk_as_int(pk_get(pk_get(pt_root(pt), "args"), "rank"), rank);
}

/*
 * Returns true if args.rank can be relied on. Third-party converters may leave any rank in the arguments. So the
 * numbers count only if each of them belongs to some file of this grid, and they are not all the same.
 */
static bool ranks_are_kept(const struct ds *d)
{
    int n_mp = d->topo.tp * d->topo.pp;
    int64_t rank, first = -1;
    bool differ = false;

    for (int mp = 0; mp < n_mp; mp++) {
        if (!read_saved_rank(d, mp, &rank))
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

        if (read_saved_rank(d, mp, &rank) && rank != want)
            report_add(d->r, ds_mismatch(d), "other_rank", files_name(d->s->files, d->s->file[d->mp_file[mp]].file),
                       ERR_NO_BYTE, NULL, "args.rank is %lld, its name has %lld: it is another rank's file",
                       (long long)rank, (long long)want);
    }
}
