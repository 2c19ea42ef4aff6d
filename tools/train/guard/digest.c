/*
 * digest.c - check that the copies of a tensor on several ranks have the same bits
 *
 * One digest is computed of each copy. A copy is a range of a buffer: the weights of a parameter, or the fp32 master
 * weights or moments of the part of a parameter that this rank owns. The ranks of a group compare lists of digests.
 * First they compare one number that is computed from the whole list; only if their numbers differ do they exchange the
 * lists.
 *
 * A wrong value in one rank's master weights spreads with the next updates to the weights, and from there to the master
 * weights and moments of other ranks. A wrong value in a weight disappears with the next update. The digests of the
 * steps between two comparisons are therefore kept on the device, in a table with one row per step, the trail. A
 * comparison covers all rows. The first row in which digests differ shows which rank was wrong first.
 */
#include "tools/train/guard/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"

enum { WEIGHTS, MASTER, EXP_AVG, EXP_AVG_SQ, KINDS };
/*
 * The number of rows of the trail. Each row has the digests of one step: the step that is compared, or one of the steps
 * between it and the last comparison.
 */
enum { TRAIL = 128 };

/* The tensor that a digest belongs to. */
struct digest_copy {
    int kind, param;
    bool replicated;                 /* the tensor is replicated: tensor-parallel ranks hold copies of it */
    bool tied;                  /* the tensor is one of the two copies of a tied word embedding */
};

struct digest_set {
    const struct stage *g;
    const struct stage_state *st;
    enum dtype t;
    const struct kernels *k;
    struct digest_groups c;
    /*
     * Lists of parameters for computing digests. all: all parameters. shared: parameters that another rank also holds.
     * replicated: parameters that all tensor-parallel ranks hold. owned: the parts of the replicated parameters that
     * this rank owns.
     */
    struct kernel_runs *all, *shared, *replicated, *owned;
    int n_owned, n;             /* number of owned parts; number of copies: n_params plus KINDS - 1 times n_owned */
    struct digest_copy *copy;
    /*
     * [TRAIL + 1][n]: digests of the trail. The i-th step that was recorded is in row i % TRAIL. The last row is for
     * gradients.
     */
    uint64_t *on_device, *own;
    uint64_t *grads[2];         /* [n_params] each, of the first and the second run */
    int n_recorded;             /* number of steps recorded since the last comparison */
    int n_timed;                /* number of rows of the last comparison whose timers have not been read */
    struct dev_event *timer[TRAIL][2];  /* for a GPU: timers before and after the work of a row */
    double seconds;             /* seconds spent on recording; rows whose timers have not been read are not included */
};

/* ---- lists of copies ---- */

static struct digest_copy copy_of(const struct digest_set *d, int kind, int param)
{
    const struct stage_param *p = &d->g->param[param];

    return (struct digest_copy){ kind, param, comm_size(d->c.tp) > 1 && !p->split,
                                 kind == WEIGHTS && d->c.tied && p->role == ROLE_WORD };
}

typedef bool digest_fits(const struct digest_set *d, const struct digest_copy *c);

static bool is_replicated(const struct digest_set *d, const struct digest_copy *c)
{
    (void)d;
    return c->replicated;
}

static bool is_shared_copy(const struct digest_set *d, const struct digest_copy *c)
{
    return comm_size(d->c.dp) > 1 || c->replicated || c->tied;
}

/*
 * Returns the runs of the parameters for which fits() returns true. If fits is NULL, returns the runs of all
 * parameters.
 */
static struct kernel_runs *runs_of_params(struct digest_set *d, digest_fits *fits, struct err *e)
{
    const struct stage *g = d->g;
    struct kernel_run *run = xcalloc((size_t)g->n_params + 1, sizeof *run);
    struct kernel_runs *runs;
    int n = 0;

    for (int i = 0; i < g->n_params; i++)
        if (!fits || fits(d, &d->copy[i]))
            run[n++] = (struct kernel_run){ .at = g->param[i].at, .n = g->param[i].n, .out = i };
    runs = d->k->runs_new(run, n, e);
    free(run);
    return runs;
}

