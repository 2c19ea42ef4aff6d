/*
 * test_digest_run.c - bits that flip in the state of a rank while it trains, and the reaction of the run
 *
 * The test runs whole steps of a small model on a few ranks. Between two steps one bit of weights, masters or
 * moments flips on one rank. Where other ranks hold copies, the run must end within --digest-interval steps and
 * name that rank, unless the flip was undone without action, which is checked without digests: the last bit of a
 * moment may be rounded away, and each update computes weights again, so that a flipped one shows only where all
 * weights are recorded. Where no rank holds a copy, nothing may be reported. After each flip all ranks restore the
 * earlier state. SOAK=1 makes 1,500 flips instead of 150.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "tests/lib/ranks.h"
#include "tests/lib/scratch.h"
#include "tools/train/guard/digest.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/run/setup.h"
#include "tools/train/run/step.h"
#include "tools/train/run/trainer.h"

struct job {
    struct topology topo;
    int every, flips;
    bool whole;                 /* digests of all weights are noted, as in steps of many tokens */
};

struct seat {
    const struct job *j;
    struct trainer t;
    uint64_t random;            /* the same on all ranks */
    void *before[4];            /* weights, masters, moments as they were before the flip */
};

/* What was hit, as the rank that was hit knows it. */
struct hit {
    int32_t who, kind;
    int32_t copies;             /* ranks that hold what was hit, itself included */
    int32_t either;             /* masters of a tied embedding: copies that are not compared, but their weights are */
    char name[112];
};

struct count { int told, gone, alone, nan; };

static uint64_t draw(struct seat *x, uint64_t below)
{
    x->random = x->random * 6364136223846793005u + 1442695040888963407u;
    return (x->random >> 33) % below;
}

static struct comm *everybody(const struct seat *x) { return comm_world_group(x->t.ranks.world); }

/* ---- a run ---- */

