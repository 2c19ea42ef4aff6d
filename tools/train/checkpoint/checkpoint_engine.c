/*
 * checkpoint_engine.c - the save as the writer process carries it out: write a rank's part of the files, then rename
 * the folder
 */
#include "tools/train/checkpoint/checkpoint_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/plan/executor.h"
#include "libcommon/write/sink.h"

enum { EXEC_MEM = 16 << 20 };

struct save_engine {
    struct save_setup set;
    struct stage *s;
    struct ds_share *share;
    uint8_t *mp_bytes;
    struct files *files;        /* contains the mp_rank file */
    struct pt *mp;
    const char *memory;
    struct checkpoint_area area;
    int rank;
};

/* ---- setup ---- */

/* Open the mp_rank file that serves as the template for the mp_rank file of every save. */
static int open_mp_template(struct save_engine *g, const char *bytes, struct err *e)
{
    g->mp_bytes = xmalloc(g->set.mp_bytes + 1);
    memcpy(g->mp_bytes, bytes, g->set.mp_bytes);
    g->files = files_new();
    g->mp = pt_open(g->files, files_add_mem(g->files, g->mp_bytes, g->set.mp_bytes, "mp_rank file"), e);
    return g->mp ? 0 : -1;
}

struct save_engine *save_engine_new(const void *setup, size_t n, const void *area, struct err *e)
{
    struct save_engine *g = xcalloc(1, sizeof *g);
    const char *p = setup, *end = p + n;
    int *blocks;
    size_t pp_bytes;

    memcpy(&g->set, p, sizeof g->set);
    p += sizeof g->set;
    pp_bytes = (size_t)g->set.topo.pp * sizeof *blocks;
    blocks = xmalloc(pp_bytes);
    memcpy(blocks, p, pp_bytes);
    p += pp_bytes;
    g->memory = area;
    g->s = stage_new(&g->set.model, g->set.topo, g->set.pp, g->set.dp, g->set.tp, blocks);
    g->area = checkpoint_area_of(g->s, g->set.weights, g->set.memory_bytes);
    g->rank = topo_rank(g->set.topo, g->set.pp, g->set.dp, g->set.tp);
    free(blocks);
    if (open_mp_template(g, p, e) == 0)
        g->share = ds_share_unpack(p + g->set.mp_bytes, (size_t)(end - p) - g->set.mp_bytes, e);
    if (g->share)
        return g;
    save_engine_free(g);
    return NULL;
}

void save_engine_free(struct save_engine *g)
{
    if (!g)
        return;
    ds_share_free(g->share);
    pt_close(g->mp);
    files_free(g->files);
    free(g->mp_bytes);
    stage_free(g->s);
    free(g);
}

/* ---- checking the saved values ---- */

struct save_writing {
    struct save_engine *g;
    atomic_bool not_finite;     /* a value that was written is not finite */
};

/*
 * Returns the index of the first of n values that is not finite, or -1 if all are finite. Each block is first tested as
 * a whole with vector code, which costs little compared with the CRC.
 */
static int64_t find_not_finite_value(enum dtype t, const void *values, int64_t n)
{
    enum { BLOCK = 1024 };
    const uint32_t *wide = values;
    const uint16_t *half = values;
    const uint16_t exponent = t == DTYPE_F16 ? 0x7c00 : 0x7f80;

    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t end = at + BLOCK < n ? at + BLOCK : n;
        uint32_t bad = 0;

        if (t == DTYPE_F32)
            for (int64_t i = at; i < end; i++)
                bad |= (wide[i] & 0x7f800000) == 0x7f800000;
        else
            for (int64_t i = at; i < end; i++)
                bad |= (half[i] & exponent) == exponent;
        for (int64_t i = at; bad && i < end; i++)
            if (!isfinite(dtype_value(t, (const char *)values + i * dtype_size(t))))
                return i;
    }
    return -1;
}

/*
 * Check the bytes of an item for NaN and infinity. The executor calls this function when it computes the CRC. Training
 * cannot continue from a state with such values, so `latest` must never name it.
 */
static int save_on_bytes(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len,
                         struct err *e)
{
    struct save_writing *w = ctx;
    const struct stage *s = w->g->s;
    const struct ds_piece *p = it->user;
    const struct stage_param *param = &s->param[s->run[p->held].param];
    const enum dtype t = p->state == STATE_BF16 ? w->g->set.weights : DTYPE_F32;
    const int64_t at = find_not_finite_value(t, bytes, (int64_t)(len / (uint64_t)dtype_size(t)));
    double value;

    if (at < 0)
        return 0;
    value = dtype_value(t, (const char *)bytes + at * dtype_size(t));
    w->not_finite = true;
    err_data(e, param->name, ERR_NO_BYTE, "%s: element %lld of the %lld that stage %d, data rank %d, tensor rank %d "
                                          "holds is %s: training cannot continue from such a state, so it is not saved",
             p->state == STATE_BF16 ? "weight" : state_name(p->state),
             (long long)(p->first + (int64_t)from / dtype_size(t) + at), (long long)param->n, s->pp, s->dp, s->tp,
             isnan(value) ? "NaN" : value > 0 ? "infinite" : "minus infinite");
    return -1;
}

/* ---- the other ranks of the same pipeline stage and tensor rank ---- */

static int post_done(void *ctx, const char *text, size_t n, struct err *e)
{
    return save_rendezvous_post(ctx, "done", text, n, e);
}

/*
 * Returns the text that data-parallel rank `dp` has published. The world ranks of consecutive data-parallel ranks
 * differ by the number of tensor ranks.
 */
