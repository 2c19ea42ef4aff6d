/*
 * test_digest.c - bits that flip in weights, masters and moments of a rank, and the report of digest_compare()
 *
 * Ranks hold tensors whose values depend on the parameter only, so copies are equal. In each round one bit of one
 * rank flips. If other ranks hold copies, it must be reported with the tensor and, given three copies or more, the
 * rank. If none does, or nothing flips, nothing may be reported.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "tests/lib/ranks.h"
#include "tools/train/guard/digest.h"

enum { FLIPS = 800, BLOCKS = 2 };

struct job {
    struct topology topo;
    int at_least;               /* flips that hit what has copies */
};

struct seat {
    struct topology topo;
    struct comm_world *world;
    struct comm *tp, *dp, *tied;
    const struct kernels *k;
    int pp, d, t;
    struct stage *g;
    struct stage_state st;
    uint64_t random;            /* the same on all ranks */
};

static uint64_t draw(struct seat *x, uint64_t below)
{
    x->random = x->random * 6364136223846793005u + 1442695040888963407u;
    return (x->random >> 33) % below;
}

static struct comm *group(struct seat *x, const char *name, int first, int stride, int n)
{
    int rank[RANKS_MAX];
    struct err e = {0};

    for (int i = 0; i < n; i++)
        rank[i] = first + i * stride;
    return comm_create(x->world, name, rank, n, &e);
}

/* Element i of a parameter's slice, of a kind: the same wherever there is a copy. */
static uint32_t value(const struct seat *x, int param, int64_t i, int kind)
{
    const struct stage_param *p = &x->g->param[param];
    const uint64_t part = p->split ? (uint64_t)x->t + 1 : 0;

    return (uint32_t)((((uint64_t)p->id * 31 + part) * 1000003 + (uint64_t)i * 7 + (uint64_t)kind) *
                          0x9e3779b97f4a7c15u >>
                      32);
}

static void fill(struct seat *x)
{
    const struct stage *g = x->g;
    uint16_t *w = x->st.weights = xcalloc((size_t)g->flat_n, 2);
    uint32_t *shard[3];

    for (int kind = 0; kind < 3; kind++)
        shard[kind] = xcalloc((size_t)g->shard_n, 4);
    for (int p = 0; p < g->n_params; p++)
        for (int64_t i = 0; i < g->param[p].n; i++)
            w[g->param[p].at + i] = (uint16_t)value(x, p, i, 0);
    for (int r = 0; r < g->n_runs; r++)
        for (int64_t i = 0; i < g->run[r].n; i++)
            for (int kind = 0; kind < 3; kind++)
                shard[kind][g->run[r].shard_at + i] = value(x, g->run[r].param, g->run[r].from + i, kind + 1);
    x->st.master = (float *)shard[0];
    x->st.exp_avg = (float *)shard[1];
    x->st.exp_avg_sq = (float *)shard[2];
}

static int sit(struct seat *x, int rank, struct err *e)
{
    struct model_config c = { .n_layers = BLOCKS, .hidden = 24, .n_heads = 6, .ffn_hidden = 96, .vocab = 48,
                              .vocab_tokens = 48, .embed_layernorm = true };
    const struct topology t = x->topo;
    int blocks[BLOCKS] = { BLOCKS / t.pp, BLOCKS / t.pp };

    snprintf(c.position, sizeof c.position, "alibi");
    x->pp = rank / (t.dp * t.tp);
    x->d = rank / t.tp % t.dp;
    x->t = rank % t.tp;
    x->k = kernels_cpu_open(&(struct kernel_opts){ .threads = 1 }, e);
    x->tp = group(x, "tp", rank - x->t, 1, t.tp);
    x->dp = group(x, "dp", topo_rank(t, x->pp, 0, x->t), t.tp, t.dp);
    if (t.pp > 1)
        x->tied = group(x, "tied", topo_rank(t, 0, x->d, x->t), t.dp * t.tp, t.pp);
    x->g = stage_new(&c, t, x->pp, x->d, x->t, blocks);
    fill(x);
    return x->k && x->tp && x->dp ? 0 : -1;
}

static void leave(struct seat *x)
{
    free(x->st.weights);
    free(x->st.master);
    free(x->st.exp_avg);
    free(x->st.exp_avg_sq);
    stage_free(x->g);
    if (x->tied)
        comm_close(x->tied);
    comm_close(x->dp);
    comm_close(x->tp);
    comm_world_close(x->world);
    kernels_close(x->k);
}

/* What was hit, as the rank that was hit knows it. */
struct hit {
    int32_t copies;             /* ranks that hold what was hit, itself included */
    char name[112];
};

