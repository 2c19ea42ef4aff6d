/*
 * digest.c - have the copies of a tensor that several ranks hold the same bits?
 *
 * A copy is a run of a buffer, and one digest of each is taken: weights parameter by parameter, masters and moments by
 * the runs that this rank owns. A group compares a list of them: first one number of the whole list, and only when
 * ranks have different ones the list itself.
 *
 * What is wrong in one rank's master goes by the next updates into weights, and by these into masters and moments of
 * other ranks. So digests of what tensor ranks hold copies of, which is little, are taken in every step and left on the
 * device, the trail; nobody reads them before a difference is found. Then the first step that has one names the rank.
 */
#include "tools/train/guard/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

enum { WEIGHTS, MASTER, EXP_AVG, EXP_AVG_SQ, KINDS };
enum { TRAIL = 128 };           /* steps between two looks that are remembered, the last ones */

/* What one digest is of. */
struct digest_copy {
    int kind, param;
    bool every;                 /* tensor ranks hold copies */
    bool tied;                  /* a use of the word embedding, of two */
};

struct digest_set {
    const struct stage *g;
    const struct stage_state *st;
    enum dtype t;
    const struct kernels *k;
    struct digest_groups c;
    /* Parameters; those that are not split; this rank's runs of these. */
    struct kernel_runs *whole, *every, *owned;
    int n_every, n_owned, n;    /* copies: n_params, then KINDS - 1 times n_owned */
    struct digest_copy *copy;
    uint64_t *on_device, *own;  /* [n] */
    uint64_t *grads[2];         /* [n_params] of the first and the second time */
    uint64_t *trail, *trail_own;    /* [TRAIL][on_trail()], of step i of n_noted in row i % TRAIL */
    int n_noted;                /* steps since the last look */
};

/* Of a step, in the order of OVER_TP's list. */
static int on_trail(const struct digest_set *d) { return d->n_every + (KINDS - 1) * d->n_owned; }

/* ---- which there are ---- */

static void note_copy(struct digest_set *d, int kind, int param)
{
    const struct stage_param *p = &d->g->param[param];

    d->copy[d->n++] = (struct digest_copy){ kind, param, !p->split,
                                            kind == WEIGHTS && d->c.tied && p->role == ROLE_WORD };
}

static int make_runs(struct digest_set *d, struct err *e)
{
    const struct stage *g = d->g;
    struct kernel_run *run = xcalloc((size_t)(g->n_params + g->n_runs + 1), sizeof *run);
    int n = 0;

    for (; n < g->n_params; n++) {
        run[n] = (struct kernel_run){ .at = g->param[n].at, .n = g->param[n].n, .out = n };
        note_copy(d, WEIGHTS, n);
    }
    d->whole = d->k->runs_new(run, n, e);
    for (int i = 0; i < g->n_params; i++)
        if (!g->param[i].split) {
            run[d->n_every] = (struct kernel_run){ .at = g->param[i].at, .n = g->param[i].n, .out = d->n_every };
            d->n_every++;
        }
    d->every = d->whole ? d->k->runs_new(run, d->n_every, e) : NULL;
    for (int i = 0; i < g->n_runs; i++)
        if (!g->param[g->run[i].param].split) {
            run[d->n_owned] = (struct kernel_run){ .at = g->run[i].shard_at, .n = g->run[i].n, .out = d->n_owned };
            d->n_owned++;
        }
    d->owned = d->every ? d->k->runs_new(run, d->n_owned, e) : NULL;
    for (int kind = MASTER; kind < KINDS; kind++)
        for (int i = 0; i < g->n_runs; i++)
            if (!g->param[g->run[i].param].split)
                note_copy(d, kind, g->run[i].param);
    free(run);
    return d->owned ? 0 : -1;
}

static int allocate(struct digest_set *d, struct err *e)
{
    const struct dev_ops *dev = d->k->dev;
    const uint64_t trail = (uint64_t)TRAIL * (uint64_t)(on_trail(d) + 1) * sizeof *d->trail;

    d->on_device = dev->alloc((uint64_t)(d->n + 1) * sizeof *d->own, e);
    d->own = d->on_device ? dev->alloc_host((uint64_t)(d->n + 1) * sizeof *d->own, e) : NULL;
    if (!d->own || comm_size(d->c.tp) == 1)
        return d->own ? 0 : -1;
    d->trail = dev->alloc(trail, e);
    d->trail_own = d->trail ? dev->alloc_host(trail, e) : NULL;
    return d->trail_own ? 0 : -1;
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
    if (make_runs(d, e) == 0 && allocate(d, e) == 0)
        return d;
    digest_free(d);
    return NULL;
}