static char *wait_for_done(void *ctx, int dp, struct err *e)
{
    struct save_rendezvous *m = ctx;

    return save_rendezvous_wait_for(m, "done",
                                    topo_rank(m->topo, m->rank / m->topo.tp / m->topo.dp, dp, m->rank % m->topo.tp), e);
}

/* ---- one save ---- */

static struct ds_save save_of(const struct save_engine *g, const struct checkpoint_now *now, struct save_rendezvous *m)
{
    return (struct ds_save){
        .memory = g->memory, .bytes = g->area.room, .window = g->area.window < g->area.bytes ? g->area.window : 0,
        .now = { .opt_step = now->opt_step, .decay = now->decay, .no_decay = now->no_decay, .clip_grad = now->clip_grad,
                 .scaler = now->has_scaler ? &now->scaler : NULL, .overflow = now->overflow },
        .rendezvous = { .tell = post_done, .hear = wait_for_done, .ctx = m },
    };
}

/* Add the mp_rank file. Only the first data-parallel rank writes it. */
static void add_mp(struct save_engine *g, struct arena *a, const struct checkpoint_now *now, struct ds_save *to)
{
    struct pk *root;

    if (g->set.dp > 0)
        return;
    root = pk_copy(a, pt_root(g->mp));
    checkpoint_mp_renew(a, root, now, g->set.first_gigaflos);
    to->mp_root = root;
    to->mp = g->mp;
    to->mp_files = g->files;
}

/*
 * Write each window of the staging area when the trainer has filled it, and then release it. All windows are received
 * even if the save has failed, because the optimizer waits until the copy is complete, and the next save must begin
 * with no data in transit.
 */
static int write_windows(const struct save_engine *g, struct plan *plan, const struct save_feed *feed,
                         const struct exec_opts *x, int rc, struct err *e)
{
    const uint64_t window = g->area.window, bytes = g->area.bytes;
    struct exec_stats st;

    for (uint64_t from = 0; from < bytes; from += window) {
        const uint64_t upto = min_u64(from + window, bytes);
        struct err late = {0};

        if (feed->await(feed->ctx, upto, rc == 0 ? e : &late) < 0)
            return -1;
        for (int i = 0; i < plan_n(plan); i++) {
            const struct ds_piece *p = plan_item(plan, i)->user;

            plan_item(plan, i)->done = p->from / window != from / window;
        }
        if (rc == 0)
            rc = exec_run(plan, x, &st, e);
        /* The trainer waits for this release only if the window will be filled again. */
        if (from + g->area.room < bytes)
            feed->release(feed->ctx, upto);
    }
    return rc;
}

static enum save_outcome write_share(struct save_engine *g, struct save_rendezvous *m, const struct save_feed *feed,
                                     struct err *e)
{
    struct save_writing w = { .g = g };
    struct exec_opts x = { .threads = g->set.threads, .mem_bytes = EXEC_MEM, .look = save_on_bytes, .ctx = &w };
    struct files *files = files_new();
    struct plan *plan = plan_new(files);
    struct arena *a = arena_new(0);
    struct ds_save how = save_of(g, &m->o->now, m);
    struct sink *k;
    int rc;

    add_mp(g, a, &m->o->now, &how);
    k = ds_share_sink(g->share, &how);
    rc = k->ops->prepare(k, NULL, m->part, plan, e);
    plan_close_parts(plan);             /* the gaps between the pieces belong to no file */
    rc = write_windows(g, plan, feed, &x, rc, e);
    if (rc == 0)
        rc = k->ops->finish(k, plan, e);
    k->ops->close(k);
    plan_free(plan);
    files_free(files);
    arena_free(a);
    return rc == 0 ? SAVE_COMPLETE : w.not_finite ? SAVE_NOT_FINITE : SAVE_FAILED;
}

uint64_t save_engine_disk_bytes(const struct save_engine *g)
{
    const struct ds_save how = {0};
    struct sink *k = ds_share_sink(g->share, &how);
    uint64_t sum = k->ops->estimate(k, NULL);

    k->ops->close(k);
    return sum + (g->set.dp == 0 ? align_up(g->set.mp_bytes + 4096, 4096) : 0);
}

static int publish_sealed_save(struct save_rendezvous *m, struct err *e)
{
    for (int r = 0; r < topo_world(m->topo); r++) {
        char *text = save_rendezvous_wait_for(m, "sealed", r, e);

        if (!text)
            return -1;
        free(text);
    }
    return save_rendezvous_publish(m, e);
}

enum save_outcome save_engine_run(struct save_engine *g, const struct save_order *o, const struct save_feed *feed,
                                  struct err *e)
{
    struct save_rendezvous m;
    enum save_outcome outcome;

    save_rendezvous_open(&m, o, g->s->topo, g->rank, feed->gone, feed->ctx);
    outcome = write_share(g, &m, feed, e);
    if (outcome == SAVE_COMPLETE && save_rendezvous_post(&m, "sealed", "", 0, e) < 0)
        outcome = SAVE_FAILED;
    if (outcome == SAVE_COMPLETE && g->rank == 0 && publish_sealed_save(&m, e) < 0)
        outcome = SAVE_FAILED;
    if (outcome != SAVE_COMPLETE) {
        save_rendezvous_fail(&m, e);
        if (m.echo && outcome == SAVE_FAILED)
            outcome = SAVE_ABANDONED;
        if (g->rank == 0)
            save_rendezvous_discard(&m);
    }
    save_rendezvous_close(&m);
    return outcome;
}