static struct kernel_runs *runs_of_owned(struct digest_set *d, struct err *e)
{
    const struct stage *g = d->g;
    struct kernel_run *run = xcalloc((size_t)g->n_runs + 1, sizeof *run);
    struct kernel_runs *runs;

    for (int i = 0; i < g->n_runs; i++)
        if (d->copy[g->run[i].param].replicated) {
            run[d->n_owned] = (struct kernel_run){ .at = g->run[i].shard_at, .n = g->run[i].n, .out = d->n_owned };
            d->n_owned++;
        }
    runs = d->k->runs_new(run, d->n_owned, e);
    free(run);
    return runs;
}

static int list_copies(struct digest_set *d, struct err *e)
{
    const struct stage *g = d->g;

    for (int i = 0; i < g->n_params; i++)
        d->copy[d->n++] = copy_of(d, WEIGHTS, i);
    for (int kind = MASTER; kind < KINDS; kind++)
        for (int i = 0; i < g->n_runs; i++)
            if (d->copy[g->run[i].param].replicated)
                d->copy[d->n++] = copy_of(d, kind, g->run[i].param);
    d->all = runs_of_params(d, NULL, e);
    d->shared = d->all ? runs_of_params(d, is_shared_copy, e) : NULL;
    d->replicated = d->shared ? runs_of_params(d, is_replicated, e) : NULL;
    d->owned = d->replicated ? runs_of_owned(d, e) : NULL;
    return d->owned ? 0 : -1;
}

static int allocate_digest_trail(struct digest_set *d, struct err *e)
{
    const uint64_t bytes = (uint64_t)(TRAIL + 1) * (uint64_t)(d->n + 1) * sizeof *d->own;

    d->on_device = d->k->dev->alloc(bytes, e);
    if (d->on_device)
        d->k->dev->zero(d->on_device, bytes, NULL);
    d->own = d->on_device ? d->k->dev->alloc_host(bytes, e) : NULL;
    for (int i = 0; i < 2 * TRAIL && d->k->dev->timer_new; i++)
        d->timer[i / 2][i % 2] = d->k->dev->timer_new();
    return d->own ? 0 : -1;
}

struct digest_set *digest_new(const struct stage *g, const struct stage_state *st, enum dtype t,
                              const struct kernels *k, const struct digest_groups *c, struct err *e)
{
    struct digest_set *d = xcalloc(1, sizeof *d);
    const size_t most = (size_t)g->n_params + (size_t)(KINDS - 1) * (size_t)g->n_runs + 1;

    d->g = g;
    d->st = st;
    d->t = t;
    d->k = k;
    d->c = *c;
    d->copy = xcalloc(most, sizeof *d->copy);
    for (int i = 0; i < 2; i++)
        d->grads[i] = xcalloc((size_t)g->n_params, sizeof *d->grads[i]);
    if (list_copies(d, e) == 0 && allocate_digest_trail(d, e) == 0)
        return d;
    digest_free(d);
    return NULL;
}

void digest_free(struct digest_set *d)
{
    if (!d)
        return;
    d->k->runs_free(d->all);
    d->k->runs_free(d->shared);
    d->k->runs_free(d->replicated);
    d->k->runs_free(d->owned);
    for (int i = 0; i < 2 * TRAIL && d->timer[i / 2][i % 2]; i++)
        d->k->dev->event_free(d->timer[i / 2][i % 2]);
    d->k->dev->free(d->on_device);
    d->k->dev->free_host(d->own);
    free(d->copy);
    free(d->grads[0]);
    free(d->grads[1]);
    free(d);
}

/* ---- computing digests ---- */

/*
 * Wait until the work queued in `s` is complete. comm_sync() does not wait if there is only one rank with a GPU,
 * because such a rank has no link to watch; in this case stream_sync() waits.
 */