static int begin(struct seat *x, struct err *e)
{
    static char text[] =
        "train --backend cpu --threads 1 --bf16 --num-layers 2 --hidden-size 24 --num-attention-heads 6 "
        "--seq-length 16 --max-position-embeddings 16 --position-embedding-type alibi --embed-layernorm --vocab-size 257 "
        "--micro-batch-size 1 --global-batch-size 6 --train-samples 300000 --lr 1e-3 --lr-decay-style constant --eval-iters 0";
    struct trainer *t = &x->t;
    char *argv[64], tp[8], pp[8], every[8], data[300];
    int argc = 0;

    for (char *w = strtok(text, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    snprintf(tp, sizeof tp, "%d", x->j->topo.tp);
    snprintf(pp, sizeof pp, "%d", x->j->topo.pp);
    snprintf(every, sizeof every, "%d", x->j->every);
    snprintf(data, sizeof data, "%s/text_document", scratch);
    char *more[] = { (char *)"--tensor-model-parallel-size", tp, (char *)"--pipeline-model-parallel-size", pp,
                     (char *)"--digest-interval", every, (char *)"--data-path", data };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        argv[argc++] = more[i];
    argv[argc] = NULL;
    if (options_parse(&t->o, argc, argv, NULL, e) < 0 || comm_world_open(&(struct comm_options){0}, &t->ranks.world, e) < 0)
        return -1;
    t->ranks.place = comm_place(t->ranks.world);
    if (options_check(&t->o, t->ranks.place->size, OPTIONS_BEFORE_LOAD, e) < 0 ||
        (trainer_is_rank0(t) && !(t->log.lines = trainlog_open(NULL, false, e))))
        return -1;
    if (trainer_setup(t, e) < 0)
        return -1;
    t->copies.whole_tokens = x->j->whole ? 0 : INT64_MAX;
    return 0;
}

static void end(struct seat *x)
{
    trainlog_close(x->t.log.lines);
    trainer_free(&x->t);
    comm_world_close(x->t.ranks.world);
    options_free(&x->t.o);
    for (int i = 0; i < 4; i++)
        free(x->before[i]);
}

static void *buffer(const struct seat *x, int kind, size_t *bytes)
{
    const struct stage_state *s = &x->t.network.state;
    void *const all[] = { s->weights, s->master, s->exp_avg, s->exp_avg_sq };

    *bytes = kind == 0 ? (size_t)x->t.network.stage->flat_n * 2 : (size_t)x->t.network.stage->shard_n * 4;
    return all[kind];
}

/* Keep the state, or get it back. */
static void keep(struct seat *x, bool back)
{
    size_t n;

    for (int kind = 0; kind < 4; kind++) {
        void *is = buffer(x, kind, &n);

        if (!x->before[kind])
            x->before[kind] = xmalloc(n);
        memcpy(back ? is : x->before[kind], back ? x->before[kind] : is, n);
    }
}

/* ---- a flip ---- */

static struct hit flip(struct seat *x, struct hit h, uint64_t place, int bit)
{
    const struct trainer *t = &x->t;
    const struct stage *g = t->network.stage;
    const struct stage_run *r = &g->run[place % (uint64_t)g->n_runs];
    const struct stage_param *p = &g->param[h.kind == 0 ? (int)(place % (uint64_t)g->n_params) : r->param];
    const bool tied = t->ranks.topo.pp > 1 && p->role == ROLE_WORD;
    size_t n;
    void *is = buffer(x, h.kind, &n);

    place /= 64;
    snprintf(h.name, sizeof h.name, "%s", p->name);
    h.copies = p->split ? 1 : t->ranks.topo.tp;
    if (h.kind == 0) {
        h.copies = h.copies > t->ranks.topo.dp ? h.copies : t->ranks.topo.dp;
        h.copies = tied && h.copies < 2 ? 2 : h.copies;
        ((uint16_t *)is)[p->at + (int64_t)(place % (uint64_t)p->n)] ^= (uint16_t)(1 << bit % 16);
    } else {
        h.either = tied;
        ((uint32_t *)is)[r->shard_at + (int64_t)(place % (uint64_t)r->n)] ^= 1u << bit;
    }
    return h;
}

/* Bits of a group's members are the same? In their own words: a CRC of each. */
static int same(struct seat *x, struct comm *c, uint32_t mine, bool *equal, struct err *e)
{
    uint32_t all[RANKS_MAX];

    if (comm_host_all_gather(c, &mine, all, sizeof mine, e) < 0)
        return -1;
    for (int r = 0; r < comm_size(c); r++)
        *equal &= all[r] == mine;
    (void)x;
    return 0;
}

/* Have all copies equal bits, everywhere? */
static int copies_equal(struct seat *x, bool *equal, struct err *e)
{
    const struct trainer *t = &x->t;
    const struct stage *g = t->network.stage;
    const uint16_t *w = t->network.state.weights;
    const float *const shard[] = { t->network.state.master, t->network.state.exp_avg, t->network.state.exp_avg_sq };
    uint32_t every = 0, all = 0;
    int64_t n_unlike;

    for (int i = 0; i < g->n_params; i++) {
        all = crc_bytes(all, w + g->param[i].at, (size_t)g->param[i].n * 2);
        if (!g->param[i].split)
            every = crc_bytes(every, w + g->param[i].at, (size_t)g->param[i].n * 2);
    }
    for (int i = 0; i < 3 * g->n_runs; i++) {
        const struct stage_run *r = &g->run[i / 3];

        if (!g->param[r->param].split)
            every = crc_bytes(every, shard[i % 3] + r->shard_at, (size_t)r->n * 4);
    }
    *equal = true;
    if (same(x, t->ranks.dp, all, equal, e) < 0 || same(x, t->ranks.tp, every, equal, e) < 0)
        return -1;
    n_unlike = !*equal;
    if (comm_host_all_reduce(everybody(x), &n_unlike, 1, DTYPE_I64, COMM_SUM, e) < 0)
        return -1;
    *equal = n_unlike == 0;
    return 0;
}

/* Check what the run reported or did not report. rc and `e` are those of the last step. */
static int judge(struct seat *x, const struct hit *h, int rc, const struct err *e, struct count *n)
{
    struct err other = {0};
    char rank[32];
    bool equal;

    snprintf(rank, sizeof rank, "rank %d (", h->who);
    if (rc < 0 && x->t.failure.cause == CAUSE_REPLICAS && (h->copies > 1 || h->either)) {
        n->told++;
        if (h->either || (strstr(e->msg, rank) && (x->t.failure.culprit == h->who + 1 || (h->copies == 2 && !x->t.failure.culprit))))
            return 0;
        if (h->kind == 0 && x->t.ranks.topo.tp == 2 && strstr(e->msg, rank) && !x->t.failure.culprit)
            return 0;
    } else if (rc >= 0 && (h->copies == 1 || h->either)) {
        n->nan += rc > 0;
        n->alone += rc == 0;
        return 0;
    } else if (rc == 0 && copies_equal(x, &equal, &other) == 0 && equal &&
               (h->kind != 0 || (x->j->every > 1 && !x->j->whole))) {
        n->gone++;
        return 0;
    }
    fprintf(stderr, "rank %d, %s of kind %d, %d copies, flipped: step %d, culprit %d: %s\n", h->who, h->name, h->kind,
            h->copies, rc, x->t.failure.culprit - 1, rc < 0 ? e->msg : "nothing said");
    return 1;
}

static int one_flip(struct seat *x, struct count *n)
{
    struct trainer *t = &x->t;
    const int wait = (int)draw(x, (uint64_t)x->j->every), bit = (int)draw(x, 32);
    const uint64_t place = draw(x, 1u << 30);
    struct hit h = { .who = (int)draw(x, (uint64_t)comm_size(everybody(x))), .kind = (int)draw(x, 4) };
    struct err e = {0}, other = {0};
    struct step s;
    int rc = 0, bad;

    for (int i = 0; i < wait; i++)
        EXPECT(step_train(t, &s, &e) == 0);
    EXPECT(optimizer_wait_for_weights(t->network.optimizer, NULL, &e) == 0);
    keep(x, false);
    if (t->ranks.place->rank == h.who)
        h = flip(x, h, place, bit);
    EXPECT(comm_host_broadcast(everybody(x), &h, sizeof h, h.who, &e) == 0);
    for (int i = 0; i < x->j->every && rc == 0; i++)
        rc = step_train(t, &s, &e);
    EXPECT(optimizer_wait_for_weights(t->network.optimizer, NULL, &other) == 0);
    bad = judge(x, &h, rc, &e, n);
    keep(x, true);
    /* What was noted of the state that is gone. */
    digest_free(t->copies.digests);
    t->copies.digests = digest_new(t->network.stage, &t->network.state, t->shape.weights, t->k,
                           &(struct digest_groups){ t->ranks.world, t->ranks.tp, t->ranks.dp, t->ranks.tied }, &other);
    EXPECT(t->copies.digests);
    t->failure.cause = 0;
    t->failure.culprit = 0;
    t->failure.on_all_ranks = false;
    return bad;
}

static int train(int rank, int size, void *arg)
{
    struct seat x = { .j = arg, .random = 1 };
    struct count n = {0};
    struct err e = {0};

    (void)size;
    EXPECT(begin(&x, &e) == 0);
    for (int i = 0; i < x.j->flips; i++)
        if (one_flip(&x, &n))
            return 1;
    if (rank == 0)
        fprintf(stderr, "TP %d PP %d DP %d, looked at every %d%s: %d flips: told with the rank %d, gone by themselves %d; "
                "without copies %d, of these not a number %d\n", x.j->topo.tp, x.j->topo.pp, x.j->topo.dp, x.j->every,
                x.j->whole ? ", all weights noted" : "", x.j->flips, n.told, n.gone, n.alone + n.nan, n.nan);
    end(&x);
    return n.told > x.j->flips / 10 ? 0 : 1;
}

static void test_flips(void **state)
{
    static struct job all[] = {
        { { 1, 1, 3 }, 1, 40, false }, { { 1, 1, 3 }, 6, 40, true }, { { 2, 1, 2 }, 5, 20, false },
        { { 2, 1, 2 }, 5, 20, true }, { { 3, 1, 1 }, 4, 20, false }, { { 2, 2, 1 }, 3, 10, true },
    };
    char command[600];

    (void)state;
    snprintf(command, sizeof command, "cp tests/data/text/text_document.* '%s'", scratch);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct ranks r;
        char *said;
        bool ended;

        if (getenv("SOAK"))
            all[i].flips = 250;
        ranks_start(&r, topo_world(all[i].topo), train, &all[i]);
        ended = ranks_wait(&r, 3600);
        said = ranks_said(&r);
        print_message("%s", said);
        free(said);
        ranks_end(&r);
        assert_true(ended);
        for (int k = 0; k < r.size; k++)
            assert_int_equal(r.status[k], 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(test_flips) };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
