/*
 * repair.c - read all copies of all states chunk by chunk, resolve each element, and spool the result
 */
#include "libcommon/base/text.h"
#include "libcommon/check/repair.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/plan/stats.h"

enum { CHUNK_ELEMS = 32 << 10 };        /* elements per step, of every state and rank */

/* The buffers and settings for the repair of one parameter. */
struct repair_work {
    struct files *files;
    const struct repair_opts *o;
    int fd;                             /* descriptor of the spool file, which receives the new values */
    int n_ranks;
    const struct tmap *map[STATE_N];    /* NULL: this state is not repaired */
    uint8_t **copy[STATE_N];            /* [n_ranks]: for each rank, its copy of the current chunk */
    uint8_t *out[STATE_N];
    const void **at;                    /* [n_ranks]: scratch memory for replicas_combine() */
};

static size_t repair_elem_size(const struct repair_work *w, int st)
{
    return (size_t)dtype_size(w->map[st]->dtype);
}

/* ---- one element ---- */

static bool state_agrees(const struct repair_work *w, int st, uint64_t i)
{
    size_t size = repair_elem_size(w, st);

    for (int k = 1; k < w->n_ranks; k++)
        if (memcmp(w->copy[st][0] + i * size, w->copy[st][k] + i * size, size) != 0)
            return false;
    return true;
}

/*
 * Returns the number of copies, over all ranks and all states, whose value of element i is the same as that of rank k.
 */
static int votes_for(const struct repair_work *w, int k, uint64_t i)
{
    int votes = 0;

    for (int st = 0; st < STATE_N; st++)
        for (int j = 0; w->map[st] && j < w->n_ranks; j++)
            votes += memcmp(w->copy[st][k] + i * repair_elem_size(w, st), w->copy[st][j] + i * repair_elem_size(w, st),
                            repair_elem_size(w, st)) == 0;
    return votes;
}

static int choose_rank(const struct repair_work *w, uint64_t i)
{
    int best = 0, most = 0;

    for (int k = 0; w->o->how == REPLICAS_MAJORITY && k < w->n_ranks; k++) {
        int votes = votes_for(w, k, i);

        if (votes > most) {
            most = votes;
            best = k;
        }
    }
    return best;
}

static void resolve_element_state(const struct repair_work *w, int st, uint64_t i, int rank)
{
    size_t size = repair_elem_size(w, st);

    for (int k = 0; k < w->n_ranks; k++)
        w->at[k] = w->copy[st][k] + i * size;
    if (w->o->how == REPLICAS_AVERAGE)
        replicas_combine(w->at, w->n_ranks, size, w->map[st]->dtype, w->o->how, w->out[st] + i * size);
    else
        memcpy(w->out[st] + i * size, w->at[rank], size);
}

/* Round a master to the weight that a trainer would derive from this master. */
static void round_master(enum dtype weights, const uint8_t *master, uint8_t *out)
{
    uint16_t narrow;
    float x;

    memcpy(&x, master, sizeof x);
    if (weights != DTYPE_BF16 && weights != DTYPE_F16) {
        memcpy(out, &x, sizeof x);
        return;
    }
    narrow = f32_to_half(weights, x);
    memcpy(out, &narrow, sizeof narrow);
}

static bool was_rounded_master(const struct repair_work *w, uint64_t i)
{
    size_t size = repair_elem_size(w, STATE_BF16);
    uint8_t rounded[sizeof(float)];

    for (int k = 0; k < w->n_ranks; k++) {
        round_master(w->map[STATE_BF16]->dtype, w->copy[STATE_FP32][k] + i * sizeof(float), rounded);
        if (memcmp(rounded, w->copy[STATE_BF16][k] + i * size, size) == 0)
            return true;
    }
    return false;
}

static void resolve_element(const struct repair_work *w, uint64_t i)
{
    int rank = choose_rank(w, i);

    for (int st = STATE_FP32; st < STATE_N; st++)
        if (w->map[st])
            resolve_element_state(w, st, i, rank);
    if (!w->map[STATE_BF16])
        return;
    if (w->map[STATE_FP32] && was_rounded_master(w, i))
        round_master(w->map[STATE_BF16]->dtype, w->out[STATE_FP32] + i * sizeof(float),
                     w->out[STATE_BF16] + i * repair_elem_size(w, STATE_BF16));
    else
        resolve_element_state(w, STATE_BF16, i, rank);
}