static int wait_for_stream(struct digest_set *d, struct dev_stream *s, struct err *e)
{
    if (comm_sync(comm_world_group(d->c.world), s, e) < 0)
        return -1;
    d->k->dev->stream_sync(s);
    return 0;
}

/*
 * Compute row i of the trail with a single kernel launch. If there were a small launch per parameter, a GPU would spend
 * more time on launching than on computing.
 */
static void compute_digest_row(struct digest_set *d, int i, bool whole, struct dev_stream *s)
{
    const int64_t owned = d->g->n_params, n = d->n_owned;
    const struct kernel_digests all = { {
        { d->st->weights, d->t, whole ? d->shared : d->replicated, 0 },
        { d->st->master, DTYPE_F32, d->owned, owned },
        { d->st->exp_avg, DTYPE_F32, d->owned, owned + n },
        { d->st->exp_avg_sq, DTYPE_F32, d->owned, owned + 2 * n },
    }, KINDS };
    const double begin = clock_s();

    if (d->timer[i][0])
        d->k->dev->event_record(d->timer[i][0], s);
    d->k->digest_runs(d->on_device + (int64_t)i * d->n, d->n, &all, s);
    if (d->timer[i][1])
        d->k->dev->event_record(d->timer[i][1], s);
    else
        d->seconds += clock_s() - begin;
}

static void read_timer(struct digest_set *d, int i)
{
    if (d->timer[i][0])
        d->seconds += d->k->dev->seconds_between(d->timer[i][0], d->timer[i][1]);
}

/*
 * Read the timers of the last comparison. This is not done during the comparison, because a GPU would then have to wait
 * for the host. The time that the host spends on reading counts, too.
 */
static void read_timers(struct digest_set *d)
{
    const double begin = clock_s();

    if (d->n_timed == 0)
        return;
    for (int i = 0; i < d->n_timed; i++)
        read_timer(d, i);
    d->n_timed = 0;
    d->seconds += clock_s() - begin;
}

/*
 * Returns true if tensor-parallel ranks hold copies of parameters. The digests of these copies are recorded in every
 * step.
 */
static bool has_tensor_copies(const struct digest_set *d) { return comm_size(d->c.tp) > 1; }

/* Add the current step to the trail. This overwrites the row of the step TRAIL steps earlier. */
static void add_trail_row(struct digest_set *d, bool whole, struct dev_stream *s)
{
    compute_digest_row(d, d->n_recorded % TRAIL, whole, s);
    d->n_recorded++;
}

void digest_record(struct digest_set *d, bool whole, struct dev_stream *s)
{
    read_timers(d);
    if (!whole && !has_tensor_copies(d))
        return;
    if (d->n_recorded >= TRAIL)
        read_timer(d, d->n_recorded % TRAIL);
    add_trail_row(d, whole, s);
}

void digest_record_rest(struct digest_set *d, bool whole, struct dev_stream *s)
{
    if (whole)
        return;
    /*
     * digest_record() may have recorded only the tensor-parallel copies of this step. Record all copies in the same
     * row.
     */
    if (has_tensor_copies(d))
        d->n_recorded--;
    add_trail_row(d, true, s);
}

double digest_seconds(struct digest_set *d)
{
    read_timers(d);
    return d->seconds;
}

/* ---- comparing ---- */

enum digest_list { OVER_DP, OVER_TP, OVER_TIED, LISTS };

static bool is_listed_copy(const struct digest_copy *c, enum digest_list list)
{
    return list == OVER_DP ? c->kind == WEIGHTS : list == OVER_TP ? c->replicated : c->tied;
}

/*
 * Find the member whose digest is shared by the fewest members. *share receives the number of members that have this
 * digest. Returns the member, or -1 if there is no clear minority. all: the members' digests, [size], `step` elements
 * apart.
 */
static int find_minority(const uint64_t *all, int size, int step, int *share)
{
    int least = size + 1, who = -1, same_as_least = 0;

    for (int r = 0; r < size; r++) {
        int n = 0;

        for (int o = 0; o < size; o++)
            n += all[(int64_t)o * step] == all[(int64_t)r * step];
        if (n < least) {
            least = n;
            who = r;
            same_as_least = 0;
        }
        same_as_least += n == least;
    }
    *share = least;
    return 2 * same_as_least >= size ? -1 : who;
}