/* Ranks that any one group compares the weights of p on: the largest of these groups. */
static int32_t copies_of(const struct seat *x, const struct stage_param *p)
{
    const int32_t over_tp = p->split ? 1 : x->topo.tp, over_pp = x->tied && p->role == ROLE_WORD ? 2 : 1;
    const int32_t most = over_tp > x->topo.dp ? over_tp : x->topo.dp;

    return most > over_pp ? most : over_pp;
}

/* A bit of some parameter's copy in buffer `kind` of this rank changes; small ones are hit as often as large ones. */
static struct hit flip(struct seat *x, int kind, uint64_t place, int bit)
{
    const struct stage *g = x->g;
    const struct stage_run *r = &g->run[place % (uint64_t)g->n_runs];
    const struct stage_param *p = &g->param[kind == 0 ? (int)(place % (uint64_t)g->n_params) : r->param];
    float *const buffer[] = { x->st.master, x->st.exp_avg, x->st.exp_avg_sq };
    struct hit h;

    place /= 64;
    snprintf(h.name, sizeof h.name, "%s", p->name);
    if (kind == 0) {
        ((uint16_t *)x->st.weights)[p->at + (int64_t)(place % (uint64_t)p->n)] ^= (uint16_t)(1 << bit % 16);
        h.copies = copies_of(x, p);
    } else {
        ((uint32_t *)buffer[kind - 1])[r->shard_at + (int64_t)(place % (uint64_t)r->n)] ^= 1u << bit;
        h.copies = p->split ? 1 : x->topo.tp;
    }
    return h;
}

/* Check the reported name. Names of both uses of the tied embedding are allowed. */
static int judge(const struct hit *h, int who, int rc, const struct digest_finding *f)
{
    char rank[32];

    if (rc != (h->copies > 1)) {
        fprintf(stderr, "%d copies of %s on rank %d: told %d\n", h->copies, h->name, who, rc);
        return 1;
    }
    snprintf(rank, sizeof rank, "rank %d ", who);
    if (rc && (f->differ != 1 || !strstr(f->text, rank) || (strcmp(f->tensor, h->name) != 0 && h->copies != 2) ||
               f->rank != (h->copies > 2 ? who : -1))) {
        fprintf(stderr, "%d copies of %s on rank %d: rank %d, %d tensors, %s\n", h->copies, h->name, who, f->rank,
                f->differ, f->text);
        return 1;
    }
    return 0;
}

static int do_flips(int rank, int size, void *arg)
{
    const struct job *j = arg;
    struct seat x = { .topo = j->topo, .random = 1 };
    struct digest_finding f;
    struct digest_set *d;
    int told = 0;
    struct err e = {0};

    EXPECT(comm_world_open(&(struct comm_options){0}, &x.world, &e) == 0);
    EXPECT(sit(&x, rank, &e) == 0);
    d = digest_new(x.g, &x.st, DTYPE_BF16, x.k, &(struct digest_groups){ x.world, x.tp, x.dp, x.tied }, &e);
    EXPECT(d);
    for (int i = 0; i < FLIPS; i++) {
        const int who = (int)draw(&x, (uint64_t)size), kind = (int)draw(&x, 4), bit = (int)draw(&x, 32);
        const uint64_t place = draw(&x, 1u << 30);
        struct hit h = {0};
        int rc;

        digest_record(d, true, NULL);
        EXPECT(digest_compare(d, &f, NULL, &e) == 0);
        if (rank == who)
            h = flip(&x, kind, place, bit);
        EXPECT(comm_host_broadcast(comm_world_group(x.world), &h, sizeof h, who, &e) == 0);
        digest_record(d, true, NULL);
        rc = digest_compare(d, &f, NULL, &e);
        EXPECT(rc >= 0);
        if (judge(&h, who, rc, &f))
            return 1;
        told += rc;
        if (rank == who)
            flip(&x, kind, place, bit);
    }
    if (rank == 0)
        fprintf(stderr, "%d of %d flips hit copies\n", told, FLIPS);
    digest_free(d);
    leave(&x);
    return told >= j->at_least ? 0 : 1;
}

static void test_flips(void **state)
{
    /* 1,520 flips that must be reported, and as many checks without a flip. */
    static const struct job all[] = {
        { { 2, 1, 2 }, 471 }, { { 1, 1, 3 }, 188 }, { { 3, 1, 1 }, 442 }, { { 2, 2, 1 }, 407 }, { { 1, 2, 1 }, 12 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(ranks_run(topo_world(all[i].topo), do_flips, (void *)&all[i]));
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(test_flips) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
