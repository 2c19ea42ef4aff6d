/*
 * preflight.c - test all devices at the same time, then the links between them
 *
 * All ranks begin each test at the same time, so that they share resources (a host's memory, power, cooling) as in
 * training.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "tools/train/health/preflight_impl.h"
#include "tools/train/log/trainlog.h"

enum { HANG_S = 300 };

static const struct preflight_sizes of_gpu = { 256 << 20, 64 << 20, 0.1, 8192, 4096, 4096, 20 };
static const struct preflight_sizes of_cpu = { 8 << 20, 2 << 20, 0.01, 256, 512, 512, 3 };

/* ---- links ---- */

/*
 * Returns the rank with which rank r of n exchanges messages in this phase, or -1 if there is none. In phase 0 the
 * pairs are (0, 1), (2, 3), ...; in phase 1 they are (1, 2), (3, 4), ... and, if n > 2 is even, (n - 1, 0). If n is
 * odd, the last rank and rank 0 form a pair in phase 2. Pairs are used because ranks that all send around a ring at
 * once would wait for each other in a circle.
 */
static int partner(int r, int n, int phase)
{
    if (phase == 2)
        return n % 2 == 0 || n == 1 ? -1 : r == n - 1 ? 0 : r == 0 ? n - 1 : -1;
    if (phase == 1 && n % 2 == 0 && n > 2 && (r == 0 || r == n - 1))
        return r ? 0 : n - 1;
    if (phase == 1 && n == 2)
        return -1;
    r += r % 2 == phase ? 1 : -1;
    return r >= 0 && r < n ? r : -1;
}

struct messages {
    float *out, *in, *want;     /* z.message bytes each */
    /* sums: 2 numbers in device memory; tmp: scratch memory; got: 2 numbers in host memory */
    double *sums, *tmp, *got;
};

/* Exchange messages with `other`: send one and receive one. */
static int exchange_link_message(struct preflight *p, const struct messages *x, int other, struct err *e)
{
    const int64_t n = (int64_t)(p->z.message / 4);
    struct comm_req *out = NULL, *in = NULL;

    if (comm_send_start(p->all, &(struct comm_data){ .in = x->out, .n = n, .t = DTYPE_F32 }, other, NULL, &out,
                        e) < 0 ||
        comm_recv_start(p->all, &(struct comm_data){ .out = x->in, .n = n, .t = DTYPE_F32 }, other, NULL, &in, e) < 0)
        return -1;
    return comm_wait(&in, NULL, e) < 0 ? -1 : comm_wait(&out, NULL, e);
}

/* Returns true if sums of squares of a and b, computed by sumsq(), have the same bits. */
static bool equal(struct preflight *p, const struct messages *x, const float *a, const float *b)
{
    const int64_t n = (int64_t)(p->z.message / 4);

    p->k->sumsq(x->sums, a, n, x->tmp, NULL);
    p->k->sumsq(x->sums + 1, b, n, x->tmp, NULL);
    p->dev->copy(x->got, x->sums, 16, NULL);
    preflight_sync_device(p);
    return memcmp(&x->got[0], &x->got[1], 8) == 0;
}

static int try_link(struct preflight *p, const struct messages *x, int other, struct err *e)
{
    const int n = p->t->ranks.place->size;
    double begin;

    if (exchange_link_message(p, x, other, e) < 0 || comm_sync(p->all, NULL, e) < 0)
        return -1;
    begin = clock_s();
    for (int i = 0; i < p->z.exchanges; i++)
        if (exchange_link_message(p, x, other, e) < 0)
            return -1;
    if (comm_sync(p->all, NULL, e) < 0)
        return -1;
    if (other == (p->t->ranks.place->rank + 1) % n) {
        p->mine->rate[RATE_LINK] = (double)p->z.message * p->z.exchanges / (clock_s() - begin);
        p->mine->next = other;
        p->mine->next_node = comm_place_of(p->t->ranks.world, other)->node;
    }
    preflight_random(p, x->want, (int64_t)(p->z.message / 4), 1000 + (uint32_t)other);
    if (!equal(p, x, x->in, x->want))
        preflight_wrong(p, "what came from rank %d is not what it sent", other);
    return 0;
}

/*
 * Test an all-reduce whose result is n (n + 1) / 2 in every element. *rate receives its bus bandwidth in bytes/s, which
 * is the same on all ranks.
 */
static int try_all_reduce(struct preflight *p, const struct messages *x, double *rate, struct err *e)
{
    const int size = p->t->ranks.place->size;
    const int64_t n = (int64_t)(p->z.message / 4);
    float *host = preflight_alloc_host(p, p->z.message);
    double begin = 0, all;

    /* Even if there is not enough host memory, continue, because the other ranks wait for this one in collectives. */
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; host && i < n; i++)
            host[i] = pass ? (float)size * (float)(size + 1) / 2 : (float)(p->t->ranks.place->rank + 1);
        if (host)
            p->dev->copy(pass ? x->want : x->out, host, p->z.message, NULL);
        preflight_sync_device(p);
    }
    for (int i = 0; i <= p->z.exchanges; i++) {
        if (i == 1 && comm_barrier(p->all, NULL, e) < 0)
            return -1;
        if (i < 2)
            begin = clock_s();
        if (comm_all_reduce(p->all, &(struct comm_data){ x->out, x->in, n, DTYPE_F32, COMM_SUM }, NULL, e) < 0)
            return -1;
    }
    if (comm_sync(p->all, NULL, e) < 0)
        return -1;
    all = clock_s() - begin;
    *rate = 2.0 * (size - 1) / size * (double)p->z.message * p->z.exchanges / all;
    if (host && !equal(p, x, x->in, x->want))
        preflight_wrong(p, "an all-reduce over all ranks has a wrong sum");
    p->dev->free_host(host);
    return 0;
}