static void add_digest_rank(struct strbuf *sb, const struct digest_set *d, const struct comm *c, int member)
{
    const int rank = comm_world_rank(c, member);
    const char *device = comm_device_name(d->c.world, rank);

    strbuf_addf(sb, "rank %d (host %s%s%s)", rank, comm_place_of(d->c.world, rank)->host, device ? ", " : "",
                device ? device : "");
}

/* Describe the first difference in a list of digests. `of` is the index of the copy that differs. */
static void describe_differing_copy(const struct digest_set *d, const struct comm *c, const uint64_t *all, int step,
                                    const struct digest_copy *of, struct digest_finding *f)
{
    static const char *const kind[] = { "weight", "master", "exp_avg", "exp_avg_sq" };
    const int size = comm_size(c);
    struct strbuf sb = {0};
    int share, who = find_minority(all, size, step, &share);

    f->rank = who >= 0 ? comm_world_rank(c, who) : -1;
    snprintf(f->tensor, sizeof f->tensor, "%s", d->g->param[of->param].name);
    strbuf_addf(&sb, "%s: %s: the copy of ", f->tensor, kind[of->kind]);
    if (who >= 0) {
        add_digest_rank(&sb, d, c, who);
        strbuf_addf(&sb, " has other bits than %d of its %d others", size - share, size - 1);
    } else {
        int other = 1;

        while (all[(int64_t)other * step] == all[0])
            other++;
        add_digest_rank(&sb, d, c, 0);
        strbuf_addf(&sb, " has other bits than that of ");
        add_digest_rank(&sb, d, c, other);
        strbuf_addf(&sb, ", and it is not known which is wrong");
    }
    snprintf(f->text, sizeof f->text, "%s", sb.buf);
    strbuf_free(&sb);
}

/* A list of digests of this rank, in the order of the list. */
struct digest_part {
    enum digest_list list;
    const uint64_t *mine;
    int n;
};

/* Copy the digests that belong to `list` from a row of the trail. Returns the number of digests copied. */
static int select_digests(const struct digest_set *d, enum digest_list list, const uint64_t *row, uint64_t *mine)
{
    int n = 0;

    for (int i = 0; i < d->n; i++)
        if (is_listed_copy(&d->copy[i], list))
            mine[n++] = row[i];
    return n;
}

/*
 * Combine the n digests of a list into one number. Each position in the list has its own odd multiplier, so the number
 * also changes if two digests are exchanged.
 */
static uint64_t combine_digests(const uint64_t *mine, int n)
{
    uint64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += mine[i] * (2 * (uint64_t)i + 1);
    return sum;
}

/*
 * Exchange the lists of digests between the ranks of a group, and find the first copy that differs. Called if the
 * combined numbers of the lists differ.
 */
static int find_differing_copy(struct digest_set *d, struct comm *c, struct digest_part p, struct digest_finding *f,
                               struct err *e)
{
    const int size = comm_size(c), n = p.n;
    uint64_t *all = xcalloc((size_t)n * (size_t)size + 1, sizeof *all);
    int rc = comm_host_all_gather(c, p.mine, all, (size_t)n * sizeof *all, e), first = -1;

    for (int i = 0, at = 0; rc == 0 && i < d->n; i++) {
        bool differ = false;

        if (!is_listed_copy(&d->copy[i], p.list))
            continue;
        for (int r = 1; r < size; r++)
            differ |= all[(int64_t)r * n + at] != all[at];
        f->differ += differ;
        if (differ && first < 0)
            describe_differing_copy(d, c, all + at, n, &d->copy[first = i], f);
        at++;
    }
    free(all);
    return rc;
}

/* Returns row i of the last `rows` rows of the trail. Row 0 is the oldest. */
static const uint64_t *digest_trail_row(const struct digest_set *d, int rows, int i)
{
    return d->own + (int64_t)((d->n_recorded - rows + i) % TRAIL) * d->n;
}