void digest_free(struct digest_set *d)
{
    if (!d)
        return;
    d->k->runs_free(d->whole);
    d->k->runs_free(d->every);
    d->k->runs_free(d->owned);
    d->k->dev->free(d->on_device);
    d->k->dev->free_host(d->own);
    d->k->dev->free(d->trail);
    d->k->dev->free_host(d->trail_own);
    free(d->copy);
    free(d->grads[0]);
    free(d->grads[1]);
    free(d);
}

/* ---- taking them ---- */

/* What was queued has come: alone on a GPU there is no link for comm_sync() to watch, and it waits for nothing. */
static int await(struct digest_set *d, struct dev_stream *s, struct err *e)
{
    if (comm_sync(comm_world_group(d->c.world), s, e) < 0)
        return -1;
    d->k->dev->stream_sync(s);
    return 0;
}

static void take_owned(struct digest_set *d, uint64_t *to, struct dev_stream *s)
{
    const float *const buffer[] = { [MASTER] = d->st->master, d->st->exp_avg, d->st->exp_avg_sq };

    for (int kind = MASTER; kind < KINDS && d->n_owned; kind++, to += d->n_owned)
        d->k->digest_runs(to, buffer[kind], DTYPE_F32, d->owned, s);
}

void digest_note(struct digest_set *d, struct dev_stream *s)
{
    uint64_t *row;

    if (!d->trail)
        return;
    row = d->trail + (int64_t)(d->n_noted++ % TRAIL) * on_trail(d);
    if (d->n_every)
        d->k->digest_runs(row, d->st->weights, d->t, d->every, s);
    take_owned(d, row + d->n_every, s);
}

static int take(struct digest_set *d, struct dev_stream *s, struct err *e)
{
    d->k->digest_runs(d->on_device, d->st->weights, d->t, d->whole, s);
    take_owned(d, d->on_device + d->g->n_params, s);
    d->k->dev->copy(d->own, d->on_device, (uint64_t)d->n * sizeof *d->own, s);
    return await(d, s, e);
}

/* ---- comparing ---- */

enum digest_list { OVER_DP, OVER_TP, OVER_TIED };

static bool listed(const struct digest_copy *c, enum digest_list list)
{
    return list == OVER_DP ? c->kind == WEIGHTS : list == OVER_TP ? c->every : c->tied;
}

/* The place in the group whose digest fewest share, and how many share it; -1: no fewest. all: [size], `step` apart. */
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

static void add_rank(struct strbuf *sb, const struct digest_set *d, const struct comm *c, int member)
{
    const int rank = comm_world_rank(c, member);
    const char *device = comm_device_name(d->c.world, rank);

    strbuf_addf(sb, "rank %d (host %s%s%s)", rank, comm_place_of(d->c.world, rank)->host, device ? ", " : "",
                device ? device : "");
}

/* Of a list whose first difference is copy i. */
static void describe(const struct digest_set *d, const struct comm *c, const uint64_t *all, int step,
                     const struct digest_copy *of, struct digest_finding *f)
{
    static const char *const kind[] = { "weight", "master", "exp_avg", "exp_avg_sq" };
    const int size = comm_size(c);
    struct strbuf sb = {0};
    int share, who = find_minority(all, size, step, &share), other = 0;

    f->rank = who >= 0 ? comm_world_rank(c, who) : -1;
    snprintf(f->tensor, sizeof f->tensor, "%s", d->g->param[of->param].name);
    strbuf_addf(&sb, "%s: %s: the copy of ", f->tensor, kind[of->kind]);
    if (who >= 0) {
        add_rank(&sb, d, c, who);
        strbuf_addf(&sb, " has other bits than %d of its %d others", size - share, size - 1);
    } else {
        while (all[(int64_t)other * step] == all[0])
            other++;
        add_rank(&sb, d, c, 0);
        strbuf_addf(&sb, " has other bits than that of ");
        add_rank(&sb, d, c, other);
        strbuf_addf(&sb, ", and it is not known which is wrong");
    }
    snprintf(f->text, sizeof f->text, "%s", sb.buf);
    strbuf_free(&sb);
}