static int try_neighbours(struct preflight *p, double *all_reduce, struct err *e)
{
    const int64_t n = (int64_t)(p->z.message / 4);
    struct messages x = {
        .out = preflight_alloc_device(p, p->z.message), .in = preflight_alloc_device(p, p->z.message),
        .want = preflight_alloc_device(p, p->z.message), .sums = preflight_alloc_device(p, 16),
        .tmp = preflight_alloc_device(p, (uint64_t)p->k->sumsq_scratch(n) * 8), .got = preflight_alloc_host(p, 16),
    };
    int64_t lacks = !(x.out && x.in && x.want && x.sums && x.tmp && x.got);
    int rc = comm_host_all_reduce(p->all, &lacks, 1, DTYPE_I64, COMM_MAX, e);
    const bool have = !lacks;

    watch_phase(p->watch, "preflight: neighbours", -1, -1);
    if (rc == 0 && have) {
        preflight_random(p, x.out, n, 1000 + (uint32_t)p->t->ranks.place->rank);
        preflight_sync_device(p);
    }
    for (int phase = 0; rc == 0 && have && phase < 3; phase++) {
        const int other = partner(p->t->ranks.place->rank, p->t->ranks.place->size, phase);

        rc = comm_barrier(p->all, NULL, e);
        if (rc == 0 && other >= 0)
            rc = try_link(p, &x, other, e);
    }
    if (rc == 0 && have)
        rc = try_all_reduce(p, &x, all_reduce, e);
    p->dev->free(x.out);
    p->dev->free(x.in);
    p->dev->free(x.want);
    p->dev->free(x.sums);
    p->dev->free(x.tmp);
    p->dev->free_host(x.got);
    return rc;
}

/* ---- all tests ---- */

static int try_all(struct preflight *p, double *all_reduce, struct err *e)
{
    static void (*const tests[])(struct preflight *) = { preflight_memory, preflight_copies, preflight_products };

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (comm_barrier(p->all, NULL, e) < 0)
            return -1;
        tests[i](p);
    }
    return p->t->ranks.place->size > 1 ? try_neighbours(p, all_reduce, e) : 0;
}

static void show(struct trainer *t, const struct preflight_rank *all, double all_reduce, const char *verdict)
{
    struct strbuf sb = {0};
    const int n = t->ranks.place->size;

    if (t->o.json)
        preflight_json(all, n, &sb);
    else
        preflight_table(all, n, &sb);
    if (all_reduce > 0 && !t->o.json)
        strbuf_addf(&sb, "all-reduce over %d ranks: %.1f GB/s of each rank's links\n", n, all_reduce * 1e-9);
    if (!t->o.json)
        strbuf_addf(&sb, "%s", verdict);
    trainlog_flush(t->log.lines, &sb);
    strbuf_free(&sb);
}

int preflight_run(struct trainer *t, struct err *e)
{
    const struct run_ranks *r = &t->ranks;
    const int n = r->place->size;
    struct preflight_rank mine = { .rank = r->place->rank, .node = r->place->node, .next = -1, .next_node = -1 };
    struct preflight_rank *all = xcalloc((size_t)n, sizeof *all);
    struct preflight p = {
        .t = t, .k = t->k, .dev = t->k->dev, .watch = comm_watch(r->world), .all = comm_world_group(r->world),
        .mine = &mine, .z = dev_on_host(t->k->dev) ? of_cpu : of_gpu,
    };
    struct strbuf verdict = {0};
    double all_reduce = 0;
    int rc, named;

    snprintf(mine.host, sizeof mine.host, "%s", r->place->host);
    p.dev->who(&mine.who);
    watch_timeout(p.watch, HANG_S);
    rc = try_all(&p, &all_reduce, e);
    if (rc == 0)
        rc = comm_host_all_gather(p.all, &mine, all, sizeof mine, e);
    if (rc == 0) {
        named = preflight_verdict(all, n, &verdict);
        if (named == 0)
            strbuf_addf(&verdict, "%d rank%s tried out%s: all well\n", n, n == 1 ? "" : "s",
                        dev_on_host(p.dev) ? " on processors" : "");
        if (trainer_is_rank0(t))
            show(t, all, all_reduce, verdict.buf);
        if (named > 0) {
            err_usage(e, "preflight: %d of %d ranks slow or wrong", named, n);
            e->kind = ERR_SYS;
            t->failure.on_all_ranks = true;
            rc = -1;
        }
    }
    strbuf_free(&verdict);
    free(all);
    return rc;
}