/* ---- a chunk of all states ---- */

static bool any_differs(const struct repair_work *w, uint64_t i)
{
    for (int st = 0; st < STATE_N; st++)
        if (w->map[st] && !state_agrees(w, st, i))
            return true;
    return false;
}

/* Compare the new values of one chunk with the old values of each rank, and add the differences to *x and d[]. */
static void measure_repair_changes(const struct repair_work *w, uint64_t n, struct repair_state *x,
                                   struct stats_diff *d)
{
    size_t size = repair_elem_size(w, x->state);
    const uint8_t *out = w->out[x->state];

    for (int k = 0; k < w->n_ranks; k++)
        stats_diff_add(&d[k], w->map[x->state]->dtype, w->copy[x->state][k], out, n);
    for (uint64_t i = 0; i < n; i++) {
        bool changed = false;

        for (int k = 0; k < w->n_ranks; k++)
            changed |= memcmp(w->copy[x->state][k] + i * size, out + i * size, size) != 0;
        x->all.n_changed += changed;
        x->n_differed += !state_agrees(w, (int)x->state, i);
    }
}

static int read_chunk(const struct repair_work *w, uint64_t from, uint64_t n, struct err *e)
{
    for (int st = 0; st < STATE_N; st++)
        for (int k = 0; w->map[st] && k < w->n_ranks; k++)
            if (tmap_read(w->map[st], w->files,
                          (struct tmap_range){ k, from * repair_elem_size(w, st), n * repair_elem_size(w, st) },
                          w->copy[st][k], e) < 0)
                return -1;
    return 0;
}

static void resolve_chunk(const struct repair_work *w, uint64_t n)
{
    for (int st = 0; st < STATE_N; st++)
        if (w->map[st])
            memcpy(w->out[st], w->copy[st][0], n * repair_elem_size(w, st));
    for (uint64_t i = 0; i < n; i++)
        if (any_differs(w, i))
            resolve_element(w, i);
}

/* ---- a parameter ---- */

static void repair_work_init(struct repair_work *w, const struct replica_param *rp)
{
    w->n_ranks = 0;
    for (int st = 0; st < STATE_N; st++) {
        w->map[st] = rp->state[st].compared ? replica_map(rp, st) : NULL;
        w->copy[st] = NULL;
        w->out[st] = NULL;
        if (!w->map[st])
            continue;
        w->n_ranks = w->map[st]->n_slices;
        w->out[st] = xmalloc(CHUNK_ELEMS * repair_elem_size(w, st));
        w->copy[st] = xcalloc((size_t)w->n_ranks, sizeof *w->copy[st]);
        for (int k = 0; k < w->n_ranks; k++)
            w->copy[st][k] = xmalloc(CHUNK_ELEMS * repair_elem_size(w, st));
    }
    w->at = xcalloc((size_t)w->n_ranks, sizeof *w->at);
}

static void repair_work_free(struct repair_work *w)
{
    for (int st = 0; st < STATE_N; st++) {
        for (int k = 0; w->copy[st] && k < w->n_ranks; k++)
            free(w->copy[st][k]);
        free(w->copy[st]);
        free(w->out[st]);
    }
    free(w->at);
}

/* The place of one parameter's new states in the spool file, and the CRCs of these states. */
struct repair_place {
    uint64_t at[STATE_N];
    struct crc_sum crc[STATE_N];
};

static void record_rank_diffs(struct repair_state *x, const struct stats_diff *d)
{
    for (int k = 0; k < x->n_ranks; k++) {
        x->rank[k] = (struct repair_move){ d[k].n_differ, d[k].max_ulps, d[k].max_abs };
        x->all.max_ulps = max_u64(x->all.max_ulps, d[k].max_ulps);
        x->all.max_abs = fmax(x->all.max_abs, d[k].max_abs);
    }
}

/*
 * Repair one parameter and write its new values to the spool file. state[STATE_N] is set to the report of each state.
 * The entry of a state without a map stays empty.
 */