/* What a rank has of a list, in its order. */
struct digest_part {
    enum digest_list list;
    const uint64_t *mine;
    int n;
};

/* Digests of a list's copies. */
static int pick(const struct digest_set *d, enum digest_list list, uint64_t *mine)
{
    int n = 0;

    for (int i = 0; i < d->n; i++)
        if (listed(&d->copy[i], list))
            mine[n++] = d->own[i];
    return n;
}

/* An odd multiplier for each place: what two ranks have exchanged shows, too. */
static uint64_t sum_of(const uint64_t *mine, int n)
{
    uint64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += mine[i] * (2 * (uint64_t)i + 1);
    return sum;
}

/* Ranks have said different things: which copy is it? */
static int find(struct digest_set *d, struct comm *c, struct digest_part p, struct digest_finding *f, struct err *e)
{
    const int size = comm_size(c), n = p.n;
    uint64_t *all = xcalloc((size_t)n * (size_t)size + 1, sizeof *all);
    int rc = comm_host_all_gather(c, p.mine, all, (size_t)n * sizeof *all, e), first = -1;

    for (int i = 0, at = 0; rc == 0 && i < d->n; i++) {
        bool differ = false;

        if (!listed(&d->copy[i], p.list))
            continue;
        for (int r = 1; r < size; r++)
            differ |= all[(int64_t)r * n + at] != all[at];
        f->differ += differ;
        if (differ && first < 0)
            describe(d, c, all + at, n, &d->copy[first = i], f);
        at++;
    }
    free(all);
    return rc;
}

/* sums: n of this rank. *first: of the one in which the group's ranks differ; n: there is none. */
static int first_unlike(struct comm *c, const uint64_t *sums, int n, int64_t *first, struct err *e)
{
    const int size = comm_size(c);
    uint64_t *all = xcalloc((size_t)n * (size_t)size + 1, sizeof *all);
    int rc = comm_host_all_gather(c, sums, all, (size_t)n * sizeof *sums, e);

    *first = n;
    for (int i = n - 1; rc == 0 && i >= 0; i--)
        for (int r = 1; r < size; r++)
            if (all[(int64_t)r * n + i] != all[i])
                *first = i;
    free(all);
    return rc;
}

static int compare(struct digest_set *d, struct comm *c, enum digest_list list, struct digest_finding *f, struct err *e)
{
    uint64_t *mine, sum;
    int64_t first;
    int rc, n;

    if (!c || comm_size(c) == 1)
        return 0;
    mine = xcalloc((size_t)d->n + 1, sizeof *mine);
    n = pick(d, list, mine);
    sum = sum_of(mine, n);
    rc = first_unlike(c, &sum, 1, &first, e);
    if (rc == 0 && first == 0)
        rc = find(d, c, (struct digest_part){ list, mine, n }, f, e);
    free(mine);
    return rc;
}