/*
 * Find the row in which the digests of the group's ranks began to differ. *ago is set to 1 for the last row, 2 for the
 * one before it, and so on; 0 if no row differs.
 */
static int find_first_difference(struct digest_set *d, struct comm *c, enum digest_list list, int rows, int64_t *ago,
                                 struct err *e)
{
    const int size = c ? comm_size(c) : 1;
    uint64_t sum[TRAIL], *mine, *all;
    int rc;

    *ago = 0;
    if (size == 1)
        return 0;
    mine = xcalloc((size_t)d->n + 1, sizeof *mine);
    all = xcalloc((size_t)rows * (size_t)size, sizeof *all);
    for (int i = 0; i < rows; i++)
        sum[i] = combine_digests(mine, select_digests(d, list, digest_trail_row(d, rows, i), mine));
    rc = comm_host_all_gather(c, sum, all, (size_t)rows * sizeof *sum, e);
    for (int i = rows - 1; rc == 0 && i >= 0; i--)
        for (int r = 1; r < size; r++)
            if (all[(int64_t)r * rows + i] != all[i])
                *ago = rows - i;
    free(mine);
    free(all);
    return rc;
}

/*
 * Choose one of the findings of all ranks, and broadcast it to all ranks. A finding that names the rank at fault is
 * preferred; among equal findings, that of the lowest rank is chosen. Returns 1 if there is a finding, 0 if there is
 * none, -1 on error.
 */