static int repair_param(struct repair_work *w, struct repair_place *pl, struct repair_state *state, struct err *e)
{
    struct stats_diff *d = xcalloc((size_t)w->n_ranks * STATE_N, sizeof *d);
    uint64_t n_elems = 0, n;
    int rc = 0;

    for (int st = 0; st < STATE_N; st++)
        if (w->map[st])
            n_elems = w->map[st]->len / repair_elem_size(w, st);
    for (uint64_t from = 0; from < n_elems && rc == 0; from += n) {
        n = min_u64(CHUNK_ELEMS, n_elems - from);
        if (w->o->stopped && w->o->stopped()) {
            err_stop(e);
            rc = -1;
        } else {
            rc = read_chunk(w, from, n, e);
        }
        if (rc < 0)
            break;
        resolve_chunk(w, n);
        for (int st = 0; st < STATE_N && rc == 0; st++) {
            uint64_t len = w->map[st] ? n * repair_elem_size(w, st) : 0,
                     at = w->map[st] ? from * repair_elem_size(w, st) : 0;

            if (!w->map[st])
                continue;
            measure_repair_changes(w, n, &state[st], d + (size_t)st * (size_t)w->n_ranks);
            crc_sum_add(&pl->crc[st], w->map[st]->len, at, len, crc_bytes(0, w->out[st], len));
            rc = write_all_at(w->fd, w->out[st], len, pl->at[st] + at);
            if (rc < 0)
                err_sys(e, "repaired replicas", "cannot write %llu bytes", (unsigned long long)len);
        }
    }
    for (int st = 0; st < STATE_N; st++)
        if (w->map[st])
            record_rank_diffs(&state[st], d + (size_t)st * (size_t)w->n_ranks);
    free(d);
    return rc;
}

/* ---- all of them ---- */

static bool drifted(const struct replica_param *rp)
{
    for (int st = 0; st < STATE_N; st++)
        if (rp->state[st].compared && rp->state[st].n_differ)
            return true;
    return false;
}

/*
 * Assign a place in the spool file to each state of each drifted parameter, one after the other. Returns the size of
 * the file.
 */
static uint64_t place_repaired_states(const struct replicas *r, struct repair_place *place)
{
    uint64_t at = 0;

    for (int i = 0; i < r->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (drifted(&r->param[i]) && r->param[i].state[st].compared) {
                place[i].at[st] = at;
                at += align_up(replica_map(&r->param[i], st)->len, 4096);
            }
    return at;
}

static struct tmap *map_repaired_state(struct source *s, struct arena *a, int file, uint64_t at, uint32_t crc,
                                       const struct tmap *was)
{
    struct tmap *m = arena_alloc(a, sizeof *m);
    struct tmap_slice *slice = arena_alloc(a, sizeof *slice);
    struct extent *x = arena_alloc(a, sizeof *x);
    struct record r = { .file = file, .at = at, .len = was->len, .has_crc = true, .crc = crc, .name = "repaired" };

    *x = (struct extent){ files_add_record(s->files, &r), 0, was->len };
    *slice = (struct tmap_slice){ .len = was->len, .n_extents = 1, .extent = x };
    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = was->dtype, .len = was->len, .n_slices = 1, .slice = slice };
    return m;
}

/* Make the source's parameters refer to the new values in the spool file. */
static void install_repaired_params(struct source *s, const struct replicas *r, const struct repair_place *place,
                                    int file)
{
    for (int i = 0; i < r->n_params; i++) {
        const struct replica_param *rp = &r->param[i];
        struct param *p = &s->param[rp->param - s->param];

        for (int st = 0; st < STATE_N; st++) {
            struct tmap *m;

            if (!drifted(rp) || !rp->state[st].compared)
                continue;
            m = map_repaired_state(s, s->arena, file, place[i].at[st], place[i].crc[st].acc, replica_map(rp, st));
            *(rp->last_stage ? &p->tied[st] : &p->state[st]) = m;
            p->has_digest[st] &= rp->last_stage;
        }
    }
}

/* Append the states that changed to the list in *x. *x then owns the `rank` arrays of these states. */
static void keep_states(struct repair *x, struct repair_state *state)
{
    bool any = false;

    for (int st = 0; st < STATE_N; st++) {
        if (state[st].all.n_changed) {
            any = true;
            x->state[x->n++] = state[st];
        } else {
            free(state[st].rank);
        }
    }
    x->n_params += any;
}