/* All ranks get the finding of one: of the first that knows whose fault it is, else of the first that has any. */
static int share(struct digest_set *d, struct digest_finding *f, struct err *e)
{
    struct comm *all = comm_world_group(d->c.world);
    const int size = comm_size(all), me = comm_rank(all);
    int64_t said = !f->differ ? 0 : size - me + (f->rank >= 0 ? size : 0);

    if (comm_host_all_reduce(all, &said, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (!said)
        return 0;
    if (comm_host_broadcast(all, f, sizeof *f, size - (int)(said > size ? said - size : said), e) < 0)
        return -1;
    return 1;
}

/* In more than one group of tensor ranks, and in no other list: by now it is everywhere, nobody knows from where. */
static int spread(struct digest_set *d, bool over_tp, bool over_others, bool *so, struct err *e)
{
    int64_t n[2] = { over_tp, over_others };

    if (comm_host_all_reduce(comm_world_group(d->c.world), n, 2, DTYPE_I64, COMM_SUM, e) < 0)
        return -1;
    *so = n[0] > comm_size(d->c.tp) && n[1] == 0;
    return 0;
}

/* The oldest step of the trail that has a difference, and what it is: 1, *f and *so. 0: there is none. */
static int follow_trail(struct digest_set *d, int n_noted, struct digest_finding *f, bool *so, struct dev_stream *s,
                        struct err *e)
{
    const int rows = n_noted < TRAIL ? n_noted : TRAIL, width = on_trail(d);
    struct digest_finding there = { .rank = -1 };
    struct strbuf sb = {0};
    uint64_t sum[TRAIL];
    int64_t first, ago;
    int rc;

    if (rows == 0)
        return 0;
    d->k->dev->copy(d->trail_own, d->trail, (uint64_t)rows * (uint64_t)width * sizeof *d->trail, s);
    if (await(d, s, e) < 0)
        return -1;
    for (int i = 0; i < rows; i++)
        sum[i] = sum_of(d->trail_own + (int64_t)((n_noted - rows + i) % TRAIL) * width, width);
    if (first_unlike(d->c.tp, sum, rows, &first, e) < 0)
        return -1;
    ago = rows - first;
    if (comm_host_all_reduce(comm_world_group(d->c.world), &ago, 1, DTYPE_I64, COMM_MAX, e) < 0)
        return -1;
    if (ago == 0)
        return 0;
    if (find(d, d->c.tp, (struct digest_part){ OVER_TP, d->trail_own + (n_noted - ago) % TRAIL * width, width }, &there,
             e) < 0 ||
        spread(d, there.differ > 0, false, so, e) < 0)
        return -1;
    rc = share(d, &there, e);
    if (rc <= 0)
        return rc;
    *f = there;
    strbuf_addf(&sb, "%s, %d iterations ago", there.text, (int)ago);
    snprintf(f->text, sizeof f->text, "%s", sb.buf);
    strbuf_free(&sb);
    return 1;
}

int digest_compare(struct digest_set *d, struct digest_finding *f, struct dev_stream *s, struct err *e)
{
    struct digest_finding found[3] = {{ .rank = -1 }, { .rank = -1 }, { .rank = -1 }};
    struct comm *const group[] = { [OVER_DP] = d->c.dp, [OVER_TP] = d->c.tp, [OVER_TIED] = d->c.tied };
    const int n_noted = d->n_noted;
    bool so;
    int rc;

    d->n_noted = 0;
    if (take(d, s, e) < 0)
        return -1;
    for (int list = 0; list < 3; list++)
        if (compare(d, group[list], list, &found[list], e) < 0)
            return -1;
    *f = found[0];
    for (int list = 1; list < 3; list++)
        if (found[list].differ && (!f->differ || (f->rank < 0 && found[list].rank >= 0)))
            *f = found[list];
    rc = share(d, f, e);
    if (rc <= 0)
        return rc;
    if (spread(d, found[OVER_TP].differ > 0, found[OVER_DP].differ > 0, &so, e) < 0 ||
        follow_trail(d, n_noted, f, &so, s, e) < 0)
        return -1;
    if (so) {
        f->rank = -1;
        snprintf(f->text, sizeof f->text, "%s: copies differ in several groups of tensor ranks, and it is not known "
                 "where it began", f->tensor);
    }
    return 1;
}

/* ---- the same work twice ---- */

int digest_note_grads(struct digest_set *d, enum dtype t, int time, struct dev_stream *s, struct err *e)
{
    d->k->digest_runs(d->on_device, d->st->grads, t, d->whole, s);
    d->k->dev->copy(d->own, d->on_device, (uint64_t)d->g->n_params * sizeof *d->own, s);
    if (await(d, s, e) < 0)
        return -1;
    memcpy(d->grads[time], d->own, (size_t)d->g->n_params * sizeof *d->own);
    return 0;
}

int digest_compare_times(struct digest_set *d, struct digest_finding *f, struct err *e)
{
    struct comm *all = comm_world_group(d->c.world);
    int64_t ranks;
    struct strbuf sb = {0};

    *f = (struct digest_finding){ .rank = -1 };
    /* Gradients lie in the order in which a backward pass makes them: the first one is the nearest to the fault. */
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
        add_rank(&sb, d, all, comm_rank(all));
        strbuf_addf(&sb, " got other bits for the gradient of %s from the same work", f->tensor);
        if (ranks > 1)
            strbuf_addf(&sb, ", and so did %lld other ranks", (long long)ranks - 1);
        snprintf(f->text, sizeof f->text, "%s", sb.buf);
        strbuf_free(&sb);
    }
    return share(d, f, e);
}