static int share_digest_finding(struct digest_set *d, struct digest_finding *f, struct err *e)
{
    struct comm *all = comm_world_group(d->c.world);
    const int size = comm_size(all), me = comm_rank(all);
    /*
     * The priority of this rank's finding. It is 0 without a finding, 1 .. size if the finding names no rank, and size
     * + 1 .. 2 * size if it names a rank. Lower ranks have a higher priority.
     */
    int64_t priority = !f->differ ? 0 : size - me + (f->rank >= 0 ? size : 0);
    int from;

    if (comm_host_all_reduce(all, &priority, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (!priority)
        return 0;
    from = size - (int)(priority > size ? priority - size : priority);
    return comm_host_broadcast(all, f, sizeof *f, from, e) < 0 ? -1 : 1;
}

/*
 * Compute the finding of a row. It comes from the first list that identifies the rank at fault or, if none does, from
 * the first list that differs. Only lists for which `differs` is true are exchanged.
 */
static int find_row_difference(struct digest_set *d, struct comm *const group[], const bool differs[],
                               const uint64_t *row, struct digest_finding *f, struct err *e)
{
    uint64_t *mine = xcalloc((size_t)d->n + 1, sizeof *mine);
    int rc = 0;

    *f = (struct digest_finding){ .rank = -1 };
    for (int list = 0; list < LISTS && rc == 0; list++) {
        struct digest_finding found = { .rank = -1 };
        struct digest_part part = { list, mine, differs[list] ? select_digests(d, list, row, mine) : 0 };

        if (differs[list])
            rc = find_differing_copy(d, group[list], part, &found, e);
        if (found.differ && (!f->differ || (f->rank < 0 && found.rank >= 0)))
            *f = found;
    }
    free(mine);
    return rc;
}

/*
 * Remove the name of the rank from a finding if copies differ in more than one group of tensor-parallel ranks, but in
 * no other list. The error has then spread to all these groups, so its origin is unknown.
 */
static int drop_rank_if_spread(struct digest_set *d, const bool differs[], struct digest_finding *f, struct err *e)
{
    int64_t n[2] = { differs[OVER_TP], differs[OVER_DP] };

    if (comm_host_all_reduce(comm_world_group(d->c.world), n, 2, DTYPE_I64, COMM_SUM, e) < 0)
        return -1;
    if (n[0] > comm_size(d->c.tp) && n[1] == 0) {
        f->rank = -1;
        snprintf(f->text, sizeof f->text, "%s: copies differ in several groups of tensor ranks, and it is not known "
                 "where it began", f->tensor);
    }
    return 0;
}

int digest_compare(struct digest_set *d, struct digest_finding *f, struct dev_stream *s, struct err *e)
{
    struct comm *const group[] = { [OVER_DP] = d->c.dp, [OVER_TP] = d->c.tp, [OVER_TIED] = d->c.tied };
    const int rows = d->n_recorded < TRAIL ? d->n_recorded : TRAIL;
    int64_t ago[LISTS], most = 0;
    bool differs[LISTS];
    const uint64_t *row;

    /* Copy the trail from the device. */
    d->k->dev->copy(d->own, d->on_device, (uint64_t)rows * (uint64_t)d->n * sizeof *d->own, s);
    if (wait_for_stream(d, s, e) < 0)
        return -1;
    d->n_timed = rows;

    /* Find the earliest row in which the digests of any list differ in any group. */
    for (int list = 0; list < LISTS; list++) {
        if (find_first_difference(d, group[list], list, rows, &ago[list], e) < 0)
            return -1;
        most = ago[list] > most ? ago[list] : most;
    }
    if (comm_host_all_reduce(comm_world_group(d->c.world), &most, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (most == 0) {
        d->n_recorded = 0;
        return 0;
    }

    /* Describe the difference in that row, from the lists that differ in it. */
    row = digest_trail_row(d, rows, rows - (int)most);
    for (int list = 0; list < LISTS; list++)
        differs[list] = ago[list] == most;
    if (find_row_difference(d, group, differs, row, f, e) < 0 || share_digest_finding(d, f, e) < 0 ||
        drop_rank_if_spread(d, differs, f, e) < 0)
        return -1;
    d->n_recorded = 0;
    if (most > 1)
        snprintf(f->text + strlen(f->text), sizeof f->text - strlen(f->text), ", %d iterations ago", (int)most - 1);
    return 1;
}

/* ---- doing the same work twice ---- */

int digest_record_grads(struct digest_set *d, enum dtype t, int time, struct dev_stream *s, struct err *e)
{
    const int64_t at = (int64_t)TRAIL * d->n;
    const struct kernel_digests of = { { { d->st->grads, t, d->all, 0 } }, 1 };

    d->k->digest_runs(d->on_device + at, d->g->n_params, &of, s);
    d->k->dev->copy(d->own + at, d->on_device + at, (uint64_t)d->g->n_params * sizeof *d->own, s);
    if (wait_for_stream(d, s, e) < 0)
        return -1;
    memcpy(d->grads[time], d->own + at, (size_t)d->g->n_params * sizeof *d->own);
    return 0;
}

int digest_compare_times(struct digest_set *d, struct digest_finding *f, struct err *e)
{
    struct comm *all = comm_world_group(d->c.world);
    int64_t ranks;
    struct strbuf sb = {0};

    *f = (struct digest_finding){ .rank = -1 };
    /*
     * Search the gradients in the order in which the backward pass computes them. The first one that differs is nearest
     * to the fault.
     */
    for (int i = d->g->n_params - 1; i >= 0; i--)
        if (d->grads[0][i] != d->grads[1][i]) {
            f->differ++;
            snprintf(f->tensor, sizeof f->tensor, "%s", d->g->param[i].name);
        }
    ranks = f->differ > 0;
    if (comm_host_all_reduce(all, &ranks, 1, DTYPE_I64, COMM_SUM, e) < 0)
        return -1;
    if (f->differ) {
        f->rank = ranks == 1 ? comm_rank(all) : -1;
        add_digest_rank(&sb, d, all, comm_rank(all));
        strbuf_addf(&sb, " got other bits for the gradient of %s from the same work", f->tensor);
        if (ranks > 1)
            strbuf_addf(&sb, ", and so did %lld other ranks", (long long)ranks - 1);
        snprintf(f->text, sizeof f->text, "%s", sb.buf);
        strbuf_free(&sb);
    }
    return share_digest_finding(d, f, e);
}