/* Repair one parameter. `of_all` holds the members that are the same for all parameters. */
static int repair_one(const struct repair_work *of_all, const struct replica_param *rp, struct repair_place *pl,
                      struct repair *out, struct err *e)
{
    struct repair_work w = *of_all;
    struct repair_state state[STATE_N] = {0};
    int rc;

    repair_work_init(&w, rp);
    for (int st = 0; st < STATE_N; st++)
        if (w.map[st])
            state[st] = (struct repair_state){
                .param = rp->param, .last_stage = rp->last_stage, .state = (enum state)st, .n_ranks = w.n_ranks,
                .n_elems = w.map[st]->len / repair_elem_size(&w, st), .was = w.map[st],
                .rank = xcalloc((size_t)w.n_ranks, sizeof(struct repair_move)),
            };
    rc = repair_param(&w, pl, state, e);
    keep_states(out, state);
    repair_work_free(&w);
    return rc;
}

int repair_run(struct source *s, const struct replicas *r, const struct repair_opts *o, struct repair *out,
               struct err *e)
{
    struct repair_place *place = xcalloc((size_t)r->n_params + 1, sizeof *place);
    uint64_t size = place_repaired_states(r, place);
    int fd = file_spool(o->spool, size, e), rc = fd < 0 ? -1 : 0;
    struct repair_work w = { .files = s->files, .o = o, .fd = fd };

    *out = (struct repair){ .state = xcalloc((size_t)r->n_params * STATE_N + 1, sizeof *out->state) };
    for (int i = 0; i < r->n_params && rc == 0; i++)
        if (drifted(&r->param[i]))
            rc = repair_one(&w, &r->param[i], &place[i], out, e);
    if (rc == 0) {
        install_repaired_params(s, r, place, files_add_fd(s->files, fd, size, "repaired replicas"));
    } else {
        if (fd >= 0)
            close(fd);
        repair_free(out);
    }
    free(place);
    return rc;
}

void repair_free(struct repair *x)
{
    for (int i = 0; i < x->n; i++)
        free(x->state[i].rank);
    free(x->state);
    memset(x, 0, sizeof *x);
}

/* ---- the journal ---- */

static json_t *ulps_json(uint64_t ulps)
{
    return ulps == STATS_NO_ULPS ? json_null() : json_integer((json_int_t)ulps);
}

static json_t *abs_json(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static void append_repair_json(struct strbuf *out, json_t *o)
{
    char *s = text_dump(o, JSON_COMPACT | JSON_ENSURE_ASCII);

    strbuf_addf(out, "%s\n", s ? s : "{}");
    free(s);
    json_decref(o);
}

static json_t *repair_state_json(const struct repair_state *x)
{
    json_t *ranks = json_array();

    for (int k = 0; k < x->n_ranks; k++)
        if (x->rank[k].n_changed)
            json_array_append_new(ranks, json_pack("{s:i, s:I, s:o, s:o}", "rank", k,
                "changed", (json_int_t)x->rank[k].n_changed, "max_ulps", ulps_json(x->rank[k].max_ulps),
                "max_abs", abs_json(x->rank[k].max_abs)));
    return json_pack("{s:s, s:b, s:s, s:I, s:I, s:I, s:o, s:o, s:o}", "parameter", x->param->name,
        "last_stage", (int)x->last_stage, "state", state_name(x->state), "elements", (json_int_t)x->n_elems,
        "differed", (json_int_t)x->n_differed, "changed", (json_int_t)x->all.n_changed,
        "max_ulps", ulps_json(x->all.max_ulps), "max_abs", abs_json(x->all.max_abs), "ranks", ranks);
}

void repair_log(const struct source *s, const struct repair *x, enum replica_policy how, struct strbuf *out)
{
    static const char *const policy[] = { "average", "first", "majority", "fail" };

    append_repair_json(out,
                       json_pack("{s:s, s:i, s:s, s:i, s:I, s:s, s:i, s:i}", "format", "shardkit-repair", "version", 1,
                                 "tag", s->tag, "tp", s->topo.tp, "iteration", (json_int_t)s->run.iteration, "policy",
                                 policy[how], "parameters", x->n_params, "states", x->n));
    for (int i = 0; i < x->n; i++)
        append_repair_json(out, repair_state_json(&x->state[i]));
}
